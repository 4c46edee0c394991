// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests thousands of forks, execs and kills in groups.
//!
//! ```text
//! storm/ <- leader -> children -> grandchildren ..., all killed again
//! ```

use crate::members::idle;
use crate::sys::{self, reap, Child};
use crate::tree::{eventually, read, repetitions, Group};
use gct_ktap::{same, During, Outcome, Stop, Test};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

pub(crate) const TESTS: &[Test] = &[
    ("storms.fork", forks),
    ("storms.exec", execs),
    ("storms.kill", kills),
    ("storms.crowd", crowd),
    ("storms.moves_against_exits", moves),
];

/// Returns the number of children in each storm.
fn storm_size() -> usize {
    repetitions(2000)
}

/// Number of leaders at the same time.
const LEADERS: usize = 4;

/// Reads one key of `events`.
pub(crate) fn event(key: &str) -> Result<u64, Stop> {
    let events = read("events")?;
    events
        .lines()
        .filter_map(|line| gct_core::iface::parse::stat_line(line.as_bytes()).ok())
        .find_map(|(name, value)| (name == key).then_some(value))
        .ok_or_else(|| gct_ktap::failed(format!("no {key} in events: {events:?}")))
}

/// Runs `work` in leaders that are members and waits for them. Expects an empty group, and no
/// missed fork.
fn lead(work: impl Fn() -> i32) -> Outcome {
    let lost = event(LOST)?;
    let group = Group::new("storm")?;
    let mut leaders = Vec::new();
    for _ in 0..LEADERS {
        let (go, tell) = sys::pipe()?;
        let leader = Child::fork(|| {
            sys::wait_for(&go);
            work()
        })?;
        group.add(leader.0).during("write group.procs")?;
        sys::tell(&tell)?;
        leaders.push(leader);
    }
    for leader in leaders {
        same("a leader's exit", leader.wait()?, 0)?;
    }
    eventually("the group is empty", || {
        group.pids().is_ok_and(|pids| pids.is_empty())
    })?;
    same("forks that found no slot", event(LOST)?, lost)?;
    group.remove().during("remove")
}

/// Key that counts forks that could not be followed.
const LOST: &str = "members";

fn each(count: usize, step: impl Fn() -> io::Result<()>) -> i32 {
    for _ in 0..count {
        if let Err(error) = step() {
            return sys::errno(&error).max(1);
        }
    }
    0
}

fn forks() -> Outcome {
    lead(|| {
        each(storm_size() / LEADERS, || {
            Child::fork(|| 0)?.wait().map(drop)
        })
    })
}

fn execs() -> Outcome {
    lead(|| {
        each(storm_size() / LEADERS / 8, || {
            Child::fork(|| {
                let error = Command::new("/proc/self/exe").args(["sleep", "0"]).exec();
                sys::errno(&error)
            })?
            .wait()
            .map(drop)
        })
    })
}

/// Kills children while they fork.
fn kills() -> Outcome {
    lead(|| {
        each(storm_size() / LEADERS / 4, || {
            let child = Child::fork(|| {
                // Grandchildren exit by themselves, some after their parent.
                each(3, || Child::fork(|| 0).map(drop))
            })?;
            child.kill();
            child.wait().map(drop)
        })
    })
}

/// Adds as many members at once as one group of a large node has.
fn crowd() -> Outcome {
    let size = storm_size();
    let lost = event(LOST)?;
    let group = Group::new("storm")?;
    let (go, tell) = sys::pipe()?;
    let leader = Child::fork(|| {
        sys::wait_for(&go);
        let crowd: Vec<Child> = (0..size).map_while(|_| idle().ok()).collect();
        let whole = crowd.len() == size;
        let seen = eventually("the crowd is seen", || {
            group.pids().is_ok_and(|pids| pids.len() == size + 1)
        });
        reap(crowd);
        i32::from(!whole) + 2 * i32::from(seen.is_err())
    })?;
    group.add(leader.0)?;
    sys::tell(&tell)?;
    same("the leader's exit", leader.wait()?, 0)?;
    eventually("the group is empty", || {
        group.pids().is_ok_and(|pids| pids.is_empty())
    })?;
    same("forks that found no slot", event(LOST)?, lost)?;
    group.remove().during("remove")
}

/// Processes are moved while they exit. In every order none stays.
fn moves() -> Outcome {
    let group = Group::new("storm")?;
    for _ in 0..storm_size() / 4 {
        let child = Child::fork(|| 0)?;
        // Both results are right: the write was in time, or the process was gone.
        let _ = group.add(child.0);
        child.wait()?;
    }
    same("members", group.pids()?, vec![])?;
    group.remove().during("remove")
}
