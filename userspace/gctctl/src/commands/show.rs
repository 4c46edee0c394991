// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Prints files (`show`, `get`, `version`).

use gct_client::{Error, Target, Tree};
use gct_core::iface::files::{self, Mode};
use gct_core::iface::{ABI, VERSION};
use serde_json::{json, Map, Value};

use crate::outcome::{Failure, Outcome};
use crate::table::Table;
use crate::values::{json as to_json, Shown};

pub(crate) fn run(tree: &Tree, target: &str) -> Outcome {
    match target.parse() {
        Ok(target) => show(tree, &target),
        Err(error) => Outcome::failed(error),
    }
}

fn show(tree: &Tree, target: &Target) -> Outcome {
    let gpus = match target {
        Target::Owner(owner) => tree.pools(owner),
        _ => Ok(Vec::new()),
    };
    let gpus = match gpus {
        Ok(gpus) => gpus,
        Err(error) => return Outcome::failed(error),
    };
    let mut outcome = Outcome::default();
    let mut errors = Vec::new();
    let mut object = Map::new();
    object.insert("target".to_owned(), target.to_string().into());
    if target.place().is_some() {
        let (text, files) = directory(tree, target, &mut errors);
        outcome.text.push_str(&text);
        object.insert("files".to_owned(), files);
    }
    if let Target::Owner(owner) = target {
        let mut pools = Map::new();
        for gpu in gpus {
            let pool = Target::Pool(owner.clone(), gpu);
            let (text, files) = directory(tree, &pool, &mut errors);
            outcome.text.push_str(&format!("\n{pool}:\n{text}"));
            pools.insert(gpu.to_string(), json!({ "files": files }));
        }
        object.insert("gpus".to_owned(), pools.into());
    }
    outcome.json = Value::Object(object);
    outcome.failures = errors.into_iter().map(Into::into).collect();
    outcome
}

/// Returns every readable file of a directory.
fn directory(tree: &Tree, target: &Target, errors: &mut Vec<Error>) -> (String, Value) {
    let mut table = Table::new(&["FILE", "VALUE", "UNIT"]);
    let mut object = Map::new();
    let place = target.place();
    let readable = files::FILES
        .iter()
        .filter(|entry| Some(entry.place) == place && entry.mode != Mode::Write);
    for entry in readable {
        match Shown::new(tree.read(target, entry)) {
            Ok(shown) => {
                table.row([entry.name, &shown.text(), entry.unit]);
                object.insert(entry.name.to_owned(), shown.json());
            }
            // The directory does not exist: report it once.
            Err(error @ (Error::NoTarget { .. } | Error::NoTree { .. })) => {
                errors.push(error);
                break;
            }
            Err(error) => errors.push(error),
        }
    }
    (table.render(), object.into())
}

pub(crate) fn get(tree: &Tree, target: &str, file: &str) -> Outcome {
    let found = target.parse().and_then(|target: Target| {
        let entry = target.place().and_then(|place| files::find(place, file));
        let entry = entry.ok_or_else(|| Error::NoFile {
            target: target.to_string(),
            file: file.to_owned(),
        })?;
        tree.read(&target, entry)
    });
    match found {
        Ok(content) => Outcome {
            text: format!("{content}\n"),
            json: json!({ "target": target, "file": file, "value": to_json(&content) }),
            failures: Vec::new(),
        },
        Err(error) => Outcome::failed(error),
    }
}

pub(crate) fn version(tree: &Tree) -> Outcome {
    let release = |[major, minor, patch]: [u32; 3]| format!("{major}.{minor}.{patch}");
    let own = release(VERSION);
    let mut outcome = Outcome {
        text: format!("gctctl {own} abi {ABI}\n"),
        json: json!({ "gctctl": { "release": own, "abi": ABI } }),
        failures: Vec::new(),
    };
    match tree.version() {
        Ok(version) => {
            let theirs = release(version.release);
            let line = format!("gctgroup {theirs} abi {}\n", version.abi);
            outcome.text.push_str(&line);
            outcome.json["gctgroup"] = json!({ "release": theirs, "abi": version.abi });
            if version.abi != ABI {
                outcome.failures.push(Failure::new(
                    1,
                    format!(
                        "The tree has abi {}, this gctctl has abi {ABI}: use the gctctl of the tree's release.",
                        version.abi
                    ),
                ));
            }
        }
        Err(error) => outcome.failures.push(error.into()),
    }
    outcome
}
