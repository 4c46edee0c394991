// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Looks at the requests of owners once a second: for goals, and for the order by their lengths.
//!
//! The requests are those that the owners' processes report. A process can report anything, which
//! costs the others what [`gct_core::policy::slo`] and [`gct_core::policy::shortest`] allow at
//! most.

use super::goals::Goals;
use super::seen::{Key, Seen, NONE};
use super::Daemon;
use crate::timer::Timer;
use gct_core::ids::Owner;
use gct_core::policy::shortest::Requests;
use gct_core::policy::slo::LOOK_EVERY;
use gct_core::units::Ns;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::time::{clock_gettime, ClockId};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// What is done with the requests of owners.
#[derive(Debug)]
pub(super) struct Looks {
    pub(super) goals: Goals,
    /// The owners that are ordered by the lengths of their requests.
    ordered: BTreeMap<Key, Requests>,
    timer: Timer,
    runs: bool,
}

/// Returns the time of the clock of the pages.
fn now() -> Ns {
    let now = clock_gettime(ClockId::Monotonic);
    let part = |time: i64| u64::try_from(time).unwrap_or(0);
    Ns(part(now.tv_sec)) * 1_000_000_000 + Ns(part(now.tv_nsec))
}

impl Looks {
    /// Creates one that looks at nobody.
    ///
    /// # Errors
    ///
    /// Those of `timerfd_create`.
    pub(super) fn new() -> rustix::io::Result<Self> {
        Ok(Self {
            goals: Goals::default(),
            ordered: BTreeMap::new(),
            timer: Timer::new()?,
            runs: false,
        })
    }

    /// Returns the timer, which becomes readable every [`LOOK_EVERY`] while there is something to
    /// look at.
    pub(super) fn timer(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }
}

impl Daemon {
    /// Takes over the goals and priorities that were written, and those that are gone.
    pub(super) fn follow_requests(&mut self) {
        let now = now();
        let state = self.tables.state();
        self.looks.goals.follow(&state, now);
        let mut ordered = BTreeSet::new();
        state.each_ordered(&mut |owner, gpu| {
            ordered.insert((owner, gpu));
        });
        self.looks.ordered.retain(|key, _| ordered.contains(key));
        for key in ordered {
            self.looks.ordered.entry(key).or_default();
        }
        // Nobody waits for an owner alone.
        let runs = !self.looks.goals.is_empty() || self.looks.ordered.len() > 1;
        if core::mem::replace(&mut self.looks.runs, runs) == runs {
            return;
        }
        match runs {
            true => self
                .looks
                .timer
                .every(Duration::from_nanos(LOOK_EVERY.get())),
            false => self.looks.timer.stop(),
        }
        // What has ended before counts for nothing.
        self.tenants.take_requests(now, |_, _, _, _| ());
        if self.tables.state().shorten() {
            self.apply_effects();
        }
    }

    /// Looks at all requests once the timer has expired.
    pub(crate) fn look_at_requests(&mut self) {
        // Clears the event. Looks that were missed do not matter.
        let _ = self.looks.timer.has_expired();
        // A group may have been removed.
        self.follow_requests();
        let now = now();
        let seen = self.take_requests(now);
        let looks = &mut self.looks;
        let mut state = self.tables.state();
        for (key, requests) in &mut looks.ordered {
            let (ended, open) = seen.get(key).unwrap_or(&NONE);
            state.set_request_length(key.0, key.1, requests.look(ended, *open));
        }
        looks.goals.look(&mut state, &seen, now);
        let changed = state.press();
        if state.shorten() | changed {
            self.apply_effects();
        }
    }

    /// Returns the requests since the last call, by process and by group.
    fn take_requests(&mut self, now: Ns) -> Seen {
        let mut seen = Seen::new();
        let state = self.tables.state();
        self.tenants.take_requests(now, |proc, gpu, ended, open| {
            let group = state.group_of(proc).map(Owner::Group);
            for owner in [Some(Owner::Proc(proc)), group].into_iter().flatten() {
                let sum = seen.entry((owner, gpu)).or_insert(NONE);
                sum.0.add(ended);
                sum.1 = sum.1.max(open);
            }
        });
        seen
    }
}
