// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Exactness: random launches, each followed by a kernel that depends on it.

use crate::gpu::{Gpu, Stamp};
use anyhow::{ensure, Result};
use serde::Serialize;

/// What was launched and what went wrong with it; all counts.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Report {
    launches: u64,
    blocks: u64,
    /// Blocks that a dependent kernel found not to have run, or to have run twice.
    stale_or_repeated: u64,
    /// The same, as the host saw it after synchronising the stream.
    wrong_at_host: u64,
}

/// A xorshift generator: the same seed launches the same grids.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number in `1..=max`.
    fn upto(&mut self, max: u64) -> u32 {
        // CAST: `max` is far below 2^32.
        (self.next() % max + 1) as u32
    }
}

/// A 1-D, 2-D or 3-D grid of at most about 8,000 blocks.
fn random_grid(random: &mut Random) -> (u32, u32, u32) {
    match random.next() % 3 {
        0 => (random.upto(8000), 1, 1),
        1 => (random.upto(90), random.upto(90), 1),
        _ => (random.upto(20), random.upto(20), random.upto(20)),
    }
}

/// Launches `rounds` random grids on `streams` streams and checks each.
pub(crate) fn run(gpu: &Gpu, seed: u64, rounds: u32, streams: usize) -> Result<Report> {
    ensure!(streams > 0, "at least one stream is needed");
    let mut random = Random(seed | 1);
    let streams = (0..streams)
        .map(|_| gpu.context.new_stream())
        .collect::<Result<Vec<_>, _>>()?;
    let mut report = Report::default();
    for round in 0..rounds {
        // CAST: a remainder of a count of streams.
        let stream = &streams[round as usize % streams.len()];
        let cycles = random.next() % 4000;
        let threads = 32 * random.upto(8);
        let mut stamp: Stamp = Gpu::stamp_room(stream, random_grid(&mut random), threads, cycles)?;
        let mut wrong = stream.alloc_zeros::<u32>(1)?;
        let repeats = random.upto(4);
        for repeat in 1..=repeats {
            gpu.launch_stamp(stream, &mut stamp)?;
            gpu.launch_check(stream, &stamp, repeat, &mut wrong)?;
        }
        stream.synchronize()?;
        let ran = stream.clone_dtoh(&stamp.ran)?;
        let wrong = stream.clone_dtoh(&wrong)?;
        report.launches += 2 * u64::from(repeats);
        report.blocks += u64::from(stamp.blocks()) * u64::from(repeats);
        report.stale_or_repeated += wrong.iter().map(|&w| u64::from(w)).sum::<u64>();
        // CAST: a count of blocks.
        report.wrong_at_host += ran.iter().filter(|&&n| n != repeats).count() as u64;
    }
    Ok(report)
}

impl Report {
    /// Whether every block ran exactly once a launch, in order.
    pub(crate) fn exact(&self) -> bool {
        self.stale_or_repeated == 0 && self.wrong_at_host == 0
    }
}
