// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Decides when the channels of an owner pause, so that an owner whose submissions nobody sees
//! keeps to its duty cycle (`compute.max`). While they pause, they are off the GPU.
//!
//! ```text
//! starts    ran += time                until the last process was let on, or none for SETTLE_MAX
//! runs      ran += time                until ran >= turn
//! stops     ran += time                until the last process has stopped, or none for SETTLE_MAX
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

/// The longest wait for one more process to stop, or to be let on. One that the resource manager
/// does not stop would otherwise keep the owner's others from running ever again. There is no bound
/// for all of them: those behind it would never be let on.
const SETTLE_MAX: Ns = Ns(10_000_000_000);

/// How soon a caller comes again that waits for channels.
const LOOK: Ns = Ns(1_000_000);

/// One look more for so many processes that the caller waits for. It looks at each of them: some
/// 0.2 us of a processor for each (inferred), of 20 us between two looks.
const PROCS_PER_LOOK: usize = 50;

/// What passed since the last time.
#[derive(Clone, Copy, Debug)]
pub struct Passed {
    /// The time.
    pub time: Ns,
    /// Whether the owner stood all that time for another reason.
    pub stood: bool,
    /// Processes with channels that have yet to stop, or to be let on, as was decided.
    pub unsettled: usize,
}

/// A wait for processes to stop, or to be let on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Settling {
    /// The fewest that were left, if somebody has looked.
    left: Option<usize>,
    /// For how long none has followed.
    still: Ns,
}

impl Settling {
    const NEW: Self = Self {
        left: None,
        still: Ns(0),
    };

    /// Returns for how many times as long as [`LOOK`] nobody need look again.
    fn looks(&self) -> u64 {
        let more = self.left.unwrap_or(0) / PROCS_PER_LOOK;
        u64::try_from(more).unwrap_or(u64::MAX).saturating_add(1)
    }

    /// Returns the wait that goes on, or `None` when it is over.
    fn pass(self, passed: &Passed) -> Option<Self> {
        let follows = self.left.is_some_and(|left| passed.unsettled < left);
        let still = match follows {
            true => Ns(0),
            false => self.still + passed.time,
        };
        (passed.unsettled > 0 && still < SETTLE_MAX).then_some(Self {
            left: match follows {
                true => Some(passed.unsettled),
                false => self.left.or(Some(passed.unsettled)),
            },
            still,
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Starts { ran: Ns, wait: Settling },
    Runs { ran: Ns },
    Stops { ran: Ns, wait: Settling },
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
        let run = |ran: Ns| match ran < turn(&limit) {
            true => Phase::Runs { ran },
            false => Phase::Stops {
                ran,
                wait: Settling::NEW,
            },
        };
        let longer = |ran: Ns| ran + passed.time;
        self.phase = match self.phase {
            Phase::Starts { ran, wait } => match wait.pass(&passed) {
                Some(wait) => Phase::Starts {
                    ran: longer(ran),
                    wait,
                },
                None if passed.stood => run(ran),
                None => run(longer(ran)),
            },
            Phase::Runs { ran } if passed.stood => run(ran),
            Phase::Runs { ran } => run(longer(ran)),
            Phase::Stops { ran, wait } => {
                let ran = longer(ran);
                match wait.pass(&passed) {
                    Some(wait) => Phase::Stops { ran, wait },
                    None => Phase::Stands {
                        left: ran.scale(limit.period - limit.quota, limit.quota.max(Ns(1))),
                    },
                }
            }
            Phase::Stands { left } => match left - passed.time {
                Ns(0) => Phase::Starts {
                    ran: Ns(0),
                    wait: Settling::NEW,
                },
                left => Phase::Stands { left },
            },
        };
    }

    /// Returns whether the next step is due as soon as processes have stopped, or were let on.
    pub const fn settles(&self) -> bool {
        matches!(self.phase, Phase::Starts { .. } | Phase::Stops { .. })
    }

    /// Returns in what time there may be something to do, or `None` without a limit.
    pub fn due(&self) -> Option<Ns> {
        let limit = self.cycle?;
        Some(match self.phase {
            Phase::Runs { ran } => (turn(&limit) - ran).max(LOOK),
            Phase::Starts { wait, .. } | Phase::Stops { wait, .. } => LOOK * wait.looks(),
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
            unsettled: usize::from(!settled),
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
        // One of two stops within half a second.
        let two = Passed {
            unsettled: 2,
            ..passed(500, false)
        };
        pauses.pass(limit, two);
        pauses.pass(limit, passed(0, false));
        pauses.pass(limit, passed(9999, false));
        assert_eq!(pauses.due(), Some(LOOK));
        pauses.pass(limit, passed(1, false));
        assert_eq!(pauses.due(), Some(Ns(10_550 * MS)), "it ran all that time");
    }

    /// A thousand processes of which each takes a tenth of a second are waited for.
    #[test]
    fn the_last_of_many_is_let_on() {
        let (mut pauses, limit) = (Pauses::NONE, cycle(20, 100));
        pauses.pass(limit, passed(0, true));
        pauses.pass(limit, passed(20, true));
        pauses.pass(limit, passed(0, true));
        pauses.pass(limit, passed(80, true));
        for left in (1..1000).rev() {
            assert!(pauses.settles() && !pauses.is_pause());
            let unsettled = left;
            pauses.pass(
                limit,
                Passed {
                    unsettled,
                    ..passed(100, false)
                },
            );
        }
        pauses.pass(limit, passed(100, true));
        assert!(pauses.is_pause());
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
        fn nobody_has_more_than_its_share(quota in 20u64..1_000_000, period in 1000u64..1_000_000, steps in prop::collection::vec((0u64..200_000_000, 0usize..3, any::<bool>()), 1..300)) {
            let quota = quota.min(period - 1);
            let limit = Some(DutyCycle { quota: Ns(quota * 1000), period: Ns(period * 1000) });
            let mut pauses = Pauses::NONE;
            pauses.pass(limit, Passed { time: Ns(0), stood: false, unsettled: 0 });
            let (mut ran, mut stood) = (0u128, 0u128);
            for (time, unsettled, elsewhere) in steps {
                let was = pauses.phase;
                pauses.pass(limit, Passed { time: Ns(time), stood: elsewhere, unsettled });
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

    /// Whoever waits for many processes looks at them less often.
    #[test]
    fn a_crowd_is_looked_at_less_often() {
        let crowd = |unsettled| Passed {
            time: Ns(20 * MS),
            stood: false,
            unsettled,
        };
        for (procs, looks) in [(1, 1), (49, 1), (50, 2), (20_000, 401)] {
            let mut pauses = Pauses::NONE;
            for _ in 0..3 {
                pauses.pass(cycle(20, 100), crowd(procs));
            }
            assert!(pauses.is_pause() && pauses.settles());
            assert_eq!(pauses.due(), Some(LOOK * looks), "{procs} processes");
        }
    }
}
