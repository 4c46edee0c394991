// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Decides which owners of one rank yield to shorter requests of others: their time slices are
//! short (shortest job first, by the GPU's own scheduler).
//!
//! Terminology
//!   request  as for goals ([`request`](super::slo::request))
//!   length   the median of an owner's requests; [`LONGEST`] for one that does not pause
//!
//! ```text
//! length = median of a window (ENOUGH requests, or LOOKS looks); none without requests
//!          LONGEST if a request has not ended for so long
//! yields = length >= 4 * the shortest length of its rank      # 2 * while it yields
//! ```
//!
//! A driver's default slice is 2 ms. So who yields keeps a fifth of the GPU's time at least, beside
//! one neighbour that works all the time and reports that its requests are short.

use super::slo::histogram::Histogram;
use crate::units::{Ns, Sat, Us};

/// The time slice of who yields. A switch of contexts takes some 0.2 ms on an H100.
pub const SLICE: Us = Us(500);

/// The length of requests at and beyond which they are all alike.
pub const LONGEST: Us = Us(1_000_000);

/// The requests of a window, and the looks after which it ends with fewer.
const ENOUGH: u64 = 32;
const LOOKS: u32 = 10;

/// Lengths apart by this factor make the longer one yield, and by half of it keep it yielding.
const APART: u64 = 4;

/// Measures the length of an owner's requests.
#[derive(Clone, Debug)]
pub struct Requests {
    window: Histogram,
    looks: u32,
    length: Option<Us>,
}

impl Requests {
    /// Creates one without a length.
    pub const fn new() -> Self {
        Self {
            window: Histogram::NEW,
            looks: 0,
            length: None,
        }
    }

    /// Adds the requests that ended since the last look. `open` is the age of the one that has not
    /// ended, 0 without one. Returns the length; `None` if there were no requests.
    pub fn look(&mut self, ended: &Histogram, open: Ns) -> Option<Us> {
        self.window.add(ended);
        self.looks = self.looks.saturating_add(1);
        if self.window.count() >= ENOUGH || self.looks >= LOOKS {
            self.length = self.window.median().map(|median| median.min(LONGEST));
            self.window = Histogram::NEW;
            self.looks = 0;
        }
        match LONGEST.to_ns() {
            Some(longest) if open >= longest => Some(LONGEST),
            _ => self.length,
        }
    }
}

impl Default for Requests {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns whether an owner yields whose requests have this length. `shortest` is that of its rank,
/// and `yielded` the last decision.
pub fn yields(length: Us, shortest: Us, yielded: bool) -> bool {
    let apart = if yielded { APART / 2 } else { APART };
    Sat(length.get()) >= Sat(shortest.get()) * Sat(apart) && length > shortest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(time: u64, count: u64) -> Histogram {
        let mut requests = Histogram::NEW;
        (0..count).for_each(|_| requests.count_one(Us(time)));
        requests
    }

    #[test]
    fn a_length_is_the_median_of_a_window() {
        let mut requests = Requests::new();
        assert_eq!(requests.look(&of(1_400, 20), Ns(0)), None, "too few");
        let length = requests.look(&of(90_000, 12), Ns(0)).unwrap();
        assert!((1_400..1_600).contains(&length.get()), "{length:?}");
        for look in 1..=LOOKS {
            let length = requests.look(&of(20_000, 1), Ns(0)).unwrap();
            assert_eq!(length.get() >= 20_000, look == LOOKS, "{look}");
        }
        for _ in 0..LOOKS {
            assert!(requests.length.is_some());
            requests.look(&Histogram::NEW, Ns(0));
        }
        assert_eq!(requests.length, None, "idle");
    }

    #[test]
    fn requests_without_an_end_are_all_alike() {
        let second = LONGEST.to_ns().unwrap();
        let (mut old, mut new) = (Requests::new(), Requests::new());
        let old = old.look(&Histogram::NEW, second * 100).unwrap();
        let new = new.look(&Histogram::NEW, second).unwrap();
        assert!(!yields(old, new, false) && !yields(new, old, false));
        let mut service = Requests::new();
        let length = service.look(&of(1_000, 40), second - Ns(1)).unwrap();
        assert!(yields(old, length, false) && !yields(length, old, false));
        let mut slow = Requests::new();
        let slow = slow.look(&of(60_000_000, 40), Ns(0)).unwrap();
        assert!(!yields(slow, old, true), "nor are those that end late");
    }

    #[test]
    fn it_takes_more_to_begin_than_to_go_on() {
        assert!(!yields(Us(3_999), Us(1_000), false));
        assert!(yields(Us(4_000), Us(1_000), false));
        assert!(yields(Us(2_000), Us(1_000), true));
        assert!(!yields(Us(1_999), Us(1_000), true));
        assert!(!yields(Us(0), Us(0), true), "nobody yields to itself");
    }
}
