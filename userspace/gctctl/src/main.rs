// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Shows the gctgroup tree and sets limits from the command line.

mod capture;
mod cli;
mod commands;
mod outcome;
mod table;
mod values;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let cli = cli::Cli::parse();
    let outcome = commands::run(&cli);
    outcome.print(cli.json)
}
