// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Measures how long the requests of a process take.
//!
//! ```text
//! period      from the round that first sees a launch, published or held back, to the round that
//!             sees the last end before a pause of GAP
//! request     the work of a period up to a wait of the program that returned when nothing of it
//!             was pending, or up to the end of the period
//! duration    its own time + (its first launch - that of the period) / sqrt(requests before it)
//! ```
//!
//! What a program does before its first launch and after its last end is no part of a request. A
//! request that follows another one without a pause has probably waited in the program's own queue,
//! and nobody sees since when. In a period of n equal requests whose arrivals are random, the queue
//! is of the order of sqrt(n) of them. That is the second part; a test compares it with queues.
//!
//! A program that launches again whenever it has waited looks the same. So a new period begins
//! after PERIOD_MAX requests. Where the backend does not see waits, a period is one request.

use crate::policy::tpc::SWITCHES;
use crate::units::{Ns, Sat};

/// The shortest pause between two periods: as long as others wait behind the last work of an
/// earlier rank by turns. A shorter one is part of a request, such as the time in which the host
/// prepares the next launch.
pub const GAP: Ns = SWITCHES;

/// The most requests of a period.
const PERIOD_MAX: Sat<u64> = Sat(256);

/// The request of a process.
#[derive(Clone, Copy, Debug, Default)]
pub struct Request {
    /// When the period began.
    period: Option<Ns>,
    /// The requests of the period that have ended.
    ended: Sat<u64>,
    /// When the request began.
    since: Option<Ns>,
    /// When its last work had ended.
    idle: Option<Ns>,
}

impl Request {
    /// Records whether the process has work. Returns the duration of a request that is over.
    pub fn see(&mut self, busy: bool, now: Ns) -> Option<Ns> {
        let over = self.idle.filter(|idle| now - *idle >= GAP);
        let ended = over.and_then(|idle| Some(idle - self.came()?));
        if over.is_some() {
            *self = Self::default();
        }
        if busy {
            self.period = self.period.or(Some(now));
            self.since = self.since.or(Some(now));
            self.idle = None;
        } else if self.period.is_some() {
            self.idle = self.idle.or(Some(now));
        }
        ended
    }

    /// Records that a wait of the program has returned, when nothing of it was pending. Returns the
    /// duration of the request that this ends.
    pub fn waited(&mut self, now: Ns) -> Option<Ns> {
        let came = self.came()?;
        let idle = *self.idle.get_or_insert(now);
        self.since = None;
        self.ended += 1;
        if self.ended >= PERIOD_MAX {
            *self = Self::default();
        }
        Some(idle - came)
    }

    /// Begins anew at `now`, after a time in which waits were not seen.
    pub fn restart(&mut self, now: Ns) {
        let since = self.since.map(|_| now);
        *self = Self {
            period: since,
            since,
            ended: Sat(0),
            idle: self.idle,
        };
    }

    /// Returns when the request came that has work now.
    pub fn open(&self) -> Option<Ns> {
        self.came().filter(|_| self.idle.is_none())
    }

    /// Returns when the request is taken to have come that is not over.
    fn came(&self) -> Option<Ns> {
        let (period, since) = self.period.zip(self.since)?;
        // 256 times the root. The first request of a period begins with it.
        let root = root((self.ended * Sat(1 << 16)).0).max(1);
        Some(since - (since - period) * 256 / root)
    }
}

/// Returns the square root of a number, to 1, by Heron's method. The standard library's may panic.
fn root(number: u64) -> u64 {
    let bits = u64::BITS.saturating_sub(number.leading_zeros());
    let above = 1u64.checked_shl(bits.saturating_add(1) / 2).unwrap_or(0);
    let closer = |root: u64, _| root.saturating_add(number.checked_div(root).unwrap_or(0)) / 2;
    (0..5).fold(above, closer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_pause_is_part_of_a_request_and_a_long_one_ends_it() {
        let mut request = Request::default();
        let gap = GAP.get();
        let at = |ns: u64| Ns(1_000_000_000 + ns);
        assert_eq!(request.see(false, at(0)), None);
        assert_eq!(request.see(true, at(10)), None);
        assert_eq!(request.open(), Some(at(10)));
        assert_eq!(request.see(true, at(100)), None);
        assert_eq!(request.see(false, at(200)), None);
        assert_eq!(request.open(), None);
        assert_eq!(request.see(false, at(200 + gap - 1)), None);
        assert_eq!(request.see(true, at(200 + gap - 1)), None, "it goes on");
        assert_eq!(request.see(false, at(1_000 + gap)), None);
        assert_eq!(request.see(false, at(1_500 + gap)), None);
        let next = at(1_000 + 2 * gap);
        assert_eq!(request.see(true, next), Some(Ns(990 + gap)));
        assert_eq!(request.open(), Some(next));
    }

    #[test]
    fn a_root_is_that_of_the_standard_library() {
        for number in (0..5_000).chain((0..64).map(|bit| u64::MAX >> bit)) {
            assert!(root(number).abs_diff(number.isqrt()) <= 1, "{number}");
        }
    }

    #[test]
    fn a_wait_ends_a_request_without_a_pause() {
        let mut request = Request::default();
        assert_eq!(request.waited(Ns(5)), None, "nothing was launched");
        request.see(true, Ns(10));
        request.see(false, Ns(40));
        assert_eq!(request.waited(Ns(45)), Some(Ns(30)), "to its last end");
        assert_eq!(request.waited(Ns(46)), None, "once");
        assert_eq!(request.see(true, Ns(50)), None);
        assert_eq!(request.open(), Some(Ns(10)), "it came meanwhile");
        assert_eq!(request.waited(Ns(70)), Some(Ns(60)));
        assert_eq!(request.open(), None);
        let next = Ns(70) + GAP;
        assert_eq!(request.see(true, next), None, "it was counted");
        assert_eq!(request.open(), Some(next), "behind a pause");
    }

    #[test]
    fn a_program_that_never_pauses_has_requests_of_some_length() {
        const WORK: u64 = 1_000_000;
        let (mut request, mut now) = (Request::default(), 1 << 40);
        for _ in 0..10_000 {
            request.see(true, Ns(now));
            now += WORK;
            let took = request.waited(Ns(now)).unwrap();
            assert!((WORK..=17 * WORK).contains(&took.get()), "{took:?}");
        }
    }

    #[test]
    fn what_was_not_seen_is_no_queue() {
        let mut request = Request::default();
        request.see(true, Ns(1));
        let hour = Ns(3_600_000_000_000);
        request.restart(hour);
        assert_eq!(request.waited(hour + Ns(5)), Some(Ns(5)));
        request.see(true, hour + Ns(6));
        assert_eq!(request.waited(hour + Ns(9)), Some(Ns(9)));
    }

    /// Checks requests of a service with one queue and random arrivals against the time from the
    /// arrival to the answer, which only the service knows. The work of requests is equal, or
    /// random with the same mean. Those that are not much longer than a pause are overestimated.
    #[test]
    fn requests_in_a_queue_are_measured_with_their_wait() {
        const HOST: u64 = 20_000;
        for (work, is_random, loads, range) in [
            (1_400_000, false, &[30, 50, 70, 80][..], 0.8..1.3),
            (1_400_000, true, &[30, 50, 70, 80], 0.6..1.2),
            (100_000, false, &[30], 1.8..2.4),
        ] {
            for &load in loads {
                let mut state: u64 = load;
                // A linear congruential generator, and the time of a memoryless process from it.
                let mut random = |mean: f64| {
                    state = state
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1);
                    (-(((state >> 11) + 1) as f64 / (1u64 << 53) as f64).ln() * mean) as u64
                };
                let mut request = Request::default();
                let (mut came, mut free) = (0u64, 0u64);
                let (mut real, mut seen) = (std::vec![], std::vec![]);
                for _ in 0..20_000 {
                    came += random((work + HOST) as f64 * 100.0 / load as f64);
                    let start = came.max(free) + HOST;
                    free = start
                        + match is_random {
                            true => random(work as f64),
                            false => work,
                        };
                    seen.extend(request.see(true, Ns(start)));
                    request.see(false, Ns(free));
                    seen.extend(request.waited(Ns(free)));
                    real.push(Ns(free - came));
                }
                let quantile = |times: &mut std::vec::Vec<Ns>| {
                    times.sort_unstable();
                    times[times.len() * 99 / 100].get()
                };
                assert_eq!(seen.len(), real.len());
                let ratio = quantile(&mut seen) as f64 / quantile(&mut real) as f64;
                assert!(range.contains(&ratio), "{work} {is_random} {load}: {ratio}");
            }
        }
    }
}
