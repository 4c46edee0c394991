// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests where the worker of owned channels runs, and what it costs.

use crate::gpus::session;
use crate::owned::{as_member, no_worker, worker_status};
use crate::submit::{queue, release};
use crate::tree::{self, eventually};
use gct_ktap::{same, Outcome, Stop, Test};

pub(crate) const TESTS: &[Test] = &[
    ("owned_worker_keeps_to_its_processors", processors),
    ("owned_worker_shows_its_cost", cost),
];

const ALL: &str = "all";

fn file(name: &str) -> Result<String, Stop> {
    Ok(format!("gpus/{}/{name}", tree::index_of(0)?))
}

/// Returns the processors on which the worker may run, as /proc says.
fn allowed() -> Result<String, Stop> {
    worker_status("Cpus_allowed_list")
}

/// Writes a list that is refused. The file keeps its value.
fn is_refused(list: &str, errno: i32) -> Outcome {
    let path = file("worker.cpus")?;
    let before = tree::read(&path)?;
    let refused = tree::write(&path, list).map_err(|error| error.raw_os_error());
    same(list, refused, Err(Some(errno)))?;
    same("value", tree::read(&path)?, before)
}

/// Work is done wherever the worker runs, and a worker that starts later runs there too.
fn processors() -> Outcome {
    drop(session(0)?);
    let path = file("worker.cpus")?;
    same("default", tree::read(&path)?.trim(), ALL)?;
    for (list, errno) in [
        ("1-0", libc::EINVAL),
        ("none", libc::EINVAL),
        ("8000", libc::ERANGE),
        ("8192", libc::ERANGE),
    ] {
        is_refused(list, errno)?;
    }
    tree::write(&path, "0")?;
    as_member(|_| {
        let session = session(0)?;
        let mut queue = queue(&session)?;
        same("at its start", allowed()?, "0".to_owned())?;
        release(&mut queue, 0, 1)?;
        for list in ["1", "0"] {
            tree::write(&path, list)?;
            same(list, allowed()?, list.to_owned())?;
            release(&mut queue, 0, 2)?;
            release(&mut queue, 0, 3)?;
        }
        tree::write(&path, ALL)?;
        same("more than one", allowed()?.len() > 1, true)
    })?;
    same("value", tree::read(&path)?.trim(), ALL)
}

fn stat(key: &str) -> Result<u64, Stop> {
    tree::stat(&file("worker.stat")?, key)
}

/// The cost grows with the work, and begins anew with each worker.
fn cost() -> Outcome {
    drop(session(0)?);
    for _ in 0..2 {
        same("no worker", (stat("cpu_usec")?, stat("sleeps")?), (0, 0))?;
        as_member(|_| {
            let session = session(0)?;
            let mut queue = queue(&session)?;
            for number in 1..=20 {
                release(&mut queue, 0, number)?;
            }
            eventually("it ran", &true, || Ok(stat("cpu_usec")? > 0))?;
            eventually("it slept", &true, || Ok(stat("sleeps")? > 0))
        })?;
        no_worker()?;
    }
    Ok(())
}
