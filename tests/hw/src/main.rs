// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests the user-space mode on a real GPU, with the programs beside it (gct-load,
//! libgct_preload.so, gctd, gctctl). Prints TAP and ends with `N passed, M failed`.
#![allow(
    clippy::float_arithmetic,
    reason = "a test program that compares measurements"
)]

mod alone;
mod beside;
mod copies;
mod faults;
mod governed;
mod shares;
mod sized;
mod torch;

use anyhow::Result;
use clap::Parser;
use gct_hw::kit::{Kit, RunEnv};
use std::path::PathBuf;

/// Tests the user-space mode on this machine's GPU.
#[derive(Parser)]
#[command(version)]
struct Cli {
    /// Folder of the programs [default: this program's]
    #[arg(long)]
    kit: Option<PathBuf>,
    /// Only tests whose name contains this
    #[arg(long, default_value = "")]
    only: String,
    /// Leave out this many tests at the beginning
    #[arg(long, default_value_t = 0)]
    skip: usize,
    /// Rounds of the exactness tests, 20 at least: fewer may launch no graph
    #[arg(long, default_value_t = 600, value_parser = clap::value_parser!(u32).range(20..))]
    rounds: u32,
}

/// The requirements of the tests.
pub(crate) struct Bed {
    pub(crate) kit: Kit,
    /// The TPCs that exist.
    pub(crate) tpcs: Vec<String>,
    pub(crate) rounds: u32,
}

impl Bed {
    /// Lists all TPCs but the first `count`.
    pub(crate) fn all_but(&self, count: usize) -> String {
        self.tpcs.get(count..).unwrap_or_default().join(",")
    }

    /// Lists the first `count` TPCs.
    pub(crate) fn first(&self, count: usize) -> String {
        self.tpcs.get(..count).unwrap_or_default().join(",")
    }

    /// Returns the environment of the user-space mode with a mask.
    pub(crate) fn masked(&self, list: &str) -> RunEnv {
        RunEnv::gctgroup().with("GCTGROUP_TPC_MASK", list)
    }
}

/// A test: its name and its function.
pub(crate) type Test = (&'static str, fn(&Bed) -> Result<Outcome>);

/// The outcome of a test that did not fail.
pub(crate) enum Outcome {
    Passed,
    /// A requirement is missing here.
    Skipped(String),
}

fn main() -> Result<()> {
    let cli = Cli::parse();
    let kit = Kit::new(cli.kit)?;
    let tpcs = kit.run(&RunEnv::gctgroup(), "tpcs")?;
    let bed = Bed {
        kit,
        tpcs: tpcs.split(',').map(String::from).collect(),
        rounds: cli.rounds,
    };
    println!("# {} TPCs: {tpcs}", bed.tpcs.len());
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    let tests = [
        alone::TESTS,
        governed::TESTS,
        beside::TESTS,
        copies::TESTS,
        shares::TESTS,
        faults::TESTS,
        sized::TESTS,
        torch::TESTS,
    ]
    .concat();
    let chosen = tests.into_iter().filter(|t| t.0.contains(&cli.only));
    for (name, test) in chosen.skip(cli.skip) {
        let number = cli.skip + passed + failed + skipped + 1;
        match test(&bed) {
            Ok(Outcome::Passed) => {
                passed += 1;
                println!("ok {number} - {name}");
            }
            Ok(Outcome::Skipped(why)) => {
                skipped += 1;
                println!("ok {number} - {name} # SKIP {why}");
            }
            Err(error) => {
                failed += 1;
                println!("not ok {number} - {name}\n# {error:#}");
            }
        }
    }
    println!("{}..{}", cli.skip + 1, cli.skip + passed + failed + skipped);
    println!("{passed} passed, {failed} failed, {skipped} skipped");
    std::process::exit(i32::from(failed > 0 || passed == 0));
}
