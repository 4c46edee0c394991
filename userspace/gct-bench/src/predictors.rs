// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Compares three predictors on the same kernels: that of the core, what it knows of kernels alone,
//! and LithOS's ordinal one (5.7).
//!
//! ```text
//! core     average of the same program, grid and block behind the same kernels, where that was
//!          better lately; else as below                 (gct_core::policy::predict)
//! kernels  average of the same program, grid and block
//! ordinal  median of the kernels at the same place in earlier steps; it has to know where a step
//!          begins
//! ```
//!
//! PyTorch's profiler gives the kernels of each service and training alone, natively. The times of
//! kernels beside a neighbour are those of `misprediction`.

use crate::budget::Budget;
use crate::models::{start_all, Models, BUILD, SERVICES, TRAININGS};
use crate::report::{Report, Table};
use crate::Cli;
use anyhow::{anyhow, ensure, Context, Result};
use gct_core::lane::governor::KERNELS_MAX;
use gct_core::policy::predict::{misses, predict, Habits, Kernel, Path, Predictor};
use gct_core::units::Ns;
use gct_hw::kit::{Kit, RunEnv};
use gct_hw::served::Served;
use serde_json::Value;

/// The name of the part.
pub(crate) const PREDICTORS: &str = "predictors";
/// Steps or requests of a program. The first one teaches the ordinal predictor.
const STEPS: usize = 20;
/// Every kernel has the same TPCs: each program is alone.
const TPCS: u64 = 1;
const COLUMNS: [&str; 7] = [
    "kernels",
    "core: missed by over 50 us (%)",
    "core: error (% of the time)",
    "kernels alone: missed by over 50 us (%)",
    "kernels alone: error (% of the time)",
    "ordinal: missed by over 50 us (%)",
    "ordinal: error (% of the time)",
];

/// A kernel that ran.
#[derive(Clone, Copy, Debug)]
struct Ran {
    kernel: Kernel,
    time: Ns,
}

pub(crate) fn run(kit: &Kit, cli: &Cli, report: &mut Report) -> Result<()> {
    let native = RunEnv::native();
    let models = [
        Models::Services(&native, &SERVICES),
        Models::Trainings(&native, &TRAININGS),
    ];
    let [mut services, mut trainings] = <[Served; 2]>::try_from(start_all(kit, &models)?)
        .map_err(|_| anyhow!("a program was not started"))?;
    let mut budget = Budget::new(cli.limit_seconds);
    let services = (&mut services, "services", "trace", SERVICES);
    let trainings = (&mut trainings, "trainings", "trace-train", TRAININGS);
    for (program, kind, verb, names) in [services, trainings] {
        for name in names {
            if !budget.admits() {
                report.note("predictors was cut short by --limit-seconds".into());
                return Ok(());
            }
            let title = format!("Predictors, {kind} alone");
            match traced(program, &format!("{verb} {name} {STEPS}")) {
                Ok((ran, a_step)) => report.add(row(title, name, &ran, a_step)),
                Err(error) => {
                    report.note(format!("{kind}, {name}: {error:#}"));
                    program.settle(BUILD)?;
                }
            }
            budget.done();
            report.write(&cli.out, PREDICTORS)?;
        }
    }
    Ok(())
}

/// Returns the kernels of some steps, and how many there are in each.
fn traced(program: &mut Served, request: &str) -> Result<(Vec<Ran>, usize)> {
    program.ask(request)?;
    parse(&program.answer(BUILD)?)
}

fn parse(answer: &Value) -> Result<(Vec<Ran>, usize)> {
    let list = answer["kernels"].as_array().context("no kernels")?;
    let ran: Option<Vec<Ran>> = list.iter().map(ran).collect();
    let a_step = answer["a_step"].as_u64().context("no step")?;
    ensure!(a_step > 0, "a step has no kernel");
    Ok((
        ran.context("a kernel is incomplete")?,
        usize::try_from(a_step)?,
    ))
}

/// Parses a kernel: program, grid, block and nanoseconds.
fn ran(list: &Value) -> Option<Ran> {
    let number = |at: usize| list.get(at)?.as_u64();
    let size = |at| u32::try_from(number(at)?).ok();
    Some(Ran {
        kernel: Kernel {
            program: number(0)?,
            grid: [size(1)?, size(2)?, size(3)?],
            block: [size(4)?, size(5)?, size(6)?],
            // How many a TPC holds changes no prediction while all have the same TPCs.
            per_tpc: 0,
        },
        time: Ns(number(7)?),
    })
}

/// Returns the row of one program, of the kernels after its first step.
fn row(title: String, name: &str, ran: &[Ran], a_step: usize) -> Table {
    let judged = ran.get(a_step..).unwrap_or_default();
    let mut table = Table::new(title, &COLUMNS);
    // CAST: kernels are few.
    let mut cells = vec![vec![judged.len() as f64]];
    for predicted in [of_core(ran), of_kernels(ran), ordinal(ran, a_step)] {
        let predicted = predicted.get(a_step..).unwrap_or_default();
        cells.extend(errors(judged, predicted).map(|part| part.into_iter().collect()));
    }
    table.row(name, &cells);
    table
}

/// Predicts each kernel by the core, which learns it then.
fn of_core(ran: &[Ran]) -> Vec<Option<Ns>> {
    let before = ran.iter().scan(Path::default(), |path, ran| {
        let next = path.then(&ran.kernel);
        Some(std::mem::replace(path, next))
    });
    learn(ran.iter().zip(before))
}

/// Predicts each kernel by what the core knows of it wherever it runs.
fn of_kernels(ran: &[Ran]) -> Vec<Option<Ns>> {
    // Behind the launches before, each kernel is a new one. No place comes twice.
    let new = (0..).map(|number| {
        let before = Kernel {
            program: number,
            ..Kernel::graph(0)
        };
        Path::default().then(&before)
    });
    learn(ran.iter().zip(new))
}

/// Predicts each kernel behind its path by the core, which learns it then.
fn learn<'a>(ran: impl Iterator<Item = (&'a Ran, Path)>) -> Vec<Option<Ns>> {
    let (mut slots, mut habits) = (vec![None; KERNELS_MAX], Habits::default());
    let each = ran.map(|(Ran { kernel, time }, path)| {
        let predicted = predict(&slots, &habits, (kernel, path), TPCS);
        let blocks = kernel.blocks().get();
        let mut predictor = Predictor::new(&mut slots, &mut habits);
        predictor.observe((kernel, path), blocks, TPCS, *time);
        predicted
    });
    each.collect()
}

/// Predicts each kernel by its place in a step, and learns it then.
fn ordinal(ran: &[Ran], a_step: usize) -> Vec<Option<Ns>> {
    let mut known = vec![Vec::new(); a_step];
    let each = ran.iter().enumerate().map(|(index, Ran { time, .. })| {
        let place: &mut Vec<Ns> = known.get_mut(index % a_step)?;
        let predicted = place.get(place.len() / 2).copied();
        let at = place.partition_point(|earlier| earlier < time);
        place.insert(at, *time);
        predicted
    });
    each.collect()
}

/// Returns which part of the predictions missed, and the sum of their errors as a part of the sum
/// of the times, both in percent. Nothing without a prediction.
fn errors(ran: &[Ran], predicted: &[Option<Ns>]) -> [Option<f64>; 2] {
    let (mut count, mut missed, mut error, mut sum) = (0.0, 0.0, 0.0, 0.0);
    for (Ran { time, .. }, predicted) in ran.iter().zip(predicted) {
        let Some(predicted) = *predicted else {
            continue;
        };
        count += 1.0;
        missed += f64::from(u8::from(misses(predicted, *time, *time)));
        // CAST: nanoseconds of a kernel.
        error += time.get().abs_diff(predicted.get()) as f64;
        sum += time.get() as f64;
    }
    [missed / count, error / sum].map(|part| Some(100.0 * part).filter(|part| part.is_finite()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn kernel(program: u64, us: u64) -> Ran {
        let ns = us * 1000;
        ran(&json!([program, 8, 1, 1, 128, 1, 1, ns])).unwrap()
    }

    /// Steps of two kernels of one program and grid, whose time depends on their place.
    fn alternating(steps: usize) -> Vec<Ran> {
        (0..steps)
            .flat_map(|_| [kernel(7, 100), kernel(7, 300)])
            .collect()
    }

    #[test]
    fn the_place_in_a_step_tells_kernels_apart_that_look_alike() {
        let table = row("t".into(), "bert", &alternating(10), 2);
        let values = &table.get("bert").unwrap().values;
        assert_eq!((values[0][0], values[5][0], values[6][0]), (18.0, 0.0, 0.0));
        // The average of both is wrong for either.
        assert!(values[3][0] > 90.0, "{values:?}");
        assert!(values[4][0] > 33.0, "{values:?}");
    }

    #[test]
    fn the_core_tells_them_apart_by_the_kernels_before_them() {
        let ran: Vec<Ran> = (0..40)
            .flat_map(|_| [kernel(7, 100), kernel(8, 50), kernel(7, 300)])
            .collect();
        let predicted = of_core(&ran).into_iter().skip(20);
        for (ran, predicted) in ran.iter().skip(20).zip(predicted) {
            assert_eq!(predicted, Some(ran.time));
        }
    }

    #[test]
    fn all_know_what_always_takes_the_same() {
        let steps: Vec<Ran> = (0..10)
            .flat_map(|_| [kernel(1, 100), kernel(2, 300)])
            .collect();
        let table = row("t".into(), "bert", &steps, 2);
        let values = &table.get("bert").unwrap().values;
        assert!(values[1..].iter().all(|part| part[0] < 0.1), "{values:?}");
    }

    #[test]
    fn an_outlier_is_forgotten() {
        let mut steps: Vec<Ran> = (0..40).map(|_| kernel(1, 100)).collect();
        steps.insert(30, kernel(1, 5000));
        let predicted = ordinal(&steps, 1);
        assert_eq!(predicted[0], None);
        assert!(predicted[1..].iter().all(|time| *time == Some(Ns(100_000))));
        assert_eq!(of_core(&steps)[31], Some(Ns(100_000)));
        assert!(of_kernels(&steps)[31] > Some(Ns(1_000_000)));
    }

    #[test]
    fn incomplete_answers_are_errors() {
        let whole = json!({"kernels": [[1, 8, 1, 1, 128, 1, 1, 5]], "a_step": 1});
        assert_eq!(parse(&whole).unwrap().0.len(), 1);
        for answer in [
            json!({"kernels": [[1, 8, 1]], "a_step": 1}),
            json!({"kernels": [], "a_step": 0}),
            json!({}),
        ] {
            assert!(parse(&answer).is_err(), "{answer}");
        }
    }
}
