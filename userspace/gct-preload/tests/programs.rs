// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What programs do under the library must be what they do without it. `program.rs` is the program, and
//! `fake_driver.rs` its GPU.

use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, Output};

/// Where cargo puts what it builds.
fn built(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().unwrap().parent().unwrap().join(name)
}

/// One of the program's ways to behave, under the library.
fn program(name: &str) -> Command {
    let libraries = ["deps/libgct_preload.so", "examples/libfake_driver.so"].map(built);
    for library in &libraries {
        assert!(library.exists(), "{} is not built", library.display());
    }
    let [library, driver] = libraries.map(|path| path.into_os_string().into_string().unwrap());
    let mut command = Command::new(built("examples/program"));
    command
        .arg(name)
        .env("LD_PRELOAD", format!("{library}:{driver}"));
    command
}

fn output(name: &str) -> Output {
    program(name).output().unwrap()
}

/// It does what it should, which it checks itself.
fn does(name: &str) {
    let output = output(name);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}: {} {text}", output.status);
}

#[test]
fn a_child_in_the_same_memory_changes_its_own_handlers_alone() {
    does("child-resets");
}

#[test]
fn a_forked_child_has_handlers_of_its_own() {
    does("fork-resets");
}

#[test]
fn a_handler_runs_with_its_mask() {
    does("mask");
}

#[test]
fn a_handler_for_one_signal_is_called_once() {
    for name in ["once", "once-sysv"] {
        let output = output(name);
        assert_eq!(output.stdout, b"once\n", "{name}");
        assert_eq!(output.status.signal(), Some(libc::SIGSEGV), "{name}");
    }
}

#[test]
fn a_handler_runs_on_the_stack_that_it_asked_for() {
    does("stacks");
}

#[test]
fn a_handler_that_was_installed_past_libc_is_called_for_its_own_faults_alone() {
    does("raw-action");
}

#[test]
fn a_thread_that_blocks_all_signals_launches() {
    does("blocked");
}

#[test]
fn no_signal_of_the_programs_runs_in_our_threads() {
    does("helpers-block");
}
