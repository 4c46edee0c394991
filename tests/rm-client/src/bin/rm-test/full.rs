// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests on a GPU whose memory is full. Whoever allocates there evicts others, and limits of those
//! others must not stand in its way.

use crate::accounts;
use crate::gmem::{current, events, number, LIMIT};
use crate::gpus::me;
use crate::limits::set;
use crate::managed::{session, shown, uvm, Range, ROOT, START};
use crate::process::{Child, Parent};
use crate::tree::{eventually, Group};
use gct_ktap::{holds, same, During, Outcome, Stop, Test};
use rm_client::{Memory, Session};
use std::sync::atomic::Ordering;

pub(crate) const TESTS: &[Test] = &[
    ("full_gpu_evicts_beyond_hmem_limit", beyond_host_limit),
    ("full_gpu_evicts_nobody_for_a_limit", for_a_limit),
    ("full_gpu_gives_a_range_to_an_allocation", named_range),
    (
        "full_gpu_gives_a_range_to_who_is_at_a_limit",
        range_at_a_limit,
    ),
    ("full_gpu_spares_who_is_within_a_limit", spared),
    ("full_gpu_takes_what_gmem_low_does_not_keep", kept),
    ("full_gpu_leaves_a_group_its_gmem_low", kept_of_a_group),
    ("full_gpu_of_limits_beyond_it_counts_pressure", pressed),
    (
        "full_gpu_ends_the_channel_alone_that_needs_memory",
        accounts::alone,
    ),
];

/// More than the GPU of these tests has, and the pieces in which it is filled.
const ALL: usize = 384 * ROOT;
const PIECE: usize = 8 * ROOT;
const LOW: &str = "gmem.low";
/// Words that are looked at: each costs the host two MiB.
const SAMPLES: usize = 16;

fn host() -> Result<u64, Stop> {
    number("full", "hmem.current")
}

/// Fills the GPU with managed memory, until some of it is evicted, and at the next step looks at a
/// part of it.
fn fill(parent: &mut Parent) -> Outcome {
    parent.step()?;
    let session = session()?;
    parent.step()?;
    let range = Range::new(&session, START, ALL)?;
    for piece in (0..ALL).step_by(PIECE) {
        uvm(&session)?.migrate(START + piece, PIECE)?;
        if host()? > 0 {
            break;
        }
    }
    parent.step()?;
    for at in (0..ALL).step_by(ALL / SAMPLES) {
        let word = range.mapping.u64(at).load(Ordering::Relaxed);
        same("untouched memory", word, 0).during(at)?;
    }
    parent.step()
}

/// Forks a member of a group that fills the GPU and may take nothing of the host for its own
/// limit.
fn filled() -> Result<(Group, Child), Stop> {
    let group = Group::new("full")?;
    set("full", "hmem.limit", "0")?;
    let mut hog = Child::fork(fill)?;
    hog.at_step()?;
    group.add(hog.pid())?;
    hog.next().during("session")?;
    hog.next().during("all of the GPU")?;
    holds("the GPU is full", host()? > 0)?;
    Ok((group, hog))
}

fn finish(mut hog: Child) -> Outcome {
    hog.next().during("its content")?;
    hog.go()?;
    hog.finish()?;
    eventually("host", &0, host)?;
    eventually("current", &0, || current("full"))
}

/// A full GPU evicts memory of whoever has some. The host memory for that is charged, whatever the
/// limit, and neighbours get what they ask for: managed memory, and the resource manager's.
fn beyond_host_limit() -> Outcome {
    let (_group, hog) = filled()?;
    let (before, had) = (host()?, shown("full")?);
    let session = session()?;
    let range = Range::new(&session, START, 32 * ROOT)?;
    range.write(1);
    range.migrate(&session).during("managed memory")?;
    same("on the GPU", shown(&me())?, 32 * ROOT)?;
    let memory = session.gpu().alloc_memory(Memory::Device, 32 << 20);
    let memory = memory.during("device memory")?;
    holds("it gave way", shown("full")? + 32 * ROOT <= had)?;
    holds("charged", host()? > before)?;
    same("not for a limit", events("full", "evicted")?, 0)?;
    range.check(1)?;
    session.gpu().client().free(memory)?;
    drop(range);
    finish(hog)
}

/// Moves managed memory of eight roots to the GPU, under a limit that it just reaches. Returns the
/// memory and the limit.
fn within(session: &Session) -> Result<(Range, u64), Stop> {
    let limit = current(&me())? + 8 * ROOT as u64;
    set(&me(), LIMIT, &limit.to_string())?;
    let range = Range::new(session, START, 8 * ROOT)?;
    range.write(1);
    range.migrate(session)?;
    Ok((range, limit))
}

/// Who has a limit evicts its own memory also where the GPU is full.
fn for_a_limit() -> Outcome {
    let session = session()?;
    let (range, limit) = within(&session)?;
    let (_group, hog) = filled()?;
    let more = Range::new(&session, START + 64 * ROOT, 16 * ROOT)?;
    more.write(2);
    let had = shown("full")?;
    more.migrate(&session)?;
    holds("within the limit", number(&me(), "gmem.peak")? <= limit)?;
    // What the full GPU took of this process it may take back, and no more.
    holds("the other's", shown("full")? + 8 * ROOT >= had)?;
    range.check(1)?;
    more.check(2)?;
    drop((range, more));
    finish(hog)
}

/// Forks a process without a limit that allocates device memory at its second step, and frees it at
/// its third.
fn allocating(roots: usize) -> Result<Child, Stop> {
    let mut child = Child::fork(move |parent: &mut Parent| {
        let session = session()?;
        parent.step()?;
        let gpu = session.gpu();
        let memory = gpu.alloc_memory(Memory::Device, (roots * ROOT) as u64)?;
        parent.step()?;
        gpu.client().free(memory)?;
        parent.step()
    })?;
    child.at_step()?;
    Ok(child)
}

/// Where no neighbouring pages are free, the resource manager names a range, and all that is there
/// leaves, whosever it is. Each owner is charged for exactly what it has left, and no limit counts
/// that.
fn named_range() -> Outcome {
    const RANGE: usize = 64;
    let session = session()?;
    let (range, _) = within(&session)?;
    let mut stranger = allocating(RANGE)?;
    let name = stranger.pid().to_string();
    let before = current(&name)?;
    let (_group, hog) = filled()?;
    let had = [shown(&me())?, shown("full")?];
    let taken = host()?;
    stranger.next().during("an allocation")?;
    let left = [shown(&me())?, shown("full")?];
    println!("# of {had:?} bytes {left:?} are left");
    let gone = |at: usize| had[at] - left[at];
    same("all of the range", gone(0) + gone(1), RANGE * ROOT)?;
    holds("within a limit", gone(0) > 0)?;
    // What the CPU has touched has its host memory, what the other has not touched takes some.
    same("host", host()?, taken + gone(1) as u64)?;
    let bytes = current(&name)? - before;
    same("the allocation", bytes, (RANGE * ROOT) as u64)?;
    for owner in [&me()[..], "full"] {
        let counted = [events(owner, "evicted")?, events(owner, "pressure")?];
        same("counted", counted, [0, 0]).during(owner)?;
    }
    range.check(1)?;
    stranger.next().during("a free")?;
    range.migrate(&session)?;
    same("again", shown(&me())?, 8 * ROOT)?;
    range.check(1)?;
    drop(range);
    stranger.go()?;
    stranger.finish()?;
    finish(hog)
}

/// Forks a process that moves one root of managed memory to the GPU at each of so many steps, then
/// allocates half as much device memory, and frees it at the step after.
fn by_root(roots: usize) -> Result<Child, Stop> {
    let mut child = Child::fork(move |parent: &mut Parent| {
        let session = session()?;
        parent.step()?;
        let range = Range::new(&session, START, roots * ROOT)?;
        range.write(2);
        for root in 0..roots {
            uvm(&session)?.migrate(START + root * ROOT, ROOT)?;
            parent.step()?;
        }
        let gpu = session.gpu();
        let memory = gpu.alloc_memory(Memory::Device, (roots * ROOT / 2) as u64)?;
        parent.step()?;
        range.check(2)?;
        gpu.client().free(memory)?;
        parent.step()
    })?;
    child.at_step()?;
    Ok(child)
}

/// Who is at its limit makes room of its own memory, and the range that the resource manager names
/// takes what lies between, whosever it is. All keep their contents, and accounts are exact.
fn range_at_a_limit() -> Outcome {
    const ROOTS: usize = 64;
    const ALLOCATED: usize = ROOTS / 2 * ROOT;
    let session = session()?;
    let mut tenant = by_root(ROOTS)?;
    let name = tenant.pid().to_string();
    let limit = current(&name)? + (ROOTS * ROOT) as u64;
    set(&name, LIMIT, &limit.to_string())?;
    let own = current(&me())? + (ROOTS * ROOT) as u64;
    set(&me(), LIMIT, &own.to_string())?;
    let range = Range::new(&session, START, ROOTS * ROOT)?;
    range.write(1);
    for root in 0..ROOTS {
        tenant.next().during(root)?;
        uvm(&session)?.migrate(START + root * ROOT, ROOT)?;
    }
    let (_group, hog) = filled()?;
    let owners = [&name[..], &me(), "full"];
    let on_the_gpu = || -> Result<Vec<usize>, Stop> { owners.map(shown).into_iter().collect() };
    let had = on_the_gpu()?;
    tenant.next().during("an allocation")?;
    let left = on_the_gpu()?;
    println!("# of {had:?} bytes {left:?} are left");
    holds("the limit", number(&name, "gmem.peak")? <= limit)?;
    let gone = had[0] - left[0];
    holds("room of its own", gone >= ALLOCATED)?;
    let charged = limit + ALLOCATED as u64 - gone as u64;
    same("the allocation", current(&name)?, charged)?;
    for owner in &owners[1..] {
        let counted = [events(owner, "evicted")?, events(owner, "pressure")?];
        same("counted", counted, [0, 0]).during(owner)?;
    }
    range.check(1)?;
    tenant.next().during("its content")?;
    tenant.go()?;
    tenant.finish()?;
    drop(range);
    finish(hog)
}

/// Forks a process without a limit that moves managed memory to the GPU, at its one step.
fn stranger() -> Result<Child, Stop> {
    let mut child = Child::fork(|parent: &mut Parent| {
        let session = session()?;
        parent.step()?;
        let range = Range::new(&session, START, 16 * ROOT)?;
        range.write(2);
        range.migrate(&session)?;
        parent.step()?;
        range.check(2)?;
        parent.step()
    })?;
    child.at_step()?;
    Ok(child)
}

/// Whoever has no limit gives way to others that have none. Memory within a limit stays, although
/// it was used longest ago.
fn spared() -> Outcome {
    let session = session()?;
    let mut stranger = stranger()?;
    let (range, _) = within(&session)?;
    let (_group, hog) = filled()?;
    same("while the GPU was filled", shown(&me())?, 8 * ROOT)?;
    let had = shown("full")?;
    stranger.next().during("a migration")?;
    holds("the one without a limit", shown("full")? < had)?;
    same("within the limit", shown(&me())?, 8 * ROOT)?;
    same("pressure", events(&me(), "pressure")?, 0)?;
    same("of the other", events("full", "pressure")?, 0)?;
    range.check(1)?;
    drop(range);
    stranger.next().during("its content")?;
    stranger.go()?;
    stranger.finish()?;
    finish(hog)
}

/// Memory within a limit gives way down to `gmem.low`, and comes back when it is used and the GPU
/// has room. Half a root beyond what is kept is no reason to take one.
fn kept() -> Outcome {
    let session = session()?;
    let before = current(&me())?;
    set(&me(), LIMIT, &(before + 24 * ROOT as u64).to_string())?;
    set(&me(), LOW, &(before + 15 * ROOT as u64 / 2).to_string())?;
    let range = Range::new(&session, START, 16 * ROOT)?;
    range.write(1);
    range.migrate(&session)?;
    same("at first", shown(&me())?, 16 * ROOT)?;
    let (_group, hog) = filled()?;
    same("kept", shown(&me())?, 8 * ROOT)?;
    same("pressure", events(&me(), "pressure")?, 0)?;
    same("for a limit", events(&me(), "evicted")?, 0)?;
    finish(hog)?;
    range.migrate(&session)?;
    same("again", shown(&me())?, 16 * ROOT)?;
    range.check(1)
}

/// A group without a limit keeps its `gmem.low` as a whole, also when a member that had a part of
/// it dies.
fn kept_of_a_group() -> Outcome {
    let kept = Group::new("kept")?;
    let members = [stranger()?, stranger()?];
    for member in &members {
        kept.add(member.pid())?;
    }
    let low = current("kept")? + 24 * ROOT as u64;
    set("kept", LOW, &low.to_string())?;
    let [mut dies, mut stays] = members;
    dies.next().during("a migration")?;
    stays.next().during("another")?;
    same("at first", shown("kept")?, 32 * ROOT)?;
    let (_group, hog) = filled()?;
    same("kept", shown("kept")?, 24 * ROOT)?;
    dies.kill();
    let left = || shown("kept");
    eventually("without the dead", &true, || Ok(left()? < 24 * ROOT))?;
    let had = left()?;
    let mut other = stranger()?;
    other.next().during("a stranger")?;
    same("kept by who stays", left()?, had)?;
    same("pressure", events("kept", "pressure")?, 0)?;
    for mut child in [stays, other] {
        child.next().during("its content")?;
        child.go()?;
        child.finish()?;
    }
    finish(hog)
}

/// Limits that are more than the GPU has in all are no claim to it: then what was used longest ago
/// leaves, which its owner's counter shows.
fn pressed() -> Outcome {
    let session = session()?;
    let limit = current(&me())? + 24 * ROOT as u64;
    set(&me(), LIMIT, &limit.to_string())?;
    let (_group, hog) = filled()?;
    set("full", LIMIT, &(2 * ALL).to_string())?;
    let range = Range::new(&session, START, 16 * ROOT)?;
    range.write(1);
    range.migrate(&session)?;
    same("on the GPU", shown(&me())?, 16 * ROOT)?;
    holds("pressure", events("full", "pressure")? >= 8)?;
    same("own pressure", events(&me(), "pressure")?, 0)?;
    same("for a limit", events("full", "evicted")?, 0)?;
    range.check(1)?;
    drop(range);
    finish(hog)
}
