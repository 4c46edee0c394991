// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Measures short copies of a service beside an endless series of long ones, as a checkpoint is.

use crate::report::{Report, Table};
use crate::Cli;
use anyhow::Result;
use gct_hw::daemon::Daemon;
use gct_hw::kit::{moment_in, number, Kit, RunEnv};
use std::time::Duration;

/// The name of the part.
pub(crate) const COPIES: &str = "copies";

/// The directions of both: the service's and the checkpoint's.
const DIRECTIONS: [[&str; 2]; 4] = [
    ["h2d", "h2d"],
    ["h2d", "d2h"],
    ["d2h", "d2h"],
    ["d2h", "h2d"],
];
/// Bytes of a copy of the service, and of the checkpoint.
const BYTES: [u64; 2] = [1 << 20, 4 << 30];
/// The time between two copies of the service.
const PERIOD_US: u64 = 5000;
/// Programs start, and allocate pinned memory, in less than this.
const LEAD: Duration = Duration::from_secs(6);
/// Length of a window as a multiple of the sweep's.
const LONGER: f64 = 5.0;

/// The groups, with the priority of each.
const GROUPS: [(&str, &str); 2] = [("service", "0"), ("checkpoint", "9")];

/// A way to run both programs; `None` if one of them does not run.
type Way = (&'static str, [Option<RunEnv>; 2]);

pub(crate) fn run(kit: &Kit, cli: &Cli, tpcs: &[&str], report: &mut Report) -> Result<()> {
    let daemon = Daemon::start(kit, &tpcs.join(","))?;
    for (group, priority) in GROUPS {
        daemon.create(group)?;
        daemon.set(group, "compute.priority", priority)?;
    }
    let native = || Some(RunEnv::native());
    let ours = || GROUPS.map(|(group, _)| Some(daemon.group(group, "")));
    let [service, checkpoint] = ours();
    let ways: [Way; 6] = [
        ("alone", [native(), None]),
        ("checkpoint alone", [None, native()]),
        ("gct alone", [service, None]),
        ("gct checkpoint alone", [None, checkpoint]),
        ("time slicing", [native(), native()]),
        ("gct priority", ours()),
    ];
    for _ in 0..cli.repeat {
        for directions in DIRECTIONS {
            let title = format!(
                "Copies of 1 MiB ({}, one each 5 ms) beside a series of copies of 4 GiB ({})",
                directions[0], directions[1]
            );
            let mut table = Table::new(title, &["p50 us", "p99 us", "checkpoint GB/s"]);
            for (name, envs) in &ways {
                if cli.mechanisms.is_empty() || cli.mechanisms.iter().any(|only| only == name) {
                    table.row(name, &window(kit, cli, envs, directions)?);
                }
            }
            report.add(table);
            report.write(&cli.out, COPIES)?;
        }
    }
    Ok(())
}

/// Runs both programs at the same time. Returns p50 and p99 of the short copies, and the rate of
/// the long ones.
fn window(
    kit: &Kit,
    cli: &Cli,
    envs: &[Option<RunEnv>; 2],
    [short, long]: [&str; 2],
) -> Result<[Vec<f64>; 3]> {
    let seconds = LONGER * cli.seconds;
    let window = format!("--seconds {seconds} --start-at {}", moment_in(LEAD));
    let [service, checkpoint] = envs;
    let [few, many] = BYTES;
    let start = |env: &RunEnv, work: String| kit.start(env, &format!("{work} {window}"));
    let checkpoint = checkpoint
        .as_ref()
        .map(|env| {
            start(
                env,
                format!("best-effort --copy {long} --bytes {many} --queued 2"),
            )
        })
        .transpose()?;
    let service = service
        .as_ref()
        .map(|env| {
            start(
                env,
                format!("critical --copy {short} --bytes {few} --period-us {PERIOD_US}"),
            )
        })
        .transpose()?;
    let mut row = [Vec::new(), Vec::new(), Vec::new()];
    if let Some(service) = service {
        let line = gct_hw::kit::parse(&service.line()?)?;
        row[0].push(number(&line, "p50_us")?);
        row[1].push(number(&line, "p99_us")?);
    }
    if let Some(checkpoint) = checkpoint {
        let line = gct_hw::kit::parse(&checkpoint.line()?)?;
        // CAST: a power of two.
        row[2].push(number(&line, "launches_per_second")? * many as f64 / 1e9);
    }
    Ok(row)
}
