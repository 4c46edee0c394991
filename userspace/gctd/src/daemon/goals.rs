// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Looks at the requests of services with a goal, and presses the others.
//!
//! The requests are those that the services' processes report. A process can report anything, which
//! costs the others what [`gct_core::policy::slo`] allows at most.

use super::Daemon;
use crate::timer::Timer;
use gct_core::ids::{GpuId, Owner};
use gct_core::policy::slo::histogram::Histogram;
use gct_core::policy::slo::{Controller, LOOK_EVERY};
use gct_core::units::{Ns, Us};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::time::{clock_gettime, ClockId};
use std::collections::BTreeMap;
use std::time::Duration;

/// A goal's owner and its GPU.
type Key = (Owner, GpuId);

/// The goals, each with its controller.
#[derive(Debug)]
pub(super) struct Goals {
    list: Vec<(Key, Controller)>,
    timer: Timer,
}

/// Returns the time of the clock of the pages.
fn now() -> Ns {
    let now = clock_gettime(ClockId::Monotonic);
    let part = |time: i64| u64::try_from(time).unwrap_or(0);
    Ns(part(now.tv_sec)) * 1_000_000_000 + Ns(part(now.tv_nsec))
}

impl Goals {
    /// Creates an empty list.
    ///
    /// # Errors
    ///
    /// Those of `timerfd_create`.
    pub(super) fn new() -> rustix::io::Result<Self> {
        Ok(Self {
            list: Vec::new(),
            timer: Timer::new()?,
        })
    }

    /// Returns the timer, which becomes readable every [`LOOK_EVERY`] while there is a goal.
    pub(super) fn timer(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }
}

impl Daemon {
    /// Takes over the goals that were written, and those that are gone.
    pub(super) fn follow_goals(&mut self) {
        let mut written: Vec<(Key, Us)> = Vec::new();
        let state = self.tables.state();
        state.each_goal(&mut |owner, gpu, goal| written.push(((owner, gpu), goal)));
        let (list, now) = (&mut self.goals.list, now());
        let had = list.len();
        list.retain(|(key, _)| written.iter().any(|(of, _)| of == key));
        for (key, goal) in written {
            match list.iter_mut().find(|(of, _)| *of == key) {
                Some((_, known)) if known.goal() == goal => {}
                Some((_, known)) => known.set_goal(goal, now),
                None => list.push((key, Controller::new(goal, now))),
            }
        }
        if (had == 0) != list.is_empty() {
            match list.is_empty() {
                true => self.goals.timer.stop(),
                false => self
                    .goals
                    .timer
                    .every(Duration::from_nanos(LOOK_EVERY.get())),
            }
            // What has ended before counts for no goal.
            self.tenants.take_requests(now, |_, _, _, _| ());
        }
    }

    /// Looks at all goals once the timer has expired.
    pub(crate) fn look_at_goals(&mut self) {
        // Clears the event. Looks that were missed do not matter.
        let _ = self.goals.timer.has_expired();
        // A group may have been removed.
        self.follow_goals();
        let now = now();
        let mut sums: BTreeMap<usize, (Histogram, Ns)> = BTreeMap::new();
        let (state, list) = (self.tables.state(), &mut self.goals.list);
        self.tenants.take_requests(now, |proc, gpu, ended, open| {
            let group = state.group_of(proc).map(Owner::Group);
            for owner in [Some(Owner::Proc(proc)), group].into_iter().flatten() {
                let at = list.iter().position(|(of, _)| *of == (owner, gpu));
                if let Some(at) = at {
                    let sum = sums.entry(at).or_insert((Histogram::NEW, Ns(0)));
                    sum.0.add(ended);
                    sum.1 = sum.1.max(open);
                }
            }
        });
        let mut state = self.tables.state();
        for (at, ((owner, gpu), controller)) in list.iter_mut().enumerate() {
            let (ended, open) = sums.remove(&at).unwrap_or((Histogram::NEW, Ns(0)));
            let verdict = controller.look(&ended, open, now);
            state.set_verdict(*owner, *gpu, verdict);
        }
        let changed = state.press();
        if changed {
            self.apply_effects();
        }
    }
}
