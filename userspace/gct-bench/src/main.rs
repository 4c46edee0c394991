// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What gctgroup costs and gains on a real GPU, beside what there is without it.
#![allow(
    clippy::float_arithmetic,
    reason = "statistics of a measuring program, never kernel code"
)]

mod alone;
mod atoms;
mod neighbours;
mod report;

use anyhow::{Context, Result};
use clap::Parser;
use gct_bench::kit::{Kit, Under};
use report::Report;
use std::path::PathBuf;

/// Measures on this machine's GPU; prints Markdown and writes JSON.
#[derive(Parser)]
#[command(version)]
struct Cli {
    /// Folder of gct-load and libgct_preload.so [default: this program's]
    #[arg(long)]
    kit: Option<PathBuf>,
    /// Where to write bench.json and bench.md
    #[arg(long, default_value = ".")]
    out: PathBuf,
    /// How often everything is measured
    #[arg(long, default_value_t = 3)]
    repeat: usize,
    /// How long neighbours are measured, in seconds
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// What to measure
    #[arg(long, value_delimiter = ',', default_value = "alone,atoms,neighbours")]
    parts: Vec<String>,
    /// Lengths of best-effort blocks, in microseconds
    #[arg(long, value_delimiter = ',', default_value = "25,250")]
    blocks_us: Vec<u64>,
    /// Periods of the latency-critical loop, in microseconds
    #[arg(long, value_delimiter = ',', default_value = "2000,330")]
    periods_us: Vec<u64>,
}

fn main() -> Result<()> {
    let cli = Cli::parse();
    let kit = Kit::new(cli.kit.clone())?;
    // Masks are written over these; the others have no TPC.
    let tpcs = kit.run(&Under::gctgroup(), "tpcs")?;
    let tpcs: Vec<&str> = tpcs.split(',').collect();
    let mut report = Report::new(&tpcs);
    for part in &cli.parts {
        match part.as_str() {
            "alone" => alone::run(&kit, &cli, &mut report)?,
            "atoms" => atoms::run(&kit, &cli, &tpcs, &mut report)?,
            "neighbours" => neighbours::run(&kit, &cli, &tpcs, &mut report)?,
            other => anyhow::bail!("there is no part '{other}'"),
        }
        report.write(&cli.out).context("the results")?;
    }
    println!("{}", report.markdown());
    Ok(())
}
