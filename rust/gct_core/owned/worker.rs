// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Decides how much of a channel one round of a worker takes, and when the next round begins.

/// Most entries of one channel that are published in one turn, so that channels take turns.
pub const TURN_MAX: u32 = 16;

/// The shortest sleep of a worker.
const SLEEP_NS_MIN: u64 = 50_000;

/// The longest sleep of an idle worker. A tenant's first submission after a pause waits for it.
pub const SLEEP_NS_MAX: u64 = 2_000_000;

/// The longest sleep of a worker while work is held back or in flight. Work that waits for the end
/// of other work waits so long beyond it, at most.
const WATCH_NS_MAX: u64 = 200_000;

/// Returns how long a worker sleeps after a round, in nanoseconds; 0 is not at all. `last` is how
/// long it slept before the round.
///
/// ```text
/// a turn was used up                  0
/// entries were published or fetched   SLEEP_NS_MIN
/// otherwise                           twice as long as before, at most SLEEP_NS_MAX,
///                                     or WATCH_NS_MAX while work is held back or in flight
/// ```
pub const fn sleep_after(round: Round, last: u64) -> u64 {
    match round {
        Round::Left => 0,
        Round::Busy => SLEEP_NS_MIN,
        Round::Watched => twice(last, WATCH_NS_MAX),
        Round::Idle => twice(last, SLEEP_NS_MAX),
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

    #[test]
    fn an_idle_worker_sleeps_longer_each_time() {
        let mut slept = Vec::new();
        let mut last = sleep_after(Round::Left, 77);
        for _ in 0..8 {
            last = sleep_after(Round::Idle, last);
            slept.push(last / 1000);
        }
        assert_eq!(slept, [50, 100, 200, 400, 800, 1600, 2000, 2000]);
        assert_eq!(sleep_after(Round::Busy, last), SLEEP_NS_MIN);
        assert_eq!(sleep_after(Round::Watched, 100_000), WATCH_NS_MAX);
        assert_eq!(sleep_after(Round::Watched, last), WATCH_NS_MAX);
        assert_eq!(sleep_after(Round::Idle, u64::MAX), SLEEP_NS_MAX);
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
