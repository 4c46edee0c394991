// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Decides when the channels of an owner pause, so that an owner whose submissions nobody sees
//! keeps to its duty cycle (`compute.max`). While they pause, they are off the GPU.
//!
//! ```text
//! starts    ran += time                until the last channel was let on, at most SETTLE_MAX
//! runs      ran += time                until ran >= turn
//! stops     ran += time                until the last channel has stopped, at most SETTLE_MAX
//! stands    left = ran * (period - quota) / quota; left -= time    until left = 0
//! ```
//!
//! Times are those that passed, not those that were planned. If controls are slow, if they are many
//! or if the caller comes late, the owner runs longer and stands longer: its share stays.
//!
//! All of the time that the owner may run counts, whether it has work or not. Nobody is stopped
//! before everybody was let on: else those that come last in each turn would never run.

use super::share::DutyCycle;
use crate::units::Ns;

/// The shortest cycle, so that an owner's controls stay few.
const CYCLE_MIN: Ns = Ns(100_000_000);

/// The shortest turn. A switch of contexts takes some 0.2 ms on an H100.
const TURN_MIN: Ns = Ns(5_000_000);

/// The longest wait for channels to stop, or to be let on: those of thousands of processes. One
/// that the resource manager does not stop would otherwise keep the owner's others from running
/// ever again.
const SETTLE_MAX: Ns = Ns(10_000_000_000);

/// How soon a caller comes again that waits for channels.
const LOOK: Ns = Ns(1_000_000);

/// What passed since the last time.
#[derive(Clone, Copy, Debug)]
pub struct Passed {
    /// The time.
    pub time: Ns,
    /// Whether the owner stood all that time for another reason.
    pub stood: bool,
    /// Whether all channels have stopped, or were let on, that were to when that was decided.
    pub settled: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Starts { ran: Ns },
    Runs { ran: Ns },
    Stops { ran: Ns, since: Ns },
    Stands { left: Ns },
}

/// The pauses of one owner on one GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pauses {
    /// `None` is no limit: the channels run.
    cycle: Option<DutyCycle>,
    phase: Phase,
}

impl Default for Pauses {
    fn default() -> Self {
        Self::NONE
    }
}

impl Pauses {
    /// Those of an owner without a limit.
    pub const NONE: Self = Self::begin(None);

    const fn begin(cycle: Option<DutyCycle>) -> Self {
        Self {
            cycle,
            phase: Phase::Runs { ran: Ns(0) },
        }
    }

    /// Returns whether the channels are to be off the GPU.
    pub const fn is_pause(&self) -> bool {
        matches!(self.phase, Phase::Stops { .. } | Phase::Stands { .. })
    }

    /// Passes time. A limit that has changed begins with a turn.
    pub fn pass(&mut self, cycle: Option<DutyCycle>, passed: Passed) {
        let cycle = cycle.filter(|cycle| cycle.quota < cycle.period);
        let Some(limit) = cycle.filter(|_| cycle == self.cycle) else {
            *self = Self::begin(cycle);
            return;
        };
        self.phase = match self.phase {
            Phase::Starts { ran } if !passed.settled && ran + passed.time < SETTLE_MAX => {
                Phase::Starts {
                    ran: ran + passed.time,
                }
            }
            Phase::Starts { ran } | Phase::Runs { ran } => {
                let ran = match passed.stood {
                    true => ran,
                    false => ran + passed.time,
                };
                match ran < turn(&limit) {
                    true => Phase::Runs { ran },
                    false => Phase::Stops { ran, since: Ns(0) },
                }
            }
            Phase::Stops { ran, since } => {
                let (ran, since) = (ran + passed.time, since + passed.time);
                match passed.settled || since >= SETTLE_MAX {
                    true => Phase::Stands {
                        left: ran.scale(limit.period - limit.quota, limit.quota.max(Ns(1))),
                    },
                    false => Phase::Stops { ran, since },
                }
            }
            Phase::Stands { left } => match left - passed.time {
                Ns(0) => Phase::Starts { ran: Ns(0) },
                left => Phase::Stands { left },
            },
        };
    }

    /// Returns in what time there may be something to do, or `None` without a limit.
    pub fn due(&self) -> Option<Ns> {
        let limit = self.cycle?;
        Some(match self.phase {
            Phase::Runs { ran } => (turn(&limit) - ran).max(LOOK),
            Phase::Starts { .. } | Phase::Stops { .. } => LOOK,
            Phase::Stands { left } => left.max(LOOK),
        })
    }
}

/// Returns how long the channels run at a time: the quota of as many periods as are a cycle.
fn turn(limit: &DutyCycle) -> Ns {
    let times = |least: Ns, each: Ns| least.pieces_of(each.max(Ns(1)));
    let periods = times(CYCLE_MIN, limit.period).max(times(TURN_MIN, limit.quota));
    limit.quota * periods.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: u64 = 1_000_000;

    fn cycle(quota: u64, period: u64) -> Option<DutyCycle> {
        Some(DutyCycle {
            quota: Ns(quota * MS),
            period: Ns(period * MS),
        })
    }

    fn passed(ms: u64, settled: bool) -> Passed {
        Passed {
            time: Ns(ms * MS),
            stood: false,
            settled,
        }
    }

    #[test]
    fn an_owner_runs_stops_and_stands() {
        let (mut pauses, limit) = (Pauses::NONE, cycle(20, 100));
        assert_eq!(pauses.due(), None);
        // What passed before there was a limit does not count.
        pauses.pass(limit, passed(1000, false));
        assert_eq!(
            (pauses.is_pause(), pauses.due()),
            (false, Some(Ns(20 * MS)))
        );
        pauses.pass(limit, passed(15, false));
        assert_eq!((pauses.is_pause(), pauses.due()), (false, Some(Ns(5 * MS))));
        pauses.pass(limit, passed(5, false));
        assert_eq!((pauses.is_pause(), pauses.due()), (true, Some(LOOK)));
        // It ran for 10 ms more, until its channels stood.
        pauses.pass(limit, passed(10, true));
        assert_eq!(
            (pauses.is_pause(), pauses.due()),
            (true, Some(Ns(120 * MS)))
        );
        pauses.pass(limit, passed(119, true));
        assert!(pauses.is_pause());
        pauses.pass(limit, passed(1, true));
        assert_eq!((pauses.is_pause(), pauses.due()), (false, Some(LOOK)));
        // The last one was let on after 3 ms, and the turn has 17 ms left.
        pauses.pass(limit, passed(3, true));
        assert_eq!(
            (pauses.is_pause(), pauses.due()),
            (false, Some(Ns(17 * MS)))
        );
    }

    #[test]
    fn nobody_is_stopped_before_everybody_runs() {
        let (mut pauses, limit) = (Pauses::NONE, cycle(20, 100));
        pauses.pass(limit, passed(0, true));
        pauses.pass(limit, passed(20, true));
        pauses.pass(limit, passed(0, true));
        pauses.pass(limit, passed(80, true));
        pauses.pass(limit, passed(300, false));
        assert_eq!((pauses.is_pause(), pauses.due()), (false, Some(LOOK)));
        pauses.pass(limit, passed(20, true));
        assert!(pauses.is_pause());
        pauses.pass(limit, passed(0, true));
        assert_eq!(pauses.due(), Some(Ns(4 * 320 * MS)));
    }

    #[test]
    fn a_limit_that_goes_or_changes_ends_the_pause() {
        for new in [None, cycle(30, 100), cycle(100, 100)] {
            let (mut pauses, limit) = (Pauses::NONE, cycle(20, 100));
            pauses.pass(limit, passed(0, false));
            pauses.pass(limit, passed(50, false));
            assert!(pauses.is_pause());
            pauses.pass(new, passed(0, false));
            assert!(!pauses.is_pause());
        }
        // All of the time is no limit.
        let mut pauses = Pauses::NONE;
        pauses.pass(cycle(100, 100), passed(0, false));
        assert_eq!(pauses.due(), None);
    }

    #[test]
    fn a_channel_that_does_not_stop_does_not_hold_the_others() {
        let (mut pauses, limit) = (Pauses::NONE, cycle(50, 100));
        pauses.pass(limit, passed(0, false));
        pauses.pass(limit, passed(50, false));
        pauses.pass(limit, passed(9999, false));
        assert_eq!(pauses.due(), Some(LOOK));
        pauses.pass(limit, passed(1, false));
        assert_eq!(pauses.due(), Some(Ns(10_050 * MS)), "it ran all that time");
    }

    /// A process whose group pauses does not use up its turn.
    #[test]
    fn who_stands_anyway_does_not_run() {
        let (mut pauses, limit) = (Pauses::NONE, cycle(20, 100));
        pauses.pass(limit, passed(0, false));
        let stood = Passed {
            stood: true,
            ..passed(500, false)
        };
        pauses.pass(limit, stood);
        assert_eq!(
            (pauses.is_pause(), pauses.due()),
            (false, Some(Ns(20 * MS)))
        );
    }

    #[test]
    fn turns_are_long_enough_to_pay() {
        let turn = |quota, period| turn(&cycle(quota, period).unwrap());
        assert_eq!(turn(20, 100), Ns(20 * MS));
        assert_eq!(turn(1, 2), Ns(50 * MS), "of a cycle of 100 ms");
        assert_eq!(turn(1, 1000), Ns(5 * MS), "of a cycle of 5 s");
        assert_eq!(turn(300, 1000), Ns(300 * MS));
    }

    proptest! {
        /// Checks that the share of each cycle keeps to the limit, however late the caller comes
        /// and however long channels take to stop.
        #[test]
        fn nobody_has_more_than_its_share(quota in 20u64..1_000_000, period in 1000u64..1_000_000, steps in prop::collection::vec((0u64..200_000_000, any::<bool>(), any::<bool>()), 1..300)) {
            let quota = quota.min(period - 1);
            let limit = Some(DutyCycle { quota: Ns(quota * 1000), period: Ns(period * 1000) });
            let mut pauses = Pauses::NONE;
            pauses.pass(limit, Passed { time: Ns(0), stood: false, settled: true });
            let (mut ran, mut stood) = (0u128, 0u128);
            for (time, settled, elsewhere) in steps {
                let was = pauses.phase;
                pauses.pass(limit, Passed { time: Ns(time), stood: elsewhere, settled });
                match was {
                    Phase::Starts { .. } | Phase::Runs { .. } if elsewhere => {}
                    Phase::Starts { .. } | Phase::Runs { .. } | Phase::Stops { .. } => ran += u128::from(time),
                    Phase::Stands { .. } => {
                        stood += u128::from(time);
                        if !pauses.is_pause() {
                            // ran / (ran + stood) <= quota / period, but for what a division cuts.
                            prop_assert!(ran * u128::from(period) <= (ran + stood + 1) * u128::from(quota) + u128::from(period));
                            (ran, stood) = (0, 0);
                        }
                    }
                }
            }
        }
    }
}
