// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Programs under the library of the user-space mode, with gctd and the stock driver.

use crate::beside::are_masked;
use crate::group::{read, until, Group};
use crate::recorded::{disabled, launches, masks};
use crate::{beside, ipc, limits, mps, smi};
use gct_ktap::{failed, holds, Outcome, Test};
use std::collections::BTreeSet;
use std::fs::File;
use std::process::{Child, Command};
use std::sync::{Mutex, PoisonError};

/// What only this mode has.
const TESTS: &[Test] = &[
    ("gctd.pageable_memory", pageable),
    ("gctd.is_killed", is_killed),
    ("gctd.maker_of_group_dies", ipc::maker_of_group_dies),
];

/// The tests of the patched driver that this mode does not have.
const OTHERS: &[&str] = &[
    "limits.owned",
    "limits.strict",
    "limits.managed_memory",
    "beside.mask_spares",
    "beside.mask_of_owned_graphs",
    "beside.fault",
    "ipc.owner_dies",
];

/// Returns the tests of this mode, of which the first starts the daemon.
pub(crate) fn tests() -> Vec<Test> {
    let of_driver = [
        limits::LIMITS,
        beside::TESTS,
        ipc::TESTS,
        smi::TESTS,
        mps::TESTS,
    ]
    .concat();
    let both = of_driver
        .into_iter()
        .filter(|(name, _)| !OTHERS.contains(name));
    [("gctd.starts", start as fn() -> Outcome)]
        .into_iter()
        .chain(both)
        .chain(TESTS.iter().copied())
        .collect()
}

/// The daemon that runs.
static DAEMON: Mutex<Option<Child>> = Mutex::new(None);

/// Starts gctd, after the end of one that runs. Returns when it answers.
pub(crate) fn start() -> Outcome {
    let mut running = DAEMON.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(mut former) = running.take() {
        former.kill()?;
        former.wait()?;
    }
    let log = File::options()
        .create(true)
        .append(true)
        .open("/tmp/gctd")?;
    let daemon = Command::new("gctd")
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()?;
    *running = Some(daemon);
    until("gctd answers", || Ok(read(".", "events").is_ok()))
}

/// Pageable memory beyond the limit lies on the host, and has what was written.
fn pageable() -> Outcome {
    let group = Group::new(&[("gmem.limit", "600M"), ("gmem.pageable", "1")])?;
    group.passes("large_memory,copies")?;
    let peak: u64 = group.get("gmem.peak")?.trim().parse().map_err(failed)?;
    holds("within the limit", peak <= 600 << 20)
}

/// A program outlives its daemon under its limits, and belongs to its group under the next one.
fn is_killed() -> Outcome {
    let group = Group::new(&[("tpc.mask", "0-31")])?;
    let rounds = group.rounds()?;
    are_masked(&rounds, disabled("0-31")?)?;
    start()?;
    are_masked(&rounds, disabled("0-31")?)?;
    until("it is a member again", || {
        Ok(group.members()?.contains(&rounds.pid()))
    })?;
    group.set("tpc.mask", "32-63")?;
    until("it is masked anew", || {
        let launches = launches(|| rounds.has("# round", rounds.count("# round")? + 2))?;
        Ok(masks(&launches) == BTreeSet::from([disabled("32-63")?]))
    })?;
    holds("charged", group.memory()? > 0)?;
    rounds.goes_on()
}
