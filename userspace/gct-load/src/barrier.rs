// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Launches grids as large as the device that the program sees, whose blocks wait for each other.
//! Such a grid ends only if all of its blocks are resident at once.

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

/// The kind of launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
pub(crate) enum Launch {
    /// A plain launch, as by NCCL, stream-K and persistent kernels
    Plain,
    /// `cuLaunchCooperativeKernel`
    Cooperative,
    /// `cuLaunchKernelEx` with the cooperative attribute
    Attribute,
    /// Clusters of two blocks
    Cluster,
}

/// The reported size of the device, and the outcome of the launches.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    how: Launch,
    /// SMs of the device.
    sms: u32,
    /// Blocks that an SM holds.
    per_sm: u32,
    /// Blocks of a wave by `cuOccupancyMaxPotentialBlockSize`, for blocks of any size.
    potential: u32,
    /// Clusters of two blocks in a wave.
    clusters: u32,
    blocks: u32,
    launches: u32,
    /// Whether all blocks met in each launch.
    met: bool,
    error: Option<String>,
}

/// Threads of a block. Two blocks fill an SM of 2048 threads.
const THREADS: u32 = 1024;

/// Clock cycles after which a block gives up: some seconds.
const TIMEOUT_CYCLES: u64 = 6_000_000_000;

/// Launches at least `rounds` grids, for at least `time`.
///
/// A grid has `blocks` blocks, by default as many as the device reports to hold, and `more` beyond.
pub(crate) fn run(
    gpu: &Gpu,
    how: Launch,
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
        Launch::Cluster => 2 * clusters,
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

/// Launches once. Returns whether all blocks met.
fn round(meet: &CudaFunction, stream: &Arc<CudaStream>, how: Launch, blocks: u32) -> Result<bool> {
    let mut count = stream.alloc_zeros::<u32>(1)?;
    let mut missed = stream.alloc_zeros::<u32>(1)?;
    let config = LaunchConfig {
        grid_dim: (blocks, 1, 1),
        block_dim: (THREADS, 1, 1),
        shared_mem_bytes: 0,
    };
    match how {
        Launch::Plain | Launch::Cooperative => {
            let mut launch = stream.launch_builder(meet);
            launch.arg(&mut count).arg(&blocks);
            launch.arg(&TIMEOUT_CYCLES).arg(&mut missed);
            // SAFETY: the arguments are those of `meet` in kernels.ptx, which writes one word each
            // of `count` and `missed`.
            let launched = unsafe {
                match how {
                    Launch::Plain => launch.launch(config),
                    _ => launch.launch_cooperative(config),
                }
            };
            launched.map_err(|DriverError(status)| anyhow::anyhow!("{status:?}"))?;
        }
        Launch::Attribute | Launch::Cluster => {
            let attribute = match how {
                Launch::Cluster => Attribute::Cluster(2),
                _ => Attribute::Cooperative,
            };
            let (count, _count) = count.device_ptr(stream);
            let (missed, _missed) = missed.device_ptr(stream);
            let mut arguments = [
                address(&count),
                address(&blocks),
                address(&TIMEOUT_CYCLES),
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

/// Returns the address of a launch's argument, for the driver.
fn address<T>(argument: &T) -> *mut c_void {
    core::ptr::from_ref(argument).cast_mut().cast()
}
