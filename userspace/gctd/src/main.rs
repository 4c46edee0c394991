// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Runs the daemon of the user-space mode.

mod log;

use anyhow::{anyhow, Result};
use clap::Parser;
use gct_core::mask::TpcMask;
use gctd::{gpus, notify, Mount, Options, Server};
use gctd_ipc::{driver, paths, selftest};
use rustix::fs::Mode;
use rustix::process::umask;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

/// Owns the groups and limits of GPU programs that preload libgct_preload.so
#[derive(Debug, Parser)]
#[command(name = "gctd", version)]
struct Cli {
    /// Directory of the sockets [default: GCTGROUP_DIR, or /run/gctgroup]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,

    /// Mount the tree on this directory with FUSE
    #[arg(long, value_name = "DIR")]
    mount: Option<PathBuf>,

    /// TPCs of every GPU, such as 0-5,9-16, where the resource manager does not report them
    #[arg(long, value_name = "LIST", value_parser = tpcs)]
    tpcs: Option<TpcMask>,

    /// Change the clocks of GPUs by NVML, for slip.power: as root, with the driver's own clocks
    /// given back at the start and at the end
    #[arg(long)]
    clocks: bool,

    /// Have a driver of r615 or later limit the memory of cgroups that are bound to groups: as
    /// root, by NVML
    #[arg(long)]
    driver_limits: bool,

    /// Directory of cgroups, for --driver-limits
    #[arg(long, value_name = "DIR", default_value = "/sys/fs/cgroup")]
    cgroups: PathBuf,

    /// Directory in which the driver lists its GPUs
    #[arg(long, value_name = "DIR", default_value = gpus::DEFAULT_DIRECTORY)]
    gpus: PathBuf,

    /// Directory of the results of `gctctl selftest` [default: GCTGROUP_SELFTEST_DIR, or
    /// /var/lib/gctgroup/selftest]
    #[arg(long, value_name = "DIR")]
    selftests: Option<PathBuf>,

    /// Form of the messages on standard error [default: journal under systemd, else text]
    #[arg(long, value_name = "FORM")]
    log_format: Option<log::Format>,

    /// Which messages are printed
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    log_level: log::Verbosity,
}

fn tpcs(text: &str) -> Result<TpcMask, String> {
    TpcMask::parse(text.as_bytes()).map_err(|error| error.meaning().to_owned())
}

fn main() -> ExitCode {
    let served = serve(Cli::parse());
    if let Err(error) = &served {
        tracing::error!("{error:#}");
    }
    log::finish();
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Serves until a signal stops the daemon.
fn serve(cli: Cli) -> Result<()> {
    let options = Options {
        directory: cli.dir.unwrap_or_else(paths::directory),
        gpus: cli.gpus,
        selftests: cli.selftests.unwrap_or_else(selftest::directory),
        tpcs: cli.tpcs,
        clocks: cli.clocks,
        driver_limits: cli.driver_limits,
        cgroups: cli.cgroups,
        memory: None,
        ask: driver::ask,
    };
    // Everybody must reach the tenants' socket, whatever the mask of who starts this.
    umask(Mode::WGRP | Mode::WOTH);
    let signals = Signals::block();
    log::start(cli.log_format, cli.log_level);
    let path = options.directory.display().to_string();
    let server = Server::bind(&options).map_err(|error| anyhow!(no_sockets(&path, &error)))?;
    let stopper = server.stopper();
    std::thread::spawn(move || {
        signals.wait();
        stopper.stop();
    });
    let mount = cli.mount.map(|directory| {
        let mounted = Mount::new(&server, &directory);
        if let Err(error) = &mounted {
            let directory = directory.display();
            tracing::warn!("cannot mount the tree on {directory}: {error}; going on without it");
        }
        mounted
    });
    println!("gctd: listening in {path}");
    if let Err(error) = notify::ready() {
        tracing::warn!("cannot tell systemd that it is ready: {error}");
    }
    server.run()?;
    drop(mount);
    Ok(())
}

/// Describes why the daemon has no sockets in a directory, and what to do for who is not root.
fn no_sockets(path: &str, error: &io::Error) -> String {
    let next = match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "; run gctd as root, or set GCTGROUP_DIR to a directory of yours, also for gctctl"
        }
        _ => "",
    };
    format!("cannot listen in {path}: {error}{next}")
}

/// The signals that stop the daemon.
struct Signals(libc::sigset_t);

impl Signals {
    /// Blocks them in this thread and in the threads that it will start.
    fn block() -> Self {
        // SAFETY: all zero is a valid `sigset_t`, and `sigemptyset` initialises it before its use.
        let mut set = unsafe { core::mem::zeroed() };
        // SAFETY: `set` is valid for each call, and the signal numbers exist.
        unsafe {
            libc::sigemptyset(&mut set);
            libc::sigaddset(&mut set, libc::SIGTERM);
            libc::sigaddset(&mut set, libc::SIGINT);
            libc::pthread_sigmask(libc::SIG_BLOCK, &set, core::ptr::null_mut());
        }
        Self(set)
    }

    /// Waits for one of them.
    fn wait(&self) {
        let mut signal = 0;
        // SAFETY: both pointers are valid for the call.
        unsafe { libc::sigwait(&self.0, &mut signal) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_may_not_listen_is_told_what_to_do() {
        let told = |kind: io::ErrorKind| no_sockets("/run/gctgroup", &kind.into());
        assert!(told(io::ErrorKind::PermissionDenied).contains("GCTGROUP_DIR"));
        assert!(!told(io::ErrorKind::AddrInUse).contains("GCTGROUP_DIR"));
    }
}
