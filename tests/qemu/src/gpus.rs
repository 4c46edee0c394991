// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Starts the software GPUs, one process each.

use crate::child::OwnedChild;
use anyhow::{bail, Context};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use std::{fs, thread};

/// Time limit for a server to listen.
const START_LIMIT: Duration = Duration::from_secs(60);

/// Time limit for a server to exit after the machine is gone.
const STOP_LIMIT: Duration = Duration::from_secs(5);

/// The most lines of a log that a message repeats.
const LAST_LINES: usize = 10;

/// A running server.
#[derive(Debug)]
struct Gpu {
    server: OwnedChild,
    socket: PathBuf,
    log: PathBuf,
}

/// The GPUs of one machine.
#[derive(Debug, Default)]
pub(crate) struct Gpus(Vec<Gpu>);

impl Gpus {
    /// Starts `count` servers with their sockets and logs in `directory`, and waits until each
    /// listens. All record into the same file and get the same further arguments.
    pub(crate) fn start(
        program: &Path,
        count: u8,
        directory: &Path,
        record: Option<&Path>,
        arguments: &[String],
    ) -> anyhow::Result<Self> {
        let mut gpus = Self::default();
        for index in 0..count {
            let socket = directory.join(format!("gpu{index}.sock"));
            let log = directory.join(format!("gpu{index}.log"));
            let mut command = Command::new(program);
            command
                .arg("--socket")
                .arg(&socket)
                .arg("--slot-id")
                .arg(index.to_string())
                .arg("--log")
                .arg(&log)
                .args(arguments)
                .stdin(Stdio::null());
            if let Some(record) = record {
                command.arg("--record").arg(record);
            }
            let server = OwnedChild::spawn(&mut command)
                .with_context(|| format!("Cannot start {}", program.display()))?;
            gpus.0.push(Gpu {
                server,
                socket,
                log,
            });
        }
        for gpu in &mut gpus.0 {
            gpu.wait_until_it_listens()?;
        }
        Ok(gpus)
    }

    /// Returns the sockets, in the order of the GPUs.
    pub(crate) fn sockets(&self) -> impl Iterator<Item = &Path> {
        self.0.iter().map(|gpu| gpu.socket.as_path())
    }

    /// Waits until the servers have exited. Returns a message for each that has not, or has failed.
    pub(crate) fn stop(mut self) -> Vec<String> {
        let mut problems = Vec::new();
        for (index, gpu) in self.0.iter_mut().enumerate() {
            let problem = match gpu.server.wait_for(STOP_LIMIT) {
                Ok(Some(status)) if status.success() => continue,
                Ok(Some(status)) => format!("ended with {status}"),
                Ok(None) => "did not end with the machine".to_owned(),
                Err(error) => format!("cannot be waited for: {error}"),
            };
            problems.push(format!("fakegpu {index} {problem}{}", gpu.last_words()));
        }
        problems
    }
}

impl Gpu {
    fn wait_until_it_listens(&mut self) -> anyhow::Result<()> {
        let start = Instant::now();
        while !self.socket.exists() {
            if let Some(status) = self.server.wait_for(Duration::ZERO)? {
                bail!("fakegpu ended with {status}{}", self.last_words());
            }
            if start.elapsed() > START_LIMIT {
                bail!("fakegpu does not listen after {START_LIMIT:?}");
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Returns the end of the server's log, to append to a message.
    fn last_words(&self) -> String {
        let lines = last_lines(&self.log).into_iter();
        lines.map(|line| format!("\n    {line}")).collect()
    }
}

/// Returns the last lines of a log, which tell where its writer was.
pub(crate) fn last_lines(log: &Path) -> Vec<String> {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    let last = lines[lines.len().saturating_sub(LAST_LINES)..].iter();
    last.map(|line| (*line).to_owned()).collect()
}
