// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Checks that the library is a good guest: it keeps out of the descriptors of a program, and a
//! program may fork at any moment. `guest_program.rs` is the program, `fake_driver.rs` its GPU.

mod common;

use gctd::testing::Daemon;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// Returns how often a storm forks: `gate`, or fifty times as often for `make test-long`.
fn times(gate: u32) -> u32 {
    match std::env::var_os("GCT_LONG").is_some_and(|long| !long.is_empty()) {
        true => 50 * gate,
        false => gate,
    }
}

/// Runs a program that begins when it can read a line. It is a member of a group then, and sees
/// 10 GiB of the GPU's memory. It checks itself.
fn member(test: &str, command: &mut Command) {
    let daemon = Daemon::new(test, 1);
    let client = daemon.client();
    client.write("control", "create web").unwrap();
    client.write("web/0/gmem.limit", "10G").unwrap();
    command
        .env("GCTGROUP_SOCKET", daemon.socket())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut program = command.spawn().unwrap();
    client
        .write("web/group.procs", program.id().to_string())
        .unwrap();
    writeln!(program.stdin.as_mut().unwrap()).unwrap();
    let output = program.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{test}: {} {text}", output.status);
}

/// Runs a behaviour of the program.
fn does(name: &str, gate: u32) {
    let mut program = common::preloaded(common::built("examples/guest_program"));
    member(name, program.args([name, &times(gate).to_string()]));
}

#[test]
fn a_program_keeps_the_numbers_of_its_descriptors() {
    does("numbers", 1);
}

#[test]
fn a_program_with_few_descriptors_has_its_limits() {
    does("few", 1);
}

#[test]
fn a_program_that_closes_all_descriptors_has_its_own_alone() {
    does("closes-all", 1);
}

#[test]
fn a_child_that_closes_all_descriptors_has_its_own_alone() {
    does("child-closes-all", 1);
}

#[test]
fn a_child_has_one_connection() {
    does("child-connects", 1);
}

#[test]
fn a_child_forked_beside_nvml_does_not_hang() {
    does("forks", 100);
}

#[test]
fn a_child_forked_beside_launches_does_not_hang() {
    does("forks-with-channel", 100);
}

#[test]
fn a_child_in_the_same_memory_leaves_the_connection_alone() {
    does("shares-memory", 1);
}

#[test]
fn a_program_executed_beside_nvml_does_not_hang() {
    does("executes", 20);
}

/// Runs Python's `multiprocessing`, `subprocess` and a daemon in it, if there is a Python.
#[test]
fn python_forks_beside_nvml() {
    if Command::new("python3").arg("--version").output().is_err() {
        eprintln!("skipped: there is no python3");
        return;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/guest.py");
    let mut python = common::preloaded("python3");
    member("python", python.arg(script).arg(times(1).to_string()));
}
