// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Workloads for tests and benchmarks on a real GPU. Needs libcuda, no CUDA toolkit.
#![allow(
    clippy::float_arithmetic,
    reason = "statistics of a measuring program, never kernel code"
)]

mod exact;
mod gpu;
mod latency;

use anyhow::{ensure, Result};
use clap::{Args, Parser, Subcommand};
use gpu::Gpu;
use std::time::Duration;

/// Workloads for tests and benchmarks; each prints one line of JSON.
#[derive(Parser)]
#[command(version)]
struct Cli {
    /// The GPU to use, as CUDA numbers it
    #[arg(long, default_value_t = 0)]
    gpu: usize,
    #[command(subcommand)]
    workload: Workload,
}

#[derive(Subcommand)]
enum Workload {
    /// Random launches, each checked by a dependent kernel and by the host
    Exact {
        /// Seed of the random grids
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Grids to launch, up to four times each
        #[arg(long, default_value_t = 500)]
        rounds: u32,
        /// Streams to spread them over
        #[arg(long, default_value_t = 4)]
        streams: usize,
    },
    /// One launch: how many blocks ran on each SM
    Sms {
        #[command(flatten)]
        grid: Grid,
    },
    /// A latency-critical loop: launch, wait, pause
    Critical {
        #[command(flatten)]
        grid: Grid,
        /// Time between launches, in microseconds
        #[arg(long, default_value_t = 2000)]
        period_us: u64,
        #[command(flatten)]
        time: Time,
        /// Use a stream of the highest priority
        #[arg(long)]
        high_priority: bool,
    },
    /// A best-effort loop: launches queued back to back
    BestEffort {
        #[command(flatten)]
        grid: Grid,
        /// Launches in flight
        #[arg(long, default_value_t = 4)]
        queued: usize,
        #[command(flatten)]
        time: Time,
    },
}

#[derive(Args)]
struct Time {
    /// How long to measure, in seconds
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// When to begin to measure, in seconds of Unix time; until then the loop runs without
    #[arg(long, default_value_t = 0.0)]
    start_at: f64,
}

impl Time {
    fn window(&self) -> latency::Window {
        latency::Window {
            start_at: self.start_at,
            seconds: self.seconds,
        }
    }
}

#[derive(Args)]
struct Grid {
    /// Blocks of a launch
    #[arg(long, default_value_t = 1056)]
    blocks: u32,
    /// Threads of a block
    #[arg(long, default_value_t = 128)]
    threads: u32,
    /// Clock cycles that a block spins for
    #[arg(long, default_value_t = 20_000)]
    cycles: u64,
}

impl Grid {
    fn stamp(&self, gpu: &Gpu) -> Result<gpu::Stamp> {
        ensure!(self.blocks > 0, "a grid needs at least one block");
        let stream = gpu.context.default_stream();
        let stamp = Gpu::stamp_room(&stream, (self.blocks, 1, 1), self.threads, self.cycles)?;
        stream.synchronize()?;
        Ok(stamp)
    }
}

fn main() -> Result<()> {
    let cli = Cli::parse();
    let gpu = Gpu::open(cli.gpu)?;
    let line = match cli.workload {
        Workload::Exact {
            seed,
            rounds,
            streams,
        } => {
            let report = exact::run(&gpu, seed, rounds, streams)?;
            println!("{}", serde_json::to_string(&report)?);
            ensure!(report.exact(), "some blocks did not run exactly once");
            return Ok(());
        }
        Workload::Sms { grid } => {
            let mut stamp = grid.stamp(&gpu)?;
            let stream = gpu.context.default_stream();
            gpu.launch_stamp(&stream, &mut stamp)?;
            let sms = stream.clone_dtoh(&stamp.sms)?;
            let used: std::collections::BTreeMap<usize, u32> = sms
                .into_iter()
                .enumerate()
                .filter(|(_, n)| *n > 0)
                .collect();
            serde_json::to_string(&used)?
        }
        Workload::Critical {
            grid,
            period_us,
            time,
            high_priority,
        } => {
            let mut stamp = grid.stamp(&gpu)?;
            let period = Duration::from_micros(period_us);
            let latency =
                latency::critical(&gpu, &mut stamp, period, time.window(), high_priority)?;
            serde_json::to_string(&latency)?
        }
        Workload::BestEffort { grid, queued, time } => {
            let mut stamp = grid.stamp(&gpu)?;
            serde_json::to_string(&latency::best_effort(
                &gpu,
                &mut stamp,
                queued,
                time.window(),
            )?)?
        }
    };
    println!("{line}");
    Ok(())
}
