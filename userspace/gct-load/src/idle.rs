// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Measures the processor time of a program that holds a context and is idle.

use crate::gpu::Gpu;
use anyhow::{Context, Result};
use serde::Serialize;
use std::time::Duration;

/// The processor time of the whole process.
#[derive(Debug, Serialize)]
pub(crate) struct Idle {
    cpu_percent: f64,
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

/// Launches once, waits until a worker would have gone to sleep, and measures.
pub(crate) fn run(gpu: &Gpu, seconds: f64) -> Result<Idle> {
    let stream = gpu.context.new_stream()?;
    let mut stamp = Gpu::alloc_stamp(&stream, (100, 1, 1), 32, 1000)?;
    gpu.launch_stamp(&stream, &mut stamp)?;
    stream.synchronize()?;
    std::thread::sleep(Duration::from_millis(100));
    let before = cpu_seconds()?;
    std::thread::sleep(Duration::from_secs_f64(seconds));
    Ok(Idle {
        cpu_percent: (cpu_seconds()? - before) / seconds * 100.0,
    })
}
