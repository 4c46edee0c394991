// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A program of CUDA's driver API: goes through what programs do first, and prints KTAP.
//!
//! ```text
//! cuda-client all [FILTER]       every step whose name contains FILTER
//! cuda-client limits [FILTER]    the same steps in members of groups with limits
//! cuda-client daemon [FILTER]    these tests, those that gctd enforces
//! ```

mod beside;
mod daemon;
mod driver;
mod group;
mod ipc;
mod limits;
mod mps;
mod recorded;
mod smi;
mod steps;

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let (command, filter) = (arguments.next(), arguments.next());
    let tests = match command.as_deref() {
        Some("all") => steps::STEPS.to_vec(),
        Some("limits") => [
            limits::LIMITS,
            beside::TESTS,
            ipc::TESTS,
            smi::TESTS,
            mps::TESTS,
        ]
        .concat(),
        Some("daemon") => daemon::tests(),
        _ => {
            eprintln!("usage: cuda-client all|limits|daemon [FILTER]");
            return ExitCode::from(2);
        }
    };
    let failures = gct_ktap::run(&tests, &filter.unwrap_or_default());
    ExitCode::from(u8::from(failures > 0))
}
