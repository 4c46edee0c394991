// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Decides whether another step fits a time limit.

use std::time::{Duration, Instant};

/// Steps of about equal length, until a time limit.
#[derive(Debug)]
pub(crate) struct Budget {
    until: Instant,
    begun: Instant,
    longest: Duration,
}

impl Budget {
    /// Starts a time limit of `seconds`.
    pub(crate) fn new(seconds: u64) -> Self {
        let now = Instant::now();
        Self {
            until: now + Duration::from_secs(seconds),
            begun: now,
            longest: Duration::ZERO,
        }
    }

    /// Returns whether one more step fits, if it takes as long as the longest so far. The step
    /// starts now.
    pub(crate) fn admits(&mut self) -> bool {
        self.begun = Instant::now();
        self.begun + self.longest < self.until
    }

    /// Ends the step.
    pub(crate) fn done(&mut self) {
        self.longest = self.longest.max(self.begun.elapsed());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_that_would_end_too_late_does_not_start() {
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
