// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Fails every allocation of a migration and of an address space once: the nth one of the thread
//! that asks for it (Documentation/fault-injection). Needs the debug kernel, whose KASAN and
//! kmemleak look at what the failures leave.

use crate::gmem::{current, is_refused, number, LIMIT};
use crate::gpus::me;
use crate::limits::{path, set};
use crate::managed::{session, shown, uvm, Range, ROOT, START};
use crate::tree;
use gct_ktap::faults::{inject, prepare};
use gct_ktap::{failed, holds, same, During, Outcome, Stop, Test};
use rm_client::Uvm;

pub(crate) const TESTS: &[Test] = &[
    ("managed_memory_when_each_allocation_fails", migrated),
    (
        "managed_memory_when_each_allocation_of_a_space_fails",
        opened,
    ),
    (
        "managed_memory_when_each_allocation_of_a_write_fails",
        lowered,
    ),
];

/// Upper bound on the allocations of an operation.
const ALLOCATIONS_MAX: u32 = 2000;
/// Each of the first allocations fails, and every seventh of the others.
const DENSE: u32 = 30;

/// Passes each number of an allocation to `run`, until that says that there is no such one.
fn each(what: &str, run: impl Fn(u32) -> Result<bool, Stop>) -> Outcome {
    for nth in (1..DENSE).chain((DENSE..ALLOCATIONS_MAX).step_by(7)) {
        if !run(nth).during(format!("{what}, allocation {nth}"))? {
            println!("# {what}: fewer than {nth} allocations");
            return holds("an allocation failed", nth > 1);
        }
    }
    Err(failed(format!("{what}: never ran without a failure")))
}

/// A migration that evicts succeeds, or has no memory. Nothing is lost, no limit is exceeded, and
/// what it did not use stays charged to nobody.
fn migrated() -> Outcome {
    prepare()?;
    let session = session()?;
    let alone = current(&me())?;
    let limit = alone + ROOT as u64;
    set(&me(), LIMIT, &limit.to_string())?;
    let kept = Range::new(&session, START, ROOT)?;
    kept.write(5);
    let other = START + 64 * ROOT;
    // The CPU has written the range, or it is populated on the GPU, where its eviction takes host
    // memory.
    for is_written in [true, false] {
        let run = |nth: u32| {
            kept.migrate(&session).during("without a failure")?;
            let range = Range::new(&session, other, ROOT)?;
            if is_written {
                range.write(nth.into());
            }
            let space = uvm(&session)?;
            let (outcome, was_there) = inject(nth, || space.migrate(other, ROOT))?;
            is_refused(outcome)?;
            holds("within the limit", current(&me())? <= limit)?;
            kept.migrate(&session).during("afterwards")?;
            if is_written {
                range.check(nth.into())?;
            }
            kept.check(5)?;
            Ok(was_there)
        };
        each("migration", run)?;
        same("host memory", number(&me(), "hmem.current")?, 0)?;
    }
    drop(kept);
    same("peak", number(&me(), "gmem.peak")?, limit)?;
    same("uvm", shown(&me())?, 0)?;
    same("current", current(&me())?, alone)
}

/// A write that lowers the limit evicts, and holds when it returns; or it fails, and the old limit
/// stays.
fn lowered() -> Outcome {
    prepare()?;
    let session = session()?;
    let low = current(&me())? + ROOT as u64;
    let high = low + ROOT as u64;
    let file = path(&me(), LIMIT)?;
    let run = |nth| {
        set(&me(), LIMIT, &high.to_string())?;
        // Its eviction takes host memory.
        let range = Range::new(&session, START, 2 * ROOT)?;
        range.migrate(&session)?;
        same("on the GPU", current(&me())?, high)?;
        let (written, was_there) = inject(nth, || tree::write(&file, &low.to_string()))?;
        let expected = match written {
            Ok(()) => low,
            Err(error) => {
                let known = [libc::EBUSY, libc::ENOMEM].map(Some);
                holds("errno", known.contains(&error.raw_os_error()))?;
                high
            }
        };
        same("limit", number(&me(), LIMIT)?, expected)?;
        holds("within the limit", current(&me())? <= expected)?;
        Ok(was_there)
    };
    each("lower limit", run)?;
    same("uvm", shown(&me())?, 0)?;
    same("host memory", number(&me(), "hmem.current")?, 0)
}

/// An address space opens, or does not. Both leave nothing.
fn opened() -> Outcome {
    prepare()?;
    let session = session()?;
    set(
        &me(),
        LIMIT,
        &(current(&me())? + 8 * ROOT as u64).to_string(),
    )?;
    let before = current(&me())?;
    each("address space", |nth| {
        let (opened, was_there) = inject(nth, || Uvm::open(session.gpu()))?;
        holds("opened without a failure", was_there || opened.is_ok())?;
        drop(opened);
        same("current", current(&me())?, before)?;
        Ok(was_there)
    })?;
    let range = Range::new(&session, START, ROOT)?;
    range.write(1);
    holds(
        "it has room",
        !is_refused(uvm(&session)?.migrate(START, ROOT))?,
    )?;
    range.check(1)
}
