// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Forks and executes children while the program uses the GPU itself.

use crate::exact::{self, Kinds};
use crate::gpu::Gpu;
use anyhow::{ensure, Context, Result};
use serde::Serialize;
use std::collections::BTreeMap;
use std::process::Command;

/// The results of the children.
#[derive(Debug, Serialize)]
pub(crate) struct Family {
    forked: u64,
    /// The number of SMs that the launch of each executed child used.
    sms: Vec<usize>,
}

/// Forks and executes `children` children each, with exact launches in between.
pub(crate) fn run(gpu: &Gpu, children: u64) -> Result<Family> {
    let mut sms = Vec::new();
    for number in 0..children {
        launch(gpu, number)?;
        fork().context("a fork")?;
        launch(gpu, number)?;
        sms.push(execute().context("an executed child")?);
    }
    launch(gpu, children)?;
    Ok(Family {
        forked: children,
        sms,
    })
}

fn launch(gpu: &Gpu, seed: u64) -> Result<()> {
    let kinds = Kinds {
        attributes: true,
        graphs: true,
        one_by_one: false,
    };
    let report = exact::run_all(&[gpu], seed..seed + 1, 20, 2, kinds)?;
    ensure!(report.exact(), "some blocks did not run exactly once");
    Ok(())
}

/// Forks a child that exits at once. It does not use the GPU: CUDA does not work after a fork.
fn fork() -> Result<()> {
    // SAFETY: the child calls only `_exit`, which is safe after a fork.
    let child = unsafe { libc::fork() };
    ensure!(child >= 0, "{}", std::io::Error::last_os_error());
    if child == 0 {
        // SAFETY: as above.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: `status` is valid for the write.
    let ended = unsafe { libc::waitpid(child, &mut status, 0) };
    ensure!(
        ended == child && status == 0,
        "the child ended with {status}"
    );
    Ok(())
}

/// Executes a child that launches once. Returns the number of SMs that it used.
fn execute() -> Result<usize> {
    let output = Command::new(std::env::current_exe()?)
        .args(["sms", "--blocks", "8000", "--cycles", "20000"])
        .output()?;
    ensure!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let used: BTreeMap<String, u32> = serde_json::from_slice(&output.stdout)?;
    Ok(used.len())
}
