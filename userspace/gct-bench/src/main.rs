// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Measures what gctgroup costs and gains on a real GPU, beside the mechanisms that exist without
//! it.
#![allow(
    clippy::float_arithmetic,
    reason = "statistics of a measuring program, never kernel code"
)]

mod alone;
mod arrivals;
mod atoms;
mod bandwidth;
mod budget;
mod charts;
mod copies;
mod counters;
mod dominance;
mod eight;
mod goodput;
mod legend;
mod machine;
mod mechanisms;
mod memory;
mod misprediction;
mod models;
mod plot;
mod predictors;
mod preemption;
mod report;
mod rightsize;
#[cfg(test)]
mod samples;
mod scaling;
mod scenes;
mod short;
mod silence;
mod slices;
mod stacking;
mod summary;
mod sweep;
mod tokens;
mod torch;
mod traffic;
mod variants;

use anyhow::{bail, Context, Result};
use arrivals::Arrivals;
use clap::{Parser, Subcommand};
use gct_hw::kit::{Kit, RunEnv};
use report::{Report, Table};
use std::path::PathBuf;

/// Measures on this machine's GPU and writes one JSON file per part; then shows results as Markdown
/// and SVG.
#[derive(Parser)]
#[command(version, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    /// Folder of the programs [default: this program's]
    #[arg(long)]
    kit: Option<PathBuf>,
    /// Folder of the results
    #[arg(long, default_value = ".")]
    out: PathBuf,
    /// What to measure, a file of results for each
    ///
    /// alone, atoms, sweep, silence, torch, torch-cost, tokens, bandwidth, scaling;
    ///
    /// rightsize: each service under slip.tpc of 3, 10 and 20% (LithOS 18), and one beside a
    /// training under MPS;
    ///
    /// models: six services beside six trainings at half load, 36 pairs (Tally 5);
    ///
    /// pairs80: the same at 80% load (LithOS 17);
    ///
    /// load: one pair at 10 to 90% load (Tally 6a);
    ///
    /// traffic: a pair over time, under the rates of a day or those of --requests (Tally 6b);
    ///
    /// tenants: a service beside 1 to 9 trainings (Tally 7a);
    ///
    /// services: two services and a training, p99 to alone;
    ///
    /// diffusion: a Llama's prompts, and its decoding, beside inference of a diffusion U-Net (GVM
    /// 7.3.2);
    ///
    /// eight: eight services beside a training (SGDRC 9.2);
    ///
    /// sizes: BERT beside a training of BERT with 4 to 64 sequences of 64 to 512 tokens (LithOS
    /// 21);
    ///
    /// decomposition: a service beside six trainings with neither priority nor atoms, with each and
    /// with both (Tally 7b, LithOS 20);
    ///
    /// atoms-by-turns: a pair with atoms of 10 us to 10 ms (Tally 7c);
    ///
    /// duty: requests in time and steps over compute.max of the training, a decoder beside a
    /// diffusion U-Net (GVM 7.4);
    ///
    /// goals: BERT beside two trainings with slo.p99 as its only setting, at once and then;
    ///
    /// misprediction: launches that take over 50 us more or less than predicted, of each service
    /// and training alone, and of six pairs of them (LithOS 5.7);
    ///
    /// predictors: the core's predictions and ordinal ones of the same kernels, of each service and
    /// training alone (LithOS 5.7);
    ///
    /// memory: a training and an inference with 40, 60 and 90% of their memory, beside the least
    /// time that the link to the host leaves them (GVM 7.3.1, 7.5);
    ///
    /// preemption: how long an urgent kernel of one block waits for the GPU beside long kernels
    /// (GPreempt);
    ///
    /// stacking: a service with a limit of latency, one with a goal of throughput and a model in a
    /// closed loop (LithOS 14 to 16);
    ///
    /// slices: two services of one priority beside a training, under different time slices;
    ///
    /// copies: copies of 1 MiB beside a series of copies of 4 GiB, by direction
    #[arg(long, value_delimiter = ',')]
    parts: Vec<String>,
    /// Show earlier results and measure nothing: writes bench.md, bench.json and SVG files
    #[arg(long, value_delimiter = ',', conflicts_with = "parts")]
    show: Vec<PathBuf>,
    /// Repetitions of every measurement
    #[arg(long, default_value_t = 3)]
    repeat: usize,
    /// Length of a window of the sweep in seconds. Extended if it would have fewer than 200
    /// launches. The windows of silence and torch are ten times, those of
    /// models five times as long
    #[arg(long, default_value_t = 0.4)]
    seconds: f64,
    /// Start no step that would end later than this many seconds after the start of its part
    #[arg(long, default_value_t = 86_400)]
    limit_seconds: u64,
    /// Seed of the order of measurements, and of random arrivals
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Lengths of best-effort blocks in the sweep, in microseconds
    #[arg(long, value_delimiter = ',', default_value = "10,25,100,250,1000")]
    blocks_us: Vec<u64>,
    /// Latency-critical loads of the sweep, in percent
    #[arg(long, value_delimiter = ',', default_value = "1,10,25,50")]
    loads: Vec<u64>,
    /// Arrival patterns of latency-critical launches in the sweep
    #[arg(long, value_delimiter = ',', default_value = "periodic,poisson")]
    arrivals: Vec<String>,
    /// Arrivals of requests in the parts of models and scenes, at the same mean rate
    #[arg(long, value_enum, default_value_t)]
    requests: Arrivals,
    /// Only these mechanisms, by their names in the results; with --show, in the summary
    #[arg(long, alias = "ways", value_delimiter = ',')]
    mechanisms: Vec<String>,
}

#[derive(Subcommand)]
enum Command {
    /// Draw each file of results as one picture, FILE.svg beside it
    ///
    /// Services beside trainings get a row each, with a dot for each mechanism: p99 to alone, and
    /// the steps of the trainings. Tables whose columns are numbers (alone, bandwidth, scaling)
    /// get a panel each.
    Plot {
        /// JSON files of results
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
}

fn main() -> Result<()> {
    let cli = Cli::parse();
    if let Some(Command::Plot { files }) = &cli.command {
        return files.iter().try_for_each(|file| {
            let picture = file.with_extension("svg");
            charts::write(&Report::read(&[file])?, &picture)
                .with_context(|| file.display().to_string())?;
            println!("{}", picture.display());
            Ok(())
        });
    }
    if !cli.show.is_empty() {
        return show(&cli, &Report::read(&cli.show)?);
    }
    if cli.parts.is_empty() {
        bail!("nothing is to be measured (--parts) or shown (--show)");
    }
    std::fs::create_dir_all(&cli.out).with_context(|| cli.out.display().to_string())?;
    let kit = Kit::new(cli.kit.clone())?;
    // The masks are written over these TPCs; other numbers have no TPC.
    let tpcs = kit.run(&RunEnv::gctgroup(), "tpcs")?;
    let tpcs: Vec<&str> = tpcs.split(',').collect();
    let machine = machine::facts(&tpcs);
    for part in &cli.parts {
        let mut report = Report::new(machine.clone());
        let (name, done) = match part.as_str() {
            "alone" => ("alone", alone::run(&kit, &cli, &tpcs, &mut report)),
            "atoms" => ("atoms", atoms::run(&kit, &cli, &tpcs, &mut report)),
            "sweep" => ("sweep", sweep::run(&kit, &cli, &tpcs, &mut report)),
            "silence" => ("silence", silence::run(&kit, &cli, &tpcs, &mut report)),
            "models" | models::BUSY => (
                part.as_str(),
                models::run(&kit, &cli, part, &tpcs, &mut report),
            ),
            "torch" => ("torch", torch::neighbours(&kit, &cli, &tpcs, &mut report)),
            "load"
            | "tenants"
            | "services"
            | scenes::SIZES
            | models::DIFFUSION
            | eight::EIGHT
            | traffic::TRAFFIC => (
                part.as_str(),
                scenes::run(&kit, &cli, part, &tpcs, &mut report),
            ),
            variants::LENGTHS | variants::DECOMPOSITION | variants::DUTY | variants::GOALS => (
                part.as_str(),
                variants::run(&kit, &cli, part, &tpcs, &mut report),
            ),
            stacking::STACKING => (
                stacking::STACKING,
                stacking::run(&kit, &cli, &tpcs, &mut report),
            ),
            slices::SLICES => (slices::SLICES, slices::run(&kit, &cli, &tpcs, &mut report)),
            misprediction::MISPREDICTION => (
                misprediction::MISPREDICTION,
                misprediction::run(&kit, &cli, &tpcs, &mut report),
            ),
            memory::MEMORY => (memory::MEMORY, memory::run(&kit, &cli, &tpcs, &mut report)),
            predictors::PREDICTORS => (
                predictors::PREDICTORS,
                predictors::run(&kit, &cli, &mut report),
            ),
            preemption::PREEMPTION => (
                preemption::PREEMPTION,
                preemption::run(&kit, &cli, &tpcs, &mut report),
            ),
            copies::COPIES => (copies::COPIES, copies::run(&kit, &cli, &tpcs, &mut report)),
            "tokens" => ("tokens", tokens::run(&kit, &cli, &tpcs, &mut report)),
            "bandwidth" => ("bandwidth", bandwidth::run(&kit, &cli, &tpcs, &mut report)),
            "scaling" => ("scaling", scaling::run(&kit, &cli, &tpcs, &mut report)),
            "rightsize" => ("rightsize", rightsize::run(&kit, &cli, &tpcs, &mut report)),
            "torch-cost" => ("torch-cost", torch::cost(&kit, &cli, &mut report)),
            other => bail!("there is no part '{other}'"),
        };
        // The other parts run all the same.
        if let Err(error) = done {
            eprintln!("{part}: {error:#}");
            report.note(format!("{part}: {error:#}"));
        }
        report.write(&cli.out, name).context("the results")?;
        println!("{}", report.markdown());
    }
    Ok(())
}

/// Writes everything as Markdown and as pictures.
fn show(cli: &Cli, report: &Report) -> Result<()> {
    let tables = |wanted: &dyn Fn(&Table) -> bool| -> Vec<&Table> {
        report.tables.iter().filter(|table| wanted(table)).collect()
    };
    let points = tables(&|table| table.point.is_some());
    let torch = tables(&|table| table.title.starts_with("PyTorch inference"));
    let models = tables(&|table| table.title.starts_with(models::TITLE));
    let scenes = tables(&|table| table.title.starts_with(scenes::TITLE));
    let silences = tables(&|table| table.title.contains("fell silent"));
    let mut text = String::new();
    for (title, tables) in [("Sweep", &points), ("PyTorch neighbours", &torch)] {
        if let Some(first) = tables.first() {
            let mechanisms = first.rows.iter().map(|row| row.name.as_str());
            let mechanisms: Vec<&str> = mechanisms
                .filter(|mechanism| cli.measures(mechanism))
                .collect();
            text +=
                &format!("## {title}\n\nEach cell: p99 in us (throughput in % of plain MPS).\n\n");
            text += &summary::markdown(tables, &mechanisms);
            text += &format!("\n## {title}: what dominates what\n\n");
            text += &dominance::markdown(tables);
        }
    }
    for models in models::alike(&models) {
        text += "## Models\n\nEach ratio is relative to the program alone.\n\n";
        text += &models::markdown(&models);
        text += &models::by_window(&models);
        text += "\n## Models: what dominates what\n\n";
        text += &dominance::markdown(&models);
    }
    if !scenes.is_empty() {
        text += "## Scenes\n\nEach cell: p99 as a multiple of alone (steps of the trainings, of one alone).\n\n";
        text += &scenes::markdown(&scenes);
        text += "\nEach cell: steps of the trainings, of what the services leave; requests in time; goodput.\n\n";
        text += &scenes::in_time(&scenes);
    }
    let stacked = tables(&|table| table.title.starts_with(stacking::TITLE));
    text += &stacking::markdown(&stacked);
    if !silences.is_empty() {
        text += "## Silence\n\n";
        text += &silence::markdown(&silences)?;
    }
    let short = short::markdown(&tables(&|_| true));
    if !short.is_empty() {
        text += &format!("\n## Medians\n\n{short}");
    }
    text += "\n## Tables\n\n";
    text += &report.markdown();
    let file = cli.out.join("bench.md");
    std::fs::write(&file, text).with_context(|| file.display().to_string())?;
    report.write(&cli.out, "bench")?;
    plot::write(report, &cli.out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_of_the_summary_are_those_of_the_samples() {
        let page = std::fs::read_to_string(samples::results().join("summary.md")).unwrap();
        let samples = samples::Samples::take_out("summary");
        type Format = fn(&[&Table]) -> String;
        let formats: [(&str, Format); 40] = [
            ("models-h200", models::markdown),
            ("models-h100-36", models::markdown),
            ("models-h100-36-mps", models::markdown),
            ("models-h100-sizes", scenes::markdown),
            ("models-h100-sizes", scenes::in_time),
            ("models-h100-80", models::markdown),
            ("models-h100-80-mps", models::markdown),
            ("models-h100-atoms", scenes::markdown),
            ("models-h100-atoms", scenes::in_time),
            ("models-h100-decomposition", scenes::markdown),
            ("models-h100-decomposition", scenes::in_time),
            ("models-h100-duty", scenes::markdown),
            ("models-h100-duty", scenes::in_time),
            ("models-h100-6", models::markdown),
            ("models-h100-load", scenes::markdown),
            ("models-h100-load", scenes::in_time),
            ("models-h100-load-bursty", scenes::markdown),
            ("models-h100-load-bursty", scenes::in_time),
            ("models-h100-tenants-before", scenes::markdown),
            ("models-h100-tenants-before", scenes::in_time),
            ("models-h100-tenants", scenes::markdown),
            ("models-h100-tenants", scenes::in_time),
            ("models-h100-tenants-windows", scenes::markdown),
            ("models-h100-tenants-windows", scenes::in_time),
            ("models-h100-services", scenes::markdown),
            ("models-h100-services", scenes::in_time),
            ("models-h100-bursty", scenes::markdown),
            ("models-h100-bursty", scenes::in_time),
            ("models-h100-stacking", stacking::markdown),
            ("models-h100-stacking-masks", stacking::markdown),
            ("models-h100-stacking-weights", stacking::markdown),
            ("models-h100-stacking-mps", stacking::markdown),
            ("models-h100-traffic", scenes::markdown),
            ("models-h100-traffic", scenes::in_time),
            ("models-h200-maf", scenes::markdown),
            ("models-h200-maf", scenes::in_time),
            ("models-h200-eight", scenes::markdown),
            ("models-h200-eight", short::markdown),
            ("models-h100-diffusion", scenes::markdown),
            ("models-h100-diffusion", scenes::in_time),
        ];
        for (name, format) in formats {
            let report = samples.read(name);
            let text = format(&report.tables.iter().collect::<Vec<_>>());
            assert!(
                page.contains(&text),
                "summary.md lacks, for {name}:\n{text}"
            );
        }
    }
}
