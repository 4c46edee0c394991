// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Fails the nth allocation of a thread (Documentation/fault-injection).

use crate::{skipped, Outcome, Stop};
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

const NTH: &str = "/proc/thread-self/fail-nth";
const SLAB: &str = "/sys/kernel/debug/failslab";

/// Prepares the injection, or skips the test.
pub fn prepare() -> Outcome {
    if !Path::new(NTH).exists() || !Path::new(SLAB).exists() {
        return Err(skipped("no fault injection in this kernel"));
    }
    // Fails allocations that may sleep, too, without a report of each.
    fs::write(format!("{SLAB}/ignore-gfp-wait"), "N")?;
    fs::write(format!("{SLAB}/verbose"), "0")?;
    Ok(())
}

/// Runs `operation` while its `nth` allocation fails. Returns whether it made that many. The file
/// is opened before, because opening it allocates as well.
pub fn inject<T>(nth: u32, operation: impl FnOnce() -> T) -> Result<(T, bool), Stop> {
    let control = OpenOptions::new().read(true).write(true).open(NTH)?;
    control.write_all_at(nth.to_string().as_bytes(), 0)?;
    let outcome = operation();
    let mut left = [0; 16];
    let length = control.read_at(&mut left, 0)?;
    control.write_all_at(b"0", 0)?;
    Ok((outcome, left[..length].starts_with(b"0")))
}
