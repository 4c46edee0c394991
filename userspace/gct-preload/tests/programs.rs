// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What programs do under the library must be what they do without it. `program.rs` is the program, and
//! `fake_driver.rs` its GPU.

use std::os::unix::process::{CommandExt, ExitStatusExt};
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

/// What the program, the worker and the median launch took, in microseconds, on these processors.
fn launches(processors: &'static [usize], count: u32) -> [u64; 3] {
    let mut command = program("launches");
    command.arg(count.to_string());
    let bind = || {
        // SAFETY: a plain structure that lives for the call.
        unsafe {
            let mut set: libc::cpu_set_t = core::mem::zeroed();
            processors
                .iter()
                .for_each(|at| libc::CPU_SET(*at, &mut set));
            libc::sched_setaffinity(0, size_of_val(&set), &set)
        };
        Ok(())
    };
    // SAFETY: one system call between fork and exec.
    unsafe { command.pre_exec(bind) };
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{} {text}", output.status);
    let numbers = String::from_utf8(output.stdout).unwrap();
    let mut numbers = numbers.split_whitespace().map(|n| n.parse().unwrap());
    [(); 3].map(|()| numbers.next().unwrap())
}

#[test]
fn on_one_processor_the_worker_takes_nothing_from_its_program() {
    let [all, worker, median] = launches(&[0], 2_000);
    assert!(worker * 20 < all, "the worker took {worker} us of {all}");
    assert!(median < 1_000, "{median} us");
}

#[test]
fn a_program_that_gets_no_thread_runs_natively() {
    let stats = std::env::temp_dir().join(format!("gct-stats-{}", std::process::id()));
    let mut command = program("no-threads");
    command
        .env("FAKE_NO_THREADS", "1")
        .env("GCTGROUP_STATS", &stats);
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{} {text}", output.status);
    assert!(text.contains("runs without limits"), "{text}");
    let counters = std::fs::read_to_string(&stats).unwrap();
    std::fs::remove_file(&stats).unwrap();
    assert!(
        counters.starts_with("channels 0\nunmanaged 1\n"),
        "{counters}"
    );
}

#[test]
fn the_worker_has_the_processes_processors_and_the_normal_class() {
    does("worker-is-normal");
}

#[test]
fn memory_that_another_thread_maps_meanwhile_is_its_own() {
    does("others-map");
}

#[test]
fn what_is_mapped_over_a_ring_is_no_ring() {
    does("map-over");
}
