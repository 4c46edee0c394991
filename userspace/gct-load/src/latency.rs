// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The latency-critical and the best-effort loop.

use crate::gpu::{Gpu, Stamp};
use anyhow::{ensure, Result};
use serde::Serialize;
use std::collections::VecDeque;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// What a latency-critical loop measured; times in microseconds.
#[derive(Debug, Serialize)]
pub(crate) struct Latency {
    launches: usize,
    p50_us: f64,
    p95_us: f64,
    p99_us: f64,
    max_us: f64,
}

/// When to measure. The loop runs from the beginning, so that its neighbours have it beside
/// them all the time that they measure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    /// Seconds of Unix time, or 0 for now.
    pub(crate) start_at: f64,
    /// For how long.
    pub(crate) seconds: f64,
}

impl Window {
    /// The instants between which launches count.
    fn instants(&self) -> Result<(Instant, Instant)> {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64();
        let wait = (self.start_at - unix).max(0.0);
        let start = Instant::now() + Duration::from_secs_f64(wait);
        Ok((start, start + Duration::from_secs_f64(self.seconds)))
    }
}

/// Launches once a period and waits.
pub(crate) fn critical(
    gpu: &Gpu,
    stamp: &mut Stamp,
    period: Duration,
    window: Window,
    high_priority: bool,
) -> Result<Latency> {
    let priority = if high_priority { -5 } else { 0 };
    let stream = gpu.context.new_stream_with_priority(priority)?;
    for _ in 0..20 {
        gpu.launch_stamp(&stream, stamp)?;
        stream.synchronize()?;
    }
    let (begin, end) = window.instants()?;
    let mut next = Instant::now();
    let mut times = Vec::new();
    while next < end {
        while Instant::now() < next {
            std::hint::spin_loop();
        }
        let start = Instant::now();
        gpu.launch_stamp(&stream, stamp)?;
        stream.synchronize()?;
        if start >= begin {
            times.push(start.elapsed().as_secs_f64() * 1e6);
        }
        next = (next + period).max(Instant::now());
    }
    ensure!(!times.is_empty(), "nothing was launched in the time given");
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

/// Keeps `queued` launches in flight.
pub(crate) fn best_effort(
    gpu: &Gpu,
    stamp: &mut Stamp,
    queued: usize,
    window: Window,
) -> Result<Throughput> {
    let stream = gpu.context.new_stream()?;
    let (begin, end) = window.instants()?;
    let mut launches = 0;
    let mut events = VecDeque::new();
    let mut first = None;
    let mut last = begin;
    while last < end {
        gpu.launch_stamp(&stream, stamp)?;
        events.push_back(stream.record_event(None)?);
        if events.len() > queued {
            if let Some(oldest) = events.pop_front() {
                oldest.synchronize()?;
            }
            last = Instant::now();
            // Whole launches are counted, from the end of one to the end of another.
            match first {
                None if last >= begin => first = Some(last),
                None => {}
                Some(_) => launches += 1,
            }
        }
    }
    let seconds = first.map_or(0.0, |first| (last - first).as_secs_f64());
    ensure!(
        launches > 0 && seconds > 0.0,
        "no launch ended in the time given"
    );
    stream.synchronize()?;
    Ok(Throughput {
        launches,
        // CAST: far fewer than 2^52.
        launches_per_second: launches as f64 / seconds,
    })
}
