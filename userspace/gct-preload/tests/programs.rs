// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Checks that programs behave under the library as they do without it. `program.rs` is the
//! program, and `fake_driver.rs` its GPU.

#![allow(clippy::disallowed_types, reason = "the test is not forked")]

mod common;

use gctd_ipc::versions::{Versions, VERSIONS};
use rustix::fd::AsFd;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Returns the command for one behaviour of the program under the library.
fn program(name: &str) -> Command {
    let mut command = common::preloaded(common::built("examples/program"));
    command.arg(name);
    command
}

fn output(name: &str) -> Output {
    program(name).output().unwrap()
}

/// Runs the program and checks that it succeeds. It checks itself.
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
fn a_child_forked_beside_a_change_of_handlers_can_change_its_own() {
    does("fork-beside-a-change");
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

/// Checks that a member sees its group's limit from the write on, and a stranger the whole GPU.
#[test]
fn a_program_sees_its_limit_as_the_memory() {
    let daemon = gctd::testing::Daemon::new("memory", 1);
    let client = daemon.client();
    client.write("control", "create web").unwrap();
    let mut command = program("memory");
    command
        .env("GCTGROUP_SOCKET", daemon.socket())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let [mut member, mut stranger] = [(); 2].map(|()| command.spawn().unwrap());
    let seen = |child: &mut Child| {
        writeln!(child.stdin.as_mut().unwrap()).unwrap();
        let mut line = String::new();
        let mut byte = [0];
        // Without a buffer, which would take the next line along.
        while child.stdout.as_mut().unwrap().read(&mut byte).unwrap() == 1 && byte != *b"\n" {
            line.push(char::from(byte[0]));
        }
        line
    };
    client
        .write("web/group.procs", member.id().to_string())
        .unwrap();
    assert_eq!(seen(&mut member), "81920 81920");
    assert_eq!(seen(&mut stranger), "81920 81920");
    for (limit, line) in [
        ("10G", "10240 10240"),
        ("20G", "20480 20480"),
        ("max", "81920 81920"),
    ] {
        client.write("web/0/gmem.limit", limit).unwrap();
        assert_eq!(seen(&mut member), line);
        assert_eq!(seen(&mut stranger), "81920 81920");
    }
    for child in [&mut member, &mut stranger] {
        drop(child.stdin.take());
        assert!(child.wait().unwrap().success());
    }
}

#[test]
fn a_thread_that_blocks_all_signals_launches() {
    does("blocked");
}

#[test]
fn no_signal_of_the_programs_runs_in_our_threads() {
    does("helpers-block");
}

/// Checks that a client of MPS does not leave its server while the GPU works for it: other clients
/// would end, too. Who has a channel group of its own takes nobody along.
#[test]
fn a_client_of_mps_ends_when_its_work_has() {
    for (how, said, signal) in [
        ("exit", "read", None),
        ("own", "", None),
        ("term", "read", Some(libc::SIGTERM)),
        ("inside", "", Some(libc::SIGTERM)),
    ] {
        let started = Instant::now();
        let output = program("ends").arg(how).output().unwrap();
        assert_eq!(output.status.signal(), signal, "{how}: {}", output.status);
        assert_eq!(String::from_utf8_lossy(&output.stdout), said, "{how}");
        // It waits for 8 s at most, and for what it launches meanwhile not at all.
        assert!(started.elapsed() < Duration::from_secs(6), "{how}");
    }
}

/// Checks the first process of a container, for which the kernel ignores what it does not handle.
#[test]
fn a_client_of_mps_that_is_first_in_its_container_ends_at_sigterm() {
    let can = Command::new("unshare")
        .args(["--pid", "--fork", "true"])
        .status();
    if !can.is_ok_and(|status| status.success()) {
        eprintln!("skipped: no pid namespace can be made here");
        return;
    }
    let program = program("ends");
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork"]).arg(program.get_program());
    for (name, value) in program.get_envs() {
        command.env(name, value.unwrap());
    }
    let output = command.args(["ends", "term"]).output().unwrap();
    assert_eq!(output.status.code(), Some(128 + libc::SIGTERM));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "read");
}

/// Restricts a program to these processors.
fn bind(command: &mut Command, processors: &'static [usize]) {
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
}

/// Returns the times of the program, the worker and the median launch on these processors, in
/// microseconds.
fn launches(processors: &'static [usize], count: u32) -> [u64; 3] {
    let mut command = program("launches");
    command.arg(count.to_string());
    bind(&mut command, processors);
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
    // Less than the worker's sleep while it lets a store complete.
    assert!(median < 200, "{median} us");
}

/// Builds a libcuda whose launches ring. Returns its directory.
fn libcuda() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("rings");
        std::fs::create_dir_all(&folder).unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/rings.c");
        let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
        let mut compile = Command::new(compiler);
        compile.args(["-shared", "-fPIC", "-O1", "-o"]);
        compile.arg(folder.join("libcuda.so.1")).arg(source);
        assert!(compile.status().unwrap().success());
        folder
    })
}

/// Returns the faults and misses of a program on one processor. It launches 1000 times through
/// libcuda, and then as `more` says.
fn calls(more: &str) -> [u64; 2] {
    let name = format!("gct-calls-{}-{more}", std::process::id());
    let stats = std::env::temp_dir().join(name);
    let mut command = program("calls");
    command
        .arg(more)
        .env("LD_LIBRARY_PATH", libcuda())
        .env("GCTGROUP_STATS", &stats);
    bind(&mut command, &[0]);
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{} {text}", output.status);
    let counters = std::fs::read_to_string(&stats).unwrap();
    std::fs::remove_file(&stats).unwrap();
    let count = |key: &str| {
        let line = counters.lines().find_map(|line| line.strip_prefix(key));
        line.unwrap().trim().parse().unwrap()
    };
    ["faults ", "missed "].map(count)
}

#[test]
fn on_one_processor_calls_publish_without_a_fault() {
    let [faults, missed] = calls("");
    assert!(
        faults < 500 && missed == 0,
        "{faults} faults, {missed} missed"
    );
}

#[test]
fn what_no_call_rings_for_is_found_and_faults_from_then_on() {
    // Beside other work the program may seem silent before it rings, so that its doorbells are
    // armed and nothing is missed.
    let mut tries = (0..5).map(|_| calls("ring"));
    let [faults, missed] = tries.find(|[_, missed]| *missed > 0).unwrap_or_default();
    let range = 99..600;
    assert!(
        range.contains(&faults) && missed == 1,
        "{faults} faults, {missed} missed"
    );
}

#[test]
fn who_is_silent_has_armed_doorbells() {
    let [faults, missed] = calls("pause");
    assert!(
        faults > 64 && faults < 500 && missed == 0,
        "{faults} faults, {missed} missed"
    );
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
    assert!(text.contains("no limit on launches binds"), "{text}");
    let counters = std::fs::read_to_string(&stats).unwrap();
    std::fs::remove_file(&stats).unwrap();
    assert!(
        counters.starts_with("channels 0\nunmanaged 1\n"),
        "{counters}"
    );
    assert!(counters.contains("\nunmanaged.no_worker 1\n"), "{counters}");
}

/// Checks that a program is stopped if a limit on launches would not bind its channels, and that
/// one which asked for that runs.
#[test]
fn a_limit_that_binds_no_channel_stops_the_program() {
    for (optional, status) in [(None, 78), (Some("1"), 0)] {
        let mut command = program("no-threads");
        command
            .env("FAKE_NO_THREADS", "1")
            .env("GCTGROUP_TPC_MASK", "0-3")
            .env("GCTGROUP_TPCS", "0-9");
        if let Some(optional) = optional {
            command.env("GCTGROUP_OPTIONAL", optional);
        }
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{text}");
        assert!(
            text.contains("a channel cannot be managed (no_worker)"),
            "{text}"
        );
    }
}

/// A socket path without a listener.
const NOBODY: &str = "/nowhere/gctd.sock";

#[test]
fn a_limit_that_cannot_be_set_stops_the_program() {
    for (variable, value, says) in [
        ("GCTGROUP_TPC_MASK", "0-9999", "no TPC list"),
        ("GCTGROUP_TPC_MASK", "junk", "no TPC list"),
        ("GCTGROUP_ATOM_DURATION", "soon", "no duration"),
        ("GCTGROUP_ATOMS", "many", "no number"),
        ("GCTGROUP_SOCKET", NOBODY, NOBODY),
    ] {
        for optional in [None, Some("0"), Some("1")] {
            let mut command = program("no-threads");
            command.env("FAKE_NO_THREADS", "1").env(variable, value);
            if let Some(optional) = optional {
                command.env("GCTGROUP_OPTIONAL", optional);
            }
            let output = command.output().unwrap();
            let text = String::from_utf8_lossy(&output.stderr);
            let runs = optional == Some("1");
            let status = if runs { 0 } else { 78 };
            assert_eq!(
                output.status.code(),
                Some(status),
                "{variable}={value} {text}"
            );
            let mut lines = text.lines().filter(|line| !line.contains("no thread"));
            let line = lines.next().unwrap();
            assert!(
                line.starts_with("gctgroup: ") && line.contains(says),
                "{text}"
            );
            assert_eq!(line.contains("is stopped"), !runs, "{text}");
            assert_eq!(lines.next(), None, "{text}");
        }
        // A program that does not use a GPU is not affected.
        let output = program("").env(variable, value).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(text, ": not to be reached\n");
    }
    // An empty name means that the program wants no daemon.
    let mut command = program("no-threads");
    command
        .env("FAKE_NO_THREADS", "1")
        .env("GCTGROUP_SOCKET", "");
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(!text.contains("daemon"), "{text}");
}

/// Listens as a daemon that speaks other versions. Returns how often it was greeted.
fn other_release(path: &Path) -> Arc<AtomicUsize> {
    let listens = gctd_ipc::socket::listen(path, rustix::fs::Mode::RWXU).unwrap();
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    std::thread::spawn(move || {
        while let Ok(caller) = rustix::net::accept(&listens) {
            count.fetch_add(1, Ordering::SeqCst);
            let versions = Versions::from(1000 << 16 | 1001);
            let reply = gctd_ipc::message::Reply::Hello { versions };
            let flags = rustix::net::SendFlags::empty();
            gctd_ipc::socket::send(caller.as_fd(), &reply, &[], flags).unwrap();
        }
    });
    asked
}

/// Returns how a program names the versions of [`other_release`].
fn versions(path: &Path) -> String {
    let theirs = format!("the daemon at {} 1000 to 1001", path.display());
    format!("the library speaks protocol {VERSIONS}, {theirs}: install the same release of both")
}

#[test]
fn a_daemon_of_another_release_stops_the_program() {
    let path = std::env::temp_dir().join(format!("gct-release-{}", std::process::id()));
    other_release(&path);
    let mut command = program("no-threads");
    command
        .env("FAKE_NO_THREADS", "1")
        .env("GCTGROUP_SOCKET", &path);
    let output = command.output().unwrap();
    std::fs::remove_file(&path).unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(78), "{text}");
    let begins = format!("gctgroup: {}: the program is stopped", versions(&path));
    assert!(text.starts_with(&begins), "{text}");
}

/// Checks that the program says it once, and asks less often than once a second.
#[test]
fn a_daemon_of_another_release_is_told_to_a_program_that_runs() {
    let mut daemon = gctd::testing::Daemon::new("release", 1);
    let path = daemon.socket();
    let mut command = program("memory");
    command
        .env("GCTGROUP_SOCKET", &path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut program = command.spawn().unwrap();
    writeln!(program.stdin.as_mut().unwrap()).unwrap();
    // It has opened the GPU once it answers.
    program
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut [0])
        .unwrap();
    daemon.stop();
    let asked = other_release(&path);
    std::thread::sleep(std::time::Duration::from_secs(7));
    drop(program.stdin.take());
    let output = program.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    assert_eq!(text.matches(&versions(&path)).count(), 1, "{text}");
    let asked = asked.load(Ordering::SeqCst);
    assert!((2..=3).contains(&asked), "{asked}");
}

/// Checks that the daemon's own error is said, and that the program does not run without limits.
#[test]
fn a_program_that_its_daemon_refuses_is_stopped() {
    let path = std::env::temp_dir().join(format!("gct-refused-{}", std::process::id()));
    let listens = gctd_ipc::socket::listen(&path, rustix::fs::Mode::RWXU).unwrap();
    std::thread::spawn(move || {
        while let Ok(caller) = rustix::net::accept(&listens) {
            let errno = libc::ENOSPC;
            let reply = gctd_ipc::message::Reply::Error { errno };
            let flags = rustix::net::SendFlags::empty();
            gctd_ipc::socket::send(caller.as_fd(), &reply, &[], flags).unwrap();
        }
    });
    let mut command = program("no-threads");
    command
        .env("FAKE_NO_THREADS", "1")
        .env("GCTGROUP_SOCKET", &path);
    let stopped = command.output().unwrap();
    let optional = command.env("GCTGROUP_OPTIONAL", "1").output().unwrap();
    std::fs::remove_file(&path).unwrap();
    for (output, status) in [(stopped, 78), (optional, 0)] {
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{text}");
        assert!(text.contains("refuses this program"), "{text}");
        assert!(text.contains("No space left"), "{text}");
    }
}

/// Runs a daemon until its input ends. It is a helper of another test.
#[test]
fn daemon() {
    if std::env::var_os("GCT_TEST_DAEMON").is_some() {
        let daemon = gctd::testing::Daemon::new("stalled", 1);
        println!("socket {}", daemon.socket().display());
        std::io::stdin().read_line(&mut String::new()).unwrap();
    }
}

#[test]
fn a_program_waits_for_a_daemon_that_is_stopped_for_a_moment() {
    let daemon = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "daemon", "--nocapture"])
        .env("GCT_TEST_DAEMON", "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let mut daemon = daemon.unwrap();
    let lines = BufReader::new(daemon.stdout.take().unwrap()).lines();
    let mut paths =
        lines.filter_map(|line| Some(line.unwrap().split_once("socket ")?.1.to_owned()));
    let path = paths.next().unwrap();
    let pid = rustix::process::Pid::from_child(&daemon);
    let signal = |signal| rustix::process::kill_process(pid, signal).unwrap();
    signal(rustix::process::Signal::STOP);
    let mut command = program("no-threads");
    command
        .env("FAKE_NO_THREADS", "1")
        .env("GCTGROUP_SOCKET", path)
        .stderr(Stdio::piped());
    let program = command.spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(1_300));
    signal(rustix::process::Signal::CONT);
    let output = program.wait_with_output().unwrap();
    drop(daemon.stdin.take());
    daemon.wait().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(!text.contains("no daemon"), "{text}");
}

#[test]
fn a_debugger_is_not_stopped_by_doorbells() {
    let mut command = program("blocked");
    let traced = || {
        // SAFETY: a system call between fork and exec.
        match unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    // SAFETY: as above.
    unsafe { command.pre_exec(traced) };
    let mut child = command.spawn().unwrap();
    let pid = i32::try_from(child.id()).unwrap();
    let mut stops = Vec::new();
    loop {
        let mut status = 0;
        // SAFETY: a child of this thread's.
        assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
        if !libc::WIFSTOPPED(status) {
            assert_eq!(status, 0, "{stops:?}");
            break;
        }
        let signal = libc::WSTOPSIG(status);
        stops.push(signal);
        let pass = if signal == libc::SIGTRAP { 0 } else { signal };
        // SAFETY: it is stopped.
        unsafe { libc::ptrace(libc::PTRACE_CONT, pid, 0, pass) };
    }
    assert_eq!(stops, [libc::SIGTRAP], "where it was executed");
    assert!(child.wait().is_err(), "it was waited for");
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

#[test]
fn doorbells_that_are_mapped_later_fault_like_the_first() {
    does("second-doorbell");
}
