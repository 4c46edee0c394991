// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests that a process is charged for its memory while the memory exists.

use crate::gpus::{me, session, ENGINE};
use crate::tree::{eventually, expect_gone, usage};
use gct_ktap::{failed, same, skipped, During, Outcome, Stop, Test};
use rm_client::{Error, Memory};
use std::process;

pub(crate) const TESTS: &[Test] = &[
    ("device_memory_is_charged", device_memory),
    ("device_memory_by_vid_heap", vid_heap),
    ("host_memory_is_free", host_memory),
    ("dup_of_memory_is_charged_once", dup_memory),
];

const MEGABYTE: u64 = 1 << 20;

/// Returns this process's charge on GPU 0. The process has a channel group, so its directory exists
/// or will in a moment.
fn charged_now() -> Result<u64, Stop> {
    eventually("directory", &true, || Ok(usage(&me(), 0)?.is_some()))?;
    let own = usage(&me(), 0)?.ok_or_else(|| failed("the directory went"))?;
    own.memory
        .ok_or_else(|| skipped("gmem.stat does not show `pinned`"))
}

/// Returns by how much `work` changes the charge.
fn charged(work: impl FnOnce() -> Outcome) -> Result<u64, Stop> {
    let before = charged_now()?;
    work()?;
    Ok(charged_now()? - before)
}

fn device_memory() -> Outcome {
    let session = session(0)?;
    let client = session.gpu().client();
    session.group(ENGINE)?;
    let before = charged_now()?;
    let mut memory = 0;
    let more = charged(|| {
        memory = session.gpu().alloc_memory(Memory::Device, 4 * MEGABYTE)?;
        Ok(())
    })?;
    same("charged", more, 4 * MEGABYTE)?;
    client.free(memory)?;
    same("after the free", charged_now()?, before)?;
    let device = session.gpu().device();
    session.gpu().alloc_memory(Memory::Device, MEGABYTE)?;
    client.free(device)?;
    expect_gone(process::id())
}

fn vid_heap() -> Outcome {
    let session = session(0)?;
    session.group(ENGINE)?;
    let before = charged_now()?;
    let gpu = session.gpu();
    let memory = match gpu.alloc_memory_vid_heap(Memory::Device, 2 * MEGABYTE) {
        Err(Error::Status(status)) => {
            return Err(skipped(format!(
                "the driver refuses with {}",
                Error::Status(status)
            )))
        }
        memory => memory?,
    };
    same("charged", charged_now()? - before, 2 * MEGABYTE)?;
    // 535 frees this memory by RM_FREE. A refusal changes nothing.
    if gpu.free_memory_vid_heap(memory).is_err() {
        same("after a refusal", charged_now()? - before, 2 * MEGABYTE)?;
        gpu.client().free(memory)?;
    }
    same("after the free", charged_now()?, before)
}

fn host_memory() -> Outcome {
    let session = session(0)?;
    session.group(ENGINE)?;
    let more = charged(|| {
        session.gpu().alloc_memory(Memory::Host, MEGABYTE)?;
        let by_heap = session.gpu().alloc_memory_vid_heap(Memory::Host, MEGABYTE);
        by_heap.map(|_| ()).during("vid heap")
    })?;
    same("charged", more, 0)
}

/// Checks that a second name is not charged. The memory stays charged while it has a name.
fn dup_memory() -> Outcome {
    let first = session(0)?;
    let second = session(0)?;
    first.group(ENGINE)?;
    let before = charged_now()?;
    let memory = first.gpu().alloc_memory(Memory::Device, 4 * MEGABYTE)?;
    let name = second
        .gpu()
        .client()
        .dup(second.gpu().device(), first.gpu().client(), memory)
        .during("dup")?;
    same("charged once", charged_now()? - before, 4 * MEGABYTE)?;
    first.gpu().client().free(memory)?;
    same(
        "charged while it lives",
        charged_now()? - before,
        4 * MEGABYTE,
    )?;
    second.gpu().client().free(name)?;
    same("after the last free", charged_now()?, before)
}
