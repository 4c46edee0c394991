// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests that managed memory of an owner at its `gmem.limit` is evicted before others of its pages
//! need the room, and that what fits within the limit comes to rest.

use crate::gmem::{current, events, number, LIMIT};
use crate::gpus::{self, me, need_two, Unbinding};
use crate::limits::set;
use crate::managed::{session, shown, small_ranges, uvm, Range, ROOT, START};
use crate::process::{Child, Parent};
use crate::tree::{eventually, Group};
use gct_ktap::{failed, holds, same, During, Outcome, Stop, Test};
use rm_client::Session;
use std::thread;
use std::time::{Duration, Instant};

/// These need GPUs that nobody has open.
pub(crate) const FIRST_TESTS: &[Test] = &[("managed_memory_ahead_of_a_gpu_that_goes", unbound)];

pub(crate) const TESTS: &[Test] = &[
    ("managed_memory_is_evicted_ahead", over),
    ("managed_memory_ahead_of_members_at_once", of_members),
    ("managed_memory_that_fits_comes_to_rest", fits),
    ("managed_memory_ahead_of_nobody", nobody),
];

/// Roots that fit within the limit.
const FIT: usize = 32;
/// How long a test waits for the evictor after each root. It need not be in time each time.
const PATIENCE: Duration = Duration::from_millis(200);

/// Sets a limit with room for [`FIT`] roots. Returns it.
fn limited(owner: &str) -> Result<u64, Stop> {
    let limit = current(owner)? + (FIT * ROOT) as u64;
    set(owner, LIMIT, &limit.to_string())?;
    Ok(limit)
}

/// Moves a root to the GPU, and lets the evictor make room for the next one.
fn bring(session: &Session, root: usize, limit: u64) -> Outcome {
    uvm(session)?.migrate(START + root * ROOT, ROOT)?;
    let until = Instant::now() + PATIENCE;
    while current(&me())? + ROOT as u64 > limit && Instant::now() < until {
        thread::yield_now();
    }
    Ok(())
}

/// Most roots find room that was made for them. A neighbour gives up nothing.
fn over() -> Outcome {
    let mut neighbour = small_ranges(1)?;
    neighbour.next()?;
    neighbour.next()?;
    let session = session()?;
    let limit = limited(&me())?;
    let range = Range::new(&session, START, 3 * FIT * ROOT)?;
    range.write(1);
    for root in 0..3 * FIT {
        bring(&session, root, limit).during(root)?;
    }
    let [evicted, ahead] = [events(&me(), "evicted")?, events(&me(), "ahead")?];
    println!("# {ahead} of {evicted} roots were evicted ahead");
    holds("evicted", evicted >= 2 * FIT as u64)?;
    holds("no more than that", ahead <= evicted)?;
    holds("most of them ahead", ahead >= evicted / 2)?;
    holds("within the limit", number(&me(), "gmem.peak")? <= limit)?;
    same("refused", events(&me(), "limit")?, 0)?;
    range.check(1)?;
    let name = neighbour.pid().to_string();
    same("neighbour's", shown(&name)?, ROOT)?;
    for event in ["evicted", "ahead"] {
        same(event, events(&name, event)?, 0)?;
    }
    neighbour.next()?;
    neighbour.go()?;
    neighbour.finish()
}

/// Moves a range of so many roots to the GPU until it may end, and checks it.
fn member(parent: &mut Parent, roots: usize) -> Outcome {
    parent.step()?;
    let session = session()?;
    let range = Range::new(&session, START, roots * ROOT)?;
    range.write(1);
    parent.step()?;
    let mut root = 0;
    parent.work(|| {
        root = (root + 1) % roots;
        Ok(uvm(&session)?.migrate(START + root * ROOT, ROOT)?)
    })?;
    for root in 0..roots {
        uvm(&session)?.migrate(START + root * ROOT, ROOT)?;
    }
    range.check(1)?;
    parent.step()
}

/// Waits until the evictor has gone on for the group some times, however slow the host is.
fn goes_on() -> Outcome {
    for _ in 0..FIT {
        let before = events("ahead", "ahead")?;
        eventually("an eviction ahead", &true, || {
            Ok(events("ahead", "ahead")? > before)
        })?;
    }
    Ok(())
}

/// Members of a group at its limit have room made for them at the same time, one of them dies, and
/// the group goes with them.
fn of_members() -> Outcome {
    const MEMBERS: usize = 4;
    let group = Group::new("ahead")?;
    let mut all: Vec<Child> = (0..MEMBERS)
        .map(|_| Child::fork(|parent| member(parent, FIT / 2)))
        .collect::<Result<_, _>>()?;
    for child in &mut all {
        child.at_step()?;
        group.add(child.pid())?;
        child.next().during("session")?;
    }
    let limit = limited("ahead")?;
    all.iter_mut().try_for_each(Child::next)?;
    goes_on()?;
    all.pop().ok_or_else(|| failed("nobody"))?.kill();
    goes_on().during("the others")?;
    for child in &mut all {
        child.next().during("its content")?;
        child.go()?;
        child.finish()?;
    }
    holds("within the limit", number("ahead", "gmem.peak")? <= limit)?;
    eventually("current", &0, || current("ahead"))?;
    eventually("host", &0, || number("ahead", "hmem.current"))
}

/// Takes the GPU from the driver while the evictor makes room there. The driver waits for the open
/// files of the GPU, and their process keeps its memory until it ends.
fn unbound() -> Outcome {
    need_two()?;
    let group = Group::new("ahead")?;
    let unbinding;
    let mut child = Child::fork(|parent| member(parent, 2 * FIT))?;
    child.at_step()?;
    group.add(child.pid())?;
    child.next().during("session")?;
    limited("ahead")?;
    child.next()?;
    goes_on()?;
    unbinding = Unbinding::begin(0)?;
    eventually("GPUs", &1, gpus::shown)?;
    child.next().during("its content")?;
    child.go()?;
    child.finish()?;
    unbinding.undo()?;
    drop(group);
    over().during("the GPU is back")
}

/// What fits within the limit stays on the GPU, although more than that was there before.
fn fits() -> Outcome {
    const ROUNDS_MAX: usize = 24;
    let session = session()?;
    let limit = limited(&me())?;
    let range = Range::new(&session, START, 2 * FIT * ROOT)?;
    range.write(1);
    for root in 0..2 * FIT {
        bring(&session, root, limit).during(root)?;
    }
    holds("evicted ahead", events(&me(), "ahead")? > 0)?;
    let mut quiet = 0;
    for _ in 0..ROUNDS_MAX {
        let before = events(&me(), "evicted")?;
        for root in 0..FIT {
            bring(&session, root, limit)?;
        }
        quiet = match events(&me(), "evicted")? == before {
            true => quiet + 1,
            false => 0,
        };
        if quiet == 2 {
            break;
        }
    }
    same("rounds without evictions", quiet, 2)?;
    same("on the GPU", shown(&me())?, FIT * ROOT)?;
    range.check(1)
}

/// Nothing is evicted ahead without a limit, below one that all fits in, or below a small one.
fn nobody() -> Outcome {
    let session = session()?;
    let range = Range::new(&session, START, FIT * ROOT)?;
    range.write(1);
    range.migrate(&session)?;
    limited(&me())?;
    range.migrate(&session)?;
    same("on the GPU", shown(&me())?, FIT * ROOT)?;
    let small = current(&me())? - ((FIT - 4) * ROOT) as u64;
    holds("less than 16 roots", small < 16 * ROOT as u64)?;
    set(&me(), LIMIT, &small.to_string())?;
    range.migrate(&session)?;
    holds("evicted", events(&me(), "evicted")? > FIT as u64)?;
    same("ahead", events(&me(), "ahead")?, 0)?;
    range.check(1)
}
