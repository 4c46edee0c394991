// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Makes the tree what a file says (`apply`).
//!
//! The whole file is checked first. Then the changes are made one after the other. If one fails,
//! those made before are undone.

mod execute;
mod file;
mod plan;

use gct_client::Tree;
use serde_json::{json, Value};

use crate::cli::Apply;
use crate::outcome::{Failure, Outcome};
use plan::Change;

pub(crate) fn run(tree: &Tree, apply: &Apply) -> Outcome {
    let planned = file::read(&apply.file).and_then(|groups| plan::plan(tree, &groups, apply.prune));
    let changes = match planned {
        Ok(changes) => changes,
        Err(failure) => return Outcome::failed(failure),
    };
    let failures = match apply.dry_run {
        true => Vec::new(),
        false => execute::all(tree, &changes),
    };
    let applied = !apply.dry_run && failures.is_empty();
    Outcome {
        text: text(&changes, apply.dry_run, failures.is_empty()),
        json: json!({ "applied": applied, "changes": shown(&changes).map(json_of).collect::<Vec<_>>() }),
        failures,
    }
}

/// Returns the changes that people see: a group that goes takes its limits along.
fn shown(changes: &[Change]) -> impl Iterator<Item = &Change> {
    changes.iter().filter(|change| !change.is_implied())
}

fn text(changes: &[Change], dry_run: bool, succeeded: bool) -> String {
    if !succeeded {
        return String::new();
    }
    let lines: Vec<String> = shown(changes).map(|change| format!("{change}\n")).collect();
    let last = match (lines.is_empty(), dry_run) {
        (true, _) => "nothing to change\n",
        (false, true) => "nothing was changed: this was a dry run\n",
        (false, false) => "",
    };
    lines.concat() + last
}

fn json_of(change: &Change) -> Value {
    match change {
        Change::Create(name) => json!({ "action": "create", "target": name }),
        Change::Remove(name) => json!({ "action": "remove", "target": name }),
        Change::Set(set) => json!({
            "action": "set",
            "target": set.target.to_string(),
            "file": set.entry.name,
            "from": set.from,
            "to": set.to,
        }),
    }
}

/// Returns a failure with the place in the file.
fn wrong(code: u8, group: &str, message: &str) -> Failure {
    Failure::new(
        code,
        format!("group {group}: {message} Nothing was changed."),
    )
}
