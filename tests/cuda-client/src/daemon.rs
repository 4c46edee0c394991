// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Programs under the library of the user-space mode, with gctd and the stock driver.

use crate::group::{until, Group, Program};
use crate::recorded::{disabled, launches, masks};
use crate::{beside, ipc, limits};
use gct_ktap::{holds, same, Outcome, Test};
use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command};
use std::sync::{Mutex, PoisonError};

/// What only this mode has.
const TESTS: &[Test] = &[
    ("gctd.mask_changes", mask_changes),
    ("gctd.is_killed", is_killed),
];

/// The tests of the patched driver that this mode does not have.
const OTHERS: &[&str] = &[
    "limits.owned",
    "limits.strict",
    "limits.managed_memory",
    "beside.fault",
];

/// Returns the tests of this mode, of which the first starts the daemon.
pub(crate) fn tests() -> Vec<Test> {
    let of_driver = [limits::LIMITS, beside::TESTS, ipc::TESTS].concat();
    let both = of_driver
        .into_iter()
        .filter(|(name, _)| !OTHERS.contains(name));
    [("gctd.starts", start as fn() -> Outcome)]
        .into_iter()
        .chain(both)
        .chain(TESTS.iter().copied())
        .collect()
}

/// The administrators' socket.
const SOCKET: &str = "/run/gctgroup/admin.sock";

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
    until("gctd listens", || Ok(UnixStream::connect(SOCKET).is_ok()))
}

/// Checks that the next rounds have the mask of a list.
fn are_masked(rounds: &Program, list: &str) -> Outcome {
    // A launch may have begun before.
    let round = |more| rounds.has("# round", rounds.count("# round")? + more);
    round(2)?;
    let launches = launches(|| round(3))?;
    same("masks", masks(&launches), BTreeSet::from([disabled(list)?]))
}

/// Another mask binds a program that runs, from its next launch on.
fn mask_changes() -> Outcome {
    let group = Group::new(&[("tpc.mask", "0-31")])?;
    let rounds = group.rounds()?;
    are_masked(&rounds, "0-31")?;
    group.set("tpc.mask", "32-63")?;
    are_masked(&rounds, "32-63")?;
    rounds.goes_on()
}

/// A program outlives its daemon under its limits, and belongs to its group under the next one.
fn is_killed() -> Outcome {
    let group = Group::new(&[("tpc.mask", "0-31")])?;
    let rounds = group.rounds()?;
    are_masked(&rounds, "0-31")?;
    start()?;
    are_masked(&rounds, "0-31")?;
    let pid = rounds.pid().to_string();
    until("it is a member again", || {
        Ok(group.members()?.lines().any(|member| member == pid))
    })?;
    group.set("tpc.mask", "32-63")?;
    until("it is masked anew", || {
        let launches = launches(|| rounds.has("# round", rounds.count("# round")? + 2))?;
        Ok(masks(&launches) == BTreeSet::from([disabled("32-63")?]))
    })?;
    holds("charged", group.memory()? > 0)?;
    rounds.goes_on()
}
