// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Completes writes of limits that processes enforce by RM controls of their own.
//!
//! Such a write is pending until every process that it binds has answered, or [`ACK_TIMEOUT`] has
//! passed. It is rolled back if processes were refused by the resource manager and none has
//! applied it. Otherwise it is committed: a process that is stopped or hostile has no veto over
//! its neighbours in a group. The page keeps the new limit for those that do not answer. One write
//! is pending at a time, later ones are queued.

use super::Daemon;
use crate::errno::errno;
use crate::tenants::ConnectionId;
use crate::timer::Timer;
use gct_core::engine::Prepared;
use gct_core::error::Error;
use gct_core::failures::Failure;
use gct_core::ids::Scope;
use gct_core::iface::File;
use gct_core::rmapi::control::Status;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::time::Duration;

/// A process that does not answer within this time is not waited for.
const ACK_TIMEOUT: Duration = Duration::from_secs(1);

/// Reports the outcome of a write to its writer.
pub(crate) type OnDone = Box<dyn FnOnce(Result<(), Errno>) + Send>;

/// A write, and who gets its outcome.
struct QueuedWrite {
    file: File,
    scope: Scope,
    text: Vec<u8>,
    on_done: OnDone,
}

/// A write that waits for the answers of processes.
struct PendingWrite {
    write: QueuedWrite,
    /// Whether a process has applied it.
    applied: bool,
    /// The processes that were refused.
    refusals: u64,
    /// The last status with which one was refused.
    status: Option<Status>,
}

/// The pending write and those queued behind it.
pub(super) struct PendingWrites {
    current: Option<PendingWrite>,
    queue: VecDeque<QueuedWrite>,
    timer: Timer,
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
        Ok(Self {
            current: None,
            queue: VecDeque::new(),
            timer: Timer::new()?,
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
        let write = || QueuedWrite {
            file,
            scope,
            text: text.to_vec(),
            on_done: on_done(),
        };
        if self.pending.is_active() {
            self.pending.queue.push_back(write());
            return None;
        }
        match self.tables.state().write_prepare(file, scope, text) {
            Ok(Prepared::Done) => Some(Ok(())),
            Err(error) => Some(Err(error)),
            Ok(Prepared::Pending) => {
                self.publish(true);
                if !self.tenants.awaits_acks() {
                    return Some(self.tables.state().write_commit());
                }
                self.pending.current = Some(PendingWrite {
                    write: write(),
                    applied: false,
                    refusals: 0,
                    status: None,
                });
                self.pending.timer.once(ACK_TIMEOUT);
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
        let tenants = &mut self.tenants;
        let awaited = tenants.ack(connection, minor, generation, refused.is_some());
        match (&mut self.pending.current, refused) {
            (Some(write), None) if awaited => write.applied = true,
            (Some(write), Some(status)) if awaited => {
                write.refusals += 1;
                write.status = Some(status);
            }
            (_, Some(_)) => self.tables.state().count(Failure::Control),
            (_, None) => {}
        }
        self.try_commit();
    }

    /// Completes the pending write after [`ACK_TIMEOUT`].
    pub(crate) fn ack_timeout(&mut self) {
        // The timer may have been set again after the event.
        if self.pending.timer.has_expired() && self.pending.is_active() {
            self.tenants.give_up();
            self.try_commit();
        }
    }

    /// Completes the pending write if it waits for nobody, and then begins the next.
    pub(super) fn try_commit(&mut self) {
        while self.pending.is_active() && !self.tenants.awaits_acks() {
            let Some(pending) = self.pending.current.take() else {
                return;
            };
            self.pending.timer.stop();
            let state = &mut self.tables.state();
            match pending.status.filter(|_| !pending.applied) {
                Some(status) => state.write_refused(status),
                None => (0..pending.refusals).for_each(|_| state.count(Failure::Control)),
            }
            let outcome = state.write_commit();
            // Publishes the old value if the write was rolled back.
            self.apply_effects();
            self.complete(pending.write, outcome);
            self.begin_next();
        }
    }

    /// Keeps a write that has succeeded, and reports the outcome.
    fn complete(&mut self, write: QueuedWrite, outcome: Result<(), Error>) {
        if outcome.is_ok() {
            self.keep_write(write.file, write.scope, &write.text);
        }
        (write.on_done)(outcome.map_err(errno));
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
                self.complete(QueuedWrite { on_done, ..next }, outcome);
            }
        }
    }
}
