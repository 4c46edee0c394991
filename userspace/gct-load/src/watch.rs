// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A best-effort loop that tells, launch by launch, how many SMs it was given.

use crate::gpu::Gpu;
use anyhow::Result;
use serde::Serialize;
use std::io::Write;
use std::time::{Duration, Instant};

#[derive(Debug, Serialize)]
struct Sample {
    /// Since the loop began.
    ms: u128,
    /// SMs on which blocks of the last launch ran.
    sms: usize,
}

/// Launches for `seconds` and prints a line for the last launch of each `every`.
pub(crate) fn run(
    gpu: &Gpu,
    blocks: u32,
    threads: u32,
    cycles: u64,
    seconds: f64,
    every: Duration,
) -> Result<()> {
    let stream = gpu.context.default_stream();
    let start = Instant::now();
    let mut due = every;
    while start.elapsed().as_secs_f64() < seconds {
        let mut stamp = Gpu::stamp_room(&stream, (blocks, 1, 1), threads, cycles)?;
        gpu.launch_stamp(&stream, &mut stamp)?;
        let sms = stream.clone_dtoh(&stamp.sms)?;
        if start.elapsed() < due {
            continue;
        }
        due = start.elapsed() + every;
        let sample = Sample {
            ms: start.elapsed().as_millis(),
            sms: sms.iter().filter(|blocks| **blocks > 0).count(),
        };
        println!("{}", serde_json::to_string(&sample)?);
        std::io::stdout().flush()?;
    }
    Ok(())
}
