// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Compares the tokens of a greedy decode under each mechanism with those of the program alone.
//!
//! The weights are random, so the likeliest token is often likelier by little: another order of
//! additions changes it. A program that sees fewer SMs gets other kernels of cuBLAS, which add in
//! another order. So each mechanism of ours is measured with all SMs shown, and again with those
//! granted where these are fewer. The second row is compared with its own decode without a
//! neighbour, too: the limit may change tokens, the neighbour may not.

use crate::dominance::OURS;
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
/// The variable that says which SMs a program sees, and its values.
const SM_COUNT: &str = "GCTGROUP_SM_COUNT";
const SHOWN: [&str; 2] = ["all", "granted"];

/// Tokens of the program without a limit, and without a neighbour.
struct Expected {
    native: Vec<u64>,
    own: Vec<u64>,
}

/// Starts programs that decode and train.
fn start(kit: &Kit, environments: &[&RunEnv]) -> Result<Vec<Served>> {
    let mut programs = Vec::new();
    for env in environments {
        programs.push(serve(kit, env)?);
    }
    for program in &mut programs {
        program.ready()?;
    }
    Ok(programs)
}

/// Builds the models of all programs at the same time.
fn build(programs: &mut [Served]) -> Result<()> {
    for program in &mut *programs {
        program.ask("build-speaker")?;
        program.ask(&format!("build-trainings {TRAINING}"))?;
    }
    for program in programs {
        program.answer(BUILD)?;
        program.answer(BUILD)?;
    }
    Ok(())
}

/// Returns the number of SMs that a program sees.
fn sms(program: &mut Served) -> Result<f64> {
    program.ask("sms")?;
    number(&program.answer(BUILD)?, "sms")
}

/// Measures the decode natively, then as either program of each pair.
pub(crate) fn run(kit: &Kit, cli: &Cli, tpcs: &[&str], report: &mut Report) -> Result<()> {
    let native = RunEnv::native();
    let mut alone = start(kit, &[&native, &native])?;
    build(&mut alone)?;
    let mut expected: Option<Expected> = None;
    let mut all_sms = 0.0;
    for (at, program) in [0, 0, 1, 1].into_iter().enumerate() {
        let Some(program) = alone.get_mut(program) else {
            continue;
        };
        all_sms = sms(program)?;
        let line = decode(program, "0")?;
        let expected = match &expected {
            Some(expected) => expected,
            None => expected.insert(Expected {
                native: said(&line)?,
                own: said(&line)?,
            }),
        };
        compare(
            report,
            &format!("alone, time {at}"),
            all_sms,
            expected,
            &line,
        )?;
    }
    let native = expected.map_or_else(Vec::new, |expected| expected.native);
    drop(alone);
    let servers = Servers::start(kit, tpcs)?;
    let pairs = servers.pairs(tpcs, report, |mechanism| {
        mechanism.beside && !mechanism.high_priority && cli.measures(&mechanism.name)
    })?;
    mechanisms::in_rounds(pairs, cli, "tokens", report, |pair, _, report| {
        let ours = pair.mechanisms.iter().any(|m| m.name.starts_with(OURS));
        for shown in SHOWN.into_iter().take(if ours { 2 } else { 1 }) {
            with_pair(kit, pair, shown, all_sms, &native, report)?;
        }
        Ok(())
    })
}

fn decode(speaker: &mut Served, start: &str) -> Result<Value> {
    speaker.ask(&format!("speak {COUNT} {start}"))?;
    speaker.answer(PATIENCE)
}

/// Measures a pair whose programs see `shown` SMs. Those granted are measured only where they are
/// fewer than all.
fn with_pair(
    kit: &Kit,
    pair: &Pair,
    shown: &str,
    all_sms: f64,
    native: &[u64],
    report: &mut Report,
) -> Result<()> {
    let [critical, best_effort] =
        [&pair.critical, &pair.best_effort].map(|env| env.clone().with(SM_COUNT, shown));
    let mut programs = start(kit, &[&critical, &best_effort])?;
    let seen: Vec<f64> = programs.iter_mut().map(sms).collect::<Result<_>>()?;
    if shown != SHOWN[0] && seen.iter().all(|sms| *sms >= all_sms) {
        return Ok(());
    }
    build(&mut programs)?;
    for (role, sms) in ["first", "second"].into_iter().zip(seen) {
        let [speaker, neighbour] = programs.as_mut_slice() else {
            continue;
        };
        let expected = Expected {
            native: native.to_vec(),
            own: said(&decode(speaker, "0")?)?,
        };
        let together = moment_in(LEAD);
        neighbour.ask(&format!("train {TRAINING} {together} {SECONDS}"))?;
        let line = decode(speaker, &together)?;
        neighbour.answer(PATIENCE)?;
        for mechanism in &pair.mechanisms {
            let name = format!("{}, {role}, SMs {shown}", mechanism.name);
            compare(report, &name, sms, &expected, &line)?;
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

/// Returns how many tokens differ or are missing.
fn different(said: &[u64], expected: &[u64]) -> usize {
    let same = said.iter().zip(expected).filter(|(a, b)| a == b).count();
    expected.len().max(said.len()) - same
}

/// Adds a row: how many tokens there are, and how many differ.
fn compare(
    report: &mut Report,
    name: &str,
    sms: f64,
    expected: &Expected,
    line: &Value,
) -> Result<()> {
    let said = said(line)?;
    let mut table = Table::new(
        "Tokens of a greedy decode beside a training",
        &[
            "SMs seen",
            "tokens",
            "different from native",
            "different from its own without a neighbour",
            "us a step of eight",
        ],
    );
    let [native, own] = [&expected.native, &expected.own].map(|other| different(&said, other));
    // CAST: tokens are few.
    let [count, native, own] = [said.len(), native, own].map(|count| count as f64);
    let values = [sms, count, native, own, number(line, "us")?];
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
        let expected = Expected {
            native: vec![1, 2, 3, 4],
            own: vec![1, 2, 9],
        };
        compare(&mut report, "way", 132.0, &expected, &line).unwrap();
        let row = report.tables[0].get("way").unwrap();
        assert_eq!(row.values, [[132.0], [3.0], [2.0], [0.0], [5.0]]);
    }
}
