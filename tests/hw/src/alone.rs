// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests one program under the user-space mode, with limits from the environment.

use crate::{Bed, Outcome, Test};
use anyhow::{ensure, Context, Result};
use gct_hw::kit::{number, parse, RunEnv};
use std::collections::BTreeMap;
use std::time::Duration;

pub(crate) const TESTS: &[Test] = &[
    ("exact_without_limits", exact_without_limits),
    ("exact_on_a_few_tpcs", exact_on_a_few_tpcs),
    ("exact_in_atoms_at_once", exact_in_atoms_at_once),
    ("exact_when_paced", exact_when_paced),
    ("exact_from_four_threads", exact_from_four_threads),
    ("exact_in_three_contexts", exact_in_three_contexts),
    ("a_mask_is_kept", a_mask_is_kept),
    ("every_launch_is_covered", every_launch_is_covered),
    ("an_idle_tenant_costs_no_cpu", an_idle_tenant_costs_no_cpu),
    ("pacing_costs_little", pacing_costs_little),
    ("a_killed_tenant_leaves_nothing_behind", killed),
    ("a_child_that_is_executed_is_governed_too", child),
];

/// Runs random launches of all kinds. gct-load itself fails on a wrong block.
fn exact(bed: &Bed, env: &RunEnv, more: &str) -> Result<Outcome> {
    let line = bed
        .kit
        .json(env, &format!("exact --rounds {} {more}", bed.rounds))?;
    ensure!(number(&line, "launches")? > f64::from(bed.rounds), "{line}");
    for what in ["graphs", "updates"] {
        ensure!(number(&line, what)? > 0.0, "no {what}: {line}");
    }
    Ok(Outcome::Passed)
}

fn exact_without_limits(bed: &Bed) -> Result<Outcome> {
    exact(bed, &RunEnv::gctgroup(), "--seed 1")
}

fn exact_on_a_few_tpcs(bed: &Bed) -> Result<Outcome> {
    exact(bed, &bed.masked(&bed.first(12)), "--seed 2")
}

fn exact_in_atoms_at_once(bed: &Bed) -> Result<Outcome> {
    for atoms in [2, 8, 32] {
        let env = RunEnv::gctgroup().with("GCTGROUP_ATOMS", atoms);
        exact(bed, &env, "--seed 3")?;
    }
    Ok(Outcome::Passed)
}

fn exact_when_paced(bed: &Bed) -> Result<Outcome> {
    for target_us in [5, 20, 100] {
        let env = bed.masked(&bed.all_but(0));
        let env = env.with("GCTGROUP_ATOM_DURATION", target_us);
        exact(bed, &env, "--seed 4")?;
    }
    Ok(Outcome::Passed)
}

fn exact_from_four_threads(bed: &Bed) -> Result<Outcome> {
    let env = RunEnv::gctgroup().with("GCTGROUP_ATOM_DURATION", 20);
    exact(bed, &env, "--seed 5 --hosts 4")
}

fn exact_in_three_contexts(bed: &Bed) -> Result<Outcome> {
    let work = "--seed 9 --contexts 3 --hosts 6";
    exact(bed, &RunEnv::gctgroup(), work)?;
    let env = bed.masked(&bed.first(20));
    exact(bed, &env.with("GCTGROUP_ATOM_DURATION", 20), work)
}

/// Returns the number of blocks that ran on each SM.
fn sms(bed: &Bed, env: &RunEnv) -> Result<BTreeMap<String, u64>> {
    let line = bed.kit.run(env, "sms --blocks 8000 --cycles 20000")?;
    serde_json::from_str(&line).with_context(|| format!("'{line}'"))
}

fn a_mask_is_kept(bed: &Bed) -> Result<Outcome> {
    let all = sms(bed, &RunEnv::native())?.len();
    for count in [1, 5, 20] {
        let used = sms(bed, &bed.masked(&bed.first(count)))?.len();
        ensure!(used == 2 * count, "{count} TPCs, but {used} SMs were used");
        let rest = sms(bed, &bed.masked(&bed.all_but(count)))?.len();
        ensure!(rest == all - 2 * count, "all but {count} TPCs: {rest} SMs");
    }
    Ok(Outcome::Passed)
}

/// Returns the counters that a run writes.
pub(crate) fn counters(bed: &Bed, env: RunEnv, work: &str) -> Result<BTreeMap<String, u64>> {
    let file = std::env::temp_dir().join(format!("gct-hw-{}", std::process::id()));
    bed.kit
        .run(&env.with("GCTGROUP_STATS", file.display()), work)?;
    let text = std::fs::read_to_string(&file).context("no counters were written")?;
    std::fs::remove_file(&file)?;
    read_counters(&text)
}

/// Parses `KEY VALUE` lines.
pub(crate) fn read_counters(text: &str) -> Result<BTreeMap<String, u64>> {
    text.lines()
        .map(|line| {
            let (key, value) = line.split_once(' ').context("no KEY VALUE line")?;
            Ok((key.into(), value.parse()?))
        })
        .collect()
}

/// Returns the fraction of launches that were covered: masked, or a replay of masked nodes, and not
/// passed through. A launch that the user-space mode did not see is not covered. A fill of memory
/// by a macro is no launch.
pub(crate) fn covered(counters: &BTreeMap<String, u64>) -> Result<f64> {
    let count = |key: &str| counters.get(key).copied().unwrap_or(0);
    let launches = count("launches");
    ensure!(
        launches > 0 && count("unreadable") == 0 && count("unmanaged") == 0,
        "something was not seen: {counters:?}"
    );
    let masked = count("rewritten") + count("replays");
    let passed = count("passed").saturating_sub(count("passed.macro-fill"));
    let kept = launches.saturating_sub(passed);
    // CAST: far fewer than 2^52.
    Ok(masked.min(kept) as f64 / launches as f64)
}

fn every_launch_is_covered(bed: &Bed) -> Result<Outcome> {
    let work = format!("exact --rounds {} --seed 6", bed.rounds);
    let counters = counters(bed, bed.masked(&bed.all_but(2)), &work)?;
    let share = covered(&counters)?;
    ensure!(
        share >= 0.99,
        "only {share:.4} of the launches: {counters:?}"
    );
    Ok(Outcome::Passed)
}

fn an_idle_tenant_costs_no_cpu(bed: &Bed) -> Result<Outcome> {
    let line = bed.kit.json(&RunEnv::gctgroup(), "idle --seconds 3")?;
    let percent = number(&line, "cpu_percent")?;
    ensure!(percent < 0.2, "{percent} % of a core");
    Ok(Outcome::Passed)
}

fn pacing_costs_little(bed: &Bed) -> Result<Outcome> {
    let work = "best-effort --blocks 42240 --cycles 20000 --seconds 1";
    let key = "launches_per_second";
    let native = number(&bed.kit.json(&RunEnv::native(), work)?, key)?;
    let env = bed.masked(&bed.all_but(0));
    let paced = env.with("GCTGROUP_ATOM_DURATION", 100);
    let paced = number(&bed.kit.json(&paced, work)?, key)?;
    ensure!(
        paced > 0.98 * native,
        "{paced} launches/s instead of {native}"
    );
    Ok(Outcome::Passed)
}

fn killed(bed: &Bed) -> Result<Outcome> {
    let env = bed.masked(&bed.all_but(0));
    let env = env.with("GCTGROUP_ATOM_DURATION", 50);
    for _ in 0..3 {
        let work = "best-effort --blocks 42240 --cycles 200000 --seconds 30";
        let running = bed.kit.start(&env, work)?;
        std::thread::sleep(Duration::from_millis(1200));
        running.kill()?;
    }
    exact(bed, &env, "--seed 7")?;
    exact(bed, &RunEnv::native(), "--seed 7")
}

fn child(bed: &Bed) -> Result<Outcome> {
    let load = bed.kit.path("gct-load");
    let script = format!(
        "{0} sms --blocks 8000 --cycles 20000; exec {0} exact --rounds 50",
        load.display()
    );
    let env = bed.masked(&bed.first(3));
    let output = bed
        .kit
        .command("/bin/sh".as_ref(), &env)
        .args(["-c", &script])
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "{text}");
    let mut lines = text.lines();
    let sms = parse(lines.next().context("no line of the first child")?)?;
    let used = sms.as_object().map_or(0, serde_json::Map::len);
    ensure!(used == 6, "3 TPCs, but {used} SMs were used");
    Ok(Outcome::Passed)
}
