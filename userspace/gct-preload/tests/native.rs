// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Checks which programs have native channels under a daemon, and what the tree says of them. The
//! program is `limited.rs`.

use gctd::testing::{Client, Daemon};
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// Returns cargo's output directory.
fn built(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().unwrap().parent().unwrap().join(name)
}

/// A program in the group `web`.
struct Program {
    child: Child,
    output: BufReader<ChildStdout>,
}

/// What a program says of itself.
#[derive(Debug, PartialEq)]
struct Said {
    /// The GPU has seen its launches when they return.
    is_seen: bool,
    has_own_rings: bool,
    has_worker: bool,
}

const NATIVE: Said = Said {
    is_seen: true,
    has_own_rings: true,
    has_worker: false,
};

impl Program {
    fn new(daemon: &Daemon, client: &Client) -> Self {
        Self::with(daemon, client, &[])
    }

    fn with(daemon: &Daemon, client: &Client, variables: &[(&str, &str)]) -> Self {
        let program = Self::start(daemon, variables);
        let pid = program.child.id().to_string();
        client.write("web/group.procs", pid).unwrap();
        program
    }

    /// Starts a program that is in no group.
    fn start(daemon: &Daemon, variables: &[(&str, &str)]) -> Self {
        let libraries = ["deps/libgct_preload.so", "examples/libfake_driver.so"].map(built);
        let [library, driver] = libraries.map(|path| path.into_os_string().into_string().unwrap());
        let mut command = Command::new(built("examples/program"));
        command
            .arg("limited")
            .env("LD_PRELOAD", format!("{library}:{driver}"))
            .env("GCTGROUP_SOCKET", daemon.socket())
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child, output }
    }

    /// Lets the program launch.
    fn launch(&mut self) -> Said {
        writeln!(self.child.stdin.as_mut().unwrap()).unwrap();
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        Said {
            is_seen: words[0] == "true",
            has_own_rings: words[1] == "true",
            has_worker: words.contains(&"gct-worker"),
        }
    }

    /// Checks that the program has a worker, whose name it has a moment after its start.
    fn is_managed(&mut self) {
        let since = Instant::now();
        while !self.launch().has_worker {
            assert!(since.elapsed() < Duration::from_secs(10));
        }
        assert!(!self.launch().has_own_rings);
    }
}

impl Program {
    /// Lets the program open the GPU. Returns its exit status.
    fn status(mut self) -> Option<i32> {
        drop(self.child.stdin.take());
        self.child.wait().unwrap().code()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if self.child.stdin.take().is_none() {
            return;
        }
        let status = self.child.wait().unwrap();
        assert!(std::thread::panicking() || status.success(), "{status}");
    }
}

/// Starts a daemon with a GPU and the group `web`, and sets limits.
fn setup(test: &str, limits: &[(&str, &str)]) -> (Daemon, Client) {
    let daemon = Daemon::new(test, 1);
    let client = prepared(&daemon, limits);
    (daemon, client)
}

fn prepared(daemon: &Daemon, limits: &[(&str, &str)]) -> Client {
    let client = daemon.client();
    for group in ["web", "batch"] {
        client.write("control", format!("create {group}")).unwrap();
    }
    for (path, value) in limits {
        client.write(path, value).unwrap();
    }
    client
}

/// Waits until the group's `compute.stat` has these lines of channels that are not managed.
#[track_caller]
fn has_unmanaged(client: &Client, lines: &[&str]) {
    let since = Instant::now();
    loop {
        let stat = client.read("web/0/compute.stat").unwrap();
        let found = stat.lines().filter(|line| line.starts_with("unmanaged"));
        let found: Vec<&str> = found.collect();
        if found == lines {
            return;
        }
        assert!(since.elapsed() < Duration::from_secs(10), "{found:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

const MEMORY: (&str, &str) = ("web/0/gmem.limit", "10G");

#[test]
fn memory_alone_leaves_channels_native() {
    let slice = ("web/0/compute.timeslice", "2ms");
    let other = ("batch/0/gmem.limit", "20G");
    let (daemon, client) = setup("native", &[MEMORY, slice, other]);
    let mut program = Program::new(&daemon, &client);
    assert_eq!(program.launch(), NATIVE);
    has_unmanaged(&client, &["unmanaged 1", "unmanaged.memory_only 1"]);
    // A limit that comes later is kept, and binds who comes later.
    client.write("web/0/compute.weight", "50").unwrap();
    assert_eq!(program.launch(), NATIVE);
    let mut later = Program::new(&daemon, &client);
    later.is_managed();
    has_unmanaged(&client, &["unmanaged 1", "unmanaged.memory_only 1"]);
    drop(program);
    has_unmanaged(&client, &["unmanaged 0"]);
}

#[test]
fn limits_on_launches_of_anybody_are_for_all() {
    for (test, limits) in [
        ("managed-none", &[][..]),
        ("managed-own", &[MEMORY, ("web/0/compute.weight", "100")]),
        ("managed-other", &[MEMORY, ("batch/0/tpc.quota", "4")]),
        ("managed-low", &[MEMORY, ("web/0/gmem.low", "5G")]),
    ] {
        let (daemon, client) = setup(test, limits);
        let mut program = Program::new(&daemon, &client);
        program.is_managed();
        has_unmanaged(&client, &["unmanaged 0"]);
    }
}

#[test]
fn a_gpu_whose_self_test_failed_has_native_channels() {
    let gpu = "GPU-00112233-4455-6677-8899-aabbccddeef0";
    let release = env!("CARGO_PKG_VERSION");
    let text = format!(
        "gctgroup-selftest {release}\ngpu {gpu}\ndriver 1.2\ntpcs 0-3,9\nmasks failed: x\n\
         atoms exact\nend\n"
    );
    let daemon = Daemon::with_selftest("native-failed", None, &format!("{gpu}.1.2"), &text);
    let client = prepared(&daemon, &[]);
    for (file, value) in [
        ("compute.weight", "7"),
        ("compute.max", "1000 2000"),
        ("tpc.mask", "0-1"),
        ("slo.p99", "7ms"),
    ] {
        let refused = client.write(&format!("web/0/{file}"), value);
        assert_eq!(refused, Err(libc::EOPNOTSUPP), "{file}");
    }
    let mut program = Program::new(&daemon, &client);
    assert_eq!(program.launch(), NATIVE);
    has_unmanaged(&client, &["unmanaged 1", "unmanaged.untested 1"]);
    client.write("web/0/gmem.limit", "5G").unwrap();
}

/// Checks a program that gets no thread, so that no channel of it can be managed.
#[test]
fn a_program_that_escapes_its_limits_is_stopped() {
    let weight = ("web/0/compute.weight", "100");
    let none = ("FAKE_NO_THREADS", "1");
    for (test, limits, optional, status) in [
        ("escapes", &[weight][..], "0", 78),
        ("escapes-optional", &[weight], "1", 0),
        ("escapes-none", &[], "0", 0),
        ("escapes-memory", &[MEMORY], "0", 0),
    ] {
        let (daemon, client) = setup(test, limits);
        let variables = [none, ("GCTGROUP_OPTIONAL", optional)];
        let program = Program::with(&daemon, &client, &variables);
        assert_eq!(program.status(), Some(status), "{test}");
    }
}

/// Checks a program that `gctctl run` has started in a group, and whose parent has ended before it
/// used the GPU.
#[test]
fn a_program_that_has_lost_its_group_is_stopped() {
    for (test, group, joins, optional, status) in [
        ("stray", "web", false, "0", 78),
        ("stray-optional", "web", false, "1", 0),
        ("stray-member", "other", true, "0", 0),
        ("stray-none", "", false, "0", 0),
    ] {
        let (daemon, client) = setup(test, &[]);
        let variables = [("GCTGROUP_GROUP", group), ("GCTGROUP_OPTIONAL", optional)];
        let program = match joins {
            true => Program::with(&daemon, &client, &variables),
            false => Program::start(&daemon, &variables),
        };
        assert_eq!(program.status(), Some(status), "{test}");
    }
}

#[test]
fn a_limit_that_comes_later_stops_nobody() {
    let (daemon, client) = setup("later", &[]);
    let mut program = Program::with(&daemon, &client, &[("FAKE_NO_THREADS", "1")]);
    assert_eq!(program.launch(), NATIVE);
    client.write("web/0/compute.weight", "50").unwrap();
    assert_eq!(program.launch(), NATIVE);
}
