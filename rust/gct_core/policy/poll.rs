// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Decides how long a backend polls for work before it sleeps.
//!
//! A wake-up delays the launch that causes it; polling costs a processor. As KVM's `haltpoll` does,
//! the polling time grows after each pause that polling would have covered, and shrinks after each
//! that it would not:
//!
//! ```text
//! after a sleep:  pause <= POLL_MAX   time += time / 8
//!                 else                time /= 2
//!                 within POLL_MIN and POLL_MAX
//! ```
//!
//! A tenant that launches every few milliseconds, regularly or at random, soon finds its backend
//! awake. A tenant that works now and then costs the minimum each time.

use crate::units::Ns;

/// Minimum polling time.
pub const POLL_MIN: Ns = Ns(5_000_000);
/// Maximum polling time. After a longer pause the tenant counts as gone for others, too
/// ([`IDLE_TIMEOUT_MAX`](super::arrivals::IDLE_TIMEOUT_MAX)).
pub const POLL_MAX: Ns = super::arrivals::IDLE_TIMEOUT_MAX;

/// Polling time of one backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Poll {
    time: Ns,
}

impl Poll {
    /// Creates the polling time of a tenant without a history.
    pub const fn new() -> Self {
        Self { time: POLL_MIN }
    }

    /// Returns how long to poll after the last work.
    pub const fn time(&self) -> Ns {
        self.time
    }

    /// Returns the polling time after work has arrived during a sleep, `pause` after the last work.
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

    /// Returns the polling time after these pauses, and how many of their second half ended in a
    /// sleep.
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
    fn a_tenant_of_every_few_milliseconds_is_polled_for() {
        let (poll, asleep) = after(&[Ns(8_000_000); 20]);
        assert_eq!(asleep, 0);
        assert!(poll.time() >= Ns(8_000_000) && poll.time() < Ns(9_000_000));
    }

    #[test]
    fn a_rare_tenant_costs_the_minimum() {
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
        /// Checks that the time stays within its bounds after any pauses.
        #[test]
        fn the_time_has_bounds(pauses in prop::collection::vec(any::<u64>(), 0..100)) {
            let pauses: Vec<Ns> = pauses.into_iter().map(Ns).collect();
            let (poll, _) = after(&pauses);
            prop_assert!((POLL_MIN..=POLL_MAX).contains(&poll.time()));
        }
    }
}
