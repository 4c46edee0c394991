// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Decides whether a backend that looks for work by polling may take a processor for that.
//!
//! A poller is the tenant's own thread: the processor that it takes is one that the tenant may use. It polls only where the
//! tenant has two processors at least, one for itself, and nobody else wants the one that it polls on. Both are known from
//! outside: how many processors the tenant may use (its affinity, the quota of its cgroup), and how often the scheduler has
//! taken the processor from the poller although it wanted to go on. A quota that is used up is seen in the same way.
//!
//! Terminology
//!   window   polling time after which its preemptions are counted
//!   backoff  how long is not polled after a window with too many
//!
//! Backoff doubles from one such window to the next, and halves with each window without: a tenant that keeps all its
//! processors busy is disturbed for a window every ten seconds, 0.2% of the time.

use crate::iface::parse;
use crate::units::{Cpus, Ns, Sat};

/// Polling time after which its preemptions are counted.
pub const WINDOW: Ns = Ns(20_000_000);
/// More preemptions than this in a window show that somebody wants the processor. A kernel thread interrupts a poller on an
/// idle machine a few times a second; a second runnable thread does each time slice, of 3 to 4 ms.
pub const PREEMPTIONS_MAX: u64 = 2;
/// The shortest backoff, and the longest.
pub const BACKOFF_MIN: Ns = Ns(50_000_000);
/// See [`BACKOFF_MIN`].
pub const BACKOFF_MAX: Ns = Ns(10_000_000_000);

/// Processors that the tenant must have so that one may be polled on.
pub const NEEDED: Cpus = Cpus(2_000);

impl Cpus {
    /// So many whole ones.
    pub fn whole(count: u64) -> Self {
        Self(count) * 1_000
    }

    /// What a quota in each period amounts to; `None` for a period of 0.
    pub fn of_quota(quota: u64, period: u64) -> Option<Self> {
        (period > 0).then(|| Self(quota) * 1_000 / period)
    }

    /// Reads a cgroup's `cpu.max`, as `max 100000` or `150000 100000`; `None` where there is no limit, or none that can be
    /// understood.
    pub fn from_cpu_max(text: &[u8]) -> Option<Self> {
        let mut words = text
            .split(|byte| byte.is_ascii_whitespace())
            .filter(|word| !word.is_empty());
        let quota = parse::number(words.next()?).ok()?;
        Self::of_quota(quota, parse::number(words.next()?).ok()?)
    }
}

/// When polling may go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PollBackoff {
    backoff: Ns,
    until: Ns,
    /// Polling time of this window and its preemptions, up to the last [`resume`](Self::resume).
    polled: Ns,
    counted: Sat<u64>,
    since: Ns,
    preemptions: Sat<u64>,
}

impl PollBackoff {
    /// Nothing is known: there is one, if the tenant has enough.
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

    /// Whether to poll now, with so many processors.
    pub fn may_poll(&self, cpus: Cpus, now: Ns) -> bool {
        cpus >= NEEDED && now >= self.until
    }

    /// Polling begins or goes on, after so many preemptions in all.
    #[must_use]
    pub fn resume(self, preemptions: u64, now: Ns) -> Self {
        Self {
            since: now,
            preemptions: Sat(preemptions),
            ..self
        }
    }

    /// The poller is about to sleep, after so many preemptions in all.
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

    /// Whether the window has ended, so that [`end`](Self::end) should be told of preemptions.
    pub fn is_due(&self, now: Ns) -> bool {
        self.polled_at(now) >= WINDOW
    }

    /// Ends a window and begins the next, after so many preemptions in all.
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
    fn who_is_wanted_backs_off_for_longer_each_time() {
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
            assert!(backoff.may_poll(MANY, now), "nobody wants it");
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
            // While it sleeps, nothing counts.
            now += WINDOW.get();
            preemptions += 100;
            backoff = backoff.resume(preemptions, Ns(now));
        }
        assert!(backoff.is_due(Ns(now)));
        let backoff = backoff.end(preemptions, Ns(now));
        assert!(!backoff.may_poll(MANY, Ns(now)) && backoff.backoff == BACKOFF_MIN);
    }

    proptest! {
        /// Whatever is counted, polling is tried again.
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
