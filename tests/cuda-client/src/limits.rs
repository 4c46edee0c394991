// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The steps again, in a process that is a member of a group with limits. What the limits did is
//! read from the tree, and from what the software GPU recorded.

use crate::group::{goes_through, passed, run, Group};
use crate::recorded::{blocks, disabled, launches, masks};
use gct_ktap::{failed, holds, same, Outcome, Test};
use std::collections::BTreeSet;

/// The tests, each with a group of its own.
pub(crate) const LIMITS: &[Test] = &[
    ("none.nvidia_smi", nvidia_smi),
    ("none.steps", without_limits),
    ("limits.owned", owned),
    ("limits.mask", mask),
    ("limits.strict", strict),
    ("limits.quota", quota),
    ("limits.atoms", atoms),
    ("limits.time", time),
    ("limits.memory", memory),
    ("limits.no_memory", no_memory),
    ("limits.managed_memory", managed),
    ("limits.memory_info", memory_info),
];

/// All steps that take little memory.
pub(crate) const ALL: &str =
    "!large_memory,managed_beyond,long_launches,rounds,replays,small_memset,wild_store,ipc";

/// NVML finds the GPU and its memory.
fn nvidia_smi() -> Outcome {
    let output = run("nvidia-smi --query-gpu=name,memory.total --format=csv,noheader")?;
    println!("# {}", output.trim());
    holds("the GPU", output.contains("NVIDIA Fake GH100, 16384 MiB"))
}

/// All steps pass in a process that has no limits.
fn without_limits() -> Outcome {
    let launches = launches(|| {
        let output = run(&goes_through(ALL))?;
        for line in output.lines().filter(|line| !line.starts_with("KTAP")) {
            println!("# {line}");
        }
        passed(output)
    })?;
    same("masks", masks(&launches), BTreeSet::from([vec![0; 8]]))
}

/// All steps pass on channels that the driver owns.
fn owned() -> Outcome {
    let group = Group::new(&[("channel.owned", "1")])?;
    group.passes(ALL)
}

/// Each launch of libcuda's has the mask: those of the test, of memsets, copies and graphs.
fn mask() -> Outcome {
    let group = Group::new(&[("tpc.mask", "0-31")])?;
    let launches = launches(|| group.passes(ALL))?;
    same(
        "masks",
        masks(&launches),
        BTreeSet::from([disabled("0-31")?]),
    )?;
    holds("rewritten", group.stat("compute.stat", "rewritten")? > 0)
}

/// All that libcuda submits is bound under a mask, or its channel would be stopped. Little memory
/// is filled without the macro.
fn strict() -> Outcome {
    let group = Group::new(&[("tpc.mask", "0-31")])?;
    let launches = launches(|| {
        group.passes("!large_memory,managed_beyond,long_launches,rounds,replays,wild_store,ipc")
    })?;
    same(
        "masks",
        masks(&launches),
        BTreeSet::from([disabled("0-31")?]),
    )?;
    same("passed", group.stat("compute.stat", "passed")?, 0)?;
    same("refused", group.stat("compute.events", "refused")?, 0)?;
    same("permissive", group.stat("compute.stat", "permissive")?, 0)
}

/// A quota takes nothing from who is alone.
fn quota() -> Outcome {
    let group = Group::new(&[("tpc.quota", "16")])?;
    let launches = launches(|| group.passes(ALL))?;
    same("masks", masks(&launches), BTreeSet::from([vec![0; 8]]))
}

/// Long launches are split, and each of their blocks does its share once.
fn atoms() -> Outcome {
    let group = Group::new(&[("atom.duration", "500us")])?;
    let launches = launches(|| group.passes("long_launches"))?;
    println!("# {} launches recorded", launches.len());
    holds("split", group.stat("compute.stat", "split")? > 0)?;
    same("blocks", launches.iter().map(blocks).sum(), 4u64 << 16)
}

/// Time slices, a weight, a cap, a priority and a slip let all steps pass.
fn time() -> Outcome {
    let limits = [
        ("compute.priority", "12"),
        ("slip.tpc", "5"),
        ("compute.timeslice", "1ms"),
        ("compute.weight", "50"),
        ("compute.max", "50ms 100ms"),
    ];
    let group = Group::new(&limits)?;
    group.passes(ALL)
}

/// An allocation beyond the limit fails with CUDA's error, and the program goes on. Its context
/// takes 518 MiB.
fn memory() -> Outcome {
    let group = Group::new(&[("gmem.limit", "700M")])?;
    let output = group.member("memory,copies")?;
    let expected = "cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY";
    same("refused", output.matches(expected).count(), 1)?;
    same("failed", output.matches("not ok").count(), 1)?;
    holds("counted", group.stat("gmem.events", "limit")? > 0)
}

/// A context that finds no memory fails with CUDA's error.
fn no_memory() -> Outcome {
    let group = Group::new(&[("gmem.limit", "300M")])?;
    let expected = "cuCtxCreate_v2: CUDA_ERROR_OUT_OF_MEMORY";
    holds("no context", group.member("context")?.contains(expected))
}

/// Managed memory beyond the limit is evicted to the host, and has what was written.
fn managed() -> Outcome {
    let group = Group::new(&[("gmem.limit", "600M")])?;
    group.passes("managed_beyond")?;
    holds("evicted", group.stat("gmem.events", "evicted")? > 0)
}

/// A program sees its limit as the size of the GPU.
fn memory_info() -> Outcome {
    let group = Group::new(&[("gmem.limit", "600M")])?;
    let output = group.member("memory_info")?;
    match output.contains("of 600 MiB free") {
        true => passed(output),
        false => Err(failed(output)),
    }
}
