// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests that managed memory is charged to the process whose memory it is, in whole root chunks of
//! 2 MiB, while it has them on the GPU.

use crate::gmem::{current, number};
use crate::gpus::{me, ENGINE};
use crate::limits::path;
use crate::process::{Child, Parent};
use crate::tree::{self, eventually, expect, expect_gone, Group};
use gct_ktap::{failed, holds, same, During, Outcome, Stop, Test};
use rm_client::{Client, Gpu, Mapping, Session, Uvm};
use std::sync::atomic::Ordering;
use std::thread;

pub(crate) const TESTS: &[Test] = &[
    ("managed_memory_is_charged_by_root", by_root),
    ("managed_memory_of_two_in_no_common_root", no_common_root),
    ("managed_memory_moves_with_its_process", moved),
    ("managed_memory_after_a_kill_at_each_step", killed),
    ("managed_memory_of_threads_that_come_and_go", threads),
    ("managed_memory_of_spaces_that_close_at_once", spaces),
];

pub(crate) const ROOT: usize = 2 << 20;
pub(crate) const PAGE: usize = 4096;
/// Where managed memory begins: nothing of these processes is mapped there.
pub(crate) const START: usize = 0x40_0000_0000;

/// Opens a session whose page tables are UVM's, with a channel group.
pub(crate) fn session() -> Result<Session, Stop> {
    let client = Client::open()?;
    let session = Session::with_uvm(Gpu::open(&client, 0)?).during("session")?;
    session.group(ENGINE)?;
    expect(&me(), 0, Some((1, 0)))?;
    Ok(session)
}

pub(crate) fn uvm(session: &Session) -> Result<&Uvm, Stop> {
    session.uvm().ok_or_else(|| failed("without UVM"))
}

/// Runs `work` in several threads at once. Each passes its number to it.
pub(crate) fn in_threads(count: usize, work: impl Fn(usize) -> Outcome + Copy + Send) -> Outcome {
    thread::scope(|scope| {
        let threads: Vec<_> = (0..count)
            .map(|thread| scope.spawn(move || work(thread)))
            .collect();
        let mut ended = threads.into_iter().map(|thread| thread.join());
        ended.try_for_each(|outcome| outcome.map_err(|_| failed("a thread panicked"))?)
    })
}

/// Returns the bytes of managed memory that `gmem.stat` shows for an owner.
pub(crate) fn shown(owner: &str) -> Result<usize, Stop> {
    let uvm = tree::stat(&path(owner, "gmem.stat")?, "uvm")?;
    usize::try_from(uvm).map_err(failed)
}

/// A range of managed memory.
pub(crate) struct Range {
    pub(crate) mapping: Mapping,
    start: usize,
    length: usize,
}

impl Range {
    pub(crate) fn new(session: &Session, start: usize, length: usize) -> Result<Self, Stop> {
        let mapping = uvm(session)?.managed(start, length).during("mmap")?;
        Ok(Self {
            mapping,
            start,
            length,
        })
    }

    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// Writes a word into each page, with the CPU.
    pub(crate) fn write(&self, seed: u64) {
        for page in (0..self.length).step_by(PAGE) {
            let word = self.mapping.u64(page);
            word.store(seed ^ page as u64, Ordering::Relaxed);
        }
    }

    /// Checks the word in each page.
    pub(crate) fn check(&self, seed: u64) -> Outcome {
        for page in (0..self.length).step_by(PAGE) {
            let word = self.mapping.u64(page).load(Ordering::Relaxed);
            same("content", word, seed ^ page as u64).during(page)?;
        }
        Ok(())
    }

    pub(crate) fn migrate(&self, session: &Session) -> Outcome {
        uvm(session)?
            .migrate(self.start, self.length)
            .during("migrate")
    }
}

/// Only memory on the GPU is charged; a part of a root counts as a whole one.
fn by_root() -> Outcome {
    let session = session()?;
    let before = current(&me())?;
    same("uvm", shown(&me())?, 0)?;
    let range = Range::new(&session, START, 2 * ROOT + ROOT / 2)?;
    range.write(1);
    same("on the CPU", shown(&me())?, 0)?;
    range.migrate(&session)?;
    same("on the GPU", shown(&me())?, 3 * ROOT)?;
    same("current", current(&me())?, before + 3 * ROOT as u64)?;
    same(
        "peak",
        number(&me(), "gmem.peak")?,
        before + 3 * ROOT as u64,
    )?;
    // Small ranges share a root of their process, here the half of one that is free.
    let small = [0, 1, 2, 3].map(|at| Range::new(&session, START + (8 + at) * ROOT, 16 * PAGE));
    for range in &small {
        let range = range.as_ref().map_err(|_| failed("a small range"))?;
        range.write(2);
        range.migrate(&session)?;
    }
    same("small ranges", shown(&me())?, 3 * ROOT)?;
    // A CPU fault brings pages back. UVM keeps their roots for the next migration.
    range.check(1)?;
    holds("at most what was", shown(&me())? <= 3 * ROOT)?;
    drop(range);
    same("unmapped", shown(&me())?, ROOT)?;
    for range in small.into_iter().flatten() {
        range.check(2)?;
    }
    same("all unmapped", shown(&me())?, 0)?;
    same("current", current(&me())?, before)
}

/// Forks a process. At each step it moves a small range of managed memory to the GPU, and at its
/// end it unmaps them.
pub(crate) fn small_ranges(steps: usize) -> Result<Child, Stop> {
    let mut child = Child::fork(|parent: &mut Parent| {
        parent.step()?;
        let session = session()?;
        parent.step()?;
        let mut ranges = Vec::new();
        for step in 0..steps {
            let range = Range::new(&session, START + step * ROOT, 4 * PAGE)?;
            range.write(step as u64);
            range.migrate(&session)?;
            ranges.push(range);
            parent.step()?;
        }
        for (step, range) in ranges.iter().enumerate() {
            range.check(step as u64)?;
        }
        drop(ranges);
        parent.step()
    })?;
    child.at_step()?;
    Ok(child)
}

/// The small ranges of two processes are in different roots. Each pays for its own, and for its own
/// alone when the other has gone.
fn no_common_root() -> Outcome {
    let (mut first, mut second) = (small_ranges(2)?, small_ranges(2)?);
    for child in [&mut first, &mut second] {
        child.next()?;
        child.next()?;
    }
    let names = [first.pid().to_string(), second.pid().to_string()];
    for name in &names {
        same("one root each", shown(name)?, ROOT).during(name)?;
    }
    first.next()?;
    first.next()?;
    same("the first", shown(&names[0])?, 0)?;
    same("the second", shown(&names[1])?, ROOT)?;
    second.next()?;
    same("more of the second", shown(&names[1])?, ROOT)?;
    first.go()?;
    first.finish()?;
    second.kill();
    expect_gone(second.pid())
}

/// A process takes its managed memory to another group.
fn moved() -> Outcome {
    let (from, to) = (Group::new("from")?, Group::new("to")?);
    let mut child = small_ranges(1)?;
    from.add(child.pid())?;
    child.next()?;
    child.next()?;
    same("from", shown("from")?, ROOT)?;
    let all = current("from")?;
    to.add(child.pid())?;
    same("from", [current("from")?, shown("from")? as u64], [0, 0])?;
    same(
        "to",
        [current("to")?, shown("to")? as u64],
        [all, ROOT as u64],
    )?;
    child.next()?;
    same("unmapped", shown("to")?, 0)?;
    child.go()?;
    child.finish()
}

/// Nothing stays charged to a group when a member with managed memory dies.
fn killed() -> Outcome {
    let group = Group::new("rm")?;
    for steps in 0..5 {
        let mut child = small_ranges(3)?;
        group.add(child.pid())?;
        for step in 0..steps {
            child.next().during(format!("step {step}"))?;
        }
        child.kill();
        eventually("current", &0, || current("rm")).during(format!("{steps} steps"))?;
    }
    Ok(())
}

/// Threads make, move, touch and unmap ranges of all sizes. At the end nothing is charged.
fn threads() -> Outcome {
    const THREADS: usize = 4;
    const ROUNDS: usize = 12;
    let session = session()?;
    let before = current(&me())?;
    let work = |thread: usize| -> Outcome {
        for round in 0..ROUNDS {
            let start = START + (64 * thread + round % 3) * ROOT;
            let pages = 1 + (round * 7 + thread * 13) % 600;
            let range = Range::new(&session, start, pages * PAGE)?;
            let seed = (round << 8 | thread) as u64;
            range.write(seed);
            range.migrate(&session)?;
            if round % 2 == 0 {
                range.check(seed)?;
                range.migrate(&session)?;
            }
        }
        Ok(())
    };
    in_threads(THREADS, work)?;
    same("uvm", shown(&me())?, 0)?;
    same("current", current(&me())?, before)
}

/// Threads of one process open address spaces and close them at the same time. Each has memory on
/// the GPU when it closes. At the end nothing is charged.
fn spaces() -> Outcome {
    const THREADS: usize = 4;
    let first = session()?;
    let before = current(&me())?;
    let work = |thread: usize| -> Outcome {
        for round in 0..3 {
            let session = Session::with_uvm(Gpu::open(&Client::open()?, 0)?)?;
            let start = START + 64 * thread * ROOT;
            let range = Range::new(&session, start, ROOT + PAGE)?;
            range.write(round);
            range.migrate(&session)?;
            holds("charged to the process", shown(&me())? >= ROOT)?;
            // The range outlives its address space's file.
            drop(session);
        }
        Ok(())
    };
    in_threads(THREADS, work)?;
    eventually("uvm", &0, || shown(&me()))?;
    eventually("current", &before, || current(&me()))?;
    drop(first);
    Ok(())
}
