// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests that the members of a group share its time slice: together they have it once per round.

use crate::gpus::session;
use crate::limits::{path, set, TIMESLICE};
use crate::process::{Child, Parent};
use crate::tree::{self, eventually, Group};
use gct_ktap::{same, Outcome, Stop, Test};
use rm_client::Engine;

pub(crate) const TESTS: &[Test] = &[
    ("shared_slice_of_four_processes", four),
    ("shared_slice_beside_many_channel_groups", many),
    ("shared_slice_while_members_come_and_die", storm),
];

/// Forks a member with a compute channel group. Waits for one of `slices` after each step.
fn member(slices: &[u64]) -> Result<Child, Stop> {
    let slices = slices.to_vec();
    let mut child = Child::fork(move |parent: &mut Parent| {
        let session = session(0)?;
        let group = session.group(Engine::Compute)?;
        parent.step()?;
        for us in slices {
            eventually("time slice", &us, || Ok(session.timeslice(group)?))?;
            parent.step()?;
        }
        Ok(())
    })?;
    child.at_step()?;
    Ok(child)
}

/// Returns the time slice lines of an owner's `compute.stat`.
fn told(owner: &str) -> Result<Vec<String>, Stop> {
    let stat = tree::read(&path(owner, "compute.stat")?)?;
    let lines = stat
        .lines()
        .filter(|line| line.starts_with("slice ") || line.starts_with("round "));
    Ok(lines.map(str::to_owned).collect())
}

fn four() -> Outcome {
    let group = Group::new("rm")?;
    // A process outside the group keeps its own slice.
    let session = session(0)?;
    let own = session.group(Engine::Compute)?;
    let stock = session.timeslice(own)?;
    let nothing = vec!["slice 0".to_owned(), "round 0".to_owned()];
    same("without a limit", told("rm")?, nothing)?;
    set("rm", TIMESLICE, "8000")?;
    let mut members = [
        member(&[2000, 4000, 8000])?,
        member(&[2000, 4000])?,
        member(&[2000])?,
        member(&[2000])?,
    ];
    for member in &members {
        group.add(member.pid())?;
    }
    members.iter_mut().try_for_each(Child::next)?;
    let expected = vec!["slice 2000".to_owned(), "round 8000".to_owned()];
    same("told", told("rm")?, expected)?;
    for (dies, left) in [(2..4, 0..2), (1..2, 0..1)] {
        members[dies].iter_mut().for_each(Child::kill);
        members[left].iter_mut().try_for_each(Child::next)?;
    }
    same("the stranger's", session.timeslice(own)?, stock)
}

/// Checks that a member with many channel groups divides its own share among them.
fn many() -> Outcome {
    const MANY: usize = 40;
    let group = Group::new("rm")?;
    let mut mate = member(&[4000, 4000])?;
    let mut many = Child::fork(|parent: &mut Parent| {
        let session = session(0)?;
        let mut groups = vec![session.group(Engine::Compute)?];
        parent.step()?;
        while groups.len() < MANY {
            groups.push(session.group(Engine::Compute)?);
            // 4000 us divided by 1, 2, 3, 4, 6 and so on: the sum never exceeds the share.
            let slices = groups.iter().map(|group| session.timeslice(*group));
            let sum: u64 = slices.sum::<Result<u64, _>>()?;
            same("no more than the share", sum <= 4000, true)?;
            same("most of it", 2 * sum >= 4000, true)?;
        }
        parent.step()
    })?;
    many.at_step()?;
    for child in [&mate, &many] {
        group.add(child.pid())?;
    }
    set("rm", TIMESLICE, "8000")?;
    mate.next()?;
    many.next()?;
    mate.next()
}

/// Members with a channel group start and die, one after another, beside one that stays.
fn storm() -> Outcome {
    let group = Group::new("rm")?;
    set("rm", TIMESLICE, "6000")?;
    let mut stays = member(&[6000, 6000])?;
    group.add(stays.pid())?;
    stays.next()?;
    for _ in 0..6 {
        let mut comes = member(&[3000])?;
        group.add(comes.pid())?;
        comes.next()?;
        comes.kill();
    }
    stays.next()
}
