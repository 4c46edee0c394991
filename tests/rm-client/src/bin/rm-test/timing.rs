// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Judges times on a host that may pause at any moment, and is slow at others.
//!
//! A pause of the host makes a few rounds late, or spoils one measurement. A defect makes most
//! rounds late, and spoils each measurement.

use gct_ktap::{same, Outcome, Stop};
use std::time::Duration;

/// Measurements of which one must succeed.
const ATTEMPTS: u32 = 3;

/// Measures again if a measurement fails.
pub(crate) fn undisturbed(mut measure: impl FnMut() -> Outcome) -> Outcome {
    for attempt in 1..ATTEMPTS {
        match measure() {
            Err(Stop::Failed(why)) => println!("# attempt {attempt}: {why}"),
            outcome => return outcome,
        }
    }
    measure()
}

/// Fails if more than `late_max` rounds took `limit` or longer.
pub(crate) fn few_are_late(rounds: &[Duration], limit: Duration, late_max: usize) -> Outcome {
    let late = rounds.iter().filter(|round| **round >= limit).count();
    let mut sorted = rounds.to_vec();
    sorted.sort_unstable();
    println!(
        "# {late} of {} are late; half of them take {} us, the longest {} us",
        rounds.len(),
        sorted.get(rounds.len() / 2).map_or(0, Duration::as_micros),
        sorted.last().map_or(0, Duration::as_micros)
    );
    same(&format!("{late} late ones are few"), late <= late_max, true)
}
