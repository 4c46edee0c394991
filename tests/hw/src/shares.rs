// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests shares of the GPU's time: `compute.weight`, `compute.max`, and what is billed.

use crate::beside::rates;
use crate::{Bed, Outcome, Test};
use anyhow::{ensure, Context, Result};
use gct_hw::daemon::Daemon;
use gct_hw::kit::{number, RunEnv};
use gct_hw::mps::Mps;

pub(crate) const TESTS: &[Test] = &[
    ("weights_share_the_time_of_contexts", weights_by_turns),
    ("weights_share_the_time_under_mps", weights_under_mps),
    ("four_processes_have_one_share", four_processes),
    ("a_duty_cycle_is_kept_and_billed", duty_cycle),
];

/// Twenty waves of blocks of 25 us.
const WORK: &str = "best-effort --blocks 5280 --threads 1024 --cycles 45000 --seconds 2";

/// Returns the number behind a key of a group's `compute.stat`.
fn stat(daemon: &Daemon, group: &str, key: &str) -> Result<f64> {
    let text = daemon.get(group, "compute.stat")?;
    let mut lines = text.lines().filter_map(|line| line.split_once(' '));
    let found = lines.find(|(of, _)| *of == key);
    let (_, value) = found.with_context(|| format!("no {key} in {text}"))?;
    Ok(value.parse()?)
}

/// Runs `processes` programs of weight 100 beside one of weight 300, and checks that the first have
/// a quarter of the time, and at least this part of the launches: switches between their contexts
/// are part of their time.
fn quarter(
    bed: &Bed,
    processes: usize,
    least: f64,
    client: impl Fn(RunEnv) -> RunEnv,
) -> Result<Outcome> {
    let daemon = Daemon::start(&bed.kit, &bed.tpcs.join(","))?;
    for group in ["one", "three", "free"] {
        daemon.create(group)?;
    }
    let program = |group| client(daemon.group(group, ""));
    let alone = rates(bed, &[&program("free")], WORK)?[0];
    daemon.set("one", "compute.weight", "100")?;
    daemon.set("three", "compute.weight", "300")?;
    let (one, three) = (program("one"), program("three"));
    let mut all = vec![&one; processes];
    all.push(&three);
    let found = rates(bed, &all, WORK)?;
    let first: f64 = found[..processes].iter().sum();
    let sum = first + found[processes];
    println!("# {found:?} launches/s beside each other, {alone} alone");
    let (one, three) = (
        stat(&daemon, "one", "usage_usec")?,
        stat(&daemon, "three", "usage_usec")?,
    );
    let usage = one / (one + three);
    println!("# usage_usec of one and three: {one} {three}");
    println!(
        "# three:\n# {}",
        daemon.get("three", "compute.stat")?.replace('\n', " ")
    );
    ensure!(
        (least..=0.28).contains(&(first / sum)),
        "{first} of {sum} launches/s"
    );
    ensure!(sum > 0.85 * alone, "{sum} launches/s, {alone} alone");
    ensure!(
        (0.22..=0.28).contains(&usage),
        "usage_usec: {one} beside {three}"
    );
    Ok(Outcome::Passed)
}

fn weights_by_turns(bed: &Bed) -> Result<Outcome> {
    quarter(bed, 1, 0.22, |env| env)
}

fn weights_under_mps(bed: &Bed) -> Result<Outcome> {
    let mps = Mps::start()?;
    quarter(bed, 1, 0.22, |env| mps.client(env))
}

fn four_processes(bed: &Bed) -> Result<Outcome> {
    quarter(bed, 4, 0.18, |env| env)
}

/// The time that is billed is that of the launches: their number times what one takes alone.
fn duty_cycle(bed: &Bed) -> Result<Outcome> {
    let daemon = Daemon::start(&bed.kit, &bed.tpcs.join(","))?;
    daemon.create("free")?;
    daemon.create("fifth")?;
    daemon.set("fifth", "compute.max", "20000 100000")?;
    let (free, fifth) = (daemon.group("free", ""), daemon.group("fifth", ""));
    let alone = rates(bed, &[&free], WORK)?[0];
    let before = stat(&daemon, "fifth", "usage_usec")?;
    let found = number(&bed.kit.json(&fifth, WORK)?, "launches_per_second")?;
    let usage = stat(&daemon, "fifth", "usage_usec")? - before;
    let launches = stat(&daemon, "fifth", "launches")?;
    println!("# {found} launches/s of {alone}; usage_usec {usage} for {launches} launches");
    println!(
        "# {}",
        daemon.get("fifth", "compute.stat")?.replace('\n', " ")
    );
    ensure!(
        (0.18..=0.22).contains(&(found / alone)),
        "{found} launches/s of {alone}"
    );
    let measured = launches * 1e6 / alone;
    ensure!(
        (0.9..=1.1).contains(&(usage / measured)),
        "usage_usec {usage}, but {launches} launches took {measured} us"
    );
    Ok(Outcome::Passed)
}
