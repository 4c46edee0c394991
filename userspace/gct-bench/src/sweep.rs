// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Measures a latency-critical loop beside a best-effort one under every mechanism, over lengths of
//! best-effort blocks and latency-critical loads.

use crate::dominance::COLUMNS;
use crate::mechanisms::{self, Mechanism, Needs, Pair};
use crate::report::{Point, Report, Table};
use crate::Cli;
use anyhow::Result;
use fastrand::Rng;
use gct_hw::daemon::Daemon;
use gct_hw::kit::{moment_in, number, Kit};
use gct_hw::mps::Mps;
use gct_hw::served::Served;
use serde_json::Value;
use std::time::Duration;

/// The latency-critical kernel: 132 blocks of 256 threads; one wave on 9 TPCs.
pub(crate) const CRITICAL: &str = "critical --blocks 132 --threads 256 --cycles 45000";
/// Duration of that kernel in microseconds.
pub(crate) const CRITICAL_US: u64 = 25;
/// Number of TPCs that it needs.
const CRITICAL_TPCS: usize = 9;
/// Number of blocks of 1024 threads that an H200 runs at the same time.
const WAVE: u64 = 264;
/// Clock cycles per microsecond of blocks that spin on a loaded H200.
const CYCLES_PER_US: u64 = 1_800;
/// Target duration of a best-effort launch in microseconds. A launch has 25 to 100 waves, because
/// its last wave is not full, in particular with fewer TPCs.
const LAUNCH_US: u64 = 12_500;
/// Time until both loops run, and the longer time until each has learned a change of the other's
/// load.
const LEAD: Duration = Duration::from_millis(60);
const FIRST_LEAD: Duration = Duration::from_millis(200);
/// Minimum number of latency-critical launches per window.
const LAUNCHES: f64 = 200.0;
/// Time limit beyond the window for both loops to end.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Returns the requirements of the two loops of the sweep.
pub(crate) fn needs() -> Needs {
    Needs {
        tpcs: CRITICAL_TPCS,
        atom_us: 100,
        percentages: vec![50, 70, 86],
    }
}

/// Returns the arguments of the best-effort loop with blocks of this length.
pub(crate) fn best_effort(blocks_us: u64) -> String {
    let waves = (LAUNCH_US / blocks_us.max(1)).clamp(25, 100);
    format!(
        "best-effort --threads 1024 --queued 2 --blocks {} --cycles {}",
        waves * WAVE,
        blocks_us * CYCLES_PER_US
    )
}

pub(crate) fn run(kit: &Kit, cli: &Cli, tpcs: &[&str], report: &mut Report) -> Result<()> {
    let mps = Mps::start()?;
    let daemon = Daemon::start(kit, &tpcs.join(","))?;
    let mut pairs = mechanisms::all(&needs(), tpcs, &daemon, &mps, report)?;
    pairs.retain(|pair| {
        pair.mechanisms
            .iter()
            .any(|mechanism| cli.measures(&mechanism.name))
    });
    let names: Vec<String> = pairs
        .iter()
        .flat_map(|pair| {
            pair.mechanisms
                .iter()
                .map(|mechanism| mechanism.name.clone())
        })
        .filter(|name| cli.measures(name))
        .collect();
    for point in cli.points() {
        report.add(empty(&point, &names));
    }
    mechanisms::in_rounds(pairs, cli, "sweep", report, |pair, random, report| {
        with_pair(kit, cli, pair, random, report)
    })
}

/// Returns the table of a point, with its rows and without measurements.
fn empty(point: &Point, names: &[String]) -> Table {
    let mut table = table(point);
    for name in names {
        table.row(name, &[]);
    }
    table
}

fn table(point: &Point) -> Table {
    let arrivals = if point.poisson {
        "at random moments (Poisson)"
    } else {
        "periodically"
    };
    let title = format!(
        "Best-effort blocks of {} us, a launch of {CRITICAL_US} us every {} us, {arrivals}",
        point.blocks_us, point.period_us
    );
    Table {
        point: Some(*point),
        ..Table::new(title, &COLUMNS)
    }
}

impl Cli {
    /// Returns the points of the sweep, the lightest loads first. A program learns a shorter pause
    /// at once and a longer one slowly.
    fn points(&self) -> Vec<Point> {
        let mut loads = self.loads.clone();
        loads.sort_unstable();
        let mut points = Vec::new();
        for load in loads {
            for arrivals in &self.arrivals {
                for &blocks_us in &self.blocks_us {
                    points.push(Point {
                        blocks_us,
                        period_us: CRITICAL_US * 100 / load.max(1),
                        poisson: arrivals == "poisson",
                    });
                }
            }
        }
        points
    }

    pub(crate) fn measures(&self, mechanism: &str) -> bool {
        self.mechanisms.is_empty() || self.mechanisms.iter().any(|wanted| wanted == mechanism)
    }
}

/// Measures all points of all mechanisms of a pair, in one run of its processes.
fn with_pair(
    kit: &Kit,
    cli: &Cli,
    pair: &Pair,
    random: &mut Rng,
    report: &mut Report,
) -> Result<()> {
    let mut both = Both::start(kit, pair)?;
    let mut points = cli.points();
    for same_load in
        points.chunk_by_mut(|a, b| (a.period_us, a.poisson) == (b.period_us, b.poisson))
    {
        random.shuffle(same_load);
        let mut lead = FIRST_LEAD;
        for point in same_load {
            for mechanism in pair
                .mechanisms
                .iter()
                .filter(|mechanism| cli.measures(&mechanism.name))
            {
                let samples = both.measure(mechanism, point, lead, cli.seconds, random.u32(..))?;
                let mut table = table(point);
                table.row(
                    &mechanism.name,
                    &samples.map(|sample| sample.into_iter().collect()),
                );
                report.add(table);
                lead = LEAD;
            }
        }
    }
    Ok(())
}

/// The two processes of a pair.
pub(crate) struct Both {
    pub(crate) critical: Served,
    pub(crate) best_effort: Served,
}

impl Both {
    pub(crate) fn start(kit: &Kit, pair: &Pair) -> Result<Self> {
        let mut both = Self {
            critical: kit.serve(&pair.critical)?,
            best_effort: kit.serve(&pair.best_effort)?,
        };
        both.critical.ready()?;
        both.best_effort.ready()?;
        Ok(both)
    }

    /// Measures one window and returns the columns of the table.
    fn measure(
        &mut self,
        mechanism: &Mechanism,
        point: &Point,
        lead: Duration,
        seconds: f64,
        seed: u32,
    ) -> Result<[Option<f64>; 4]> {
        // CAST: milliseconds at most.
        let seconds = seconds.max(LAUNCHES * point.period_us as f64 * 1e-6);
        let poisson = if point.poisson { "--poisson" } else { "" };
        let critical = format!(
            "{CRITICAL} --period-us {} --seed {seed} {poisson}",
            point.period_us
        );
        let (line, rate) = self.window(mechanism, &critical, point.blocks_us, (lead, seconds))?;
        let time = |key| number(&line, key).map(Some);
        Ok([time("p50_us")?, time("p95_us")?, time("p99_us")?, rate])
    }

    /// Runs the loop `critical` for a window of `seconds` that begins after `lead`, beside launches
    /// whose blocks take so long if the mechanism has it beside them. Returns what the loop has
    /// answered, and the rate of these launches in launches/s.
    pub(crate) fn window(
        &mut self,
        mechanism: &Mechanism,
        critical: &str,
        blocks_us: u64,
        (lead, seconds): (Duration, f64),
    ) -> Result<(Value, Option<f64>)> {
        let window = format!("--seconds {seconds} --start-at {}", moment_in(lead));
        if mechanism.beside {
            self.best_effort
                .ask(&format!("{} {window}", best_effort(blocks_us)))?;
        }
        let priority = if mechanism.high_priority {
            "--high-priority"
        } else {
            ""
        };
        self.critical
            .ask(&format!("{critical} {priority} {window}"))?;
        let line = self.critical.answer(PATIENCE)?;
        let rate = match mechanism.beside {
            true => Some(number(
                &self.best_effort.answer(PATIENCE)?,
                "launches_per_second",
            )?),
            false => None,
        };
        Ok((line, rate))
    }
}
