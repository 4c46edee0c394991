// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Measures times on a machine that may be busy: the operations alternate, and the best of many
//! rounds counts.

use std::time::Instant;

use crate::operations::{Bench, Operation};
use crate::segment::PLACES;
use crate::Capture;

/// Number of runs of an operation between two readings of the clock.
const BATCH: u32 = 400;
/// Number of batches of each operation at each position.
pub(crate) const ROUNDS: usize = 400;

/// The times of one operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Time {
    /// The fastest batch, in nanoseconds per run. Like the others it is the mean over all positions
    /// of a segment.
    pub(crate) best_ns: f64,
    /// The median of all batches.
    pub(crate) median_ns: f64,
    /// The slowest of the fastest tenth of the batches. Its distance to the best shows how much the
    /// best depends on luck.
    pub(crate) tenth_ns: f64,
}

/// The times of a capture.
pub(crate) struct Measured {
    pub(crate) name: String,
    pub(crate) words: usize,
    /// In the order of [`Operation::ALL`].
    pub(crate) times: [Time; 4],
}

impl Measured {
    /// Returns the ratio of an operation's time to the copy's.
    pub(crate) fn ratio(&self, operation: usize) -> f64 {
        self.times[operation].best_ns / self.times[0].best_ns
    }
}

/// Measures all operations on a capture. Each round runs them at every position, so that a
/// disturbance affects all positions alike.
pub(crate) fn measure(mut capture: Capture) -> Measured {
    let mut bench = Bench::new();
    let mut batches: [[Vec<f64>; PLACES]; 4] = Default::default();
    for _ in 0..ROUNDS {
        for place in 0..PLACES {
            for segment in &mut capture.segments {
                segment.place(place);
            }
            for (operation, batches) in Operation::ALL.into_iter().zip(&mut batches) {
                let start = Instant::now();
                for _ in 0..BATCH {
                    bench.run(operation, &mut capture.segments);
                }
                let nanoseconds = start.elapsed().as_secs_f64() * 1e9;
                batches[place].push(nanoseconds / f64::from(BATCH));
            }
        }
    }
    Measured {
        name: capture.name,
        words: capture.segments.iter().map(|segment| segment.len()).sum(),
        times: batches.map(Time::over_places),
    }
}

impl Time {
    /// Returns the mean over all positions.
    fn over_places(mut places: [Vec<f64>; PLACES]) -> Self {
        for batches in &mut places {
            batches.sort_by(f64::total_cmp);
        }
        // CAST: a small count.
        let mean =
            |at: usize| places.iter().map(|batches| batches[at]).sum::<f64>() / PLACES as f64;
        Self {
            best_ns: mean(0),
            median_ns: mean(ROUNDS / 2),
            tenth_ns: mean(ROUNDS / 10),
        }
    }
}
