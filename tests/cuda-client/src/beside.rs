// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Programs that get limits while they run, are stopped, die, fault or find no memory, while others
//! go on.

use crate::group::{until, Group, Program};
use crate::recorded::{disabled, launches, masks, tpcs, words};
use gct_ktap::{failed, holds, same, Outcome, Test};
use std::collections::BTreeSet;
use std::thread::sleep;
use std::time::Duration;

pub(crate) const TESTS: &[Test] = &[
    ("beside.mask_changes", mask_changes),
    ("beside.mask_spares", spares),
    ("beside.mask_of_owned_graphs", owned_graphs),
    ("beside.quotas", quotas),
    ("beside.freeze", freeze),
    ("beside.kill", kill),
    ("beside.fault", fault),
    ("beside.no_memory", no_memory),
];

/// Checks that the next rounds of a program have a mask.
pub(crate) fn are_masked(rounds: &Program, mask: Vec<u32>) -> Outcome {
    // A launch may have begun before.
    let round = |more| rounds.has("# round", rounds.count("# round")? + more);
    round(2)?;
    let launches = launches(|| round(3))?;
    same("masks", masks(&launches), BTreeSet::from([mask]))
}

/// A mask binds a program that ran before it was written, and so does the next one.
fn mask_changes() -> Outcome {
    let group = Group::new(&[])?;
    let rounds = group.rounds()?;
    are_masked(&rounds, vec![0; 8])?;
    for mask in ["0-31", "32-63"] {
        group.set("tpc.mask", mask)?;
        are_masked(&rounds, disabled(mask)?)?;
    }
    rounds.goes_on()
}

/// A mask that comes while a program replays a graph ends no channel of it: nobody has seen what
/// was uploaded before. `permissive` says so.
fn spares() -> Outcome {
    let group = Group::new(&[])?;
    let replays = group.starts("replays")?.works()?;
    group.set("tpc.mask", "0-31")?;
    replays.has("# round", replays.count("# round")? + 5)?;
    same("refused", group.stat("compute.events", "refused")?, 0)?;
    same("permissive", group.stat("compute.stat", "permissive")?, 1)?;
    replays.goes_on()
}

/// A mask that comes while a program of owned channels replays a graph binds the graph.
fn owned_graphs() -> Outcome {
    let group = Group::new(&[("channel.owned", "1")])?;
    let replays = group.starts("replays")?.works()?;
    group.set("tpc.mask", "0-31")?;
    are_masked(&replays, disabled("0-31")?)?;
    same("refused", group.stat("compute.events", "refused")?, 0)?;
    same("permissive", group.stat("compute.stat", "permissive")?, 0)?;
    replays.goes_on()
}

/// Two groups with quotas that no other may use have these TPCs and what nobody has reserved.
fn quotas() -> Outcome {
    let quota = [("tpc.quota", "24"), ("tpc.steal", "0")];
    let (one, other) = (Group::named("one", &quota)?, Group::named("other", &quota)?);
    let (of_one, of_other) = (one.rounds()?, other.rounds()?);
    let reserved = [one.get("tpc.reserved")?, other.get("tpc.reserved")?];
    let [first, second] = [tpcs(&reserved[0])?, tpcs(&reserved[1])?];
    same("TPCs", [first.len(), second.len()], [24; 2])?;
    holds("none in common", first.is_disjoint(&second))?;
    let launches = launches(|| {
        let more = |rounds: &Program| rounds.has("# round", rounds.count("# round")? + 5);
        more(&of_one)?;
        more(&of_other)
    })?;
    let without = reserved.map(|list| tpcs(&list).map(|list| words(&list)));
    let without = without.into_iter().collect::<Result<_, _>>()?;
    same("masks", masks(&launches), without)?;
    of_one.goes_on()?;
    of_other.goes_on()
}

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
    same("members", group.members()?, vec![])?;
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
