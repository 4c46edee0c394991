// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `gct-vm`: runs a test in a virtual machine with software GPUs.
//!
//! It packs an initramfs with NVIDIA's modules, the test's files and busybox,
//! starts one `fakegpu` for each GPU, boots the test kernel in QEMU, shows what
//! the machine says and judges it: the script's exit status, the KTAP results in
//! its output, and every bug that the kernel reports.

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
    /// Exit status: 0 if all went well, 1 if a test, the script or the kernel
    /// failed, 2 if the machine could not be made, 3 if time ran out.
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
