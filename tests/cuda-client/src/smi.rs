// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What nvidia-smi, and so NVML, shows of memory and processes: to a member of a group with a
//! limit, and to everybody else.

use crate::group::{goes_through, run, Group, Program};
use gct_ktap::{failed, holds, same, Outcome, Stop, Test};
use std::collections::{BTreeMap, BTreeSet};

pub(crate) const TESTS: &[Test] = &[("smi.memory", memory), ("smi.processes", processes)];

const MEMORY: &str =
    "nvidia-smi --query-gpu=memory.total,memory.used,memory.free --format=csv,noheader,nounits";
const PROCESSES: &str =
    "nvidia-smi --query-compute-apps=pid,used_memory --format=csv,noheader,nounits";

/// Returns the numbers of each line.
fn numbers(output: &str) -> Result<Vec<Vec<u64>>, Stop> {
    let line = |line: &str| line.split(", ").map(str::parse).collect();
    let lines: Result<_, std::num::ParseIntError> = output.lines().map(line).collect();
    lines.map_err(|_| failed(output))
}

/// Returns the total, used and free MiB that nvidia-smi prints.
fn sizes(output: &str) -> Result<[u64; 3], Stop> {
    let numbers = numbers(output)?.concat();
    numbers.try_into().map_err(|_| failed(output))
}

/// Returns the MiB of each process that nvidia-smi prints.
fn by_pid(output: &str) -> Result<BTreeMap<u64, u64>, Stop> {
    let pair = |line: Vec<u64>| match line.as_slice() {
        [pid, size] => Ok((*pid, *size)),
        _ => Err(failed(output)),
    };
    numbers(output)?.into_iter().map(pair).collect()
}

/// A member sees its limit, and what its group leaves of it. Others see the GPU.
fn memory() -> Outcome {
    let group = Group::new(&[("gmem.limit", "700M")])?;
    let empty = sizes(&group.runs(MEMORY)?)?;
    let rounds = group.rounds()?;
    let [total, used, free] = sizes(&group.runs(MEMORY)?)?;
    let of_gpu = sizes(&run(MEMORY)?)?;
    same("nothing is used", empty, [700, 0, 700])?;
    same("the total", total, 700)?;
    holds("what is used", (used + free).abs_diff(total) <= 1)?;
    let current = group.memory()? >> 20;
    holds("what is left", free.abs_diff(700 - current) <= 1)?;
    same("the GPU's total", of_gpu[0], 16384)?;
    rounds.goes_on()
}

/// Everybody sees all processes that compute and what each has, as of the stock driver.
fn processes() -> Outcome {
    let group = Group::new(&[("gmem.limit", "700M")])?;
    let member = group.rounds()?;
    let other = Program::start(&format!("exec {}", goes_through("rounds")))?.works()?;
    let both = [&member, &other].map(|program| u64::from(program.pid()));
    for seen in [group.runs(PROCESSES)?, run(PROCESSES)?] {
        let seen = by_pid(&seen)?;
        same(
            "processes",
            seen.keys().copied().collect(),
            BTreeSet::from(both),
        )?;
        // A context and a little memory.
        holds("sizes", seen.values().all(|size| (500..600).contains(size)))?;
    }
    member.goes_on()?;
    other.goes_on()
}
