// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A latency-critical loop beside a best-effort one, in every way of sharing there is.

use crate::report::{Report, Table};
use crate::Cli;
use anyhow::Result;
use gct_bench::daemon::Daemon;
use gct_bench::kit::{moment_in, number, parse, Kit, Under};
use gct_bench::mps::Mps;
use std::time::Duration;

/// The latency-critical kernel: 132 blocks of 256 threads for 25 us; one wave on 9 TPCs.
const CRITICAL: &str = "critical --blocks 132 --threads 256 --cycles 45000";
/// TPCs that it needs.
const CRITICAL_TPCS: usize = 9;
/// The best-effort kernel: about 100 waves of blocks of 1024 threads, times their length.
const BEST_EFFORT: &str = "best-effort --blocks 26400 --threads 1024";
/// Clock cycles of a microsecond on an H200 under load, for blocks that spin.
const CYCLES_PER_US: u64 = 1_800;
/// Until both have contexts and launch.
const START: Duration = Duration::from_millis(1600);

/// A way of sharing.
struct Way {
    name: &'static str,
    mps: bool,
    high_priority: bool,
    critical: Under,
    best_effort: Under,
}

pub(crate) fn run(kit: &Kit, cli: &Cli, tpcs: &[&str], report: &mut Report) -> Result<()> {
    let mps = Mps::start()?;
    let daemon = Daemon::start(kit, &tpcs.join(","))?;
    let ways = ways(tpcs, &daemon);
    for &blocks_us in &cli.blocks_us {
        for &period_us in &cli.periods_us {
            let table = compare(kit, cli, &ways, &mps, blocks_us, period_us)?;
            report.add(table);
        }
    }
    Ok(())
}

fn compare(
    kit: &Kit,
    cli: &Cli,
    ways: &[Way],
    mps: &Mps,
    blocks_us: u64,
    period_us: u64,
) -> Result<Table> {
    let mut table = Table::new(
        format!("Best-effort blocks of {blocks_us} us, a launch of 25 us every {period_us} us"),
        &["p50 (us)", "p95 (us)", "p99 (us)", "best-effort launches/s"],
    );
    let mut samples = vec![vec![Vec::new(); 4]; ways.len() + 1];
    for _ in 0..cli.repeat {
        for (number, samples) in samples.iter_mut().enumerate() {
            let way = number.checked_sub(1).and_then(|number| ways.get(number));
            measure(kit, cli, mps, way, (blocks_us, period_us), samples)?;
        }
    }
    let names = std::iter::once("alone").chain(ways.iter().map(|way| way.name));
    for (name, samples) in names.zip(&samples) {
        table.row(name, samples);
    }
    Ok(table)
}

/// One measurement of one way; without one, the latency-critical loop alone.
fn measure(
    kit: &Kit,
    cli: &Cli,
    mps: &Mps,
    way: Option<&Way>,
    (blocks_us, period_us): (u64, u64),
    samples: &mut [Vec<f64>],
) -> Result<()> {
    let with_mps = |under: &Under, wanted: bool| {
        let mut under = under.clone();
        if wanted {
            for (name, value) in mps.variables() {
                under = under.with(name, value);
            }
        }
        under
    };
    let start = moment_in(START);
    let window = format!("--seconds {} --start-at {start}", cli.seconds);
    let priority = match way {
        Some(way) if way.high_priority => "--high-priority",
        _ => "",
    };
    let critical = format!("{CRITICAL} --period-us {period_us} {window} {priority}");
    let cycles = blocks_us * CYCLES_PER_US;
    let best_effort = format!("{BEST_EFFORT} --cycles {cycles} {window}");
    let neighbour = match way {
        Some(way) => Some(kit.start(&with_mps(&way.best_effort, way.mps), &best_effort)?),
        None => None,
    };
    let native = Under::native();
    let (under, wanted) = way.map_or((&native, true), |way| (&way.critical, way.mps));
    let line = kit.json(&with_mps(under, wanted), &critical)?;
    for (key, samples) in ["p50_us", "p95_us", "p99_us"]
        .iter()
        .zip(samples.iter_mut())
    {
        samples.push(number(&line, key)?);
    }
    if let (Some(neighbour), Some(samples)) = (neighbour, samples.last_mut()) {
        let line = parse(&neighbour.line()?)?;
        samples.push(number(&line, "launches_per_second")?);
    }
    Ok(())
}

fn ways(tpcs: &[&str], daemon: &Daemon) -> Vec<Way> {
    let list = |tpcs: &[&str]| tpcs.join(",");
    let own = tpcs.get(..CRITICAL_TPCS).unwrap_or_default();
    let rest = tpcs.get(CRITICAL_TPCS..).unwrap_or_default();
    let masked = |tpcs: &[&str]| {
        Under::gctgroup()
            .with("GCTGROUP_TPCS", 128)
            .with("GCTGROUP_TPC_MASK", list(tpcs))
    };
    let way = |name, critical, best_effort| Way {
        name,
        mps: true,
        high_priority: false,
        critical,
        best_effort,
    };
    let native = Under::native;
    let first = |way: Way| Way {
        high_priority: true,
        ..way
    };
    let share = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE";
    vec![
        Way {
            mps: false,
            ..way("time slicing", native(), native())
        },
        way("MPS", native(), native()),
        first(way("MPS, stream priority", native(), native())),
        way(
            "MPS, 86% of the threads",
            native(),
            native().with(share, 86),
        ),
        first(way(
            "MPS, 86% and stream priority",
            native(),
            native().with(share, 86),
        )),
        way(
            "gctgroup, atom.duration 100 us",
            native(),
            masked(tpcs).with("GCTGROUP_ATOM_DURATION", 100),
        ),
        first(way(
            "gctgroup, the same and stream priority",
            native(),
            masked(tpcs).with("GCTGROUP_ATOM_DURATION", 100),
        )),
        way(
            "gctgroup, tpc.mask: 9 TPCs apart",
            masked(own),
            masked(rest),
        ),
        first(way(
            "gctgroup, the same and stream priority",
            masked(tpcs),
            masked(rest),
        )),
        way(
            "gctgroup, tpc.quota 9, stealing, atom.duration 100 us",
            daemon.group("critical", "--quota 9"),
            daemon.group("best-effort", "--quota 0 --atom 100us"),
        ),
        first(way(
            "gctgroup, the same and stream priority",
            daemon.group("critical", "--quota 9"),
            daemon.group("best-effort", "--quota 0 --atom 100us"),
        )),
    ]
}
