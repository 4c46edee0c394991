// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Serves many workloads in one process, because the creation of a context takes a second.

use crate::cli::{Cli, Workload};
use anyhow::Result;
use clap::Parser;
use serde_json::json;
use std::io::{self, BufRead, Write};

/// Runs a workload for each line of standard input, and prints a line with its result or error. A
/// first line says that it is ready.
pub(crate) fn run(mut work: impl FnMut(Workload) -> Result<String>) -> Result<()> {
    print(&json!({"ready": true}).to_string())?;
    for line in io::stdin().lock().lines() {
        let line = line?;
        let done = parse(&line).and_then(&mut work);
        match done {
            Ok(line) => print(&line)?,
            Err(error) => print(&json!({"error": format!("{error:#}")}).to_string())?,
        }
    }
    Ok(())
}

/// Prints a line and flushes it.
fn print(line: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

fn parse(line: &str) -> Result<Workload> {
    let words = std::iter::once("gct-load").chain(line.split_whitespace());
    Ok(Cli::try_parse_from(words)?.workload)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_workload_or_an_error() {
        assert!(matches!(
            parse("idle --seconds 0.5").unwrap(),
            Workload::Idle { .. }
        ));
        assert!(parse("idle --secs 0.5").is_err());
        assert!(parse("").is_err());
        assert!(parse("critical --burst-ms 5").is_err());
        assert!(parse("critical --burst-ms 5 --pause-ms 5 --poisson").is_ok());
    }
}
