// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The plugin's program in front of an OCI runtime, beside a daemon that stands in for NVIDIA's:
//! what is killed is taken from its MPS server before, and nothing keeps the runtime from killing.

#[allow(
    dead_code,
    unused_imports,
    reason = "not every test program needs all of it"
)]
mod common;

use std::fs::{self, Permissions};
use std::os::unix::fs::{symlink, PermissionsExt};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use common::{Behaviour, Kubelet, Node};
use rustix::process::{kill_process, Signal};

const PROFILES: &str = "\
    [profile.side]\nslots = 2\ngpus = [0]\nshare = 'mps'\n\
    [profile.turns]\nslots = 2\ngpus = [1]\n";

/// Writes down how it was called and who was terminated before, and fails.
const RUNC: &str = r#"#!/bin/sh
cd "${0%/*}"
{ printf '[%s]' "$@"; echo; cat mps/gpu0/log/terminated 2>/dev/null; } >called
exit 77
"#;

/// A node with a runtime, an MPS daemon, and clients of it. All end with it.
struct Machine {
    node: Node,
    clients: Vec<Child>,
}

impl Machine {
    /// Makes a machine with the containers 1 and 2 under MPS, and 3 by turns.
    async fn new(test: &str) -> Self {
        let mut node = Node::new(&format!("runtime-{test}"), PROFILES);
        node.install_mps();
        let kubelet = Kubelet::start(&node.kubelet_folder(), Behaviour::Proper);
        node.start_plugin();
        for (n, profile) in [(1, "side"), (2, "side"), (3, "turns")] {
            let profile = format!("gctgroup.dev/{profile}");
            kubelet.until_healthy(&profile, 2).await;
            let (_, devices) = kubelet.admit(&profile, 1).await.unwrap();
            assert!(node.create(n, &devices));
        }
        let runc = node.folder.join("runc");
        fs::write(&runc, RUNC).unwrap();
        fs::set_permissions(&runc, Permissions::from_mode(0o755)).unwrap();
        Self {
            node,
            clients: Vec::new(),
        }
    }

    /// Starts a client in a cgroup, and returns its pid.
    fn client(&mut self, cgroup: &str) -> u32 {
        let client = Command::new("sleep").arg("600").spawn().unwrap();
        let pid = client.id();
        let process = self.node.folder.join(format!("proc/{pid}"));
        fs::create_dir_all(&process).unwrap();
        fs::write(process.join("cgroup"), format!("0::{cgroup}\n")).unwrap();
        self.clients.push(client);
        let pids = self
            .clients
            .iter()
            .map(|client| format!("{}\n", client.id()));
        let clients = self.node.folder.join("mps/gpu0/log/clients");
        fs::write(clients, pids.collect::<String>()).unwrap();
        pid
    }

    fn command(&self, arguments: &str) -> Command {
        let path = |name: &str| self.node.folder.join(name);
        let mut command = Command::new(env!("CARGO_BIN_EXE_gct-device-plugin"));
        command.args(["runtime", "--patience", "2"]);
        for (option, value) in [
            ("--state", path("state")),
            ("--proc", path("proc")),
            ("--cgroups", path("cgroups")),
            ("--mps", path("mps")),
            ("--mps-control", path("nvidia-cuda-mps-control")),
            ("--runtime", path("runc")),
        ] {
            command.arg(option).arg(value);
        }
        command.arg("--").args(arguments.split(' '));
        command
    }

    /// Calls the runtime, which must be executed as it was called. Returns what had been done
    /// before that, and what the program said.
    fn runtime(&self, arguments: &str) -> (String, String) {
        let called = self.node.folder.join("called");
        let _ = fs::remove_file(&called);
        let said = said(&self.command(arguments).output().unwrap());
        let called = fs::read_to_string(called).unwrap();
        let (seen, before) = called.split_once('\n').unwrap();
        let words = arguments.split(' ').map(|word| format!("[{word}]"));
        assert_eq!(seen, words.collect::<String>());
        (before.to_owned(), said)
    }
}

/// Returns what the program said. It ends as the runtime does.
fn said(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(77));
    String::from_utf8_lossy(&output.stderr).into_owned()
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.node.end_plugin();
        if let Some(pid) = self.node.mps_daemon(0) {
            let _ = kill_process(pid, Signal::KILL);
        }
        for client in &mut self.clients {
            let _ = client.kill();
            let _ = client.wait();
        }
    }
}

#[tokio::test]
async fn a_container_is_taken_from_its_server_before_it_is_killed() {
    let mut machine = Machine::new("kill").await;
    let own = machine.client("/kubepods/c1");
    let below = machine.client("/kubepods/c1/worker");
    for other in ["/kubepods/c2", "/kubepods/c10", "/kubepods", "/"] {
        machine.client(other);
    }
    for harmless in [
        "kill c1 15",
        "kill --all c1 TERM",
        "delete c1",
        "state c1",
        "kill c3 9",
        "kill nobody 9",
        "start c1",
    ] {
        assert_eq!(machine.runtime(harmless).0, "", "{harmless}");
    }
    // gctd is not needed, nor the plugin.
    machine.node.daemon.stop();
    machine.node.end_plugin();
    let (before, said) = machine.runtime("--root /run/runc --log-format json kill --all c1 9");
    assert_eq!(before, format!("{own} lives\n{below} lives\n"));
    assert_eq!(said, "");
    fs::remove_file(machine.node.folder.join("mps/gpu0/log/terminated")).unwrap();
    let (before, _) = machine.runtime("delete --force c2");
    assert_eq!(before.lines().count(), 1, "{before}");
}

#[tokio::test]
async fn nothing_keeps_a_container_from_being_killed() {
    let mut machine = Machine::new("hangs").await;
    let own = machine.client("/kubepods/c1");
    machine.node.end_plugin();
    let logs = machine.node.folder.join("mps/gpu0/log");
    fs::write(logs.join("hangs"), "").unwrap();
    let start = Instant::now();
    let (before, said) = machine.runtime("kill c1 9");
    assert!(start.elapsed() < Duration::from_secs(4));
    assert_eq!(before, "");
    let says = "container c1 is killed, and others may end";
    assert!(said.contains(says), "{said}");
    // The daemon has died, and left its socket.
    kill_process(machine.node.mps_daemon(0).unwrap(), Signal::KILL).unwrap();
    let (_, said) = machine.runtime("kill c1 9");
    let says = "Cannot find MPS control daemon process";
    assert!(said.contains(says), "{said}");
    // Nobody reads what it says.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let status = machine.command("kill c1 9").stderr(writer).status();
    assert_eq!(status.unwrap().code(), Some(77));
    // There is none, as without MPS.
    fs::remove_file(machine.node.folder.join("mps/gpu0/pipe/control")).unwrap();
    assert_eq!(machine.runtime("kill c1 9").1, "");
    // Records that are none, or are being written.
    fs::write(machine.node.folder.join("state/broken.json"), "{").unwrap();
    machine.runtime("kill c1 9");
    fs::remove_dir_all(machine.node.folder.join("state")).unwrap();
    machine.runtime("kill c1 9");
    assert!(!logs.join("terminated").exists(), "{own}");
}

/// Two callers at once: each tells the daemon, or finds that nobody is left, and both go on.
#[tokio::test]
async fn two_callers_stop_a_container_at_once() {
    let mut machine = Machine::new("twice").await;
    let own = machine.client("/kubepods/c1");
    let called = [(); 2].map(|()| {
        let mut command = machine.command("kill c1 9");
        command.stderr(Stdio::piped()).spawn().unwrap()
    });
    for one in called {
        assert_eq!(said(&one.wait_with_output().unwrap()), "");
    }
    let terminated = machine.node.file("mps/gpu0/log/terminated");
    let named = format!("{own} lives");
    assert!(terminated.lines().all(|line| line == named), "{terminated}");
}

#[tokio::test]
async fn the_program_is_the_runtime_by_its_name() {
    let machine = Machine::new("name").await;
    let folder = &machine.node.folder;
    symlink(
        env!("CARGO_BIN_EXE_gct-device-plugin"),
        folder.join("gct-runc"),
    )
    .unwrap();
    let status = Command::new(folder.join("gct-runc"))
        .args(["--version", "serve"])
        .env("PATH", format!("{}:/usr/bin:/bin", folder.display()))
        .status();
    assert_eq!(status.unwrap().code(), Some(77));
    assert_eq!(machine.node.file("called"), "[--version][serve]\n");
}
