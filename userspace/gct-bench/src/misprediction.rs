// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Measures how many launches take over 50 us more or less than predicted (LithOS, section 5.7):
//! each service and each training alone in a group, then each service at half load beside a
//! training that yields to it, by turns.
//!
//! The counters are those of `compute.stat`. Beside another program a launch's waits on the GPU
//! count as errors of its prediction.

use crate::budget::Budget;
use crate::counters::Counters;
use crate::models::{start_all, Models, Window, LONGER, PATIENCE, SERVICES, TRAININGS};
use crate::report::{Report, Table};
use crate::torch::LEAD;
use crate::Cli;
use anyhow::{anyhow, Context, Result};
use gct_hw::daemon::Daemon;
use gct_hw::kit::{moment_in, Kit};
use gct_hw::served::Served;

/// The name of the part.
pub(crate) const MISPREDICTION: &str = "misprediction";
/// The groups of services and trainings, and their `compute.priority` side by side.
const GROUPS: [(&str, &str); 2] = [("services", "0"), ("trainings", "15")];
/// Share of the GPU's time that a service takes alone.
const LOAD: f64 = 0.5;
/// The row of all programs together.
const ALL: &str = "all";
/// Only the last launch of a segment is predicted, from the second launch of its kernel on.
const COLUMNS: [&str; 4] = [
    "launches",
    "predictions",
    "missed by over 50 us",
    "missed (%)",
];
/// Where the programs run, in titles.
const ALONE: &str = "alone";
const BESIDE: &str = "beside each other";

/// Two processes, one with all services and one with all trainings.
struct Programs<'a> {
    daemon: &'a Daemon,
    both: [Served; 2],
    /// Time of a request of each service alone, in microseconds.
    request_us: Vec<f64>,
}

pub(crate) fn run(kit: &Kit, cli: &Cli, tpcs: &[&str], report: &mut Report) -> Result<()> {
    let daemon = Daemon::start(kit, &tpcs.join(","))?;
    for (group, _) in GROUPS {
        daemon.create(group)?;
    }
    let [services, trainings] = GROUPS.map(|(group, _)| daemon.group(group, ""));
    let models = [
        Models::Services(&services, &SERVICES),
        Models::Trainings(&trainings, &TRAININGS),
    ];
    let both = <[Served; 2]>::try_from(start_all(kit, &models)?)
        .map_err(|_| anyhow!("a program was not started"))?;
    let mut programs = Programs {
        daemon: &daemon,
        both,
        request_us: vec![f64::INFINITY; SERVICES.len()],
    };
    let mut budget = Budget::new(cli.limit_seconds);
    for _ in 0..cli.repeat {
        for (index, (service, training)) in SERVICES.into_iter().zip(TRAININGS).enumerate() {
            if !budget.admits() {
                report.note("misprediction was cut short by --limit-seconds".into());
                return Ok(());
            }
            if let Err(error) = programs.measure(cli, index, report) {
                report.note(format!("{service} and {training}: {error:#}"));
                let mut both = programs.both.iter_mut();
                both.try_for_each(|program| program.settle(PATIENCE))?;
            }
            budget.done();
            report.write(&cli.out, MISPREDICTION)?;
        }
    }
    Ok(())
}

impl Programs<'_> {
    /// Measures the service and the training at `index`, each alone and beside the other.
    fn measure(&mut self, cli: &Cli, index: usize, report: &mut Report) -> Result<()> {
        let (service, training) = SERVICES
            .get(index)
            .zip(TRAININGS.get(index))
            .context("no such model")?;
        let seconds = LONGER * cli.seconds;
        let train = |start: &str, seconds| format!("train {training} {start} {seconds}");
        self.yields(false)?;
        let before = self.counters()?;
        let [server, trainer] = &mut self.both;
        server.ask(&format!("again {service} {seconds}"))?;
        let answer = server.answer(PATIENCE)?;
        let times = answer["times_us"].as_array().map_or(0, Vec::len);
        // CAST: requests are few.
        let us = 1e6 * seconds / times.max(1) as f64;
        trainer.ask(&train(&moment_in(LEAD), seconds))?;
        trainer.answer(PATIENCE)?;
        if let Some(known) = self.request_us.get_mut(index) {
            *known = known.min(us);
        }
        self.add(ALONE, [service, training], &before, report)?;

        self.yields(true)?;
        let before = self.counters()?;
        let rate = LOAD * 1e6 / self.request_us.get(index).copied().unwrap_or(us);
        let title = title(GROUPS[0].0, BESIDE);
        let window = Window::of(cli, report, &title, service, (cli.requests, rate));
        let [server, trainer] = &mut self.both;
        trainer.ask(&train(&window.start, window.seconds))?;
        server.ask(&format!("infer {service} 0 {}", window.requests(rate)))?;
        trainer.answer(PATIENCE)?;
        server.answer(PATIENCE)?;
        self.add(BESIDE, [service, training], &before, report)
    }

    /// Lets the trainings yield to the services, or neither to the other.
    fn yields(&self, yields: bool) -> Result<()> {
        GROUPS.iter().try_for_each(|(group, priority)| {
            let priority = if yields { priority } else { "8" };
            self.daemon.set(group, "compute.priority", priority)
        })
    }

    /// Returns the counters of both groups.
    fn counters(&self) -> Result<[Counters; 2]> {
        let [(services, _), (trainings, _)] = GROUPS;
        Ok([
            Counters::read(self.daemon, services, "compute.stat")?,
            Counters::now(self.daemon, trainings, "compute.stat")?,
        ])
    }

    /// Adds what both groups have predicted since `before`.
    fn add(
        &self,
        place: &str,
        models: [&str; 2],
        before: &[Counters; 2],
        report: &mut Report,
    ) -> Result<()> {
        let after = self.counters()?;
        for (((group, _), model), (before, after)) in
            GROUPS.iter().zip(models).zip(before.iter().zip(&after))
        {
            let missed = Missed::between(before, after)?;
            let mut table = Table::new(title(group, place), &COLUMNS);
            table.row(model, &missed.values());
            report.add(table);
            sum(report, &title(group, place));
        }
        Ok(())
    }
}

fn title(group: &str, place: &str) -> String {
    format!("Predictions of {group}, {place}")
}

/// Predictions of a window.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Missed {
    launches: f64,
    predicted: f64,
    missed: f64,
}

impl Missed {
    fn between(before: &Counters, after: &Counters) -> Result<Self> {
        Ok(Self {
            launches: after.since(before, "launches")?,
            predicted: after.since(before, "predicted")?,
            missed: after.since(before, "mispredicted")?,
        })
    }

    /// Returns the cells of a row. Without predictions no part of them is missed.
    fn values(self) -> [Vec<f64>; 4] {
        let part = 100.0 * self.missed / self.predicted;
        let part = Some(part).filter(|part| part.is_finite());
        [
            vec![self.launches],
            vec![self.predicted],
            vec![self.missed],
            part.into_iter().collect(),
        ]
    }
}

/// Writes the row of all programs of a table anew, over all windows.
fn sum(report: &mut Report, title: &str) {
    let Some(table) = report.tables.iter_mut().find(|table| table.title == title) else {
        return;
    };
    table.rows.retain(|row| row.name != ALL);
    let total = |column: usize| -> f64 {
        let values = table.rows.iter().filter_map(|row| row.values.get(column));
        values.flatten().sum()
    };
    let all = Missed {
        launches: total(0),
        predicted: total(1),
        missed: total(2),
    };
    table.row(ALL, &all.values());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters(predicted: u64, missed: u64) -> Counters {
        let launches = 2 * predicted;
        Counters::of(&format!(
            "launches {launches}\npredicted {predicted}\nmispredicted {missed}\n"
        ))
    }

    #[test]
    fn the_part_that_missed_is_of_the_predictions_of_the_window() {
        let missed = Missed::between(&counters(100, 50), &counters(300, 52)).unwrap();
        let values = [vec![400.0], vec![200.0], vec![2.0], vec![1.0]];
        assert_eq!(missed.values(), values);
        let none = Missed::between(&counters(5, 1), &counters(5, 1)).unwrap();
        assert_eq!(none.values()[1..], [vec![0.0], vec![0.0], vec![]]);
    }

    #[test]
    fn all_programs_are_weighed_by_their_predictions() {
        let mut report = Report::default();
        for (model, predicted, missed) in [("bert", 900.0, 0.0), ("decode", 100.0, 10.0)] {
            let mut table = Table::new("t", &COLUMNS);
            let missed = Missed {
                launches: predicted,
                predicted,
                missed,
            };
            table.row(model, &missed.values());
            report.add(table);
            sum(&mut report, "t");
        }
        let all = report.tables[0].get(ALL).unwrap();
        let values = [vec![1000.0], vec![1000.0], vec![10.0], vec![1.0]];
        assert_eq!(all.values, values);
        assert_eq!(report.tables[0].rows.len(), 3);
    }

    #[test]
    fn every_program_has_a_partner() {
        assert_eq!(SERVICES.len(), TRAININGS.len());
    }
}
