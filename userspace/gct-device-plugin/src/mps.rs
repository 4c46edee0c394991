// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Starts and watches the MPS control daemon of each GPU whose profiles share it side by side.
//!
//! ```text
//! <folder>/gpu<index>/pipe    a tmpfs: the daemon's sockets; its containers have them, too
//! <folder>/gpu<index>/shm     a tmpfs: /dev/shm of the daemon and of its containers
//! <folder>/gpu<index>/log     what the daemon writes
//! ```
//!
//! A daemon lives as long as it answers a question within [`ANSWER_WAIT`]. One that does not is
//! ended and started anew, at once the first time and then with a growing delay. A daemon outlives
//! the plugin, because containers do. A plugin that starts keeps a daemon that answers.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use gct_client::mps;
use rustix::mount::MountFlags;
use rustix::process::{kill_process, test_kill_process, Pid, Signal};

/// Most time until a daemon answers, or has started.
const ANSWER_WAIT: Duration = Duration::from_secs(3);
const POLL: Duration = Duration::from_millis(10);
/// Delay before the second start in a row, doubled up to the longest for each further one.
const DELAY: Duration = Duration::from_secs(1);
const DELAY_MAX: Duration = Duration::from_secs(60);

/// The variable that names a daemon's pipe directory.
const PIPE: &str = mps::PIPE.0;
/// What the kernel shows of the names of NVIDIA's programs: the first 15 bytes.
const COMM: &[u8] = b"nvidia-cuda-mps";
/// What all tenants of the GPU can fill of the host's memory, as options of a tmpfs.
const PIPE_SIZE: &CStr = c"mode=0755,size=4m,nr_inodes=4096";
const SHM_SIZE: &CStr = c"mode=1777,size=256m";

/// Executes $2 in a mount namespace of its own, whose /dev/shm is $1.
const ENTER: &str = r#"mount --bind "$1" /dev/shm && exec "$2" -d"#;

/// Where the daemons are, and the program that starts and asks them.
#[derive(Clone, Debug)]
pub struct Control {
    /// `nvidia-cuda-mps-control`.
    pub program: PathBuf,
    /// The folder of all daemons.
    pub folder: PathBuf,
    /// What all daemons have as `/dev/shm` already: then nothing is mounted.
    pub shm: Option<PathBuf>,
}

impl Control {
    fn directory(&self, gpu: u32) -> PathBuf {
        self.folder.join(format!("gpu{gpu}"))
    }

    /// Returns the directory of a daemon's sockets.
    pub fn pipe(&self, gpu: u32) -> PathBuf {
        self.directory(gpu).join("pipe")
    }

    /// Returns what a daemon has as `/dev/shm`.
    pub fn shm(&self, gpu: u32) -> PathBuf {
        let own = || self.directory(gpu).join("shm");
        self.shm.clone().unwrap_or_else(own)
    }

    fn log(&self, gpu: u32) -> PathBuf {
        self.directory(gpu).join("log")
    }

    /// Returns a command with the daemon's environment.
    fn command(&self, gpu: u32, program: &Path) -> Command {
        let mut command = Command::new(program);
        command
            .env(PIPE, self.pipe(gpu))
            .env("CUDA_MPS_LOG_DIRECTORY", self.log(gpu))
            // The tree numbers GPUs in this order, too.
            .env("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
            .env("CUDA_VISIBLE_DEVICES", gpu.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command
    }

    /// Returns the daemon of a GPU as one that is asked about its clients.
    pub fn asked(&self, gpu: u32) -> mps::Control {
        mps::Control {
            program: self.program.clone(),
            pipe: self.pipe(gpu),
        }
    }

    /// Returns whether the daemon of a GPU answers.
    pub fn answers(&self, gpu: u32) -> bool {
        if !self.asked(gpu).exists() {
            return false;
        }
        let mut command = self.command(gpu, &self.program);
        let asked = command.stdin(Stdio::piped()).spawn().and_then(|mut child| {
            if let Some(mut input) = child.stdin.take() {
                let _ = input.write_all(mps::QUESTION.as_bytes());
            }
            wait(child)
        });
        asked.is_ok_and(|status| status.success())
    }

    /// Starts the daemon of a GPU and waits until it answers.
    fn start(&self, gpu: u32) -> Result<()> {
        for directory in [self.pipe(gpu), self.log(gpu), self.shm(gpu)] {
            fs::create_dir_all(&directory)
                .with_context(|| format!("{} cannot be made", directory.display()))?;
        }
        if self.shm.is_none() {
            mount(&self.pipe(gpu), PIPE_SIZE)?;
            mount(&self.shm(gpu), SHM_SIZE)?;
        }
        self.end(gpu);
        empty(&self.pipe(gpu)).context("its pipe directory cannot be emptied")?;
        let log = self.log(gpu).join("start.log");
        let mut command = match &self.shm {
            Some(_) => {
                let mut command = self.command(gpu, &self.program);
                command.arg("-d");
                command
            }
            None => self.in_namespace(gpu),
        };
        let child = command.stderr(File::create(&log)?).spawn();
        let child = child.with_context(|| format!("{} cannot run", self.program.display()))?;
        let status = wait(child).context("it did not start in time")?;
        ensure!(status.success(), "{status}; see {}", log.display());
        let started = Instant::now();
        while !self.answers(gpu) {
            ensure!(started.elapsed() < ANSWER_WAIT, "it does not answer");
            thread::sleep(POLL);
        }
        Ok(())
    }

    /// Returns the command that starts a daemon with a `/dev/shm` of its own.
    fn in_namespace(&self, gpu: u32) -> Command {
        let mut command = self.command(gpu, Path::new("unshare"));
        command
            .args(["--mount", "--propagation", "slave", "sh", "-c", ENTER, "sh"])
            .arg(self.shm(gpu))
            .arg(&self.program);
        command
    }

    /// Kills a daemon that is there and does not answer, with its servers.
    fn end(&self, gpu: u32) {
        let pids: Vec<Pid> = processes(&self.pipe(gpu)).collect();
        for pid in &pids {
            let _ = kill_process(*pid, Signal::KILL);
        }
        let killed = Instant::now();
        let lives = |pid: &Pid| test_kill_process(*pid).is_ok();
        while killed.elapsed() < ANSWER_WAIT && pids.iter().any(lives) {
            thread::sleep(POLL);
        }
    }
}

/// Returns the processes of NVIDIA's programs whose environment names a pipe directory.
///
/// Containers can write to that directory, so the daemon's pid file there is no witness. A program
/// of theirs that takes such a name and such an environment has itself killed.
fn processes(pipe: &Path) -> impl Iterator<Item = Pid> {
    let wanted = [PIPE.as_bytes(), b"=", pipe.as_os_str().as_bytes()].concat();
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    all.filter_map(move |process| {
        let pid = process.file_name().to_str()?.parse().ok()?;
        let comm = fs::read(process.path().join("comm")).ok()?;
        if !comm.starts_with(COMM) {
            return None;
        }
        let environment = fs::read(process.path().join("environ")).ok()?;
        let mut variables = environment.split(|byte| *byte == 0);
        variables.find(|variable| *variable == wanted)?;
        Pid::from_raw(pid)
    })
}

/// Mounts a tmpfs at a directory where containers can write, unless it is one. The host follows no
/// link there: the daemon would write through it, with the rights of the host's root.
fn mount(directory: &Path, size: &CStr) -> Result<()> {
    let failed = || format!("no tmpfs could be mounted at {}", directory.display());
    let is_mounted = || -> io::Result<bool> {
        let above = directory.parent().unwrap_or(directory);
        Ok(fs::metadata(directory)?.dev() != fs::metadata(above)?.dev())
    };
    if is_mounted().with_context(failed)? {
        return Ok(());
    }
    let flags =
        MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC | MountFlags::NOSYMFOLLOW;
    rustix::mount::mount("gct-mps", directory, "tmpfs", flags, size).with_context(failed)
}

/// Removes what is in a directory where containers can write: a daemon could find something else
/// than one has left. The directory stays, because containers have mounted it.
fn empty(directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let removed = match entry.file_type()?.is_dir() {
            true => fs::remove_dir_all(entry.path()),
            false => fs::remove_file(entry.path()),
        };
        match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Waits for a program that must end within [`ANSWER_WAIT`].
fn wait(mut child: Child) -> io::Result<ExitStatus> {
    let started = Instant::now();
    while started.elapsed() < ANSWER_WAIT {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        thread::sleep(POLL);
    }
    let _ = child.kill();
    let _ = child.wait();
    Err(io::ErrorKind::TimedOut.into())
}

/// When a daemon that died may start again.
#[derive(Clone, Debug)]
struct Retry {
    at: Instant,
    delay: Duration,
    /// Why the last start failed.
    error: Option<String>,
}

/// Watches the daemons.
#[derive(Debug)]
pub struct Watch {
    control: Arc<Control>,
    retries: BTreeMap<u32, Retry>,
}

impl Watch {
    /// Returns a watch that has seen no daemon yet.
    pub fn new(control: Arc<Control>) -> Self {
        Self {
            control,
            retries: BTreeMap::new(),
        }
    }

    /// Makes sure that a GPU has a daemon that answers.
    ///
    /// # Errors
    ///
    /// Says why it has none. The GPU cannot be used then.
    pub fn keep(&mut self, gpu: u32) -> Result<()> {
        let now = Instant::now();
        if self.control.answers(gpu) {
            // One that has answered for as long as its next delay has not died in a row.
            self.retries
                .retain(|index, retry| *index != gpu || now < retry.at + retry.delay);
            return Ok(());
        }
        let last = self.retries.get(&gpu);
        if let Some(retry) = last.filter(|retry| now < retry.at) {
            // The same each time, so that it is logged once.
            bail!(
                "{}",
                retry
                    .error
                    .as_deref()
                    .unwrap_or("its MPS daemon died again")
            );
        }
        let delay = last.map_or(DELAY, |retry| (retry.delay * 2).min(DELAY_MAX));
        let started = self.control.start(gpu).context("its MPS daemon");
        let error = started.as_ref().err().map(|error| format!("{error:#}"));
        let at = now + delay;
        self.retries.insert(gpu, Retry { at, delay, error });
        started
    }
}
