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

/// Returns whether a filter chooses a test by its name: the name contains the filter or one of its
/// parts between commas, or none of those that follow an exclamation mark.
fn chooses(filter: &str, name: &str) -> bool {
    let has_any = |parts: &str| parts.split(',').any(|part| name.contains(part));
    match filter.strip_prefix('!') {
        Some(without) => !has_any(without),
        None => has_any(filter),
    }
}

/// Returns the numbers of a filter like `2/8`: each eighth test from the second.
fn share(filter: &str) -> Option<(usize, usize)> {
    let (part, parts) = filter.split_once('/')?;
    let (part, parts) = (part.parse().ok()?, parts.parse().ok()?);
    (1..=parts).contains(&part).then_some((part, parts))
}

/// Returns the tests that `filter` chooses.
fn chosen<'a>(tests: &'a [Test], filter: &str) -> Vec<&'a Test> {
    match share(filter) {
        Some((part, parts)) => tests.iter().skip(part - 1).step_by(parts).collect(),
        None => {
            let named = tests.iter().filter(|(name, _)| chooses(filter, name));
            named.collect()
        }
    }
}

/// Runs the tests that `filter` chooses: those whose names contain it, or one of its parts between
/// commas, or, with `!` in front, do not; or with `2/8` each eighth from the second. Returns how
/// many failed.
pub fn run(tests: &[Test], filter: &str) -> usize {
    let chosen = chosen(tests, filter);
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
        assert!(chooses("!storms.", "races.fork") && !chooses("!storms.,races.", "races.fork"));
    }

    #[test]
    fn parts_have_each_test_once() {
        let names = ["a", "b", "c", "d", "e"];
        let tests = names.map(|name| -> Test { (name, || Ok(())) });
        let part = |filter: &str| -> String {
            let chosen = chosen(&tests, filter).into_iter();
            chosen.map(|(name, _)| *name).collect()
        };
        assert_eq!(["1/3", "2/3", "3/3"].map(part), ["ad", "be", "c"]);
        assert_eq!(["0/3", "4/3", "1/0", "5/9"].map(part), ["", "", "", "e"]);
    }
}
