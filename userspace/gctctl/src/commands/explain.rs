// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Says what limits do to an owner now, and what its work waits for (`explain`).
//!
//! The files of the tree say all of it, in the kernel and in the user-space mode. Counters are read
//! twice, and their growth is what happened in between.

mod findings;

use std::thread;
use std::time::Instant;

use gct_client::{Content, Target, Tree};
use gct_core::iface::{files, File};
use serde_json::{json, Value};

use super::counters::{targets_of, unless_gone};
use super::ungoverned;
use crate::cli::Explain;
use crate::outcome::{Failure, Outcome};
use crate::table::Table;
use findings::{findings, Finding, Look};

pub(crate) fn run(tree: &Tree, explain: &Explain) -> Outcome {
    explained(tree, explain).unwrap_or_else(Outcome::failed)
}

fn explained(tree: &Tree, explain: &Explain) -> Result<Outcome, Failure> {
    let targets = targets_of(tree, Some(&explain.target))?;
    let mut before = Vec::new();
    for target in targets {
        let began = Instant::now();
        before.push((look(tree, &target)?, began, target));
    }
    thread::sleep(explain.interval);
    let mut outcome = Outcome::default();
    let mut found = Vec::new();
    for (old, began, target) in before {
        let (now, us) = (look(tree, &target)?, began.elapsed().as_micros());
        let us = u64::try_from(us).unwrap_or(u64::MAX);
        let findings = findings(&old, &now, us);
        outcome.text.push_str(&text(&target, &findings));
        found.push(object(&target, us, &findings));
    }
    outcome.json = json!({ "explain": found });
    Ok(outcome)
}

/// Reads the files of an owner on a GPU.
fn look(tree: &Tree, target: &Target) -> Result<Look, Failure> {
    let content = |file| unless_gone(tree.read(target, files::entry(file)));
    let mut look = Look {
        beside: ungoverned::on_gpu_of(tree, target)?,
        ..Look::default()
    };
    look.beside.retain(|found| found.target != *target);
    for file in findings::VALUES {
        if let Some(found) = content(file)? {
            let name = files::entry(file).name;
            look.values.insert(name, found.to_string());
        }
    }
    for file in [
        File::ComputeStat,
        File::ComputeEvents,
        File::GmemEvents,
        File::SloStat,
    ] {
        if let Some(Content::Stat(lines)) = content(file)? {
            let name = files::entry(file).name;
            let counters = lines
                .into_iter()
                .map(|(key, count)| (format!("{name} {key}"), count));
            look.counters.extend(counters);
        }
    }
    Ok(look)
}

fn text(target: &Target, findings: &[Finding]) -> String {
    let mut table = Table::new(&["TOPIC", "FINDING"]);
    for finding in findings {
        table.row([finding.topic, &finding.lines.join("\n")]);
    }
    format!("{target}:\n{}", table.render())
}

fn object(target: &Target, us: u64, findings: &[Finding]) -> Value {
    let of = |finding: &Finding| {
        json!({
            "topic": finding.topic,
            "lines": finding.lines,
            "values": finding.values,
        })
    };
    json!({
        "target": target.to_string(),
        "interval_usec": us,
        "findings": findings.iter().map(of).collect::<Vec<_>>(),
    })
}
