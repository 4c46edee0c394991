// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Publishes limits to processes and collects their counters, through their pages on each GPU.

mod seats;

use gct_core::gpu_time::GpuTime;
use gct_core::ids::{GpuId, Owner, ProcKey};
use gct_core::launches::Launches;
use gct_core::policy::clock::{Demand, Seen};
use gct_core::policy::slo::histogram::Histogram;
use gct_core::state::State;
use gct_core::units::Ns;
use gct_core::unmanaged::Reason;
use gctd_ipc::board::{Board, BoardWriter, Pulse, Slot, SlotIndex};
use gctd_ipc::page::{Limits, Page};
use gctd_ipc::shared::{SealedFd, Shared, SharedFd};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::{Errno, Result};
use seats::Holder;
use std::collections::{BTreeMap, BTreeSet};

/// Channels that are not managed, by reason.
pub(crate) type Counts = [u64; Reason::COUNT];

/// The number of a connection.
pub(crate) type ConnectionId = u64;

/// A process on a GPU, on one of its connections.
#[derive(Debug)]
struct Tenant {
    connection: ConnectionId,
    proc: ProcKey,
    user: Option<u32>,
    gpu: GpuId,
    minor: u32,
    slot: Option<(SlotIndex, u32)>,
    page: Shared<Page>,
    fds: Fds,
    generation: u64,
    limits: Option<Limits>,
    /// The generation that last changed a limit that the process enforces by controls.
    controlled: u64,
    /// The process's answer to that generation.
    answer: Answer,
    /// Its counters at the last collection.
    seen: Launches,
    /// Its time on the GPU at the last collection.
    time: GpuTime,
    /// Its faults at the last collection.
    faults: u64,
    /// Its requests when goals were last looked at.
    requests: Histogram,
    /// What it asks of the clock, and what it had reported when that was last looked at.
    demand: Demand,
    measured: Seen,
}

/// What a process has answered to the limits that it enforces by controls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// The limits bind it.
    Applied,
    /// The resource manager refused them.
    Refused,
    /// None yet, and the pending write waits for it.
    Awaited,
    /// None yet, and no write waits: the process joined a group, or a write was rolled back.
    Due,
    /// None in time. No write waits for the process until it answers.
    Late,
}

/// The descriptors of a process's page and pulse.
#[derive(Debug)]
enum Fds {
    /// The process has yet to map both.
    Writable { page: SharedFd, pulse: SharedFd },
    /// The process has mapped both, and they are sealed. Neighbours read the pulse.
    Sealed { pulse: SealedFd },
}

impl Tenant {
    /// Returns who has its slot.
    fn holder(&self, state: &State<'_>) -> Holder {
        holder(self.proc, self.user, state)
    }

    /// Returns the descriptor of the pulse once it is sealed.
    fn pulse(&self) -> Option<BorrowedFd<'_>> {
        match &self.fds {
            Fds::Sealed { pulse } => Some(pulse.as_fd()),
            Fds::Writable { .. } => None,
        }
    }

    /// Adds to the core's statistics what the process has counted since the last call.
    fn collect(&mut self, state: &mut State<'_>) {
        let now = self.page.launches();
        let more = now.since(&self.seen);
        self.seen = now;
        state.launched(self.proc, self.gpu, &more, self.page.effective());
        let now = self.page.time();
        state.used_gpu(self.proc, self.gpu, &now.since(&self.time));
        self.time = now;
        let (faults, xid) = self.page.faults();
        let more = faults.saturating_sub(self.faults);
        self.faults = faults;
        state.faulted_often(self.proc, self.gpu, more, xid);
    }

    /// Writes the limits in force to its page, if they have changed. Returns whether they have.
    fn publish(&mut self, state: &State<'_>, pending: bool) -> bool {
        let settings = state.launch_settings(self.proc, self.gpu);
        let share = state.share(self.proc, self.gpu);
        let limits = Limits {
            native: state.native(self.proc, self.gpu),
            is_stray: state.group_of(self.proc).is_none(),
            ..Limits::new(
                &settings,
                &state.standing(self.proc, self.gpu).own,
                &state.gpu_topology(self.gpu),
                &share,
                state.clock(self.gpu),
            )
        };
        if self.limits == Some(limits) {
            return false;
        }
        let before = self.limits.unwrap_or(Limits::NONE);
        self.limits = Some(limits);
        self.generation += 1;
        if before.controlled() != limits.controlled() {
            self.controlled = self.generation;
            self.answer = match (self.answer, pending) {
                (Answer::Late, _) => Answer::Late,
                (_, true) => Answer::Awaited,
                (_, false) => Answer::Due,
            };
        }
        self.page.set_limits(self.generation, &limits);
        true
    }
}

/// Returns whether an owner is a process or its group.
fn belongs(state: &State<'_>, tenant: &Tenant, owner: Owner) -> bool {
    match owner {
        Owner::Proc(key) => tenant.proc == key,
        Owner::Group(group) => state.group_of(tenant.proc) == Some(group),
    }
}

fn holder(proc: ProcKey, user: Option<u32>, state: &State<'_>) -> Holder {
    let group = state.group_of(proc);
    group.map_or(Holder::User(user), Holder::Group)
}

/// The board of a GPU.
#[derive(Debug)]
struct GpuBoard {
    gpu: GpuId,
    writer: BoardWriter,
    fd: SealedFd,
}

/// The pages of all processes and the boards of all GPUs.
#[derive(Debug, Default)]
pub(crate) struct Tenants {
    tenants: Vec<Tenant>,
    boards: Vec<GpuBoard>,
    /// A number for each owner of reserved TPCs, in order of arrival.
    numbers: BTreeMap<Owner, u32>,
    last_number: u32,
    last_user: u32,
}

/// The reply to a request for a page. `fds` are page, pulse and board, until both are mapped.
pub(crate) struct PageReply<'a> {
    pub(crate) minor: u32,
    pub(crate) slot: Option<(SlotIndex, u32)>,
    pub(crate) fds: Vec<BorrowedFd<'a>>,
}

/// A neighbour: its slot with the slot's user, and the descriptor of its pulse.
pub(crate) type Neighbour<'a> = ((SlotIndex, u32), BorrowedFd<'a>);

impl Tenants {
    /// Creates the page of a user's process on a GPU where this connection has none.
    pub(crate) fn open(
        &mut self,
        connection: ConnectionId,
        (proc, user): (ProcKey, Option<u32>),
        (gpu, minor): (GpuId, u32),
        state: &State<'_>,
    ) -> Result<()> {
        self.ensure_board(gpu)?;
        let mut tenant = new_tenant(connection, (proc, user), (gpu, minor))?;
        tenant.slot = self.take_slot(&tenant, state);
        self.tenants.push(tenant);
        Ok(())
    }

    /// Takes a slot for a process: the one that an earlier connection of it has, or a free one.
    fn take_slot(&mut self, new: &Tenant, state: &State<'_>) -> Option<(SlotIndex, u32)> {
        let mut here = self.tenants.iter_mut().filter(|t| t.gpu == new.gpu);
        let earlier = here.find(|t| t.proc == new.proc && t.slot.is_some());
        let index = match earlier.and_then(|t| t.slot.take()) {
            Some((index, _)) => {
                self.clear_slot(new.gpu, index);
                index
            }
            None => {
                let here = self.tenants.iter().filter(|t| t.gpu == new.gpu);
                let taken = here.filter_map(|t| Some((t.slot?.0, t.holder(state))));
                let taken: Vec<(SlotIndex, Holder)> = taken.collect();
                seats::free(&taken, new.holder(state))?
            }
        };
        self.last_user = self.last_user.checked_add(1).unwrap_or(1);
        Some((index, self.last_user))
    }

    /// Returns the reply for a page on a GPU.
    pub(crate) fn page_reply(&self, connection: ConnectionId, gpu: GpuId) -> Option<PageReply<'_>> {
        let known = |t: &&Tenant| t.connection == connection && t.gpu == gpu;
        let tenant = self.tenants.iter().find(known)?;
        let board = self.boards.iter().find(|board| board.gpu == gpu)?;
        let fds = match &tenant.fds {
            Fds::Writable { page, pulse } => {
                vec![page.writable(), pulse.writable(), board.fd.as_fd()]
            }
            Fds::Sealed { .. } => Vec::new(),
        };
        Some(PageReply {
            minor: tenant.minor,
            slot: tenant.slot,
            fds,
        })
    }

    /// Seals the page and the pulse that a process has mapped.
    ///
    /// # Errors
    ///
    /// `ENOENT` without a page, `EPERM` if the process has set other seals.
    pub(crate) fn seal(&mut self, connection: ConnectionId, minor: u32) -> Result<()> {
        let of = |t: &&mut Tenant| t.connection == connection && t.minor == minor;
        let tenant = self.tenants.iter_mut().find(of).ok_or(Errno::NOENT)?;
        if let Fds::Writable { page, pulse } = &tenant.fds {
            page.seal()?;
            let pulse = pulse.seal()?;
            tenant.fds = Fds::Sealed { pulse };
        }
        Ok(())
    }

    fn clear_slot(&mut self, gpu: GpuId, index: SlotIndex) {
        if let Some(board) = self.boards.iter_mut().find(|board| board.gpu == gpu) {
            board.writer.set(index, Slot::default());
        }
    }

    fn ensure_board(&mut self, gpu: GpuId) -> Result<()> {
        if self.boards.iter().all(|board| board.gpu != gpu) {
            let (fd, page) = SharedFd::create::<Board>("gctgroup-board")?;
            let (writer, fd) = (BoardWriter::new(page), fd.seal()?);
            self.boards.push(GpuBoard { gpu, writer, fd });
        }
        Ok(())
    }

    /// Returns the GPUs on which a connection has a page.
    pub(crate) fn gpus_of(&self, connection: ConnectionId) -> impl Iterator<Item = GpuId> + '_ {
        let own = move |t: &&Tenant| t.connection == connection;
        self.tenants.iter().filter(own).map(|t| t.gpu)
    }

    /// Returns the other processes on a GPU, if the connection has a page there.
    pub(crate) fn neighbours(&self, connection: ConnectionId, minor: u32) -> Vec<Neighbour<'_>> {
        let on = |t: &&Tenant| t.minor == minor;
        let mut here = self.tenants.iter().filter(on);
        if !here.any(|t| t.connection == connection) {
            return Vec::new();
        }
        let others = self.tenants.iter().filter(on);
        others
            .filter(|t| t.connection != connection)
            .filter_map(|t| Some((t.slot?, t.pulse()?)))
            .collect()
    }

    /// Collects the last counters of a connection and removes its pages.
    pub(crate) fn close(&mut self, connection: ConnectionId, state: &mut State<'_>) {
        let gone = |tenant: &Tenant| tenant.connection == connection;
        self.collect_counters(state, gone);
        let slots = self.tenants.iter().filter(|tenant| gone(tenant));
        let slots = slots.filter_map(|tenant| Some((tenant.gpu, tenant.slot?.0)));
        for (gpu, index) in slots.collect::<Vec<_>>() {
            self.clear_slot(gpu, index);
        }
        self.tenants.retain(|tenant| !gone(tenant));
    }

    /// Adds to the core's statistics what all processes have counted since the last call.
    pub(crate) fn collect_all_counters(&mut self, state: &mut State<'_>) {
        self.collect_counters(state, |_| true);
    }

    /// Does so for one process.
    pub(crate) fn collect_counters_of_process(&mut self, state: &mut State<'_>, key: ProcKey) {
        self.collect_counters(state, |tenant| tenant.proc == key);
    }

    /// Does so for the processes of an owner on a GPU. A tenant that reads its own statistics does
    /// not make the daemon read the pages of all.
    pub(crate) fn collect_counters_of(&mut self, state: &mut State<'_>, owner: Owner, gpu: GpuId) {
        for tenant in self.tenants.iter_mut().filter(|tenant| tenant.gpu == gpu) {
            if belongs(state, tenant, owner) {
                tenant.collect(state);
            }
        }
    }

    fn collect_counters(&mut self, state: &mut State<'_>, of: impl Fn(&Tenant) -> bool) {
        for tenant in self.tenants.iter_mut().filter(|tenant| of(tenant)) {
            tenant.collect(state);
        }
    }

    /// Calls `found` for each process on a GPU, with the requests that have ended since the last
    /// call and the age of the one that has not.
    pub(crate) fn take_requests(
        &mut self,
        now: Ns,
        mut found: impl FnMut(ProcKey, GpuId, &Histogram, Ns),
    ) {
        for tenant in &mut self.tenants {
            let all = tenant.page.requests();
            let before = core::mem::replace(&mut tenant.requests, all);
            let open = tenant.page.open_request(now);
            found(tenant.proc, tenant.gpu, &all.since(&before), open);
        }
    }

    /// Calls `found` for each process on a GPU, with what its launches since the last call ask of
    /// the clock, and whether it has channels that its library does not manage. `mixed` says that
    /// the clock was changed meanwhile.
    pub(crate) fn look_at_clocks(
        &mut self,
        gpu: GpuId,
        mixed: bool,
        mut found: impl FnMut(ProcKey, &Demand, bool),
    ) {
        for tenant in self.tenants.iter_mut().filter(|tenant| tenant.gpu == gpu) {
            let now = Seen {
                used: tenant.page.time().used,
                launches: tenant.page.launches().launches,
                sums: tenant.page.clock_sums(),
            };
            let before = core::mem::replace(&mut tenant.measured, now);
            tenant.demand.look(&now.since(&before), mixed);
            let unmanaged = tenant.page.has_unmanaged();
            found(tenant.proc, &tenant.demand, unmanaged);
        }
    }

    /// Writes the limits in force to a page that its process has yet to map.
    pub(crate) fn publish_page(
        &mut self,
        connection: ConnectionId,
        gpu: GpuId,
        state: &State<'_>,
        pending: bool,
    ) {
        let of = |t: &&mut Tenant| t.connection == connection && t.gpu == gpu;
        if let Some(tenant) = self.tenants.iter_mut().find(of) {
            tenant.publish(state, pending);
        }
    }

    /// Writes the slot of a process that has mapped its page.
    pub(crate) fn publish_slot(&mut self, connection: ConnectionId, minor: u32, state: &State<'_>) {
        let of = |t: &&Tenant| t.connection == connection && t.minor == minor;
        let Some(tenant) = self.tenants.iter().find(of) else {
            return;
        };
        let owner = state.owner_of(tenant.proc);
        number(&mut self.numbers, &mut self.last_number, owner);
        if let Some(board) = self.boards.iter_mut().find(|board| board.gpu == tenant.gpu) {
            write_slot(&mut board.writer, tenant, &self.numbers, state);
        }
    }

    /// Writes the limits in force to every page, and reservations and priorities to the boards.
    ///
    /// `pending`: a write is pending. It waits for the processes whose time slice or freeze it
    /// changes, unless they were late before.
    pub(crate) fn publish(&mut self, state: &State<'_>, pending: bool) {
        let mut changed = BTreeSet::new();
        for tenant in &mut self.tenants {
            if tenant.publish(state, pending) {
                changed.insert(tenant.connection);
            }
        }
        // A process waits on the bell of one of its pages, whichever has changed.
        let notified = |tenant: &&Tenant| changed.contains(&tenant.connection);
        for tenant in self.tenants.iter().filter(notified) {
            tenant.page.ring();
        }
        self.number_owners(state);
        for board in &mut self.boards {
            // A process whose pulse cannot be read yet would look idle.
            for tenant in self.tenants.iter().filter(|t| t.gpu == board.gpu) {
                write_slot(&mut board.writer, tenant, &self.numbers, state);
            }
        }
    }

    /// Records that a process has applied a generation of its limits, or was refused. Returns
    /// whether the pending write has waited for that.
    pub(crate) fn ack(
        &mut self,
        connection: ConnectionId,
        minor: u32,
        generation: u64,
        refused: bool,
    ) -> bool {
        let of = |t: &&mut Tenant| t.connection == connection && t.minor == minor;
        let Some(tenant) = self.tenants.iter_mut().find(of) else {
            return false;
        };
        if generation < tenant.controlled {
            return false;
        }
        let awaited = tenant.answer == Answer::Awaited;
        tenant.answer = match refused {
            true => Answer::Refused,
            false => Answer::Applied,
        };
        awaited
    }

    /// Returns whether the pending write waits for a process.
    pub(crate) fn awaits_acks(&self) -> bool {
        let mut tenants = self.tenants.iter();
        tenants.any(|tenant| tenant.answer == Answer::Awaited)
    }

    /// Stops waiting for the processes that have not answered in time.
    pub(crate) fn give_up(&mut self) {
        for tenant in &mut self.tenants {
            if tenant.answer == Answer::Awaited {
                tenant.answer = Answer::Late;
            }
        }
    }

    /// Counts the processes of an owner on a GPU that its limits do not bind: they have not
    /// answered yet, or were refused.
    pub(crate) fn unbound(&self, state: &State<'_>, owner: Owner, gpu: GpuId) -> u32 {
        let owned = self.owned(state, owner, gpu);
        let unbound = owned.filter(|tenant| tenant.answer != Answer::Applied);
        u32::try_from(unbound.count()).unwrap_or(u32::MAX)
    }

    /// Returns how many channels of an owner's processes on a GPU are not managed, by reason.
    pub(crate) fn unmanaged(&self, state: &State<'_>, owner: Owner, gpu: GpuId) -> Counts {
        let mut counts = [0u64; Reason::COUNT];
        for tenant in self.owned(state, owner, gpu) {
            for (all, more) in counts.iter_mut().zip(tenant.page.unmanaged()) {
                *all = all.saturating_add(more);
            }
        }
        counts
    }

    /// Returns how many launches, atoms and entries of an owner on a GPU are in flight or held
    /// back.
    pub(crate) fn pending(&self, state: &State<'_>, owner: Owner, gpu: GpuId) -> u64 {
        let owned = self.owned(state, owner, gpu);
        owned.fold(0, |sum, tenant| sum.saturating_add(tenant.page.pending()))
    }

    /// Returns the processes of an owner on a GPU.
    fn owned<'a, 's>(
        &'a self,
        state: &'a State<'s>,
        owner: Owner,
        gpu: GpuId,
    ) -> impl Iterator<Item = &'a Tenant> + use<'a, 's> {
        let on_gpu = self.tenants.iter().filter(move |tenant| tenant.gpu == gpu);
        on_gpu.filter(move |tenant| belongs(state, tenant, owner))
    }

    /// Numbers new owners, and removes those without a process.
    fn number_owners(&mut self, state: &State<'_>) {
        let owners = self.tenants.iter().map(|t| state.owner_of(t.proc));
        let owners: Vec<Owner> = owners.collect();
        let here: BTreeSet<&Owner> = owners.iter().collect();
        self.numbers.retain(|known, _| here.contains(known));
        for owner in owners {
            number(&mut self.numbers, &mut self.last_number, owner);
        }
    }
}

/// Gives an owner the number behind the last one, unless it has one.
fn number(numbers: &mut BTreeMap<Owner, u32>, last: &mut u32, owner: Owner) {
    numbers.entry(owner).or_insert_with(|| {
        *last = last.checked_add(1).unwrap_or(1);
        *last
    });
}

/// Creates a process on a GPU with an empty page, and no slot.
fn new_tenant(
    connection: ConnectionId,
    (proc, user): (ProcKey, Option<u32>),
    (gpu, minor): (GpuId, u32),
) -> Result<Tenant> {
    let (page_fd, page) = SharedFd::create::<Page>("gctgroup-page")?;
    let (pulse_fd, _) = SharedFd::create::<Pulse>("gctgroup-pulse")?;
    Ok(Tenant {
        connection,
        proc,
        user,
        gpu,
        minor,
        slot: None,
        page,
        fds: Fds::Writable {
            page: page_fd,
            pulse: pulse_fd,
        },
        generation: 0,
        limits: None,
        controlled: 0,
        answer: Answer::Applied,
        seen: Launches::ZERO,
        time: GpuTime::ZERO,
        faults: 0,
        requests: Histogram::NEW,
        demand: Demand::new(),
        measured: Seen::default(),
    })
}

/// Writes the slot of a process whose pulse can be read: what neighbours know of it.
fn write_slot(
    writer: &mut BoardWriter,
    tenant: &Tenant,
    numbers: &BTreeMap<Owner, u32>,
    state: &State<'_>,
) {
    let Some(((index, user), _)) = tenant.slot.zip(tenant.pulse()) else {
        return;
    };
    let number = numbers.get(&state.owner_of(tenant.proc));
    let standing = state.standing(tenant.proc, tenant.gpu);
    let slot = Slot {
        user,
        tenant: number.copied().unwrap_or(0),
        tpcs: *standing.own.words(),
        alone: *standing.alone.words(),
        allowed: *standing.allowed.words(),
        lends: standing.lends,
        confined: standing.confined,
        priority: standing.rank.priority.get(),
        best_effort: standing.rank.best_effort,
        weight: standing.weight,
    };
    writer.set(index, slot);
}
