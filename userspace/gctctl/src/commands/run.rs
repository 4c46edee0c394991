// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Runs a program in a group of the user-space mode (`run`).

use std::env;
use std::ffi::OsString;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process;

use gct_client::{Error, Owner, Target, Tree};
use gct_core::error::Error as CoreError;
use gct_core::iface::files::{self, Entry};
use gct_core::iface::{File, Place};
use gctd_ipc::paths;
use gctd_ipc::procfs::{stat_field, START};

use crate::cli::Run;
use crate::outcome::{Failure, Outcome};

const PRELOAD: &str = "LD_PRELOAD";
/// The variable that allows the program to run without its limits.
const OPTIONAL: &str = "GCTGROUP_OPTIONAL";
/// The variable with the SMs that the program sees.
const SM_COUNT: &str = "GCTGROUP_SM_COUNT";

/// Prefix of the groups that are created for one program. Its pid and start time follow.
const PREFIX: &str = "run-";

/// Becomes the program. Returns only if it cannot be started.
pub(crate) fn run(tree: &Tree, socket: &Path, run: &Run) -> Outcome {
    match start(tree, socket, run) {
        Ok(never) => match never {},
        Err(failure) => Outcome::failed(failure),
    }
}

fn start(tree: &Tree, socket: &Path, run: &Run) -> Result<core::convert::Infallible, Failure> {
    let library = library(run.preload.as_deref())?;
    let (program, arguments) = run
        .command
        .split_first()
        .ok_or_else(|| Failure::new(2, "There is no program to run."))?;
    let mut command = process::Command::new(program);
    command
        .args(arguments)
        .env(PRELOAD, with_others(&library))
        .env(paths::SOCKET_VARIABLE, socket);
    let place = match join(tree, run) {
        Ok(group) => {
            command.env(paths::GROUP_VARIABLE, &group);
            format!("in group {group}")
        }
        Err(failure) if run.optional => {
            failure.print();
            "without its limits".to_owned()
        }
        Err(failure) => return Err(failure),
    };
    if run.optional {
        command.env(OPTIONAL, "1");
    }
    if let Some(count) = &run.sm_count {
        command.env(SM_COUNT, count);
    }
    let error = command.exec();
    Err(Failure::new(
        1,
        format!(
            "{} cannot be started {place}: {error}.",
            Path::new(program).display()
        ),
    ))
}

/// Sets the limits of the group and makes this process, which becomes the program, a member.
fn join(tree: &Tree, run: &Run) -> Result<String, Failure> {
    let limits = limits(run)?;
    let group = match &run.group {
        Some(group) => group.clone(),
        None => {
            sweep(tree)?;
            own_group()?
        }
    };
    let owner = Owner::Group(group.clone());
    // A group of the program's own must be new: one that is there has limits of its own. A named
    // one may be made by a program that starts at the same time.
    if run.group.is_none() || !tree.owners()?.contains(&owner) {
        match tree.create(&group) {
            Err(error) if run.group.is_some() && error.core() == Some(CoreError::Exists) => {}
            other => other?,
        }
    }
    // 0 is this process, whatever its pid is where the daemon runs.
    let joined = limit(tree, &limits, &owner).and_then(|()| Ok(tree.attach_pid(&group, 0)?));
    if joined.is_err() && run.group.is_none() {
        // Fails if the daemon is gone, and its groups with it.
        let _ = tree.remove(&group);
    }
    joined.map(|()| group)
}

/// Returns the requested limits. Checks every value, before a group exists.
fn limits(run: &Run) -> Result<Vec<(&'static Entry, &str)>, Failure> {
    let named = [
        (File::TpcMask, &run.tpc),
        (File::TpcQuota, &run.quota),
        (File::AtomDuration, &run.atom),
        (File::GmemLimit, &run.memory),
        (File::ComputePriority, &run.priority),
        (File::ComputeWeight, &run.weight),
        (File::ComputeTimeslice, &run.slice),
    ];
    let mut limits = Vec::new();
    for (file, value) in named {
        limits.extend(value.as_deref().map(|value| (files::entry(file), value)));
    }
    for option in &run.options {
        let (file, value) = option.split_once('=').ok_or_else(|| {
            Failure::new(
                2,
                format!("{option:?} is not FILE=VALUE, such as tpc.steal=0."),
            )
        })?;
        let entry = files::find(Place::Pool, file).ok_or_else(|| {
            let message = format!("There is no limit {file}: gctctl show lists those of a group.");
            Failure::new(4, message)
        })?;
        limits.push((entry, value));
    }
    for (entry, value) in &limits {
        Tree::parse(entry, value)?;
    }
    Ok(limits)
}

/// Sets the limits on every GPU.
fn limit(tree: &Tree, limits: &[(&'static Entry, &str)], owner: &Owner) -> Result<(), Failure> {
    let gpus = tree.pools(owner)?;
    if gpus.is_empty() && !limits.is_empty() {
        return Err(Failure::new(
            4,
            "The daemon knows no GPU, so it cannot limit the program: check nvidia-smi.",
        ));
    }
    for (entry, value) in limits {
        for gpu in &gpus {
            tree.set(&Target::Pool(owner.clone(), *gpu), entry, value)?;
        }
    }
    Ok(())
}

/// A program for which a group was created: its pid, and its start time in clock ticks since the
/// boot. Another program may have the pid later, or in another container.
#[derive(Debug, PartialEq, Eq)]
struct Program<'a> {
    pid: &'a str,
    start: &'a str,
}

impl<'a> Program<'a> {
    fn of_group(name: &'a str) -> Option<Self> {
        let (pid, start) = name.strip_prefix(PREFIX)?.split_once('-')?;
        let is_number =
            |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        (is_number(pid) && is_number(start)).then_some(Self { pid, start })
    }

    fn has_ended(&self) -> bool {
        start_time(self.pid).is_none_or(|start| start != self.start)
    }
}

/// Returns the start time of a process in clock ticks.
fn start_time(pid: &str) -> Option<String> {
    let stat = fs::read(Path::new("/proc").join(pid).join("stat")).ok()?;
    stat_field(&stat, START).map(str::to_owned)
}

/// Returns the name of a group for this process alone.
fn own_group() -> Result<String, Failure> {
    let start = start_time("self")
        .ok_or_else(|| Failure::new(1, "/proc/self/stat cannot be read: mount /proc."))?;
    Ok(format!("{PREFIX}{}-{start}", process::id()))
}

/// Returns whether a group was created for one program.
pub(super) fn is_run_group(name: &str) -> bool {
    Program::of_group(name).is_some()
}

/// Removes the groups of programs that have ended, unless children of theirs still run.
fn sweep(tree: &Tree) -> Result<(), Error> {
    for owner in tree.owners()? {
        let Owner::Group(name) = owner else { continue };
        if Program::of_group(&name).is_some_and(|program| program.has_ended()) {
            // Fails for a group with members, which stays.
            let _ = tree.remove(&name);
        }
    }
    Ok(())
}

/// Returns the named library, or the one that is installed with this program.
pub(super) fn library(named: Option<&Path>) -> Result<PathBuf, Failure> {
    let Some(path) = named else {
        let program = env::current_exe().unwrap_or_default();
        return paths::library_of(&program).map_err(|error| Failure::new(1, error.to_string()));
    };
    path.canonicalize().map_err(|error| {
        let path = path.display();
        let message = format!("There is no {path} to preload, as --preload says: {error}.");
        Failure::new(1, message)
    })
}

/// Returns `LD_PRELOAD` with the library in front of its present value.
fn with_others(library: &Path) -> OsString {
    let mut list = library.as_os_str().to_owned();
    if let Some(others) = env::var_os(PRELOAD).filter(|others| !others.is_empty()) {
        list.push(":");
        list.push(others);
    }
    list
}
