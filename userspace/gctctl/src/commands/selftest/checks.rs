// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Decides by some runs whether masks and atoms are exact on a GPU.

use std::collections::BTreeMap;

use gct_core::mask::TpcMask;
use gctd_ipc::selftest::{Check, Selftest};
use serde_json::Value;

use super::kit::{Failed, OnGpu};
use super::list;
use crate::outcome::Failure;

/// Random grids of a run, each launched up to four times.
const ROUNDS: u32 = 100;

/// The least part of the launches that must have had a mask, in percent.
const COVERED_MIN: u64 = 99;

/// The least launches of a run that must have been split.
const SPLIT_MIN: u64 = 20;

/// Variables of the library.
const TPCS: &str = "GCTGROUP_TPCS";
const MASK: &str = "GCTGROUP_TPC_MASK";

/// Tests a GPU.
///
/// # Errors
///
/// Fails if the GPU cannot be tested: its architecture is not known, or a run cannot do its work.
pub(super) fn run(gpu: &OnGpu<'_>) -> Result<Selftest, Failure> {
    let line = exact_or_why(gpu.run(&[], "device"))?.map_err(untestable)?;
    let device: Value = serde_json::from_str(&line).unwrap_or_default();
    let number = |at| device["capability"][at].as_u64();
    let (Some(major), Some(minor)) = (number(0), number(1)) else {
        return Err(untestable(format!("{line:?} names no architecture")));
    };
    let Some(bits) = mask_bits(major, minor) else {
        let message = format!("its compute capability {major}.{minor} is not known to gctgroup.");
        return Err(Failure::new(5, message));
    };
    // Clusters and programmatic dependents begin with Hopper.
    let kinds = if major < 9 { "--plain" } else { "" };
    let tpcs = match exact_or_why(find_tpcs(gpu, bits))? {
        Ok(tpcs) => tpcs,
        Err(why) => return Ok(none(&why)),
    };
    if let Err(why) = exact_or_why(masks(gpu, &tpcs, kinds))? {
        return Ok(none(&why));
    }
    let atoms = exact_or_why(atoms(gpu, &tpcs, kinds))?;
    Ok(Selftest {
        tpcs,
        masks: Check::Exact,
        atoms: atoms.map_or_else(Check::Failed, |()| Check::Exact),
    })
}

/// Returns what a check has found: what was wrong is a result of the test. Work that could not be
/// done ends the test without one.
fn exact_or_why<T>(check: Result<T, Failed>) -> Result<Result<T, String>, Failure> {
    match check {
        Ok(found) => Ok(Ok(found)),
        Err(Failed::Wrong(why)) => Ok(Err(why)),
        Err(Failed::NotDone(why)) => Err(untestable(why)),
    }
}

fn untestable(why: String) -> Failure {
    Failure::new(1, format!("it cannot be tested: {why}."))
}

/// Returns the result of a GPU whose masks are wrong. Atoms are sized by masks.
fn none(why: &str) -> Selftest {
    Selftest {
        tpcs: TpcMask::EMPTY,
        masks: Check::Failed(why.to_owned()),
        atoms: Check::Failed("masks are not exact".to_owned()),
    }
}

/// Returns how many bits the mask of a launch has, by the compute capability: QMD 2.4 and 3.0, 3.0
/// of Ada, 4.0, 5.0.
fn mask_bits(major: u64, minor: u64) -> Option<u32> {
    match (major, minor) {
        (8, 9) => Some(72),
        (8, _) => Some(64),
        (9, _) => Some(128),
        (10..=12, _) => Some(256),
        _ => None,
    }
}

/// Finds the TPCs. Each is tried by a launch.
fn find_tpcs(gpu: &OnGpu<'_>, bits: u32) -> Result<TpcMask, Failed> {
    // The resource manager's answer, where there is one, goes first.
    let all = format!("0-{}", bits - 1);
    let line = gpu.run(&[(TPCS, &all)], &format!("tpcs --bits {bits}"))?;
    let tpcs = TpcMask::parse(line.as_bytes());
    tpcs.map_err(|_| Failed::NotDone(format!("{line:?} is no list of TPCs")))
}

/// Checks random launches under two masks that share no TPC.
fn masks(gpu: &OnGpu<'_>, tpcs: &TpcMask, kinds: &str) -> Result<(), Failed> {
    let half = tpcs.lowest(tpcs.count() / 2);
    let existing = list(tpcs);
    for mask in [half, tpcs.without(&half)] {
        let variables = [(TPCS, existing.as_str()), (MASK, &list(&mask))];
        let work = format!("exact --rounds {ROUNDS} {kinds}");
        let counters = gpu.counters(&variables, &work)?;
        let count = |key: &str| counters.get(key).copied().unwrap_or(0);
        let launches = count("launches");
        let passed = count("passed").saturating_sub(count("passed.macro-fill"));
        let masked = count("rewritten") + count("replays");
        let covered = masked.min(launches.saturating_sub(passed));
        let unseen = count("unreadable") + count("unmanaged");
        if launches == 0 || unseen > 0 || covered * 100 < launches * COVERED_MIN {
            return Err(Failed::Wrong(format!(
                "{covered} of {launches} launches had a mask, {unseen} submissions were not seen"
            )));
        }
    }
    Ok(())
}

/// Checks random launches that are split at once, and that are released piece by piece.
fn atoms(gpu: &OnGpu<'_>, tpcs: &TpcMask, kinds: &str) -> Result<(), Failed> {
    let existing = list(tpcs);
    let half = list(&tpcs.lowest(tpcs.count() / 2));
    for (variable, value) in [("GCTGROUP_ATOMS", "8"), ("GCTGROUP_ATOM_DURATION", "20us")] {
        let variables = [(TPCS, existing.as_str()), (MASK, &half), (variable, value)];
        let work = format!("exact --rounds {ROUNDS} --seed 2 {kinds}");
        let counters: BTreeMap<String, u64> = gpu.counters(&variables, &work)?;
        let split = counters.get("split").copied().unwrap_or(0);
        if split < SPLIT_MIN {
            return Err(Failed::Wrong(format!("{split} launches were split")));
        }
    }
    Ok(())
}
