// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Sets limits and reads them back (`set`).

use gct_client::{Content, Error, Owner, Target, Tree};
use gct_core::features::{Feature, Sees};
use gct_core::iface::files::{self, Entry};
use gct_core::iface::value::Format;
use gct_core::iface::Place;
use serde_json::{json, Value};

use super::ungoverned;
use crate::outcome::{Failure, Outcome};
use crate::values::json as to_json;

/// A write of one file.
struct Write<'a> {
    target: Target,
    entry: &'static Entry,
    text: &'a str,
}

pub(crate) fn run(tree: &Tree, target: &str, values: &[String]) -> Outcome {
    let writes = match plan(tree, target, values) {
        Ok(writes) => writes,
        Err(failure) => return Outcome::failed(failure),
    };
    let mut outcome = Outcome::default();
    let mut set: Vec<Value> = Vec::new();
    for Write {
        target,
        entry,
        text,
    } in writes
    {
        match write(tree, &target, entry, text) {
            Ok(content) => {
                let line = format!("{target} {}={content}\n", entry.name);
                outcome.text.push_str(&line);
                warn(tree, &target, entry);
                let value = to_json(&content);
                set.push(
                    json!({ "target": target.to_string(), "file": entry.name, "value": value }),
                );
            }
            Err(error) => outcome.failures.push(error.into()),
        }
    }
    outcome.json = json!({ "set": set });
    outcome
}

/// Says which channels use the GPU beside a limit on launches that was written, and do not obey it.
fn warn(tree: &Tree, target: &Target, entry: &Entry) {
    let on_launches = |feature: Feature| feature.sees() == Sees::Launches;
    if !entry.feature.is_some_and(on_launches) {
        return;
    }
    // The write has succeeded, and an owner that is gone has no channels.
    for found in ungoverned::on_gpu_of(tree, target).unwrap_or_default() {
        eprintln!(
            "gctctl: {target} {}: {}",
            entry.name,
            found.of_a_write(target)
        );
    }
}

/// Returns the writes. Checks every value, before anything is written.
fn plan<'a>(tree: &Tree, target: &str, values: &'a [String]) -> Result<Vec<Write<'a>>, Failure> {
    let target: Target = target.parse()?;
    let mut writes = Vec::new();
    for value in values {
        let (file, text) = value
            .split_once('=')
            .ok_or_else(|| Failure::new(2, format!("{value:?} is not FILE=VALUE.")))?;
        let (entry, targets) = resolve(tree, &target, file)?;
        Tree::parse(entry, text)?;
        writes.extend(targets.into_iter().map(|target| Write {
            target,
            entry,
            text,
        }));
    }
    Ok(writes)
}

/// Returns the file and the targets to write. A limit of an owner is written on each of its GPUs.
fn resolve(
    tree: &Tree,
    target: &Target,
    file: &str,
) -> Result<(&'static Entry, Vec<Target>), Error> {
    if let Some(entry) = target.place().and_then(|place| files::find(place, file)) {
        return Ok((entry, vec![target.clone()]));
    }
    let no_file = || Error::NoFile {
        target: target.to_string(),
        file: file.to_owned(),
    };
    let (Target::Owner(owner), Some(entry)) = (target, files::find(Place::Pool, file)) else {
        return Err(no_file());
    };
    let pool = |gpu| Target::Pool(Owner::clone(owner), gpu);
    let pools: Vec<Target> = tree.pools(owner)?.into_iter().map(pool).collect();
    match pools.is_empty() {
        true => Err(Error::NoGpu {
            target: target.to_string(),
            file: file.to_owned(),
        }),
        false => Ok((entry, pools)),
    }
}

fn write(
    tree: &Tree,
    target: &Target,
    entry: &'static Entry,
    text: &str,
) -> Result<Content, Error> {
    match (entry.format, target, Tree::parse(entry, text)?) {
        (Format::Pids, Target::Owner(Owner::Group(group)), Content::Pids(pids)) => {
            pids.iter()
                .try_for_each(|pid| tree.attach_pid(group, *pid))?;
            tree.read(target, entry)
        }
        _ => tree.set(target, entry, text),
    }
}
