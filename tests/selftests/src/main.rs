// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests the tree and the hooks in the virtual machine in which the patched driver runs. Prints
//! KTAP.
//!
//! ```text
//! gct-selftest all --module PATH [FILTER]   every test; loads and unloads the driver
//! gct-selftest door --module PATH [FILTER]  the same, all of it through /dev/gctgroup
//! gct-selftest without-gpu --module PATH    the driver's init, which fails without a GPU
//! gct-selftest client [--hold SECONDS]      a resource-manager client, for the demo
//! gct-selftest sleep SECONDS                a process to put into a group
//! ```

mod bounds;
mod conformance;
mod device;
mod door;
mod driver;
mod input;
mod members;
mod memory;
mod races;
mod rights;
mod rm;
mod storms;
mod sys;
mod tree;
mod unload;

use std::path::Path;
use std::process::ExitCode;
use std::thread::sleep;
use std::time::Duration;

const USAGE: &str = "usage: gct-selftest all|door --module PATH [FILTER]
       gct-selftest without-gpu --module PATH
       gct-selftest client [--hold SECONDS]
       gct-selftest sleep SECONDS";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match words.as_slice() {
        ["all", "--module", module] => all(Path::new(module), ""),
        ["all", "--module", module, filter] => all(Path::new(module), filter),
        ["door", "--module", module, filter @ ..] if filter.len() < 2 => {
            tree::use_device();
            all(Path::new(module), filter.first().copied().unwrap_or(""))
        }
        ["without-gpu", "--module", module] => {
            unload::set_module(Path::new(module));
            run(unload::WITHOUT_GPU, "")
        }
        ["client"] => client(0),
        ["client", "--hold", seconds] => seconds
            .parse()
            .map_err(|_| USAGE.to_owned())
            .and_then(client),
        ["sleep", seconds] => seconds
            .parse()
            .map(|seconds| sleep(Duration::from_secs(seconds)))
            .map_err(|_| USAGE.to_owned()),
        _ => Err(USAGE.to_owned()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("gct-selftest: {why}");
            ExitCode::FAILURE
        }
    }
}

/// Runs every test with the module loaded, and leaves it unloaded.
fn all(module: &Path, filter: &str) -> Result<(), String> {
    unload::set_module(module);
    unload::load().map_err(|error| format!("loading {}: {error}", module.display()))?;
    let tests: Vec<gct_ktap::Test> = [
        conformance::TESTS,
        input::TESTS,
        members::TESTS,
        bounds::TESTS,
        races::TESTS,
        storms::TESTS,
        memory::TESTS,
        driver::TESTS,
        door::TESTS,
        rights::TESTS,
        unload::TESTS,
    ]
    .concat();
    run(&tests, filter)
}

fn run(tests: &[gct_ktap::Test], filter: &str) -> Result<(), String> {
    match gct_ktap::run(tests, filter) {
        0 => Ok(()),
        failures => Err(format!("{failures} tests failed")),
    }
}

/// Opens /dev/nvidiactl, allocates a client, prints its handle, holds it, and frees it.
fn client(hold_s: u64) -> Result<(), String> {
    let control = rm::open().map_err(|error| format!("/dev/nvidiactl: {error}"))?;
    let client = rm::alloc_client(&control).map_err(|error| format!("NV01_ROOT: {error}"))?;
    println!(
        "pid {} holds client 0x{client:08x} of the resource manager",
        std::process::id()
    );
    sleep(Duration::from_secs(hold_s));
    rm::free_client(&control, client).map_err(|error| format!("free: {error}"))?;
    println!("client 0x{client:08x} is free again");
    Ok(())
}
