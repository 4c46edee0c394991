// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests copies between host and device: exactness in pieces, and their order.

use crate::alone::counters;
use crate::{Bed, Outcome, Test};
use anyhow::{ensure, Result};
use gct_hw::daemon::Daemon;
use gct_hw::kit::{moment_in, number, RunEnv};
use std::time::Duration;

pub(crate) const TESTS: &[Test] = &[
    ("copies_are_exact_without_limits", exact_without_limits),
    ("copies_are_exact_in_pieces", exact_in_pieces),
    ("long_copies_are_cut", long_copies_are_cut),
    (
        "an_earlier_priority_waits_for_pieces_of_a_copy",
        an_earlier_priority_waits_for_pieces,
    ),
];

/// Programs start, and allocate pinned memory, in less than this.
const LEAD: Duration = Duration::from_secs(6);
/// A checkpoint: copies of 1 GiB that follow each other.
const LONG: &str = "best-effort --copy d2h --bytes 1073741824 --queued 2 --seconds 2";
/// A service's copy of 1 MiB each 5 ms.
const SHORT: &str = "critical --copy d2h --bytes 1048576 --period-us 5000 --seconds 2";

fn exact(bed: &Bed, env: &RunEnv, seed: u32) -> Result<()> {
    let work = format!("copies --rounds {} --seed {seed}", bed.rounds);
    // gct-load itself fails on a wrong byte.
    let line = bed.kit.json(env, &work)?;
    for kind in ["copies", "pinned", "pitched"] {
        ensure!(number(&line, kind)? > 0.0, "{line}");
    }
    Ok(())
}

fn exact_without_limits(bed: &Bed) -> Result<Outcome> {
    exact(bed, &RunEnv::native(), 1)?;
    exact(bed, &RunEnv::gctgroup(), 1)?;
    Ok(Outcome::Passed)
}

fn exact_in_pieces(bed: &Bed) -> Result<Outcome> {
    for (seed, target_us) in [(2, 5), (3, 50), (4, 500)] {
        let env = RunEnv::gctgroup().with("GCTGROUP_ATOM_DURATION", target_us);
        exact(bed, &env, seed)?;
    }
    Ok(Outcome::Passed)
}

fn long_copies_are_cut(bed: &Bed) -> Result<Outcome> {
    for direction in ["h2d", "d2h"] {
        let work = format!("best-effort --copy {direction} --bytes 1073741824 --seconds 0.5");
        let env = RunEnv::gctgroup().with("GCTGROUP_ATOM_DURATION", 50);
        let counters = counters(bed, env, &work)?;
        let cut = counters.get("copies_cut").copied().unwrap_or(0);
        ensure!(cut > 2, "{direction}: {counters:?}");
    }
    Ok(Outcome::Passed)
}

/// Returns p99 of the short copies, in microseconds, beside the long ones.
fn beside(bed: &Bed, envs: &[RunEnv; 2]) -> Result<f64> {
    let start = moment_in(LEAD);
    let [service, checkpoint] = envs;
    let long = bed
        .kit
        .start(checkpoint, &format!("{LONG} --start-at {start}"))?;
    let short = bed
        .kit
        .json(service, &format!("{SHORT} --start-at {start}"))?;
    long.line()?;
    number(&short, "p99_us")
}

fn an_earlier_priority_waits_for_pieces(bed: &Bed) -> Result<Outcome> {
    let native = RunEnv::native();
    let stock = beside(bed, &[native.clone(), native])?;
    let daemon = Daemon::start(&bed.kit, &bed.tpcs.join(","))?;
    for (group, priority) in [("service", "0"), ("checkpoint", "9")] {
        daemon.create(group)?;
        daemon.set(group, "compute.priority", priority)?;
    }
    let envs = ["service", "checkpoint"].map(|group| daemon.group(group, ""));
    let ours = beside(bed, &envs)?;
    ensure!(
        ours < stock,
        "p99 of a copy of 1 MiB: {ours} us, {stock} us without priorities"
    );
    Ok(Outcome::Passed)
}
