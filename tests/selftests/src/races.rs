// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests concurrent readers and writers, and directories that disappear while in use.

use crate::sys::{errno, Child};
use crate::tree::{self, at, read, repetitions, write, Group};
use gct_core::error::Error;
use gct_ktap::{failed, holds, same, During, Outcome, Stop, Test};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

pub(crate) const TESTS: &[Test] = &[
    ("races.open_file_of_a_removed_group", open_file),
    ("races.many_creators_of_one_name", one_name),
    ("races.writers_and_readers", writers_and_readers),
    ("races.create_and_remove_under_readers", create_and_remove),
    ("races.a_thousand_groups", a_thousand_groups),
];

/// Duration of each storm of this file.
const STORM: Duration = Duration::from_secs(2);
/// More than the machine has CPUs, so that they preempt each other.
const WORKERS: usize = 8;

/// Runs workers in their own processes until all exit. Each exits with 0 or an unexpected errno.
fn storm(work: impl Fn(usize) -> i32) -> Outcome {
    let children: io::Result<Vec<Child>> = (0..WORKERS)
        .map(|number| Child::fork(|| work(number)))
        .collect();
    for child in children? {
        match child.wait()? {
            0 => {}
            code => return Err(failed(format!("a worker ended with {code}"))),
        }
    }
    Ok(())
}

/// Repeats `step` until the storm is over. Stops early at an unexpected errno.
fn repeat(mut step: impl FnMut() -> Result<(), i32>) -> i32 {
    let start = Instant::now();
    while start.elapsed() < STORM {
        if let Err(code) = step() {
            return code;
        }
    }
    0
}

/// Accepts the `expected` errors as success.
fn tolerate<T>(outcome: io::Result<T>, expected: &[i32]) -> Result<(), i32> {
    match outcome {
        Ok(_) => Ok(()),
        Err(error) if expected.contains(&errno(&error)) => Ok(()),
        Err(error) => Err(errno(&error)),
    }
}

/// Uses a file that was opened before its directory disappeared. Reads and writes fail with EIO,
/// debugfs' error for this case, and the group's name can be used again.
fn open_file() -> Outcome {
    tree::needs_debugfs()?;
    let group = Group::new("r")?;
    let mut procs = File::open(at("r/group.procs"))?;
    let mut cgroup = OpenOptions::new()
        .read(true)
        .write(true)
        .open(at("r/group.cgroup"))?;
    let _directory = File::open(at("r"))?;
    group.remove().during("remove with open files")?;
    let mut text = String::new();
    let found = procs
        .read_to_string(&mut text)
        .err()
        .map(|error| errno(&error));
    same("reading", found, Some(libc::EIO))?;
    let found = cgroup.write(b"none").err().map(|error| errno(&error));
    same("writing", found, Some(libc::EIO))?;
    let again = Group::new("r")?;
    let found = cgroup.write(b"/other").err().map(|error| errno(&error));
    same(
        "the old file does not reach the new group",
        found,
        Some(libc::EIO),
    )?;
    same("the new group", read("r/group.cgroup")?.as_str(), "none\n")?;
    again.remove().during("remove")
}

/// Checks that exactly one of many processes that create one name at once succeeds.
fn one_name() -> Outcome {
    let rounds = repetitions(20);
    let mut made = 0;
    for _ in 0..rounds {
        let children: io::Result<Vec<Child>> = (0..WORKERS)
            .map(|_| {
                Child::fork(|| match write("control", "create one") {
                    Ok(()) => 100,
                    Err(error) => errno(&error),
                })
            })
            .collect();
        for child in children? {
            match child.wait()? {
                100 => made += 1,
                code if code == Error::Exists.errno() => {}
                code => return Err(failed(format!("create: errno {code}"))),
            }
        }
        write("control", "remove one")?;
    }
    same("times that it was made", made, rounds)
}

/// Writes limits and cgroups in half of the workers, and reads everything in the others.
fn writers_and_readers() -> Outcome {
    let group = Group::new("rw")?;
    let gpus = tree::directories("gpus")?;
    storm(|number| {
        let own = format!("/rw/{number}");
        repeat(|| {
            if number % 2 == 0 {
                tolerate(write("rw/group.cgroup", &own), &[])?;
                for gpu in &gpus {
                    let weight = write(&format!("rw/{gpu}/compute.weight"), "200");
                    tolerate(weight, &[Error::Unsupported.errno()])?;
                }
                return Ok(());
            }
            let cgroup = read("rw/group.cgroup").map_err(|error| errno(&error))?;
            // Every value that a reader sees was written whole by one writer.
            if cgroup != "none\n" && !(cgroup.starts_with("/rw/") && cgroup.len() == 6) {
                return Err(201);
            }
            read_everything("rw").map_err(|error| errno(&error))
        })
    })?;
    group.remove().during("remove")
}

/// Reads all files below a directory of the tree. A file may refuse.
fn read_everything(path: &str) -> io::Result<()> {
    let (dirs, files) = tree::entries(path)?;
    for name in dirs {
        read_everything(&format!("{path}/{name}"))?;
    }
    for name in files {
        let _ = read(&format!("{path}/{name}"));
    }
    Ok(())
}

/// Groups are created and removed while other processes hold their files open, read and write them.
fn create_and_remove() -> Outcome {
    let gone = [
        libc::ENOENT,
        libc::EIO,
        libc::ENXIO,
        Error::Exists.errno(),
        Error::Busy.errno(),
        Error::Gone.errno(),
        Error::Unsupported.errno(),
    ];
    storm(|number| {
        let name = format!("churn{}", number % 3);
        repeat(|| match number {
            0..=2 => {
                tolerate(write("control", format!("create {name}")), &gone)?;
                tolerate(write("control", format!("remove {name}")), &gone)
            }
            3 | 4 => tolerate(read(&format!("{name}/group.procs")), &gone),
            5 | 6 => tolerate(
                write(&format!("{name}/group.cgroup"), format!("/{name}")),
                &gone,
            ),
            _ => tolerate(write(&format!("{name}/0/compute.weight"), "100"), &gone),
        })
    })?;
    for name in ["churn0", "churn1", "churn2"] {
        let _ = write("control", format!("remove {name}"));
    }
    let left: Vec<String> = tree::directories("")?
        .into_iter()
        .filter(|name| name.starts_with("churn"))
        .collect();
    same("what is left", left, vec![])
}

fn a_thousand_groups() -> Outcome {
    let count = repetitions(1000);
    let start = Instant::now();
    let groups: Result<Vec<Group>, Stop> = (0..count)
        .map(|number| Group::new(&format!("many{number}")))
        .collect();
    let groups = groups?;
    println!(
        "# {count} groups made in {} ms",
        start.elapsed().as_millis()
    );
    let shown = tree::directories("")?
        .iter()
        .filter(|name| name.starts_with("many"))
        .count();
    same("directories", shown, count)?;
    let gpus = tree::gpus()?;
    for group in [&groups[0], &groups[count / 2], &groups[count - 1]] {
        same("GPUs of a group", tree::directories(&group.0)?.len(), gpus)?;
    }
    let last = groups[count - 1].file("group.cgroup");
    write(&last, "/many/last")?;
    same("the last", read(&last)?.as_str(), "/many/last\n")?;
    let start = Instant::now();
    for group in groups {
        let name = group.0.clone();
        group.remove().during(name)?;
    }
    println!("# and removed in {} ms", start.elapsed().as_millis());
    holds(
        "none is left",
        !tree::directories("")?
            .iter()
            .any(|name| name.starts_with("many")),
    )
}
