// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Kills members of a group at its limit while they evict each other, beside a neighbour.

use crate::gmem::{current, events, is_refused, number, LIMIT};
use crate::limits::{path, set};
use crate::managed::{session, shown, uvm, Range, ROOT, START};
use crate::process::{Child, Parent};
use crate::tree::{self, eventually, Group};
use gct_ktap::{failed, holds, same, During, Outcome, Stop, Test};
use std::fs;
use std::thread;
use std::time::Duration;

pub(crate) const TESTS: &[Test] = &[("managed_memory_of_members_that_die", few)];

/// Members that are alive at a time, and the roots of each. The group may have fewer than all.
const MEMBERS: usize = 3;
const ROOTS: usize = 5;
const LIMIT_ROOTS: usize = 8;
/// Where a member's second range is.
const OTHER: usize = START + 64 * ROOT;

/// Moves memory to the GPU and checks it, until it is killed: what the CPU has written, and what is
/// populated on the GPU and takes host memory when it leaves.
fn member(parent: &mut Parent) -> Outcome {
    parent.step()?;
    let session = session()?;
    let range = Range::new(&session, START, ROOTS * ROOT)?;
    parent.step()?;
    for seed in 1.. {
        range.write(seed);
        // Others may have pinned all that could leave.
        is_refused(uvm(&session)?.migrate(START, ROOTS * ROOT))?;
        range.check(seed)?;
        let other = Range::new(&session, OTHER, ROOTS * ROOT)?;
        is_refused(uvm(&session)?.migrate(OTHER, ROOTS * ROOT))?;
        drop(other);
    }
    Ok(())
}

/// Holds memory on the GPU, and checks it at the next step.
fn neighbour(parent: &mut Parent) -> Outcome {
    parent.step()?;
    let session = session()?;
    let range = Range::new(&session, START, ROOTS * ROOT)?;
    range.write(7);
    range.migrate(&session)?;
    parent.step()?;
    range.check(7)?;
    parent.step()
}

/// Forks a member with a session.
fn join(group: &Group) -> Result<Child, Stop> {
    let mut child = Child::fork(member)?;
    child.at_step()?;
    group.add(child.pid())?;
    child.next().during("session")?;
    Ok(child)
}

/// Kills so many members, one after the other.
pub(crate) fn storm(deaths: usize) -> Outcome {
    let mut beside = Child::fork(neighbour)?;
    beside.at_step()?;
    beside.next().during("the neighbour")?;
    let name = beside.pid().to_string();
    let group = Group::new("dying")?;
    // Their sessions come first: no limit refuses them.
    let join = |_| join(&group);
    let mut waiting: Vec<_> = (0..deaths + MEMBERS).map(join).collect::<Result<_, _>>()?;
    let of_session = current("dying")? / waiting.len() as u64;
    let mut alive = Vec::new();
    for death in 0..deaths {
        while alive.len() < MEMBERS {
            let mut child = waiting.pop().ok_or_else(|| failed("nobody is left"))?;
            child.go()?;
            alive.push(child);
        }
        // The dead have left the memory of their sessions, which would be room for the others.
        let sessions = (waiting.len() + alive.len()) as u64;
        let limit = sessions * of_session + (LIMIT_ROOTS * ROOT) as u64;
        eventually("limit", &true, || {
            Ok(set("dying", LIMIT, &limit.to_string()).is_ok())
        })?;
        tree::write(&path("dying", "gmem.peak")?, "0")?;
        let before = events("dying", "evicted")?;
        eventually("evictions", &true, || {
            Ok(events("dying", "evicted")? > before)
        })?;
        // At another place of the next one each time.
        let ms = (death as u64 * 37) % 90;
        thread::sleep(Duration::from_millis(ms));
        let mut dies = alive.remove(0);
        let state = fs::read_to_string(format!("/proc/{}/stat", dies.pid()))?;
        holds("it found its content", !state.contains(") Z "))?;
        dies.kill();
        holds("within the limit", number("dying", "gmem.peak")? <= limit)?;
    }
    drop((alive, waiting));
    eventually("current", &0, || current("dying"))?;
    eventually("host", &0, || number("dying", "hmem.current"))?;
    same("the neighbour's", shown(&name)?, ROOTS * ROOT)?;
    same("evicted there", events(&name, "evicted")?, 0)?;
    beside.next().during("its content")?;
    beside.go()?;
    beside.finish()
}

fn few() -> Outcome {
    storm(6)
}
