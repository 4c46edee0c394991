// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Runs the plugin on a daemon without a GPU, beside a kubelet and a runtime that are made up.

mod api_server;
mod kubelet;
mod nri;
mod runtime;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use gctd::testing::Daemon;
use rustix::process::Pid;

pub(crate) use api_server::ApiServer;
pub(crate) use kubelet::{Behaviour, Kubelet};
pub(crate) use nri::{pod, Runtime};

/// Most time until something happens that must happen.
pub(crate) const WAIT: Duration = Duration::from_secs(20);

const PLUGIN: &str = env!("CARGO_BIN_EXE_gct-device-plugin");

/// A node with two GPUs: their daemon, and the folders of the plugin, the kubelet and the runtime.
pub(crate) struct Node {
    pub(crate) daemon: Daemon,
    pub(crate) folder: PathBuf,
    /// More arguments of the plugin.
    pub(crate) arguments: Vec<String>,
    plugin: Option<Child>,
}

impl Node {
    /// Makes a node whose plugin does not run yet.
    pub(crate) fn new(test: &str, profiles: &str) -> Self {
        Self::on(Daemon::new(&format!("dp-{test}"), 2), profiles)
    }

    /// Makes a node on a daemon with two GPUs.
    pub(crate) fn on(daemon: Daemon, profiles: &str) -> Self {
        let folder = daemon.directory.join("node");
        for path in [
            "kubelet/device-plugins",
            "kubelet/pod-resources",
            "dev",
            "cgroups",
        ] {
            fs::create_dir_all(folder.join(path)).unwrap();
        }
        for path in [
            "dev/nvidia0",
            "dev/nvidia1",
            "dev/nvidiactl",
            "dev/nvidia-uvm",
            "cgroups/cgroup.controllers",
        ] {
            fs::write(folder.join(path), "").unwrap();
        }
        fs::write(folder.join("profiles.toml"), profiles).unwrap();
        Self {
            daemon,
            folder,
            arguments: Vec::new(),
            plugin: None,
        }
    }

    /// Installs a driver whose NVML is `tests/nvml.c`, before the plugin starts. Returns where that
    /// is told what to say.
    pub(crate) fn install_nvml(&self) -> PathBuf {
        let libraries = self.folder.join("driver/usr/lib64");
        let [told, version] = ["nvml", "proc/driver/nvidia"].map(|path| self.folder.join(path));
        for folder in [&libraries, &told, &version] {
            fs::create_dir_all(folder).unwrap();
        }
        fs::write(version.join("version"), "NVRM version: 580.65.06\n").unwrap();
        fs::write(libraries.join("libcuda.so.580.65.06"), "").unwrap();
        let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
        let made = Command::new(compiler)
            .args(["-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-o"])
            .arg(libraries.join("libnvidia-ml.so.580.65.06"))
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/nvml.c"))
            .status();
        assert!(made.unwrap().success());
        told
    }

    /// Installs what stands in for `nvidia-cuda-mps-control`.
    pub(crate) fn install_mps(&self) {
        // The plugin knows a daemon by its name.
        let example = PathBuf::from(PLUGIN).with_file_name("examples/mps-control");
        // Another program copies it: what this one has open to write is open in every child that
        // another test is forking, too, and no program runs while somebody can write to it.
        let named = self.folder.join("nvidia-cuda-mps-control");
        let copied = Command::new("cp").arg(&example).arg(named).status();
        let is_built = copied.unwrap().success();
        assert!(
            is_built,
            "build it: cargo build -p gct-device-plugin --example mps-control"
        );
    }

    /// Returns the process of a GPU's MPS daemon.
    pub(crate) fn mps_daemon(&self, gpu: u32) -> Option<Pid> {
        let pipe = self.folder.join(format!("mps/gpu{gpu}/pipe"));
        let path = pipe.join("nvidia-cuda-mps-control.pid");
        // A test puts other things there.
        path.symlink_metadata().ok().filter(fs::Metadata::is_file)?;
        Pid::from_raw(fs::read_to_string(path).ok()?.parse().ok()?)
    }

    pub(crate) fn kubelet_folder(&self) -> PathBuf {
        self.folder.join("kubelet")
    }

    /// Returns the command that starts the plugin.
    pub(crate) fn command(&self) -> Command {
        let path = |name: &str| self.folder.join(name);
        let mut command = Command::new(PLUGIN);
        command.arg("serve").args([
            "--interval",
            "0.2",
            "--preload",
            "/usr/lib/libgct_preload.so",
        ]);
        for (option, value) in [
            ("--profiles", path("profiles.toml")),
            ("--kubelet", path("kubelet")),
            ("--cdi", path("cdi")),
            ("--devices", path("dev")),
            ("--sys", path("sys")),
            ("--driver-root", path("driver")),
            ("--state", path("state")),
            ("--proc", path("proc")),
            ("--cgroups", path("cgroups")),
            ("--mps", path("mps")),
            ("--mps-shm", path("shm")),
            ("--mps-control", path("nvidia-cuda-mps-control")),
            ("--nri", path("nri.sock")),
            ("--dir", self.daemon.directory.clone()),
        ] {
            command.arg(option).arg(value);
        }
        command.args(&self.arguments);
        command.env("FAKE_NVML", path("nvml"));
        command
    }

    /// Starts the plugin, which writes its messages to the node's file `plugin.log`.
    pub(crate) fn start_plugin(&mut self) {
        assert!(self.plugin.is_none());
        let log = fs::File::create(self.folder.join("plugin.log")).unwrap();
        self.plugin = Some(self.command().stderr(log).spawn().unwrap());
    }

    /// Kills the plugin without a chance to clean up.
    pub(crate) fn kill_plugin(&mut self) {
        let mut plugin = self.plugin.take().unwrap();
        plugin.kill().unwrap();
        plugin.wait().unwrap();
    }

    /// Kills the plugin if it runs.
    pub(crate) fn end_plugin(&mut self) {
        if self.plugin.is_some() {
            self.kill_plugin();
        }
    }

    /// Returns the content of a file of the node.
    pub(crate) fn file(&self, path: &str) -> String {
        fs::read_to_string(self.folder.join(path)).unwrap()
    }

    /// Asks the plugin to stop, and returns whether it succeeded.
    pub(crate) fn stop_plugin(&mut self) -> bool {
        let mut plugin = self.plugin.take().unwrap();
        let pid = plugin.id().to_string();
        assert!(Command::new("kill")
            .args(["-TERM", &pid])
            .status()
            .unwrap()
            .success());
        plugin.wait().unwrap().success()
    }

    /// Returns the groups of the tree.
    pub(crate) fn groups(&self) -> Vec<String> {
        let names = self.daemon.client().list("").unwrap();
        let mut groups: Vec<String> = names
            .iter()
            .filter_map(|name| name.strip_suffix('/'))
            .filter(|name| *name != "gpus")
            .map(str::to_owned)
            .collect();
        groups.sort();
        groups
    }

    pub(crate) fn read(&self, path: &str) -> String {
        self.daemon
            .client()
            .read(path)
            .unwrap()
            .trim_end()
            .to_owned()
    }

    pub(crate) fn endpoint(&self, profile: &str) -> PathBuf {
        self.kubelet_folder()
            .join(format!("device-plugins/gctgroup-{profile}.sock"))
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(mut plugin) = self.plugin.take() {
            let _ = plugin.kill();
            let _ = plugin.wait();
        }
    }
}

/// Waits until something is so, while the kubelet goes on.
#[track_caller]
pub(crate) fn until(what: &str, is_so: impl Fn() -> bool) -> impl std::future::Future<Output = ()> {
    let place = std::panic::Location::caller();
    let what = what.to_owned();
    async move {
        let started = Instant::now();
        while !is_so() {
            assert!(started.elapsed() < WAIT, "{place}: not yet: {what}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// Removes every file of a folder, as a starting kubelet does.
pub(crate) fn empty(folder: &Path) {
    for entry in fs::read_dir(folder).unwrap() {
        let _ = fs::remove_file(entry.unwrap().path());
    }
}
