// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A daemon with a library in place of NVML (`tests/nvml.c`). No GPU is touched.

use gctd::testing::Client;
use gctd_ipc::paths::SocketPaths;
use rustix::process::{kill_process, Pid, Signal};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A daemon with one GPU, and the library.
pub(crate) struct Daemon {
    pub(crate) directory: PathBuf,
    child: Child,
}

/// What a daemon finds in place of NVML.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Library {
    /// One that can do all.
    Whole,
    /// One of before r615.
    Old,
    /// A file that keeps a real one from being loaded.
    Broken,
}

/// Compiles the library into a directory.
fn compile(directory: &Path, library: Library) {
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let made = Command::new(compiler)
        .args(["-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(directory.join("libnvidia-ml.so.1"))
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/nvml.c"))
        .args((library == Library::Old).then_some("-DOLD"))
        .status();
    assert!(made.unwrap().success());
}

impl Daemon {
    pub(crate) fn new(test: &str, options: &[&str]) -> Self {
        Self::with_library(test, options, Library::Whole)
    }

    pub(crate) fn with_library(test: &str, options: &[&str], library: Library) -> Self {
        let directory =
            std::env::temp_dir().join(format!("gctd-nvml-{test}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        let gpu = directory.join("gpus/0000:00:00.0");
        std::fs::create_dir_all(&gpu).unwrap();
        let text =
            "Model: test\nGPU UUID: GPU-00112233-4455-6677-8899-aabbccddeeff\nDevice Minor: 0\n";
        std::fs::write(gpu.join("information"), text).unwrap();
        match library {
            Library::Broken => {
                std::fs::write(directory.join("libnvidia-ml.so.1"), "none").unwrap();
            }
            _ => compile(&directory, library),
        }
        Self::in_directory(directory, options)
    }

    /// Starts a daemon where another one was.
    pub(crate) fn in_directory(directory: PathBuf, options: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_gctd"))
            .args(["--tpcs", "0-7", "--dir"])
            .arg(&directory)
            .arg("--gpus")
            .arg(directory.join("gpus"))
            .arg("--cgroups")
            .arg(directory.join("cgroups"))
            .args(options)
            .env("LD_LIBRARY_PATH", &directory)
            .env("FAKE_NVML", &directory)
            .env_remove("JOURNAL_STREAM")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let stdout = child.stdout.as_mut().unwrap();
        BufReader::new(stdout).read_line(&mut line).unwrap();
        assert!(line.starts_with("gctd: listening in "), "{line}");
        let daemon = Self { directory, child };
        daemon.has_contexts(&[std::process::id()]);
        daemon
    }

    pub(crate) fn client(&self) -> Client {
        Client::new(&SocketPaths::of(&self.directory).admin)
    }

    pub(crate) fn socket(&self) -> PathBuf {
        SocketPaths::of(&self.directory).tenants
    }

    /// Has the library say that these processes have contexts.
    pub(crate) fn has_contexts(&self, pids: &[u32]) {
        let text: String = pids.iter().map(|pid| format!("{pid}\n")).collect();
        // A reader finds the old text or the new one.
        let (new, path) = (self.directory.join("pids.new"), self.directory.join("pids"));
        std::fs::write(&new, text).unwrap();
        std::fs::rename(new, path).unwrap();
    }

    pub(crate) fn log(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.directory.join("log")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Ends it as systemd does. Returns its messages.
    pub(crate) fn end(&mut self) -> String {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::TERM).unwrap();
        assert!(self.child.wait().unwrap().success());
        let mut text = String::new();
        let stderr = self.child.stderr.as_mut().unwrap();
        stderr.read_to_string(&mut text).unwrap();
        text
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// Waits up to 60 seconds.
#[track_caller]
pub(crate) fn until(mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < Duration::from_secs(60), "it does not");
        std::thread::sleep(Duration::from_millis(20));
    }
}
