// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Decides whether a backend may take a processor for polling.
//!
//! A poller is a thread of the tenant and uses a processor that the tenant may use. It polls only
//! if the tenant has at least two processors, one of them for itself, and if no other thread wants
//! the one that it polls on. Both are visible from outside: the affinity and the cgroup quota give
//! the number of processors, and the scheduler counts the preemptions of the poller. A used-up
//! quota shows as preemptions, too.
//!
//! Terminology
//!   window   polling time after which its preemptions are counted
//!   backoff  time without polling after a window with too many
//!
//! ```text
//! window with too many preemptions   backoff = clamp(2 * backoff, BACKOFF_MIN, BACKOFF_MAX)
//! window without                     backoff = backoff / 2
//! ```
//!
//! So a tenant that keeps all its processors busy is disturbed for one window every ten seconds,
//! 0.2% of the time.

use crate::text::number;
use crate::units::{Cpus, Ns, Sat};

/// Polling time after which its preemptions are counted.
pub const WINDOW: Ns = Ns(20_000_000);
/// Preemptions of a window above which another thread wants the processor. A kernel thread preempts
/// a poller on an idle machine a few times a second; a second runnable thread does so in each time
/// slice of 3 to 4 ms.
pub const PREEMPTIONS_MAX: u64 = 2;
/// Shortest backoff.
pub const BACKOFF_MIN: Ns = Ns(50_000_000);
/// Longest backoff.
pub const BACKOFF_MAX: Ns = Ns(10_000_000_000);

/// Processors that the tenant needs before one may be polled on.
pub const NEEDED: Cpus = Cpus(2_000);

impl Cpus {
    /// Returns `count` whole processors.
    pub fn whole(count: u64) -> Self {
        Self(count) * 1_000
    }

    /// Returns the processors that a quota in each period amounts to; `None` for a period of 0.
    pub fn of_quota(quota: u64, period: u64) -> Option<Self> {
        (period > 0).then(|| Self(quota) * 1_000 / period)
    }

    /// Reads a cgroup's `cpu.max`, as `max 100000` or `150000 100000`. Returns `None` where there
    /// is no limit, or none that can be parsed.
    pub fn from_cpu_max(text: &[u8]) -> Option<Self> {
        let mut words = text
            .split(|byte| byte.is_ascii_whitespace())
            .filter(|word| !word.is_empty());
        let quota = number(words.next()?).ok()?;
        Self::of_quota(quota, number(words.next()?).ok()?)
    }
}

/// Backoff of one poller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PollBackoff {
    backoff: Ns,
    until: Ns,
    /// Polling time and preemptions of this window, up to the last [`resume`](Self::resume).
    polled: Ns,
    counted: Sat<u64>,
    since: Ns,
    preemptions: Sat<u64>,
}

impl PollBackoff {
    /// Creates the state of a poller without a history: it may poll.
    pub const fn new() -> Self {
        Self {
            backoff: Ns(0),
            until: Ns(0),
            polled: Ns(0),
            counted: Sat(0),
            since: Ns(0),
            preemptions: Sat(0),
        }
    }

    /// Returns whether to poll now, if the tenant has `cpus` processors.
    pub fn may_poll(&self, cpus: Cpus, now: Ns) -> bool {
        cpus >= NEEDED && now >= self.until
    }

    /// Begins or resumes polling. `preemptions` counts all preemptions of the thread so far.
    #[must_use]
    pub fn resume(self, preemptions: u64, now: Ns) -> Self {
        Self {
            since: now,
            preemptions: Sat(preemptions),
            ..self
        }
    }

    /// Pauses polling before a sleep. `preemptions` counts all preemptions of the thread so far.
    #[must_use]
    pub fn pause(self, preemptions: u64, now: Ns) -> Self {
        Self {
            polled: self.polled_at(now),
            counted: self.counted_at(preemptions),
            ..self
        }
        .resume(preemptions, now)
    }

    fn polled_at(&self, now: Ns) -> Ns {
        self.polled + (now - self.since)
    }

    fn counted_at(&self, preemptions: u64) -> Sat<u64> {
        self.counted + (Sat(preemptions) - self.preemptions)
    }

    /// Returns whether the window has ended, so that [`end`](Self::end) is due.
    pub fn is_due(&self, now: Ns) -> bool {
        self.polled_at(now) >= WINDOW
    }

    /// Ends a window and begins the next. `preemptions` counts all preemptions of the thread so
    /// far.
    #[must_use]
    pub fn end(self, preemptions: u64, now: Ns) -> Self {
        let wanted = self.counted_at(preemptions).0 > PREEMPTIONS_MAX;
        let backoff = if wanted {
            (self.backoff * 2).clamp(BACKOFF_MIN, BACKOFF_MAX)
        } else {
            self.backoff / 2
        };
        let until = match wanted {
            true => now + backoff,
            false => self.until,
        };
        Self {
            backoff,
            until,
            ..Self::new()
        }
        .resume(preemptions, now)
    }
}

impl Default for PollBackoff {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MANY: Cpus = Cpus(8_000);

    #[test]
    fn one_processor_is_the_tenants() {
        let backoff = PollBackoff::new();
        assert!(!backoff.may_poll(Cpus::whole(1), Ns(0)));
        assert!(!backoff.may_poll(Cpus(1_999), Ns(0)));
        assert!(backoff.may_poll(Cpus::whole(2), Ns(0)));
    }

    #[test]
    fn quotas_are_read() {
        for (text, cpus) in [
            ("max 100000\n", None),
            ("150000 100000\n", Some(Cpus(1_500))),
            ("100000 100000", Some(Cpus(1_000))),
            ("5 0", None),
            ("", None),
            ("-1 100000", None),
            ("18446744073709551615 1", Some(Cpus(u64::MAX))),
        ] {
            assert_eq!(Cpus::from_cpu_max(text.as_bytes()), cpus, "{text:?}");
        }
    }

    #[test]
    fn preemptions_double_the_backoff() {
        let mut backoff = PollBackoff::new().resume(10, Ns(0));
        let (mut now, mut preemptions, mut waits) = (Ns(0), 10, std::vec::Vec::new());
        for _ in 0..12 {
            now += WINDOW;
            preemptions += 6;
            assert!(backoff.is_due(now));
            backoff = backoff.end(preemptions, now);
            assert!(!backoff.may_poll(MANY, now));
            waits.push(backoff.until - now);
            now = backoff.until;
            assert!(backoff.may_poll(MANY, now));
            backoff = backoff.resume(preemptions, now);
        }
        assert_eq!(
            waits[..3],
            [Ns(50_000_000), Ns(100_000_000), Ns(200_000_000)]
        );
        assert_eq!(waits.last(), Some(&BACKOFF_MAX));
        for _ in 0..12 {
            now += WINDOW;
            backoff = backoff.end(preemptions, now);
            assert!(backoff.may_poll(MANY, now), "no preemptions");
        }
        assert!(backoff.backoff < BACKOFF_MIN);
    }

    #[test]
    fn a_few_interruptions_are_none() {
        let mut backoff = PollBackoff::new().resume(0, Ns(0));
        for window in 1..100 {
            let now = Ns(window * WINDOW.get());
            backoff = backoff.end(window * PREEMPTIONS_MAX, now);
            assert!(backoff.may_poll(MANY, now));
        }
    }

    #[test]
    fn short_polls_count_together() {
        let mut backoff = PollBackoff::new();
        let (mut now, mut preemptions) = (0, 0);
        for _ in 0..4 {
            assert!(!backoff.is_due(Ns(now)));
            backoff = backoff.resume(preemptions, Ns(now));
            now += WINDOW.get() / 4;
            preemptions += 1;
            backoff = backoff.pause(preemptions, Ns(now));
            // Nothing counts while it sleeps.
            now += WINDOW.get();
            preemptions += 100;
            backoff = backoff.resume(preemptions, Ns(now));
        }
        assert!(backoff.is_due(Ns(now)));
        let backoff = backoff.end(preemptions, Ns(now));
        assert!(!backoff.may_poll(MANY, Ns(now)) && backoff.backoff == BACKOFF_MIN);
    }

    proptest! {
        /// Checks that polling is tried again after any preemptions.
        #[test]
        fn it_is_tried_again(counts in prop::collection::vec(any::<(u64, u64)>(), 0..50)) {
            let (mut backoff, mut now) = (PollBackoff::new(), Ns(0));
            for (preemptions, later) in counts {
                now += Ns(later);
                backoff = backoff.end(preemptions, now);
                prop_assert!(backoff.may_poll(MANY, now + BACKOFF_MAX));
            }
        }
    }
}
