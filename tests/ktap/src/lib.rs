// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Runs tests and prints KTAP, for the programs that test the driver in the virtual machine.
//! `gct-vm` parses the output.

pub mod faults;

use std::fmt::{Debug, Display};
use std::io::{self, Write};
use std::time::Instant;

/// The reason why a test did not pass.
#[derive(Debug)]
pub enum Stop {
    /// The test failed.
    Failed(String),
    /// The test cannot run here.
    Skipped(String),
}

/// The result of a test.
pub type Outcome = Result<(), Stop>;

/// Turns an unexpected error into a failure.
impl<E: std::error::Error> From<E> for Stop {
    fn from(error: E) -> Self {
        Self::Failed(error.to_string())
    }
}

/// Returns a failure.
pub fn failed(why: impl Display) -> Stop {
    Stop::Failed(why.to_string())
}

/// Returns a skip.
pub fn skipped(why: impl Display) -> Stop {
    Stop::Skipped(why.to_string())
}

/// Fails unless both values are equal.
pub fn same<T: PartialEq + Debug>(what: &str, found: T, expected: T) -> Outcome {
    if found == expected {
        Ok(())
    } else {
        Err(failed(format!("{what}: {found:?}, expected {expected:?}")))
    }
}

/// Fails unless `condition` is true.
pub fn holds(what: &str, condition: bool) -> Outcome {
    same(what, condition, true)
}

/// Adds context to a failure: the step that failed.
pub trait During<T> {
    /// Prefixes a failure with `what`.
    fn during(self, what: impl Display) -> Result<T, Stop>;
}

impl<T, E: Into<Stop>> During<T> for Result<T, E> {
    fn during(self, what: impl Display) -> Result<T, Stop> {
        self.map_err(|error| match error.into() {
            Stop::Failed(why) => failed(format!("{what}: {why}")),
            skipped @ Stop::Skipped(_) => skipped,
        })
    }
}

/// A test: its name and its function.
pub type Test = (&'static str, fn() -> Outcome);

/// Returns whether a filter chooses a test: its name contains the filter or one of its parts
/// between commas, or does not contain what follows an exclamation mark.
fn chooses(filter: &str, name: &str) -> bool {
    match filter.strip_prefix('!') {
        Some(without) => !name.contains(without),
        None => filter.split(',').any(|part| name.contains(part)),
    }
}

/// Runs the tests that `filter` chooses: those whose names contain it, or one of its parts between
/// commas, or, with `!` in front, do not. Returns how many failed.
pub fn run(tests: &[Test], filter: &str) -> usize {
    let chosen: Vec<&Test> = tests
        .iter()
        .filter(|(name, _)| chooses(filter, name))
        .collect();
    println!("KTAP version 1\n1..{}", chosen.len());
    let mut failures = 0;
    for (number, (name, test)) in (1..).zip(chosen) {
        let start = Instant::now();
        let outcome = test();
        let took_ms = start.elapsed().as_millis();
        match outcome {
            Ok(()) => println!("ok {number} {name} # {took_ms} ms"),
            Err(Stop::Skipped(why)) => println!("ok {number} {name} # SKIP {why}"),
            Err(Stop::Failed(why)) => {
                failures += 1;
                for line in why.lines() {
                    println!("# {line}");
                }
                println!("not ok {number} {name}");
            }
        }
        // The kernel may crash at any time: print the results so far.
        let _ = io::stdout().flush();
    }
    failures
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_chooses_or_leaves_out() {
        assert!(chooses("", "storms.fork") && chooses("fork", "storms.fork"));
        assert!(!chooses("kill", "storms.fork") && !chooses("!storms.", "storms.fork"));
        assert!(chooses("!storms.", "races.fork"));
    }
}
