// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests that `gmem.limit` bounds the device memory that the resource manager allocates, to the
//! byte, whatever the tenants do at the same time.

use crate::gpus::{me, session, ENGINE};
use crate::limits::{path, set};
use crate::process::{Child, Parent};
use crate::tree::{self, eventually, expect, expect_gone, Group};
use gct_ktap::{failed, holds, same, During, Outcome, Stop, Test};
use rm_client::{numbers, Client, Error, Gpu, Handle, Memory, Session};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::Barrier;
use std::thread;

pub(crate) const TESTS: &[Test] = &[
    ("gmem_limit_is_exact", exact),
    ("gmem_limit_of_a_rounded_size", rounded),
    ("gmem_limit_below_the_charge_is_refused", lowered),
    ("gmem_limit_of_a_group", of_group),
    ("gmem_limit_with_threads_at_the_last_bytes", threads),
    ("gmem_limit_after_a_kill_at_each_step", killed),
    ("gmem_limit_of_a_size_that_changes", raced_size),
    ("gmem_alias_of_memory_being_freed_is_charged", raced_dup),
];

pub(crate) const LIMIT: &str = "gmem.limit";
const MEGABYTE: u64 = 1 << 20;

/// Reads a number of an owner on GPU 0.
pub(crate) fn number(owner: &str, file: &str) -> Result<u64, Stop> {
    let text = tree::read(&path(owner, file)?)?;
    text.trim().parse().map_err(|_| failed(text))
}

pub(crate) fn current(owner: &str) -> Result<u64, Stop> {
    number(owner, "gmem.current")
}

/// Returns how often `gmem.events` counts an event of an owner.
pub(crate) fn events(owner: &str, key: &str) -> Result<u64, Stop> {
    let text = tree::read(&path(owner, "gmem.events")?)?;
    let mut counts = text.lines().filter_map(|line| line.split_once(' '));
    let count = counts.find(|(found, _)| *found == key);
    let count = count.and_then(|(_, count)| count.parse().ok());
    count.ok_or_else(|| failed(text))
}

/// Returns how many allocations of an owner were refused.
fn refusals(owner: &str) -> Result<u64, Stop> {
    events(owner, "limit")
}

/// Returns whether an allocation was refused as RM refuses one without memory.
pub(crate) fn is_refused<T>(outcome: Result<T, Error>) -> Result<bool, Stop> {
    match outcome {
        Ok(_) => Ok(false),
        Err(Error::Status(numbers::NO_MEMORY)) => Ok(true),
        Err(other) => Err(other.into()),
    }
}

/// Opens a session with a channel group, so that this process has a directory. Limits it to what it
/// has and `room`.
fn with_room(room: u64) -> Result<(Session, u64), Stop> {
    let session = session(0)?;
    session.group(ENGINE)?;
    expect(&me(), 0, Some((1, 0)))?;
    let limit = current(&me())? + room;
    set(&me(), LIMIT, &limit.to_string())?;
    Ok((session, limit))
}

fn exact() -> Outcome {
    let (session, limit) = with_room(4 * MEGABYTE)?;
    let (gpu, client) = (session.gpu(), session.gpu().client());
    for by_heap in [false, true] {
        let alloc = |bytes| match by_heap {
            true => gpu.alloc_memory_vid_heap(Memory::Device, bytes),
            false => gpu.alloc_memory(Memory::Device, bytes),
        };
        let before = refusals(&me())?;
        holds("too much", is_refused(alloc(4 * MEGABYTE + 1))?)?;
        holds("far too much", is_refused(alloc(1 << 60))?)?;
        same("refused", refusals(&me())?, before + 2)?;
        let memory = alloc(4 * MEGABYTE).during("the last megabytes")?;
        same("current", current(&me())?, limit)?;
        same("peak", number(&me(), "gmem.peak")?, limit)?;
        holds("one byte more", is_refused(alloc(1))?)?;
        same("refused", refusals(&me())?, before + 3)?;
        same("current", current(&me())?, limit)?;
        // Host memory is not bounded.
        client.free(gpu.alloc_memory(Memory::Host, MEGABYTE)?)?;
        client.free(memory)?;
        same("after the free", current(&me())?, limit - 4 * MEGABYTE)?;
    }
    set(&me(), LIMIT, "max")?;
    gpu.alloc_memory(Memory::Device, 8 * MEGABYTE)?;
    same("without a limit", current(&me())?, limit + 4 * MEGABYTE)
}

/// RM rounds a size up to its pages. What does not fit then is freed before the ioctl returns.
fn rounded() -> Outcome {
    let (session, limit) = with_room(MEGABYTE + 1)?;
    let (gpu, client) = (session.gpu(), session.gpu().client());
    gpu.alloc_memory(Memory::Device, MEGABYTE)?;
    same("room", limit - current(&me())?, 1)?;
    let next = client.new_handle();
    for _ in 0..20 {
        client.choose_next(next);
        let refused = gpu.alloc_memory(Memory::Device, 1);
        holds("a page for the last byte", is_refused(refused)?)?;
        same("current", current(&me())?, limit - 1)?;
    }
    same("refused", refusals(&me())?, 20)?;
    // The handle is free again.
    client.choose_next(next);
    gpu.alloc_memory(Memory::Host, MEGABYTE)
        .during("the handle")?;
    Ok(())
}

fn lowered() -> Outcome {
    let (session, limit) = with_room(MEGABYTE)?;
    let memory = session.gpu().alloc_memory(Memory::Device, MEGABYTE)?;
    let file = path(&me(), LIMIT)?;
    let below = tree::write(&file, &(limit - 1).to_string());
    let errno = below.err().and_then(|error| error.raw_os_error());
    same("errno", errno, Some(libc::EBUSY))?;
    same("limit", number(&me(), LIMIT)?, limit)?;
    session.gpu().client().free(memory)?;
    set(&me(), LIMIT, &(limit - MEGABYTE).to_string())?;
    let refused = session.gpu().alloc_memory(Memory::Device, 1);
    holds("nothing is left", is_refused(refused)?)
}

/// Forks a member of a group. It joins before it opens the driver, and allocates a megabyte at each
/// step until it is refused. Then it frees all and exits.
fn member(group: &Group) -> Result<Child, Stop> {
    let mut child = Child::fork(|parent: &mut Parent| {
        parent.step()?;
        let session = session(0)?;
        session.group(ENGINE)?;
        parent.step()?;
        while !is_refused(session.gpu().alloc_memory(Memory::Device, MEGABYTE))? {
            parent.step()?;
        }
        session.gpu().client().free_all()?;
        parent.step()
    })?;
    child.at_step()?;
    group.add(child.pid())?;
    child.next().during("its session")?;
    expect(&child.pid().to_string(), 0, Some((1, 0)))?;
    Ok(child)
}

/// Members of a group share its limit.
fn of_group() -> Outcome {
    let group = Group::new("rm")?;
    let mut first = member(&group)?;
    let mut second = member(&group)?;
    let limit = current("rm")? + 3 * MEGABYTE;
    set("rm", LIMIT, &limit.to_string())?;
    first.next()?;
    second.next()?;
    first.next()?;
    same("current", current("rm")?, limit)?;
    second.next().during("the refused one")?;
    same("refused", refusals("rm")?, 1)?;
    second.go()?;
    second.finish()?;
    expect_gone(second.pid())?;
    // The one has what the other has left.
    first.next()?;
    first.next()?;
    first.kill();
    expect_gone(first.pid())?;
    eventually("current", &0, || current("rm"))
}

/// Threads with clients of their own race for the last bytes, by both ways to allocate: exactly as
/// many as fit get some, and each other one is refused and counted.
fn threads() -> Outcome {
    const THREADS: u64 = 64;
    let (session, limit) = with_room(0)?;
    let open = |_| {
        let client = Client::open()?;
        Gpu::open(&client, 0)
    };
    let gpus: Vec<Gpu> = (0..THREADS).map(open).collect::<Result<_, Error>>()?;
    for fit in [0, 1, 5, THREADS / 2, THREADS - 1, THREADS] {
        race(&gpus, limit, fit).during(format!("{fit} fit"))?;
    }
    same("nothing is left", current(&me())?, limit)?;
    drop(session);
    Ok(())
}

/// Has each GPU's client allocate a megabyte at the same time, where `fit` of them fit beside
/// `before`.
fn race(gpus: &[Gpu], before: u64, fit: u64) -> Outcome {
    let limit = before + fit * MEGABYTE;
    set(&me(), LIMIT, &limit.to_string())?;
    let refused = refusals(&me())?;
    let start = Barrier::new(gpus.len());
    let allocate = |gpu: &Gpu, by_heap| {
        start.wait();
        match by_heap {
            true => gpu.alloc_memory_vid_heap(Memory::Device, MEGABYTE),
            false => gpu.alloc_memory(Memory::Device, MEGABYTE),
        }
    };
    let allocate = &allocate;
    let outcomes: Vec<_> = thread::scope(|scope| {
        let by_heap = [false, true].into_iter().cycle();
        let racing = gpus.iter().zip(by_heap);
        let racing = racing.map(|(gpu, by_heap)| scope.spawn(move || allocate(gpu, by_heap)));
        let racing: Vec<_> = racing.collect();
        racing.into_iter().map(|thread| thread.join()).collect()
    });
    same("current", current(&me())?, limit)?;
    let mut got = 0;
    for (gpu, outcome) in gpus.iter().zip(outcomes) {
        let outcome = outcome.map_err(|_| failed("a thread panicked"))?;
        let memory = outcome.as_ref().ok().copied();
        if !is_refused(outcome)? {
            got += 1;
            gpu.client().free(memory.unwrap_or(0))?;
        }
    }
    same("threads with memory", got, fit)?;
    same(
        "refused",
        refusals(&me())? - refused,
        gpus.len() as u64 - fit,
    )
}

/// Whenever a member dies, all of its memory can be had by another.
fn killed() -> Outcome {
    let group = Group::new("rm")?;
    let mut last = member(&group)?;
    let limit = current("rm")? + 3 * MEGABYTE;
    last.kill();
    expect_gone(last.pid())?;
    set("rm", LIMIT, &limit.to_string())?;
    for steps in [0, 1, 4] {
        let mut child = member(&group)?;
        for step in 0..steps {
            child.next().during(format!("step {step}"))?;
        }
        let expected = if steps == 4 {
            0
        } else {
            limit - (3 - steps) * MEGABYTE
        };
        same("current", current("rm")?, expected).during(format!("{steps} steps"))?;
        child.kill();
        eventually("current", &0, || current("rm")).during(format!("{steps} steps"))?;
    }
    same("refused", refusals("rm")?, 1)
}

/// Another thread changes the size while RM reads it. RM reads what was charged.
fn raced_size() -> Outcome {
    const ROUNDS: usize = 200;
    /// RM does not round it up.
    const SMALL: u32 = 0x1_0000;
    let (session, limit) = with_room(MEGABYTE)?;
    let (gpu, before) = (session.gpu(), limit - MEGABYTE);
    let mut got = 0;
    for round in 0..ROUNDS {
        let outcome = gpu.alloc_memory_raced([SMALL, 0x40_0000]);
        let memory = outcome.as_ref().ok().copied();
        holds("within the limit", current(&me())? <= limit).during(round)?;
        if !is_refused(outcome)? {
            got += 1;
            same("charged", current(&me())? - before, SMALL.into())?;
            gpu.client().free(memory.unwrap_or(0))?;
        }
    }
    println!("# {got} of {ROUNDS} got the small size");
    same("after all", current(&me())?, before)
}

/// One thread frees memory while another one duplicates it. The alias that survives is charged.
fn raced_dup() -> Outcome {
    const ROUNDS: u32 = 150;
    let (first, second) = (session(0)?, session(0)?);
    first.group(ENGINE)?;
    expect(&me(), 0, Some((1, 0)))?;
    let (owner, taker) = (first.gpu(), second.gpu());
    let before = current(&me())?;
    let mut survived = 0;
    for round in 0..ROUNDS {
        let handle = owner.client().new_handle();
        owner.client().choose_next(handle);
        let done = AtomicBool::new(false);
        let turns = AtomicU32::new(0);
        let alias = thread::scope(|scope| -> Result<Option<Handle>, Stop> {
            let taking = scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    turns.fetch_add(1, Ordering::Relaxed);
                    let alias = taker.client().dup(taker.device(), owner.client(), handle);
                    if let Ok(alias) = alias {
                        return Some(alias);
                    }
                }
                None
            });
            while turns.load(Ordering::Relaxed) == 0 {
                thread::yield_now();
            }
            let made = owner.alloc_memory(Memory::Device, MEGABYTE);
            let freed = made.and_then(|memory| owner.client().free(memory));
            done.store(true, Ordering::Relaxed);
            freed?;
            taking.join().map_err(|_| failed("a thread panicked"))
        })?;
        let held = current(&me())? - before;
        match alias {
            Some(alias) => {
                same("charged", held, MEGABYTE).during(round)?;
                taker.client().free(alias)?;
                survived += 1;
            }
            None => same("charged", held, 0).during(round)?,
        }
        same("after all", current(&me())?, before).during(round)?;
    }
    println!("# {survived} of {ROUNDS} aliases survived");
    Ok(())
}
