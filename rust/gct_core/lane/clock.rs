// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Measures how much a tenant's launches depend on the GPU's clock, for its `slip.power`.
//!
//! A time counts if the launch had the GPU to itself at one clock: no other lane of the tenant and
//! no other process had work in flight meanwhile, and its beginning and end were seen well enough.
//! A launch of a known kernel counts whoever works beside it: by what it takes alone.

use super::in_flight::{End, Submission};
use super::words::Storage;
use crate::policy::clock::kernels::{Law, Laws, Sums, Work};
use crate::policy::clock::Clock;
use crate::units::Ns;

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
    /// Creates what was measured of nothing. `laws` has
    /// [`LAWS_MAX`](crate::policy::clock::kernels::LAWS_MAX) slots, or fewer to learn less.
    pub(super) fn new(laws: S::Slots<Option<Law>>) -> Self {
        Self {
            laws,
            uses: 0,
            sums: Sums::ZERO,
            clock: None,
            since: Ns(0),
            disturbed: Ns(0),
        }
    }

    /// Returns what was measured so far.
    pub(super) fn sums(&self) -> Sums {
        self.sums
    }

    /// Takes over the clock of the limits.
    pub(super) fn follow(&mut self, clock: Option<Clock>, now: Ns) {
        if self.clock != clock {
            (self.clock, self.since) = (clock, now);
        }
    }

    /// Records that other work runs on the GPU, or on another lane of the tenant.
    pub(super) fn disturb(&mut self, now: Ns) {
        self.disturbed = now;
    }

    /// Learns from the time of a launch or a replay.
    pub(super) fn learn<V>(&mut self, submission: &Submission<V>, end: &End, now: Ns) {
        let began = now - end.time;
        let own = began > self.disturbed && began >= self.since;
        let seen = submission.is_timed(end, ERROR);
        let time = self.clock.filter(|_| own && seen);
        let work = Work {
            kernel: submission.kernel,
            blocks: submission.blocks,
            tpcs: submission.tpcs,
        };
        Laws::new(&mut self.laws, &mut self.uses).ended(
            &work,
            time.map(|clock| (end.time, clock)),
            &mut self.sums,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lane::testing::{submission, Heap};
    use crate::policy::predict::Kernel;
    use std::vec;

    fn measured() -> Measured<Heap> {
        let mut measured = Measured::new(vec![None; 16]);
        measured.follow(Some(Clock::FULL), Ns(1_000));
        measured
    }

    /// Ends a launch that took 100 us of 1 ms.
    fn end(measured: &mut Measured<Heap>, error: u64) -> Sums {
        let before = measured.sums();
        let submission = submission(Kernel::graph(7), 1, 8);
        let end = End {
            time: Ns(100_000),
            queued: true,
            error: Ns(error),
            at: Ns(1_000_000),
            missed: false,
        };
        measured.learn(&submission, &end, Ns(1_000_000));
        measured.sums().since(&before)
    }

    #[test]
    fn only_a_time_that_is_the_launch_s_own_at_one_clock_counts() {
        let fresh = |change: fn(&mut Measured<Heap>), error: u64| {
            let mut measured = measured();
            change(&mut measured);
            end(&mut measured, error).fresh
        };
        assert_eq!(fresh(|_| (), 50_000), Ns(100_000));
        assert_eq!(fresh(|_| (), 50_001), Ns(0), "it was not seen well");
        let disturb = |it: &mut Measured<Heap>| it.disturb(Ns(900_000));
        assert_eq!(fresh(disturb, 0), Ns(0), "others worked");
        let moves = |it: &mut Measured<Heap>| it.follow(None, Ns(1_000));
        assert_eq!(fresh(moves, 0), Ns(0), "the clock changed");
        let moved = |it: &mut Measured<Heap>| it.follow(Clock::new(900), Ns(900_001));
        assert_eq!(fresh(moved, 0), Ns(0), "it began before");
    }

    #[test]
    fn known_kernels_count_whoever_works_beside_them() {
        let mut measured = measured();
        for _ in 0..16 {
            end(&mut measured, 0);
        }
        measured.disturb(Ns(900_000));
        let sums = end(&mut measured, 0);
        assert_eq!((sums.base, sums.sensitive), (Ns(100_000), Ns(100_000)));
    }
}
