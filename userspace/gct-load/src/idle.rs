// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Measures the processor time of a program that launches now and then, or never.

use crate::gpu::Gpu;
use anyhow::{Context, Result};
use serde::Serialize;
use std::time::{Duration, Instant};

/// The processor time of the whole process.
#[derive(Debug, Serialize)]
pub(crate) struct Idle {
    cpu_percent: f64,
    launches: usize,
    /// The time of a launch and the wait for its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    p50_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    p99_us: Option<f64>,
}

/// Returns the processor time of this process so far, in seconds.
fn cpu_seconds() -> Result<f64> {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is valid for the write, and every process has this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    let nanoseconds = u32::try_from(time.tv_nsec).context("nanoseconds of a second")?;
    // CAST: far fewer than 2^52.
    Ok(time.tv_sec as f64 + f64::from(nanoseconds) * 1e-9)
}

/// Sleeps until `due`.
fn sleep_until(due: Instant) {
    std::thread::sleep(due.saturating_duration_since(Instant::now()));
}

/// Launches once, waits until a worker would have gone to sleep, and measures. With a `rate` it
/// launches and waits that many times a second, and sleeps in between.
pub(crate) fn run(gpu: &Gpu, seconds: f64, rate: f64) -> Result<Idle> {
    let stream = gpu.context.new_stream()?;
    let mut stamp = Gpu::alloc_stamp(&stream, (100, 1, 1), 32, 1000)?;
    gpu.launch_stamp(&stream, &mut stamp)?;
    stream.synchronize()?;
    std::thread::sleep(Duration::from_millis(100));
    let mut times = Vec::new();
    let start = Instant::now();
    let before = cpu_seconds()?;
    let end = Duration::from_secs_f64(seconds);
    if rate > 0.0 {
        let period = Duration::from_secs_f64(1.0 / rate);
        let mut due = start;
        while start.elapsed() < end {
            let began = Instant::now();
            gpu.launch_stamp(&stream, &mut stamp)?;
            stream.synchronize()?;
            times.push(began.elapsed().as_secs_f64() * 1e6);
            due = (due + period).max(Instant::now());
            sleep_until(due);
        }
    }
    sleep_until(start + end);
    let took = start.elapsed().as_secs_f64();
    let cpu = cpu_seconds()? - before;
    times.sort_by(f64::total_cmp);
    // CAST: a rank below the number of samples.
    let rank = |quantile: f64| times.get(((times.len() as f64 - 1.0) * quantile) as usize);
    Ok(Idle {
        cpu_percent: cpu / took * 100.0,
        launches: times.len(),
        p50_us: rank(0.5).copied(),
        p99_us: rank(0.99).copied(),
    })
}
