// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests several programs on one GPU, as clients of MPS.

use crate::{Bed, Outcome, Test};
use anyhow::{ensure, Result};
use gct_hw::daemon::Daemon;
use gct_hw::kit::{moment_in, number, parse, RunEnv};
use gct_hw::mps::Mps;
use std::time::Duration;

pub(crate) const TESTS: &[Test] = &[
    ("pacing_bounds_the_wait_of_a_neighbour", pacing_bounds),
    ("a_quota_is_free_for_its_owner", a_quota_is_free),
    ("idle_tpcs_are_lent", idle_tpcs_are_lent),
    ("a_client_has_the_mask_of_its_group", client_mask),
    ("an_earlier_priority_goes_first", earlier_priority),
    ("an_earlier_launch_overtakes_what_is_not_cut", overtakes),
    ("four_programs_get_their_quotas", four_quotas),
    ("where_all_is_reserved_a_third_waits_and_ends", two_halves),
    ("three_neighbours_are_exact", three_exact),
    ("a_killed_client_leaves_its_neighbour_alone", killed_client),
];

const CRITICAL: &str = "critical --blocks 132 --threads 256 --cycles 45000 --period-us 2000";
const BEST_EFFORT: &str = "best-effort --blocks 26400 --threads 1024 --cycles 45000";

/// Returns the p99 of the critical loop in microseconds, and the launches per second of the other.
fn both(bed: &Bed, critical: &RunEnv, best_effort: &RunEnv) -> Result<(f64, f64)> {
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

fn pacing_bounds(bed: &Bed) -> Result<Outcome> {
    let mps = Mps::start()?;
    let native = mps.client(RunEnv::native());
    let paced = bed.masked(&bed.all_but(0));
    let paced = mps.client(paced.with("GCTGROUP_ATOM_DURATION", 100));
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
    let owner = mps.client(daemon.group("owner", "--quota 9"));
    let rest = mps.client(daemon.group("rest", "--atom 100us"));
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
    let owner = mps.client(daemon.group("owner", "--quota 33"));
    let rest = mps.client(daemon.group("rest", "--atom 200us"));
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

fn client_mask(bed: &Bed) -> Result<Outcome> {
    let mps = Mps::start()?;
    let daemon = Daemon::start(&bed.kit, &bed.tpcs.join(","))?;
    let masked = daemon.group("masked", &format!("--tpc {}", bed.first(4)));
    let line = bed
        .kit
        .json(&mps.client(masked), "sms --blocks 8000 --cycles 20000")?;
    let used = line.as_object().map_or(0, serde_json::Map::len);
    ensure!(used == 8, "4 TPCs, but {used} SMs were used");
    Ok(Outcome::Passed)
}

/// Creates a group of the first priority and one of the last.
fn early_and_late(daemon: &Daemon) -> Result<()> {
    for (group, priority) in [("early", "0"), ("late", "15")] {
        daemon.create(group)?;
        daemon.set(group, "compute.priority", priority)?;
    }
    Ok(())
}

/// Checks that the later tenant waits while the earlier one has work, and runs otherwise.
fn earlier_priority(bed: &Bed) -> Result<Outcome> {
    let mps = Mps::start()?;
    let daemon = Daemon::start(&bed.kit, &bed.tpcs.join(","))?;
    early_and_late(&daemon)?;
    let early = mps.client(daemon.group("early", "--atom 100us"));
    let late = mps.client(daemon.group("late", "--atom 100us"));
    let work = format!("{BEST_EFFORT} --seconds 1");
    let alone = rates(bed, &[&late], &work)?;
    let both = rates(bed, &[&early, &late], &work)?;
    ensure!(
        both[0] > 0.9 * alone[0] && both[1] < 0.1 * alone[0],
        "early and late {both:?} launches/s, alone {alone:?}"
    );
    // An earlier tenant that works now and then leaves the rest to the later one.
    let (p99_us, rate) = self::both(bed, &early, &late)?;
    ensure!(
        p99_us < 300.0 && rate > 0.8 * alone[0],
        "p99 {p99_us} us beside {rate} launches/s, alone {alone:?}"
    );
    Ok(Outcome::Passed)
}

/// Checks that a launch waits for running blocks of a later tenant, and for none that wait, where
/// that one's launches of 2.4 ms stay whole.
fn overtakes(bed: &Bed) -> Result<Outcome> {
    let mps = Mps::start()?;
    let daemon = Daemon::start(&bed.kit, &bed.tpcs.join(","))?;
    early_and_late(&daemon)?;
    let early = mps.client(daemon.group("early", ""));
    let late = mps.client(daemon.group("late", "--atom 1s"));
    let (p99_us, rate) = both(bed, &early, &late)?;
    ensure!(
        p99_us < 300.0 && rate > 100.0,
        "p99 {p99_us} us beside {rate} launches/s"
    );
    println!("# p99 {p99_us} us beside {rate} launches/s that stay whole");
    Ok(Outcome::Passed)
}

/// Returns the launches per second of a concurrent loop, `work`, in each of `all`. All create
/// their contexts before the first one works: creating one takes launches, which may have to wait.
pub(crate) fn rates(bed: &Bed, all: &[&RunEnv], work: &str) -> Result<Vec<f64>> {
    let programs: Result<Vec<_>> = all.iter().map(|env| bed.kit.serve(env)).collect();
    let mut programs = programs?;
    for program in &mut programs {
        program.ready()?;
    }
    let start = moment_in(Duration::from_millis(300));
    for program in &mut programs {
        program.ask(&format!("{work} --start-at {start}"))?;
    }
    let lines = programs
        .iter_mut()
        .map(|program| program.answer(Duration::from_secs(30)));
    lines
        .map(|line| number(&line?, "launches_per_second"))
        .collect()
}

/// Checks that each tenant gets its quota, and together they leave no TPC idle.
fn four_quotas(bed: &Bed) -> Result<Outcome> {
    const QUOTAS: [usize; 4] = [9, 15, 20, 0];
    let mps = Mps::start()?;
    let daemon = Daemon::start(&bed.kit, &bed.tpcs.join(","))?;
    let program = |number: usize, quota: usize| {
        let options = format!("--quota {quota} --atom 100us");
        mps.client(daemon.group(&format!("group{number}"), &options))
    };
    let programs: Vec<RunEnv> = QUOTAS
        .iter()
        .enumerate()
        .map(|(number, quota)| program(number, *quota))
        .collect();
    let work = format!("{BEST_EFFORT} --seconds 1");
    let alone = rates(bed, &[&programs[3]], &work)?[0];
    let beside = rates(bed, &programs.iter().collect::<Vec<_>>(), &work)?;
    // The last is best effort, and the others always work. It may get nothing.
    for (quota, rate) in QUOTAS.iter().zip(&beside) {
        // CAST: fewer than 256 TPCs.
        let share = *quota as f64 / bed.tpcs.len() as f64;
        ensure!(
            *rate >= 0.9 * share * alone,
            "quotas {QUOTAS:?}: {beside:?} launches/s, {alone} alone"
        );
    }
    let sum: f64 = beside.iter().sum();
    ensure!(
        sum > 0.9 * alone,
        "{beside:?} launches/s, one alone {alone}"
    );
    Ok(Outcome::Passed)
}

/// Gives all TPCs to two busy owners. A third tenant's launches wait for them, and never hang on a
/// TPC that does not exist.
fn two_halves(bed: &Bed) -> Result<Outcome> {
    let mps = Mps::start()?;
    let daemon = Daemon::start(&bed.kit, &bed.tpcs.join(","))?;
    let half = bed.tpcs.len() / 2;
    let halves = [(0, half), (1, bed.tpcs.len() - half)].map(|(number, quota)| {
        let options = format!("--quota {quota} --atom 100us");
        mps.client(daemon.group(&format!("half{number}"), &options))
    });
    daemon.create("third")?;
    let third = mps.client(daemon.group("third", ""));
    let work = format!("{BEST_EFFORT} --seconds 3");
    let busy: Result<Vec<_>> = halves
        .iter()
        .map(|half| bed.kit.start(half, &work))
        .collect();
    std::thread::sleep(Duration::from_millis(1500));
    ensure!(
        daemon.set("third", "tpc.quota", "1").is_err(),
        "more was promised than there is"
    );
    let beside = bed.kit.start(&third, "exact --rounds 20 --plain")?;
    for one in busy? {
        one.line()?;
    }
    beside.line()?;
    Ok(Outcome::Passed)
}

fn three_exact(bed: &Bed) -> Result<Outcome> {
    let mps = Mps::start()?;
    let daemon = Daemon::start(&bed.kit, &bed.tpcs.join(","))?;
    let work = format!("exact --rounds {} --plain", bed.rounds);
    let options = ["--quota 9", "--atom 20us", "--quota 20 --atom 50us"];
    let running: Result<Vec<_>> = options
        .iter()
        .enumerate()
        .map(|(number, options)| {
            let env = mps.client(daemon.group(&format!("exact{number}"), options));
            bed.kit.start(&env, &format!("{work} --seed {number}"))
        })
        .collect();
    for one in running? {
        one.line()?;
    }
    Ok(Outcome::Passed)
}

fn killed_client(bed: &Bed) -> Result<Outcome> {
    let mps = Mps::start()?;
    let paced = bed.masked(&bed.all_but(0));
    let paced = mps.client(paced.with("GCTGROUP_ATOM_DURATION", 100));
    let victim = bed
        .kit
        .start(&paced, &format!("{BEST_EFFORT} --seconds 30"))?;
    let other = bed.kit.start(&paced, "exact --rounds 2000 --plain")?;
    std::thread::sleep(Duration::from_millis(1500));
    victim.kill()?;
    // MPS ends all clients of a server when one dies with work on the GPU (NVIDIA's documentation),
    // with or without gctgroup. So the other client may fail, but must not hang.
    let ended = other.line();
    ensure!(
        !ended
            .as_ref()
            .is_err_and(|e| e.to_string().contains("did not end")),
        "{ended:?}"
    );
    drop(mps);
    bed.kit.run(&RunEnv::gctgroup(), "exact --rounds 50")?;
    Ok(Outcome::Passed)
}
