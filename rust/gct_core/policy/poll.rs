// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Decides when a backend polls for rings, instead of letting the ringing threads publish.
//!
//! Terminology
//!   ring   a tenant's store that announces new work
//!   gap    mean time between two rings; a pause counts [`PAUSE_CAP`] at most
//!
//! Polling costs a processor. A thread that publishes its own work loses 1 to 2 us a ring. So
//! polling pays only while rings come in quick succession:
//!
//! ```text
//! gap   = gap + (pause - gap) / 16
//! poll    while gap <= GAP_MAX and the last ring came within POLL_TIME
//! ```
//!
//! Launches back to back come 3 to 5 us apart, a launch and the wait for its end take 9 us and more
//! (H100, H200). Only the first are polled for.

use crate::units::Ns;

/// The longest gap for which polling pays.
pub const GAP_MAX: Ns = Ns(6_000);
/// The most that a pause counts in the gap.
pub const PAUSE_CAP: Ns = Ns(100_000);
/// Time after the last ring for which polling goes on.
pub const POLL_TIME: Ns = Ns(200_000);

/// The pattern of a tenant's rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Poll {
    gap: Ns,
    last: Ns,
}

impl Poll {
    /// Creates the pattern of a tenant that has not rung.
    pub const fn new() -> Self {
        Self {
            gap: PAUSE_CAP,
            last: Ns(0),
        }
    }

    /// Learns of a ring.
    #[must_use]
    pub fn rang(self, now: Ns) -> Self {
        let pause = (now - self.last).min(PAUSE_CAP);
        Self {
            gap: self.gap - self.gap / 16 + pause / 16,
            last: now,
        }
    }

    /// Returns the time since the last ring.
    pub fn idle(&self, now: Ns) -> Ns {
        now - self.last
    }

    /// Returns whether to poll now.
    pub fn pays(&self, now: Ns) -> bool {
        self.gap <= GAP_MAX && self.idle(now) <= POLL_TIME
    }
}

impl Default for Poll {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns the pattern after rings that lie `gap` apart, and the time of the last.
    fn after(count: u64, gap: u64) -> (Poll, Ns) {
        let times = (1..=count).map(|ring| Ns(1_000_000_000 + ring * gap));
        times.fold((Poll::new(), Ns(0)), |(poll, _), now| (poll.rang(now), now))
    }

    #[test]
    fn launches_back_to_back_are_polled_for() {
        let (poll, now) = after(100, 5_000);
        assert!(poll.pays(now) && poll.pays(now + POLL_TIME));
        assert!(!poll.pays(now + POLL_TIME + Ns(1)), "it has stopped");
        let (few, now) = after(30, 5_000);
        assert!(!few.pays(now), "a short burst is over before polling pays");
    }

    #[test]
    fn a_launch_with_a_wait_is_not() {
        let (poll, now) = after(100_000, 9_000);
        assert!(!poll.pays(now));
    }

    #[test]
    fn a_pause_counts_little_and_many_count() {
        let (mut poll, mut now) = after(1_000, 4_000);
        now += Ns(1_000_000_000);
        poll = poll.rang(now);
        assert!(!poll.pays(now));
        for _ in 0..40 {
            now += Ns(4_000);
            poll = poll.rang(now);
        }
        assert!(poll.pays(now), "{poll:?}");
    }

    proptest! {
        /// Checks that any tenant is polled for again once it rings quickly, and no longer once it
        /// does not.
        #[test]
        fn the_past_wears_off(pauses in prop::collection::vec(any::<u64>(), 0..100)) {
            let (mut poll, mut now) = (Poll::new(), Ns(0));
            for pause in pauses {
                now += Ns(pause);
                poll = poll.rang(now);
            }
            for (pause, pays) in [(5_000, true), (20_000, false)] {
                let start = Ns(now.get() % (1 << 40));
                poll = poll.rang(start);
                for ring in 1..200 {
                    now = start + Ns(pause) * ring;
                    poll = poll.rang(now);
                }
                prop_assert_eq!(poll.pays(now), pays);
            }
        }
    }
}
