// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests that managed memory never exceeds `gmem.limit`: the owner's own memory is evicted, nobody
//! else's, and what was in it comes back. `gmem.peak` is exact, so it shows any excess.

use crate::gmem::{current, events, is_refused, number, LIMIT};
use crate::gpus::me;
use crate::limits::{path, set};
use crate::managed::{in_threads, session, shown, small_ranges, uvm, Range, PAGE, ROOT, START};
use crate::process::{Child, Parent};
use crate::tree::{self, eventually, expect_gone, Group};
use gct_ktap::{holds, same, During, Outcome, Stop, Test};
use rm_client::{Memory, Session};
use std::sync::atomic::Ordering;

pub(crate) const TESTS: &[Test] = &[
    ("managed_memory_over_its_limit_is_evicted", over),
    ("managed_memory_of_a_group_over_its_limit", of_group),
    ("managed_memory_of_threads_at_the_limit", threads),
    ("managed_memory_gives_way_to_a_lower_limit", lowered),
    ("managed_memory_gives_way_to_an_allocation", allocation),
    ("managed_memory_gives_way_in_a_smaller_group", joined),
    ("managed_memory_without_room_is_refused", no_room),
    ("managed_memory_shows_nobody_elses_pattern", pattern),
];

/// Returns the limit of an owner that has so many roots beside what it has now.
fn room(owner: &str, roots: usize) -> Result<u64, Stop> {
    Ok(current(owner)? + (roots * ROOT) as u64)
}

/// Checks that an owner has never had more than its limit, and has used all roots of it.
fn full(owner: &str, limit: u64, roots: usize) -> Outcome {
    same("on the GPU", shown(owner)?, roots * ROOT)?;
    same("current", current(owner)?, limit)?;
    same("peak", number(owner, "gmem.peak")?, limit)
}

/// A process touches four times as much as its limit. Its neighbour's memory stays.
fn over() -> Outcome {
    const ROOTS: usize = 8;
    let mut neighbour = small_ranges(2)?;
    neighbour.next()?;
    neighbour.next()?;
    let session = session()?;
    let limit = room(&me(), ROOTS)?;
    set(&me(), LIMIT, &limit.to_string())?;
    let range = Range::new(&session, START, 4 * ROOTS * ROOT)?;
    range.write(1);
    range.migrate(&session)?;
    full(&me(), limit, ROOTS)?;
    // UVM migrates a range in two passes.
    holds("evicted", events(&me(), "evicted")? >= 3 * ROOTS as u64)?;
    range.check(1)?;
    range.write(2);
    range.migrate(&session).during("again")?;
    full(&me(), limit, ROOTS)?;
    range.check(2)?;
    same("refused", events(&me(), "limit")?, 0)?;
    let name = neighbour.pid().to_string();
    same("neighbour's", shown(&name)?, ROOT)?;
    same("evicted there", events(&name, "evicted")?, 0)?;
    neighbour.next().during("more of the neighbour")?;
    neighbour.next().during("its content")?;
    neighbour.go()?;
    neighbour.finish()
}

/// Forks a process that moves a range of managed memory to the GPU at each step, checks all, and
/// keeps them.
fn member(ranges: usize, roots: usize) -> Result<Child, Stop> {
    let mut child = Child::fork(|parent: &mut Parent| {
        parent.step()?;
        let session = session()?;
        parent.step()?;
        let mut all = Vec::new();
        for step in 0..ranges {
            let range = Range::new(&session, START + step * 64 * ROOT, roots * ROOT)?;
            range.write(step as u64);
            range.migrate(&session)?;
            all.push(range);
            parent.step()?;
        }
        for (step, range) in all.iter().enumerate() {
            range.check(step as u64)?;
        }
        parent.step()
    })?;
    child.at_step()?;
    Ok(child)
}

/// Members of a group give way to each other, and a process outside of it does not.
fn of_group() -> Outcome {
    let group = Group::new("evicted")?;
    let (mut first, mut second, mut outside) = (member(1, 6)?, member(2, 6)?, member(1, 4)?);
    for child in [&first, &second] {
        group.add(child.pid())?;
    }
    for child in [&mut first, &mut second, &mut outside] {
        child.next().during("session")?;
    }
    let limit = room("evicted", 8)?;
    set("evicted", LIMIT, &limit.to_string())?;
    outside.next()?;
    first.next()?;
    let names = [&first, &second, &outside].map(|child| child.pid().to_string());
    let [first_name, second_name, outside_name] = &names;
    same("alone", shown(first_name)?, 6 * ROOT)?;
    second.next()?;
    full("evicted", limit, 8)?;
    let sum = shown(first_name)? + shown(second_name)?;
    same("of both", sum, 8 * ROOT)?;
    second.next()?;
    full("evicted", limit, 8)?;
    holds("the first gave way", events(first_name, "evicted")? > 0)?;
    same("evicted of the group", events("evicted", "evicted")?, {
        events(first_name, "evicted")? + events(second_name, "evicted")?
    })?;
    same("outside", shown(outside_name)?, 4 * ROOT)?;
    same("evicted outside", events(outside_name, "evicted")?, 0)?;
    for child in [&mut first, &mut second, &mut outside] {
        child.next().during("content")?;
        child.go()?;
        child.finish()?;
    }
    eventually("current", &0, || current("evicted"))
}

/// Threads share a limit that is smaller than what each of them moves.
fn threads() -> Outcome {
    const THREADS: usize = 4;
    let session = session()?;
    let limit = room(&me(), 6)?;
    set(&me(), LIMIT, &limit.to_string())?;
    let work = |thread: usize| -> Outcome {
        for round in 0..4 {
            let start = START + 64 * thread * ROOT;
            let range = Range::new(&session, start, 8 * ROOT + 5 * PAGE)?;
            let seed = (round << 8 | thread) as u64;
            range.write(seed);
            range.migrate(&session)?;
            range.check(seed)?;
        }
        Ok(())
    };
    in_threads(THREADS, work)?;
    same("peak", number(&me(), "gmem.peak")?, limit)?;
    same("uvm", shown(&me())?, 0)?;
    same("current", current(&me())?, limit - 6 * ROOT as u64)
}

/// Lowering a limit returns when it holds. If it cannot hold, the old one stays.
fn lowered() -> Outcome {
    // nvidia-uvm has let the GPU go once, so it is another one for gctgroup.
    drop(session()?);
    expect_gone(std::process::id())?;
    let session = session()?;
    let (alone, limit) = (current(&me())?, room(&me(), 16)?);
    set(&me(), LIMIT, &limit.to_string())?;
    let range = Range::new(&session, START, 16 * ROOT)?;
    range.write(1);
    range.migrate(&session)?;
    full(&me(), limit, 16)?;
    let low = room(&me(), 0)? - 12 * ROOT as u64;
    set(&me(), LIMIT, &low.to_string())?;
    same("on the GPU", shown(&me())?, 4 * ROOT)?;
    same("current", current(&me())?, low)?;
    same("evicted", events(&me(), "evicted")?, 12)?;
    // What the resource manager has allocated does not leave. The rest did.
    let file = path(&me(), LIMIT)?;
    let below = tree::write(&file, &(alone - 1).to_string());
    let errno = below.err().and_then(|error| error.raw_os_error());
    same("errno", errno, Some(libc::EBUSY))?;
    same("limit", number(&me(), LIMIT)?, low)?;
    range.check(1)?;
    range.migrate(&session)?;
    same("current", current(&me())?, low)?;
    set(&me(), LIMIT, "max")?;
    range.migrate(&session)?;
    same("without a limit", shown(&me())?, 16 * ROOT)?;
    range.check(1)
}

/// What the resource manager allocates for a process at its limit takes the place of the process's
/// managed memory, of no more than it needs.
fn allocation() -> Outcome {
    let session = session()?;
    let limit = room(&me(), 8)?;
    set(&me(), LIMIT, &limit.to_string())?;
    let range = Range::new(&session, START, 8 * ROOT)?;
    range.write(1);
    range.migrate(&session)?;
    full(&me(), limit, 8)?;
    let alloc = |bytes| session.gpu().alloc_memory(Memory::Device, bytes as u64);
    let memory = alloc(2 * ROOT + ROOT / 2).during("two roots and a half")?;
    same("on the GPU", shown(&me())?, 5 * ROOT)?;
    same("evicted", events(&me(), "evicted")?, 3)?;
    holds("too much", is_refused(alloc(9 * ROOT))?)?;
    same("refused", events(&me(), "limit")?, 1)?;
    range.check(1)?;
    session.gpu().client().free(memory)?;
    range.migrate(&session)?;
    full(&me(), limit, 8)?;
    range.check(1)
}

/// A process that joins a group with a lower limit gives up what is too much.
fn joined() -> Outcome {
    let group = Group::new("evicted")?;
    set("evicted", LIMIT, &(64 * ROOT).to_string())?;
    let mut child = member(1, 16)?;
    child.next()?;
    child.next()?;
    let name = child.pid().to_string();
    let limit = current(&name)? - 12 * ROOT as u64;
    set("evicted", LIMIT, &limit.to_string())?;
    group.add(child.pid())?;
    same("current", current("evicted")?, limit)?;
    same("on the GPU", shown(&name)?, 4 * ROOT)?;
    child.next().during("content")?;
    child.go()?;
    child.finish()
}

/// Where nothing can be evicted, the migration fails as without memory, and nothing is lost.
fn no_room() -> Outcome {
    let session = session()?;
    let limit = room(&me(), 0)?;
    set(&me(), LIMIT, &limit.to_string())?;
    let range = Range::new(&session, START, 2 * ROOT)?;
    range.write(1);
    let migrate = || uvm(&session)?.migrate(START, 2 * ROOT).map_err(Stop::from);
    let refused = uvm(&session)?.migrate(START, 2 * ROOT);
    holds("refused", is_refused(refused)?)?;
    same("current", current(&me())?, limit)?;
    range.check(1)?;
    set(&me(), LIMIT, &room(&me(), 1)?.to_string())?;
    migrate().during("by one root at a time")?;
    same("one root", shown(&me())?, ROOT)?;
    range.check(1)
}

/// Whoever gets a root that was somebody else's finds zeros in it: after an eviction, and after the
/// end of the other process.
fn pattern() -> Outcome {
    let group = Group::new("evicted")?;
    let (mut victim, mut reader) = (member(1, 1)?, reader()?);
    for child in [&mut victim, &mut reader] {
        group.add(child.pid())?;
        child.next().during("session")?;
    }
    set("evicted", LIMIT, &room("evicted", 1)?.to_string())?;
    victim.next().during("the pattern")?;
    let name = victim.pid().to_string();
    same("the victim's", shown(&name)?, ROOT)?;
    reader.next().during("evicted")?;
    same("evicted", events(&name, "evicted")?, 1)?;
    victim.next().during("its content")?;
    victim.kill();
    eventually("gone", &0, || shown("evicted"))?;
    reader.next().during("after its end")?;
    reader.go()?;
    reader.finish()
}

/// Forks a process that looks for zeros at two steps.
fn reader() -> Result<Child, Stop> {
    let mut child = Child::fork(|parent: &mut Parent| {
        parent.step()?;
        let session = session()?;
        parent.step()?;
        zeros(&session)?;
        parent.step()?;
        zeros(&session)?;
        parent.step()
    })?;
    child.at_step()?;
    Ok(child)
}

/// Populates managed memory on the GPU, and checks that it is zero. Clearing a whole root takes the
/// software GPU long.
fn zeros(session: &Session) -> Outcome {
    const BYTES: usize = 32 * PAGE;
    let range = Range::new(session, START, BYTES)?;
    range.migrate(session)?;
    same("on the GPU", shown(&me())?, ROOT)?;
    let word = |at: &usize| range.mapping.u64(*at).load(Ordering::Relaxed);
    let found = (0..BYTES).step_by(8).find(|at| word(at) != 0);
    same("a word that is not zero", found, None)
}
