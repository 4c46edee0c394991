// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Measures PyTorch: the cost of the user-space mode, and inference beside training under every
//! mechanism.

use crate::budget::Budget;
use crate::dominance::{COLUMNS, EAGER};
use crate::mechanisms::{self, Mechanism, Needs, Pair};
use crate::report::{Report, Table};
use crate::sweep::PATIENCE;
use crate::Cli;
use anyhow::Result;
use fastrand::Rng;
use gct_hw::daemon::Daemon;
use gct_hw::kit::{moment_in, number, Kit, RunEnv};
use gct_hw::mps::Mps;
use gct_hw::served::Served;
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

const PROGRAM: &str = include_str!("torch.py");
/// Requests per second.
const RATE: u64 = 100;
/// How the model runs: eagerly, launch by launch, or as a CUDA graph.
const HOW: [&str; 2] = ["eager", "graph"];
/// Time until inference and training run concurrently.
pub(crate) const LEAD: Duration = Duration::from_millis(300);
/// Length of a window as a multiple of the sweep's, since requests are few.
const LONGER: f64 = 10.0;

/// Starts the program. It then has loaded PyTorch and not touched the GPU.
fn start(kit: &Kit, env: &RunEnv) -> Result<Served> {
    kit.serve_by(env, Path::new("python3"), &["-c", PROGRAM])
}

/// Measures the same program natively and under the user-space mode, one after the other, each
/// alone on the GPU.
pub(crate) fn cost(kit: &Kit, cli: &Cli, report: &mut Report) -> Result<()> {
    const WORK: [(&str, &str); 3] = [
        ("inference, launch by launch", "cost-infer eager 300"),
        ("inference, a CUDA graph", "cost-infer graph 1000"),
        ("training step", "cost-train 15"),
    ];
    let all_tpcs = RunEnv::gctgroup().with("GCTGROUP_TPC_MASK", "0-127");
    let mechanisms = [
        ("native", RunEnv::native()),
        ("gct, no limit", RunEnv::gctgroup()),
        ("gct, every mask written", all_tpcs),
    ];
    let columns = ["time (us)", "ratio to native in the same round"];
    let mut budget = Budget::new(cli.limit_seconds);
    for round in 0..cli.repeat {
        if !budget.admits() {
            report.note("torch-cost was cut short by --limit-seconds".into());
            break;
        }
        // Loading PyTorch takes longest and needs no GPU.
        let mut programs = Vec::new();
        for (_, env) in &mechanisms {
            programs.push(start(kit, env)?);
        }
        for program in &mut programs {
            program.ready()?;
        }
        let mut times = vec![Vec::new(); mechanisms.len()];
        let mut order: Vec<_> = programs.into_iter().zip(&mut times).collect();
        // Each mechanism goes first equally often.
        order.rotate_left(round % mechanisms.len());
        for (mut program, times) in order {
            program.ask("build inference training")?;
            program.answer(PATIENCE)?;
            for (_, work) in WORK {
                program.ask(work)?;
                times.push(number(&program.answer(PATIENCE)?, "us")?);
            }
        }
        for (number, (work, _)) in WORK.iter().enumerate() {
            let mut table = Table::new(format!("PyTorch alone, {work}"), &columns);
            let time = |mechanism: &Vec<f64>| mechanism.get(number).copied();
            let native = times.first().and_then(time);
            for ((name, _), times) in mechanisms.iter().zip(&times) {
                if let (Some(time), Some(native)) = (time(times), native) {
                    table.row(name, &[vec![time], vec![time / native]]);
                }
            }
            report.add(table);
        }
        budget.done();
        report.write(&cli.out, "torch-cost")?;
    }
    Ok(())
}

/// Measures inference beside training.
pub(crate) fn neighbours(kit: &Kit, cli: &Cli, tpcs: &[&str], report: &mut Report) -> Result<()> {
    let mps = Mps::start()?;
    let daemon = Daemon::start(kit, &tpcs.join(","))?;
    let needs = Needs::half(tpcs, &[50, 70]);
    let mut pairs = mechanisms::all(&needs, tpcs, &daemon, &mps, report)?;
    pairs.retain(|pair| {
        pair.mechanisms
            .iter()
            .any(|mechanism| cli.measures(&mechanism.name))
    });
    for how in HOW {
        let mut table = table(how);
        for mechanism in pairs.iter().flat_map(|pair| &pair.mechanisms) {
            if cli.measures(&mechanism.name) {
                table.row(&mechanism.name, &[]);
            }
        }
        report.add(table);
    }
    mechanisms::in_rounds(pairs, cli, "torch", report, |pair, random, report| {
        with_pair(kit, cli, pair, random, report)
    })
}

fn table(how: &str) -> Table {
    let how = match how {
        "graph" => "as a CUDA graph",
        _ => EAGER,
    };
    Table::new(
        format!("PyTorch inference {how}, {RATE} requests/s at random, beside training"),
        &COLUMNS,
    )
}

/// Adds a row to a table of [`COLUMNS`]: the latencies that a program has answered, and the
/// throughput of the other one.
pub(crate) fn filled(
    mut table: Table,
    name: &str,
    answer: &Value,
    rate: Vec<f64>,
) -> Result<Table> {
    let time = |key| number(answer, key).map(|time| vec![time]);
    table.row(
        name,
        &[time("p50_us")?, time("p95_us")?, time("p99_us")?, rate],
    );
    Ok(table)
}

fn with_pair(
    kit: &Kit,
    cli: &Cli,
    pair: &Pair,
    random: &mut Rng,
    report: &mut Report,
) -> Result<()> {
    let stats = std::env::temp_dir().join(format!("gct-bench-{}", std::process::id()));
    let best_effort = pair
        .best_effort
        .clone()
        .with("GCTGROUP_STATS", stats.display());
    let mut inference = start(kit, &pair.critical)?;
    let mut training = start(kit, &best_effort)?;
    for (program, model) in [(&mut inference, "inference"), (&mut training, "training")] {
        program.ready()?;
        program.ask(&format!("build {model}"))?;
    }
    // Both run at the same time.
    inference.answer(PATIENCE)?;
    training.answer(PATIENCE)?;
    let mechanisms = pair
        .mechanisms
        .iter()
        .filter(|mechanism| cli.measures(&mechanism.name));
    let mut windows: Vec<(&Mechanism, &str)> = mechanisms
        .flat_map(|mechanism| HOW.map(|how| (mechanism, how)))
        .collect();
    random.shuffle(&mut windows);
    for (mechanism, how) in windows {
        let window = format!("{} {}", moment_in(LEAD), LONGER * cli.seconds);
        if mechanism.beside {
            training.ask(&format!("train {window}"))?;
        }
        let priority = u8::from(mechanism.high_priority);
        let seed = random.u32(..);
        inference.ask(&format!("infer {how} {priority} {RATE} {window} {seed}"))?;
        let line = inference.answer(PATIENCE)?;
        let rate = match mechanism.beside {
            true => vec![number(&training.answer(PATIENCE)?, "launches_per_second")?],
            false => vec![],
        };
        report.add(filled(table(how), &mechanism.name, &line, rate)?);
    }
    drop(training);
    // The user-space mode writes this file if it was active.
    if let Ok(counters) = std::fs::read_to_string(&stats) {
        std::fs::remove_file(&stats)?;
        let counters = counters.replace('\n', ", ");
        let name = pair
            .mechanisms
            .first()
            .map_or("", |mechanism| mechanism.name.as_str());
        report.note(format!(
            "training, {name}: {}",
            counters.trim_end_matches([',', ' '])
        ));
    }
    Ok(())
}
