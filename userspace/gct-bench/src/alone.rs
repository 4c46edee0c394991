// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Measures the cost of the user-space mode for a program that is alone on the GPU.

use crate::report::{Report, Table};
use crate::Cli;
use anyhow::Result;
use gct_hw::daemon::Daemon;
use gct_hw::kit::{number, Kit, RunEnv};

/// Launches a second at which the processor time is measured.
const RATES: [u32; 5] = [0, 20, 200, 2000, 20_000];

/// Measures the cost of a launch, and the processor time by the rate of launches.
pub(crate) fn run(kit: &Kit, cli: &Cli, tpcs: &[&str], report: &mut Report) -> Result<()> {
    let keys = [
        "launch_and_wait_p50_us",
        "launch_and_wait_p99_us",
        "back_to_back_us",
    ];
    let all_tpcs = "0-127";
    let env = [
        ("native", RunEnv::native()),
        ("gctgroup, no limit", RunEnv::gctgroup()),
        (
            "gctgroup, every mask written",
            RunEnv::gctgroup().with("GCTGROUP_TPC_MASK", all_tpcs),
        ),
        (
            "gctgroup, atom.duration 300 us",
            RunEnv::gctgroup().with("GCTGROUP_ATOM_DURATION", 300),
        ),
    ];
    let mut samples = vec![vec![Vec::new(); keys.len()]; env.len()];
    // Interleaved, so that disturbances of the machine affect all alike.
    for _ in 0..cli.repeat {
        for ((_, env), samples) in env.iter().zip(&mut samples) {
            let line = kit.json(env, "launches")?;
            for (key, samples) in keys.iter().zip(samples.iter_mut()) {
                samples.push(number(&line, key)?);
            }
        }
    }
    let mut table = Table::new(
        "Alone: a launch of one block",
        &["launch and wait, p50 (us)", "p99 (us)", "back to back (us)"],
    );
    for ((name, _), samples) in env.iter().zip(&samples) {
        table.row(name, samples);
    }
    report.add(table);
    let daemon = Daemon::start(kit, &tpcs.join(","))?;
    daemon.create("first")?;
    daemon.set("first", "compute.priority", "0")?;
    let first = ("gctgroup, compute.priority 0", daemon.group("first", ""));
    rates(kit, cli, &[env.as_slice(), &[first]].concat(), report)
}

/// Measures processor time and latency of a program that launches at a rate, waits for each launch
/// and sleeps in between.
fn rates(kit: &Kit, cli: &Cli, env: &[(&str, RunEnv)], report: &mut Report) -> Result<()> {
    let columns = RATES.map(|rate| rate.to_string());
    let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
    let title = |what: &str| format!("Alone: {what}, by the number of launches a second");
    let mut time = Table::new(title("% of a core"), &columns);
    let mut p50 = Table::new(title("launch and wait, p50 (us)"), &columns);
    let mut p99 = Table::new(title("launch and wait, p99 (us)"), &columns);
    for _ in 0..cli.repeat {
        for (name, env) in env {
            let lines = RATES.map(|rate| kit.json(env, &format!("idle --seconds 1 --rate {rate}")));
            let lines = lines.into_iter().collect::<Result<Vec<_>>>()?;
            let of = |key: &str| {
                let value = |line| number(line, key).ok().into_iter().collect();
                lines.iter().map(value).collect::<Vec<Vec<f64>>>()
            };
            time.row(name, &of("cpu_percent"));
            p50.row(name, &of("p50_us"));
            p99.row(name, &of("p99_us"));
        }
    }
    for table in [time, p50, p99] {
        report.add(table);
    }
    Ok(())
}
