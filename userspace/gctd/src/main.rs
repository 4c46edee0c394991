// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `gctd`: the daemon of the user-space mode.

use anyhow::{Context, Result};
use clap::Parser;
use gct_core::mask::TpcMask;
use gctd::{gpus, Mount, Options, Server};
use gctd_ipc::doors;
use std::path::PathBuf;

/// Owns groups and limits of GPU programs that preload libgct_preload.so.
#[derive(Debug, Parser)]
#[command(name = "gctd", version)]
struct Cli {
    /// Listen in this directory; else in the one that GCTGROUP_DIR names, or in /run/gctgroup.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,

    /// Show the tree in this directory too, which must exist; needs FUSE.
    #[arg(long, value_name = "DIR")]
    mount: Option<PathBuf>,

    /// The TPCs that exist, as `0-5,9-16`, for GPUs that cannot be asked.
    #[arg(long, value_name = "LIST", value_parser = tpcs)]
    tpcs: Option<TpcMask>,

    /// Where the driver shows its GPUs.
    #[arg(long, value_name = "DIR", default_value = gpus::DEFAULT_DIRECTORY)]
    gpus: PathBuf,
}

fn tpcs(text: &str) -> Result<TpcMask, String> {
    TpcMask::parse(text.as_bytes()).map_err(|error| error.meaning().to_owned())
}

fn main() -> Result<()> {
    let cli = Cli::parse();
    let options = Options {
        directory: cli.dir.unwrap_or_else(doors::directory),
        gpus: cli.gpus,
        existing: cli.tpcs,
    };
    let signals = Signals::block();
    let path = options.directory.display().to_string();
    let server = Server::bind(&options).with_context(|| format!("cannot listen in {path}"))?;
    let stopper = server.stopper();
    std::thread::spawn(move || {
        signals.wait();
        stopper.stop();
    });
    let mount = cli.mount.map(|directory| {
        let mounted = Mount::new(&server, &directory);
        if let Err(error) = &mounted {
            eprintln!(
                "gctd: the tree is on the sockets only: FUSE cannot mount {}: {error}",
                directory.display()
            );
        }
        mounted
    });
    println!("gctd: listening in {path}");
    server.run()?;
    drop(mount);
    Ok(())
}

/// The signals that ask for an end.
struct Signals(libc::sigset_t);

impl Signals {
    /// Keeps them from this thread and those that it will start.
    fn block() -> Self {
        // SAFETY: all zero is a set, and it is initialised before it is used.
        let mut set = unsafe { core::mem::zeroed() };
        // SAFETY: `set` is valid for each call, and the signals exist.
        unsafe {
            libc::sigemptyset(&mut set);
            libc::sigaddset(&mut set, libc::SIGTERM);
            libc::sigaddset(&mut set, libc::SIGINT);
            libc::pthread_sigmask(libc::SIG_BLOCK, &set, core::ptr::null_mut());
        }
        Self(set)
    }

    /// Waits for one.
    fn wait(&self) {
        let mut signal = 0;
        // SAFETY: both are valid for the call.
        unsafe { libc::sigwait(&self.0, &mut signal) };
    }
}
