// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Times on a machine that may be busy: the operations take turns, and the best of many rounds counts.

use std::time::Instant;

use crate::operations::{Bench, Operation};
use crate::Capture;

/// How often an operation runs between two looks at the clock.
const BATCH: u32 = 400;
/// How many times each operation gets its turn.
pub(crate) const ROUNDS: usize = 400;

/// What one operation took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Time {
    /// The fastest batch, in nanoseconds for one run.
    pub(crate) best_ns: f64,
    /// The median of all batches.
    pub(crate) median_ns: f64,
    /// The slowest of the fastest tenth of the batches: how far the best is a matter of luck.
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
    /// How many times as long as the copy an operation takes.
    pub(crate) fn ratio(&self, operation: usize) -> f64 {
        self.times[operation].best_ns / self.times[0].best_ns
    }
}

/// Measures all operations on a capture.
pub(crate) fn measure(mut capture: Capture) -> Measured {
    let mut bench = Bench::new();
    let mut times: [Vec<f64>; 4] = Default::default();
    for _ in 0..ROUNDS {
        for (operation, times) in Operation::ALL.into_iter().zip(&mut times) {
            let start = Instant::now();
            for _ in 0..BATCH {
                bench.run(operation, &mut capture.segments);
            }
            times.push(start.elapsed().as_secs_f64() * 1e9 / f64::from(BATCH));
        }
    }
    Measured {
        name: capture.name,
        words: capture.segments.iter().map(Vec::len).sum(),
        times: times.map(|mut times| {
            times.sort_by(f64::total_cmp);
            Time {
                best_ns: times[0],
                median_ns: times[times.len() / 2],
                tenth_ns: times[times.len() / 10],
            }
        }),
    }
}
