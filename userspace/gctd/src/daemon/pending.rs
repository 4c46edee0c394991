// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Completes writes of limits that processes enforce by RM controls of their own.
//!
//! Such a write is pending until every process that it binds has acknowledged the new limit, one
//! has been refused by the resource manager, or [`ACK_TIMEOUT`] has passed. Then it is committed
//! or rolled back. One write is pending at a time, later ones are queued.

use super::Daemon;
use crate::errno::errno;
use crate::tenants::ConnectionId;
use gct_core::engine::Begun;
use gct_core::error::Error;
use gct_core::ids::Scope;
use gct_core::iface::File;
use gct_core::rmapi::control::{Status, TIMEOUT};
use gct_core::state::Failure;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::time::{
    timerfd_create, timerfd_settime, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags,
    Timespec,
};
use std::collections::VecDeque;

/// A process that does not acknowledge within this time counts as refused.
const ACK_TIMEOUT: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};
const DISARMED: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

/// Reports the outcome of a write to its writer.
pub(crate) type OnDone = Box<dyn FnOnce(Result<(), Errno>) + Send>;

/// A write that waits until the pending one is complete.
struct QueuedWrite {
    file: File,
    scope: Scope,
    text: Vec<u8>,
    on_done: OnDone,
}

/// The pending write and those queued behind it.
pub(super) struct PendingWrites {
    current: Option<OnDone>,
    queue: VecDeque<QueuedWrite>,
    timer: OwnedFd,
}

impl core::fmt::Debug for PendingWrites {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let queued = self.queue.len();
        write!(f, "PendingWrites({}, {queued})", self.current.is_some())
    }
}

impl PendingWrites {
    /// Creates an empty queue.
    ///
    /// # Errors
    ///
    /// Those of `timerfd_create`.
    pub(super) fn new() -> rustix::io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        Ok(Self {
            current: None,
            queue: VecDeque::new(),
            timer: timerfd_create(TimerfdClockId::Monotonic, flags)?,
        })
    }

    /// Returns the timer, which becomes readable after [`ACK_TIMEOUT`].
    pub(super) fn timer(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }

    /// Returns whether a write is pending.
    pub(super) fn is_active(&self) -> bool {
        self.current.is_some()
    }

    fn set_timer(&self, time: Timespec) {
        let once = Itimerspec {
            it_interval: DISARMED,
            it_value: time,
        };
        // Cannot fail: the descriptor is a timer and the time is valid.
        let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once);
    }
}

impl Daemon {
    /// Writes a limit that processes must acknowledge. Returns the outcome if it is known at once.
    /// Otherwise the callback that `on_done` creates gets it.
    pub(super) fn begin_write(
        &mut self,
        file: File,
        scope: Scope,
        text: &[u8],
        on_done: impl FnOnce() -> OnDone,
    ) -> Option<Result<(), Error>> {
        if self.pending.is_active() {
            self.pending.queue.push_back(QueuedWrite {
                file,
                scope,
                text: text.to_vec(),
                on_done: on_done(),
            });
            return None;
        }
        match self.tables.state().write_begin(file, scope, text) {
            Ok(Begun::Done) => Some(Ok(())),
            Err(error) => Some(Err(error)),
            Ok(Begun::Trial) => {
                self.publish(true);
                if !self.tenants.awaits_acks() {
                    return Some(self.tables.state().write_end());
                }
                self.pending.current = Some(on_done());
                self.pending.set_timer(ACK_TIMEOUT);
                None
            }
        }
    }

    /// Records that a process has applied a generation of its limits. `refused` is the status with
    /// which the resource manager refused one of them.
    pub(crate) fn ack(
        &mut self,
        connection: ConnectionId,
        minor: u32,
        generation: u64,
        refused: Option<Status>,
    ) {
        let awaited = self.tenants.ack(connection, minor, generation);
        match (refused, awaited && self.pending.is_active()) {
            (Some(status), true) => self.tables.state().write_refused(status),
            (Some(_), false) => self.tables.state().count(Failure::Control),
            (None, _) => {}
        }
        self.try_commit();
    }

    /// Refuses the pending write after [`ACK_TIMEOUT`].
    pub(crate) fn ack_timeout(&mut self) {
        // The read fails if the timer was armed again after the event.
        let mut count = [0; 8];
        let expired = rustix::io::read(&self.pending.timer, &mut count).is_ok();
        if expired && self.pending.is_active() {
            self.tables.state().write_refused(TIMEOUT);
            self.try_commit();
        }
    }

    /// Commits the pending write if all processes have acknowledged it, rolls it back if one was
    /// refused, and then begins the next.
    pub(super) fn try_commit(&mut self) {
        while self.pending.is_active() {
            if self.tenants.awaits_acks() && !self.tables.state().write_is_refused() {
                return;
            }
            self.pending.set_timer(DISARMED);
            self.tenants.forget_acks();
            let outcome = self.tables.state().write_end();
            let on_done = self.pending.current.take();
            // Publishes the old value if the write was rolled back.
            self.apply_effects();
            if let Some(on_done) = on_done {
                on_done(outcome.map_err(errno));
            }
            self.begin_next();
        }
    }

    /// Begins queued writes until one is pending.
    fn begin_next(&mut self) {
        while !self.pending.is_active() {
            let Some(next) = self.pending.queue.pop_front() else {
                return;
            };
            let mut on_done = Some(next.on_done);
            let take = || on_done.take().unwrap_or_else(|| Box::new(|_| ()));
            let outcome = self.begin_write(next.file, next.scope, &next.text, take);
            if let (Some(outcome), Some(on_done)) = (outcome, on_done) {
                self.apply_effects();
                on_done(outcome.map_err(errno));
            }
        }
    }
}
