// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Runs the commands.

mod apply;
mod counters;
mod doctor;
mod drain;
mod events;
mod explain;
mod generate;
mod groups;
mod ls;
mod run;
mod selftest;
mod set;
mod show;
mod stat;
mod top;
mod ungoverned;

use gct_client::{Door, Tree};
use gctd_ipc::paths::SocketPaths;

use crate::capture;
use crate::cli::{Cli, Command};
use crate::outcome::Outcome;

/// Runs the command of the command line.
pub(crate) fn run(cli: &Cli) -> Outcome {
    let user_mode = cli.user || cli.dir.is_some() || matches!(cli.command, Command::Run(_));
    let paths = match &cli.dir {
        Some(directory) => SocketPaths::of(directory),
        None => SocketPaths::from_environment(),
    };
    let tree = match user_mode {
        true => Tree::of_daemon(paths.clone()),
        false => Tree::of_kernel(&cli.root, Some(paths.clone())),
    };
    let user_mode = user_mode || matches!(tree.door(), Door::Daemon);
    match &cli.command {
        Command::Apply(apply) => apply::run(&tree, apply),
        Command::Completions { shell } => generate::completions(*shell),
        Command::Man { directory } => generate::man(directory),
        Command::Drain(options) => drain::run(&tree, options),
        Command::Doctor(doctor) => doctor::run(&tree, &doctor.system_root, user_mode),
        Command::Ls(options) => ls::run(&tree, options),
        Command::Run(run) => run::run(&tree, &paths.tenants, run),
        Command::Show { target } => show::run(&tree, target),
        Command::Create { names } => groups::create(&tree, names),
        Command::Rm { names } => groups::remove(&tree, names),
        Command::Attach(attach) => groups::attach(&tree, attach),
        Command::Set { target, values } => set::run(&tree, target, values),
        Command::Explain(explain) => explain::run(&tree, explain),
        Command::Events(events) => events::run(&tree, events, cli.json),
        Command::Stat(stat) => stat::run(&tree, stat, cli.json),
        Command::Top(top) => top::run(&tree, top, cli.json),
        Command::Get { target, file } => show::get(&tree, target, file),
        Command::Capture(capture) => capture::run(capture),
        Command::Selftest(options) => selftest::run(options),
        Command::Version => show::version(&tree),
    }
}
