// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Runs a test in a virtual machine with software GPUs.
//!
//! `gct-vm` packs an initramfs with NVIDIA's modules, the test's files and busybox. It starts one
//! `fakegpu` per GPU and boots the test kernel in QEMU. It shows the machine's output and judges
//! it: the script's exit status, the KTAP results, and every bug that the kernel reports.

mod child;
mod console;
mod cpio;
mod gpus;
mod initramfs;
mod ktap;
mod machine;
mod paths;
mod report;
mod run;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Runs tests in a virtual machine with software GPUs.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Boots a machine, runs a script in it and judges the outcome.
    ///
    /// Exit status: 0 if all went well, 1 if a test, the script or the kernel failed, 2 if the
    /// machine could not be created, 3 on a timeout.
    Run(run::Options),
}

fn main() -> ExitCode {
    let Command::Run(options) = Arguments::parse().command;
    match run::run(&options) {
        Ok(verdict) => verdict.into(),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}
