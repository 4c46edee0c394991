// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The pages of the processes on each GPU.

use gct_core::ids::{GpuId, Owner, ProcKey};
use gct_core::launches::Launches;
use gct_core::mask::TpcMask;
use gct_core::policy::size;
use gct_core::state::State;
use gctd_ipc::board::{Board, BoardWriter, Pulse, Slot, SlotIndex, SLOTS_MAX};
use gctd_ipc::page::{Limits, Page};
use gctd_ipc::shared::{SealedFd, Shared, SharedFd};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::{Errno, Result};
use std::collections::BTreeSet;

/// Number of a connection.
pub(crate) type ConnectionId = u64;

/// A process on a GPU, as one connection knows it.
#[derive(Debug)]
struct Tenant {
    connection: ConnectionId,
    proc: ProcKey,
    gpu: GpuId,
    minor: u32,
    slot: Option<(SlotIndex, u32)>,
    page: Shared<Page>,
    files: Files,
    generation: u64,
    limits: Option<Limits>,
    /// The generation of a limit that is on trial, until the process says that it took it.
    tried: Option<u64>,
    seen: Launches,
    /// The faults that it has counted.
    faults: u64,
}

/// The descriptors of a process's page and pulse.
#[derive(Debug)]
enum Files {
    /// The process has yet to map both.
    Given { page: SharedFd, pulse: SharedFd },
    /// It has, and nobody else will; neighbours read the pulse.
    Mapped { pulse: SealedFd },
}

impl Tenant {
    /// The descriptor of the pulse, once its process alone can write it.
    fn pulse(&self) -> Option<BorrowedFd<'_>> {
        match &self.files {
            Files::Mapped { pulse } => Some(pulse.as_fd()),
            Files::Given { .. } => None,
        }
    }
}

#[derive(Debug)]
struct GpuBoard {
    gpu: GpuId,
    writer: BoardWriter,
    fd: SealedFd,
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Tenants {
    tenants: Vec<Tenant>,
    boards: Vec<GpuBoard>,
    /// Numbers of the owners that share a reservation, in the order in which they came.
    numbers: Vec<(Owner, u32)>,
    last_number: u32,
    last_user: u32,
}

/// What a process is given when it asks for its page: the first time page, pulse and board.
pub(crate) struct Given<'a> {
    pub(crate) minor: u32,
    pub(crate) slot: Option<(SlotIndex, u32)>,
    pub(crate) fds: Vec<BorrowedFd<'a>>,
}

/// A neighbour's slot and user, and the descriptor of its pulse.
pub(crate) type Neighbour<'a> = ((SlotIndex, u32), BorrowedFd<'a>);

impl Tenants {
    /// Makes the page of a process on a GPU where it has none on this connection.
    pub(crate) fn open(
        &mut self,
        connection: ConnectionId,
        proc: ProcKey,
        gpu: GpuId,
        minor: u32,
    ) -> Result<()> {
        self.ensure_board(gpu)?;
        let tenant = self.new_tenant(connection, proc, gpu, minor)?;
        self.tenants.push(tenant);
        Ok(())
    }

    /// What a process is given for its page on a GPU; `again` if it was given the page before.
    pub(crate) fn given(
        &self,
        connection: ConnectionId,
        gpu: GpuId,
        again: bool,
    ) -> Option<Given<'_>> {
        let known = |t: &&Tenant| t.connection == connection && t.gpu == gpu;
        let tenant = self.tenants.iter().find(known)?;
        let board = self.boards.iter().find(|board| board.gpu == gpu)?;
        let fds = match &tenant.files {
            Files::Given { page, pulse } if !again => {
                vec![page.writable(), pulse.writable(), board.fd.as_fd()]
            }
            _ => Vec::new(),
        };
        Some(Given {
            minor: tenant.minor,
            slot: tenant.slot,
            fds,
        })
    }

    /// A process has mapped what it was given on a GPU: it is sealed. Fails if the process has
    /// sealed it otherwise, or was given nothing.
    pub(crate) fn mapped(&mut self, connection: ConnectionId, minor: u32) -> Result<()> {
        let of = |t: &&mut Tenant| t.connection == connection && t.minor == minor;
        let tenant = self.tenants.iter_mut().find(of).ok_or(Errno::NOENT)?;
        if let Files::Given { page, pulse } = &tenant.files {
            page.seal()?;
            let pulse = pulse.seal()?;
            tenant.files = Files::Mapped { pulse };
        }
        Ok(())
    }

    fn ensure_board(&mut self, gpu: GpuId) -> Result<()> {
        if self.boards.iter().all(|board| board.gpu != gpu) {
            let (fd, page) = SharedFd::create::<Board>("gctgroup-board")?;
            let (writer, fd) = (BoardWriter::new(page), fd.seal()?);
            self.boards.push(GpuBoard { gpu, writer, fd });
        }
        Ok(())
    }

    fn new_tenant(
        &mut self,
        connection: ConnectionId,
        proc: ProcKey,
        gpu: GpuId,
        minor: u32,
    ) -> Result<Tenant> {
        let (page_fd, page) = SharedFd::create::<Page>("gctgroup-page")?;
        let (pulse_fd, _) = SharedFd::create::<Pulse>("gctgroup-pulse")?;
        let taken = |index: SlotIndex| {
            let mine = |t: &Tenant| t.gpu == gpu && t.slot.is_some_and(|(at, _)| at == index);
            self.tenants.iter().any(mine)
        };
        let free = (0..).take(SLOTS_MAX).find(|index| !taken(*index));
        let slot = free.map(|index| {
            self.last_user = self.last_user.checked_add(1).unwrap_or(1);
            (index, self.last_user)
        });
        Ok(Tenant {
            connection,
            proc,
            gpu,
            minor,
            slot,
            page,
            files: Files::Given {
                page: page_fd,
                pulse: pulse_fd,
            },
            generation: 0,
            limits: None,
            tried: None,
            seen: Launches::ZERO,
            faults: 0,
        })
    }

    /// The GPUs on which a connection has a page.
    pub(crate) fn gpus_of(&self, connection: ConnectionId) -> impl Iterator<Item = GpuId> + '_ {
        let own = move |t: &&Tenant| t.connection == connection;
        self.tenants.iter().filter(own).map(|t| t.gpu)
    }

    /// The other processes on a GPU where a connection has a page.
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

    /// Takes the last counters of a connection and forgets its pages.
    pub(crate) fn close(&mut self, connection: ConnectionId, state: &mut State<'_>) {
        self.harvest(state);
        let boards = &mut self.boards;
        self.tenants.retain(|tenant| {
            if tenant.connection != connection {
                return true;
            }
            let board = boards.iter_mut().find(|board| board.gpu == tenant.gpu);
            if let (Some(board), Some((index, _))) = (board, tenant.slot) {
                board.writer.set(index, Slot::default());
            }
            false
        });
    }

    /// Tells the core what the processes counted since the last time.
    pub(crate) fn harvest(&mut self, state: &mut State<'_>) {
        for tenant in &mut self.tenants {
            let now = tenant.page.launches();
            let more = now.since(&tenant.seen);
            tenant.seen = now;
            let effective = tenant.page.effective();
            let effective = effective.map(|mask| mask.map(TpcMask::from_words));
            state.launched(tenant.proc, tenant.gpu, &more, effective);
            let (faults, xid) = tenant.page.faults();
            let more = faults.saturating_sub(tenant.faults);
            tenant.faults = faults;
            state.faulted_often(tenant.proc, tenant.gpu, more, xid);
        }
    }

    /// Tells every process the limits that bind it now, and its neighbours what is reserved.
    /// `trial`: whether a limit is on trial, which those who get another time slice must take.
    pub(crate) fn publish(&mut self, state: &State<'_>, trial: bool) {
        let mut changed = BTreeSet::new();
        for tenant in &mut self.tenants {
            let settings = state.effective(tenant.proc, tenant.gpu);
            let limits = Limits::new(&settings, &state.gpu_topology(tenant.gpu));
            if tenant.limits != Some(limits) {
                let controlled = |limits: Limits| (limits.timeslice_us, limits.frozen);
                let before = tenant.limits.unwrap_or(Limits::NONE);
                tenant.limits = Some(limits);
                tenant.generation += 1;
                if trial && controlled(before) != controlled(limits) {
                    tenant.tried = Some(tenant.generation);
                }
                tenant.page.set_limits(tenant.generation, &limits);
                changed.insert(tenant.connection);
            }
        }
        // A process listens at one of its pages, whichever has changed.
        let hear = |tenant: &&Tenant| changed.contains(&tenant.connection);
        for tenant in self.tenants.iter().filter(hear) {
            tenant.page.ring();
        }
        self.number(state);
        for board in &mut self.boards {
            // Whoever's pulse nobody can read yet would be taken for one without work.
            let ready = |t: &&Tenant| t.gpu == board.gpu && t.pulse().is_some();
            let here = self.tenants.iter().filter(ready);
            let here: Vec<&Tenant> = here.collect();
            lay_out(board, &here, &self.numbers, state);
        }
    }

    /// The TPCs that a process can count on on a GPU, whatever its neighbours there do.
    pub(crate) fn dependable(state: &State<'_>, proc: ProcKey, gpu: GpuId) -> TpcMask {
        let topology = state.gpu_topology(gpu);
        let limits = state.effective(proc, gpu);
        let allowed = limits.tpc_mask.unwrap_or(*topology.existing());
        let alone = state.reserved(Owner::Proc(proc), gpu);
        let own = state.reserved(owner(state, proc), gpu).or(&alone);
        let others = state.reserved_on(gpu).without(&own);
        let own = Some(own).filter(|own| !own.is_empty());
        size::dependable(&allowed, topology.existing(), &others, own.as_ref())
    }

    /// A process says which generation of its limits is in force: whether one on trial is.
    pub(crate) fn took(&mut self, connection: ConnectionId, minor: u32, generation: u64) -> bool {
        let of = |t: &&mut Tenant| t.connection == connection && t.minor == minor;
        let Some(tenant) = self.tenants.iter_mut().find(of) else {
            return false;
        };
        let took = tenant.tried.is_some_and(|tried| generation >= tried);
        if took {
            tenant.tried = None;
        }
        took
    }

    /// Whether some process has yet to say that it took what is on trial.
    pub(crate) fn are_tried(&self) -> bool {
        self.tenants.iter().any(|tenant| tenant.tried.is_some())
    }

    /// Nothing is on trial any more.
    pub(crate) fn end_trial(&mut self) {
        for tenant in &mut self.tenants {
            tenant.tried = None;
        }
    }

    /// Numbers the owners that are there, and forgets those that are gone.
    fn number(&mut self, state: &State<'_>) {
        let owners = self.tenants.iter().map(|t| owner(state, t.proc));
        let owners: Vec<Owner> = owners.collect();
        self.numbers.retain(|(known, _)| owners.contains(known));
        for owner in owners {
            if self.numbers.iter().all(|(known, _)| *known != owner) {
                self.last_number = self.last_number.checked_add(1).unwrap_or(1);
                self.numbers.push((owner, self.last_number));
            }
        }
    }
}

/// Whose reservation a process shares: its group's, or its own.
fn owner(state: &State<'_>, proc: ProcKey) -> Owner {
    state.group_of(proc).map_or(Owner::Proc(proc), Owner::Group)
}

/// Writes a GPU's board: what the core reserves for each process and its group, and its place in the order.
fn lay_out(board: &mut GpuBoard, here: &[&Tenant], numbers: &[(Owner, u32)], state: &State<'_>) {
    let topology = state.gpu_topology(board.gpu);
    for (tenant, (index, user)) in here.iter().filter_map(|t| Some((t, t.slot?))) {
        let owner = owner(state, tenant.proc);
        let number = numbers.iter().find(|(known, _)| *known == owner);
        let settings = state.effective(tenant.proc, tenant.gpu);
        let alone = state.reserved(Owner::Proc(tenant.proc), board.gpu);
        let slot = Slot {
            user,
            tenant: number.map_or(0, |(_, number)| *number),
            tpcs: *state.reserved(owner, board.gpu).or(&alone).words(),
            alone: *alone.words(),
            allowed: *settings.tpc_mask.unwrap_or(*topology.existing()).words(),
            // Whoever has a quota lends it; whether others take it is theirs to say.
            lends: true,
            priority: settings.priority_in_force().get(),
            best_effort: settings.tpc_quota.is_some_and(|quota| quota.get() == 0),
        };
        board.writer.set(index, slot);
    }
}
