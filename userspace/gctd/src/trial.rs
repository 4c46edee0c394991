// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Limits that processes enforce by controls of their own: a write is answered when all have
//! said that they took it, or one was refused, or does not answer. One is on trial at a time.

use crate::daemon::Daemon;
use crate::files::ErrorNumber;
use crate::tenants::ConnectionId;
use gct_core::engine::Begun;
use gct_core::error::Error;
use gct_core::ids::Scope;
use gct_core::iface::File;
use gct_core::rmapi::control::{Status, TIMEOUT};
use gct_core::state::Failure;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::time::{
    timerfd_create, timerfd_settime, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags,
    Timespec,
};
use std::collections::VecDeque;

/// Whoever does not answer in this time counts as one that was refused.
const ANSWER_MAX: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};
const NEVER: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

/// Answers whoever wrote.
pub(crate) type Answer = Box<dyn FnOnce(Result<(), ErrorNumber>) + Send>;

/// A write that waits for its turn.
struct Waiting {
    file: File,
    scope: Scope,
    text: Vec<u8>,
    answer: Answer,
}

/// The writes that are not answered yet.
pub(crate) struct Trials {
    current: Option<Answer>,
    waiting: VecDeque<Waiting>,
    timer: OwnedFd,
}

impl core::fmt::Debug for Trials {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let waiting = self.waiting.len();
        write!(f, "Trials({}, {waiting})", self.current.is_some())
    }
}

impl Trials {
    /// None.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub(crate) fn new() -> rustix::io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        Ok(Self {
            current: None,
            waiting: VecDeque::new(),
            timer: timerfd_create(TimerfdClockId::Monotonic, flags)?,
        })
    }

    /// Becomes readable when the time to answer is over.
    pub(crate) fn timer(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }

    /// Whether something is on trial.
    pub(crate) fn are_on(&self) -> bool {
        self.current.is_some()
    }

    fn set_timer(&self, time: Timespec) {
        let once = Itimerspec {
            it_interval: NEVER,
            it_value: time,
        };
        // Its descriptor is a timer's and the time is one.
        let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once);
    }
}

impl Daemon {
    /// Writes a limit that processes must take. The outcome, if it is known at once; else
    /// what `later` makes is answered.
    pub(crate) fn put_on_trial(
        &mut self,
        file: File,
        scope: Scope,
        text: &[u8],
        later: impl FnOnce() -> Answer,
    ) -> Option<Result<(), Error>> {
        if self.trials.are_on() {
            self.trials.waiting.push_back(Waiting {
                file,
                scope,
                text: text.to_vec(),
                answer: later(),
            });
            return None;
        }
        match self.tables.state().write_begin(file, scope, text) {
            Ok(Begun::Done) => Some(Ok(())),
            Err(error) => Some(Err(error)),
            Ok(Begun::Trial) => {
                self.publish(true);
                if !self.tenants.are_tried() {
                    return Some(self.tables.state().write_end());
                }
                self.trials.current = Some(later());
                self.trials.set_timer(ANSWER_MAX);
                None
            }
        }
    }

    /// A process says which generation of its limits is in force.
    pub(crate) fn took(
        &mut self,
        connection: ConnectionId,
        minor: u32,
        generation: u64,
        refused: Option<Status>,
    ) {
        let tried = self.tenants.took(connection, minor, generation);
        match (refused, tried && self.trials.are_on()) {
            (Some(status), true) => self.tables.state().write_refused(status),
            (Some(_), false) => self.tables.state().count(Failure::Control),
            (None, _) => {}
        }
        self.judge();
    }

    /// The time to answer is over.
    pub(crate) fn expire(&mut self) {
        // A timer that was set anew meanwhile has not run out.
        let mut count = [0; 8];
        let ran_out = rustix::io::read(&self.trials.timer, &mut count).is_ok();
        if ran_out && self.trials.are_on() {
            self.tables.state().write_refused(TIMEOUT);
            self.judge();
        }
    }

    /// Answers what is on trial if its outcome is known, and begins with what waits.
    pub(crate) fn judge(&mut self) {
        while self.trials.are_on() {
            if self.tenants.are_tried() && !self.tables.state().write_is_refused() {
                return;
            }
            self.trials.set_timer(NEVER);
            self.tenants.end_trial();
            let outcome = self.tables.state().write_end();
            let answer = self.trials.current.take();
            // What was refused is taken back.
            self.settle();
            if let Some(answer) = answer {
                answer(outcome.map_err(Error::errno));
            }
            self.begin_next();
        }
    }

    /// Puts what waits on trial, until something is.
    fn begin_next(&mut self) {
        while !self.trials.are_on() {
            let Some(next) = self.trials.waiting.pop_front() else {
                return;
            };
            let mut answer = Some(next.answer);
            let later = || answer.take().unwrap_or_else(|| Box::new(|_| ()));
            let outcome = self.put_on_trial(next.file, next.scope, &next.text, later);
            if let (Some(outcome), Some(answer)) = (outcome, answer) {
                self.settle();
                answer(outcome.map_err(Error::errno));
            }
        }
    }
}
