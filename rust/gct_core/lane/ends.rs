// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Decides who waits for the end of work in flight, and learns from it.
//!
//! A backend sees an end when it looks. To look soon after each launch costs more than a short
//! launch takes, so it looks soon only if an end is awaited:
//!
//! ```text
//! awaited   others can use the GPU, or pieces of work follow it, or a limit on time, a size, a
//!           clock or a goal depends on it, or one of the lane's launches was never timed
//! else      a look each millisecond will do. An end is then taken to be where it was predicted,
//!           and a time that is off by more than ERROR_MAX teaches nothing, unless it shows that
//!           the prediction was wrong
//! ```

use super::governor::{Governor, Peers};
use super::in_flight::{End, Submission};
use super::words::Storage;
use crate::policy::predict::{self, Kernel, Path, Predictor};
use crate::submit::stats::add;
use crate::units::Ns;

/// How far the time of a launch may be off that still teaches, while nobody awaits its end: what a
/// look every 50 us gives, and a late one.
const ERROR_MAX: Ns = Ns(150_000);

impl<S: Storage, P: Peers> Governor<S, P> {
    /// Returns whether the ends of launches must be tracked.
    pub(super) fn tracks_ends(&self) -> bool {
        self.target() > Ns(0) || self.peers.is_some()
    }

    /// Returns whether somebody waits for the ends of work in flight.
    pub fn awaits_ends(&self) -> bool {
        let is_alone = self.peers.as_ref().is_some_and(Peers::is_alone);
        let is_measured = self.me.limits.timed || self.sizes() || self.measures_clock();
        !is_alone || is_measured || self.may_split() || self.bounds_flight().is_some()
    }

    /// Counts a stall of a lane, if a limit may be the reason.
    pub fn count_stalled(&mut self) {
        let acts = self.acts();
        add(&mut self.counters.sums.stalled, u64::from(acts));
    }

    /// Returns whether the time of a submission may teach. Any time is better than none.
    pub(super) fn may_learn<V>(&self, submission: &Submission<V>, end: &End) -> bool {
        !submission.is_predicted() || end.error <= ERROR_MAX || self.awaits_ends()
    }

    /// Predicts how long a kernel takes on `tpcs` TPCs, behind the launches of `path`.
    pub(super) fn predict(&self, launch: (&Kernel, Path), tpcs: u64) -> Option<Ns> {
        predict::predict(&self.kernels, &self.habits, launch, tpcs)
    }

    /// Predicts how long a replay of a graph takes as a whole, on the TPCs that it has.
    #[inline(always)]
    pub(super) fn predict_replay<V>(&self, submission: &mut Submission<V>) {
        if submission.kernel.is_graph() {
            let launch = (&submission.kernel, submission.path);
            submission.replay = self.predict(launch, submission.tpcs).unwrap_or(Ns(0));
        }
    }

    /// Learns the duration of a submission that has ended, and counts whether it was predicted.
    pub(super) fn learn<V>(&mut self, submission: &Submission<V>, end: &End, now: Ns) {
        self.me.shares.record_end(end.at);
        let gpu_count = self.me.gpu_count;
        let saved = self.sizing.learn(submission, end, gpu_count, now);
        add(&mut self.counters.sums.slip_saved, saved.get());
        if self.measures_clock() {
            if let Some(measured) = &mut self.measured {
                measured.learn(submission, end, now);
            }
        }
        let predicted = submission.is_predicted();
        add(&mut self.counters.sums.predicted, u64::from(predicted));
        add(&mut self.counters.sums.mispredicted, u64::from(end.missed));
        if !end.missed && !self.may_learn(submission, end) {
            return;
        }
        let kernel = &submission.kernel;
        let blocks = match kernel.is_graph() {
            true => kernel.blocks().get(),
            false => submission.blocks,
        };
        let mut predictor = Predictor::new(&mut self.kernels, &mut self.habits);
        let launch = (kernel, submission.path);
        predictor.observe(launch, blocks, submission.tpcs, end.time);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lane::decide;
    use crate::lane::limits::LaunchLimits;
    use crate::lane::testing::{submission, Heap};
    use crate::mask::TpcMask;
    use crate::policy::clock::{kernels::Sums, Clock};
    use crate::policy::share::{DutyCycle, Level, Share};
    use crate::topology::Topology;
    use crate::units::Percent;
    use std::vec;

    /// The other processes of the GPU: whether there are any.
    struct Others(bool);

    impl Peers for Others {
        fn refresh(&mut self, _: &mut LaunchLimits) -> Option<Topology> {
            None
        }

        fn look_around(&mut self, _: Ns) -> decide::Others<'_> {
            decide::Others {
                by_turns: true,
                ..decide::Others::NONE
            }
        }

        fn set_busy(&mut self, _: bool, _: Ns) {}

        fn is_alone(&self) -> bool {
            !self.0
        }
    }

    fn governor(others: Option<bool>, limits: LaunchLimits) -> Governor<Heap, Others> {
        let mut governor = Governor::new(limits, vec![None; 64], vec![], vec![]);
        governor.set_gpu(Topology::together(TpcMask::first(8)));
        governor.set_peers(others.map(Others));
        governor
    }

    #[test]
    fn a_tenant_alone_awaits_what_its_limits_depend_on() {
        let none = LaunchLimits::NONE;
        assert!(!governor(Some(false), none).awaits_ends());
        assert!(governor(Some(true), none).awaits_ends());
        assert!(
            governor(None, none).awaits_ends(),
            "who is there is unknown"
        );
        let max = DutyCycle {
            quota: Ns(1_000_000),
            period: Ns(10_000_000),
        };
        let owner = Level {
            weight: None,
            max: Some(max),
        };
        let share = Share {
            owner,
            ..Share::NONE
        };
        for limits in [
            LaunchLimits {
                timed: true,
                ..none
            },
            LaunchLimits {
                atom_ns: 100_000,
                ..none
            },
            LaunchLimits {
                slip: Percent(3),
                ..none
            },
            LaunchLimits { share, ..none },
        ] {
            assert!(governor(Some(false), limits).awaits_ends(), "{limits:?}");
        }
    }

    const KERNEL: Kernel = Kernel {
        program: 1,
        grid: [8, 1, 1],
        block: [32, 1, 1],
        per_tpc: 4,
    };

    /// Lets a launch end after `time`, which may be off by `error`. `missed` says whether that
    /// shows a wrong prediction. Returns the next one.
    fn ended(
        governor: &mut Governor<Heap, Others>,
        time: u64,
        error: u64,
        missed: bool,
    ) -> Option<Ns> {
        let known = governor.predict((&KERNEL, Path::default()), 8);
        let submission = Submission {
            predicted: known.unwrap_or(Ns(0)),
            ..submission(KERNEL, 8, 8)
        };
        let end = End {
            time: Ns(time),
            at: Ns(time),
            queued: false,
            error: Ns(error),
            missed,
        };
        governor.learn(&submission, &end, Ns(time));
        governor.predict((&KERNEL, Path::default()), 8)
    }

    #[test]
    fn an_end_that_nobody_awaited_and_was_seen_late_teaches_nothing() {
        for (others, learns) in [(false, false), (true, true)] {
            let mut governor = governor(Some(others), LaunchLimits::NONE);
            let first = ended(&mut governor, 20_000, 900_000, false);
            assert!(first.is_some(), "the first time is better than none");
            let second = ended(&mut governor, 1_000_000, 990_000, false);
            assert_eq!(second != first, learns, "beside others {others}");
            let third = ended(&mut governor, 10_000, 5_000, false);
            assert_ne!(third, second, "it was seen in time");
            let fourth = ended(&mut governor, 5_000_000, 990_000, true);
            assert_ne!(fourth, third, "it takes longer now");
        }
    }

    #[test]
    fn without_a_slip_of_the_clock_nothing_is_measured_at_one() {
        for slip in [0, 10] {
            let limits = LaunchLimits {
                slip_power: Percent(slip),
                clock: Some(Clock::FULL),
                ..LaunchLimits::NONE
            };
            let mut governor = governor(Some(false), limits);
            governor.measure_clock(vec![None; 16]);
            governor.begin(Ns(1));
            let end = End {
                time: Ns(100_000),
                at: Ns(1_000_000),
                queued: true,
                error: Ns(0),
                missed: false,
            };
            governor.learn(&submission(KERNEL, 8, 8), &end, end.at);
            assert_eq!(governor.measures_clock(), slip > 0);
            assert_eq!(governor.clock_sums() != Sums::ZERO, slip > 0);
        }
    }
}
