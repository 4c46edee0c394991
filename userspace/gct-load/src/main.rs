// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Workloads for tests and benchmarks on a real GPU. Needs libcuda, no CUDA toolkit.
#![allow(
    clippy::float_arithmetic,
    reason = "statistics of a measuring program, never kernel code"
)]

mod attributes;
mod cost;
mod exact;
mod gpu;
mod idle;
mod latency;
mod memory;
mod tpcs;
mod watch;

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
        /// Host threads that do so, each with streams of its own
        #[arg(long, default_value_t = 1)]
        hosts: u64,
        /// Neither clusters, cooperative launches nor programmatic dependents
        #[arg(long)]
        plain: bool,
        /// No CUDA graphs
        #[arg(long)]
        no_graphs: bool,
    },
    /// One launch: how many blocks ran on each SM
    Sms {
        #[command(flatten)]
        grid: Grid,
    },
    /// Which bits of the TPC mask have a TPC, as a list; under libgct_preload
    Tpcs {
        /// Bits to try
        #[arg(long, default_value_t = 128)]
        bits: u32,
    },
    /// What a launch costs
    Launches {
        /// Launches that are waited for, one by one
        #[arg(long, default_value_t = 2000)]
        waits: u32,
        /// Launches back to back
        #[arg(long, default_value_t = 100_000)]
        queued: u32,
    },
    /// What it costs to run a kernel in parts
    Split {
        #[command(flatten)]
        grid: Grid,
        /// How it is done
        #[arg(long, value_enum, default_value = "plain")]
        mechanism: cost::Mechanism,
        /// Parts, or workers of an SM
        #[arg(long, default_value_t = 1)]
        parts: u32,
        /// Measurements
        #[arg(long, default_value_t = 30)]
        rounds: u32,
    },
    /// One launch, then nothing: how much processor time that takes
    Idle {
        /// For how long, in seconds
        #[arg(long, default_value_t = 3.0)]
        seconds: f64,
    },
    /// Launches one after the other; prints now and then how many SMs the last one ran on
    Watch {
        #[command(flatten)]
        grid: Grid,
        /// How long to run, in seconds
        #[arg(long, default_value_t = 3.0)]
        seconds: f64,
        /// Time between lines, in milliseconds
        #[arg(long, default_value_t = 20)]
        every_ms: u64,
    },
    /// Allocates device memory until there is no more
    Memory {
        /// How
        #[arg(long, value_enum, default_value = "alloc")]
        way: memory::Way,
        /// How much at most, in MiB
        #[arg(long, default_value_t = 4096)]
        mib: usize,
        /// In steps of so many MiB
        #[arg(long, default_value_t = 64)]
        step_mib: usize,
        /// Keep it until standard input ends
        #[arg(long)]
        hold: bool,
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
            hosts,
            plain,
            no_graphs,
        } => {
            let kinds = exact::Kinds {
                attributes: !plain,
                graphs: !no_graphs,
            };
            let report = exact::run_all(&gpu, seed..seed + hosts, rounds, streams, kinds)?;
            println!("{}", serde_json::to_string(&report)?);
            ensure!(report.exact(), "some blocks did not run exactly once");
            return Ok(());
        }
        Workload::Tpcs { bits } => tpcs::present(&gpu, bits)?,
        Workload::Launches { waits, queued } => {
            serde_json::to_string(&cost::launches(&gpu, waits, queued)?)?
        }
        Workload::Split {
            grid,
            mechanism,
            parts,
            rounds,
        } => {
            ensure!(parts > 0 && rounds > 0, "nothing is to be done");
            let mut stamp = grid.stamp(&gpu)?;
            let cost = cost::splits(&gpu, &mut stamp, mechanism, parts, rounds)?;
            serde_json::to_string(&cost)?
        }
        Workload::Idle { seconds } => serde_json::to_string(&idle::run(&gpu, seconds)?)?,
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
        Workload::Watch {
            grid,
            seconds,
            every_ms,
        } => {
            let every = Duration::from_millis(every_ms);
            return watch::run(&gpu, grid.blocks, grid.threads, grid.cycles, seconds, every);
        }
        Workload::Memory {
            way,
            mib,
            step_mib,
            hold,
        } => return memory::run(&gpu, way, mib, step_mib, hold),
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
