// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Takes the processes of groups from their MPS server (`drain`).

use std::env;
use std::path::Path;
use std::time::{Duration, Instant};

use gct_client::mps::{Control, PIPE};
use gct_client::{is_member, Error, Tree};
use serde_json::json;

use crate::cli;
use crate::outcome::{Failure, Outcome};

pub(crate) fn run(tree: &Tree, options: &cli::Drain) -> Outcome {
    let named = options
        .pipe
        .clone()
        .or_else(|| env::var_os(PIPE.0).map(Into::into));
    let control = Control {
        program: options.control.clone(),
        pipe: named.unwrap_or_else(|| PIPE.1.into()),
    };
    if !control.exists() {
        let pipe = control.pipe.display();
        let message = format!("There is no MPS daemon at {pipe}: --pipe names its directory.");
        return Outcome::failed(Failure::new(4, message));
    }
    let until = Instant::now() + Duration::from_secs(options.patience);
    let mut outcome = Outcome::default();
    let mut documents = Vec::new();
    for name in &options.names {
        match drain(tree, name, &control, until, &mut outcome) {
            Ok(clients) => documents.push(json!({ "group": name, "clients": clients })),
            Err(error) => outcome.failures.push(error.into()),
        }
    }
    outcome.json = json!({ "drained": documents });
    outcome
}

fn drain(
    tree: &Tree,
    group: &str,
    control: &Control,
    until: Instant,
    outcome: &mut Outcome,
) -> Result<Vec<u32>, Error> {
    let look = |pid| is_member(tree, Path::new("/proc"), group, pid);
    // There is such a group.
    look(0)?;
    let mut failed = None;
    let drained = control.drain(until, |pid| {
        look(pid).unwrap_or_else(|error| {
            failed = Some(error);
            false
        })
    });
    for client in &drained.clients {
        let line = format!("{group}: process {client} is no client of MPS any more\n");
        outcome.text.push_str(&line);
    }
    let failures = drained.failures.into_iter();
    let failures = failures.map(|failure| Failure::new(1, format!("{group}: {failure}.")));
    outcome.failures.extend(failures);
    match failed {
        Some(error) => Err(error),
        None => Ok(drained.clients),
    }
}
