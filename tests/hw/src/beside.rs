// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Two programs on one GPU, as clients of MPS.

use crate::{Bed, Outcome, Test};
use anyhow::{ensure, Result};
use gct_bench::daemon::Daemon;
use gct_bench::kit::{moment_in, number, parse, Under};
use gct_bench::mps::Mps;
use std::time::Duration;

pub(crate) const TESTS: &[Test] = &[
    ("pacing_bounds_the_wait_of_a_neighbour", pacing_bounds),
    ("a_quota_is_free_for_its_owner", a_quota_is_free),
    ("idle_tpcs_are_lent", idle_tpcs_are_lent),
    ("a_killed_client_leaves_its_neighbour_alone", killed_client),
];

const CRITICAL: &str = "critical --blocks 132 --threads 256 --cycles 45000 --period-us 2000";
const BEST_EFFORT: &str = "best-effort --blocks 26400 --threads 1024 --cycles 45000";

/// p99 of the critical loop in microseconds, launches per second of the other.
fn both(bed: &Bed, critical: &Under, best_effort: &Under) -> Result<(f64, f64)> {
    let window = format!(
        "--seconds 1.5 --start-at {}",
        moment_in(Duration::from_millis(1600))
    );
    let neighbour = bed
        .kit
        .start(best_effort, &format!("{BEST_EFFORT} {window}"))?;
    let line = bed.kit.json(critical, &format!("{CRITICAL} {window}"))?;
    let rate = number(&parse(&neighbour.line()?)?, "launches_per_second")?;
    Ok((number(&line, "p99_us")?, rate))
}

/// The same under MPS.
fn under(mps: &Mps, under: Under) -> Under {
    let variables = mps.variables().into_iter();
    variables.fold(under, |under, (name, value)| under.with(name, value))
}

fn pacing_bounds(bed: &Bed) -> Result<Outcome> {
    let mps = Mps::start()?;
    let native = under(&mps, Under::native());
    let paced = bed.masked(&bed.all_but(0));
    let paced = under(&mps, paced.with("GCTGROUP_ATOM_DURATION", 100));
    let (plain_us, plain_rate) = both(bed, &native, &native)?;
    let (paced_us, paced_rate) = both(bed, &native, &paced)?;
    // 100 us of atoms and 33 us of its own, and half as much again.
    ensure!(
        paced_us < 200.0 && plain_us > 500.0,
        "p99 {paced_us} us, {plain_us} without"
    );
    ensure!(
        paced_rate > 0.95 * plain_rate,
        "{paced_rate} launches/s, {plain_rate} without"
    );
    Ok(Outcome::Passed)
}

fn a_quota_is_free(bed: &Bed) -> Result<Outcome> {
    let mps = Mps::start()?;
    let daemon = Daemon::start(&bed.kit, &bed.tpcs.join(","))?;
    let owner = under(&mps, daemon.group("owner", "--quota 9"));
    let rest = under(&mps, daemon.group("rest", "--quota 0 --atom 100us"));
    let alone = bed.kit.json(&owner, &format!("{CRITICAL} --seconds 1"))?;
    let alone_us = number(&alone, "p99_us")?;
    let (beside_us, _) = both(bed, &owner, &rest)?;
    ensure!(
        beside_us < 2.0 * alone_us,
        "p99 {beside_us} us, {alone_us} alone"
    );
    Ok(Outcome::Passed)
}

fn idle_tpcs_are_lent(bed: &Bed) -> Result<Outcome> {
    let mps = Mps::start()?;
    let daemon = Daemon::start(&bed.kit, &bed.tpcs.join(","))?;
    let owner = under(&mps, daemon.group("owner", "--quota 33"));
    let rest = under(&mps, daemon.group("rest", "--quota 0 --atom 200us"));
    let work = format!("{BEST_EFFORT} --seconds 1");
    let alone = number(&bed.kit.json(&rest, &work)?, "launches_per_second")?;
    let holder = bed.kit.start(&owner, "idle --seconds 5")?;
    std::thread::sleep(Duration::from_millis(1500));
    let beside = number(&bed.kit.json(&rest, &work)?, "launches_per_second")?;
    holder.line()?;
    ensure!(
        beside > 0.97 * alone,
        "{beside} launches/s, {alone} without the idle owner"
    );
    Ok(Outcome::Passed)
}

fn killed_client(bed: &Bed) -> Result<Outcome> {
    let mps = Mps::start()?;
    let paced = bed.masked(&bed.all_but(0));
    let paced = under(&mps, paced.with("GCTGROUP_ATOM_DURATION", 100));
    let victim = bed
        .kit
        .start(&paced, &format!("{BEST_EFFORT} --seconds 30"))?;
    let other = bed.kit.start(&paced, "exact --rounds 2000 --plain")?;
    std::thread::sleep(Duration::from_millis(1500));
    victim.kill()?;
    // MPS ends all clients of a server when one dies with work on the GPU (NVIDIA's
    // documentation), with or without gctgroup. So the other may fail, but must not hang.
    let ended = other.line();
    ensure!(
        !ended
            .as_ref()
            .is_err_and(|e| e.to_string().contains("did not end")),
        "{ended:?}"
    );
    drop(mps);
    bed.kit.run(&Under::gctgroup(), "exact --rounds 50")?;
    Ok(Outcome::Passed)
}
