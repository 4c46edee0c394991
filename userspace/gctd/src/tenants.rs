// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Publishes limits to processes and collects their counters, through their pages on each GPU.

mod seats;
mod tenant;

use gct_core::ids::{GpuId, Owner, ProcKey};
use gct_core::policy::clock::{Demand, Seen};
use gct_core::policy::slo::histogram::Histogram;
use gct_core::state::State;
use gct_core::units::Ns;
use gct_core::unmanaged::Reason;
use gctd_ipc::board::{Board, BoardWriter, Slot, SlotIndex};
use gctd_ipc::shared::{SealedFd, SharedFd};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::{Errno, Result};
use seats::Holder;
use std::collections::{BTreeMap, BTreeSet};
use tenant::{new_tenant, Answer, Fds, Tenant};

/// Channels that are not managed, by reason.
pub(crate) type Counts = [u64; Reason::COUNT];

/// The number of a connection.
pub(crate) type ConnectionId = u64;

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
    /// The connections that have a slot.
    seats: BTreeMap<SlotIndex, ConnectionId>,
}

impl GpuBoard {
    fn clear(&mut self, index: SlotIndex) {
        self.seats.remove(&index);
        self.writer.set(index, Slot::default());
    }
}

/// The pages of each connection.
type ByConnection = BTreeMap<ConnectionId, Vec<Tenant>>;

/// The pages of all processes and the boards of all GPUs.
///
/// A message of one connection costs what that connection has, and a look at the seats, however
/// many others there are.
#[derive(Debug, Default)]
pub(crate) struct Tenants {
    tenants: ByConnection,
    /// The connections of each process that have pages.
    processes: BTreeMap<ProcKey, BTreeSet<ConnectionId>>,
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
        self.tenants.entry(connection).or_default().push(tenant);
        let connections = self.processes.entry(proc).or_default();
        connections.insert(connection);
        Ok(())
    }

    /// Takes a slot for a process: the one that an earlier connection of it has, or a free one.
    fn take_slot(&mut self, new: &Tenant, state: &State<'_>) -> Option<(SlotIndex, u32)> {
        let board = self.boards.iter_mut().find(|board| board.gpu == new.gpu)?;
        let seated = |(index, at): (&SlotIndex, &ConnectionId)| {
            let tenant = page(&self.tenants, *at, new.gpu)?;
            Some((*index, tenant.proc, tenant.holder(state)))
        };
        let taken: Vec<_> = board.seats.iter().filter_map(seated).collect();
        let earlier = taken.iter().find(|(_, proc, _)| *proc == new.proc);
        let index = match earlier {
            Some((index, ..)) => {
                let before = board.seats.get(index).copied();
                let before = before.and_then(|at| page_mut(&mut self.tenants, at, new.gpu));
                if let Some(tenant) = before {
                    tenant.slot = None;
                }
                board.clear(*index);
                *index
            }
            None => {
                let taken = taken.iter().map(|(index, _, holder)| (*index, *holder));
                let taken: Vec<(SlotIndex, Holder)> = taken.collect();
                seats::free(&taken, new.holder(state))?
            }
        };
        board.seats.insert(index, new.connection);
        self.last_user = self.last_user.checked_add(1).unwrap_or(1);
        Some((index, self.last_user))
    }

    /// Returns the reply for a page on a GPU.
    pub(crate) fn page_reply(&self, connection: ConnectionId, gpu: GpuId) -> Option<PageReply<'_>> {
        let tenant = page(&self.tenants, connection, gpu)?;
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
        let mut pages = self.tenants.get_mut(&connection).into_iter().flatten();
        let tenant = pages.find(|t| t.minor == minor).ok_or(Errno::NOENT)?;
        if let Fds::Writable { page, pulse } = &tenant.fds {
            page.seal()?;
            let pulse = pulse.seal()?;
            tenant.fds = Fds::Sealed { pulse };
        }
        Ok(())
    }

    fn ensure_board(&mut self, gpu: GpuId) -> Result<()> {
        if self.boards.iter().all(|board| board.gpu != gpu) {
            let (fd, page) = SharedFd::create::<Board>("gctgroup-board")?;
            let (writer, fd) = (BoardWriter::new(page), fd.seal()?);
            let seats = BTreeMap::new();
            self.boards.push(GpuBoard {
                gpu,
                writer,
                fd,
                seats,
            });
        }
        Ok(())
    }

    /// Returns the pages of a connection.
    fn of(&self, connection: ConnectionId) -> impl Iterator<Item = &Tenant> {
        self.tenants.get(&connection).into_iter().flatten()
    }

    /// Returns all pages.
    fn all(&self) -> impl Iterator<Item = &Tenant> {
        self.tenants.values().flatten()
    }

    fn all_mut(&mut self) -> impl Iterator<Item = &mut Tenant> {
        self.tenants.values_mut().flatten()
    }

    /// Returns the GPUs on which a connection has a page.
    pub(crate) fn gpus_of(&self, connection: ConnectionId) -> impl Iterator<Item = GpuId> + '_ {
        self.of(connection).map(|t| t.gpu)
    }

    /// Returns the other processes on a GPU, if the connection has a page there.
    pub(crate) fn neighbours(&self, connection: ConnectionId, minor: u32) -> Vec<Neighbour<'_>> {
        let own = self.of(connection).find(|t| t.minor == minor);
        let gpu = own.map(|t| t.gpu);
        let board = self.boards.iter().find(|board| Some(board.gpu) == gpu);
        let seats = board.map(|board| (board.gpu, board.seats.values()));
        let seats = seats
            .into_iter()
            .flat_map(|(gpu, at)| at.map(move |at| (gpu, *at)));
        seats
            .filter(|(_, at)| *at != connection)
            .filter_map(|(gpu, at)| page(&self.tenants, at, gpu))
            .filter_map(|t| Some((t.slot?, t.pulse()?)))
            .collect()
    }

    /// Collects the last counters of a connection and removes its pages.
    pub(crate) fn close(&mut self, connection: ConnectionId, state: &mut State<'_>) {
        for mut tenant in self.tenants.remove(&connection).into_iter().flatten() {
            tenant.collect(state);
            let board = self.boards.iter_mut().find(|b| b.gpu == tenant.gpu);
            if let Some((board, (index, _))) = board.zip(tenant.slot) {
                board.clear(index);
            }
            if let Some(connections) = self.processes.get_mut(&tenant.proc) {
                connections.remove(&connection);
                if connections.is_empty() {
                    self.processes.remove(&tenant.proc);
                }
            }
        }
    }

    /// Adds to the core's statistics what all processes have counted since the last call.
    pub(crate) fn collect_all_counters(&mut self, state: &mut State<'_>) {
        self.all_mut().for_each(|tenant| tenant.collect(state));
    }

    /// Does so for one process.
    pub(crate) fn collect_counters_of_process(&mut self, state: &mut State<'_>, key: ProcKey) {
        for connection in self.processes.get(&key).into_iter().flatten() {
            let pages = self.tenants.get_mut(connection).into_iter().flatten();
            pages.for_each(|tenant| tenant.collect(state));
        }
    }

    /// Does so for the processes of an owner on a GPU. A tenant that reads its own statistics does
    /// not make the daemon read the pages of all.
    pub(crate) fn collect_counters_of(&mut self, state: &mut State<'_>, owner: Owner, gpu: GpuId) {
        if let Owner::Proc(key) = owner {
            return self.collect_counters_of_process(state, key);
        }
        for tenant in self.all_mut().filter(|tenant| tenant.gpu == gpu) {
            if belongs(state, tenant, owner) {
                tenant.collect(state);
            }
        }
    }

    /// Calls `found` for each process on a GPU, with the requests that have ended since the last
    /// call and the age of the one that has not.
    pub(crate) fn take_requests(
        &mut self,
        now: Ns,
        mut found: impl FnMut(ProcKey, GpuId, &Histogram, Ns),
    ) {
        for tenant in self.all_mut() {
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
        for tenant in self.all_mut().filter(|tenant| tenant.gpu == gpu) {
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
        if let Some(tenant) = page_mut(&mut self.tenants, connection, gpu) {
            tenant.publish(state, state.limits_launches(gpu), pending);
        }
    }

    /// Writes the slot of a process that has mapped its page.
    pub(crate) fn publish_slot(&mut self, connection: ConnectionId, minor: u32, state: &State<'_>) {
        let mut pages = self.tenants.get(&connection).into_iter().flatten();
        let Some(tenant) = pages.find(|t| t.minor == minor) else {
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
        let gpus = self.boards.iter().map(|board| board.gpu);
        let gpus = gpus.filter(|gpu| state.limits_launches(*gpu));
        let gpus: BTreeSet<GpuId> = gpus.collect();
        for pages in self.tenants.values_mut() {
            let changed = pages.iter_mut().fold(false, |changed, tenant| {
                let limits_launches = gpus.contains(&tenant.gpu);
                tenant.publish(state, limits_launches, pending) | changed
            });
            // A process waits on the bell of one of its pages, whichever has changed.
            if changed {
                pages.iter().for_each(|tenant| tenant.page.ring());
            }
        }
        self.number_owners(state);
        for board in &mut self.boards {
            let seated = board.seats.values();
            // A process whose pulse cannot be read yet would look idle.
            for tenant in seated.filter_map(|at| page(&self.tenants, *at, board.gpu)) {
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
        let mut pages = self.tenants.get_mut(&connection).into_iter().flatten();
        let Some(tenant) = pages.find(|t| t.minor == minor) else {
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
        self.all().any(|tenant| tenant.answer == Answer::Awaited)
    }

    /// Stops waiting for the processes that have not answered in time.
    pub(crate) fn give_up(&mut self) {
        for tenant in self.all_mut() {
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
        let of_process = match owner {
            Owner::Proc(key) => self.processes.get(&key),
            Owner::Group(_) => None,
        };
        let of_process = of_process.into_iter().flatten();
        let of_process = of_process.flat_map(|connection| self.of(*connection));
        let of_group = matches!(owner, Owner::Group(_)).then(|| self.all());
        let all = of_process.chain(of_group.into_iter().flatten());
        let on_gpu = all.filter(move |tenant| tenant.gpu == gpu);
        on_gpu.filter(move |tenant| belongs(state, tenant, owner))
    }

    /// Numbers new owners, and removes those without a process.
    fn number_owners(&mut self, state: &State<'_>) {
        let owners: Vec<Owner> = self.all().map(|t| state.owner_of(t.proc)).collect();
        let here: BTreeSet<&Owner> = owners.iter().collect();
        self.numbers.retain(|known, _| here.contains(known));
        for owner in owners {
            number(&mut self.numbers, &mut self.last_number, owner);
        }
    }
}

/// Returns the page of a connection on a GPU.
fn page(tenants: &ByConnection, connection: ConnectionId, gpu: GpuId) -> Option<&Tenant> {
    let mut pages = tenants.get(&connection)?.iter();
    pages.find(|tenant| tenant.gpu == gpu)
}

fn page_mut(
    tenants: &mut ByConnection,
    connection: ConnectionId,
    gpu: GpuId,
) -> Option<&mut Tenant> {
    let mut pages = tenants.get_mut(&connection)?.iter_mut();
    pages.find(|tenant| tenant.gpu == gpu)
}

/// Gives an owner the number behind the last one, unless it has one.
fn number(numbers: &mut BTreeMap<Owner, u32>, last: &mut u32, owner: Owner) {
    numbers.entry(owner).or_insert_with(|| {
        *last = last.checked_add(1).unwrap_or(1);
        *last
    });
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
