// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Starts NVIDIA's MPS for the duration of a test.

use crate::kit::RunEnv;
use anyhow::{ensure, Context, Result};
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// A running MPS daemon, stopped on drop.
#[derive(Debug)]
pub struct Mps {
    folder: PathBuf,
}

impl Mps {
    /// Starts an MPS daemon in its own folder.
    ///
    /// # Errors
    ///
    /// If there is no MPS.
    pub fn start() -> Result<Self> {
        let folder = std::env::temp_dir().join(format!("gct-mps-{}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        let mps = Self { folder };
        let status = mps.control().arg("-d").status();
        ensure!(
            status.context("no nvidia-cuda-mps-control")?.success(),
            "MPS does not start"
        );
        Ok(mps)
    }

    /// Returns the variables by which a program finds this daemon.
    pub fn variables(&self) -> [(&'static str, String); 2] {
        let folder = self.folder.display().to_string();
        [
            ("CUDA_MPS_PIPE_DIRECTORY", folder.clone()),
            ("CUDA_MPS_LOG_DIRECTORY", folder),
        ]
    }

    /// Makes `env` a client of this daemon.
    pub fn client(&self, env: RunEnv) -> RunEnv {
        let variables = self.variables().into_iter();
        variables.fold(env, |env, (name, value)| env.with(name, value))
    }

    fn control(&self) -> Command {
        let mut command = Command::new("nvidia-cuda-mps-control");
        command.envs(self.variables());
        command
    }
}

impl Drop for Mps {
    fn drop(&mut self) {
        let child = self.control().stdin(Stdio::piped()).spawn();
        // A failure to stop it cannot be reported from here.
        if let Ok(mut child) = child {
            if let Some(mut input) = child.stdin.take() {
                let _ = input.write_all(b"quit\n");
            }
            let _ = child.wait();
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
