// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A timer on the monotonic clock, which epoll can wait for.

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::time::{
    timerfd_create, timerfd_settime, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags,
    Timespec,
};
use std::time::Duration;

/// A timer. It becomes readable when it expires.
#[derive(Debug)]
pub(crate) struct Timer(OwnedFd);

impl Timer {
    /// Creates a timer that never expires.
    ///
    /// # Errors
    ///
    /// Those of `timerfd_create`.
    pub(crate) fn new() -> rustix::io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        timerfd_create(TimerfdClockId::Monotonic, flags).map(Self)
    }

    /// Expires once, after this time.
    pub(crate) fn once(&self, after: Duration) {
        self.set(after, Duration::ZERO);
    }

    /// Expires again and again, each time after this time.
    pub(crate) fn every(&self, time: Duration) {
        self.set(time, time);
    }

    /// Expires no more.
    pub(crate) fn stop(&self) {
        self.set(Duration::ZERO, Duration::ZERO);
    }

    /// Returns whether the timer has expired since the last call, and was not set since.
    pub(crate) fn has_expired(&self) -> bool {
        rustix::io::read(&self.0, &mut [0; 8]).is_ok()
    }

    fn set(&self, first: Duration, interval: Duration) {
        let time = |time: Duration| Timespec {
            tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: time.subsec_nanos().into(),
        };
        let times = Itimerspec {
            it_interval: time(interval),
            it_value: time(first),
        };
        // Cannot fail: the descriptor is a timer and the times are valid.
        let _ = timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &times);
    }
}

impl AsFd for Timer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
