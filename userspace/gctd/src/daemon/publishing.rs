// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Publishes limits that have changed to all processes: a look at the pages of all.
//!
//! Who writes a limit waits for that. What tenants send, and their ends, may change limits of
//! others too, as often as they like. So that is published once before the daemon waits for the
//! next events, and the daemon rests from it for [`REST`] times as long as it took: no flood makes
//! it publish for more than a fifth of its time.

use super::Daemon;
use crate::timer::Timer;
use rustix::fd::{AsFd, BorrowedFd};
use std::time::Instant;

/// How long the daemon rests, in times of the last one.
const REST: u32 = 4;

/// What is to be published, and when.
#[derive(Debug)]
pub(super) struct Publishing {
    /// Whether limits may have changed that are not published yet.
    is_due: bool,
    /// When the daemon has rested.
    rested: Instant,
    /// Expires then, if it `is_awaited`.
    timer: Timer,
    is_awaited: bool,
}

impl Publishing {
    /// Creates one with nothing to publish.
    ///
    /// # Errors
    ///
    /// Those of `timerfd_create`.
    pub(super) fn new() -> rustix::io::Result<Self> {
        Ok(Self {
            is_due: false,
            rested: Instant::now(),
            timer: Timer::new()?,
            is_awaited: false,
        })
    }
}

impl Daemon {
    /// Returns the timer for [`Daemon::has_rested`], for epoll.
    pub(crate) fn publish_timer(&self) -> BorrowedFd<'_> {
        self.publishing.timer.as_fd()
    }

    /// Applies the core's pending effects to the tree and publishes the limits that changed.
    pub(super) fn apply_effects(&mut self) {
        self.apply_effects_later();
        self.publish(self.pending.is_active());
    }

    /// Applies the core's pending effects to the tree. The limits that changed are published later.
    pub(super) fn apply_effects_later(&mut self) {
        while let Some(effect) = self.tables.state().next_effect() {
            self.tree.apply(effect);
        }
        self.publishing.is_due = true;
    }

    /// Publishes the limits that have changed, unless it was done a moment ago.
    pub(crate) fn publish_if_due(&mut self) {
        if !self.publishing.is_due || self.publishing.is_awaited {
            return;
        }
        let now = Instant::now();
        let rest = self.publishing.rested.saturating_duration_since(now);
        if rest.is_zero() {
            return self.publish(self.pending.is_active());
        }
        self.publishing.timer.once(rest);
        self.publishing.is_awaited = true;
    }

    /// Records that the daemon has rested.
    pub(crate) fn has_rested(&mut self) {
        // Clears the event.
        let _ = self.publishing.timer.has_expired();
        self.publishing.is_awaited = false;
    }

    /// Publishes the limits of every process. `pending`: processes must acknowledge them.
    pub(super) fn publish(&mut self, pending: bool) {
        let since = Instant::now();
        self.tenants.publish(&self.tables.state(), pending);
        self.publishing.is_due = false;
        self.publishing.rested = Instant::now() + since.elapsed() * REST;
    }
}
