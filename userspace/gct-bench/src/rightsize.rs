// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Measures what `slip.tpc` saves of the TPC-time of each service, and at which cost (LithOS,
//! figure 18). Each service is alone and has a request after the other; then one works beside a
//! training under MPS, which takes the TPCs that are left.

use crate::budget::Budget;
use crate::counters::Counters;
use crate::mechanisms;
use crate::models::{start_all, Models, Window, BUILD, LONGER, PATIENCE, SERVICES};
use crate::report::{Report, Table};
use crate::Cli;
use anyhow::{Context, Result};
use gct_hw::daemon::Daemon;
use gct_hw::kit::{number, Kit};
use gct_hw::mps::Mps;
use gct_hw::served::Served;
use serde_json::Value;

/// `slip.tpc` in percent. The largest comes first: laws are learnt sooner under it.
const SLIPS: [u32; 4] = [0, 20, 10, 3];
/// The time to learn, as a multiple of a window.
const LEARN: f64 = 4.0;
/// The pair, and the share of the GPU's time that its service takes alone.
const PAIR: (&str, &str) = ("bert", "resnet50");
const LOAD: f64 = 0.5;
/// The counters that a row shows, and their file.
const STAT: &str = "compute.stat";
const USED: &str = "usage_tpc_usec";
const SAVED: &str = "slip_saved_usec";
const NARROWED: &str = "slip_narrowed";
const REFUSED: &str = "slip_refused";

pub(crate) fn run(kit: &Kit, cli: &Cli, tpcs: &[&str], report: &mut Report) -> Result<()> {
    let daemon = Daemon::start(kit, &tpcs.join(","))?;
    let mut budget = Budget::new(cli.limit_seconds);
    for name in SERVICES {
        if !budget.admits() {
            report.note("rightsize was cut short by --limit-seconds".into());
            return Ok(());
        }
        if let Err(error) = alone(kit, cli, &daemon, name, report) {
            report.note(format!("{name}: {error:#}"));
        }
        report.write(&cli.out, "rightsize")?;
        budget.done();
    }
    if !budget.admits() {
        report.note("rightsize was cut short by --limit-seconds".into());
        return Ok(());
    }
    beside(kit, cli, &daemon, report)
}

/// Measures one service without a neighbour.
fn alone(kit: &Kit, cli: &Cli, daemon: &Daemon, name: &str, report: &mut Report) -> Result<()> {
    let group = format!("sized-{name}");
    daemon.create(&group)?;
    let env = daemon.group(&group, "");
    let models = [Models::Services(&env, std::slice::from_ref(&name))];
    let [mut program] = <[Served; 1]>::try_from(start_all(kit, &models)?).map_err(|_| lost())?;
    let window = LONGER * cli.seconds;
    for _ in 0..cli.repeat {
        for slip in SLIPS {
            daemon.set(&group, "slip.tpc", &slip.to_string())?;
            program.ask(&format!("again {name} {}", LEARN * window))?;
            program.answer(PATIENCE)?;
            let before = Counters::read(daemon, &group, STAT)?;
            program.ask(&format!("again {name} {window}"))?;
            let times = times(&program.answer(PATIENCE)?)?;
            let used = Used::between(&before, &Counters::read(daemon, &group, STAT)?)?;
            let mut table = Table::new(format!("Right-sized service {name}, alone"), &ALONE);
            let requests = times.len() as f64;
            let mut values = vec![quantile(&times, 0.5), quantile(&times, 0.99)];
            values.extend([
                1e6 * requests / times.iter().sum::<f64>(),
                used.used / requests,
            ]);
            values.extend([
                used.saved_percent(),
                used.narrowed / requests,
                used.refused / requests,
            ]);
            table.row(
                &row(slip),
                &values
                    .into_iter()
                    .map(|value| vec![value])
                    .collect::<Vec<_>>(),
            );
            report.add(table);
        }
    }
    Ok(())
}

const ALONE: [&str; 7] = [
    "p50 us",
    "p99 us",
    "requests/s",
    "TPC-time us",
    "saved %",
    "narrowed launches",
    "refused launches",
];

/// Measures a service of an earlier priority beside a training, both clients of MPS.
fn beside(kit: &Kit, cli: &Cli, daemon: &Daemon, report: &mut Report) -> Result<()> {
    let mps = Mps::start()?;
    let (first, last) = mechanisms::ordered(daemon)?;
    let (first, last) = (mps.client(first), mps.client(last));
    let (service, training) = PAIR;
    let programs = [
        Models::Services(&first, &[service]),
        Models::Trainings(&last, &[training]),
    ];
    let programs = start_all(kit, &programs)?;
    let [mut server, mut trainer] = <[Served; 2]>::try_from(programs).map_err(|_| lost())?;
    server.ask(&format!("cost {service} 50"))?;
    let rate = LOAD / number(&server.answer(PATIENCE)?, "us")? * 1e6;
    let learn = LEARN * LONGER * cli.seconds;
    let title = format!("Right-sized service {service} beside training {training}, MPS");
    let columns = ["p50 us", "p99 us", "saved %", "training steps/s"];
    for _ in 0..cli.repeat {
        for slip in SLIPS {
            daemon.set("first", "slip.tpc", &slip.to_string())?;
            // It learns alone.
            server.ask(&format!("again {service} {learn}"))?;
            server.answer(PATIENCE)?;
            let before = Counters::read(daemon, "first", STAT)?;
            let window = Window::of(cli, report, &title, &row(slip), (cli.requests, rate));
            let Window { start, seconds, .. } = &window;
            trainer.ask(&format!("train {training} {start} {seconds}"))?;
            server.ask(&format!("infer {service} 0 {}", window.requests(rate)))?;
            let times = times(&server.answer(PATIENCE)?)?;
            let steps = number(&trainer.answer(BUILD)?, "launches_per_second")?;
            let used = Used::between(&before, &Counters::read(daemon, "first", STAT)?)?;
            let mut table = Table::new(&title, &columns);
            let values = [
                quantile(&times, 0.5),
                quantile(&times, 0.99),
                used.saved_percent(),
                steps,
            ];
            table.row(&row(slip), &values.map(|value| vec![value]));
            report.add(table);
            report.write(&cli.out, "rightsize")?;
        }
    }
    Ok(())
}

fn row(slip: u32) -> String {
    match slip {
        0 => "none".into(),
        slip => format!("slip.tpc {slip}%"),
    }
}

fn lost() -> anyhow::Error {
    anyhow::anyhow!("a program was not started")
}

/// What a group has used between two moments.
struct Used {
    used: f64,
    saved: f64,
    narrowed: f64,
    refused: f64,
}

impl Used {
    fn between(before: &Counters, after: &Counters) -> Result<Self> {
        let since = |key| after.since(before, key);
        Ok(Self {
            used: since(USED)?,
            saved: since(SAVED)?,
            narrowed: since(NARROWED)?,
            refused: since(REFUSED)?,
        })
    }

    /// Returns the part of the TPC-time that was saved.
    fn saved_percent(&self) -> f64 {
        let all = self.used + self.saved;
        if all > 0.0 {
            100.0 * self.saved / all
        } else {
            0.0
        }
    }
}

/// Returns the latencies of an answer, sorted.
fn times(answer: &Value) -> Result<Vec<f64>> {
    let times = answer["times_us"].as_array().context("no latencies")?;
    let mut times: Vec<f64> = times.iter().filter_map(Value::as_f64).collect();
    times.sort_by(f64::total_cmp);
    Ok(times)
}

/// Returns the time that this part of the sorted times does not exceed; 0 without times.
fn quantile(times: &[f64], part: f64) -> f64 {
    // CAST: requests are few, and the part is below one.
    let at = (times.len().saturating_sub(1) as f64 * part) as usize;
    times.get(at).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_saved_part_is_of_what_would_have_been_used() {
        let before =
            Counters::of("slip_narrowed 3\nslip_refused 1\nslip_saved_usec 10\nusage_tpc_usec 0\n");
        let after = Counters::of(
            "slip_narrowed 7\nslip_refused 1\nslip_saved_usec 40\nusage_tpc_usec 70\n",
        );
        let used = Used::between(&before, &after).unwrap();
        assert_eq!((used.saved_percent(), used.narrowed), (30.0, 4.0));
        let idle = Used::between(&after, &after).unwrap();
        assert_eq!(idle.saved_percent(), 0.0);
    }

    #[test]
    fn quantiles_are_times_that_occurred() {
        let times: Vec<f64> = (0..100).map(f64::from).collect();
        assert_eq!(
            (quantile(&times, 0.5), quantile(&times, 0.99)),
            (49.0, 98.0)
        );
        assert_eq!(quantile(&[], 0.5), 0.0);
    }
}
