// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Stands in front of an OCI runtime, and takes a container's processes from their MPS server
//! before the runtime kills it.
//!
//! Nobody else knows in time: NRI and the hooks are told of a container when its processes have
//! ended. Whoever stops a container, be it a kubelet, containerd, podman or docker, lets its
//! runtime `kill` it, last of all with SIGKILL.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;
use gct_client::mps::{self, Drained};

use crate::cgroup;
use crate::mps::Control;
use crate::place::Places;
use crate::records::{Record, Records};

/// The name under which this program is the runtime, with all options at their defaults.
const NAME: &str = "gct-runc";

/// Global options of runc and crun that have a value in the next argument.
const WITH_VALUE: [&str; 7] = [
    "--root",
    "--log",
    "--log-format",
    "--criu",
    "--rootless",
    "--cgroup-manager",
    "--log-level",
];
const KILLS: [&str; 3] = ["9", "KILL", "SIGKILL"];

/// The socket of the system's log. Callers drop what a runtime that succeeds prints.
const LOG: &str = "/dev/log";
/// Facility daemon, level warning.
const PRIORITY: &str = "<28>";

/// Options of the program as runtime.
#[derive(Debug, Args)]
pub struct Options {
    /// The runtime that is executed.
    #[arg(long, value_name = "PATH", default_value = "runc")]
    runtime: PathBuf,

    /// The program that asks MPS daemons.
    #[arg(long, value_name = "PATH", default_value = mps::CONTROL)]
    mps_control: PathBuf,

    /// Directory of the MPS daemons.
    #[arg(long, value_name = "DIR", default_value = "/run/gctgroup-mps")]
    mps: PathBuf,

    /// Most seconds until the container is killed.
    #[arg(long, value_name = "SECONDS", default_value_t = 5)]
    patience: u64,

    #[command(flatten)]
    places: Places,

    /// The runtime's arguments.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

/// Returns the command line of this program. Called as the runtime, all of it is the runtime's.
pub fn command_line() -> Vec<OsString> {
    let mut arguments: Vec<OsString> = env::args_os().collect();
    let is_runtime = arguments
        .first()
        .is_some_and(|name| Path::new(name).file_name() == Some(OsStr::new(NAME)));
    if is_runtime {
        arguments.splice(1..1, ["runtime", "--"].map(OsString::from));
    }
    arguments
}

/// Becomes the runtime, which gets all of its arguments, whatever happens before.
///
/// # Errors
///
/// Fails if the runtime cannot be executed.
pub fn run(options: &Options) -> Result<()> {
    if let Some(id) = doomed(&options.arguments) {
        let drained = drain(options, id);
        for failure in drained.failures {
            warn(&format!(
                "container {id} is killed, and others may end: {failure}"
            ));
        }
    }
    let error = Command::new(&options.runtime)
        .args(&options.arguments)
        .exec();
    Err(error).with_context(|| format!("{} cannot be executed", options.runtime.display()))
}

/// Returns the container that a runtime with these arguments kills at once.
fn doomed(arguments: &[OsString]) -> Option<&str> {
    let mut arguments = arguments.iter().map(|argument| argument.to_str());
    let command = loop {
        match arguments.next()?? {
            option if WITH_VALUE.contains(&option) => {
                arguments.next();
            }
            option if option.starts_with('-') => {}
            command => break command,
        }
    };
    let (options, names): (Vec<&str>, Vec<&str>) = arguments
        .flatten()
        .partition(|argument| argument.starts_with('-'));
    let kills = match command {
        "kill" => names
            .get(1)
            .is_some_and(|signal| KILLS.contains(&signal.to_uppercase().as_str())),
        "delete" => options
            .iter()
            .any(|option| ["-f", "--force"].contains(option)),
        _ => false,
    };
    names.first().copied().filter(|_| kills)
}

/// Takes the processes of a container from the MPS server of its GPU, if it has one. Its cgroup
/// says whose they are, so this needs neither the plugin nor the tree.
fn drain(options: &Options, id: &str) -> Drained {
    let places = &options.places;
    let Some((gpu, record)) = client_of_mps(&places.state, id) else {
        return Drained::default();
    };
    let control = Control {
        program: options.mps_control.clone(),
        folder: options.mps.clone(),
        shm: None,
    };
    let control = control.asked(gpu);
    if !control.exists() {
        return Drained::default();
    }
    let until = Instant::now() + Duration::from_secs(options.patience);
    control.drain(until, |pid| {
        let cgroup = cgroup::of(&places.proc, &places.cgroups, pid);
        cgroup.is_ok_and(|cgroup| cgroup.directory.starts_with(&record.cgroup.directory))
    })
}

/// Returns a container that is a client of MPS, and its GPU.
fn client_of_mps(state: &Path, id: &str) -> Option<(u32, Record)> {
    let record = Records::of_container(state, id)?;
    let mut shares = record.gpus.iter();
    let (gpu, _) = shares.find(|(_, shares)| shares.iter().any(|share| share.mps))?;
    Some((*gpu, record))
}

/// Says something to the caller, who drops it, and to the system's log.
fn warn(message: &str) {
    let _ = writeln!(io::stderr(), "gct-device-plugin: {message}");
    let line = format!("{PRIORITY}gct-device-plugin: {message}");
    if let Ok(socket) = UnixDatagram::unbound() {
        // A log that does not read delays nobody.
        let _ = socket.set_nonblocking(true);
        let _ = socket.send_to(line.as_bytes(), LOG);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_kills_a_container_is_seen() {
        let doomed = |text: &str| {
            let arguments: Vec<OsString> = text.split(' ').map(OsString::from).collect();
            super::doomed(&arguments).map(str::to_owned)
        };
        for text in [
            "kill c1 9",
            "kill c1 KILL",
            "kill --all c1 SIGKILL",
            "kill c1 sigkill",
            "--root /run/kill --log /x --log-format json kill c1 9",
            "--root=/run/runc --debug --systemd-cgroup kill -a c1 9",
            "delete --force c1",
            "--cgroup-manager kill delete -f c1",
        ] {
            assert_eq!(doomed(text).as_deref(), Some("c1"), "{text}");
        }
        for text in [
            "kill c1",
            "kill c1 15",
            "kill c1 TERM",
            "kill 9",
            "delete c1",
            "state c1",
            "create --bundle /kill c1",
            "exec c1 kill c2 9",
            "--version",
            "--root",
            "",
        ] {
            assert_eq!(doomed(text), None, "{text}");
        }
    }
}
