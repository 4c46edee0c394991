// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Decides how much of a channel one round of a worker takes, and when the next round begins.
//!
//! Terminology
//!   bell    a tenant's mapping of a doorbell; while it is closed, the next ring wakes the worker
//!   heard   each tenant with channels rings bells, as far as is known
//!   quiet   no channel has work that is held back, in flight, to be fetched or new
//!
//! ```text
//! a turn was used up                  0
//! work is measured                    as its measure says, MEASURE_NS to WATCH_NS_MAX
//! entries were published or fetched   SLEEP_NS_MIN
//! work is held back or in flight      twice as long as before, at most WATCH_NS_MAX
//! nothing                             twice as long as before, at most SLEEP_NS_MAX
//! quiet for CLOSE_NS                  close the bells
//! .. and they are closed, and heard   LOOK_NS, or until a bell wakes the worker
//! ```
//!
//! A ring of a closed bell costs its tenant a fault and the worker a wake-up. A look costs a
//! wake-up, too. So bells are closed for tenants that pause longer than a few looks of
//! SLEEP_NS_MAX: further looks would cost more than the fault.

/// Most entries of one channel that are published in one turn, so that channels take turns.
pub const TURN_MAX: u32 = 16;

/// No entry of a channel is published behind so many words of one turn: some hundred launches of
/// CUDA. The last segment may be longer, [`SEGMENT_WORDS`](super::SEGMENT_WORDS), which are read
/// and scanned in some 200 us (inferred); a turn has no more than a piece of one that is longer
/// still. Or it lists a graph's [`STEPS`](crate::submit::limits::STEPS) launches, in 1.4 ms, or in
/// 14 ms if its tenant has all nodes that it may have (at best, on a busy virtual machine).
pub const TURN_WORDS: u32 = 1 << 13;

/// The shortest sleep of a worker.
const SLEEP_NS_MIN: u64 = 50_000;

/// The longest sleep of an idle worker that no bell wakes. A tenant's first submission after a
/// pause waits for it.
pub const SLEEP_NS_MAX: u64 = 2_000_000;

/// The longest sleep of a worker while work is held back or in flight. Work that waits for the end
/// of other work waits so long beyond it, at most.
const WATCH_NS_MAX: u64 = 200_000;

/// The shortest sleep of a worker while the time of work in flight is measured, for `slip.tpc`. So
/// the times of launches of some 0.4 ms and more count.
const MEASURE_NS: u64 = 25_000;

/// How long a GPU is quiet before its bells are closed.
const CLOSE_NS: u64 = 5 * SLEEP_NS_MAX;

/// The longest sleep of a worker that bells wake. A submission that no bell announces waits for it.
const LOOK_NS: u64 = 1_000_000_000;

/// What a worker knows beside what its round has found.
#[derive(Clone, Copy, Debug)]
pub struct Signs {
    /// It was woken since the last round.
    pub is_woken: bool,
    /// All bells were closed when the round began.
    pub are_closed: bool,
    /// No channel had anything to do.
    pub is_quiet: bool,
    /// Each tenant's rings are heard.
    pub is_heard: bool,
    /// How soon the next look must come for the time of work in flight to count, if it is measured.
    pub look_ns: Option<u64>,
}

/// What a worker does after a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rest {
    /// How long it sleeps, in nanoseconds; 0 is not at all.
    pub sleep_ns: u64,
    /// Whether bells are to be closed.
    pub closes: bool,
}

/// The pauses of a worker.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pauses {
    slept_ns: u64,
    /// The last time at which there was something to do.
    busy_at_ns: u64,
}

impl Pauses {
    /// Creates the state of a worker that starts.
    pub const NEW: Self = Self {
        slept_ns: 0,
        busy_at_ns: 0,
    };

    /// Returns what follows a round.
    pub fn after(&mut self, round: Round, signs: Signs, now_ns: u64) -> Rest {
        if signs.is_woken || !signs.is_quiet {
            self.busy_at_ns = now_ns;
        }
        if signs.is_woken {
            self.slept_ns = 0;
        }
        let is_idle = now_ns.saturating_sub(self.busy_at_ns) >= CLOSE_NS;
        let sleep_ns = match (round, signs.look_ns) {
            (Round::Left, _) => 0,
            (_, Some(look_ns)) => look_ns.clamp(MEASURE_NS, WATCH_NS_MAX),
            (Round::Busy, _) => SLEEP_NS_MIN,
            (Round::Watched, _) => twice(self.slept_ns, WATCH_NS_MAX),
            (Round::Idle, _) if is_idle && signs.are_closed && signs.is_heard => LOOK_NS,
            (Round::Idle, _) => twice(self.slept_ns, SLEEP_NS_MAX),
        };
        self.slept_ns = sleep_ns;
        Rest {
            sleep_ns,
            closes: is_idle && !signs.are_closed,
        }
    }
}

/// Returns twice the last sleep, within bounds.
const fn twice(last: u64, most: u64) -> u64 {
    match last.saturating_mul(2) {
        0 => SLEEP_NS_MIN,
        twice if twice > most => most,
        twice => twice,
    }
}

/// What a round over all channels of a GPU found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Round {
    /// Nothing.
    Idle,
    /// Work that is held back or in flight, of which nothing has moved.
    Watched,
    /// Entries that were published, or that the hardware has fetched.
    Busy,
    /// A channel that may have more work than one turn may take.
    Left,
}

/// When a refused question is asked again: doubled each time, from a millisecond to a second. A
/// tenant that submits to a channel without an engine must not make the worker ask all the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    at_ns: u64,
    wait_ns: u64,
}

impl Retry {
    /// At once.
    pub const NOW: Self = Self {
        at_ns: 0,
        wait_ns: 1_000_000,
    };

    /// Returns whether the time has come.
    pub const fn is_due(&self, now_ns: u64) -> bool {
        now_ns >= self.at_ns
    }

    /// Returns the time after a refusal.
    #[must_use]
    pub const fn refused(self, now_ns: u64) -> Self {
        const LONGEST_NS: u64 = 1_000_000_000;
        let twice = self.wait_ns.saturating_mul(2);
        Self {
            at_ns: now_ns.saturating_add(self.wait_ns),
            wait_ns: if twice < LONGEST_NS {
                twice
            } else {
                LONGEST_NS
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    const QUIET: Signs = Signs {
        is_woken: false,
        are_closed: true,
        is_quiet: true,
        is_heard: true,
        look_ns: None,
    };

    /// Lets a worker rest as it decides, for so many rounds. Returns its sleeps in microseconds.
    fn sleeps(pauses: &mut Pauses, now: &mut u64, signs: Signs, rounds: usize) -> Vec<u64> {
        let round = |_| {
            let rest = pauses.after(Round::Idle, signs, *now);
            *now += rest.sleep_ns;
            rest.sleep_ns / 1000
        };
        (0..rounds).map(round).collect()
    }

    #[test]
    fn an_idle_worker_sleeps_longer_each_time() {
        let (mut pauses, mut now) = (Pauses::NEW, 1 << 40);
        let woken = Signs {
            is_woken: true,
            ..QUIET
        };
        assert_eq!(sleeps(&mut pauses, &mut now, woken, 2), [50, 50]);
        let slept = sleeps(&mut pauses, &mut now, QUIET, 12);
        let expected = [100, 200, 400, 800, 1600, 2000, 2000, 2000, 2000, 1_000_000];
        assert_eq!(slept[..10], expected);
        assert_eq!(sleeps(&mut pauses, &mut now, woken, 1), [50]);
    }

    #[test]
    fn who_is_not_heard_is_looked_after() {
        for signs in [
            Signs {
                are_closed: false,
                ..QUIET
            },
            Signs {
                is_heard: false,
                ..QUIET
            },
            Signs {
                is_quiet: false,
                ..QUIET
            },
        ] {
            let (mut pauses, mut now) = (Pauses::NEW, 1 << 40);
            let slept = sleeps(&mut pauses, &mut now, signs, 100);
            assert_eq!(slept.iter().max(), Some(&2000), "{signs:?}");
        }
    }

    /// Bells are closed after a pause, and not while a tenant submits every two milliseconds.
    #[test]
    fn bells_are_closed_after_a_pause() {
        let open = Signs {
            are_closed: false,
            ..QUIET
        };
        let (mut pauses, start) = (Pauses::NEW, 1 << 40);
        let busy = Signs {
            is_quiet: false,
            ..open
        };
        for at in (0..100 * SLEEP_NS_MAX).step_by(50_000) {
            let (round, signs) = match at % SLEEP_NS_MAX {
                0 => (Round::Busy, busy),
                _ => (Round::Idle, open),
            };
            assert!(!pauses.after(round, signs, start + at).closes);
        }
        let last = start + 99 * SLEEP_NS_MAX;
        let mut closes = |at| pauses.after(Round::Idle, open, at).closes;
        assert!(!closes(last + CLOSE_NS - 1) && closes(last + CLOSE_NS));
    }

    #[test]
    fn work_is_watched() {
        let (mut pauses, now) = (Pauses::NEW, 1 << 40);
        let mut sleep = |round| pauses.after(round, QUIET, now).sleep_ns;
        assert_eq!(sleep(Round::Left), 0);
        assert_eq!(sleep(Round::Busy), SLEEP_NS_MIN);
        let watched: Vec<_> = (0..3).map(|_| sleep(Round::Watched)).collect();
        assert_eq!(watched, [100_000, WATCH_NS_MAX, WATCH_NS_MAX]);
        assert_eq!(sleep(Round::Idle), LOOK_NS, "quiet since long");
        assert_eq!(sleep(Round::Watched), WATCH_NS_MAX);
    }

    #[test]
    fn work_that_is_measured_is_watched_closely() {
        let (mut pauses, now) = (Pauses::NEW, 1 << 40);
        let mut sleep = |round, look_ns| {
            let signs = Signs { look_ns, ..QUIET };
            pauses.after(round, signs, now).sleep_ns
        };
        for round in [Round::Watched, Round::Busy] {
            assert_eq!(sleep(round, Some(0)), MEASURE_NS);
            assert_eq!(sleep(round, Some(70_000)), 70_000);
            assert_eq!(sleep(round, Some(u64::MAX)), WATCH_NS_MAX);
        }
        assert_eq!(sleep(Round::Left, Some(0)), 0);
        assert_eq!(sleep(Round::Watched, None), SLEEP_NS_MIN);
    }

    #[test]
    fn a_refused_question_is_asked_ever_more_seldom() {
        let mut retry = Retry::NOW;
        assert!(retry.is_due(0));
        let mut now = 0;
        for _ in 0..30 {
            retry = retry.refused(now);
            assert!(!retry.is_due(now));
            now = retry.at_ns;
        }
        assert_eq!(retry.wait_ns, 1_000_000_000);
        assert!(now > 15_000_000_000);
    }
}
