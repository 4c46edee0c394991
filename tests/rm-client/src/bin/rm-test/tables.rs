// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests that page tables of nvidia-uvm are charged to the process whose address space they map, in
//! roots of its own, and that they take no more than a limit leaves.

use crate::gmem::{current, is_refused, number, LIMIT};
use crate::gpus::me;
use crate::limits::{path, set};
use crate::managed::{session, shown, Range, PAGE, ROOT, START};
use crate::process::{Child, Parent};
use crate::suspended::has_lockdep;
use crate::tree::{self, eventually, expect_gone, Group};
use gct_ktap::{holds, same, During, Outcome, Stop, Test};
use rm_client::{Client, Gpu, Memory, Session};

pub(crate) const TESTS: &[Test] = &[
    ("page_tables_are_charged_by_root", by_root),
    ("page_tables_of_two_in_no_common_root", no_common_root),
    ("page_tables_take_no_more_than_a_limit", within_a_limit),
    ("page_tables_without_room_are_on_the_host", on_the_host),
];

/// A table of 4 KiB with entries for 2 MiB each maps so much. Below it a page needs one more.
const STEP: usize = 512 << 20;
/// How many pages so far apart need a root of page tables.
const PER_ROOT: usize = ROOT / (2 * PAGE);

/// Returns the bytes of page tables that `gmem.stat` shows for an owner.
fn tables(owner: &str) -> Result<usize, Stop> {
    let tables = tree::stat(&path(owner, "gmem.stat")?, "page_tables")?;
    usize::try_from(tables).map_err(gct_ktap::failed)
}

/// Returns how much device memory this process can have: all but what others have and cannot be
/// evicted.
fn obtainable(gpu: &Gpu) -> Result<u64, Stop> {
    let mut sum = 0;
    let mut all = Vec::new();
    for bytes in [256, 32, 4, 2].map(|mib| mib << 20) {
        loop {
            let allocated = gpu.alloc_memory(Memory::Device, bytes);
            match allocated {
                Ok(memory) => all.push(memory),
                refused => {
                    holds("out of memory", is_refused(refused)?)?;
                    break;
                }
            }
            sum += bytes;
        }
    }
    for memory in all {
        gpu.client().free(memory)?;
    }
    Ok(sum)
}

/// Moves pages far apart to the GPU: those from `first` to `end`.
fn pages(session: &Session, first: usize, end: usize) -> Result<Vec<Range>, Stop> {
    let page = |at: usize| {
        let range = Range::new(session, START + at * STEP, PAGE)?;
        range.write(at as u64);
        range.migrate(session)?;
        Ok::<_, Stop>(range)
    };
    (first..end)
        .map(|at| page(at).during(format!("page {at}")))
        .collect()
}

fn check(pages: &[Range]) -> Outcome {
    let mut numbers = pages.iter().zip(0..);
    numbers.try_for_each(|(range, seed)| range.check(seed))
}

/// Page tables fill roots of their process, which go with what they map.
fn by_root() -> Outcome {
    let session = session()?;
    same("of an address space", tables(&me())?, ROOT)?;
    let before = current(&me())?;
    let few = pages(&session, 0, 8)?;
    same("one root of page tables", tables(&me())?, ROOT)?;
    same("a part of a root", current(&me())?, before + ROOT as u64)?;
    check(&few)?;
    let more = pages(&session, 8, PER_ROOT + 8)?;
    same("two roots", tables(&me())?, 2 * ROOT)?;
    same("current", current(&me())?, before + 2 * ROOT as u64)?;
    drop((few, more));
    same("unmapped", tables(&me())?, ROOT)?;
    same("current", current(&me())?, before)
}

/// Forks a process with page tables and nothing else of UVM's.
fn mapped() -> Result<Child, Stop> {
    let mut child = Child::fork(|parent: &mut Parent| {
        parent.step()?;
        let _session = session()?;
        parent.step()
    })?;
    child.at_step()?;
    child.next()?;
    Ok(child)
}

/// Each of two processes pays for its page tables, and for them alone when the other has gone.
fn no_common_root() -> Outcome {
    let (mut first, mut second) = (mapped()?, mapped()?);
    let names = [first.pid().to_string(), second.pid().to_string()];
    for name in &names {
        same("page tables", tables(name)?, ROOT).during(name)?;
        same("managed", shown(name)?, 0).during(name)?;
    }
    first.kill();
    expect_gone(first.pid())?;
    same("of the second", tables(&names[1])?, ROOT)?;
    second.go()?;
    second.finish()
}

/// A process at its limit maps more and more. What it has on the GPU stays within the limit, and
/// its neighbour can have no less than that leaves.
fn within_a_limit() -> Outcome {
    const ROOTS: usize = 2;
    let watcher = Client::open()?;
    let gpu = Gpu::open(&watcher, 0)?;
    let mut child = Child::fork(|parent: &mut Parent| {
        parent.step()?;
        let session = session()?;
        let mut all = pages(&session, 0, 1)?;
        let limit = current(&me())? + (ROOTS * ROOT) as u64;
        set(&me(), LIMIT, &limit.to_string())?;
        parent.step()?;
        all.extend(pages(&session, 1, 5 * PER_ROOT)?);
        println!("# page tables {}, pages {}", tables(&me())?, shown(&me())?);
        same("at any time", number(&me(), "gmem.peak")?, limit)?;
        holds("a page has room", shown(&me())? > 0)?;
        parent.step()?;
        check(&all)?;
        drop(all);
        eventually("unmapped", &ROOT, || tables(&me()))
    })?;
    child.at_step()?;
    child.next()?;
    // Who fills a GPU has the driver take its lock of scrubbing and nvidia-uvm's of allocations in
    // both orders. Lockdep reports that, and then switches itself off.
    let measure = || match has_lockdep() {
        true => Ok(0),
        false => obtainable(&gpu),
    };
    let before = measure()?;
    child.next()?;
    let less = before.saturating_sub(measure()?);
    println!("# a neighbour can have {before} bytes, then {less} less");
    holds("the neighbour's", less <= (ROOTS * ROOT) as u64)?;
    child.go()?;
    child.finish()
}

/// An address space that a limit leaves no room for a page table has them on the host, and keeps
/// them there.
fn on_the_host() -> Outcome {
    let group = Group::new("tables")?;
    // The charge for an address space and positions of channels. Half of it is no root of tables.
    set("tables", LIMIT, &(3 << 20).to_string())?;
    let mut child = Child::fork(|parent: &mut Parent| {
        parent.step()?;
        let client = Client::open()?;
        let session = Session::with_uvm(Gpu::open(&client, 0)?).during("session")?;
        let range = Range::new(&session, START, 4 * PAGE)?;
        range.write(7);
        parent.step()?;
        range.migrate(&session)?;
        parent.step()?;
        range.check(7)?;
        parent.step()
    })?;
    child.at_step()?;
    group.add(child.pid())?;
    child.next()?;
    same("on the GPU", [tables("tables")?, shown("tables")?], [0, 0])?;
    set("tables", LIMIT, &(16 * ROOT).to_string())?;
    child.next()?;
    same("a page", shown("tables")?, ROOT)?;
    holds("its page table", tables("tables")? <= ROOT)?;
    child.next()?;
    child.go()?;
    child.finish()?;
    eventually("current", &0, || current("tables"))
}
