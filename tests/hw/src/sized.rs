// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests programs that size their grids by the device. They see the SMs that their limits leave, so
//! blocks that wait for each other are resident at once.

use crate::torch::has_module;
use crate::{Bed, Outcome, Test};
use anyhow::{ensure, Context, Result};
use gct_hw::daemon::Daemon;
use gct_hw::kit::{number, parse, RunEnv};
use gct_hw::mps::Mps;
use serde_json::Value;

pub(crate) const TESTS: &[Test] = &[
    ("a_program_sees_the_sms_of_its_mask", sees_its_mask),
    (
        "a_barrier_of_all_sms_ends_under_a_mask",
        barrier_under_a_mask,
    ),
    (
        "a_barrier_of_all_sms_ends_under_a_quota",
        barrier_under_a_quota,
    ),
    (
        "barriers_of_two_quotas_and_a_third_tenant_end",
        barriers_beside,
    ),
    ("a_cooperative_launch_fits_or_is_refused", cooperative),
    ("python_sees_the_sms_of_its_mask", python),
];

/// The modules of `sized.py` that a machine may have.
const MODULES: [&str; 3] = ["torch", "triton", "jax"];

const PROGRAM: &str = include_str!("sized.py");

fn barrier(bed: &Bed, env: &RunEnv, arguments: &str) -> Result<Value> {
    bed.kit.json(env, &format!("barrier {arguments}"))
}

/// Returns a barrier's view of the device: SMs, blocks on each, the grid of one wave, clusters.
fn device(line: &Value) -> Result<[f64; 4]> {
    let of = |key| number(line, key);
    Ok([of("sms")?, of("per_sm")?, of("potential")?, of("clusters")?])
}

fn met(line: &Value) -> Result<()> {
    ensure!(line["met"] == true, "not all blocks met: {line}");
    Ok(())
}

fn sees_its_mask(bed: &Bed) -> Result<Outcome> {
    let native = device(&barrier(bed, &RunEnv::native(), "--rounds 1")?)?;
    let none = device(&barrier(bed, &RunEnv::gctgroup(), "--rounds 1")?)?;
    ensure!(
        none == native,
        "{none:?} without a limit, {native:?} natively"
    );
    let [sms, per_sm, potential, clusters] = native;
    for tpcs in [1, 5, 32] {
        let masked = bed.masked(&bed.first(tpcs));
        let shown = device(&barrier(bed, &masked, "--rounds 1")?)?;
        // CAST: a few TPCs.
        let shows = 2.0 * tpcs as f64;
        let part = |of: f64| (of * shows / sms).floor();
        let expected = [shows, per_sm, part(potential), part(clusters)];
        ensure!(
            shown == expected,
            "{tpcs} TPCs: {shown:?}, not {expected:?}"
        );
        let all = device(&barrier(
            bed,
            &masked.with("GCTGROUP_SM_COUNT", "all"),
            "--rounds 1 --blocks 1",
        )?)?;
        ensure!(all == native, "exempt: {all:?}, natively {native:?}");
    }
    Ok(Outcome::Passed)
}

fn barrier_under_a_mask(bed: &Bed) -> Result<Outcome> {
    for list in [bed.first(1), bed.first(32), bed.all_but(5), bed.all_but(0)] {
        for how in ["plain", "cluster"] {
            let line = barrier(bed, &bed.masked(&list), &format!("--how {how}"))?;
            met(&line).with_context(|| format!("TPCs {list}"))?;
        }
    }
    Ok(Outcome::Passed)
}

fn daemon(bed: &Bed) -> Result<Daemon> {
    Daemon::start(&bed.kit, &bed.tpcs.join(","))
}

fn barrier_under_a_quota(bed: &Bed) -> Result<Outcome> {
    let daemon = daemon(bed)?;
    // CAST: a few SMs.
    let all = 2.0 * bed.tpcs.len() as f64;
    for (group, quota, steal, sms) in [
        ("some", 20, "1", all),
        ("capped", 20, "0", 40.0),
        ("few", 3, "0", 6.0),
    ] {
        daemon.create(group)?;
        daemon.set(group, "tpc.steal", steal)?;
        let env = daemon.group(group, &format!("--quota {quota}"));
        let line = barrier(bed, &env, "")?;
        ensure!(
            number(&line, "sms")? == sms,
            "quota {quota}, steal {steal}: {line}"
        );
        met(&line)?;
        daemon.set(group, "tpc.quota", "none")?;
    }
    Ok(Outcome::Passed)
}

/// Keeps two quotas in use without a pause, and gives a third tenant the rest. The barriers of all
/// three end.
fn barriers_beside(bed: &Bed) -> Result<Outcome> {
    let mps = Mps::start()?;
    let daemon = daemon(bed)?;
    let half = bed.tpcs.len() / 2 - 2;
    let quota = format!("--quota {half}");
    let owners = ["left", "right"].map(|name| mps.client(daemon.group(name, &quota)));
    let start = |env| bed.kit.start(env, "barrier --seconds 6");
    let running = owners.iter().map(start).collect::<Result<Vec<_>>>()?;
    std::thread::sleep(std::time::Duration::from_millis(1500));
    let third = mps.client(daemon.group("third", ""));
    let line = barrier(bed, &third, "--seconds 1")?;
    met(&line).context("the third tenant")?;
    let most = 2 * (bed.tpcs.len() - 2 * half);
    // CAST: a few SMs.
    ensure!(
        number(&line, "sms")? <= most as f64,
        "{most} are left: {line}"
    );
    for owner in running {
        met(&parse(&owner.line()?)?).context("an owner")?;
    }
    Ok(Outcome::Passed)
}

fn cooperative(bed: &Bed) -> Result<Outcome> {
    const TOO_LARGE: &str = "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE";
    for env in [
        RunEnv::gctgroup(),
        bed.masked(&bed.first(32)),
        bed.masked(&bed.first(1)),
    ] {
        for how in ["cooperative", "attribute"] {
            let fits = barrier(bed, &env, &format!("--how {how}"))?;
            met(&fits)?;
            let line = barrier(bed, &env, &format!("--how {how} --more 1"))?;
            let error = line["error"].as_str().unwrap_or_default();
            ensure!(error.contains(TOO_LARGE), "one block more: {line}");
        }
    }
    Ok(Outcome::Passed)
}

/// Checks the device as PyTorch, Triton and JAX see it, and that persistent and stream-K
/// multiplications are correct.
fn python(bed: &Bed) -> Result<Outcome> {
    let here = MODULES.iter().filter(|module| has_module(module));
    let modules: Vec<&str> = here.copied().collect();
    if modules.is_empty() {
        return Ok(Outcome::Skipped("no PyTorch, Triton or JAX is here".into()));
    }
    let masked = bed.masked(&bed.first(32));
    // Triton compiles only functions that are in files.
    let file = std::env::temp_dir().join(format!("gct-hw-sized-{}.py", std::process::id()));
    std::fs::write(&file, PROGRAM)?;
    let ended = modules.iter().try_for_each(|module| {
        let output = bed
            .kit
            .command("python3".as_ref(), &masked)
            .arg(&file)
            .args([module, "64"])
            .env("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
            .output()?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{module}: {errors}");
        Ok(())
    });
    std::fs::remove_file(&file)?;
    ended.map(|()| Outcome::Passed)
}
