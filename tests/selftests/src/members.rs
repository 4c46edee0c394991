// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests which processes belong to a group, by pid and by cgroup, and for how long.

use crate::sys::{self, errno, reap, Child};
use crate::tree::{eventually, refuses, write, Group};
use gct_core::error::Error;
use gct_ktap::{holds, same, skipped, During, Outcome, Stop, Test};
use std::fs;
use std::io;
use std::thread::sleep;
use std::time::Duration;

pub(crate) const TESTS: &[Test] = &[
    ("members.pid", by_pid),
    ("members.zero_is_the_writer", zero_is_the_writer),
    ("members.thread_names_its_process", thread),
    ("members.move_between_groups", moving),
    ("members.fork_inherits", fork),
    ("members.exec_stays", exec),
    ("members.busy_until_the_last_exit", busy),
    ("members.dead_process", dead),
    ("members.pid_reuse", pid_reuse),
    ("members.pid_namespace", namespace),
    ("members.cgroup", cgroup),
];

/// Forks a child that lives until it is killed.
pub(crate) fn idle() -> io::Result<Child> {
    Child::fork(|| loop {
        sleep(Duration::from_secs(3600));
    })
}

/// Adds processes by pid:
/// ```text
/// g/ <- a, b
/// ```
fn by_pid() -> Outcome {
    let group = Group::new("g")?;
    let children = vec![idle()?, idle()?];
    for child in &children {
        group.add(child.0).during("write group.procs")?;
    }
    let mut expected: Vec<_> = children.iter().map(|child| child.0).collect();
    let mut found = group.pids()?;
    expected.sort_unstable();
    found.sort_unstable();
    same("members", found, expected)?;
    reap(children);
    same("members after their death", group.pids()?, vec![])
}

fn zero_is_the_writer() -> Outcome {
    let group = Group::new("g")?;
    let child = Child::fork(|| match write("g/group.procs", "0") {
        Ok(()) => loop {
            sleep(Duration::from_secs(3600));
        },
        Err(error) => errno(&error),
    })?;
    let joined = eventually("the child joins", || {
        group.pids().is_ok_and(|pids| pids == [child.0])
    });
    reap(vec![child]);
    joined
}

/// Checks that writing the id of any thread moves the whole process. The group shows the process
/// once.
fn thread() -> Outcome {
    let group = Group::new("g")?;
    let child = Child::fork(|| {
        std::thread::spawn(|| sleep(Duration::from_secs(3600)));
        sleep(Duration::from_secs(3600));
        0
    })?;
    let outcome = (|| {
        let tasks = format!("/proc/{}/task", child.0);
        eventually("a second thread", || {
            fs::read_dir(&tasks).is_ok_and(|tasks| tasks.count() == 2)
        })?;
        let other = fs::read_dir(&tasks)?
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
            .find(|tid: &libc::pid_t| *tid != child.0)
            .ok_or_else(|| skipped("no thread"))?;
        // A new thread is listed a moment before it can be found by its id. Once it sleeps it can
        // be found.
        let stat = format!("{tasks}/{other}/stat");
        eventually("the thread sleeps", || {
            fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") S "))
        })?;
        group.add(other).during("write a thread's id")?;
        same("members", group.pids()?, vec![child.0])
    })();
    reap(vec![child]);
    outcome
}

/// Moves a process to another group:
/// ```text
/// g/ <- a      then      g/
/// h/                     h/ <- a
/// ```
fn moving() -> Outcome {
    let from = Group::new("g")?;
    let to = Group::new("h")?;
    let child = idle()?;
    let outcome = (|| {
        from.add(child.0)?;
        to.add(child.0)?;
        same("the old group", from.pids()?, vec![])?;
        same("the new group", to.pids()?, vec![child.0])?;
        from.remove().during("the old group is free")
    })();
    reap(vec![child]);
    outcome
}

/// Checks that children belong to their parent's group:
/// ```text
/// g/ <- a -> fork b -> fork c      all three belong to g
/// ```
fn fork() -> Outcome {
    let group = Group::new("g")?;
    let (go, tell) = sys::pipe()?;
    let parent = Child::fork(|| {
        sys::wait_for(&go);
        let generation = Child::fork(|| {
            let _ = idle();
            sleep(Duration::from_secs(3600));
            0
        });
        if generation.is_err() {
            return 1;
        }
        sleep(Duration::from_secs(3600));
        0
    })?;
    group.add(parent.0)?;
    sys::tell(&tell)?;
    let grown = eventually("three generations", || {
        group.pids().is_ok_and(|pids| pids.len() == 3)
    });
    for pid in group.pids()? {
        // SAFETY: the members are descendants that this test forked.
        unsafe { libc::kill(pid, libc::SIGKILL) };
    }
    let _ = parent.wait();
    grown?;
    eventually("all are gone", || {
        group.pids().is_ok_and(|pids| pids.is_empty())
    })
}

fn exec() -> Outcome {
    let group = Group::new("g")?;
    let own = std::env::current_exe()?;
    let mut child = std::process::Command::new(own)
        .args(["sleep", "3600"])
        .spawn()?;
    let pid = libc::pid_t::try_from(child.id()).unwrap_or(-1);
    let outcome = (|| {
        group.add(pid)?;
        same("members", group.pids()?, vec![pid])
    })();
    child.kill()?;
    child.wait()?;
    outcome?;
    // A member that execs stays the same member.
    let (go, tell) = sys::pipe()?;
    let child = Child::fork(|| {
        sys::wait_for(&go);
        let failed = std::os::unix::process::CommandExt::exec(
            std::process::Command::new("/proc/self/exe").args(["sleep", "3600"]),
        );
        errno(&failed)
    })?;
    let outcome = (|| {
        group.add(child.0)?;
        sys::tell(&tell)?;
        let line = format!("/proc/{}/cmdline", child.0);
        eventually("exec", || {
            fs::read(&line).is_ok_and(|line| line.ends_with(b"sleep\x003600\0"))
        })?;
        same("members after exec", group.pids()?, vec![child.0])
    })();
    reap(vec![child]);
    outcome
}

fn busy() -> Outcome {
    let group = Group::new("g")?;
    let children = vec![idle()?, idle()?];
    for child in &children {
        group.add(child.0)?;
    }
    refuses("control", "remove g", Error::Busy)?;
    reap(children);
    group.remove().during("remove when all are gone")
}

/// Checks that a zombie counts as dead.
fn dead() -> Outcome {
    let group = Group::new("g")?;
    let child = Child::fork(|| 0)?;
    let state = format!("/proc/{}/stat", child.0);
    eventually("a zombie", || {
        fs::read_to_string(&state).is_ok_and(|state| state.contains(") Z "))
    })?;
    let pid = child.0;
    refuses(
        &group.file("group.procs"),
        pid.to_string(),
        Error::NoProcess,
    )?;
    child.wait()?;
    refuses(
        &group.file("group.procs"),
        pid.to_string(),
        Error::NoProcess,
    )?;
    same("members", group.pids()?, vec![])
}

/// Checks that an unrelated process that gets the pid of a dead member is no member. The pids cycle
/// through a small range so that this happens soon.
fn pid_reuse() -> Outcome {
    const PID_MAX: &str = "/proc/sys/kernel/pid_max";
    let before = fs::read_to_string(PID_MAX).during(PID_MAX)?;
    let group = Group::new("g")?;
    fs::write(PID_MAX, PID_CIRCLE.to_string()).during(PID_MAX)?;
    let outcome = reuse_a_pid(&group);
    fs::write(PID_MAX, before.trim()).during(PID_MAX)?;
    outcome
}

/// The lowest pids that are reused. After the first round the kernel keeps pids below 300 for
/// itself, and this machine has fewer than a hundred processes.
pub(crate) const PID_CIRCLE: libc::pid_t = 450;

fn reuse_a_pid(group: &Group) -> Outcome {
    let member = child_where(|pid| (301..PID_CIRCLE).contains(&pid))?;
    let pid = member.0;
    group.add(pid)?;
    same("members", group.pids()?, vec![pid])?;
    reap(vec![member]);
    let stranger = child_where(|other| other == pid)?;
    let members = group.pids();
    reap(vec![stranger]);
    same("members when the pid is back", members?, vec![])
}

/// Forks children until one has a pid for which `right` holds.
pub(crate) fn child_where(right: impl Fn(libc::pid_t) -> bool) -> Result<Child, Stop> {
    for _ in 0..2 * PID_CIRCLE {
        let child = idle()?;
        if right(child.0) {
            return Ok(child);
        }
        reap(vec![child]);
    }
    Err(Stop::Failed("no child with that pid".into()))
}

/// Checks that `group.procs` uses the pid namespace of the reader or writer.
///
/// ```text
/// first namespace: this test sees n
///   second: the child sees 1
/// ```
fn namespace() -> Outcome {
    let group = Group::new("g")?;
    let (joined, tell_joined) = sys::pipe()?;
    let (end, tell_end) = sys::pipe()?;
    let outer = Child::fork(|| {
        if let Err(error) = sys::unshare_pids() {
            return errno(&error);
        }
        // The first child is pid 1 there.
        let inner = Child::fork(|| {
            let own = write("g/group.procs", "1");
            let seen = crate::tree::read("g/group.procs").unwrap_or_default();
            let _ = sys::tell(&tell_joined);
            sys::wait_for(&end);
            match own {
                Ok(()) if seen == "1\n" => 0,
                Ok(()) => 200,
                Err(error) => errno(&error),
            }
        });
        inner.and_then(Child::wait).unwrap_or(201)
    })?;
    drop(tell_joined);
    sys::wait_for(&joined);
    let members = group.pids();
    sys::tell(&tell_end)?;
    match outer.wait()? {
        0 => {}
        libc::EINVAL => return Err(skipped("no pid namespaces")),
        200 => return Err(Stop::Failed("pid 1 did not see itself as 1".into())),
        code => return Err(Stop::Failed(format!("the child ended with {code}"))),
    }
    let members = members?;
    holds(
        &format!("one member, under its pid here: {members:?}"),
        matches!(members.as_slice(), [pid] if *pid > 1),
    )
}

/// Checks that a process in the cgroup or below it belongs to the group from when it opens the
/// driver until it closes it.
fn cgroup() -> Outcome {
    const MOUNT: &str = "/sys/fs/cgroup";
    if fs::metadata(format!("{MOUNT}/cgroup.procs")).is_err() {
        let _ = fs::create_dir_all(MOUNT);
        sys::mount("cgroup2", MOUNT).map_err(|error| skipped(format!("no cgroup v2: {error}")))?;
    }
    let inner = format!("{MOUNT}/gct-test/inner");
    let beside = format!("{MOUNT}/gct-test2");
    fs::create_dir_all(&inner)?;
    fs::create_dir_all(&beside)?;
    let group = Group::new("g")?;
    write(&group.file("group.cgroup"), "/gct-test")?;
    let outcome = (|| {
        let inside = with_driver_in(&inner)?;
        let outside = with_driver_in(&beside)?;
        let members = group.pids();
        let kept = refuses("control", "remove g", Error::Busy);
        let expected = vec![inside.0];
        reap(vec![inside, outside]);
        same("members by cgroup", members?, expected)?;
        kept?;
        eventually("none is left", || {
            group.pids().is_ok_and(|pids| pids.is_empty())
        })
    })();
    drop(group);
    for directory in [&inner, &format!("{MOUNT}/gct-test"), &beside] {
        let _ = fs::remove_dir(directory);
    }
    outcome
}

/// Forks a child into a cgroup. It has the driver open.
fn with_driver_in(cgroup: &str) -> Result<Child, Stop> {
    let (ready, tell) = sys::pipe()?;
    let procs = format!("{cgroup}/cgroup.procs");
    let child = Child::fork(|| {
        if fs::write(procs, "0").is_err() {
            return 1;
        }
        let Ok(_driver) = crate::rm::open() else {
            return 2;
        };
        let _ = sys::tell(&tell);
        sleep(Duration::from_secs(3600));
        0
    })?;
    drop(tell);
    sys::wait_for(&ready);
    Ok(child)
}
