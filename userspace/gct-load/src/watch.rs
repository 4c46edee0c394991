// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A best-effort loop that tells, launch by launch or replay by replay, how many SMs it was given.

use crate::gpu::{Gpu, Stamp};
use anyhow::{Context, Result};
use cudarc::driver::{sys, CudaGraph, CudaStream};
use serde::Serialize;
use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

#[derive(Debug, Serialize)]
struct Sample {
    /// Which GPU, as CUDA numbers it.
    gpu: usize,
    /// Since the loop began.
    ms: u128,
    /// SMs on which blocks of the last launch ran.
    sms: usize,
}

/// What is launched, and how often it is told of.
#[derive(Clone, Copy)]
pub(crate) struct Watch {
    pub(crate) blocks: u32,
    pub(crate) threads: u32,
    pub(crate) cycles: u64,
    /// For how long.
    pub(crate) seconds: f64,
    /// Time between lines.
    pub(crate) every: Duration,
    /// Replay a graph of four launches.
    pub(crate) graph: bool,
}

/// Watches several GPUs at the same time, each from a thread of its own.
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

/// Launches, or replays, and prints a line for the last launch of each `every`.
fn run(gpu: &Gpu, watch: Watch) -> Result<()> {
    // SAFETY: every buffer is used on one stream alone, and freed after that is synchronised.
    unsafe { gpu.context.disable_event_tracking() };
    let stream = gpu.context.new_stream()?;
    let mut stamp = Gpu::stamp_room(&stream, (watch.blocks, 1, 1), watch.threads, watch.cycles)?;
    let replay = match watch.graph {
        true => Some(capture(gpu, &stream, &mut stamp)?),
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

/// A graph of four launches, one after the other.
fn capture(gpu: &Gpu, stream: &Arc<CudaStream>, stamp: &mut Stamp) -> Result<CudaGraph> {
    stream.synchronize()?;
    stream.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
    for _ in 0..4 {
        gpu.launch_stamp(stream, stamp)?;
    }
    let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    let graph = stream.end_capture(flags)?.context("nothing was captured")?;
    graph.upload()?;
    Ok(graph)
}
