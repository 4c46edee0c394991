// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests that a process under `gmem.limit` sees it as the GPU's memory, and that others do not.

use crate::gmem::current;
use crate::gpus::{me, session, ENGINE};
use crate::limits::set;
use crate::process::{Child, Parent};
use crate::tree::{eventually, expect, Group};
use gct_ktap::{holds, same, Outcome, Stop, Test};
use rm_client::{numbers, Gpu, Memory};

pub(crate) const TESTS: &[Test] = &[
    ("gmem_limit_is_seen_as_the_memory", seen),
    ("gmem_limit_is_seen_by_members_alone", by_members),
];

const LIMIT: &str = "gmem.limit";
const MEGABYTE: u64 = 1 << 20;

/// What a process sees of a GPU's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    /// The size of the memory, all of it, and the size of the heap, in bytes.
    sizes: [u64; 3],
    free: u64,
    bus_width: u32,
}

fn see(gpu: &Gpu) -> Result<Seen, Stop> {
    let [width, size, total, heap, free] = gpu.memory_facts([
        numbers::MEMORY_BUS_WIDTH,
        numbers::MEMORY_SIZE,
        numbers::MEMORY_TOTAL,
        numbers::HEAP_SIZE,
        numbers::HEAP_FREE,
    ])?;
    Ok(Seen {
        sizes: [size, total, heap].map(|kib| u64::from(kib) << 10),
        free: u64::from(free) << 10,
        bus_width: width,
    })
}

impl Seen {
    /// Returns what is seen under a limit that leaves `left`.
    fn under(self, limit: u64, left: u64) -> Self {
        Self {
            sizes: [limit; 3],
            free: left,
            ..self
        }
    }
}

fn seen() -> Outcome {
    let session = session(0)?;
    session.group(ENGINE)?;
    expect(&me(), 0, Some((1, 0)))?;
    let gpu = session.gpu();
    let truth = see(gpu)?;
    holds("the memory is large", truth.free > 64 * MEGABYTE)?;
    let limit = current(&me())? + 8 * MEGABYTE;
    set(&me(), LIMIT, &limit.to_string())?;
    same("limit", see(gpu)?, truth.under(limit, 8 * MEGABYTE))?;
    let memory = gpu.alloc_memory(Memory::Device, 4 * MEGABYTE)?;
    same("charged", see(gpu)?, truth.under(limit, 4 * MEGABYTE))?;
    let (raised, lowered) = (limit + 16 * MEGABYTE, limit - 4 * MEGABYTE);
    set(&me(), LIMIT, &raised.to_string())?;
    same("raised", see(gpu)?, truth.under(raised, 20 * MEGABYTE))?;
    set(&me(), LIMIT, &lowered.to_string())?;
    same("lowered", see(gpu)?, truth.under(lowered, 0))?;
    gpu.client().free(memory)?;
    let [size, ..] = truth.sizes;
    set(&me(), LIMIT, &(2 * size).to_string())?;
    same("above the memory", see(gpu)?.sizes, truth.sizes)?;
    set(&me(), LIMIT, "max")?;
    let lifted = see(gpu)?;
    same("without a limit", lifted.sizes, truth.sizes)?;
    holds("free without a limit", lifted.free > 64 * MEGABYTE)
}

/// A member sees its group's limit, changed while it runs. This process, outside, sees the truth.
fn by_members() -> Outcome {
    let session = session(0)?;
    let truth = see(session.gpu())?;
    let group = Group::new("rm")?;
    let mut member = Child::fork(|parent: &mut Parent| {
        parent.step()?;
        let session = self::session(0)?;
        session.group(ENGINE)?;
        for megabytes in [256, 512, 128] {
            parent.step()?;
            let limit = megabytes * MEGABYTE;
            let left = limit - current("rm")?;
            same("member", see(session.gpu())?, truth.under(limit, left))?;
        }
        Ok(())
    })?;
    member.at_step()?;
    group.add(member.pid())?;
    member.next()?;
    for megabytes in [256, 512, 128] {
        set("rm", LIMIT, &(megabytes * MEGABYTE).to_string())?;
        let outside = see(session.gpu())?;
        same("outside", outside.sizes, truth.sizes)?;
        holds("outside, free", outside.free > 512 * MEGABYTE)?;
        match megabytes {
            128 => member.go()?,
            _ => member.next()?,
        }
    }
    member.finish()?;
    eventually("current", &0, || current("rm"))
}
