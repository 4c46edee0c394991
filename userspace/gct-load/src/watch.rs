// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Runs a best-effort loop that reports how many SMs its launches or replays use.

use crate::gpu::{Gpu, Stamp};
use anyhow::{Context, Result};
use cudarc::driver::{sys, CudaGraph, CudaStream};
use serde::Serialize;
use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A line of the report.
#[derive(Debug, Serialize)]
struct Sample {
    /// The GPU, as CUDA numbers it.
    gpu: usize,
    /// Milliseconds since the loop began.
    ms: u128,
    /// SMs that the last launch used.
    sms: usize,
}

/// The launches and the interval of the report.
#[derive(Clone, Copy)]
pub(crate) struct Watch {
    pub(crate) blocks: u32,
    pub(crate) threads: u32,
    pub(crate) cycles: u64,
    /// The time to run, in seconds.
    pub(crate) seconds: f64,
    /// The time between lines.
    pub(crate) every: Duration,
    /// Whether to replay a graph of four launches.
    pub(crate) graph: bool,
    /// Whether to upload it before its first launch.
    pub(crate) upload: bool,
}

/// Watches several GPUs at once, each in a thread.
pub(crate) fn run_all(gpus: &[&Gpu], watch: Watch) -> Result<()> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = gpus
            .iter()
            .map(|gpu| scope.spawn(move || run(gpu, watch)))
            .collect();
        threads.into_iter().try_for_each(|thread| {
            thread
                .join()
                .expect("a thread that launches does not panic")
        })
    })
}

/// Launches or replays in a loop, and prints a line for the last launch of each interval.
fn run(gpu: &Gpu, watch: Watch) -> Result<()> {
    // SAFETY: each buffer is used on one stream, and freed after that stream was synchronised.
    unsafe { gpu.context.disable_event_tracking() };
    let stream = gpu.context.new_stream()?;
    let mut stamp = Gpu::alloc_stamp(&stream, (watch.blocks, 1, 1), watch.threads, watch.cycles)?;
    let replay = match watch.graph {
        true => Some(capture(gpu, &stream, &mut stamp, watch.upload)?),
        false => None,
    };
    let start = Instant::now();
    let mut due = watch.every;
    while start.elapsed().as_secs_f64() < watch.seconds {
        stream.memset_zeros(&mut stamp.sms)?;
        match &replay {
            Some(replay) => replay.launch()?,
            None => gpu.launch_stamp(&stream, &mut stamp)?,
        }
        let sms = stream.clone_dtoh(&stamp.sms)?;
        if start.elapsed() < due {
            continue;
        }
        due = start.elapsed() + watch.every;
        let sample = Sample {
            gpu: gpu.context.ordinal(),
            ms: start.elapsed().as_millis(),
            sms: sms.iter().filter(|blocks| **blocks > 0).count(),
        };
        println!("{}", serde_json::to_string(&sample)?);
        std::io::stdout().flush()?;
    }
    Ok(())
}

/// Returns a graph of four sequential launches.
fn capture(
    gpu: &Gpu,
    stream: &Arc<CudaStream>,
    stamp: &mut Stamp,
    upload: bool,
) -> Result<CudaGraph> {
    stream.synchronize()?;
    stream.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
    for _ in 0..4 {
        gpu.launch_stamp(stream, stamp)?;
    }
    let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    let graph = stream.end_capture(flags)?.context("nothing was captured")?;
    if upload {
        graph.upload()?;
    }
    Ok(graph)
}
