// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Measures the submission path against a plain copy of the same segments, in one run.
//!
//! ```text
//! gct-bench-submit                            a table: best times and their ratios to the copy
//! gct-bench-submit results DIR                the same, with instructions, into files in DIR:
//!                                             submit-cost.json and submit-cost.md
//! gct-bench-submit callgrind OPERATION CAPTURE TIMES
//!                                             runs one operation TIMES times, for callgrind
//! ```

#![allow(
    clippy::float_arithmetic,
    reason = "the lint mirrors the kernel's, and this program never runs there"
)]

mod operations;
mod results;
mod segment;
mod timing;

use std::fs;
use std::path::Path;

use anyhow::{bail, ensure, Context, Result};
use operations::{Bench, Operation};
use segment::Segment;

/// A recorded submission.
pub(crate) struct Capture {
    pub(crate) name: String,
    pub(crate) segments: Vec<Segment>,
}

/// Returns the captures of the repository, by name.
fn captures() -> Result<Vec<Capture>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/captures");
    let mut captures = Vec::new();
    for entry in fs::read_dir(&directory).with_context(|| directory.display().to_string())? {
        let path = entry?.path();
        if path
            .extension()
            .is_some_and(|extension| extension == "pbcap")
        {
            let records = gct_client::capture::parse(&fs::read_to_string(&path)?)?;
            let name = path.file_stem().unwrap_or_default().to_string_lossy();
            captures.push(Capture {
                name: name.into_owned(),
                segments: records
                    .iter()
                    .map(|record| Segment::new(&record.words))
                    .collect(),
            });
        }
    }
    ensure!(
        !captures.is_empty(),
        "no captures in {}",
        directory.display()
    );
    captures.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(captures)
}

/// Runs one operation `times` times. Comparing two such runs isolates its instructions from the
/// rest.
fn callgrind(operation: &str, name: &str, times: u32) -> Result<()> {
    let operation = Operation::ALL
        .into_iter()
        .find(|known| known.name() == operation)
        .context("the operations are copy, find, mask and split")?;
    let mut captures = captures()?.into_iter();
    let mut capture = captures
        .find(|capture| capture.name == name)
        .context("there is no such capture")?;
    let mut bench = Bench::new();
    for _ in 0..times {
        bench.run(operation, &mut capture.segments);
    }
    Ok(())
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        [] => {
            let measured: Vec<_> = captures()?.into_iter().map(timing::measure).collect();
            print!("{}", results::table(&measured));
            Ok(())
        }
        ["results", directory] => results::write(Path::new(directory), captures()?),
        ["callgrind", operation, capture, times] => callgrind(operation, capture, times.parse()?),
        _ => bail!("usage: gct-bench-submit [results DIR | callgrind OPERATION CAPTURE TIMES]"),
    }
}
