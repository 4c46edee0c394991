// SPDX-License-Identifier: GPL-2.0 OR MIT

//! GPUs that are shared side by side: the plugin beside a program that stands in for NVIDIA's
//! `nvidia-cuda-mps-control` (`examples/mps-control.rs`).

#[allow(
    dead_code,
    unused_imports,
    reason = "not every test program needs all of it"
)]
mod common;

use std::fs;
use std::os::unix::fs::symlink;
use std::process::{Child, Command};

use common::{until, Behaviour, Kubelet, Node};
use rustix::fs::{mknodat, FileType, Mode, CWD};
use rustix::process::{kill_process, test_kill_process, Pid, Signal};
use tonic::Code;

const PROFILES: &str = "\
    [profile.side]\nslots = 2\ngpus = [0]\nshare = 'mps'\ntpc.quota = 8\n\
    [profile.turns]\nslots = 2\ngpus = [1]\n";
const SIDE: &str = "gctgroup.dev/side";
const TURNS: &str = "gctgroup.dev/turns";

/// The process of a node's daemon.
fn daemon(node: &Node) -> Option<Pid> {
    node.mps_daemon(0)
}

fn signal(node: &Node, signal: Signal) {
    kill_process(daemon(node).unwrap(), signal).unwrap();
}

/// A node whose MPS daemon ends with it.
struct Machine(Node);

impl Machine {
    fn new(test: &str) -> Self {
        let node = Node::new(&format!("mps-{test}"), PROFILES);
        node.install_mps();
        Self(node)
    }

    async fn start(&mut self) -> Kubelet {
        let kubelet = Kubelet::start(&self.0.kubelet_folder(), Behaviour::Proper);
        self.0.start_plugin();
        kubelet.until_healthy(TURNS, 2).await;
        kubelet
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // First, or it starts a new one.
        self.0.end_plugin();
        if let Some(pid) = daemon(&self.0) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

#[tokio::test]
async fn a_gpu_under_mps_has_a_daemon_and_its_containers_have_it() {
    let mut machine = Machine::new("daemon");
    let kubelet = machine.start().await;
    kubelet.until_healthy(SIDE, 2).await;
    let node = &machine.0;
    assert_eq!(node.file("mps/gpu0/log/devices"), "0");
    assert!(!node.folder.join("mps/gpu1").exists());
    let (_, names) = kubelet.admit(SIDE, 1).await.unwrap();
    assert!(node.create(1, &names));
    assert_eq!(node.read("k8s_default_pod1_main_c1/0/tpc.quota"), "8");
    let edits = node.edits(&names[0]);
    assert_eq!(edits["env"][0], "CUDA_MPS_PIPE_DIRECTORY=/run/gctgroup/mps");
    let pipe = node.folder.join("mps/gpu0/pipe");
    assert_eq!(edits["mounts"][0]["hostPath"], pipe.to_str().unwrap());
    assert!(pipe.join("control").exists());
    let (_, names) = kubelet.admit(TURNS, 1).await.unwrap();
    assert!(node.edits(&names[0])["env"].is_null());
    // A program has one daemon.
    assert!(!node.create(1, &names));
    assert_eq!(node.groups(), ["k8s_default_pod1_main_c1"]);
}

#[tokio::test]
async fn a_daemon_that_dies_or_hangs_is_replaced() {
    let mut machine = Machine::new("dies");
    let kubelet = machine.start().await;
    kubelet.until_healthy(SIDE, 2).await;
    for end in [Signal::KILL, Signal::STOP] {
        let before = daemon(&machine.0);
        signal(&machine.0, end);
        until("another daemon", || daemon(&machine.0) != before).await;
        kubelet.until_healthy(SIDE, 2).await;
        let (devices, _) = kubelet.admit(SIDE, 1).await.unwrap();
        kubelet.free(SIDE, &devices);
    }
}

/// A daemon that the plugin does not know. Dropping it kills it.
struct Other(Child);

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Containers can write to the directory of the pid file.
#[tokio::test]
async fn a_pid_file_hangs_nothing_and_ends_nobody() {
    let mut machine = Machine::new("pid-file");
    let kubelet = machine.start().await;
    kubelet.until_healthy(SIDE, 2).await;
    let folder = machine.0.folder.clone();
    let pipe = folder.join("mps/gpu0/pipe");
    let file = pipe.join("nvidia-cuda-mps-control.pid");
    // The daemon of another GPU.
    let away = folder.join("away");
    fs::create_dir(&away).unwrap();
    let other = Command::new(folder.join("nvidia-cuda-mps-control"))
        .arg("-f")
        .env("CUDA_MPS_PIPE_DIRECTORY", &away)
        .env("CUDA_MPS_LOG_DIRECTORY", &away)
        .spawn();
    let mut other = Other(other.unwrap());
    let of_other = away.join("nvidia-cuda-mps-control.pid");
    until("the other daemon", || of_other.exists()).await;
    let fifo = || mknodat(CWD, &file, FileType::Fifo, Mode::RUSR, 0).unwrap();
    let endless = || symlink("/dev/zero", &file).unwrap();
    let elsewhere = || symlink(&of_other, &file).unwrap();
    let replacements: [&dyn Fn(); 3] = [&fifo, &endless, &elsewhere];
    for replace in replacements {
        let before = daemon(&machine.0).unwrap();
        fs::remove_file(&file).unwrap();
        replace();
        fs::create_dir_all(pipe.join("deep/er")).unwrap();
        kill_process(before, Signal::STOP).unwrap();
        let is_new = |pid: Option<Pid>| pid.is_some_and(|pid| pid != before);
        until("another daemon", || is_new(daemon(&machine.0))).await;
        kubelet.until_healthy(SIDE, 2).await;
        assert!(!pipe.join("deep").exists());
        assert!(test_kill_process(before).is_err(), "the old one is gone");
    }
    let named = fs::read_to_string(&of_other).unwrap();
    assert_eq!(named, other.0.id().to_string());
    assert!(other.0.try_wait().unwrap().is_none());
}

#[tokio::test]
async fn a_plugin_that_starts_again_keeps_the_daemon() {
    let mut machine = Machine::new("keeps");
    let kubelet = machine.start().await;
    kubelet.until_healthy(SIDE, 2).await;
    let before = daemon(&machine.0);
    machine.0.kill_plugin();
    kubelet.until_healthy(SIDE, 0).await;
    machine.0.start_plugin();
    kubelet.until_healthy(SIDE, 2).await;
    assert_eq!(daemon(&machine.0), before);
}

#[tokio::test]
async fn without_a_daemon_no_container_starts() {
    let mut machine = Machine::new("without");
    let program = machine.0.folder.join("nvidia-cuda-mps-control");
    let other = machine.0.folder.join("away");
    fs::rename(&program, &other).unwrap();
    let kubelet = machine.start().await;
    assert_eq!((kubelet.devices(SIDE), kubelet.healthy(SIDE).len()), (2, 0));
    fs::rename(&other, &program).unwrap();
    kubelet.until_healthy(SIDE, 2).await;
    // It dies, and a container comes before the plugin has seen it.
    fs::rename(&program, &other).unwrap();
    signal(&machine.0, Signal::KILL);
    let refused = kubelet.admit(SIDE, 1).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    kubelet.until_healthy(SIDE, 0).await;
    assert_eq!(kubelet.healthy(TURNS).len(), 2);
}
