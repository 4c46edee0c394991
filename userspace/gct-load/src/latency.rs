// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The latency-critical and the best-effort loop.

use crate::gpu::{Gpu, Stamp};
use anyhow::Result;
use serde::Serialize;
use std::time::{Duration, Instant};

/// What a latency-critical loop measured; times in microseconds.
#[derive(Debug, Serialize)]
pub(crate) struct Latency {
    launches: usize,
    p50_us: f64,
    p95_us: f64,
    p99_us: f64,
    max_us: f64,
}

/// Launches once a period and waits, for `seconds`.
pub(crate) fn critical(
    gpu: &Gpu,
    stamp: &mut Stamp,
    period: Duration,
    seconds: f64,
    high_priority: bool,
) -> Result<Latency> {
    let priority = if high_priority { -5 } else { 0 };
    let stream = gpu.context.new_stream_with_priority(priority)?;
    for _ in 0..20 {
        gpu.launch_stamp(&stream, stamp)?;
        stream.synchronize()?;
    }
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    let mut next = Instant::now();
    let mut times = Vec::new();
    while next < end {
        while Instant::now() < next {
            std::hint::spin_loop();
        }
        let start = Instant::now();
        gpu.launch_stamp(&stream, stamp)?;
        stream.synchronize()?;
        times.push(start.elapsed().as_secs_f64() * 1e6);
        next = (next + period).max(Instant::now());
    }
    times.sort_by(f64::total_cmp);
    // CAST: a rank below the number of samples.
    let rank = |q: f64| times[((times.len() - 1) as f64 * q) as usize];
    Ok(Latency {
        launches: times.len(),
        p50_us: rank(0.50),
        p95_us: rank(0.95),
        p99_us: rank(0.99),
        max_us: rank(1.0),
    })
}

/// What a best-effort loop achieved.
#[derive(Debug, Serialize)]
pub(crate) struct Throughput {
    launches: u64,
    launches_per_second: f64,
}

/// Keeps `queued` launches in flight for `seconds`.
pub(crate) fn best_effort(
    gpu: &Gpu,
    stamp: &mut Stamp,
    queued: usize,
    seconds: f64,
) -> Result<Throughput> {
    let stream = gpu.context.new_stream()?;
    let start = Instant::now();
    let mut launches = 0;
    let mut events = std::collections::VecDeque::new();
    while start.elapsed().as_secs_f64() < seconds {
        gpu.launch_stamp(&stream, stamp)?;
        events.push_back(stream.record_event(None)?);
        if events.len() > queued {
            if let Some(oldest) = events.pop_front() {
                oldest.synchronize()?;
                launches += 1;
            }
        }
    }
    let launches_per_second = launches as f64 / start.elapsed().as_secs_f64();
    stream.synchronize()?;
    Ok(Throughput {
        launches,
        launches_per_second,
    })
}
