// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests that a fault of the GPU stays within the limits of its owner, and that one which finds no
//! memory ends its owner's channel and no other. UVM serves the faults of all tenants in batches,
//! and would cancel the whole batch.

use crate::faults::{events as errors, shown as faulted, MMU_FAULT};
use crate::gmem::{current, events, number, LIMIT};
use crate::gpus::me;
use crate::limits::set;
use crate::managed::{shown, Range, PAGE, ROOT, START};
use crate::process::{Child, Parent};
use crate::replayable::{pages, run, sum, toucher};
use crate::tree::eventually;
use gct_ktap::{holds, same, During, Outcome, Stop, Test};
use rm_client::Access;
use std::sync::atomic::Ordering;

pub(crate) const TESTS: &[Test] = &[
    ("fault_shortage_ends_its_owners_channel_alone", alone),
    ("fault_shortage_of_host_memory_ends_its_channel", of_host),
    ("faults_of_a_launch_stay_within_the_limit", within),
    ("fault_storm_holds_up_no_neighbour", storm),
];

/// Roots and distance of the words that a neighbour uses.
const ROOTS: usize = 8;
const STRIDE: usize = 16 * PAGE;

/// One access to each root.
fn accesses(store: Option<u64>) -> Vec<Access> {
    let access = |root: usize| Access {
        stride: STRIDE as u64,
        ..pages(START + root * ROOT, ROOT, store)
    };
    (0..ROOTS).map(access).collect()
}

/// Uses managed memory with the CPU and launches by turns, which faults all the time.
fn use_memory(rounds: u64) -> Outcome {
    let mut toucher = toucher()?;
    let range = Range::new(toucher.session(), START, ROOTS * ROOT)?;
    for round in 0..rounds {
        for at in (0..ROOTS * ROOT).step_by(STRIDE) {
            let word = range.mapping.u64(at);
            word.store(round + at as u64, Ordering::Relaxed);
        }
        run(&mut toucher, &accesses(None)).during(round)?;
        for root in 0..ROOTS {
            let words = (0..ROOT).step_by(STRIDE);
            let words = words.map(|at| round + (root * ROOT + at) as u64);
            same("sum", toucher.sum(root), words.sum()).during(round)?;
        }
    }
    same("errors", errors(&me())?, faulted(0, 0))
}

/// Forks a process that uses memory once it may go on.
fn neighbour(rounds: u64) -> Result<Child, Stop> {
    let mut child = Child::fork(move |parent: &mut Parent| {
        parent.step()?;
        use_memory(rounds)?;
        parent.step()
    })?;
    child.at_step()?;
    Ok(child)
}

/// A process whose limit leaves no room for managed memory faults again and again beside a
/// neighbour. Each of its channels ends, and what the CPU wrote stays.
fn alone() -> Outcome {
    const CHANNELS: usize = 6;
    let mut beside = neighbour(12)?;
    // None goes before the end: what the resource manager frees would be room.
    let mut touchers: Vec<_> = (0..CHANNELS).map(|_| toucher()).collect::<Result<_, _>>()?;
    let limit = current(&me())?;
    set(&me(), LIMIT, &limit.to_string())?;
    beside.go()?;
    for (toucher, count) in touchers.iter_mut().zip(1..) {
        let range = Range::new(toucher.session(), START, 2 * ROOT)?;
        range.write(count.into());
        toucher.start(&[pages(START, ROOT, None), pages(START + ROOT, ROOT, Some(1))]);
        eventually("its error", &faulted(count, MMU_FAULT), || errors(&me()))?;
        same("ended", toucher.has_ended(), false)?;
        range.check(count.into())?;
    }
    holds("refused", events(&me(), "limit")? >= CHANNELS as u64)?;
    same("peak", number(&me(), "gmem.peak")?, limit)?;
    beside.at_step().during("the neighbour")?;
    beside.go()?;
    beside.finish()
}

/// What cannot be evicted because of `hmem.limit` makes no room. Pages that have their host memory
/// already do.
fn of_host() -> Outcome {
    let mut beside = neighbour(4)?;
    let (mut short, mut toucher) = (toucher()?, toucher()?);
    let limit = current(&me())? + 2 * ROOT as u64;
    set(&me(), LIMIT, &limit.to_string())?;
    set(&me(), "hmem.limit", "0")?;
    beside.go()?;
    let written = Range::new(toucher.session(), START, 4 * ROOT)?;
    written.write(1);
    run(&mut toucher, &[pages(START, 4 * ROOT, None)]).during("evictable")?;
    same("sum", toucher.sum(0), sum(1, 4 * ROOT))?;
    drop(written);
    let range = Range::new(short.session(), START, 4 * ROOT)?;
    short.start(&[pages(START, 4 * ROOT, Some(5))]);
    eventually("its error", &faulted(1, MMU_FAULT), || errors(&me()))?;
    same("host memory", number(&me(), "hmem.current")?, 0)?;
    same("on the GPU", shown(&me())?, 2 * ROOT)?;
    for at in (0..2 * ROOT).step_by(PAGE) {
        let word = range.mapping.u64(at).load(Ordering::Relaxed);
        same("content", word, 5 + at as u64).during(at)?;
    }
    same("peak", number(&me(), "gmem.peak")?, limit)?;
    beside.at_step().during("the neighbour")?;
    beside.go()?;
    beside.finish()
}

/// A launch touches four times as much as its process may have on the GPU.
fn within() -> Outcome {
    let mut toucher = toucher()?;
    let limit = current(&me())? + 2 * ROOT as u64;
    set(&me(), LIMIT, &limit.to_string())?;
    let range = Range::new(toucher.session(), START, ROOTS * ROOT)?;
    range.write(1);
    run(&mut toucher, &accesses(None))?;
    run(&mut toucher, &accesses(Some(3)))?;
    for at in (0..ROOTS * ROOT).step_by(STRIDE) {
        let word = range.mapping.u64(at).load(Ordering::Relaxed);
        same("content", word, 3 + (at % ROOT) as u64).during(at)?;
    }
    holds("evicted", events(&me(), "evicted")? >= ROOTS as u64)?;
    same("errors", errors(&me())?, faulted(0, 0))?;
    same("peak", number(&me(), "gmem.peak")?, limit)
}

/// A process at its limit faults without end. Its neighbour's launches end all the same.
fn storm() -> Outcome {
    let mut hostile = Child::fork(fault_for_ever)?;
    hostile.at_step()?;
    let name = hostile.pid().to_string();
    let limit = current(&name)? + ROOT as u64;
    set(&name, LIMIT, &limit.to_string())?;
    hostile.next()?;
    hostile.go()?;
    let evicted = || events(&name, "evicted");
    eventually("evictions", &true, || Ok(evicted()? > 3))?;
    let before = evicted()?;
    use_memory(3)?;
    holds("it goes on", evicted()? > before)?;
    same("its peak", number(&name, "gmem.peak")?, limit)?;
    same("its errors", errors(&name)?, faulted(0, 0))?;
    hostile.kill();
    Ok(())
}

/// Has a launch fault on half a root at a time, 16 of them side by side.
fn fault_for_ever(parent: &mut Parent) -> Outcome {
    let mut toucher = toucher()?;
    parent.step()?;
    let _range = Range::new(toucher.session(), START, ROOTS * ROOT)?;
    parent.step()?;
    let access = |half: usize| pages(START + half * ROOT / 2, ROOT / 2, Some(1));
    let all: Vec<_> = (0..2 * ROOTS).map(access).collect();
    loop {
        run(&mut toucher, &all)?;
    }
}
