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

/// Launches that are tried one by one.
const TRIES: u32 = 40;

/// Variables of the library.
const TPCS: &str = "GCTGROUP_TPCS";
const MASK: &str = "GCTGROUP_TPC_MASK";
const AT_ONCE: (&str, &str) = ("GCTGROUP_ATOMS", "8");
const PACED: (&str, &str) = ("GCTGROUP_ATOM_DURATION", "20us");
const TRY: (&str, &str) = ("GCTGROUP_TRY_SPLITS", "1");

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
    let Some(chip) = Chip::of(major, minor) else {
        let message = format!("its compute capability {major}.{minor} is not known to gctgroup.");
        return Err(Failure::new(5, message));
    };
    let tpcs = match exact_or_why(find_tpcs(gpu, chip.bits))? {
        Ok(tpcs) => tpcs,
        Err(why) => return Ok(none(&why)),
    };
    if let Err(why) = exact_or_why(masks(gpu, &tpcs, chip.kinds))? {
        return Ok(none(&why));
    }
    let atoms = match chip.measured {
        true => atoms(gpu, &tpcs, &chip),
        false => try_one_by_one(gpu, &tpcs).and_then(|()| atoms(gpu, &tpcs, &chip)),
    };
    let atoms = exact_or_why(atoms)?;
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
        Err(Failed::NotDone(why) | Failed::Late(why)) => Err(untestable(why)),
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

/// What is known of a chip by its compute capability.
struct Chip {
    /// Bits of the mask of a launch: QMD 2.4 and 3.0, 3.0 of Ada, 4.0, 5.0.
    bits: u32,
    /// Options of `exact` for what the chip lacks: clusters and programmatic dependents begin with
    /// Hopper.
    kinds: &'static str,
    /// Whether splits were measured on it.
    measured: bool,
    /// Whether all atoms of a launch may be submitted at once. Without a join its last one waits
    /// for the others.
    joins: bool,
}

impl Chip {
    fn of(major: u64, minor: u64) -> Option<Self> {
        let bits = match (major, minor) {
            (8, 9) => 72,
            (8, _) => 64,
            (9, _) => 128,
            (10..=12, _) => 256,
            _ => return None,
        };
        let joins = major >= 9;
        Some(Self {
            bits,
            kinds: if joins { "" } else { "--plain" },
            measured: major == 9,
            joins,
        })
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

/// Tries launches in atoms on a chip on which splits were not measured. Each has ended, and is
/// checked, before the next one is launched, so a chip that does something else is found by one.
///
/// # Errors
///
/// What the chip does wrong. A launch that does not end is wrong if the same one ends whole.
fn try_one_by_one(gpu: &OnGpu<'_>, tpcs: &TpcMask) -> Result<(), Failed> {
    let existing = list(tpcs);
    let work = format!("exact --rounds {TRIES} --seed 3 --plain --no-graphs --one-by-one");
    let tried = gpu.counters(&[(TPCS, &existing), PACED, TRY], &work);
    let counters = match tried {
        Err(Failed::Late(_)) => {
            gpu.run(&[(TPCS, &existing)], &work)?;
            let why = "a launch in atoms did not end, and the same one ends whole".to_owned();
            return Err(Failed::Wrong(why));
        }
        tried => tried?,
    };
    match counters.get("split").copied().unwrap_or(0) {
        0 => Err(Failed::Wrong(whole(&counters))),
        _ => Ok(()),
    }
}

/// Says that no launch was split, and for which reason most were not.
fn whole(counters: &BTreeMap<String, u64>) -> String {
    let reasons = counters.iter().filter_map(|(key, count)| {
        let reason = key.strip_prefix("passed.")?;
        (*count > 0).then_some((*count, reason))
    });
    match reasons.max() {
        Some((count, reason)) => format!("0 launches were split: {count} were {reason}"),
        None => "0 launches were split".to_owned(),
    }
}

/// Checks random launches that are split at once, and that are released piece by piece.
fn atoms(gpu: &OnGpu<'_>, tpcs: &TpcMask, chip: &Chip) -> Result<(), Failed> {
    let existing = list(tpcs);
    let half = list(&tpcs.lowest(tpcs.count() / 2));
    let ways = [AT_ONCE, PACED];
    for way in ways.into_iter().filter(|way| chip.joins || *way == PACED) {
        let mut variables = vec![(TPCS, existing.as_str()), (MASK, &half), way];
        variables.extend((!chip.measured).then_some(TRY));
        let work = format!("exact --rounds {ROUNDS} --seed 2 {}", chip.kinds);
        let counters = gpu.counters(&variables, &work)?;
        let split = counters.get("split").copied().unwrap_or(0);
        if split < SPLIT_MIN {
            return Err(Failed::Wrong(format!("{split} launches were split")));
        }
    }
    Ok(())
}
