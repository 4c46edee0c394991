// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Runs streams that wait for each other on the GPU, as collectives do: launches that are submitted
//! first end after the launch that is submitted last.

use crate::cli::Streams;
use crate::gpu::Gpu;
use anyhow::Result;
use serde::Serialize;
use std::time::Instant;

/// The times of the rounds.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    rounds: u32,
    /// Launches whose wait timed out.
    late: u32,
    median_ms: f64,
    max_ms: f64,
}

/// Runs the rounds sequentially.
pub(crate) fn run(gpu: &Gpu, work: &Streams) -> Result<Report> {
    let streams = [
        gpu.context.new_stream()?,
        gpu.context.new_stream()?,
        gpu.context.new_stream()?,
    ];
    let [first, second, third] = &streams;
    let words = third.alloc_zeros::<u32>(2)?;
    let mut stamp = Gpu::alloc_stamp(third, (32, 1, 1), 64, 20_000)?;
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
