// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Defines the workloads, for the command line and for `serve`.

use crate::gpu::{Gpu, Stamp};
use crate::latency::{Arrivals, Bursts, Window};
use crate::{barrier, copies, cost, faults, memory};
use anyhow::{ensure, Result};
use clap::{Args, Parser, Subcommand};
use std::time::Duration;

/// Runs workloads for tests and benchmarks, each of which prints a line of JSON
#[derive(Parser)]
#[command(version)]
pub(crate) struct Cli {
    /// GPU, as CUDA numbers it
    #[arg(long, default_value_t = 0)]
    pub(crate) gpu: usize,
    #[command(subcommand)]
    pub(crate) workload: Workload,
}

#[derive(Subcommand)]
pub(crate) enum Workload {
    /// Run workloads from standard input, one a line, in one context
    Serve,
    /// Launch random grids, and check each by a dependent kernel and on the host
    Exact(Exact),
    /// Copy random bytes to the device, on it and back, in lines and whole, and check them
    Copies {
        /// Seed of the random copies
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Rounds of three copies
        #[arg(long, default_value_t = 200)]
        rounds: u32,
        /// Most bytes of a copy, in MiB
        #[arg(long, default_value_t = 64)]
        mib: usize,
    },
    /// Fork, and execute children that report their SMs, between exact launches
    Family {
        /// Children of each kind
        #[arg(long, default_value_t = 3)]
        children: u64,
    },
    /// Launch once, and print how many blocks ran on each SM
    Sms {
        #[command(flatten)]
        grid: Grid,
    },
    /// Launch grids as large as the reported device, whose blocks wait for each other
    Barrier {
        /// Kind of launch
        #[arg(long, value_enum, default_value = "plain")]
        how: barrier::Launch,
        /// Blocks of a grid [default: all that the device holds at once]
        #[arg(long)]
        blocks: Option<u32>,
        /// Further blocks
        #[arg(long, default_value_t = 0)]
        more: u32,
        /// Least number of launches
        #[arg(long, default_value_t = 20)]
        rounds: u32,
        /// Least time, in seconds
        #[arg(long, default_value_t = 0.0)]
        seconds: f64,
    },
    /// Print the compute capability of the GPU and its number of SMs
    Device,
    /// List the TPCs that exist, each tried by launches; needs libgct_preload
    Tpcs {
        /// Numbers to try
        #[arg(long, default_value_t = 128)]
        bits: u32,
    },
    /// Measure the cost of a launch
    Launches {
        /// Launches with a wait each
        #[arg(long, default_value_t = 2000)]
        waits: u32,
        /// Launches back to back
        #[arg(long, default_value_t = 100_000)]
        queued: u32,
    },
    /// Measure the cost of running a kernel in parts
    Split {
        #[command(flatten)]
        grid: Grid,
        /// Way of splitting
        #[arg(long, value_enum, default_value = "plain")]
        mechanism: cost::Mechanism,
        /// Parts, or persistent blocks per SM
        #[arg(long, default_value_t = 1)]
        parts: u32,
        /// Measurements
        #[arg(long, default_value_t = 30)]
        rounds: u32,
    },
    /// Measure the processor time of a program that sleeps between launches
    Idle {
        /// Time to measure, in seconds
        #[arg(long, default_value_t = 3.0)]
        seconds: f64,
        /// Launches a second, each with a wait; 0 for none after the first
        #[arg(long, default_value_t = 0.0)]
        rate: f64,
    },
    /// Launch in a loop, and print periodically how many SMs the last launch used
    Watch {
        #[command(flatten)]
        grid: Grid,
        /// Time to run, in seconds
        #[arg(long, default_value_t = 3.0)]
        seconds: f64,
        /// Time between lines, in milliseconds
        #[arg(long, default_value_t = 20)]
        every_ms: u64,
        /// Replay a CUDA graph of four launches
        #[arg(long)]
        graph: bool,
        /// Upload that graph before its first launch
        #[arg(long, requires = "graph")]
        upload: bool,
        /// Further GPUs to watch in this process
        #[arg(long, value_delimiter = ',')]
        beside: Vec<usize>,
    },
    /// Launch on two streams that wait for a launch on a third, which is submitted last
    Streams(Streams),
    /// A kernel that fails
    Fault {
        /// How it fails
        #[arg(long, value_enum, default_value = "illegal")]
        how: faults::How,
        /// Milliseconds until the program exits
        #[arg(long, default_value_t = 500)]
        linger_ms: u64,
    },
    /// Launch, and exit while the launches run
    Leave {
        #[command(flatten)]
        grid: Grid,
        /// Launches, one after the other
        #[arg(long, default_value_t = 5)]
        launches: u32,
    },
    /// A kernel that counts until it is told to stop; prints its count now and then
    Persist {
        /// How long to run, in seconds
        #[arg(long, default_value_t = 3.0)]
        seconds: f64,
        /// Time between lines, in milliseconds
        #[arg(long, default_value_t = 5)]
        every_ms: u64,
    },
    /// Allocate device memory until none is left
    Memory {
        /// Function to allocate with
        #[arg(long, value_enum, default_value = "alloc")]
        way: memory::Way,
        /// Most memory, in MiB
        #[arg(long, default_value_t = 4096)]
        mib: usize,
        /// Size of an allocation, in MiB
        #[arg(long, default_value_t = 64)]
        step_mib: usize,
        /// Keep the memory until a line on standard input, free it, and exit at the end of input
        #[arg(long)]
        hold: bool,
    },
    /// Run a latency-critical loop: launch, wait, pause
    Critical {
        #[command(flatten)]
        grid: Grid,
        #[command(flatten)]
        arrivals: ArrivalsArgs,
        #[command(flatten)]
        time: Time,
        /// Use a stream of the highest priority
        #[arg(long)]
        high_priority: bool,
        #[command(flatten)]
        copy: CopyArgs,
    },
    /// Run a best-effort loop: launches queued back to back
    BestEffort {
        #[command(flatten)]
        grid: Grid,
        /// Launches in flight
        #[arg(long, default_value_t = 4)]
        queued: usize,
        #[command(flatten)]
        time: Time,
        /// Report how many blocks ended when
        #[arg(long, conflicts_with = "copy")]
        timeline: bool,
        #[command(flatten)]
        copy: CopyArgs,
    },
}

#[derive(Args)]
pub(crate) struct Streams {
    /// Rounds
    #[arg(long, default_value_t = 20)]
    pub(crate) rounds: u32,
    /// Launches on the third stream before the awaited one
    #[arg(long, default_value_t = 4)]
    pub(crate) between: u32,
    /// Longest wait on the GPU, in milliseconds
    #[arg(long, default_value_t = 5000)]
    pub(crate) limit_ms: u64,
    /// Omit the awaited launch
    #[arg(long)]
    pub(crate) never: bool,
}

#[derive(Args)]
pub(crate) struct Exact {
    /// Seed of the random grids
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Grids to launch, up to four times each
    #[arg(long, default_value_t = 500)]
    pub(crate) rounds: u32,
    /// Streams for the launches
    #[arg(long, default_value_t = 4)]
    pub(crate) streams: usize,
    /// Host threads, each with streams of its own
    #[arg(long, default_value_t = 1)]
    pub(crate) hosts: u64,
    /// Contexts for the host threads
    #[arg(long, default_value_t = 1)]
    pub(crate) contexts: usize,
    /// Omit clusters, cooperative launches and programmatic dependents
    #[arg(long)]
    pub(crate) plain: bool,
    /// Omit CUDA graphs
    #[arg(long)]
    pub(crate) no_graphs: bool,
    /// Launch each grid once, wait for it, and stop at the first that is wrong
    #[arg(long, conflicts_with = "contexts")]
    pub(crate) one_by_one: bool,
}

#[derive(Args)]
pub(crate) struct ArrivalsArgs {
    /// Time between launches, in microseconds
    #[arg(long, default_value_t = 2000)]
    period_us: u64,
    /// Launch at random with this period on average (a Poisson process), and count latency from
    /// the arrival
    #[arg(long)]
    poisson: bool,
    /// Seed of the random arrivals
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Time between pauses, in milliseconds
    #[arg(long, requires = "pause_ms")]
    burst_ms: Option<u64>,
    /// Time of a pause, in milliseconds
    #[arg(long, requires = "burst_ms")]
    pause_ms: Option<u64>,
}

impl ArrivalsArgs {
    pub(crate) fn arrivals(&self) -> Arrivals {
        let bursts = self.burst_ms.zip(self.pause_ms);
        Arrivals {
            period: Duration::from_micros(self.period_us),
            random: self.poisson.then_some(self.seed),
            bursts: bursts.map(|(run, pause)| Bursts {
                run: Duration::from_millis(run),
                pause: Duration::from_millis(pause),
            }),
        }
    }
}

#[derive(Args)]
pub(crate) struct CopyArgs {
    /// Copy between the device and pinned memory of the host, in place of launching
    #[arg(long, value_enum)]
    pub(crate) copy: Option<copies::Direction>,
    /// Bytes of a copy
    #[arg(long, default_value_t = 1 << 20, requires = "copy")]
    pub(crate) bytes: usize,
}

#[derive(Args)]
pub(crate) struct Time {
    /// Time to measure, in seconds
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Begin of the measurement in seconds of Unix time; the loop runs before it too
    #[arg(long, default_value_t = 0.0)]
    start_at: f64,
}

impl Time {
    pub(crate) fn window(&self) -> Window {
        Window {
            start_at: self.start_at,
            seconds: self.seconds,
        }
    }
}

#[derive(Args)]
pub(crate) struct Grid {
    /// Blocks of a launch
    #[arg(long, default_value_t = 1056)]
    pub(crate) blocks: u32,
    /// Threads of a block
    #[arg(long, default_value_t = 128)]
    pub(crate) threads: u32,
    /// Clock cycles that a block spins for
    #[arg(long, default_value_t = 20_000)]
    pub(crate) cycles: u64,
}

impl Grid {
    pub(crate) fn stamp(&self, gpu: &Gpu) -> Result<Stamp> {
        ensure!(self.blocks > 0, "a grid needs at least one block");
        let stream = gpu.context.default_stream();
        let stamp = Gpu::alloc_stamp(&stream, (self.blocks, 1, 1), self.threads, self.cycles)?;
        stream.synchronize()?;
        Ok(stamp)
    }
}
