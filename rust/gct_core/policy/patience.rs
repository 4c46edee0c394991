// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Bounds every wait for something that may never come: the end of a launch, or a neighbour's work.
//!
//! Terminology
//!   line       the pieces (launches and atoms) of one channel that are in flight, in order
//!   still      the line has neither ended nor begun a piece since
//!   late       a piece that was released because its line was still
//!   overtaken  a piece that has not ended, though a later one of its line has
//!   beat       a sign of life that a process with work gives its neighbours
//!
//! What is in flight may wait for what is held back: streams that share a channel, collectives of several GPUs, a release
//! word that the program resets. Nobody can tell such a wait from a long launch, so each wait ends by the clock:
//!
//! ```text
//! released when   still >= patience << min(late pieces in flight, LATE_SHIFT_MAX)
//! not followed    an overtaken piece that is older than patience
//! ```
//!
//! The first rule ends every wait; the second makes a line whose streams do not wait for each other run at its pace again.
//! The doubling bounds the cost where a launch is only long: of a launch that lasts `t`, `log2(t / patience)` late pieces
//! queue behind it.
//!
//! A line whose streams do wait for each other does so again and again, so its patience follows what late pieces bring:
//!
//! ```text
//! something ends within patience / 4 of a late release   patience = max(patience / 2, PATIENCE_MIN)
//! else                                                   patience = min(patience * 2, PATIENCE_MAX)
//! ```
//!
//! Among neighbours, work counts while its owner is scheduled and its work moves. An owner that is stopped does not beat.
//! One whose work does not move stops beating, as after a sticky error of CUDA's. One that beats all the same and lies has
//! what its priority and its quota allow anyway.

use crate::units::Ns;

/// The patience with a line of which nothing is known: as long as an owner of TPCs that is silent is waited for
/// ([`IDLE_TIMEOUT_MAX`](super::arrivals::IDLE_TIMEOUT_MAX)), and longer than a block of most programs runs.
pub const PATIENCE_MAX: Ns = super::arrivals::IDLE_TIMEOUT_MAX;

/// The least patience: what is looked for 20 times meanwhile costs a twentieth of a processor.
pub const PATIENCE_MIN: Ns = Ns(1_000_000);

/// The wait for one more piece doubles with each late one in flight, up to 64 times: 1.28 s.
const LATE_SHIFT_MAX: u32 = 6;

/// How often within its patience a line is searched for pieces that ended before its first: their words may lie across the bus,
/// where a look takes most of a microsecond.
const LOOKS: u64 = 20;

/// How often a process with work gives a sign of life, at most.
pub const BEAT_EVERY: Ns = Ns(10_000_000);

/// A neighbour that has not beaten for so long is not scheduled: stopped, frozen, in a debugger. The processor quota of a
/// cgroup stops a process for less than its period, 100 ms.
pub const BEAT_MAX: Ns = Ns(250_000_000);

/// Work that has not moved for so long is not waited for, and is told of as stalled. Far below the time-outs of collectives
/// (NCCL's watchdog in PyTorch: 600 s).
pub const STALL_MAX: Ns = Ns(5_000_000_000);

/// A launch that was predicted is stalled when it takes longer than so many times that.
const STALL_FACTOR: u64 = 4;

/// The patience with one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    time: Ns,
}

impl Patience {
    /// Nothing is known of the line.
    pub const fn new() -> Self {
        Self { time: PATIENCE_MAX }
    }

    /// Whether a piece of a line that has been still for `still`, with `late` late pieces in flight, is released now.
    pub fn is_over(&self, still: Ns, late: u32) -> bool {
        still >= self.time << late.min(LATE_SHIFT_MAX)
    }

    /// Whether the end of an overtaken piece of this age is not followed any more.
    pub fn gives_up(&self, age: Ns) -> bool {
        age >= self.time
    }

    /// How often the pieces behind the first are looked at.
    pub fn look_every(&self) -> Ns {
        self.time / LOOKS
    }

    /// The patience after something has ended `took` after a late piece was released.
    #[must_use]
    pub fn after(self, took: Ns) -> Self {
        let time = if took <= self.time / 4 {
            self.time / 2
        } else {
            self.time * 2
        };
        Self {
            time: time.clamp(PATIENCE_MIN, PATIENCE_MAX),
        }
    }
}

impl Default for Patience {
    fn default() -> Self {
        Self::new()
    }
}

/// Whether work that has not moved for `still` is work that others wait for.
pub fn moves(still: Ns) -> bool {
    still < STALL_MAX
}

/// Whether a line that has been still for `still` is stalled, where what is in flight was predicted to take `predicted`.
pub fn is_stalled(still: Ns, predicted: Ns) -> bool {
    !moves(still) && still >= predicted * STALL_FACTOR
}

/// A neighbour's work as it shows: whether it says that it has some, when it last beat, and since when it says that it has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signs {
    /// Whether it says that it has work.
    pub claims: bool,
    /// When it beat last.
    pub beat: Ns,
    /// When its last work ended, as it says.
    pub idle_since: Ns,
}

impl Signs {
    /// Whether it has work that counts.
    pub fn is_busy(&self, now: Ns) -> bool {
        self.claims && now - self.beat < BEAT_MAX
    }

    /// For how long it has had none.
    pub fn idle(&self, now: Ns) -> Ns {
        let since = match self.claims {
            true => self.beat.max(self.idle_since),
            false => self.idle_since,
        };
        now - since
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::pace::{admits_whole, Admission, InFlight};
    use proptest::prelude::*;
    use std::vec;
    use std::vec::Vec;

    const MS: u64 = 1_000_000;

    #[test]
    fn each_late_piece_doubles_the_wait_up_to_a_bound() {
        let patience = Patience::new();
        let first = |late| (0..).find(|ms| patience.is_over(Ns(ms * MS), late));
        let waits: Vec<_> = (0..9).filter_map(first).collect();
        assert_eq!(waits, [20, 40, 80, 160, 320, 640, 1280, 1280, 1280]);
        assert!(patience.is_over(Ns(u64::MAX), u32::MAX));
    }

    #[test]
    fn patience_follows_what_late_pieces_bring() {
        let soon = |patience: Patience| patience.after(patience.time / 4);
        let late = |patience: Patience| patience.after(patience.time / 4 + Ns(1));
        let mut patience = Patience::new();
        assert_eq!(late(patience), patience);
        for us in [10_000, 5_000, 2_500, 1_250, 1_000, 1_000] {
            patience = soon(patience);
            assert_eq!(patience.time, Ns(us * 1_000));
        }
        assert_eq!(patience.look_every(), Ns(50_000));
        for us in [2_000, 4_000, 8_000, 16_000, 20_000, 20_000] {
            patience = late(patience);
            assert_eq!(patience.time, Ns(us * 1_000));
        }
    }

    #[test]
    fn a_long_launch_that_was_foreseen_is_not_stalled() {
        assert!(!is_stalled(Ns(4_999 * MS), Ns(0)));
        assert!(is_stalled(Ns(5_000 * MS), Ns(0)));
        assert!(is_stalled(Ns(5_000 * MS), Ns(1_250 * MS)));
        assert!(!is_stalled(Ns(9_999 * MS), Ns(2_500 * MS)));
        assert!(!is_stalled(Ns(u64::MAX - 1), Ns(u64::MAX)));
    }

    #[test]
    fn who_is_stopped_is_not_busy_until_it_moves() {
        let at = |claims, beat, idle_since| Signs {
            claims,
            beat: Ns(beat * MS),
            idle_since: Ns(idle_since * MS),
        };
        let busy = at(true, 1000, 10);
        assert!(busy.is_busy(Ns(1000 * MS)) && busy.is_busy(Ns(1249 * MS)));
        assert!(!busy.is_busy(Ns(1250 * MS)), "a quarter of a second");
        // It is away since its last beat, not since its last pause.
        assert_eq!(busy.idle(Ns(1250 * MS)), Ns(250 * MS));
        assert_eq!(at(false, 1000, 1100).idle(Ns(1250 * MS)), Ns(150 * MS));
        assert!(!at(false, 1000, 1100).is_busy(Ns(1000 * MS)));
        // A beat of the future, as of a liar, is one of now.
        assert!(at(true, 9000, 0).is_busy(Ns(1000 * MS)));
        assert!(at(true, 1250, 0).is_busy(Ns(1250 * MS)), "it moves again");
    }

    const TIME: u64 = 5 * MS;
    const TARGET: Ns = Ns(8 * MS);
    const LONG: u64 = 3_600_000 * MS;

    /// Whole launches, each of a stream of its own; launch `i` is in channel `i % channels`. Each ends when the one that it waits
    /// for has started, wherever that is, and `TIME` has passed.
    struct Launches {
        waits_for: Vec<Option<usize>>,
        channels: usize,
    }

    /// A channel as pacing sees it, and the launch that it comes to next.
    #[derive(Clone, Default)]
    struct Line {
        in_flight: InFlight,
        next: usize,
        moved: u64,
        patience: Patience,
        late: Option<u64>,
    }

    #[derive(Clone, Copy)]
    struct Launch {
        since: u64,
        late: bool,
        followed: bool,
        ended: bool,
    }

    impl Launches {
        /// When all have ended, by the clock of the simulation; `None` if they have not after `limit`. Without a bound nothing is
        /// released late.
        fn run(&self, bounded: bool, limit: u64) -> Option<u64> {
            let mut lines = vec![Line::default(); self.channels];
            for (channel, line) in lines.iter_mut().enumerate() {
                line.next = channel;
            }
            let mut launches: Vec<Option<Launch>> = vec![None; self.waits_for.len()];
            (0..limit).step_by(MS as usize).find(|now| {
                for (channel, line) in lines.iter_mut().enumerate() {
                    self.end(&mut launches, line, channel, *now);
                    self.start(&mut launches, line, bounded, *now);
                }
                launches
                    .iter()
                    .flatten()
                    .filter(|launch| launch.ended)
                    .count()
                    == launches.len()
            })
        }

        fn end(&self, all: &mut [Option<Launch>], line: &mut Line, channel: usize, now: u64) {
            let give_up = |all: &mut [Option<Launch>], line: &mut Line, at: usize| {
                let launch = all[at].as_mut().unwrap();
                if core::mem::take(&mut launch.followed) {
                    line.in_flight.remove(Ns(TIME), launch.late);
                }
            };
            for at in (channel..line.next).step_by(self.channels) {
                let free = self.waits_for[at].is_none_or(|other| all[other].is_some());
                let launch = all[at].as_mut().unwrap();
                if launch.ended || !free || now - launch.since < TIME {
                    continue;
                }
                (launch.ended, line.moved) = (true, now);
                give_up(all, line, at);
                if let Some(late) = line.late.take() {
                    line.patience = line.patience.after(Ns(now - late));
                }
                for before in (channel..at).step_by(self.channels) {
                    if line.patience.gives_up(Ns(now - all[before].unwrap().since)) {
                        give_up(all, line, before);
                    }
                }
            }
        }

        fn start(&self, all: &mut [Option<Launch>], line: &mut Line, bounded: bool, now: u64) {
            while line.next < all.len() {
                let admits = admits_whole(&line.in_flight, Ns(TIME), TARGET);
                let still = Ns(now - line.moved);
                let over = bounded && line.patience.is_over(still, line.in_flight.late);
                let late = match line.in_flight.admission(admits, over) {
                    Admission::Held => return,
                    Admission::InTurn => false,
                    Admission::Late => true,
                };
                line.late = Some(now).filter(|_| late).or(line.late);
                line.in_flight.add(Ns(TIME), late);
                line.moved = now;
                all[line.next] = Some(Launch {
                    since: now,
                    late,
                    followed: true,
                    ended: false,
                });
                line.next += self.channels;
            }
        }
    }

    fn assert_ends_only_when_bounded(pair: &Launches) {
        assert_eq!(
            pair.run(false, LONG / 100),
            None,
            "without a bound it hangs"
        );
        let end = pair.run(true, LONG).unwrap();
        assert!(end <= 25 * MS, "{end} ns");
    }

    #[test]
    fn streams_that_share_a_channel_and_wait_for_each_other_end() {
        // Two receives in flight that wait for a send, which is the third launch.
        assert_ends_only_when_bounded(&Launches {
            waits_for: vec![Some(2), Some(2), None],
            channels: 1,
        });
    }

    #[test]
    fn channels_that_wait_for_each_other_end() {
        // Two in flight in each wait for the third of the other, as communicators do that two GPUs begin in another order.
        assert_ends_only_when_bounded(&Launches {
            waits_for: vec![Some(5), Some(4), Some(5), Some(4), None, None],
            channels: 2,
        });
    }

    #[test]
    fn a_line_of_streams_runs_at_its_pace_beside_one_that_waits() {
        // Two that wait for the last of a thousand others.
        let mut waits_for = vec![None; 1002];
        waits_for[..2].fill(Some(1001));
        let all = Launches {
            waits_for,
            channels: 1,
        };
        let end = all.run(true, LONG).unwrap();
        // Two at a time take 5 ms.
        assert!(end < 2_600 * MS, "{end} ns");
    }

    #[test]
    fn few_late_pieces_queue_behind_a_launch_that_is_only_long() {
        let mut in_flight = InFlight::default();
        in_flight.add(Ns(0), false);
        in_flight.add(TARGET, false);
        let mut moved = 0;
        for now in (0..5_000 * MS).step_by(MS as usize) {
            if Patience::new().is_over(Ns(now - moved), in_flight.late) {
                in_flight.add(TARGET, true);
                moved = now;
            }
        }
        assert!(in_flight.late <= 9, "{in_flight:?}");
        let admits = admits_whole(&in_flight, TARGET, TARGET);
        assert_eq!(in_flight.admission(admits, false), Admission::Held);
    }

    proptest! {
        /// Whatever waits for whatever, all launches end if they would with all of them released.
        #[test]
        fn every_wait_ends(waits in prop::collection::vec(prop::option::of(0usize..24), 1..24), channels in 1usize..4) {
            let all = waits.len();
            let waits_for = waits.into_iter().map(|on| on.filter(|on| *on < all)).collect();
            let launches = Launches { waits_for, channels };
            prop_assert!(launches.run(true, 40_000 * MS).is_some());
        }
    }
}
