// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Programs that are stopped, die, fault or find no memory, while others of their group go on.

use crate::group::{until, Group};
use gct_ktap::{failed, holds, same, Outcome, Test};
use std::thread::sleep;
use std::time::Duration;

pub(crate) const TESTS: &[Test] = &[
    ("beside.freeze", freeze),
    ("beside.kill", kill),
    ("beside.fault", fault),
    ("beside.no_memory", no_memory),
];

/// A frozen program makes no progress, and goes on where it was.
fn freeze() -> Outcome {
    let group = Group::new(&[])?;
    let rounds = group.rounds()?;
    group.set("compute.freeze", "1")?;
    // The launch of a round may have ended before.
    sleep(Duration::from_millis(500));
    let frozen = rounds.count("# round")?;
    sleep(Duration::from_secs(2));
    same("rounds while frozen", rounds.count("# round")?, frozen)?;
    group.set("compute.freeze", "0")?;
    rounds.goes_on()
}

/// A killed program leaves no memory charged, and its group serves another.
fn kill() -> Outcome {
    let group = Group::new(&[("tpc.mask", "0-31")])?;
    let rounds = group.rounds()?;
    holds("charged", group.memory()? > 0)?;
    drop(rounds);
    until("nothing is charged", || Ok(group.memory()? == 0))?;
    same("members", group.members()?.as_str(), "")?;
    group.passes("launch")
}

/// A fault ends the context that made it, and no other.
fn fault() -> Outcome {
    let group = Group::new(&[("channel.owned", "1")])?;
    let rounds = group.rounds()?;
    group.passes("wild_store")?;
    holds("counted", group.stat("compute.events", "faults")? > 0)?;
    rounds.goes_on()
}

/// A context for which a neighbour leaves no memory fails, and the neighbour goes on.
fn no_memory() -> Outcome {
    let group = Group::new(&[("gmem.limit", "900M")])?;
    let rounds = group.rounds()?;
    let output = group.member("context")?;
    let expected = "cuCtxCreate_v2: CUDA_ERROR_OUT_OF_MEMORY";
    if !output.contains(expected) {
        return Err(failed(output));
    }
    rounds.goes_on()
}
