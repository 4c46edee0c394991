// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Runs workloads for tests and benchmarks on a real GPU. Needs libcuda and no CUDA toolkit.
#![allow(
    clippy::float_arithmetic,
    reason = "statistics of a measuring program, never kernel code"
)]

mod attributes;
mod barrier;
mod best_effort;
mod cli;
mod copies;
mod cost;
mod exact;
mod family;
mod faults;
mod gpu;
mod idle;
mod latency;
mod memory;
mod serve;
mod streams;
mod timeline;
mod tpcs;
mod verdict;
mod watch;

use anyhow::{bail, ensure, Result};
use clap::Parser;
use cli::{Cli, Exact, Workload};
use copies::Copy;
use gpu::Gpu;
use serde_json::to_string;
use std::process::ExitCode;
use std::time::Duration;
use verdict::right;

fn main() -> ExitCode {
    match start(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gct-load: {error:#}");
            verdict::exit_code(&error)
        }
    }
}

fn start(cli: Cli) -> Result<()> {
    let gpu = Gpu::open(cli.gpu)?;
    match cli.workload {
        Workload::Serve => serve::run(|workload| run(&gpu, workload)),
        workload => {
            let line = run(&gpu, workload)?;
            if !line.is_empty() {
                println!("{line}");
            }
            Ok(())
        }
    }
}

/// Runs a workload. Returns its line of JSON, or nothing if it has printed its own lines.
fn run(gpu: &Gpu, workload: Workload) -> Result<String> {
    match workload {
        Workload::Serve => bail!("serve cannot run within serve"),
        Workload::Exact(exact) => run_exact(gpu, &exact),
        Workload::Copies { seed, rounds, mib } => {
            let report = copies::exact(gpu, seed, rounds, mib)?;
            let line = to_string(&report)?;
            right(report.wrong == 0, || {
                format!("some bytes are wrong: {line}")
            })?;
            Ok(line)
        }
        Workload::Family { children } => Ok(to_string(&family::run(gpu, children)?)?),
        Workload::Device => Ok(to_string(&gpu.device()?)?),
        Workload::Tpcs { bits } => tpcs::present(gpu, bits),
        Workload::Launches { waits, queued } => {
            Ok(to_string(&cost::launches(gpu, waits, queued)?)?)
        }
        Workload::Split {
            grid,
            mechanism,
            parts,
            rounds,
        } => {
            ensure!(
                parts > 0 && rounds > 0,
                "--parts and --rounds must be at least 1"
            );
            let mut stamp = grid.stamp(gpu)?;
            let cost = cost::splits(gpu, &mut stamp, mechanism, parts, rounds)?;
            Ok(to_string(&cost)?)
        }
        Workload::Idle { seconds, rate } => Ok(to_string(&idle::run(gpu, seconds, rate)?)?),
        Workload::Sms { grid } => {
            let mut stamp = grid.stamp(gpu)?;
            Ok(to_string(&gpu.sms_used(&mut stamp)?)?)
        }
        Workload::Barrier {
            how,
            blocks,
            more,
            rounds,
            seconds,
        } => {
            let until = Duration::from_secs_f64(seconds);
            let report = barrier::run(gpu, how, blocks, more, (rounds, until))?;
            Ok(to_string(&report)?)
        }
        Workload::Watch {
            grid,
            seconds,
            every_ms,
            graph,
            upload,
            beside,
        } => {
            let watch = watch::Watch {
                blocks: grid.blocks,
                threads: grid.threads,
                cycles: grid.cycles,
                seconds,
                every: Duration::from_millis(every_ms),
                graph,
                upload,
            };
            let others = beside.into_iter().map(Gpu::open);
            let others: Vec<Gpu> = others.collect::<Result<_>>()?;
            let gpus: Vec<&Gpu> = std::iter::once(gpu).chain(&others).collect();
            watch::run_all(&gpus, watch)?;
            Ok(String::new())
        }
        Workload::Streams(streams) => Ok(to_string(&streams::run(gpu, &streams)?)?),
        Workload::Fault { how, linger_ms } => {
            let linger = Duration::from_millis(linger_ms);
            match faults::fail(gpu, how, linger)? {}
        }
        Workload::Leave { grid, launches } => {
            match faults::leave(gpu, &mut grid.stamp(gpu)?, launches)? {}
        }
        Workload::Persist { seconds, every_ms } => {
            faults::persist(gpu, seconds, Duration::from_millis(every_ms))?;
            Ok(String::new())
        }
        Workload::Memory {
            way,
            mib,
            step_mib,
            hold,
        } => {
            memory::run(gpu, way, mib, step_mib, hold)?;
            Ok(String::new())
        }
        Workload::Critical {
            grid,
            arrivals,
            time,
            high_priority,
            copy,
        } => {
            let (arrivals, window) = (arrivals.arrivals(), time.window());
            let latency = if let Some(direction) = copy.copy {
                let mut copy = Copy::new(direction, copy.bytes)?;
                let launch = |stream: &_| copy.submit(stream);
                latency::critical(gpu, launch, arrivals, window, high_priority)?
            } else {
                let mut stamp = grid.stamp(gpu)?;
                let launch = |stream: &_| gpu.launch_stamp(stream, &mut stamp);
                latency::critical(gpu, launch, arrivals, window, high_priority)?
            };
            Ok(to_string(&latency)?)
        }
        Workload::BestEffort {
            grid,
            queued,
            time,
            timeline,
            copy,
        } => {
            let done = if let Some(direction) = copy.copy {
                let mut copy = Copy::new(direction, copy.bytes)?;
                best_effort::copies(gpu, &mut copy, queued, time.window())?
            } else {
                let mut stamp = grid.stamp(gpu)?;
                best_effort::run(gpu, &mut stamp, queued, time.window(), timeline)?
            };
            Ok(to_string(&done)?)
        }
    }
}

/// Runs the exactness test. Its error contains the line of JSON.
fn run_exact(gpu: &Gpu, work: &Exact) -> Result<String> {
    let kinds = exact::Kinds {
        attributes: !work.plain,
        graphs: !work.no_graphs,
        one_by_one: work.one_by_one,
    };
    let mut others = Vec::new();
    for _ in 1..work.contexts {
        others.push(gpu.another_context()?);
    }
    let gpus: Vec<&Gpu> = std::iter::once(gpu).chain(&others).collect();
    let seeds = work.seed..work.seed + work.hosts;
    let report = exact::run_all(&gpus, seeds, work.rounds, work.streams, kinds)?;
    let line = to_string(&report)?;
    right(report.exact(), || {
        format!("some blocks did not run exactly once: {line}")
    })?;
    Ok(line)
}
