// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The daemon's messages: one line an event, for people, for journald and for collectors of JSON.

use gctd::testing::Client;
use gctd_ipc::message::{Reply, Request};
use gctd_ipc::paths::SocketPaths;
use gctd_ipc::socket;
use gctd_ipc::versions::{Versions, VERSIONS};
use rustix::fd::AsFd;
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::Duration;

/// A daemon whose standard error is read.
struct Logged {
    directory: PathBuf,
    child: Child,
    lines: BufReader<ChildStderr>,
}

impl Logged {
    /// Starts it, as systemd does if it has a journal.
    fn new(test: &str, has_journal: bool, options: &[&str]) -> Self {
        let name = format!("gctd-log-{test}-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        let mut command = Command::new(env!("CARGO_BIN_EXE_gctd"));
        command
            .args(["--gpus", "/nowhere", "--dir"])
            .arg(&directory)
            .args(options)
            .env_remove("JOURNAL_STREAM")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        if has_journal {
            command.env("JOURNAL_STREAM", "8:1");
        }
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        let stdout = child.stdout.as_mut().unwrap();
        BufReader::new(stdout).read_line(&mut line).unwrap();
        assert!(line.starts_with("gctd: listening in "), "{line}");
        let lines = BufReader::new(child.stderr.take().unwrap());
        Self {
            directory,
            child,
            lines,
        }
    }

    fn client(&self) -> Client {
        Client::new(&SocketPaths::of(&self.directory).admin)
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }
}

impl Drop for Logged {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// Who writes in these tests.
fn writer() -> String {
    let uid = rustix::process::geteuid().as_raw();
    format!("pid={} uid={uid}", std::process::id())
}

#[test]
fn each_write_is_a_line_that_no_text_can_end() {
    let mut daemon = Logged::new("text", false, &[]);
    let admin = daemon.client();
    admin.write("control", "create web\n").unwrap();
    let line = daemon.line();
    let text = "gctd: written path=\"control\" value=\"create web\" ";
    assert_eq!(line, format!("{text}{}", writer()));
    admin
        .write("control", "create x\n<3>gctd: forged \u{1b}[2J")
        .unwrap_err();
    let line = daemon.line();
    assert!(line.starts_with("gctd: not written path=\"control\" value=\"create x\\n<3>gctd"));
    assert!(
        line.contains("\\u{1b}") && line.contains(" errno="),
        "{line}"
    );
    admin.write("control", "remove web").unwrap();
    assert!(daemon.line().contains("remove web"), "nothing in between");
}

/// Checks that a program of another release is logged once, whatever and how often it states, and
/// hides nobody else.
#[test]
fn a_program_of_other_versions_is_named_once() {
    let mut daemon = Logged::new("versions", false, &["--log-level", "warn"]);
    let paths = SocketPaths::of(&daemon.directory);
    let greet = |path: &Path, lowest: u32| {
        let versions = Versions::from(lowest << 16 | (lowest + 1));
        let socket = socket::connect(path, Duration::from_secs(20)).unwrap();
        let tenant = true;
        let reply = socket::greet(socket.as_fd(), &Request::Hello { versions, tenant });
        let versions = VERSIONS;
        assert_eq!(reply, Ok(Reply::Hello { versions }));
    };
    for lowest in [1000, 1000, 1001, 1000].into_iter().chain(2000..2020) {
        greet(&paths.tenants, lowest);
    }
    greet(&paths.admin, 3000);
    // An administrator's mistake is logged, behind all others.
    daemon.client().write("control", "create 9").unwrap_err();
    let lines: Vec<_> = std::iter::repeat_with(|| daemon.line())
        .take_while(|line| !line.contains("create 9"))
        .collect();
    assert_eq!(lines.len(), 2, "{lines:?}");
    for (line, versions, count) in [
        (&lines[0], "1000 to 1001", 1),
        (&lines[1], "3000 to 3001", 25),
    ] {
        let says = format!("speaks protocol {versions}, gctd {VERSIONS}: install the same");
        assert!(line.contains(&says), "{line}");
        assert!(
            line.contains(&format!("{} count={count}", writer())),
            "{line}"
        );
    }
}

#[test]
fn journald_is_told_priorities() {
    let mut daemon = Logged::new("journal", true, &["--log-level", "warn"]);
    let admin = daemon.client();
    admin.write("control", "create web").unwrap();
    // What gctctl asks to know whether it may write.
    admin.write("control", "").unwrap_err();
    admin.write("control", "create 9").unwrap_err();
    let line = daemon.line();
    assert!(line.starts_with("<4>gctd: not written "), "{line}");
    assert!(
        line.contains("create 9"),
        "information is not printed: {line}"
    );
    let mut daemon = Logged::new("priority", true, &[]);
    daemon.client().write("control", "create web").unwrap();
    assert!(daemon.line().starts_with("<6>gctd: written "));
}

#[test]
fn collectors_get_objects() {
    let mut daemon = Logged::new("json", true, &["--log-format", "json"]);
    let admin = daemon.client();
    admin.write("control", "create web").unwrap();
    admin.write("control", "create \"x\"\n{}").unwrap_err();
    let first: Value = serde_json::from_str(&daemon.line()).unwrap();
    assert_eq!(first["level"], "INFO");
    assert_eq!(first["message"], "written");
    assert_eq!(first["path"], "control");
    assert_eq!(first["value"], "create web");
    assert_eq!(first["pid"], std::process::id());
    let time = first["timestamp"].as_str().unwrap();
    assert!(time.starts_with("20") && time.ends_with('Z'), "{time}");
    let second: Value = serde_json::from_str(&daemon.line()).unwrap();
    assert_eq!(second["level"], "WARN");
    assert_eq!(second["value"], "create \"x\"\n{}");
}

#[test]
fn nobody_waits_for_a_reader_of_messages() {
    // More than fits in a pipe.
    let daemon = Logged::new("unread", false, &[]);
    let admin = daemon.client();
    for _ in 0..2000 {
        admin.write("control", "create 9").unwrap_err();
    }
    admin.write("control", "create web").unwrap();
}

#[test]
fn what_ends_the_daemon_is_printed() {
    let mut daemon = Logged::new("first", false, &[]);
    let again = Command::new(env!("CARGO_BIN_EXE_gctd"))
        .args(["--gpus", "/nowhere", "--dir"])
        .arg(&daemon.directory)
        .env_remove("JOURNAL_STREAM")
        .output()
        .unwrap();
    assert_eq!(again.status.code(), Some(1));
    let printed = String::from_utf8(again.stderr).unwrap();
    assert!(printed.starts_with("gctd: cannot listen in "), "{printed}");
    let pid = daemon.child.id().to_string();
    Command::new("kill").arg(&pid).status().unwrap();
    assert!(daemon.child.wait().unwrap().success(), "SIGTERM stops it");
}
