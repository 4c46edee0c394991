// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A program of CUDA's driver API: goes through what programs do first, and prints KTAP.
//!
//! ```text
//! cuda-client all [FILTER]       every step whose name contains FILTER
//! cuda-client limits [FILTER]    the same steps in members of groups with limits
//! ```

mod beside;
mod driver;
mod limits;
mod steps;

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let (command, filter) = (arguments.next(), arguments.next());
    let tests = match command.as_deref() {
        Some("all") => steps::STEPS,
        Some("limits") => limits::LIMITS,
        _ => {
            eprintln!("usage: cuda-client all|limits [FILTER]");
            return ExitCode::from(2);
        }
    };
    let failures = gct_ktap::run(tests, &filter.unwrap_or_default());
    ExitCode::from(u8::from(failures > 0))
}
