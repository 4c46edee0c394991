// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A process on a GPU: its page and what was read from it.

use super::seats::Holder;
use super::{holder, ConnectionId};
use gct_core::gpu_time::GpuTime;
use gct_core::ids::{GpuId, ProcKey};
use gct_core::launches::Launches;
use gct_core::policy::clock::{Demand, Seen};
use gct_core::policy::slo::histogram::Histogram;
use gct_core::state::State;
use gctd_ipc::board::{Pulse, SlotIndex};
use gctd_ipc::page::{Limits, Page};
use gctd_ipc::shared::{SealedFd, Shared, SharedFd};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Result;

/// A process on a GPU, on one of its connections.
#[derive(Debug)]
pub(super) struct Tenant {
    pub(super) connection: ConnectionId,
    pub(super) proc: ProcKey,
    pub(super) user: Option<u32>,
    pub(super) gpu: GpuId,
    pub(super) minor: u32,
    pub(super) slot: Option<(SlotIndex, u32)>,
    pub(super) page: Shared<Page>,
    pub(super) fds: Fds,
    pub(super) generation: u64,
    pub(super) limits: Option<Limits>,
    /// The generation that last changed a limit that the process enforces by controls.
    pub(super) controlled: u64,
    /// The process's answer to that generation.
    pub(super) answer: Answer,
    /// Its counters at the last collection.
    pub(super) seen: Launches,
    /// Its time on the GPU at the last collection.
    pub(super) time: GpuTime,
    /// Its faults at the last collection.
    pub(super) faults: u64,
    /// Its requests when goals were last looked at.
    pub(super) requests: Histogram,
    /// What it asks of the clock, and what it had reported when that was last looked at.
    pub(super) demand: Demand,
    pub(super) measured: Seen,
}

/// What a process has answered to the limits that it enforces by controls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
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
pub(super) enum Fds {
    /// The process has yet to map both.
    Writable { page: SharedFd, pulse: SharedFd },
    /// The process has mapped both, and they are sealed. Neighbours read the pulse.
    Sealed { pulse: SealedFd },
}

impl Tenant {
    /// Returns who has its slot.
    pub(super) fn holder(&self, state: &State<'_>) -> Holder {
        holder(self.proc, self.user, state)
    }

    /// Returns the descriptor of the pulse once it is sealed.
    pub(super) fn pulse(&self) -> Option<BorrowedFd<'_>> {
        match &self.fds {
            Fds::Sealed { pulse } => Some(pulse.as_fd()),
            Fds::Writable { .. } => None,
        }
    }

    /// Adds to the core's statistics what the process has counted since the last call.
    pub(super) fn collect(&mut self, state: &mut State<'_>) {
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
    /// `limits_launches` is [`State::limits_launches`] of its GPU.
    pub(super) fn publish(
        &mut self,
        state: &State<'_>,
        limits_launches: bool,
        pending: bool,
    ) -> bool {
        let settings = state.launch_settings(self.proc, self.gpu);
        let share = state.share(self.proc, self.gpu);
        let mut limits = Limits {
            native: state.native(self.proc, self.gpu, limits_launches),
            is_stray: state.group_of(self.proc).is_none(),
            ..Limits::new(
                &settings,
                &state.standing(self.proc, self.gpu).own,
                &state.gpu_topology(self.gpu),
                &share,
                state.clock(self.gpu),
            )
        };
        limits.launches.tried = state.splits_tried(self.gpu);
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

/// Creates a process on a GPU with an empty page, and no slot.
pub(super) fn new_tenant(
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
