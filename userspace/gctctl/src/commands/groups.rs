// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Creates, removes and fills groups (`create`, `rm`, `attach`).

use gct_client::{Error, Tree};
use serde_json::json;

use crate::cli::Attach;
use crate::outcome::Outcome;

pub(crate) fn create(tree: &Tree, names: &[String]) -> Outcome {
    each(names, "created", |name| tree.create(name))
}

pub(crate) fn remove(tree: &Tree, names: &[String]) -> Outcome {
    each(names, "removed", |name| tree.remove(name))
}

/// Acts on each name, also after a failure.
fn each(names: &[String], done: &str, mut act: impl FnMut(&str) -> Result<(), Error>) -> Outcome {
    let mut outcome = Outcome::default();
    let mut succeeded = Vec::new();
    for name in names {
        match act(name) {
            Ok(()) => {
                outcome.text.push_str(&format!("{done} {name}\n"));
                succeeded.push(name);
            }
            Err(error) => outcome.failures.push(error.into()),
        }
    }
    outcome.json = json!({ done: succeeded });
    outcome
}

pub(crate) fn attach(tree: &Tree, attach: &Attach) -> Outcome {
    let Attach { group, pid, cgroup } = attach;
    let mut outcome = Outcome::default();
    let mut pids = Vec::new();
    for pid in pid {
        match tree.attach_pid(group, *pid) {
            Ok(()) => {
                outcome.text.push_str(&format!("{group}: process {pid}\n"));
                pids.push(*pid);
            }
            Err(error) => outcome.failures.push(error.into()),
        }
    }
    outcome.json = json!({ "group": group, "pids": pids });
    if let Some(path) = cgroup {
        match tree.attach_cgroup(group, path) {
            Ok(()) => {
                outcome.text.push_str(&format!("{group}: cgroup {path}\n"));
                outcome.json["cgroup"] = path.as_str().into();
            }
            Err(error) => outcome.failures.push(error.into()),
        }
    }
    outcome
}
