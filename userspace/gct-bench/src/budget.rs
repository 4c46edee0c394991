// SPDX-License-Identifier: GPL-2.0 OR MIT

//! How much more may be begun where time is short.

use std::time::{Duration, Instant};

/// Steps that take about as long as each other, until a time is over.
#[derive(Debug)]
pub(crate) struct Budget {
    until: Instant,
    begun: Instant,
    longest: Duration,
}

impl Budget {
    /// From now on, for so many seconds.
    pub(crate) fn new(seconds: u64) -> Self {
        let now = Instant::now();
        Self {
            until: now + Duration::from_secs(seconds),
            begun: now,
            longest: Duration::ZERO,
        }
    }

    /// Whether one more step would end in time, if it takes as long as the longest did. It begins now.
    pub(crate) fn admits(&mut self) -> bool {
        self.begun = Instant::now();
        self.begun + self.longest < self.until
    }

    /// The step has ended.
    pub(crate) fn done(&mut self) {
        self.longest = self.longest.max(self.begun.elapsed());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_end_too_late_is_not_begun() {
        let mut budget = Budget::new(1);
        assert!(budget.admits());
        std::thread::sleep(Duration::from_millis(20));
        budget.done();
        assert!(budget.admits());
        budget.longest = Duration::from_secs(2);
        assert!(!budget.admits());
        assert!(!Budget::new(0).admits());
    }
}
