// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A grid as large as the device that the program is shown, whose blocks wait for each other: it
//! ends only if all of them are resident at once.

use crate::attributes::{self, Attribute};
use crate::gpu::Gpu;
use anyhow::{ensure, Result};
use clap::ValueEnum;
use core::ffi::c_void;
use cudarc::driver::sys::CUdevice_attribute;
use cudarc::driver::{
    CudaFunction, CudaStream, DevicePtr, DriverError, LaunchConfig, PushKernelArg,
};
use serde::Serialize;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How the grid is launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
pub(crate) enum How {
    /// Without any promise: what NCCL, stream-K and persistent kernels do.
    Plain,
    /// `cuLaunchCooperativeKernel`
    Cooperative,
    /// `cuLaunchKernelEx` with the cooperative attribute
    Attribute,
    /// Clusters of two blocks
    Cluster,
}

/// What the device says, and how the launches ended.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    how: How,
    /// The device's number of SMs.
    sms: u32,
    /// Blocks that an SM holds.
    per_sm: u32,
    /// Blocks of one wave, as `cuOccupancyMaxPotentialBlockSize` says for blocks of any size.
    potential: u32,
    /// Clusters of two blocks of one wave.
    clusters: u32,
    blocks: u32,
    launches: u32,
    /// Whether in each launch all blocks met.
    met: bool,
    error: Option<String>,
}

/// Threads of a block: two of them fill an SM of 2048.
const THREADS: u32 = 1024;

/// Clock cycles after which a block does not wait any more: some seconds.
const PATIENCE: u64 = 6_000_000_000;

/// Launches grids, of both so many and for so long at least, of as many blocks as the device holds by its own numbers, or of `blocks`
/// if that is given, and of `more` beyond them.
pub(crate) fn run(
    gpu: &Gpu,
    how: How,
    blocks: Option<u32>,
    more: u32,
    (rounds, time): (u32, Duration),
) -> Result<Report> {
    let sms = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
    let sms = u32::try_from(gpu.context.attribute(sms)?)?;
    let per_sm = gpu
        .meet
        .occupancy_max_active_blocks_per_multiprocessor(THREADS, 0, None)?;
    extern "C" fn none(_block: i32) -> usize {
        0
    }
    let (potential, _) = gpu
        .meet
        .occupancy_max_potential_block_size(none, 0, 0, None)?;
    let stream = gpu.context.new_stream()?;
    let clusters = attributes::max_clusters(&stream, &gpu.meet, THREADS, 2)?;
    let all = match how {
        How::Cluster => 2 * clusters,
        _ => sms * per_sm,
    };
    let blocks = blocks.unwrap_or(all) + more;
    ensure!(blocks > 0, "a grid needs at least one block");
    let mut report = Report {
        how,
        sms,
        per_sm,
        potential,
        clusters,
        blocks,
        launches: 0,
        met: true,
        error: None,
    };
    let start = Instant::now();
    while report.launches < rounds || start.elapsed() < time {
        report.launches += 1;
        match round(&gpu.meet, &stream, how, blocks) {
            Ok(met) => report.met &= met,
            Err(error) => {
                report.met = false;
                report.error = Some(error.to_string());
                break;
            }
        }
    }
    Ok(report)
}

/// One launch: whether all of its blocks met.
fn round(meet: &CudaFunction, stream: &Arc<CudaStream>, how: How, blocks: u32) -> Result<bool> {
    let mut count = stream.alloc_zeros::<u32>(1)?;
    let mut missed = stream.alloc_zeros::<u32>(1)?;
    let config = LaunchConfig {
        grid_dim: (blocks, 1, 1),
        block_dim: (THREADS, 1, 1),
        shared_mem_bytes: 0,
    };
    match how {
        How::Plain | How::Cooperative => {
            let mut launch = stream.launch_builder(meet);
            launch.arg(&mut count).arg(&blocks);
            launch.arg(&PATIENCE).arg(&mut missed);
            // SAFETY: the arguments are those of `meet` in kernels.ptx, which counts in one word
            // each of `count` and `missed`.
            let launched = unsafe {
                match how {
                    How::Plain => launch.launch(config),
                    _ => launch.launch_cooperative(config),
                }
            };
            launched.map_err(|DriverError(status)| anyhow::anyhow!("{status:?}"))?;
        }
        How::Attribute | How::Cluster => {
            let attribute = match how {
                How::Cluster => Attribute::Cluster(2),
                _ => Attribute::Cooperative,
            };
            let (count, _count) = count.device_ptr(stream);
            let (missed, _missed) = missed.device_ptr(stream);
            let mut arguments = [
                address(&count),
                address(&blocks),
                address(&PATIENCE),
                address(&missed),
            ];
            // SAFETY: as above.
            unsafe {
                attributes::launch(
                    stream,
                    meet,
                    config.grid_dim,
                    THREADS,
                    attribute,
                    &mut arguments,
                )?;
            }
        }
    }
    Ok(stream.clone_dtoh(&missed)? == [0])
}

/// An argument of a launch, as the driver takes it.
fn address<T>(argument: &T) -> *mut c_void {
    core::ptr::from_ref(argument).cast_mut().cast()
}
