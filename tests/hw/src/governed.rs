// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests programs in groups of the daemon.

use crate::{Bed, Outcome, Test};
use anyhow::{ensure, Context, Result};
use gct_hw::daemon::Daemon;
use gct_hw::kit::{number, parse, RunEnv};
use std::time::{Duration, Instant};

pub(crate) const TESTS: &[Test] = &[
    ("a_group_has_a_mask", a_group_has_a_mask),
    ("a_mask_changes_while_the_program_runs", a_mask_changes),
    (
        "graphs_change_in_place_while_the_mask_changes",
        graphs_change_in_place,
    ),
    ("a_frozen_group_stands_still", a_frozen_group_stands_still),
    (
        "a_time_slice_bounds_the_wait_of_another_process",
        a_time_slice_bounds_the_wait,
    ),
    ("a_group_has_one_time_slice", a_group_has_one_time_slice),
    ("a_group_is_exact_when_paced", exact_when_paced),
    ("children_belong_to_the_group", children),
    (
        "programs_outlive_their_daemon",
        programs_outlive_their_daemon,
    ),
];

fn daemon(bed: &Bed) -> Result<Daemon> {
    Daemon::start(&bed.kit, &bed.tpcs.join(","))
}

fn a_group_has_a_mask(bed: &Bed) -> Result<Outcome> {
    let daemon = daemon(bed)?;
    let env = daemon.group("masked", &format!("--tpc {}", bed.first(4)));
    let used = used(&bed.kit.run(&env, "sms --blocks 8000 --cycles 20000")?)?;
    ensure!(used == 8, "4 TPCs, but {used} SMs were used");
    Ok(Outcome::Passed)
}

fn used(line: &str) -> Result<usize> {
    let sms = parse(line)?;
    Ok(sms.as_object().context("no SMs")?.len())
}

fn a_mask_changes(bed: &Bed) -> Result<Outcome> {
    let daemon = daemon(bed)?;
    let rate = |mask: &str| -> Result<f64> {
        daemon.set("changed", "tpc.mask", mask)?;
        let env = daemon.group("changed", "");
        let work = "best-effort --blocks 42240 --cycles 20000 --seconds 0.5";
        number(&bed.kit.json(&env, work)?, "launches_per_second")
    };
    daemon.create("changed")?;
    let whole = rate("all")?;
    let half = rate(&bed.first(bed.tpcs.len() / 2))?;
    ensure!(
        half < 0.6 * whole,
        "{half} launches/s on half, {whole} on all"
    );
    // The mask shrinks from all TPCs to a few while the program runs.
    daemon.set("changed", "tpc.mask", "all")?;
    let env = daemon.group("changed", "");
    let work = "best-effort --blocks 42240 --cycles 20000 --seconds 2";
    let running = bed.kit.start(&env, work)?;
    std::thread::sleep(Duration::from_millis(1500));
    daemon.set("changed", "tpc.mask", &bed.first(4))?;
    let changed = number(&parse(&running.line()?)?, "launches_per_second")?;
    ensure!(
        changed < 0.9 * whole,
        "{changed} launches/s, {whole} without"
    );
    Ok(Outcome::Passed)
}

/// The library rewrites the nodes of graphs where they are, when the mask changes. The program
/// changes them in place, too (`cuGraphExecUpdate`).
fn graphs_change_in_place(bed: &Bed) -> Result<Outcome> {
    let daemon = daemon(bed)?;
    daemon.create("graphs")?;
    let rounds = 10 * bed.rounds;
    let env = daemon.group("graphs", "");
    let work = format!("exact --rounds {rounds} --plain --seed 12");
    let mut running = bed.kit.start(&env, &work)?;
    let masks = [bed.first(4), bed.all_but(0), bed.first(20)];
    let mut changes = 0;
    for mask in masks.iter().cycle() {
        if running.has_ended()? {
            break;
        }
        daemon.set("graphs", "tpc.mask", mask)?;
        changes += 1;
        std::thread::sleep(Duration::from_millis(5));
    }
    let line = parse(&running.line()?)?;
    ensure!(
        changes > 20 && number(&line, "updates")? > 20.0,
        "{changes} masks: {line}"
    );
    Ok(Outcome::Passed)
}

fn a_frozen_group_stands_still(bed: &Bed) -> Result<Outcome> {
    let daemon = daemon(bed)?;
    daemon.create("frozen")?;
    let env = daemon.group("frozen", "--atom 100us");
    let start = Instant::now();
    let running = bed.kit.start(&env, "exact --rounds 400")?;
    std::thread::sleep(Duration::from_millis(400));
    daemon.set("frozen", "compute.freeze", "1")?;
    std::thread::sleep(Duration::from_secs(2));
    daemon.set("frozen", "compute.freeze", "0")?;
    let line = running.line()?;
    let took = start.elapsed();
    ensure!(
        took > Duration::from_secs(2),
        "{took:?}: it was not frozen: {line}"
    );
    Ok(Outcome::Passed)
}

/// Lets two processes take turns. A time slice acts on running work, so it changes while both run.
fn a_time_slice_bounds_the_wait(bed: &Bed) -> Result<Outcome> {
    let daemon = daemon(bed)?;
    daemon.create("long")?;
    let work = "best-effort --blocks 26400 --threads 1024 --cycles 450000 --seconds 8";
    let running = bed.kit.start(&daemon.group("long", ""), work)?;
    std::thread::sleep(Duration::from_millis(1500));
    let wait = |slice: &str| -> Result<f64> {
        daemon.set("long", "compute.timeslice", slice)?;
        let work = "critical --blocks 132 --threads 256 --cycles 45000 --period-us 2000";
        let line = bed
            .kit
            .json(&RunEnv::native(), &format!("{work} --seconds 0.5"))?;
        number(&line, "p50_us")
    };
    let stock = wait("default")?;
    let long = wait("10ms")?;
    let short = wait("50us")?;
    let again = wait("default")?;
    println!(
        "# p50 in us: {stock} stock, {long} with 10 ms, {short} with 50 us, {again} stock again"
    );
    ensure!(
        long > 4_000.0 && short < 1_000.0 && again < 0.5 * long,
        "p50 in us: {stock} stock, {long} with 10 ms, {short} with 50 us, {again} stock again"
    );
    running.kill()?;
    Ok(Outcome::Passed)
}

/// Lets four processes of a group take turns with a neighbour. The neighbour waits for one time
/// slice instead of four.
fn a_group_has_one_time_slice(bed: &Bed) -> Result<Outcome> {
    let daemon = daemon(bed)?;
    daemon.create("long")?;
    daemon.set("long", "compute.timeslice", "8ms")?;
    let wait = |processes: usize| -> Result<f64> {
        let work = "best-effort --blocks 26400 --threads 1024 --cycles 450000 --seconds 8";
        let started = (0..processes).map(|_| bed.kit.start(&daemon.group("long", ""), work));
        let running = started.collect::<Result<Vec<_>>>()?;
        std::thread::sleep(Duration::from_millis(2500));
        let work = "critical --blocks 132 --threads 256 --cycles 45000 --period-us 2000";
        let line = bed
            .kit
            .json(&RunEnv::native(), &format!("{work} --seconds 1.5"))?;
        for program in running {
            program.kill()?;
        }
        number(&line, "p95_us")
    };
    let (one, four) = (wait(1)?, wait(4)?);
    println!("# p95 in us: {one} beside one process, {four} beside four of its group");
    ensure!(
        one > 4_000.0 && four < 1.5 * one,
        "p95 in us: {one} beside one process, {four} beside four"
    );
    Ok(Outcome::Passed)
}

/// Forks and executes children in a program. It stays exact, and its limits apply to them.
fn children(bed: &Bed) -> Result<Outcome> {
    let daemon = daemon(bed)?;
    let options = format!("--atom 50us --tpc {}", bed.first(4));
    let env = daemon.group("family", &options);
    let line = bed.kit.json(&env, "family --children 3")?;
    let sms = line["sms"].as_array().context("no children")?;
    ensure!(
        sms.len() == 3 && sms.iter().all(|sms| *sms == 8),
        "4 TPCs, but the children used other numbers of SMs: {line}"
    );
    Ok(Outcome::Passed)
}

fn exact_when_paced(bed: &Bed) -> Result<Outcome> {
    let daemon = daemon(bed)?;
    let options = format!("--atom 20us --tpc {}", bed.all_but(5));
    let env = daemon.group("paced", &options);
    bed.kit
        .run(&env, &format!("exact --rounds {}", bed.rounds))?;
    Ok(Outcome::Passed)
}

fn programs_outlive_their_daemon(bed: &Bed) -> Result<Outcome> {
    let daemon = daemon(bed)?;
    let env = daemon.group("orphan", "--atom 20us");
    let running = bed.kit.start(&env, "exact --rounds 1500 --seed 8")?;
    std::thread::sleep(Duration::from_millis(600));
    drop(daemon);
    running.line()?;
    bed.kit.run(&RunEnv::gctgroup(), "exact --rounds 50")?;
    Ok(Outcome::Passed)
}
