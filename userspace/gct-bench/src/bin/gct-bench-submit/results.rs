// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Formats the measurements as tables, and writes the files that keep them.

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::{json, Value};

use crate::operations::Operation;
use crate::segment::PLACES;
use crate::timing::{measure, Measured, ROUNDS};
use crate::Capture;

/// Instructions are counted as the difference of two runs: this many repetitions, and twice as
/// many.
const COUNTED: u32 = 500;

/// Formats the ratios as a table of Markdown.
pub(crate) fn table(measured: &[Measured]) -> String {
    let mut text = String::from(
        "| capture | words | copy (ns) | find | mask in place | split into 8, masked |\n|---|---|---|---|---|---|\n",
    );
    for capture in measured {
        let [find, mask, split] = [1, 2, 3].map(|operation| capture.ratio(operation));
        // Writing to a `String` cannot fail.
        let _ = writeln!(
            text,
            "| {} | {} | {:.1} | {find:.2} | {mask:.2} | {split:.2} |",
            capture.name, capture.words, capture.times[0].best_ns
        );
    }
    text
}

/// Returns the instructions of one run of each operation, by callgrind.
fn instructions(capture: &str) -> Result<[u64; 4]> {
    let mut counts = [0; 4];
    for (operation, count) in Operation::ALL.into_iter().zip(&mut counts) {
        let collected = |times: u32| collected(operation.name(), capture, times);
        let difference = collected(2 * COUNTED)?.saturating_sub(collected(COUNTED)?);
        *count = difference / u64::from(COUNTED);
    }
    Ok(counts)
}

/// Returns the instructions of this program for `times` runs of an operation.
fn collected(operation: &str, capture: &str, times: u32) -> Result<u64> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(std::env::current_exe()?)
        .args(["callgrind", operation, capture, &times.to_string()])
        .output()
        .context("valgrind")?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    text.lines()
        .find_map(|line| line.split_once("Collected :")?.1.trim().parse().ok())
        .with_context(|| format!("callgrind has counted nothing: {text}"))
}

/// Returns the first line of a program's output.
fn said(program: &str, argument: &str) -> String {
    let output = Command::new(program).arg(argument).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    text.unwrap_or_default()
        .lines()
        .next()
        .unwrap_or("unknown")
        .to_owned()
}

fn processor() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text
        .lines()
        .find_map(|line| line.strip_prefix("model name"));
    name.map_or_else(
        || "unknown".to_owned(),
        |name| name.trim_start_matches([' ', '\t', ':']).to_owned(),
    )
}

/// Measures everything and writes `submit-cost.json` and `submit-cost.md`.
pub(crate) fn write(directory: &Path, captures: Vec<Capture>) -> Result<()> {
    let names: Vec<String> = captures
        .iter()
        .map(|capture| capture.name.clone())
        .collect();
    let measured: Vec<Measured> = captures.into_iter().map(measure).collect();
    let counts = names
        .iter()
        .map(|name| instructions(name))
        .collect::<Result<Vec<_>>>()?;
    let how = json!({
        "command": "cargo run --release -p gct-bench --bin gct-bench-submit -- results gctgroup-docs/results",
        "processor": processor(),
        "cpus": std::thread::available_parallelism().map_or(0, usize::from),
        "load_average": fs::read_to_string("/proc/loadavg").unwrap_or_default().trim(),
        "rustc": said("rustc", "--version"),
        "valgrind": said("valgrind", "--version"),
        "rounds": ROUNDS,
        "places": PLACES,
    });
    fs::create_dir_all(directory)?;
    let json = json!({
        "what": "one run over all segments of a capture; the ratio is that of the best times to the copy of the same segments",
        "goals": { "mask": Operation::Mask.goal(), "split": Operation::Split.goal() },
        "how": how,
        "captures": measured.iter().zip(&counts).map(|(capture, counts)| capture_json(capture, counts)).collect::<Vec<_>>(),
    });
    let path = directory.join("submit-cost.json");
    fs::write(&path, format!("{json:#}\n")).with_context(|| path.display().to_string())?;
    let path = directory.join("submit-cost.md");
    fs::write(&path, markdown(&measured, &counts, &how)).with_context(|| path.display().to_string())
}

fn capture_json(capture: &Measured, counts: &[u64; 4]) -> Value {
    let operations = Operation::ALL.into_iter().enumerate();
    let operations: serde_json::Map<String, Value> = operations
        .map(|(at, operation)| {
            let time = capture.times[at];
            let ratio = capture.ratio(at);
            let value = json!({
                "best_ns": time.best_ns,
                "fastest_tenth_ns": time.tenth_ns,
                "median_ns": time.median_ns,
                "ratio": ratio,
                "within_goal": operation.goal().map(|goal| ratio <= goal),
                "instructions": counts[at],
            });
            (operation.name().to_owned(), value)
        })
        .collect();
    json!({ "capture": capture.name, "words": capture.words, "operations": operations })
}

fn markdown(measured: &[Measured], counts: &[[u64; 4]], how: &Value) -> String {
    let of = |key: &str| match &how[key] {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let mut text = format!(
        "# What the submission path costs\n\n\
         Written by `{}`. One run is over all segments of a capture. Times are the best of {} rounds in which the\n\
         operations take turns, the mean over the {} places in a cache line where a segment may begin. Ratios are to the copy\n\
         (`copy_from_slice`) of the same segments in the same rounds. The goals are 3 for masking in place and 12 for\n\
         splitting into 8.\n\n\
         {}, {} CPUs, load {}; {}; {}.\n\n",
        of("command"), of("rounds"), of("places"), of("processor"), of("cpus"), of("load_average"), of("rustc"), of("valgrind"),
    );
    text.push_str(&table(measured));
    text.push_str(
        "\nSpread: the slowest of the fastest tenth of the rounds, as a ratio to the best.\n\n",
    );
    text.push_str("| capture | copy | find | mask | split |\n|---|---|---|---|---|\n");
    for capture in measured {
        let [copy, find, mask, split] = capture.times.map(|time| time.tenth_ns / time.best_ns);
        // Writing to a `String` cannot fail.
        let _ = writeln!(
            text,
            "| {} | {copy:.2} | {find:.2} | {mask:.2} | {split:.2} |",
            capture.name
        );
    }
    text.push_str("\nInstructions of one run, by callgrind.\n\n");
    text.push_str("| capture | copy | find | mask | split |\n|---|---|---|---|---|\n");
    for (capture, [copy, find, mask, split]) in measured.iter().zip(counts) {
        let _ = writeln!(
            text,
            "| {} | {copy} | {find} | {mask} | {split} |",
            capture.name
        );
    }
    text
}
