// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests that nobody reads what was another's: a process fills memory of every kind with a pattern,
//! and loses it in every way. With it go its page tables, which nvidia-uvm and the resource manager
//! have filled. A neighbour allocates memory in every way, and must find zeros: it reads by the CPU
//! and by launches, through address spaces of managed memory and through external mappings.

use crate::gmem::{current, LIMIT};
use crate::limits::set;
use crate::managed::{session, shown, uvm, Range, PAGE, ROOT, START};
use crate::process::{Child, Parent};
use crate::replayable::{pages, run, toucher};
use crate::tree::{eventually, Group};
use gct_ktap::{failed, holds, same, During, Outcome, Stop, Test};
use rm_client::{Access, Error, Handle, Mapping, Memory, Session, Toucher};
use std::sync::atomic::Ordering;

pub(crate) const TESTS: &[Test] = &[
    ("nobody_reads_what_was_freed", freed),
    ("nobody_reads_what_was_evicted", evicted),
    ("nobody_reads_what_a_killed_process_had", killed),
    ("nobody_reads_what_a_member_gives_up", given_up),
];

/// What no memory holds by chance.
const PATTERN: u64 = 0x5ec2_e75e_c2e7_01d5;
/// Bytes of each kind that the victim has, with the pattern in each page.
const MANAGED: usize = 4 * ROOT;
const PINNED: usize = 2 * ROOT;
/// Bytes of managed memory in which the neighbour looks. PMM takes up to 64 roots at once.
const LOOKED_AT: usize = 96 * ROOT;
/// Distance of the words that it looks at there.
const STRIDE: usize = ROOT / 4;
/// Bytes that it looks at where each page costs a fault or a call.
const FEW: usize = 2 * MANAGED;
/// Where the neighbour has memory of the resource manager mapped for launches.
const EXTERNAL: u64 = START as u64 + (1 << 36);
/// Bytes of a range that has a part of a root.
const SMALL: usize = 16 * PAGE;

/// A way to allocate memory of the resource manager.
type Alloc = fn(&Session, Memory) -> Result<Handle, Error>;

const WAYS: [(&str, Alloc); 2] = [
    ("RM_ALLOC", |session, place| {
        session.gpu().alloc_memory(place, PINNED as u64)
    }),
    ("VID_HEAP_CONTROL", |session, place| {
        session.gpu().alloc_memory_vid_heap(place, PINNED as u64)
    }),
];

/// Allocates memory of the resource manager in each place and way, and maps it.
fn pinned(session: &Session) -> Result<Vec<(String, Handle, Mapping)>, Stop> {
    let mut all = Vec::new();
    for place in [Memory::Device, Memory::Host] {
        for (way, alloc) in WAYS {
            let name = format!("{place:?} by {way}");
            let memory = alloc(session, place).during(&name)?;
            let mapping = session.gpu().map_memory(place, memory, PINNED);
            all.push((name.clone(), memory, mapping.during(name)?));
        }
    }
    Ok(all)
}

/// Fills memory of every kind. Then it waits: first while it has all of it, then when it has freed
/// all of it.
fn fill(parent: &mut Parent) -> Outcome {
    parent.step()?;
    let session = session()?;
    parent.step()?;
    let range = Range::new(&session, START, MANAGED)?;
    let pinned = pinned(&session)?;
    let write = |mapping: &Mapping, length| {
        for page in (0..length).step_by(PAGE) {
            mapping.u64(page).store(PATTERN, Ordering::Relaxed);
        }
    };
    write(&range.mapping, MANAGED);
    range.migrate(&session)?;
    for (_, _, mapping) in &pinned {
        write(mapping, PINNED);
    }
    parent.step()?;
    for page in (0..MANAGED).step_by(PAGE) {
        let word = range.mapping.u64(page).load(Ordering::Relaxed);
        same("its own memory", word, PATTERN).during(page)?;
    }
    drop(range);
    for (name, memory, mapping) in pinned {
        drop(mapping);
        session.gpu().client().free(memory).during(name)?;
    }
    parent.step()
}

/// Looks for anything in new memory of every kind, at each step.
fn look(parent: &mut Parent) -> Outcome {
    parent.step()?;
    let mut toucher = toucher()?;
    parent.step()?;
    loop {
        look_in_managed(&mut toucher)?;
        let mut kept = Vec::new();
        for _ in 0..4 {
            for (name, memory, mapping) in pinned(toucher.session())? {
                look_by_a_launch(&mut toucher, memory).during(&name)?;
                look_at(&name, &mapping, PINNED, PAGE)?;
                kept.push((memory, mapping));
            }
        }
        for (memory, mapping) in kept {
            drop(mapping);
            toucher.session().gpu().client().free(memory)?;
        }
        parent.step()?;
    }
}

/// Has a launch read memory of the resource manager, which nvidia-uvm maps for it.
fn look_by_a_launch(toucher: &mut Toucher, memory: Handle) -> Outcome {
    let session = toucher.session();
    uvm(session)?
        .map(session.gpu(), memory, EXTERNAL, PINNED as u64)
        .during("external mapping")?;
    run(toucher, &[pages(EXTERNAL as usize, PINNED, None)])?;
    same("what a launch reads there", toucher.sum(0), 0)?;
    Ok(uvm(toucher.session())?.free(EXTERNAL, PINNED as u64)?)
}

/// Looks for anything in new managed memory, at each step.
fn squeeze(parent: &mut Parent) -> Outcome {
    parent.step()?;
    let mut toucher = toucher()?;
    parent.step()?;
    loop {
        look_in_managed(&mut toucher)?;
        parent.step()?;
    }
}

/// Looks in managed memory that comes to the GPU by faults of a launch, by a migration, and in
/// parts of roots.
fn look_in_managed(toucher: &mut Toucher) -> Outcome {
    let range = Range::new(toucher.session(), START, FEW)?;
    let read = Access {
        stride: STRIDE as u64,
        ..pages(START, FEW, None)
    };
    run(toucher, &[read])?;
    same("what a launch reads", toucher.sum(0), 0)?;
    look_at("faulted memory", &range.mapping, FEW, STRIDE)?;
    drop(range);
    let session = toucher.session();
    let range = Range::new(session, START, LOOKED_AT)?;
    range.migrate(session)?;
    look_at("managed memory", &range.mapping, LOOKED_AT, STRIDE)?;
    drop(range);
    let small = |at| {
        let range = Range::new(session, START + at, SMALL)?;
        range.migrate(session)?;
        Ok(range)
    };
    let all: Result<Vec<Range>, Stop> = (0..FEW).step_by(STRIDE).map(small).collect();
    let look_at = |range: &Range| look_at("a part of a root", &range.mapping, SMALL, PAGE);
    all?.iter().try_for_each(look_at)
}

fn look_at(name: &str, mapping: &Mapping, length: usize, stride: usize) -> Outcome {
    let word = |page: &usize| mapping.u64(*page).load(Ordering::Relaxed);
    match (0..length).step_by(stride).find(|page| word(page) != 0) {
        Some(page) => Err(failed(format!(
            "{name} has {:#x} at {page:#x}",
            word(&page)
        ))),
        None => Ok(()),
    }
}

/// Forks both. The first of them has filled its memory.
fn both(group: &Group, looks: fn(&mut Parent) -> Outcome) -> Result<(Child, Child), Stop> {
    let (mut victim, mut neighbour) = (Child::fork(fill)?, Child::fork(looks)?);
    for child in [&mut victim, &mut neighbour] {
        child.at_step()?;
    }
    group.add(victim.pid())?;
    for child in [&mut victim, &mut neighbour] {
        child.next().during("session")?;
    }
    victim.next().during("the pattern")?;
    let name = victim.pid().to_string();
    same("on the GPU", shown(&name)?, MANAGED)?;
    Ok((victim, neighbour))
}

fn freed() -> Outcome {
    let group = Group::new("leaks")?;
    let (mut victim, mut neighbour) = both(&group, look)?;
    neighbour.next().during("while the victim has it")?;
    victim.next().during("free")?;
    neighbour.next().during("after the free")?;
    victim.go()?;
    victim.finish()
}

fn evicted() -> Outcome {
    let group = Group::new("leaks")?;
    let (mut victim, mut neighbour) = both(&group, look)?;
    let name = victim.pid().to_string();
    let limit = current(&name)? - MANAGED as u64;
    set("leaks", LIMIT, &limit.to_string())?;
    same("evicted", shown(&name)?, 0)?;
    neighbour.next().during("after the eviction")?;
    victim.next().during("its content")?;
    victim.go()?;
    victim.finish()
}

fn killed() -> Outcome {
    let group = Group::new("leaks")?;
    let (mut victim, mut neighbour) = both(&group, look)?;
    victim.kill();
    eventually("gone", &0, || current("leaks"))?;
    neighbour.next().during("after its end")?;
    holds("the neighbour lives", neighbour.next().is_ok())
}

/// At the limit of a group, a member gets the very roots that another one gives up.
fn given_up() -> Outcome {
    let group = Group::new("leaks")?;
    let (mut victim, mut neighbour) = both(&group, squeeze)?;
    group.add(neighbour.pid())?;
    let limit = current("leaks")? + ROOT as u64;
    set("leaks", LIMIT, &limit.to_string())?;
    neighbour.next().during("at the limit")?;
    let left = shown(&victim.pid().to_string())?;
    holds("the victim has given up roots", left < MANAGED)?;
    victim.next().during("its content")?;
    victim.go()?;
    victim.finish()
}
