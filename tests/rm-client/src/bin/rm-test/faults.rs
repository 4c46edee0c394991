// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests that a GPU error is charged to the process that caused it, and stops no other process.

use crate::gpus::{me, session};
use crate::process::Child;
use crate::submit::{queue, release};
use crate::tree::{at, eventually, index_of, read, Group};
use gct_ktap::{same, During, Outcome, Stop, Test};

pub(crate) const TESTS: &[Test] = &[
    ("fault_counts_for_its_process_alone", alone),
    ("fault_of_the_gpu_counts_for_everybody_on_it", lost),
];

/// The Xid of an access to an address that is unmapped, or mapped read-only.
pub(crate) const MMU_FAULT: u32 = 31;

/// Returns the lines about GPU errors in `compute.events` of an owner on the first GPU.
pub(crate) fn events(owner: &str) -> Result<String, Stop> {
    events_on(owner, 0)
}

/// Returns the same lines on a GPU.
fn events_on(owner: &str, minor: u32) -> Result<String, Stop> {
    let text = read(&format!("{owner}/{}/compute.events", index_of(minor)?))?;
    let is_error = |line: &&str| line.starts_with("faults ") || line.starts_with("last_xid ");
    let lines = text.lines().filter(is_error);
    Ok(lines.map(|line| format!("{line}\n")).collect())
}

pub(crate) fn shown(faults: u32, last_xid: u32) -> String {
    format!("faults {faults}\nlast_xid {last_xid}\n")
}

/// Checks that a neighbour's channel continues, both in another process and in the one whose
/// channel faulted.
fn alone() -> Outcome {
    let mut neighbour = Child::fork(|parent| {
        let session = session(0)?;
        let mut queue = queue(&session)?;
        parent.step()?;
        release(&mut queue, 0, 7)?;
        parent.step()
    })?;
    neighbour.at_step()?;
    let session = session(0)?;
    let (mut faulty, mut sound) = (queue(&session)?, queue(&session)?);
    for count in 1..=2 {
        faulty.submit_fault();
        eventually("own errors", &shown(count, MMU_FAULT), || events(&me()))?;
        faulty = queue(&session)?;
    }
    neighbour.next()?;
    release(&mut sound, 0, 7)?;
    let other = neighbour.pid().to_string();
    eventually("its directory", &true, || Ok(at(&other).exists()))?;
    eventually("the neighbour's errors", &shown(0, 0), || events(&other))?;
    neighbour.go()?;
    neighbour.finish()
}

/// The Xid of a GPU that fell off the bus.
const FALLEN_OFF: u32 = 79;

/// Returns what the driver says of a GPU.
fn health(minor: u32) -> Result<String, Stop> {
    let text = read(&format!("gpus/{}/health", index_of(minor)?))?;
    Ok(text.trim().to_owned())
}

/// Checks that an error of a whole GPU counts for its owners and every group, that `health` says
/// it, and that the other GPU is spared. The driver names no process with it.
fn lost() -> Outcome {
    let group = Group::new("lost")?;
    let (other, session) = (session(0)?, session(1)?);
    let (_other, mut queue) = (queue(&other)?, queue(&session)?);
    same("health before", health(1)?, "ok".to_owned())?;
    queue.submit_loss();
    eventually("health", &format!("xid {FALLEN_OFF}"), || health(1))?;
    for owner in [me().as_str(), "lost"] {
        same(owner, events_on(owner, 1)?, shown(1, FALLEN_OFF))?;
        same("the other GPU", events_on(owner, 0)?, shown(0, 0))?;
    }
    same("health of the other GPU", health(0)?, "ok".to_owned())?;
    group.remove().during("removal")
}
