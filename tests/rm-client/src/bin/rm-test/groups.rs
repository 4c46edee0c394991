// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests that named groups show the usage of their members.

use crate::gpus::{session, ENGINE};
use crate::process::{Child, Parent};
use crate::tree::{expect, expect_gone, usage, Group};
use gct_ktap::{same, skipped, During, Outcome, Stop, Test};

pub(crate) const TESTS: &[Test] = &[
    ("group_sums_its_members", sums),
    ("group_takes_what_a_member_has", takes),
    ("group_follows_a_killed_member", killed),
    ("group_inherits_children", inherits),
    ("group_memory", memory),
];

/// Forks a process that allocates a channel group and a channel at each step.
fn member() -> Result<Child, Stop> {
    let mut child = Child::fork(|parent: &mut Parent| {
        parent.step()?;
        let session = session(0)?;
        loop {
            let group = session.group(ENGINE)?;
            session.channel(group, ENGINE)?;
            parent.step()?;
        }
    })?;
    child.at_step()?;
    Ok(child)
}

fn sums() -> Outcome {
    let group = Group::new("rm")?;
    let mut first = member()?;
    let mut second = member()?;
    group.add(first.pid())?;
    group.add(second.pid())?;
    expect("rm", 0, Some((0, 0)))?;
    first.next()?;
    expect("rm", 0, Some((1, 1)))?;
    second.next()?;
    second.next()?;
    expect("rm", 0, Some((3, 3)))?;
    expect(&first.pid().to_string(), 0, Some((1, 1)))?;
    expect(&second.pid().to_string(), 0, Some((2, 2)))?;
    same("removal of a group in use", group.remove().is_err(), true)?;
    second.kill();
    expect("rm", 0, Some((1, 1)))?;
    first.kill();
    expect("rm", 0, Some((0, 0)))?;
    group.remove().during("removal")
}

/// Checks that the usage of a process moves with it, from group to group.
fn takes() -> Outcome {
    let (one, two) = (Group::new("rm1")?, Group::new("rm2")?);
    let mut child = member()?;
    child.next()?;
    child.next()?;
    let pid = child.pid().to_string();
    expect(&pid, 0, Some((2, 2)))?;
    for (group, name, other) in [(&one, "rm1", "rm2"), (&two, "rm2", "rm1")] {
        group.add(child.pid())?;
        expect(name, 0, Some((2, 2)))?;
        expect(other, 0, Some((0, 0)))?;
        expect(&pid, 0, Some((2, 2)))?;
    }
    child.kill();
    expect_gone(child.pid())?;
    expect("rm2", 0, Some((0, 0)))
}

fn killed() -> Outcome {
    let group = Group::new("rm")?;
    for _ in 0..10 {
        let mut child = member()?;
        group.add(child.pid())?;
        child.next()?;
        expect("rm", 0, Some((1, 1)))?;
        child.kill();
        expect("rm", 0, Some((0, 0)))?;
    }
    group.remove().during("removal")
}

/// Checks that a member's child belongs to the group, and stays in it after its parent has died.
fn inherits() -> Outcome {
    let group = Group::new("rm")?;
    let mut child = Child::fork(|parent| {
        parent.step()?;
        // SAFETY: the process has one thread.
        match unsafe { libc::fork() } {
            -1 => return Err(std::io::Error::last_os_error().into()),
            0 => {}
            _ => return Ok(()),
        }
        let session = session(0)?;
        session.group(ENGINE)?;
        parent.step()
    })?;
    child.at_step()?;
    group.add(child.pid())?;
    child.next()?;
    child.finish()?;
    expect("rm", 0, Some((1, 0)))?;
    child.go()?;
    expect("rm", 0, Some((0, 0)))
}

/// Checks that the group is charged for memory, too.
fn memory() -> Outcome {
    let group = Group::new("rm")?;
    let mut child = member()?;
    group.add(child.pid())?;
    child.next()?;
    expect(&child.pid().to_string(), 0, Some((1, 1)))?;
    let own = usage(&child.pid().to_string(), 0)?;
    let sum = usage("rm", 0)?;
    same("usage", sum, own)?;
    let memory = own.and_then(|usage| usage.memory);
    let memory = memory.ok_or_else(|| skipped("gmem.stat does not show `pinned`"))?;
    same("some memory", memory > 0, true)?;
    child.kill();
    expect("rm", 0, Some((0, 0)))?;
    let left = usage("rm", 0)?.and_then(|usage| usage.memory);
    same("memory", left, Some(0))
}
