// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Prints, in the machine, what the driver did to a software GPU, for scripts.

mod picture;

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
    /// Prints the launches from a mark on: duration, blocks and TPCs.
    Launches {
        /// The output of `mark`.
        mark: u32,
        /// Address of the program, hexadecimal.
        program: String,
        /// The file `tpcs.list` of the GPU.
        #[arg(value_parser = picture::Tpcs::parse)]
        tpcs: picture::Tpcs,
    },
    /// Draws which program ran on which TPCs from a mark on, over time.
    Picture {
        /// The output of `mark`.
        mark: u32,
        /// The file `tpcs.list` of the GPU.
        #[arg(value_parser = picture::Tpcs::parse)]
        tpcs: picture::Tpcs,
        /// A letter and the address of a program, as `A=5000`.
        #[arg(required = true, value_parser = picture::Program::parse)]
        programs: Vec<picture::Program>,
    },
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
        Command::Launches {
            mark,
            program,
            tpcs,
        } => {
            let program = picture::Program::parse(&format!("A={program}"))?;
            for launch in recorder.launches_since(mark)? {
                if program.is(&launch) {
                    println!("{}", picture::line(&launch, &tpcs));
                }
            }
        }
        Command::Picture {
            mark,
            tpcs,
            programs,
        } => {
            let launches = recorder.launches_since(mark)?;
            print!("{}", picture::draw(&launches, &tpcs, &programs));
        }
        Command::Since { mark, name } => {
            let events = recorder.since(mark)?;
            for event in events.iter().filter(|event| event.name.contains(&name)) {
                println!("{}", event.line);
            }
        }
    }
    Ok(())
}
