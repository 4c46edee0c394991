// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The steps again, in a process that is a member of a group with limits.
//!
//! The process is a new one: a CUDA context is of no use after a fork, and the driver must know the
//! member before it opens a device. What the limits did is read from the tree, and from what the
//! software GPU recorded.

use crate::beside;
use fakegpu_record::{Event, Recorder};
use gct_core::mask::TpcMask;
use gct_ktap::{failed, holds, same, Outcome, Stop, Test};
use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

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
    ("beside.freeze", beside::freeze),
    ("beside.kill", beside::kill),
    ("beside.fault", beside::fault),
    ("beside.no_memory", beside::no_memory),
];

/// Where debugfs shows the tree.
const ROOT: &str = "/sys/kernel/debug/gctgroup";
/// The member's group.
pub(crate) const NAME: &str = "cuda";

/// Writes to a file of the tree in one `write`.
pub(crate) fn write(path: &str, text: &str) -> io::Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .open(format!("{ROOT}/{path}"))?;
    match file.write(text.as_bytes())? == text.len() {
        true => Ok(()),
        false => Err(io::ErrorKind::WriteZero.into()),
    }
}

pub(crate) fn read(path: &str) -> Result<String, Stop> {
    let text = fs::read_to_string(format!("{ROOT}/{path}"));
    text.map_err(|error| failed(format!("{path}: {error}")))
}

/// The member's group, removed on drop.
pub(crate) struct Group;

impl Group {
    /// Makes the group with these limits of the first GPU.
    pub(crate) fn new(limits: &[(&str, &str)]) -> Result<Self, Stop> {
        // The driver learns what limits a GPU can have from the GPU's first client.
        static STARTED: OnceLock<bool> = OnceLock::new();
        let started = STARTED.get_or_init(|| run("nvidia-smi").is_ok());
        holds("nvidia-smi runs", *started)?;
        write("control", &format!("create {NAME}"))?;
        let group = Self;
        for (file, value) in limits {
            let written = write(&format!("{NAME}/0/{file}"), value);
            written.map_err(|error| failed(format!("{file} = {value}: {error}")))?;
        }
        Ok(group)
    }

    /// Returns the number of a key in `compute.stat` and the like.
    pub(crate) fn stat(&self, file: &str, key: &str) -> Result<u64, Stop> {
        let text = read(&format!("{NAME}/0/{file}"))?;
        let mut lines = text.lines();
        let value = lines.find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
        let value = value.and_then(|value| value.parse().ok());
        value.ok_or_else(|| failed(format!("no {key} in {file}: {text}")))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Err(error) = write("control", &format!("remove {NAME}")) {
            println!("# the group stays: {error}");
        }
    }
}

/// All steps that take little memory.
const ALL: &str = "!large_memory,managed_beyond,long_launches,rounds,small_memset,wild_store";

/// Runs a command of the shell. Returns what it prints.
pub(crate) fn run(command: &str) -> Result<String, Stop> {
    let mut shell = Command::new("sh");
    let output = shell.args(["-c", command]).stdin(Stdio::null()).output()?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs the steps that a filter chooses in a new member of the group. Returns what it prints.
pub(crate) fn member(steps: &str) -> Result<String, Stop> {
    run(&joins_and_runs(steps))
}

/// Returns the command of a shell that joins the group and becomes the program of these steps.
pub(crate) fn joins_and_runs(steps: &str) -> String {
    format!("echo $$ >{ROOT}/{NAME}/group.procs && exec cuda-client all '{steps}'")
}

/// Checks that steps ran, and that all passed.
pub(crate) fn passed(output: String) -> Outcome {
    if output.contains("\nok 1 ") && !output.contains("not ok") {
        return Ok(());
    }
    let stat = read(&format!("{NAME}/0/compute.stat")).unwrap_or_default();
    Err(failed(format!(
        "{output}events:\n{}compute.stat:\n{stat}",
        read("events")?,
    )))
}

/// Runs steps in a new member of the group. All of them must pass.
pub(crate) fn passes(steps: &str) -> Outcome {
    passed(member(steps)?)
}

/// Returns the launches with blocks that a piece of work makes.
fn launches(work: impl FnOnce() -> Outcome) -> Result<Vec<Event>, Stop> {
    let recorder = Recorder::open(0)?;
    let mark = recorder.mark()?;
    work()?;
    let events = recorder.since(mark)?.into_iter();
    let launches = events.filter(|event| event.kind == "launch" && event.grid != [0; 3]);
    let launches: Vec<_> = launches.collect();
    holds("launches", !launches.is_empty())?;
    Ok(launches)
}

/// Returns the words of a list of TPCs.
fn words(list: &str) -> Result<[u32; 8], Stop> {
    let mask = TpcMask::parse(list.trim().as_bytes());
    let mask = mask.map_err(|_| failed(format!("{list} is no list")))?;
    let mut words = [0; 8];
    for tpc in (0..256).filter(|tpc| mask.has(*tpc)) {
        words[tpc / 32] |= 1 << (tpc % 32);
    }
    Ok(words)
}

/// Returns the words that disable all TPCs of the GPU outside of a list.
fn disabled(list: &str) -> Result<Vec<u32>, Stop> {
    let existing = words(&read("gpus/0/tpcs.list")?)?.into_iter();
    let words = existing.zip(words(list)?);
    Ok(words.map(|(existing, list)| existing & !list).collect())
}

/// Returns the different masks of launches.
fn masks(launches: &[Event]) -> BTreeSet<Vec<u32>> {
    launches.iter().map(Event::mask_words).collect()
}

/// NVML finds the GPU and its memory.
fn nvidia_smi() -> Outcome {
    let output = run("nvidia-smi --query-gpu=name,memory.total --format=csv,noheader")?;
    println!("# {}", output.trim());
    holds("the GPU", output.contains("NVIDIA Fake GH100, 16384 MiB"))
}

/// All steps pass in a process that has no limits.
fn without_limits() -> Outcome {
    let launches = launches(|| {
        let output = run(&format!("exec cuda-client all '{ALL}'"))?;
        for line in output.lines().filter(|line| !line.starts_with("KTAP")) {
            println!("# {line}");
        }
        passed(output)
    })?;
    same("masks", masks(&launches), BTreeSet::from([vec![0; 8]]))
}

/// All steps pass on channels that the driver owns.
fn owned() -> Outcome {
    let _group = Group::new(&[("channel.owned", "1")])?;
    passes(ALL)
}

/// Each launch of libcuda's has the mask: those of the test, of memsets, copies and graphs.
fn mask() -> Outcome {
    let group = Group::new(&[("tpc.mask", "0-31")])?;
    let launches = launches(|| passes(ALL))?;
    same(
        "masks",
        masks(&launches),
        BTreeSet::from([disabled("0-31")?]),
    )?;
    holds("rewritten", group.stat("compute.stat", "rewritten")? > 0)
}

/// All that libcuda submits but graphs is bound under `channel.strict`, or its channel would be
/// stopped. Little memory is filled without the macro.
fn strict() -> Outcome {
    let group = Group::new(&[("channel.strict", "1"), ("tpc.mask", "0-31")])?;
    let launches =
        launches(|| passes("!graph,large_memory,managed_beyond,long_launches,rounds,wild_store"))?;
    same(
        "masks",
        masks(&launches),
        BTreeSet::from([disabled("0-31")?]),
    )?;
    same("passed", group.stat("compute.stat", "passed")?, 0)?;
    same("refused", group.stat("compute.events", "refused")?, 0)
}

/// A quota takes nothing from who is alone.
fn quota() -> Outcome {
    let _group = Group::new(&[("tpc.quota", "16")])?;
    let launches = launches(|| passes(ALL))?;
    same("masks", masks(&launches), BTreeSet::from([vec![0; 8]]))
}

/// Long launches are split, and each of their blocks does its share once.
fn atoms() -> Outcome {
    let group = Group::new(&[("atom.duration", "500us")])?;
    let launches = launches(|| passes("long_launches"))?;
    println!("# {} launches recorded", launches.len());
    holds("split", group.stat("compute.stat", "split")? > 0)?;
    same("blocks", launches.iter().map(blocks).sum(), 4u64 << 16)
}

/// Returns how many blocks of a launch ran.
fn blocks(launch: &Event) -> u64 {
    let span = |text: &str| {
        let (start, end) = text.split_once(',')?;
        Some(end.parse::<u64>().ok()? - start.parse::<u64>().ok()?)
    };
    let of_box = |text: &String| {
        let spans = text.split('x').map(|text| text.trim_matches(['[', ')']));
        spans.map(|text| span(text).unwrap_or(0)).product::<u64>()
    };
    launch.blocks.iter().map(of_box).sum()
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
    let _group = Group::new(&limits)?;
    passes(ALL)
}

/// An allocation beyond the limit fails with CUDA's error, and the program goes on. Its context
/// takes 518 MiB.
fn memory() -> Outcome {
    let group = Group::new(&[("gmem.limit", "700M")])?;
    let output = member("memory,copies")?;
    let expected = "cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY";
    same("refused", output.matches(expected).count(), 1)?;
    same("failed", output.matches("not ok").count(), 1)?;
    holds("counted", group.stat("gmem.events", "limit")? > 0)
}

/// A context that finds no memory fails with CUDA's error.
fn no_memory() -> Outcome {
    let _group = Group::new(&[("gmem.limit", "300M")])?;
    let expected = "cuCtxCreate_v2: CUDA_ERROR_OUT_OF_MEMORY";
    holds("no context", member("context")?.contains(expected))
}

/// Managed memory beyond the limit is evicted to the host, and has what was written.
fn managed() -> Outcome {
    let group = Group::new(&[("gmem.limit", "600M")])?;
    passes("managed_beyond")?;
    holds("evicted", group.stat("gmem.events", "evicted")? > 0)
}

/// A program sees its limit as the size of the GPU.
fn memory_info() -> Outcome {
    let _group = Group::new(&[("gmem.limit", "600M")])?;
    let output = member("memory_info")?;
    match output.contains("of 600 MiB free") {
        true => passed(output),
        false => Err(failed(output)),
    }
}
