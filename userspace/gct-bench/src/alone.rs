// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Measures the cost of the user-space mode for a program that is alone on the GPU.

use crate::report::{Report, Table};
use crate::Cli;
use anyhow::Result;
use gct_hw::kit::{number, Kit, RunEnv};

/// Measures the columns: the output of `gct-load launches`, and the processor time of an idle
/// tenant.
pub(crate) fn run(kit: &Kit, cli: &Cli, report: &mut Report) -> Result<()> {
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
    let mut samples = vec![vec![Vec::new(); keys.len() + 1]; env.len()];
    // Interleaved, so that disturbances of the machine affect all alike.
    for _ in 0..cli.repeat {
        for ((_, env), samples) in env.iter().zip(&mut samples) {
            let line = kit.json(env, "launches")?;
            for (key, samples) in keys.iter().zip(samples.iter_mut()) {
                samples.push(number(&line, key)?);
            }
        }
    }
    for ((_, env), samples) in env.iter().zip(&mut samples) {
        let line = kit.json(env, "idle --seconds 1")?;
        if let Some(samples) = samples.last_mut() {
            samples.push(number(&line, "cpu_percent")?);
        }
    }
    let mut table = Table::new(
        "Alone: a launch of one block",
        &[
            "launch and wait, p50 (us)",
            "p99 (us)",
            "back to back (us)",
            "idle: % of a core",
        ],
    );
    for ((name, _), samples) in env.iter().zip(&samples) {
        table.row(name, samples);
    }
    report.add(table);
    Ok(())
}
