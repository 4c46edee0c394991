// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Reports what `gctctl selftest` found on each GPU, and whether gctd has read it.

use gct_client::{Content, Target, Tree};
use gct_core::features::{Feature, Sees};
use gct_core::iface::{files, File};
use gctd_ipc::selftest::{directory, driver_version, Missing, Selftest};

use super::{Finding, Status, System};

const CHECK: &str = "self-test";

/// Returns a finding for each GPU.
pub(super) fn findings(tree: &Tree, system: &System) -> Vec<Finding> {
    let files = ["sys/module/nvidia/version", "proc/driver/nvidia/version"];
    let texts: Vec<String> = files.iter().filter_map(|path| system.read(path)).collect();
    let Some(driver) = texts.iter().find_map(|text| driver_version(text)) else {
        return Vec::new();
    };
    let gpus = tree.gpus().unwrap_or_default();
    gpus.into_iter()
        .map(|gpu| finding(tree, gpu, driver))
        .collect()
}

fn finding(tree: &Tree, gpu: u32, driver: &str) -> Finding {
    let read = |file| tree.read(&Target::Gpu(gpu), files::entry(file));
    let uuid = match read(File::GpuUuid) {
        Ok(uuid) => uuid.to_string(),
        Err(_) => return Finding::ok(CHECK, format!("{gpu}: not initialised yet.")),
    };
    let announced = || match read(File::GpuFeatures) {
        Ok(Content::Words(words)) => words,
        _ => Vec::new(),
    };
    let found = match Selftest::read(&directory(), uuid.trim(), driver) {
        Ok(found) => found,
        Err(Missing::Untested) => {
            let message = format!("{gpu}: not tested with driver {driver}.");
            let advice = "Test it, which takes some seconds: gctctl selftest. Then restart gctd.";
            let advice = format!("{advice}{}", without_launches(&announced()));
            return Finding::ok(CHECK, message).because(Status::Note, advice);
        }
        Err(Missing::Damaged(path, why)) => {
            let message = format!("{gpu}: {} cannot be used: {why}.", path.display());
            return Finding::ok(CHECK, message).because(
                Status::Problem,
                "Test it again: gctctl selftest. Then restart gctd.",
            );
        }
    };
    let message = format!(
        "{gpu}: with driver {driver}, masks: {}; atoms: {}.",
        found.masks, found.atoms
    );
    let announced = announced();
    let stale = [
        (Feature::TpcMask, found.masks.is_exact()),
        (
            Feature::AtomDuration,
            found.masks.is_exact() && found.atoms.is_exact(),
        ),
    ]
    .iter()
    .any(|(feature, exact)| announced.iter().any(|word| word == feature.word()) != *exact);
    let exact = found.masks.is_exact() && found.atoms.is_exact();
    match (stale, exact) {
        (true, _) => Finding::ok(CHECK, message).because(
            Status::Problem,
            "gctd announces something else, as it reads results when it starts: restart it.",
        ),
        (false, true) => Finding::ok(CHECK, message),
        (false, false) => {
            let advice = "gctd refuses these limits on it. To test again: gctctl selftest --again.";
            let advice = format!("{advice}{}", without_launches(&announced));
            Finding::ok(CHECK, message).because(Status::Note, advice)
        }
    }
}

/// Returns what it means if a GPU has no feature that needs launches.
fn without_launches(announced: &[String]) -> &'static str {
    let sees = |feature: &&Feature| feature.sees() == Sees::Launches;
    let mut launches = Feature::ALL.iter().filter(sees);
    match launches.any(|feature| announced.iter().any(|word| word == feature.word())) {
        true => "",
        false => " It has limits on memory and time slices alone, and all channels are native.",
    }
}
