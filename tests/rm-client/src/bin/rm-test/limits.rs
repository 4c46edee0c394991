// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests limits that reach RM: it has the written value for every channel group, present and
//! future. `freeze.rs` tests what a frozen channel does.

use crate::gpus::{me, session, ENGINE};
use crate::process::{Child, Parent};
use crate::tree::{self, eventually, expect, expect_gone, Group};
use gct_ktap::{same, During, Outcome, Stop, Test};
use rm_client::{Engine, Handle, Session};
use std::io;
use std::process;

pub(crate) const TESTS: &[Test] = &[
    ("limit_timeslice_of_groups_there_and_to_come", slices),
    ("limit_timeslice_gives_each_its_own_back", slices_given_back),
    ("limit_timeslice_survives_the_tenant", slice_reset_by_tenant),
    ("limit_timeslice_of_a_named_group", slices_of_members),
    ("limit_timeslice_follows_a_move", slices_after_moves),
    (
        "limit_timeslice_follows_the_second_name",
        slice_of_second_name,
    ),
    ("limit_of_a_process_goes_with_its_directory", limit_goes),
    ("limit_refused_input_changes_nothing", refused_input),
];

/// Returns the path of a file of an owner on GPU 0.
pub(crate) fn path(owner: &str, file: &str) -> Result<String, Stop> {
    Ok(format!("{owner}/{}/{file}", tree::index_of(0)?))
}

pub(crate) const TIMESLICE: &str = "compute.timeslice";
pub(crate) const FREEZE: &str = "compute.freeze";

/// Writes a limit of an owner on GPU 0 and reads it back.
pub(crate) fn set(owner: &str, file: &str, value: &str) -> Outcome {
    let path = path(owner, file)?;
    eventually("directory", &true, || Ok(tree::at(&path).exists()))?;
    tree::write(&path, value).during(format!("{path} = {value}"))?;
    same(&path, tree::read(&path)?, format!("{value}\n"))
}

pub(crate) fn has_slice(session: &Session, group: Handle, us: u64) -> Outcome {
    same("time slice", session.timeslice(group)?, us)
}

fn slices() -> Outcome {
    let session = session(0)?;
    let groups = [
        session.group(ENGINE)?,
        session.group(Engine::Copy(3))?,
        session.group(Engine::Compute)?,
    ];
    for us in [5000, 20, 1_000_000] {
        set(&me(), TIMESLICE, &us.to_string())?;
        for group in groups {
            has_slice(&session, group, us)?;
        }
        // The limit applies from the moment at which its owner has the group. Groups of one engine
        // share it, down to the shortest slice.
        let new = session.group(ENGINE)?;
        let part = (us / 2).max(50).min(us);
        has_slice(&session, new, part).during("new group")?;
        has_slice(&session, groups[0], part).during("the one before")?;
        has_slice(&session, groups[1], us).during("another engine's")?;
        session.gpu().client().free(new)?;
        has_slice(&session, groups[0], us).during("once it is gone")?;
    }
    Ok(())
}

fn slices_given_back() -> Outcome {
    let session = session(0)?;
    let (own, stock) = (session.group(ENGINE)?, session.group(ENGINE)?);
    let default = session.timeslice(stock)?;
    session.set_timeslice(own, 1234)?;
    set(&me(), TIMESLICE, "5000")?;
    set(&me(), TIMESLICE, "6000")?;
    let later = session.group(ENGINE)?;
    set(&me(), TIMESLICE, "default")?;
    has_slice(&session, own, 1234)?;
    has_slice(&session, stock, default)?;
    has_slice(&session, later, default)
}

/// Checks that a tenant may set its time slice, but not above the limit. Its own value takes effect
/// when the limit is gone.
fn slice_reset_by_tenant() -> Outcome {
    let session = session(0)?;
    let group = session.group(ENGINE)?;
    set(&me(), TIMESLICE, "300")?;
    session.set_timeslice(group, 100_000)?;
    has_slice(&session, group, 300)?;
    set(&me(), TIMESLICE, "default")?;
    has_slice(&session, group, 100_000)
}

/// Forks a process that allocates a group at once and another, of another engine, at the second
/// step. After each later step it checks their time slices.
fn member(expected: [Option<u64>; 4]) -> Result<Child, Stop> {
    let mut child = Child::fork(move |parent: &mut Parent| {
        let session = session(0)?;
        let first = session.group(ENGINE)?;
        let stock = session.timeslice(first)?;
        parent.step()?;
        let second = session.group(Engine::Copy(3))?;
        for expected in expected {
            for group in [first, second] {
                has_slice(&session, group, expected.unwrap_or(stock))?;
            }
            parent.step()?;
        }
        Ok(())
    })?;
    child.at_step()?;
    Ok(child)
}

/// Checks that the tighter of the member's own limit and its part of its group's limit applies.
fn slices_of_members() -> Outcome {
    let group = Group::new("rm")?;
    set("rm", TIMESLICE, "700")?;
    let later = |first| member([Some(first), Some(100), Some(900), None]);
    let mut children = [later(700)?, later(350)?];
    for child in &mut children {
        group.add(child.pid())?;
        child.next().during("a member")?;
    }
    set("rm", TIMESLICE, "200")?;
    children.iter_mut().try_for_each(Child::next)?;
    for child in &children {
        set(&child.pid().to_string(), TIMESLICE, "900")?;
    }
    set("rm", TIMESLICE, "2000")?;
    children.iter_mut().try_for_each(Child::next)?;
    for child in &children {
        set(&child.pid().to_string(), TIMESLICE, "default")?;
    }
    set("rm", TIMESLICE, "default")?;
    children.iter_mut().try_for_each(Child::next)
}

fn slices_after_moves() -> Outcome {
    let (one, two) = (Group::new("rm1")?, Group::new("rm2")?);
    let free = Group::new("rm3")?;
    set("rm1", TIMESLICE, "700")?;
    set("rm2", TIMESLICE, "400")?;
    let mut child = member([Some(700), Some(400), None, Some(700)])?;
    for group in [&one, &two, &free, &one] {
        group.add(child.pid())?;
        child.next()?;
    }
    child.kill();
    expect_gone(child.pid())
}

/// Checks that the limit stays on a channel group that keeps only its second name.
fn slice_of_second_name() -> Outcome {
    let (first, second) = (session(0)?, session(0)?);
    let group = first.group(ENGINE)?;
    let stock = first.timeslice(group)?;
    let device = second.gpu().device();
    let other = second.gpu().client();
    let name = other.dup(device, first.gpu().client(), group)?;
    set(&me(), TIMESLICE, "300")?;
    second.set_timeslice(name, 9000)?;
    has_slice(&second, name, 300).during("set by the second name")?;
    first.set_timeslice(group, stock)?;
    first.gpu().client().free(group)?;
    has_slice(&second, name, 300).during("after the first name")?;
    set(&me(), TIMESLICE, "500")?;
    has_slice(&second, name, 500)?;
    set(&me(), TIMESLICE, "default")?;
    has_slice(&second, name, stock)
}

fn limit_goes() -> Outcome {
    let session = session(0)?;
    let group = session.group(ENGINE)?;
    let stock = session.timeslice(group)?;
    set(&me(), TIMESLICE, "300")?;
    session.gpu().client().free(group)?;
    expect_gone(process::id())?;
    let group = session.group(ENGINE)?;
    expect(&me(), 0, Some((1, 0)))?;
    has_slice(&session, group, stock)?;
    let shown = tree::read(&path(&me(), TIMESLICE)?)?;
    same("shown", shown, "default\n".into())
}

fn refused_input() -> Outcome {
    let session = session(0)?;
    let group = session.group(ENGINE)?;
    set(&me(), TIMESLICE, "300")?;
    let file = path(&me(), TIMESLICE)?;
    for (text, errno) in [("19", libc::ERANGE), ("x", libc::EINVAL)] {
        let error = tree::write(&file, text).err();
        let found = error.as_ref().and_then(io::Error::raw_os_error);
        same(text, found, Some(errno))?;
        same("shown", tree::read(&file)?, "300\n".into())?;
        has_slice(&session, group, 300)?;
    }
    Ok(())
}
