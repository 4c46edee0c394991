// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What can be asked of this program, on its command line or line by line.

use crate::gpu::{Gpu, Stamp};
use crate::latency::{Arrivals, Bursts, Window};
use crate::{barrier, cost, memory};
use anyhow::{ensure, Result};
use clap::{Args, Parser, Subcommand};
use std::time::Duration;

/// Workloads for tests and benchmarks; each prints one line of JSON.
#[derive(Parser)]
#[command(version)]
pub(crate) struct Cli {
    /// The GPU to use, as CUDA numbers it
    #[arg(long, default_value_t = 0)]
    pub(crate) gpu: usize,
    #[command(subcommand)]
    pub(crate) workload: Workload,
}

#[derive(Subcommand)]
pub(crate) enum Workload {
    /// Workloads from standard input, one a line, in one context; says when it can take one
    Serve,
    /// Random launches, each checked by a dependent kernel and by the host
    Exact(Exact),
    /// Forks, and executes children that say how many SMs they ran on, between exact launches
    Family {
        /// Children of each kind
        #[arg(long, default_value_t = 3)]
        children: u64,
    },
    /// One launch: how many blocks ran on each SM
    Sms {
        #[command(flatten)]
        grid: Grid,
    },
    /// Grids as large as the device says that it is, whose blocks wait for each other
    Barrier {
        /// How they are launched
        #[arg(long, value_enum, default_value = "plain")]
        how: barrier::How,
        /// Blocks of a grid [default: all that the device holds at once]
        #[arg(long)]
        blocks: Option<u32>,
        /// So many blocks more
        #[arg(long, default_value_t = 0)]
        more: u32,
        /// Launches at least
        #[arg(long, default_value_t = 20)]
        rounds: u32,
        /// Seconds to go on for at least
        #[arg(long, default_value_t = 0.0)]
        seconds: f64,
    },
    /// Which TPCs exist, as a list, each tried by a launch; under libgct_preload
    Tpcs {
        /// Numbers to try
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
        /// Replay one CUDA graph of four launches, uploaded once
        #[arg(long)]
        graph: bool,
        /// The same on these GPUs too, in this process
        #[arg(long, value_delimiter = ',')]
        beside: Vec<usize>,
    },
    /// Launches of two streams that wait for one of a third, which is submitted last
    Streams(Streams),
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
        /// Keep it until standard input has a line, free it then, and end with standard input
        #[arg(long)]
        hold: bool,
    },
    /// A latency-critical loop: launch, wait, pause
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
        /// Tell how many blocks ended when
        #[arg(long)]
        timeline: bool,
    },
}

#[derive(Args)]
pub(crate) struct Streams {
    /// How often
    #[arg(long, default_value_t = 20)]
    pub(crate) rounds: u32,
    /// Launches of the third stream before the one that is waited for
    #[arg(long, default_value_t = 4)]
    pub(crate) between: u32,
    /// For how long the GPU waits at most, in milliseconds
    #[arg(long, default_value_t = 5000)]
    pub(crate) limit_ms: u64,
    /// Leave out the launch that is waited for
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
    /// Streams to spread them over
    #[arg(long, default_value_t = 4)]
    pub(crate) streams: usize,
    /// Host threads that do so, each with streams of its own
    #[arg(long, default_value_t = 1)]
    pub(crate) hosts: u64,
    /// Contexts that the host threads are spread over
    #[arg(long, default_value_t = 1)]
    pub(crate) contexts: usize,
    /// Neither clusters, cooperative launches nor programmatic dependents
    #[arg(long)]
    pub(crate) plain: bool,
    /// No CUDA graphs
    #[arg(long)]
    pub(crate) no_graphs: bool,
}

#[derive(Args)]
pub(crate) struct ArrivalsArgs {
    /// Time between launches, in microseconds
    #[arg(long, default_value_t = 2000)]
    period_us: u64,
    /// Launches arrive at random moments instead, so often on average (a Poisson process), and
    /// their latency counts from their arrival
    #[arg(long)]
    poisson: bool,
    /// Seed of the random moments
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Run for so long, then pause, and so on; in milliseconds
    #[arg(long, requires = "pause_ms")]
    burst_ms: Option<u64>,
    /// How long such a pause is, in milliseconds
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
pub(crate) struct Time {
    /// How long to measure, in seconds
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// When to begin to measure, in seconds of Unix time; until then the loop runs without
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
        let stamp = Gpu::stamp_room(&stream, (self.blocks, 1, 1), self.threads, self.cycles)?;
        stream.synchronize()?;
        Ok(stamp)
    }
}
