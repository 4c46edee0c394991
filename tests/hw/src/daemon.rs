// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Starts gctd for the duration of a test.

use crate::kit::{Kit, RunEnv};
use anyhow::{ensure, Context, Result};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A running daemon, stopped on drop.
#[derive(Debug)]
pub struct Daemon {
    child: Child,
    directory: PathBuf,
    gctctl: PathBuf,
}

impl Daemon {
    /// Starts a daemon with the mask bits that have a TPC.
    ///
    /// # Errors
    ///
    /// If the daemon does not start.
    pub fn start(kit: &Kit, tpcs: &str) -> Result<Self> {
        let directory = std::env::temp_dir().join(format!("gctd-{}", std::process::id()));
        let admin = directory.join("admin.sock");
        let mut child = kit
            .command(&kit.path("gctd"), &RunEnv::native())
            .arg("--dir")
            .arg(&directory)
            .args(["--tpcs", tpcs])
            .stdin(Stdio::null())
            .spawn()
            .context("gctd cannot be started")?;
        for _ in 0..200 {
            if admin.exists() {
                break;
            }
            ensure!(child.try_wait()?.is_none(), "gctd has ended");
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(Self {
            child,
            directory,
            gctctl: kit.path("gctctl"),
        })
    }

    /// Creates a group.
    ///
    /// # Errors
    ///
    /// Those of gctctl.
    pub fn create(&self, name: &str) -> Result<()> {
        self.gctctl(&["create", name])?;
        Ok(())
    }

    /// Sets a limit of a group on the first GPU.
    ///
    /// # Errors
    ///
    /// Those of gctctl.
    pub fn set(&self, group: &str, file: &str, value: &str) -> Result<()> {
        self.gctctl(&["set", &format!("{group}/0"), &format!("{file}={value}")])?;
        Ok(())
    }

    /// Reads a file of a group on the first GPU.
    ///
    /// # Errors
    ///
    /// Those of gctctl.
    pub fn get(&self, group: &str, file: &str) -> Result<String> {
        self.gctctl(&["get", &format!("{group}/0"), file])
    }

    fn gctctl(&self, words: &[&str]) -> Result<String> {
        let mut command = Command::new(&self.gctctl);
        let output = command
            .arg("--dir")
            .arg(&self.directory)
            .args(words)
            .output()?;
        ensure!(
            output.status.success(),
            "gctctl {}: {}",
            words.join(" "),
            String::from_utf8_lossy(&output.stderr).trim()
        );
        Ok(String::from_utf8_lossy(&output.stdout).into())
    }

    /// Returns the environment of a program in a group of this daemon, with the options of `gctctl
    /// run`.
    pub fn group(&self, name: &str, options: &str) -> RunEnv {
        let mut words = vec![
            self.gctctl.display().to_string(),
            "--dir".into(),
            self.directory.display().to_string(),
            "run".into(),
            "--group".into(),
            name.into(),
        ];
        words.extend(options.split_whitespace().map(String::from));
        words.push("--".into());
        RunEnv::native().behind(words)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // It may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
