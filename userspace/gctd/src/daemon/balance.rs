// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Looks once a second at who needs memory, and how much of it each owner with a `gmem.low` may
//! have.
//!
//! The processes of that owner learn of it when they ask how much pageable memory may be on the
//! GPU, which they do once a second, too.

use super::Daemon;
use crate::timer::Timer;
use rustix::fd::{AsFd, BorrowedFd};
use std::time::Duration;

/// Time between two looks.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// The looks at memory.
#[derive(Debug)]
pub(super) struct Balances {
    timer: Timer,
    runs: bool,
}

impl Balances {
    /// Creates one that does not look.
    ///
    /// # Errors
    ///
    /// Those of `timerfd_create`.
    pub(super) fn new() -> rustix::io::Result<Self> {
        let timer = Timer::new()?;
        Ok(Self { timer, runs: false })
    }

    /// Returns the timer for [`Daemon::look_at_memory`].
    pub(super) fn timer(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }
}

impl Daemon {
    /// Looks at memory for as long as somebody's gives way.
    pub(super) fn follow_balance(&mut self) {
        let runs = self.tables.state().has_elastic();
        let ran = core::mem::replace(&mut self.balances.runs, runs);
        match (ran, runs) {
            (false, true) => self.balances.timer.every(LOOK_INTERVAL),
            (true, false) => {
                self.balances.timer.stop();
                // Whoever gave way has its limit again.
                self.tables.state().balance();
            }
            _ => {}
        }
    }

    /// Divides the memory anew once the timer has expired.
    pub(crate) fn look_at_memory(&mut self) {
        // Clears the event. Looks that were missed do not matter.
        let _ = self.balances.timer.has_expired();
        self.collect_counters();
        let mut elastic = Vec::new();
        let mut state = self.tables.state();
        state.each_elastic(&mut |owner, gpu| elastic.push((owner, gpu)));
        for (owner, gpu) in elastic {
            let pending = self.tenants.pending(&state, owner, gpu);
            state.set_pending(owner, gpu, pending);
        }
        state.balance();
        // A group may have been removed.
        self.follow_balance();
    }
}
