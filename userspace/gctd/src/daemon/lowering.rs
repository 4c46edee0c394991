// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Lowers a `gmem.limit` below what pageable memory takes, once its processes have moved enough of
//! it to the host.
//!
//! ```text
//! begin_lowering     the lower limit is in force: processes learn from it how much has to leave
//! look_at_lowerings  it fits: the write succeeds
//!                    nothing has left for PATIENCE, or LONGEST has passed: EBUSY, the old limit
//! ```
//!
//! Other writes do not wait for it. A process that does not move its memory, because it is frozen
//! or hostile, makes the write fail, and changes nothing for its neighbours.

use super::{Daemon, OnDone};
use crate::errno::errno;
use crate::timer::Timer;
use gct_core::error::Error;
use gct_core::ids::{GpuId, Owner, Scope};
use gct_core::iface::File;
use gct_core::units::Bytes;
use rustix::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// How long nothing may leave.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long all may take. The writer waits, and a client of gctd gives up after 20 s.
const LONGEST: Duration = Duration::from_secs(15);

/// Time between two looks, for writes that time out.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// A write that waits for memory to leave.
struct Lowering {
    scope: Scope,
    text: Vec<u8>,
    trial: (Owner, GpuId),
    on_done: OnDone,
    since: Instant,
    /// The least that was charged, and when that was new.
    least: Bytes,
    left: Instant,
}

impl Lowering {
    fn has_failed(&self, now: Instant) -> bool {
        now - self.left >= PATIENCE || now - self.since >= LONGEST
    }
}

/// The writes that wait.
pub(super) struct Lowerings {
    all: Vec<Lowering>,
    timer: Timer,
}

impl core::fmt::Debug for Lowerings {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Lowerings({})", self.all.len())
    }
}

impl Lowerings {
    /// Creates an empty list.
    ///
    /// # Errors
    ///
    /// Those of `timerfd_create`.
    pub(super) fn new() -> rustix::io::Result<Self> {
        Ok(Self {
            all: Vec::new(),
            timer: Timer::new()?,
        })
    }

    /// Returns the timer for [`Daemon::look_at_lowerings`].
    pub(super) fn timer(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }
}

impl Daemon {
    /// Lowers a limit that memory is in the way of. Returns the outcome if it is known at once.
    /// Otherwise the callback that `on_done` creates gets it.
    pub(super) fn begin_lowering(
        &mut self,
        scope: Scope,
        text: &[u8],
        on_done: impl FnOnce() -> OnDone,
    ) -> Option<Result<(), Error>> {
        let mut state = self.tables.state();
        let Some(trial) = state.trial_begin(File::GmemLimit, scope, text) else {
            return Some(Err(Error::Busy));
        };
        let now = Instant::now();
        self.lowerings.all.push(Lowering {
            scope,
            text: text.to_vec(),
            trial,
            on_done: on_done(),
            since: now,
            least: state.memory_charged(trial),
            left: now,
        });
        self.lowerings.timer.every(LOOK_INTERVAL);
        None
    }

    /// Completes the writes whose limits hold, and those that have failed.
    pub(crate) fn look_at_lowerings(&mut self) {
        // Clears the event. The count does not matter.
        let _ = self.lowerings.timer.has_expired();
        let now = Instant::now();
        let mut at = 0;
        while at < self.lowerings.all.len() {
            match self.outcome_of(at, now) {
                None => at += 1,
                Some(outcome) => {
                    let lowering = self.lowerings.all.swap_remove(at);
                    self.tables.state().trial_end(lowering.trial);
                    if outcome.is_ok() {
                        self.follow_driver_limits(File::GmemLimit);
                        self.keep_write(File::GmemLimit, lowering.scope, &lowering.text);
                    }
                    (lowering.on_done)(outcome.map_err(errno));
                }
            }
        }
        if self.lowerings.all.is_empty() {
            self.lowerings.timer.stop();
        }
    }

    /// Returns the outcome of a write that waits, if it is known now.
    fn outcome_of(&mut self, at: usize, now: Instant) -> Option<Result<(), Error>> {
        let lowering = &mut self.lowerings.all[at];
        let (scope, text) = (lowering.scope, &lowering.text);
        let write = |tables: &mut gct_core::host::Host| {
            let mut state = tables.state();
            state.write(File::GmemLimit, scope, text)
        };
        match self.tables.with(write) {
            Err(Error::Busy) => {}
            outcome => return Some(outcome),
        }
        let charged = self.tables.state().memory_charged(lowering.trial);
        if charged < lowering.least {
            (lowering.least, lowering.left) = (charged, now);
        }
        lowering.has_failed(now).then_some(Err(Error::Busy))
    }
}
