// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Times on a machine that may be busy: the operations take turns, and the best of many rounds counts.

use std::time::Instant;

use crate::operations::{Bench, Operation};
use crate::segment::PLACES;
use crate::Capture;

/// How often an operation runs between two looks at the clock.
const BATCH: u32 = 400;
/// How many times each operation gets its turn, at each place.
pub(crate) const ROUNDS: usize = 400;

/// What one operation took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Time {
    /// The fastest batch, in nanoseconds for one run; as the others, the mean over all places of a segment.
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

/// Measures all operations on a capture. In each round they run at every place, so that what disturbs the machine for a
/// while disturbs no place alone.
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
    /// The mean over all places of what was measured at each.
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
