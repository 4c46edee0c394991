// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Checks that the library is a good guest: it keeps out of the descriptors of a program.
//! `guest_program.rs` is the program, `fake_driver.rs` its GPU.

mod common;

use gctd::testing::Daemon;
use std::io::Write;
use std::process::{Command, Stdio};

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
fn does(name: &str) {
    let mut program = common::preloaded(common::built("examples/guest_program"));
    member(name, program.arg(name));
}

#[test]
fn a_program_keeps_the_numbers_of_its_descriptors() {
    does("numbers");
}

#[test]
fn a_program_with_few_descriptors_has_its_limits() {
    does("few");
}

#[test]
fn a_program_that_closes_all_descriptors_has_its_own_alone() {
    does("closes-all");
}

#[test]
fn a_child_that_closes_all_descriptors_has_its_own_alone() {
    does("child-closes-all");
}

#[test]
fn a_child_has_one_connection() {
    does("child-connects");
}
