// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Prints what each owner uses on each GPU, once or again and again (`stat`).

use std::collections::BTreeMap;
use std::thread;
use std::time::Instant;

use gct_client::{Content, Target, Tree};
use gct_core::iface::{files, File};
use serde_json::{json, Value};

use super::counters::{print, targets_of, unless_gone};
use crate::cli::Stat;
use crate::outcome::{Failure, Outcome};
use crate::table::Table;

/// The counters of `compute.stat` that have a column.
const COUNTERS: [&str; 3] = ["launches", "split", "atoms"];

/// What an owner uses on a GPU. `None` is what its GPU does not tell.
#[derive(Debug, Default)]
struct Use {
    memory: Option<String>,
    limit: Option<String>,
    tpcs: Option<String>,
    frozen: Option<String>,
    counters: [Option<u64>; COUNTERS.len()],
}

type Uses = BTreeMap<Target, Use>;

pub(crate) fn run(tree: &Tree, stat: &Stat, as_json: bool) -> Outcome {
    let outcome = match stat.interval {
        Some(_) => watch(tree, stat, as_json),
        None => read(tree, stat).map(|uses| Outcome {
            text: text(&uses, ""),
            json: json!({ "stat": list(&uses) }),
            failures: Vec::new(),
        }),
    };
    outcome.unwrap_or_else(Outcome::failed)
}

/// Prints the rates of each interval.
fn watch(tree: &Tree, stat: &Stat, as_json: bool) -> Result<Outcome, Failure> {
    let interval = stat.interval.unwrap_or_default();
    let (mut before, mut at) = (read(tree, stat)?, Instant::now());
    let mut left = stat.count;
    while left != Some(0) {
        thread::sleep(interval);
        let (now, then) = (read(tree, stat)?, Instant::now());
        let rates = rates(&before, &now, then.duration_since(at).as_millis());
        let page = match as_json {
            true => format!("{}\n", json!({ "stat": list(&rates) })),
            false => format!("{}\n", text(&rates, "/S")),
        };
        if !print(&page)? {
            break;
        }
        (before, at) = (now, then);
        left = left.map(|left| left - 1);
    }
    Ok(Outcome::silent())
}

fn read(tree: &Tree, stat: &Stat) -> Result<Uses, Failure> {
    let mut uses = Uses::new();
    for target in targets_of(tree, stat.target.as_deref())? {
        let content = |file| unless_gone(tree.read(&target, files::entry(file)));
        let shown = |file| content(file).map(|found| found.map(|found| found.to_string()));
        let stat = content(File::ComputeStat)?;
        let counter = |key: &str| match &stat {
            Some(Content::Stat(lines)) => {
                lines.iter().find(|(name, _)| name == key).map(|(_, n)| *n)
            }
            _ => None,
        };
        let found = Use {
            memory: shown(File::GmemCurrent)?,
            limit: shown(File::GmemLimit)?,
            tpcs: shown(File::TpcEffective)?,
            frozen: shown(File::ComputeFreeze)?,
            counters: COUNTERS.map(counter),
        };
        uses.insert(target, found);
    }
    Ok(uses)
}

/// Replaces the counters by what they grew in a second.
fn rates(before: &Uses, now: &Uses, ms: u128) -> Uses {
    let rate = |target: &Target, index: usize, count: Option<u64>| {
        let old = before
            .get(target)
            .and_then(|old| old.counters[index])
            .unwrap_or(0);
        let more = u128::from(count?.saturating_sub(old));
        u64::try_from(more * 1000 / ms.max(1)).ok()
    };
    let of = |(target, found): (&Target, &Use)| {
        let found = Use {
            memory: found.memory.clone(),
            limit: found.limit.clone(),
            tpcs: found.tpcs.clone(),
            frozen: found.frozen.clone(),
            counters: std::array::from_fn(|index| rate(target, index, found.counters[index])),
        };
        (target.clone(), found)
    };
    now.iter().map(of).collect()
}

fn text(uses: &Uses, unit: &str) -> String {
    let counters = COUNTERS.map(|name| format!("{}{unit}", name.to_uppercase()));
    let mut headline = vec!["TARGET", "MEMORY", "LIMIT"];
    headline.extend(counters.iter().map(String::as_str));
    headline.extend(["TPCS", "FROZEN"]);
    let mut table = Table::new(&headline);
    for (target, found) in uses {
        let cell = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
        let counters = found
            .counters
            .map(|count| cell(&count.map(|count| count.to_string())));
        let mut cells = vec![target.to_string(), cell(&found.memory), cell(&found.limit)];
        cells.extend(counters);
        cells.extend([cell(&found.tpcs), cell(&found.frozen)]);
        table.row(cells);
    }
    match table.is_empty() {
        true => "no groups and no processes\n".to_owned(),
        false => table.render(),
    }
}

fn list(uses: &Uses) -> Vec<Value> {
    let of = |(target, found): (&Target, &Use)| {
        let mut object = json!({
            "target": target.to_string(),
            "memory": found.memory.as_ref().and_then(|bytes| bytes.parse::<u64>().ok()),
            "limit": found.limit,
            "tpcs": found.tpcs,
            "frozen": found.frozen.as_ref().map(|frozen| frozen == "1"),
        });
        for (name, count) in COUNTERS.iter().zip(found.counters) {
            object[*name] = count.into();
        }
        object
    };
    uses.iter().map(of).collect()
}
