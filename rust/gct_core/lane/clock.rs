// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Measures how much a tenant's launches depend on the GPU's clock, for its `slip.power`.
//!
//! A time counts if the launch had the GPU to itself at one clock: no other lane of the tenant and
//! no other process had work in flight meanwhile, and its beginning and end were seen well enough.
//! A launch of a known kernel counts whoever works beside it: by what it takes alone.

use super::governor::{Governor, Peers};
use super::in_flight::{End, Submission};
use super::words::Storage;
use crate::policy::clock::kernels::{Law, Laws, Sums, Work};
use crate::policy::clock::Clock;
use crate::units::{Ns, Percent};

/// The part of a time that may be unknown, as a divisor. It varies with the looks at the beginning
/// and at the end, in both directions alike. So an average of 250 is off by a hundredth at most, and
/// launches of few looks can be measured.
const ERROR: u64 = 2;

/// What is measured of one tenant.
pub(super) struct Measured<S: Storage> {
    laws: S::Slots<Option<Law>>,
    uses: u32,
    sums: Sums,
    /// The clock, and when it was first seen; `None` while it is changed.
    clock: Option<Clock>,
    since: Ns,
    /// When other work was last seen on the GPU.
    disturbed: Ns,
}

impl<S: Storage> Measured<S> {
    /// Records that other work runs on the GPU, or on another lane of the tenant.
    pub(super) fn disturb(&mut self, now: Ns) {
        self.disturbed = now;
    }
}

impl<S: Storage, P: Peers> Governor<S, P> {
    /// Measures from now on, while there is a `slip.power`. `laws` has
    /// [`LAWS_MAX`](crate::policy::clock::kernels::LAWS_MAX) slots, or fewer to learn less.
    pub fn measure_clock(&mut self, laws: S::Slots<Option<Law>>) {
        self.measured = Some(Measured {
            laws,
            uses: 0,
            sums: Sums::ZERO,
            clock: None,
            since: Ns(0),
            disturbed: Ns(0),
        });
    }

    /// Returns whether times are measured at clocks, so that ends must be seen as soon as they come.
    pub fn measures_clock(&self) -> bool {
        self.measured.is_some() && self.me.limits.slip_power > Percent(0)
    }

    /// Returns what was measured so far.
    pub fn clock_sums(&self) -> Sums {
        self.measured.as_ref().map_or(Sums::ZERO, |it| it.sums)
    }

    /// Takes over the clock of the limits.
    pub(super) fn follow_clock(&mut self, now: Ns) {
        let clock = self.me.limits.clock;
        if let Some(measured) = self.measured.as_mut().filter(|it| it.clock != clock) {
            (measured.clock, measured.since) = (clock, now);
        }
    }

    /// Records that other work runs on the GPU, or on another lane.
    pub(super) fn disturb_clock(&mut self, now: Ns) {
        if let Some(measured) = &mut self.measured {
            measured.disturb(now);
        }
    }

    /// Learns from the time of a launch or a replay.
    pub(super) fn learn_clock<V>(&mut self, submission: &Submission<V>, end: &End, now: Ns) {
        if !self.measures_clock() {
            return;
        }
        let Some(measured) = &mut self.measured else {
            return;
        };
        let began = now - end.time;
        let own = began > measured.disturbed && began >= measured.since;
        let seen = submission.is_timed(end, ERROR);
        let time = measured.clock.filter(|_| own && seen);
        let work = Work {
            kernel: submission.kernel,
            blocks: submission.blocks,
            tpcs: submission.tpcs,
        };
        Laws::new(&mut measured.laws, &mut measured.uses).ended(
            &work,
            time.map(|clock| (end.time, clock)),
            &mut measured.sums,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lane::governor::Nobody;
    use crate::lane::limits::LaunchLimits;
    use crate::lane::testing::{submission, Heap};
    use crate::policy::predict::Kernel;
    use std::vec;

    type Of = Governor<Heap, Nobody>;

    fn limits(slip: u8, clock: Option<Clock>) -> LaunchLimits {
        LaunchLimits {
            slip_power: Percent(slip),
            clock,
            ..LaunchLimits::NONE
        }
    }

    fn governor(slip: u8) -> Of {
        let mut governor = Governor::new(LaunchLimits::NONE, vec![], vec![], vec![]);
        governor.measure_clock(vec![None; 16]);
        governor.set_limits(limits(slip, Some(Clock::FULL)));
        governor.follow_clock(Ns(1_000));
        governor
    }

    /// Ends a launch that took 100 us of 1 ms.
    fn end(governor: &mut Of, error: u64) -> Sums {
        let before = governor.clock_sums();
        let submission = submission(Kernel::graph(7), 1, 8);
        let end = End {
            time: Ns(100_000),
            queued: true,
            error: Ns(error),
            at: Ns(1_000_000),
            missed: false,
        };
        governor.learn_clock(&submission, &end, Ns(1_000_000));
        governor.clock_sums().since(&before)
    }

    #[test]
    fn only_a_time_that_is_the_launch_s_own_at_one_clock_counts() {
        let fresh = |change: fn(&mut Of), error: u64| {
            let mut governor = governor(10);
            change(&mut governor);
            end(&mut governor, error).fresh
        };
        assert_eq!(fresh(|_| (), 50_000), Ns(100_000));
        assert_eq!(fresh(|_| (), 50_001), Ns(0), "it was not seen well");
        let disturb = |governor: &mut Of| governor.disturb_clock(Ns(900_000));
        assert_eq!(fresh(disturb, 0), Ns(0), "others worked");
        let moves = |governor: &mut Of| {
            governor.set_limits(limits(10, None));
            governor.follow_clock(Ns(1_000));
        };
        assert_eq!(fresh(moves, 0), Ns(0), "the clock changed");
        let moved = |governor: &mut Of| {
            governor.set_limits(limits(10, Clock::new(900)));
            governor.follow_clock(Ns(900_001));
        };
        assert_eq!(fresh(moved, 0), Ns(0), "it began before");
    }

    #[test]
    fn without_a_slip_nothing_is_measured() {
        let mut governor = governor(0);
        assert!(!governor.measures_clock());
        assert_eq!(end(&mut governor, 0), Sums::ZERO);
    }

    #[test]
    fn known_kernels_count_whoever_works_beside_them() {
        let mut governor = governor(10);
        for _ in 0..16 {
            end(&mut governor, 0);
        }
        governor.disturb_clock(Ns(900_000));
        let sums = end(&mut governor, 0);
        assert_eq!((sums.base, sums.sensitive), (Ns(100_000), Ns(100_000)));
    }
}
