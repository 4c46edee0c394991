// SPDX-License-Identifier: GPL-2.0 OR MIT

//! For how long a backend that can only look for work does so before it sleeps.
//!
//! To be woken costs the launch that does it some time, to look costs a processor. So it is looked for longer after each
//! pause that would have been worth it, and for less long after one that was not, as KVM's `haltpoll` does. A tenant that
//! launches every few milliseconds, in step or at random, soon never finds its backend asleep; one that works now and then
//! costs the shortest time each time.

use crate::units::Ns;

/// It is always looked for so long.
pub const POLL_MIN: Ns = Ns(5_000_000);
/// No pause beyond this is worth it: a tenant that makes one is taken for silent by others, too
/// ([`IDLE_TIMEOUT_MAX`](super::arrivals::IDLE_TIMEOUT_MAX)).
pub const POLL_MAX: Ns = super::arrivals::IDLE_TIMEOUT_MAX;

/// How long to look for work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Poll {
    time: Ns,
}

impl Poll {
    /// Nothing is known of the tenant.
    pub const fn new() -> Self {
        Self { time: POLL_MIN }
    }

    /// How long after the last work to sleep.
    pub const fn time(&self) -> Ns {
        self.time
    }

    /// Work has come after a sleep, and `pause` after the last work.
    #[must_use]
    pub fn after_sleep(self, pause: Ns) -> Self {
        let time = if pause > POLL_MAX {
            self.time / 2
        } else {
            self.time + self.time / 8
        };
        Self {
            time: time.clamp(POLL_MIN, POLL_MAX),
        }
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
    use crate::testing::random_pauses;
    use proptest::prelude::*;
    use std::vec::Vec;

    /// The poll after these pauses, and how many of the last half found the backend asleep.
    fn after(pauses: &[Ns]) -> (Poll, usize) {
        let (mut poll, mut asleep) = (Poll::new(), 0);
        for (at, pause) in pauses.iter().enumerate() {
            if *pause > poll.time() {
                poll = poll.after_sleep(*pause);
                asleep += usize::from(at >= pauses.len() / 2);
            }
        }
        (poll, asleep)
    }

    #[test]
    fn who_comes_every_few_milliseconds_is_awaited() {
        let (poll, asleep) = after(&[Ns(8_000_000); 20]);
        assert_eq!(asleep, 0);
        assert!(poll.time() >= Ns(8_000_000) && poll.time() < Ns(9_000_000));
    }

    #[test]
    fn who_comes_now_and_then_costs_the_least() {
        for pause in [21_000_000, 33_000_000, u64::MAX] {
            assert_eq!(after(&[Ns(pause); 20]), (Poll::new(), 10));
        }
    }

    #[test]
    fn after_a_while_few_random_arrivals_find_it_asleep() {
        const PAUSES: usize = 20_000;
        let pauses: Vec<Ns> = random_pauses(2_500_000.0).take(PAUSES).collect();
        let (_, asleep) = after(&pauses);
        assert!(asleep < PAUSES / 2 / 200, "{asleep}");
        let longer = |pause: &&Ns| **pause > POLL_MIN;
        assert!(pauses.iter().filter(longer).count() > PAUSES / 10);
    }

    proptest! {
        /// Whatever the pauses are, the time has its bounds.
        #[test]
        fn the_time_has_bounds(pauses in prop::collection::vec(any::<u64>(), 0..100)) {
            let pauses: Vec<Ns> = pauses.into_iter().map(Ns).collect();
            let (poll, _) = after(&pauses);
            prop_assert!((POLL_MIN..=POLL_MAX).contains(&poll.time()));
        }
    }
}
