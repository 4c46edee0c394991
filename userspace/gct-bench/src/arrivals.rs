// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Makes the arrivals of requests: an open loop, which no slow answer holds back.
//!
//! Each pattern is a rate over time, relative to the mean. Within a stretch of one rate, arrivals
//! are a Poisson process. A seed makes the same arrivals on every machine.

use clap::ValueEnum;
use fastrand::Rng;

/// Requests of a burst and of the pause behind it, in the mean, as a multiple of the mean time
/// between requests; and their rates. Together they have the mean rate.
const BURST: (f64, f64) = (10.0, 2.5);
const PAUSE: (f64, f64) = (30.0, 0.5);
/// Stretches of a window that stand for minutes of a trace, and the exponent of their rates.
const MINUTES: usize = 20;
const TAIL: f64 = 1.5;
/// The rates of a service over a day, in stretches of equal length.
pub(crate) const DAY: [f64; 8] = [0.4, 1.0, 1.6, 1.8, 1.2, 0.6, 0.4, 1.0];

/// A pattern of arrivals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Arrivals {
    /// At one rate
    #[default]
    Poisson,
    /// Bursts at 2.5 times the rate, pauses at half of it, both of random length
    Bursty,
    /// Like minutes of the Azure functions: 20 stretches whose rates have a heavy tail
    Maf,
    /// 0.4 to 1.8 times the rate, in eight stretches
    Day,
}

impl Arrivals {
    /// Returns what the title of a table says of these arrivals.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Poisson => "",
            Self::Bursty => ", bursty",
            Self::Maf => ", rates with a heavy tail",
            Self::Day => ", rates of a day",
        }
    }

    /// Returns when requests arrive, in seconds from the start of a window. Some arrive in the
    /// `lead` before it, at the mean rate.
    pub(crate) fn times(self, rate: f64, seconds: f64, lead: f64, seed: u64) -> Vec<f64> {
        let mut random = Rng::with_seed(seed);
        let mut times = Vec::new();
        poisson(&mut times, &mut random, -lead, 0.0, rate);
        let mut begin = 0.0;
        for (length, relative) in self.stretches(rate, seconds, &mut random) {
            let end = (begin + length).min(seconds);
            poisson(&mut times, &mut random, begin, end, rate * relative);
            begin = end;
        }
        times
    }

    /// Returns lengths in seconds, and rates relative to the mean. They fill the window.
    fn stretches(self, rate: f64, seconds: f64, random: &mut Rng) -> Vec<(f64, f64)> {
        match self {
            Self::Poisson => vec![(seconds, 1.0)],
            Self::Bursty => bursts(rate, seconds, random),
            Self::Maf => {
                let rates: Vec<f64> = (0..MINUTES)
                    .map(|_| unit(random).powf(-1.0 / TAIL))
                    .collect();
                // One window holds too few minutes for the mean of a heavy tail.
                let mean = rates.iter().sum::<f64>() / MINUTES as f64;
                let length = seconds / MINUTES as f64;
                rates.iter().map(|rate| (length, rate / mean)).collect()
            }
            Self::Day => DAY.map(|rate| (seconds / DAY.len() as f64, rate)).into(),
        }
    }
}

/// Returns bursts and pauses by turns. A window begins in one of them as likely as any moment does.
fn bursts(rate: f64, seconds: f64, random: &mut Rng) -> Vec<(f64, f64)> {
    let mut all = Vec::new();
    let mut burst = unit(random) < BURST.0 / (BURST.0 + PAUSE.0);
    let mut left = seconds;
    while left > 0.0 && usable(rate) {
        let (requests, relative) = if burst { BURST } else { PAUSE };
        let length = exponential(random) * requests / rate;
        all.push((length, relative));
        left -= length;
        burst = !burst;
    }
    all
}

/// Adds the arrivals of a Poisson process from `begin` until `end`.
fn poisson(times: &mut Vec<f64>, random: &mut Rng, begin: f64, end: f64, rate: f64) {
    if !usable(rate) {
        return;
    }
    let mut due = begin + exponential(random) / rate;
    while due < end {
        times.push(due);
        due += exponential(random) / rate;
    }
}

/// Returns whether a second at this rate has an end.
fn usable(rate: f64) -> bool {
    rate > 0.0 && rate < 1e6
}

/// Returns a random number above 0, at most 1.
fn unit(random: &mut Rng) -> f64 {
    1.0 - random.f64()
}

/// Returns a random number of mean 1 without memory.
fn exponential(random: &mut Rng) -> f64 {
    -unit(random).ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: f64 = 500.0;
    const SECONDS: f64 = 2.0;
    const LEAD: f64 = 0.3;

    fn all() -> impl Iterator<Item = Arrivals> {
        Arrivals::value_variants().iter().copied()
    }

    /// Returns the arrivals within the window.
    fn within(arrivals: Arrivals, seed: u64) -> Vec<f64> {
        let mut times = arrivals.times(RATE, SECONDS, LEAD, seed);
        times.retain(|time| *time >= 0.0);
        times
    }

    /// Returns the variance of the numbers of arrivals in 20 parts of a window, to their mean. It
    /// is 1 for a Poisson process.
    fn dispersion(arrivals: Arrivals) -> f64 {
        let mut counts = Vec::new();
        for seed in 0..200 {
            let mut parts = [0.0; 20];
            for time in within(arrivals, seed) {
                parts[(time / SECONDS * 20.0) as usize] += 1.0;
            }
            counts.extend(parts);
        }
        let mean = counts.iter().sum::<f64>() / counts.len() as f64;
        let squares = counts.iter().map(|count| (count - mean) * (count - mean));
        squares.sum::<f64>() / counts.len() as f64 / mean
    }

    #[test]
    fn a_seed_makes_the_same_arrivals() {
        for arrivals in all() {
            let times = |seed| arrivals.times(RATE, SECONDS, LEAD, seed);
            assert_eq!(times(7), times(7));
            assert_ne!(times(7), times(8));
        }
    }

    #[test]
    fn arrivals_are_in_order_and_within_the_window() {
        for arrivals in all() {
            for seed in 0..50 {
                let times = arrivals.times(RATE, SECONDS, LEAD, seed);
                assert!(times.is_sorted());
                assert!(times.iter().all(|time| (-LEAD..SECONDS).contains(time)));
                assert!(times[0] < 0.0);
            }
        }
    }

    #[test]
    fn every_pattern_has_the_mean_rate() {
        for arrivals in all() {
            let count: usize = (0..400).map(|seed| within(arrivals, seed).len()).sum();
            let ratio = count as f64 / (400.0 * RATE * SECONDS);
            assert!((ratio - 1.0).abs() < 0.02, "{arrivals:?}: {ratio}");
        }
    }

    #[test]
    fn patterns_differ_in_their_bursts() {
        let of = |arrivals| dispersion(arrivals);
        let poisson = of(Arrivals::Poisson);
        assert!((poisson - 1.0).abs() < 0.1, "{poisson}");
        assert!(of(Arrivals::Bursty) > 5.0);
        assert!(of(Arrivals::Maf) > 10.0);
    }

    #[test]
    fn a_day_has_its_rates() {
        let mut counts = [0.0; DAY.len()];
        for seed in 0..200 {
            for time in within(Arrivals::Day, seed) {
                counts[(time / SECONDS * DAY.len() as f64) as usize] += 1.0;
            }
        }
        for (count, rate) in counts.iter().zip(DAY) {
            let expected = 200.0 * RATE * rate * SECONDS / DAY.len() as f64;
            assert!((count / expected - 1.0).abs() < 0.03, "{count} {expected}");
        }
    }

    #[test]
    fn a_rate_without_end_has_no_arrivals() {
        for rate in [0.0, -1.0, f64::INFINITY, f64::NAN] {
            for arrivals in all() {
                assert!(arrivals.times(rate, SECONDS, LEAD, 1).is_empty());
            }
        }
    }
}
