// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests libcuda's use of channels: controls, doorbells, work.

use crate::gpus::{me, session, ENGINE};
use crate::tree::{eventually, expect, expect_gone};
use gct_ktap::{failed, same, skipped, During, Outcome, Stop, Test};
use rm_client::{numbers, Client, Engine, Gpu, Memory, Queue, Session};
use std::process;
use std::sync::atomic::Ordering;

pub(crate) const TESTS: &[Test] = &[
    ("timeslice_is_kept", timeslice),
    ("groups_have_numbers", numbers_differ),
    ("work_tokens_differ", tokens),
    ("doorbell_in_bar0_and_bar1", doorbells),
    ("device_memory_is_mapped", mapped_memory),
    ("work_is_done", work),
    ("work_around_the_ring", around),
    ("two_groups_work", two_groups),
    ("unscheduled_group_stands_still", unscheduled),
    ("compute_group", compute),
    ("work_in_a_space_of_uvm", uvm),
];

fn timeslice() -> Outcome {
    let session = session(0)?;
    let (one, two) = (session.group(ENGINE)?, session.group(ENGINE)?);
    let stock = session.timeslice(two)?;
    session.set_timeslice(one, 1234).during("SET_TIMESLICE")?;
    same("time slice", session.timeslice(one)?, 1234)?;
    same("the other's", session.timeslice(two)?, stock)
}

fn numbers_differ() -> Outcome {
    let session = session(0)?;
    let (one, two) = (session.group(ENGINE)?, session.group(ENGINE)?);
    let (one, two) = (session.group_number(one)?, session.group_number(two)?);
    same("numbers differ", one != two, true)
}

fn tokens() -> Outcome {
    let session = session(0)?;
    let group = session.group(ENGINE)?;
    let mut tokens = Vec::new();
    for _ in 0..3 {
        let channel = session.channel(group, ENGINE)?;
        tokens.push(session.work_token(channel, ENGINE)?);
    }
    tokens.sort_unstable();
    tokens.dedup();
    same("tokens", tokens.len(), 3)
}

/// Checks that both pages show the GPU's clock, 16 bytes before the doorbell.
fn doorbells() -> Outcome {
    let session = session(0)?;
    let clock = usize::from(numbers::DOORBELL) - 16;
    for in_bar1 in [false, true] {
        let page = session.gpu().doorbell(in_bar1).during("doorbell")?;
        let start = page.u32(clock).load(Ordering::SeqCst);
        eventually("the clock runs", &true, || {
            Ok(page.u32(clock).load(Ordering::SeqCst) != start)
        })?;
    }
    Ok(())
}

fn mapped_memory() -> Outcome {
    const BYTES: usize = 0x2000;
    let session = session(0)?;
    let gpu = session.gpu();
    let memory = gpu.alloc_memory(Memory::Device, 0x1_0000)?;
    let one = gpu
        .map_memory(Memory::Device, memory, BYTES)
        .during("map")?;
    let two = gpu.map_memory(Memory::Device, memory, BYTES)?;
    one.u64(0x1008)
        .store(0x0123_4567_89ab_cdef, Ordering::SeqCst);
    same(
        "through the other mapping",
        two.u64(0x1008).load(Ordering::SeqCst),
        0x0123_4567_89ab_cdef,
    )
}

/// Returns a queue of a scheduled group.
pub(crate) fn queue(session: &Session) -> Result<Queue, Stop> {
    let group = session.group(ENGINE)?;
    let queue = session.queue(group, ENGINE).during("queue")?;
    session.copy_object(queue.channel(), ENGINE)?;
    session.schedule(group, true).during("schedule")?;
    Ok(queue)
}

/// Submits a release and waits for it.
pub(crate) fn release(queue: &mut Queue, semaphore: u32, payload: u32) -> Outcome {
    queue.submit_release(semaphore, payload);
    let what = format!("semaphore {semaphore}");
    eventually(&what, &payload, || Ok(queue.payload(semaphore)))
}

fn work() -> Outcome {
    let session = session(0)?;
    let mut queue = queue(&session)?;
    expect(&me(), 0, Some((1, 1)))?;
    for number in 0..10 {
        release(&mut queue, number, 0x1000 + number)?;
    }
    Ok(())
}

/// Submits more entries than the ring has.
fn around() -> Outcome {
    let session = session(0)?;
    let mut queue = queue(&session)?;
    for number in 1..=700 {
        release(&mut queue, 0, number)?;
    }
    Ok(())
}

fn two_groups() -> Outcome {
    let session = session(0)?;
    let (mut one, mut two) = (queue(&session)?, queue(&session)?);
    for number in 1..=20 {
        release(&mut one, 1, number)?;
        release(&mut two, 1, 100 + number)?;
    }
    same("the first's", one.payload(1), 20)
}

/// Checks that work waits until its group is on the runlist. Work of another group serves as the
/// clock.
fn unscheduled() -> Outcome {
    let session = session(0)?;
    let mut clock = queue(&session)?;
    let group = session.group(ENGINE)?;
    let mut waiting = session.queue(group, ENGINE)?;
    waiting.submit_release(0, 7);
    for number in 1..=20 {
        release(&mut clock, 1, number)?;
    }
    same("before scheduling", waiting.payload(0), 0)?;
    session.schedule(group, true)?;
    waiting.ring();
    eventually("after scheduling", &7, || Ok(waiting.payload(0)))
}

/// Allocates a compute group as libcuda does, up to the engine's object.
fn compute() -> Outcome {
    let session = session(0)?;
    let group = session.group(Engine::Compute).during("group")?;
    let share = session.context_share(group).during("context share")?;
    let channel = session
        .channel_in(group, share, Engine::Compute)
        .during("channel")?;
    expect(&me(), 0, Some((1, 1)))?;
    session
        .work_token(channel, Engine::Compute)
        .during("token")?;
    match session.gpu().client().alloc_bare(channel, numbers::COMPUTE) {
        Ok(0) => Err(failed("the object has no handle")),
        Ok(_) => Ok(()),
        Err(error) => Err(skipped(format!("compute object: {error}"))),
    }
}

/// Checks that work runs through UVM's page tables, as with libcuda. The tree shows neither UVM's
/// own RM objects nor its names of the channel.
fn uvm() -> Outcome {
    let client = Client::open()?;
    let session = Session::with_uvm(Gpu::open(&client, 0)?).during("session")?;
    // The directory of the previous test's process may not have disappeared yet.
    expect_gone(process::id())?;
    let mut queue = queue(&session)?;
    expect(&me(), 0, Some((1, 1)))?;
    for number in 1..=10 {
        release(&mut queue, 2, number)?;
    }
    client.free_all()?;
    expect_gone(process::id())
}
