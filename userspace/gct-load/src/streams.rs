// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Streams that wait for each other on the GPU, as collectives do: what is submitted first ends when what is submitted last has run.

use crate::cli::Streams;
use crate::gpu::Gpu;
use anyhow::Result;
use serde::Serialize;
use std::time::Instant;

/// What came of it.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    rounds: u32,
    /// Launches that waited until their limit.
    late: u32,
    median_ms: f64,
    max_ms: f64,
}

/// Runs the rounds one after the other.
pub(crate) fn run(gpu: &Gpu, work: &Streams) -> Result<Report> {
    let streams = [
        gpu.context.new_stream()?,
        gpu.context.new_stream()?,
        gpu.context.new_stream()?,
    ];
    let [first, second, third] = &streams;
    let words = third.alloc_zeros::<u32>(2)?;
    let mut stamp = Gpu::stamp_room(third, (32, 1, 1), 64, 20_000)?;
    third.synchronize()?;
    let limit_ns = work.limit_ms.saturating_mul(1_000_000);
    let mut times = Vec::new();
    for round in 1..=work.rounds {
        let start = Instant::now();
        for waiting in [first, second] {
            gpu.launch_wait(waiting, &words, round, limit_ns)?;
        }
        for _ in 0..work.between {
            gpu.launch_stamp(third, &mut stamp)?;
        }
        if !work.never {
            gpu.launch_raise(third, &words, round)?;
        }
        for stream in &streams {
            stream.synchronize()?;
        }
        times.push(start.elapsed().as_secs_f64() * 1000.0);
    }
    times.sort_by(f64::total_cmp);
    let words = third.clone_dtoh(&words)?;
    Ok(Report {
        rounds: work.rounds,
        late: words[1],
        median_ms: times.get(times.len() / 2).copied().unwrap_or(0.0),
        max_ms: times.last().copied().unwrap_or(0.0),
    })
}
