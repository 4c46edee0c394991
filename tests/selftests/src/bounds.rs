// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests attacks by hostile tenants: deep cgroups, reused pids, and attempts to exhaust shared
//! resources.

use crate::members::{child_where, PID_CIRCLE};
use crate::rm;
use crate::storms::event;
use crate::sys::{self, reap, Child};
use crate::tree::{refuses, repetitions, write, Group};
use gct_core::error::Error;
use gct_ktap::{same, skipped, During, Outcome, Stop, Test};
use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::thread::sleep;
use std::time::Duration;

pub(crate) const TESTS: &[Test] = &[
    ("bounds.deep_cgroup", deep_cgroup),
    ("bounds.dead_opener_is_no_stranger", dead_opener),
    ("bounds.dead_opener_is_no_thread", dead_opener_thread),
    ("bounds.descriptors_of_the_dead", descriptors_of_the_dead),
];

const MOUNT: &str = "/sys/fs/cgroup";

/// Mounts cgroup v2 unless it is mounted.
fn need_cgroups() -> Outcome {
    if fs::metadata(format!("{MOUNT}/cgroup.procs")).is_err() {
        let _ = fs::create_dir_all(MOUNT);
        sys::mount("cgroup2", MOUNT).map_err(|error| skipped(format!("no cgroup v2: {error}")))?;
    }
    Ok(())
}

/// A cgroup, removed on drop with its parents up to `top`.
struct Cgroup {
    path: String,
    top: String,
}

impl Cgroup {
    /// Creates `/top/xx..x/xx..x` of exactly `length` bytes, as the kernel names it.
    fn new(top: &str, length: usize) -> Result<Self, Stop> {
        let mut path = top.to_owned();
        while path.len() < length {
            // A component is at least one byte and its slash, and leaves room for another.
            let left = length - path.len() - 1;
            let part = if left > 200 { left.min(202) - 2 } else { left };
            path = format!("{path}/{}", "x".repeat(part));
        }
        let made = Self {
            path,
            top: top.to_owned(),
        };
        fs::create_dir_all(made.directory()).during(format!("a path of {length} bytes"))?;
        same("its length", made.path.len(), length)?;
        Ok(made)
    }

    fn directory(&self) -> String {
        format!("{MOUNT}{}", self.path)
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let mut path = self.path.as_str();
        while path.len() >= self.top.len() {
            let _ = fs::remove_dir(format!("{MOUNT}{path}"));
            path = path.rsplit_once('/').map_or("", |(above, _)| above);
        }
    }
}

/// Forks a child into a cgroup. It holds the driver open as descriptor `.1`.
fn opener(cgroup: &Cgroup) -> Result<(Child, i32), Stop> {
    let (number, tell) = sys::pipe()?;
    let procs = format!("{}/cgroup.procs", cgroup.directory());
    let child = Child::fork(|| {
        if fs::write(procs, "0").is_err() {
            return 1;
        }
        let Ok(driver) = rm::open() else {
            return 2;
        };
        let _ = sys::tell_number(&tell, driver.as_raw_fd());
        sleep(Duration::from_secs(3600));
        0
    })?;
    drop(tell);
    let descriptor = sys::read_number(&number).during("the child opens the driver")?;
    Ok((child, descriptor))
}

/// Checks that a process below a group's cgroup belongs to the group, however deep its own cgroup.
/// The kernel's paths have no maximum length; the core keeps 512 bytes of one.
fn deep_cgroup() -> Outcome {
    need_cgroups()?;
    let group = Group::new("g")?;
    write(&group.file("group.cgroup"), "/gct-deep")?;
    for length in [300, 510, 511, 512, 513, 514, 548, 1000, 3000] {
        let deep = Cgroup::new("/gct-deep", length)?;
        let (child, _) = opener(&deep).during(format!("{length} bytes"))?;
        let members = group.pids();
        let expected = vec![child.0];
        reap(vec![child]);
        same(&format!("members at {length} bytes"), members?, expected)?;
    }
    // A path that only shares a prefix with the group's path lies outside.
    let beside = Cgroup::new("/gct-deeper", 600)?;
    let (child, _) = opener(&beside)?;
    let members = group.pids();
    reap(vec![child]);
    same("members beside", members?, vec![])
}

/// Kills the opener but keeps its descriptor here, so that its pid becomes free.
fn orphan(group: &Group) -> Result<(OwnedFd, libc::pid_t, Cgroup), Stop> {
    need_cgroups()?;
    write(&group.file("group.cgroup"), "/gct-dead")?;
    let cgroup = Cgroup::new("/gct-dead", 10)?;
    for _ in 0..2 * PID_CIRCLE {
        let (child, descriptor) = opener(&cgroup)?;
        let pid = child.0;
        if !(301..PID_CIRCLE).contains(&pid) {
            reap(vec![child]);
            continue;
        }
        same("members", group.pids()?, vec![pid])?;
        let taken = sys::take_fd(pid, descriptor).during("pidfd_getfd")?;
        reap(vec![child]);
        same("members after its death", group.pids()?, vec![])?;
        return Ok((taken, pid, cgroup));
    }
    Err(gct_ktap::failed("no child in the circle of pids"))
}

/// Runs `test` while pids cycle through a small range.
fn in_pid_circle(test: impl FnOnce() -> Outcome) -> Outcome {
    const PID_MAX: &str = "/proc/sys/kernel/pid_max";
    let before = fs::read_to_string(PID_MAX).during(PID_MAX)?;
    fs::write(PID_MAX, PID_CIRCLE.to_string()).during(PID_MAX)?;
    let outcome = test();
    fs::write(PID_MAX, before.trim()).during(PID_MAX)?;
    outcome
}

/// Checks that an unrelated process that gets the pid of a dead opener is no member.
fn dead_opener() -> Outcome {
    in_pid_circle(|| {
        let group = Group::new("g")?;
        let (kept, pid, _cgroup) = orphan(&group)?;
        let stranger = child_where(|other| other == pid)?;
        let members = group.pids();
        reap(vec![stranger]);
        drop(kept);
        same("members when the pid is back", members?, vec![])
    })
}

/// Checks that a process is no member either if one of its threads gets that pid.
fn dead_opener_thread() -> Outcome {
    in_pid_circle(|| {
        let group = Group::new("g")?;
        let (kept, pid, _cgroup) = orphan(&group)?;
        let (found, tell) = sys::pipe()?;
        let stranger = Child::fork(|| {
            for _ in 0..2 * PID_CIRCLE {
                let own = || {
                    // SAFETY: has no preconditions.
                    let right = unsafe { libc::gettid() } == pid;
                    if right {
                        let _ = sys::tell_number(&tell, pid);
                        sleep(Duration::from_secs(3600));
                    }
                };
                std::thread::scope(|scope| {
                    scope.spawn(own);
                });
            }
            1
        })?;
        drop(tell);
        let known = sys::read_number(&found).during("a thread with the pid");
        let members = group.pids();
        reap(vec![stranger]);
        drop(kept);
        same("the thread", known?, pid)?;
        same("members when a thread has the pid", members?, vec![])
    })
}

/// Forks, opens, passes the descriptor on and exits, again and again. Each dead opener stays
/// tracked while its file is open, none of their pids is shown, and in the end nothing is left.
/// (This cannot fill the table here: 65536 files of the driver need more memory than this machine
/// has. The tests of gct_core show that case.)
fn descriptors_of_the_dead() -> Outcome {
    need_cgroups()?;
    let group = Group::new("g")?;
    write(&group.file("group.cgroup"), "/gct-dead")?;
    let cgroup = Cgroup::new("/gct-dead", 10)?;
    let limit = event("limit")?;
    let mut kept = Vec::new();
    for _ in 0..repetitions(200) {
        let (child, descriptor) = opener(&cgroup)?;
        kept.push(sys::take_fd(child.0, descriptor).during("pidfd_getfd")?);
        reap(vec![child]);
    }
    same("members that are dead", group.pids()?, vec![])?;
    refuses("control", "remove g", Error::Busy).during("their files are open")?;
    let (neighbour, _) = opener(&cgroup)?;
    let members = group.pids();
    let expected = vec![neighbour.0];
    reap(vec![neighbour]);
    same("a neighbour", members?, expected)?;
    drop(kept);
    same("what was not followed", event("limit")?, limit)?;
    group.remove().during("remove when no file is left")
}
