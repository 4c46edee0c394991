// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A daemon in a process of its own, which can be killed and started again.
//!
//! Where the tests run as root it has a user of its own and no capability: what it does for all
//! users needs neither.

use super::copy_program;
use gctd::testing::{Client, TPCS};
use gctd_ipc::paths::SocketPaths;
use rustix::process::{geteuid, kill_process, setrlimit, Pid, Resource, Rlimit, Signal};
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{chown, lchown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// The daemon.
pub(crate) struct Process {
    child: Option<Child>,
    /// Its user and its group.
    pub(crate) user: u32,
    /// The descriptors that it may have open, and in flight.
    fds: Option<u64>,
    pub(crate) directory: PathBuf,
}

impl Process {
    /// Starts one with a number of GPUs.
    pub(crate) fn start(name: &str, gpus: usize) -> Self {
        Self::with_descriptors(name, gpus, None)
    }

    /// Starts one that may have so many descriptors.
    pub(crate) fn with_descriptors(name: &str, gpus: usize, fds: Option<u64>) -> Self {
        static USERS: AtomicU32 = AtomicU32::new(0);
        let others = 3 * std::process::id() + USERS.fetch_add(1, Ordering::Relaxed);
        let user = match geteuid().is_root() {
            true => 20_000 + others % 40_000,
            false => geteuid().as_raw(),
        };
        let directory = std::env::temp_dir().join(format!("gctd-{name}-{}", std::process::id()));
        let mut daemon = Self {
            child: None,
            user,
            fds,
            directory,
        };
        (0..gpus).for_each(|gpu| daemon.add_gpu(gpu));
        fs::create_dir_all(daemon.run()).unwrap();
        // That user may not enter the folder in which the program was built.
        copy_program(env!("CARGO_BIN_EXE_gctd"), &daemon.directory.join("gctd"));
        daemon.again();
        daemon
    }

    pub(crate) fn gpu(&self, gpu: usize) -> PathBuf {
        self.directory.join(format!("gpus/0000:0{gpu}:00.0"))
    }

    pub(crate) fn add_gpu(&self, gpu: usize) {
        fs::create_dir_all(self.gpu(gpu)).unwrap();
        let text = format!("Bus Location: \t 0000:0{gpu}:00.0\nDevice Minor: \t {gpu}\n");
        fs::write(self.gpu(gpu).join("information"), text).unwrap();
    }

    /// Returns the daemon's own directory.
    fn run(&self) -> PathBuf {
        self.directory.join("run")
    }

    pub(crate) fn kept(&self) -> PathBuf {
        self.run().join("kept")
    }

    pub(crate) fn paths(&self) -> SocketPaths {
        SocketPaths::of(&self.run())
    }

    /// Returns a client of the tree.
    pub(crate) fn client(&self) -> Client {
        Client::new(&self.paths().admin)
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(self.child.as_ref().unwrap())
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.directory.join("log")).unwrap()
    }

    /// Starts it again, and first gives it its directory, as systemd does.
    pub(crate) fn again(&mut self) {
        give(&self.run(), self.user);
        let mut command = Command::new(self.directory.join("gctd"));
        command
            .args(["--tpcs", TPCS, "--gpus"])
            .arg(self.directory.join("gpus"))
            .arg("--dir")
            .arg(self.run())
            .stdout(Stdio::piped())
            .stderr(File::create(self.directory.join("log")).unwrap());
        if geteuid().is_root() {
            // This also empties the list of groups, and a user other than root has no capability.
            command.gid(self.user).uid(self.user);
        }
        if let Some(fds) = self.fds {
            let limited = move || {
                let (current, maximum) = (Some(fds), Some(fds));
                Ok(setrlimit(Resource::Nofile, Rlimit { current, maximum })?)
            };
            // SAFETY: one system call between fork and exec.
            unsafe { command.pre_exec(limited) };
        }
        let mut child = command.spawn().unwrap();
        let mut said = BufReader::new(child.stdout.take().unwrap());
        said.read_line(&mut String::new()).unwrap();
        self.child = Some(child);
    }

    pub(crate) fn kill(&mut self) {
        self.end(Signal::KILL);
    }

    pub(crate) fn restart(&mut self) {
        self.kill();
        self.again();
    }

    fn end(&mut self, signal: Signal) {
        if let Some(mut child) = self.child.take() {
            let _ = kill_process(Pid::from_child(&child), signal);
            let _ = child.wait();
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end(Signal::TERM);
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// Gives a directory, and what is in it, to a user.
fn give(path: &Path, user: u32) {
    if !geteuid().is_root() {
        return;
    }
    chown(path, Some(user), Some(user)).unwrap();
    for entry in fs::read_dir(path).unwrap() {
        let entry = entry.unwrap();
        match entry.file_type().unwrap().is_dir() {
            true => give(&entry.path(), user),
            false => lchown(entry.path(), Some(user), Some(user)).unwrap(),
        }
    }
}
