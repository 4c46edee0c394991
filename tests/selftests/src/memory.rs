// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Fails every allocation of the tree's operations once.
//!
//! The kernel fails the nth allocation of the task that asks for it
//! (Documentation/fault-injection). The operation then succeeds all the same or returns ENOMEM.
//! Afterwards everything works and nothing has leaked; KASAN and kmemleak check that on the debug
//! kernel.

use crate::members::idle;
use crate::sys::{errno, reap};
use crate::tree::{self, read, write, Group};
use gct_ktap::faults::{inject, prepare};
use gct_ktap::{failed, holds, same, During, Outcome, Test};
use std::io;

pub(crate) const TESTS: &[Test] = &[
    ("memory.create_and_remove", create_and_remove),
    ("memory.files_of_a_group", files_of_a_group),
];

/// Upper bound on allocations. An operation of the tree makes a few dozen on eight GPUs.
const ALLOCATIONS_MAX: u32 = 5000;

/// Each of the first allocations fails; they all differ.
const DENSE: u32 = 40;

/// Repeats `operation` with each of its allocations failing, and calls `after` after each.
fn each(
    what: &str,
    operation: impl Fn() -> io::Result<()>,
    after: impl Fn(bool) -> Outcome,
) -> Outcome {
    let mut refused = 0;
    // The files of a directory allocate alike, so every seventh of those suffices.
    for nth in (1..DENSE).chain((DENSE..ALLOCATIONS_MAX).step_by(7)) {
        let (outcome, injected) = inject(nth, &operation)?;
        let done = match outcome {
            Ok(()) => true,
            Err(error) if errno(&error) == libc::ENOMEM => {
                refused += 1;
                false
            }
            Err(error) => return Err(failed(format!("{what}, allocation {nth}: {error}"))),
        };
        after(done).during(format!("after {what}, allocation {nth}, done {done}"))?;
        if !injected {
            println!("# {what}: fewer than {nth} allocations, {refused} times ENOMEM");
            return holds("an allocation was failed", nth > 1);
        }
    }
    Err(failed(format!("{what}: never ran without an injection")))
}

fn create_and_remove() -> Outcome {
    prepare()?;
    each(
        "create",
        || write("control", "create short"),
        |done| match write("control", "remove short") {
            Ok(()) => holds("there was a group to remove", done),
            Err(error) => same("remove", (errno(&error), done), (libc::ENOENT, false)),
        },
    )?;
    write("control", "create short").during("create")?;
    each(
        "remove",
        || write("control", "remove short"),
        |_| match write("control", "create short") {
            Err(error) if errno(&error) != libc::EEXIST => Err(error.into()),
            _ => Ok(()),
        },
    )?;
    write("control", "remove short").during("remove")?;
    let group = Group::new("whole")?;
    same(
        "GPUs of a group made afterwards",
        tree::directories("whole")?.len(),
        tree::gpus()?,
    )?;
    group.remove().during("remove")
}

fn files_of_a_group() -> Outcome {
    prepare()?;
    let group = Group::new("short")?;
    each(
        "write group.cgroup",
        || write("short/group.cgroup", "/short"),
        |_| Ok(()),
    )?;
    each(
        "read group.cgroup",
        || read("short/group.cgroup").map(drop),
        |_| Ok(()),
    )?;
    let child = idle()?;
    let outcome = each(
        "write group.procs",
        || write("short/group.procs", child.0.to_string()),
        |_| Ok(()),
    )
    .and_then(|()| {
        each(
            "read group.procs",
            || read("short/group.procs").map(drop),
            |_| Ok(()),
        )?;
        same("members", group.pids()?, vec![child.0])
    });
    reap(vec![child]);
    outcome?;
    group.remove().during("remove")
}
