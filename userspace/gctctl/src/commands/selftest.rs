// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Checks on each GPU whether masks and atoms are exact, and stores the result (`selftest`).
//!
//! A GPU is tested by launches of `gct-load` under the library of the user-space mode, without a
//! daemon: the limits are those of the environment. A result holds for a GPU, a version of the
//! driver and a release of gctgroup. gctd announces only what is exact.

mod checks;
mod kit;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gct_core::mask::TpcMask;
use gctd_ipc::driver;
use gctd_ipc::selftest::{directory, driver_version, Missing, Selftest};
use serde_json::{json, Value};

use super::run::library;
use crate::cli;
use crate::outcome::{Failure, Outcome};
use crate::table::Table;
use kit::Kit;

/// A GPU that the driver lists.
struct Listed {
    uuid: String,
    minor: u32,
}

pub(crate) fn run(options: &cli::Selftest) -> Outcome {
    match start(options) {
        Ok(outcome) => outcome,
        Err(failure) => Outcome::failed(failure),
    }
}

fn start(options: &cli::Selftest) -> Result<Outcome, Failure> {
    let version = fs::read_to_string(options.gpus.with_file_name("version")).unwrap_or_default();
    let driver = driver_version(&version)
        .ok_or_else(|| Failure::new(7, "No NVIDIA driver is loaded: modprobe nvidia."))?;
    let patience = Duration::from_secs(options.patience);
    let kit = Kit::new(
        &library(options.preload.as_deref())?,
        &directory(),
        patience,
    )?;
    let mut table = Table::new(&["GPU", "DRIVER", "MASKS", "ATOMS", "TPCS"]);
    let mut documents = Vec::new();
    let mut failures = Vec::new();
    let mut add = |gpu: &Listed, found: &Selftest| {
        let (masks, atoms) = (found.masks.to_string(), found.atoms.to_string());
        table.row([&gpu.uuid, driver, &masks, &atoms, &list(&found.tpcs)]);
        documents.push(document(gpu, driver, found));
    };
    for gpu in listed(&options.gpus) {
        let known = match Selftest::read(&directory(), &gpu.uuid, driver) {
            Ok(found) if !options.again => Some(found),
            Err(Missing::Damaged(path, why)) => {
                let path = path.display();
                eprintln!("gctctl: {path} cannot be used: {why}; checking again");
                None
            }
            Ok(_) | Err(Missing::Untested) => None,
        };
        match known.map_or_else(|| test(&kit, &options.gpus, &gpu, driver), Ok) {
            Ok(found) => add(&gpu, &found),
            Err(failure) => failures.push(failure.before(&format!("{}: ", gpu.uuid))),
        }
    }
    let text = match table.is_empty() && failures.is_empty() {
        true => "The driver lists no GPU.\n".to_owned(),
        false => table.render(),
    };
    Ok(Outcome {
        text,
        json: json!({ "selftests": documents }),
        failures,
    })
}

/// Tests a GPU and stores the result.
fn test(kit: &Kit, gpus: &Path, gpu: &Listed, driver: &str) -> Result<Selftest, Failure> {
    if has_mig(gpus, gpu.minor) {
        let message = "it is divided by MIG, where masks have another meaning: not tested.";
        return Err(Failure::new(5, message));
    }
    let found = checks::run(&kit.on(&gpu.uuid))?;
    found
        .write(&directory(), &gpu.uuid, driver)
        .map_err(|error| {
            let directory = directory().display().to_string();
            Failure::new(
                1,
                format!("the result cannot be stored in {directory}: {error}."),
            )
        })?;
    Ok(found)
}

/// Returns the GPUs that the driver lists, in order of PCI address. It does not know the UUID of a
/// GPU that nobody has used yet, so those are initialised.
fn listed(directory: &Path) -> Vec<Listed> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut folders: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    folders.sort();
    let gpu = |folder: PathBuf| {
        let read = || fs::read_to_string(folder.join("information")).ok();
        let text = read()?;
        let minor = driver::field(&text, "Device Minor")?.parse().ok()?;
        let uuid = |text: &str| {
            let uuid = driver::field(text, "GPU UUID").map(str::to_owned);
            uuid.filter(|uuid| !uuid.contains('?'))
        };
        let uuid = uuid(&text).or_else(|| {
            driver::ask(minor);
            uuid(&read()?)
        })?;
        Some(Listed { uuid, minor })
    };
    folders.into_iter().filter_map(gpu).collect()
}

/// Returns whether the driver has MIG instances of a GPU.
fn has_mig(gpus: &Path, minor: u32) -> bool {
    let folder = format!("capabilities/gpu{minor}/mig");
    let entries = fs::read_dir(gpus.with_file_name(folder));
    let mut names = entries.into_iter().flatten().flatten();
    names.any(|entry| entry.file_name().to_string_lossy().starts_with("gi"))
}

fn document(gpu: &Listed, driver: &str, found: &Selftest) -> Value {
    json!({
        "gpu": gpu.uuid,
        "driver": driver,
        "masks": found.masks.to_string(),
        "atoms": found.atoms.to_string(),
        "tpcs": list(&found.tpcs),
    })
}

/// Returns a list of TPCs; `-` for none.
fn list(tpcs: &TpcMask) -> String {
    let mut text = String::new();
    // Writing to a `String` cannot fail.
    let _ = tpcs.show(&mut text);
    match text.is_empty() {
        true => "-".to_owned(),
        false => text,
    }
}
