// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Counts durations of requests, eight buckets to a doubling, so each is known to an eighth.

use crate::units::{Sat, Us};

/// The number of buckets. The last begins at 63 s.
pub const BUCKETS: usize = 192;

const PER_OCTAVE_BITS: u32 = 3;

/// The number of requests by their durations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Histogram([u64; BUCKETS]);

/// Returns the bucket of a duration.
pub fn bucket(time: Us) -> usize {
    let time = time.get();
    let exponent = time.checked_ilog2().unwrap_or(0);
    let Some(shift) = exponent.checked_sub(PER_OCTAVE_BITS) else {
        // CAST: below 8.
        return time as usize;
    };
    // CAST: below 2^32.
    let within = (time.checked_shr(shift).unwrap_or(0) & 7) as usize;
    let octave = Sat(shift as usize) + Sat(1);
    let bucket = octave * Sat(8) + Sat(within);
    bucket.0.min(BUCKETS.saturating_sub(1))
}

/// Returns the least duration that is longer than all of a bucket. That of the last is the largest.
fn end(at: usize) -> Us {
    // CAST: buckets are few.
    let next = Sat(at as u64) + Sat(1);
    match next.0 / 8 {
        _ if next >= Sat(BUCKETS as u64) => Us::MAX,
        0 => Us(next.0),
        octave => Us(8 | next.0 & 7) << u32::try_from(octave).unwrap_or(0).saturating_sub(1),
    }
}

impl Histogram {
    /// Nothing counted.
    pub const NEW: Self = Self([0; BUCKETS]);

    /// Creates one with these counts.
    pub fn of(counts: [u64; BUCKETS]) -> Self {
        Self(counts)
    }

    /// Counts a request.
    pub fn count_one(&mut self, time: Us) {
        if let Some(count) = self.0.get_mut(bucket(time)) {
            *count = count.saturating_add(1);
        }
    }

    /// Adds those of another.
    pub fn add(&mut self, more: &Self) {
        for (count, more) in self.0.iter_mut().zip(more.0) {
            *count = count.saturating_add(more);
        }
    }

    /// Returns what was counted since `earlier`. A count that went back, which only a liar reports,
    /// gives 0.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut counts = self.0;
        for (count, earlier) in counts.iter_mut().zip(earlier.0) {
            *count = count.saturating_sub(earlier);
        }
        Self(counts)
    }

    /// Returns the number of requests.
    pub fn count(&self) -> u64 {
        self.0.iter().fold(Sat(0), |sum, count| sum + Sat(*count)).0
    }

    /// Returns how many lasted longer than `time`, or are in its bucket and may have.
    pub fn over(&self, time: Us) -> u64 {
        let counts = (0..BUCKETS).zip(&self.0);
        let over = counts.filter(|(at, _)| end(*at) > time + Us(1));
        over.fold(Sat(0), |sum, (_, count)| sum + Sat(*count)).0
    }

    /// Returns the end of the bucket with the 99th percentile; 0 if nothing was counted.
    pub fn p99(&self) -> Us {
        self.exceeded_by(self.count() / 100)
    }

    /// Returns the end of the bucket with the median; `None` if nothing was counted.
    pub fn median(&self) -> Option<Us> {
        let count = self.count();
        (count > 0).then(|| self.exceeded_by(count / 2))
    }

    /// Returns the end of the last bucket that more than `beyond` requests are in or behind; 0 if
    /// there is none.
    fn exceeded_by(&self, beyond: u64) -> Us {
        let mut above = Sat(0);
        for (at, count) in (0..BUCKETS).zip(&self.0).rev() {
            above += Sat(*count);
            if above > Sat(beyond) {
                return end(at);
            }
        }
        Us(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_duration_is_in_the_bucket_that_ends_behind_it() {
        let mut last = 0;
        for time in (0..5_000).chain([1 << 20, (1 << 25) + 7, 62_000_000]) {
            let at = bucket(Us(time));
            assert!(at >= last, "{time}");
            last = at;
            assert!(end(at) > Us(time), "{time}: {:?}", end(at));
            assert!(at == 0 || end(at - 1) <= Us(time), "{time}");
            let width = end(at).get() - end(at.max(1) - 1).get();
            assert!(at == 0 || width <= 1 + time / 8, "{time}: {width}");
        }
        assert_eq!((bucket(Us::MAX), end(BUCKETS - 1)), (BUCKETS - 1, Us::MAX));
    }

    #[test]
    fn one_in_a_hundred_may_be_longer() {
        let mut all = Histogram::NEW;
        assert_eq!(all.p99(), Us(0));
        (0..99).for_each(|_| all.count_one(Us(100)));
        all.count_one(Us(5_000));
        let short = end(bucket(Us(100)));
        assert_eq!((all.count(), all.p99(), all.over(Us(104))), (100, short, 1));
        assert_eq!((all.over(Us(103)), all.over(Us(90))), (1, 100));
        let before = all;
        all.count_one(Us(5_000));
        assert_eq!(all.p99(), end(bucket(Us(5_000))));
        assert_eq!(all.since(&before).count(), 1);
        assert_eq!(before.since(&all), Histogram::NEW);
    }
}
