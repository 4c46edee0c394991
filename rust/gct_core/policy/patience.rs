// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Bounds every wait for something that may never come: the end of a launch, or a neighbour's work.
//!
//! Terminology
//!   line       the pieces (launches and atoms) of one channel that are in flight, in order
//!   still      the time since the line last ended or began a piece
//!   late       a piece that was released because its line was still
//!   overtaken  a piece that has not ended although a later one of its line has
//!   beat       a sign of life that a process with work gives its neighbours
//!
//! Work in flight may wait for work held back: streams share a channel, collectives span several
//! GPUs, a program resets its release word. Such a wait cannot be told from a long launch, so the
//! clock ends it:
//!
//! ```text
//! released when   still >= patience << min(late pieces in flight, LATE_SHIFT_MAX)
//! not followed    an overtaken piece that is older than patience
//! ```
//!
//! The first rule ends every wait. The second lets a line whose streams do not wait for each other
//! run at its own pace again. The doubling bounds the cost of a launch that is only long: behind a
//! launch of duration `t`, at most `log2(t / patience)` late pieces queue.
//!
//! Streams that wait for each other do so again and again, so the patience of their line adapts to
//! what its late pieces bring:
//!
//! ```text
//! an end within patience / 4 of a late release   patience = max(patience / 2, PATIENCE_MIN)
//! else                                           patience = min(patience * 2, PATIENCE_MAX)
//! ```
//!
//! A neighbour's work counts while its owner is scheduled and its work moves. A stopped owner does
//! not beat. An owner whose work does not move stops beating, as after a sticky CUDA error. An
//! owner that lies and beats gains no more than its priority and its quota allow anyway.

use crate::units::Ns;

/// Patience with a line without a history. It is as long as an idle owner of TPCs is waited for
/// ([`IDLE_TIMEOUT_MAX`](super::arrivals::IDLE_TIMEOUT_MAX)), and longer than a block of most
/// programs.
pub const PATIENCE_MAX: Ns = super::arrivals::IDLE_TIMEOUT_MAX;

/// Least patience: 20 looks during it cost a twentieth of a processor.
pub const PATIENCE_MIN: Ns = Ns(1_000_000);

/// The wait for one more piece doubles with each late one in flight, up to 64 times: 1.28 s.
const LATE_SHIFT_MAX: u32 = 6;

/// Searches of a line within its patience for pieces that ended before the first one. Their words
/// may lie across the bus, where a look takes most of a microsecond.
const LOOKS: u64 = 20;

/// Shortest time between two beats of a process with work.
pub const BEAT_EVERY: Ns = Ns(10_000_000);

/// Time without a beat after which a neighbour counts as not scheduled: stopped, frozen, in a
/// debugger. A cgroup's processor quota stops a process for less than its period, 100 ms.
pub const BEAT_MAX: Ns = Ns(250_000_000);

/// Time without progress after which work is not waited for and counts as stalled. Far below the
/// time-outs of collectives (NCCL's watchdog in PyTorch: 600 s).
pub const STALL_MAX: Ns = Ns(5_000_000_000);

/// A predicted launch counts as stalled only after this many times its prediction.
const STALL_FACTOR: u64 = 4;

/// Patience with one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    time: Ns,
}

impl Patience {
    /// Creates the patience with a line without a history.
    pub const fn new() -> Self {
        Self { time: PATIENCE_MAX }
    }

    /// Returns how long a line is still, with `late` late pieces in flight, until its next piece is
    /// released.
    #[inline]
    pub fn wait(&self, late: u32) -> Ns {
        self.time << late.min(LATE_SHIFT_MAX)
    }

    /// Returns whether an overtaken piece of this age is not followed any more.
    pub fn gives_up(&self, age: Ns) -> bool {
        age >= self.time
    }

    /// Returns the time between two searches of the pieces behind the first.
    pub fn look_every(&self) -> Ns {
        self.time / LOOKS
    }

    /// Returns the patience after something has ended, `took` after a late release.
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

/// Returns whether others wait for work that has made no progress for `still`.
pub fn moves(still: Ns) -> bool {
    still < STALL_MAX
}

/// Returns whether a line is stalled that has been still for `still` with work predicted to take
/// `predicted`.
pub fn is_stalled(still: Ns, predicted: Ns) -> bool {
    !moves(still) && still >= predicted * STALL_FACTOR
}

/// Returns how long a tenant's work in flight, predicted to take `predicted` and with `late` late
/// pieces, is still until held work is released although its share is used up.
pub fn overdue(predicted: Ns, late: u32) -> Ns {
    Patience::new().wait(late).max(predicted * STALL_FACTOR)
}

/// What a neighbour publishes about its work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Signs {
    /// Whether it claims to have work.
    pub claims: bool,
    /// Time of its last beat.
    pub beat: Ns,
    /// Time when its last work ended.
    pub idle_since: Ns,
}

impl Signs {
    /// Returns whether it has work that counts.
    pub fn is_busy(&self, now: Ns) -> bool {
        self.claims && now - self.beat < BEAT_MAX
    }

    /// Returns how long it has had no work that counts.
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
    use crate::policy::pace::{admits_whole, InFlight};
    use proptest::prelude::*;
    use std::vec;
    use std::vec::Vec;

    const MS: u64 = 1_000_000;

    #[test]
    fn each_late_piece_doubles_the_wait_up_to_a_bound() {
        let patience = Patience::new();
        let waits: Vec<_> = (0..9).map(|late| patience.wait(late) / Ns(MS)).collect();
        assert_eq!(waits, [20, 40, 80, 160, 320, 640, 1280, 1280, 1280]);
        assert_eq!(patience.wait(u32::MAX), patience.wait(8));
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
    fn a_stopped_neighbour_is_not_busy_until_it_beats() {
        let at = |claims, beat, idle_since| Signs {
            claims,
            beat: Ns(beat * MS),
            idle_since: Ns(idle_since * MS),
        };
        let busy = at(true, 1000, 10);
        assert!(busy.is_busy(Ns(1000 * MS)) && busy.is_busy(Ns(1249 * MS)));
        assert!(!busy.is_busy(Ns(1250 * MS)), "a quarter of a second");
        // It is idle since its last beat, not since its last pause.
        assert_eq!(busy.idle(Ns(1250 * MS)), Ns(250 * MS));
        assert_eq!(at(false, 1000, 1100).idle(Ns(1250 * MS)), Ns(150 * MS));
        assert!(!at(false, 1000, 1100).is_busy(Ns(1000 * MS)));
        // A beat in the future, which only a liar writes, counts as one now.
        assert!(at(true, 9000, 0).is_busy(Ns(1000 * MS)));
        assert!(at(true, 1250, 0).is_busy(Ns(1250 * MS)), "it moves again");
    }

    const TIME: u64 = 5 * MS;
    const TARGET: Ns = Ns(8 * MS);
    const LONG: u64 = 3_600_000 * MS;

    /// Whole launches, each on a stream of its own; launch `i` is on channel `i % channels`. A
    /// launch ends `TIME` after its start, but not before the launch has started that it waits for.
    struct Launches {
        waits_for: Vec<Option<usize>>,
        channels: usize,
    }

    /// State of a channel's pacing, and its next launch.
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
        /// Returns when all launches have ended, in simulated time; `None` if they have not after
        /// `limit`. Without `bounded` no piece is released late.
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
                    line.in_flight.remove(Ns(TIME), 1, launch.late);
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
                let over = bounded && still >= line.patience.wait(line.in_flight.late);
                if !(admits || over) {
                    return;
                }
                let late = !admits;
                line.late = Some(now).filter(|_| late).or(line.late);
                line.in_flight.add(Ns(TIME), 1, late);
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

    /// Checks that all launches end soon with a bound, and never without.
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
        // Two receives in flight wait for a send, the third launch.
        assert_ends_only_when_bounded(&Launches {
            waits_for: vec![Some(2), Some(2), None],
            channels: 1,
        });
    }

    #[test]
    fn channels_that_wait_for_each_other_end() {
        // Two in flight on each channel wait for the third of the other, as communicators do that
        // two GPUs begin in different order.
        assert_ends_only_when_bounded(&Launches {
            waits_for: vec![Some(5), Some(4), Some(5), Some(4), None, None],
            channels: 2,
        });
    }

    #[test]
    fn a_line_of_streams_runs_at_its_pace_beside_one_that_waits() {
        // Two wait for the last of a thousand others.
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
        in_flight.add(Ns(0), 1, false);
        in_flight.add(TARGET, 1, false);
        let mut moved = 0;
        for now in (0..5_000 * MS).step_by(MS as usize) {
            if Ns(now - moved) >= Patience::new().wait(in_flight.late) {
                in_flight.add(TARGET, 1, true);
                moved = now;
            }
        }
        assert!(in_flight.late <= 9, "{in_flight:?}");
        assert!(!admits_whole(&in_flight, TARGET, TARGET));
    }

    proptest! {
        /// Checks that all launches end if they would with all of them released, whichever waits
        /// for which.
        #[test]
        fn every_wait_ends(waits in prop::collection::vec(prop::option::of(0usize..24), 1..24), channels in 1usize..4) {
            let all = waits.len();
            let waits_for = waits.into_iter().map(|on| on.filter(|on| *on < all)).collect();
            let launches = Launches { waits_for, channels };
            prop_assert!(launches.run(true, 40_000 * MS).is_some());
        }
    }
}
