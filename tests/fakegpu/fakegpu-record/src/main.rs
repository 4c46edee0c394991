// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Prints, in the machine, what the driver did to a software GPU, for scripts.

use clap::{Parser, Subcommand};
use fakegpu_record::Recorder;

/// Prints what the driver did to a software GPU.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Which GPU, counted by bus address.
    #[arg(long, value_name = "N", default_value_t = 0)]
    gpu: usize,

    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Prints the number of events so far.
    Mark,
    /// Prints the events from a mark on, one line of JSON each.
    Since {
        /// The output of `mark`.
        mark: u32,
        /// Only events whose name contains this.
        #[arg(default_value = "")]
        name: String,
    },
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let recorder = Recorder::open(arguments.gpu)?;
    match arguments.command {
        Command::Mark => println!("{}", recorder.mark()?),
        Command::Since { mark, name } => {
            let events = recorder.since(mark)?;
            for event in events.iter().filter(|event| event.name.contains(&name)) {
                println!("{}", event.line);
            }
        }
    }
    Ok(())
}
