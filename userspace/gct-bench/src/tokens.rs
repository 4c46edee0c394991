// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Compares the tokens of a greedy decode under each mechanism with those of the program alone.
//!
//! The weights are random, so the likeliest token is often likelier by little: another order of
//! additions changes it.

use crate::mechanisms::{self, Pair, Servers};
use crate::models::{serve, BUILD, PATIENCE};
use crate::report::{Report, Table};
use crate::torch::LEAD;
use crate::Cli;
use anyhow::{Context, Result};
use gct_hw::kit::{moment_in, number, Kit, RunEnv};
use gct_hw::served::Served;
use serde_json::Value;

/// Tokens of each of eight sequences.
const COUNT: usize = 128;
/// The neighbour's model.
const TRAINING: &str = "bert";
/// How long the neighbour trains, in seconds.
const SECONDS: f64 = 3.0;

/// A program that decodes and trains.
fn start(kit: &Kit, environments: &[&RunEnv]) -> Result<Vec<Served>> {
    let mut programs = Vec::new();
    for env in environments {
        programs.push(serve(kit, env)?);
    }
    for program in &mut programs {
        program.ready()?;
        program.ask("build-speaker")?;
        program.ask(&format!("build-trainings {TRAINING}"))?;
    }
    for program in &mut programs {
        program.answer(BUILD)?;
        program.answer(BUILD)?;
    }
    Ok(programs)
}

/// Measures the decode natively, then as either program of each pair.
pub(crate) fn run(kit: &Kit, cli: &Cli, tpcs: &[&str], report: &mut Report) -> Result<()> {
    let native = RunEnv::native();
    let mut alone = start(kit, &[&native, &native])?;
    let mut expected = Vec::new();
    for (at, program) in [0, 0, 1, 1].into_iter().enumerate() {
        let Some(program) = alone.get_mut(program) else {
            continue;
        };
        program.ask(&format!("speak {COUNT} 0"))?;
        let line = program.answer(PATIENCE)?;
        if expected.is_empty() {
            expected = said(&line)?;
        }
        compare(report, &format!("alone, time {at}"), &expected, &line)?;
    }
    drop(alone);
    let servers = Servers::start(kit, tpcs)?;
    let pairs = servers.pairs(tpcs, report, |mechanism| {
        mechanism.beside && !mechanism.high_priority && cli.measures(&mechanism.name)
    })?;
    mechanisms::in_rounds(pairs, cli, "tokens", report, |pair, _, report| {
        with_pair(kit, pair, &expected, report)
    })
}

fn with_pair(kit: &Kit, pair: &Pair, expected: &[u64], report: &mut Report) -> Result<()> {
    let mut programs = start(kit, &[&pair.critical, &pair.best_effort])?;
    for role in ["first", "second"] {
        let [speaker, neighbour] = programs.as_mut_slice() else {
            continue;
        };
        let together = moment_in(LEAD);
        neighbour.ask(&format!("train {TRAINING} {together} {SECONDS}"))?;
        speaker.ask(&format!("speak {COUNT} {together}"))?;
        let line = speaker.answer(PATIENCE)?;
        neighbour.answer(PATIENCE)?;
        for mechanism in &pair.mechanisms {
            compare(
                report,
                &format!("{}, {role}", mechanism.name),
                expected,
                &line,
            )?;
        }
        programs.reverse();
    }
    Ok(())
}

/// Returns the tokens of an answer.
fn said(line: &Value) -> Result<Vec<u64>> {
    let said = line["said"].as_array().context("no tokens")?;
    Ok(said.iter().filter_map(Value::as_u64).collect())
}

/// Adds a row: how many tokens there are, and how many differ.
fn compare(report: &mut Report, name: &str, expected: &[u64], line: &Value) -> Result<()> {
    let said = said(line)?;
    let same = said.iter().zip(expected).filter(|(a, b)| a == b).count();
    let different = expected.len().max(said.len()) - same;
    let mut table = Table::new(
        "Tokens of a greedy decode beside a training",
        &["tokens", "different", "us a step of eight"],
    );
    // CAST: tokens are few.
    let values = [said.len() as f64, different as f64, number(line, "us")?];
    table.row(name, &values.map(|value| vec![value]));
    report.add(table);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_and_changed_tokens_differ() {
        let mut report = Report::default();
        let line = serde_json::json!({"said": [1, 2, 9], "us": 5.0});
        compare(&mut report, "way", &[1, 2, 3, 4], &line).unwrap();
        let row = report.tables[0].get("way").unwrap();
        assert_eq!(row.values, [[3.0], [2.0], [5.0]]);
    }
}
