// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests unmodified PyTorch programs: results are equal to the last bit, and every launch is
//! covered.

use crate::alone::{covered, read_counters};
use crate::{Bed, Outcome, Test};
use anyhow::{ensure, Context, Result};
use gct_hw::kit::RunEnv;
use std::process::Command;

pub(crate) const TESTS: &[Test] = &[
    ("torch_is_the_same_without_limits", without_limits),
    ("torch_is_the_same_on_half_of_the_tpcs", on_half),
    ("torch_is_the_same_when_paced", when_paced),
    ("torch_is_covered", torch_is_covered),
];

const PROGRAM: &str = include_str!("program.py");

fn has_torch() -> bool {
    has_module("torch")
}

/// Returns whether Python finds a module.
pub(crate) fn has_module(module: &str) -> bool {
    let find = "import importlib.util, sys; sys.exit(not importlib.util.find_spec(sys.argv[1]))";
    let python = Command::new("python3").args(["-c", find, module]).status();
    python.is_ok_and(|status| status.success())
}

fn run(bed: &Bed, env: &RunEnv) -> Result<String> {
    let output = bed
        .kit
        .command("python3".as_ref(), env)
        .args(["-c", PROGRAM])
        .env("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        .output()?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{errors}");
    Ok(String::from_utf8_lossy(&output.stdout).into())
}

fn compare(bed: &Bed, env: &RunEnv) -> Result<Outcome> {
    if !has_torch() {
        return Ok(Outcome::Skipped("PyTorch is not here".into()));
    }
    let native = run(bed, &RunEnv::native())?;
    let again = run(bed, &RunEnv::native())?;
    ensure!(native == again, "not deterministic: {native} {again}");
    let governed = run(bed, env)?;
    ensure!(native == governed, "{native} without, {governed} with");
    Ok(Outcome::Passed)
}

fn without_limits(bed: &Bed) -> Result<Outcome> {
    compare(bed, &RunEnv::gctgroup())
}

/// Libraries choose kernels by the number of SMs, and other kernels round differently. Equal bits
/// therefore need a program that sees all SMs.
fn on_half(bed: &Bed) -> Result<Outcome> {
    let half = bed.masked(&bed.first(bed.tpcs.len() / 2));
    compare(bed, &half.with("GCTGROUP_SM_COUNT", "all"))
}

fn when_paced(bed: &Bed) -> Result<Outcome> {
    let env = bed.masked(&bed.all_but(0));
    compare(bed, &env.with("GCTGROUP_ATOM_DURATION", 20))
}

fn torch_is_covered(bed: &Bed) -> Result<Outcome> {
    if !has_torch() {
        return Ok(Outcome::Skipped("PyTorch is not here".into()));
    }
    let file = std::env::temp_dir().join(format!("gct-hw-torch-{}", std::process::id()));
    let env = bed.masked(&bed.all_but(2));
    run(bed, &env.with("GCTGROUP_STATS", file.display()))?;
    let text = std::fs::read_to_string(&file).context("no counters were written")?;
    std::fs::remove_file(&file)?;
    let counters = read_counters(&text)?;
    let share = covered(&counters)?;
    ensure!(
        share >= 0.99,
        "only {share:.4} of the launches: {counters:?}"
    );
    Ok(Outcome::Passed)
}
