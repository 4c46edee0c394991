// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Measures the cost of a launch, and of splitting a kernel in the published ways.

use crate::gpu::{Gpu, Stamp};
use anyhow::Result;
use clap::ValueEnum;
use cudarc::driver::{CudaSlice, CudaStream, LaunchConfig, PushKernelArg};
use serde::Serialize;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The cost of a launch in microseconds.
#[derive(Debug, Serialize)]
pub(crate) struct LaunchCost {
    launch_and_wait_p50_us: f64,
    launch_and_wait_p99_us: f64,
    back_to_back_us: f64,
}

/// Returns the microseconds that `work` takes.
fn time(work: impl FnOnce() -> Result<()>) -> Result<f64> {
    let start = Instant::now();
    work()?;
    Ok(start.elapsed().as_secs_f64() * 1e6)
}

/// Returns a quantile of sorted times.
fn rank(sorted: &[f64], quantile: f64) -> f64 {
    // CAST: a rank below the number of samples.
    sorted[((sorted.len() - 1) as f64 * quantile) as usize]
}

/// Launches one block `waits` times with a wait each, then `queued` times without.
pub(crate) fn launches(gpu: &Gpu, waits: u32, queued: u32) -> Result<LaunchCost> {
    let stream = gpu.context.new_stream()?;
    let mut stamp = Gpu::alloc_stamp(&stream, (1, 1, 1), 32, 0)?;
    let mut times = Vec::new();
    for number in 0..waits + 100 {
        let took = time(|| {
            gpu.launch_stamp(&stream, &mut stamp)?;
            Ok(stream.synchronize()?)
        })?;
        if number >= 100 {
            times.push(took);
        }
    }
    times.sort_by(f64::total_cmp);
    let all = time(|| {
        for _ in 0..queued {
            gpu.launch_stamp(&stream, &mut stamp)?;
        }
        Ok(stream.synchronize()?)
    })?;
    Ok(LaunchCost {
        launch_and_wait_p50_us: rank(&times, 0.5),
        launch_and_wait_p99_us: rank(&times, 0.99),
        back_to_back_us: all / f64::from(queued),
    })
}

/// The way to split a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mechanism {
    /// One launch, not split
    Plain,
    /// One whole launch for each part, behind a check of the block index (LithOS)
    RangeCheck,
    /// Persistent blocks that fetch the next block index (Tally)
    Persistent,
}

/// The time of a launch with a wait, in microseconds.
#[derive(Debug, Serialize)]
pub(crate) struct SplitCost {
    median_us: f64,
    least_us: f64,
    most_us: f64,
}

/// Runs a kernel `rounds` times, in `parts` parts or with `parts` persistent blocks per SM.
pub(crate) fn splits(
    gpu: &Gpu,
    stamp: &mut Stamp,
    mechanism: Mechanism,
    parts: u32,
    rounds: u32,
) -> Result<SplitCost> {
    let stream = gpu.context.new_stream()?;
    let mut next = stream.alloc_zeros::<u32>(1)?;
    let stop = stream.alloc_zeros::<u32>(1)?;
    let mut times = Vec::new();
    for number in 0..rounds + 3 {
        stream.synchronize()?;
        // Short enough that the worker of the user-space mode stays awake, as in a busy program.
        std::thread::sleep(Duration::from_micros(200));
        let took = time(|| {
            match mechanism {
                Mechanism::Plain => gpu.launch_stamp(&stream, stamp)?,
                Mechanism::RangeCheck => range_check(gpu, &stream, stamp, parts)?,
                Mechanism::Persistent => {
                    stream.memset_zeros(&mut next)?;
                    persistent(gpu, &stream, stamp, parts, &mut next, &stop)?;
                }
            }
            Ok(stream.synchronize()?)
        })?;
        if number >= 3 {
            times.push(took);
        }
    }
    times.sort_by(f64::total_cmp);
    Ok(SplitCost {
        median_us: rank(&times, 0.5),
        least_us: rank(&times, 0.0),
        most_us: rank(&times, 1.0),
    })
}

fn config(blocks: u32, threads: u32) -> LaunchConfig {
    LaunchConfig {
        grid_dim: (blocks, 1, 1),
        block_dim: (threads, 1, 1),
        shared_mem_bytes: 0,
    }
}

fn range_check(gpu: &Gpu, stream: &Arc<CudaStream>, stamp: &mut Stamp, parts: u32) -> Result<()> {
    let blocks = stamp.blocks();
    // CAST: at most `blocks`.
    let boundary = |part: u32| (u64::from(blocks) * u64::from(part) / u64::from(parts)) as u32;
    for part in 0..parts {
        let (from, to) = (boundary(part), boundary(part + 1));
        let mut launch = stream.launch_builder(&gpu.stamp_range);
        launch.arg(&mut stamp.ran).arg(&stamp.cycles);
        launch.arg(&from).arg(&to);
        // SAFETY: the arguments are those of `stamp_range`; `ran` has a word for each block.
        unsafe { launch.launch(config(blocks, stamp.threads)) }?;
    }
    Ok(())
}

fn persistent(
    gpu: &Gpu,
    stream: &Arc<CudaStream>,
    stamp: &mut Stamp,
    workers: u32,
    next: &mut CudaSlice<u32>,
    stop: &CudaSlice<u32>,
) -> Result<()> {
    let blocks = stamp.blocks();
    let sms = gpu.context.attribute(
        cudarc::driver::sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
    )?;
    let grid = u32::try_from(sms)? * workers;
    let mut launch = stream.launch_builder(&gpu.stamp_persistent);
    launch.arg(&mut stamp.ran).arg(&stamp.cycles).arg(&blocks);
    launch.arg(next).arg(stop);
    // SAFETY: the arguments are those of `stamp_persistent`, which stays below `blocks`.
    unsafe { launch.launch(config(grid, stamp.threads)) }?;
    Ok(())
}
