// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Faults of one program beside another, and a frozen kernel that does not end.

use crate::{Bed, Outcome, Test};
use anyhow::{ensure, Context, Result};
use gct_hw::daemon::Daemon;
use gct_hw::kit::{parse, RunEnv};
use gct_hw::mps::Mps;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub(crate) const TESTS: &[Test] = &[
    ("faults_stay_with_their_owner", faults_by_turns),
    ("mps_clients_share_faults", faults_under_mps),
    ("a_client_of_mps_leaves_after_its_work", leaves),
    ("a_persistent_kernel_freezes_and_goes_on", persistent),
];

/// A kind of fault.
struct Fault {
    how: &'static str,
    error: &'static str,
    /// What `compute.events` counts where processes take turns.
    xid: u32,
    /// What it counts under MPS.
    mps_xid: Option<u32>,
}

const FAULTS: [Fault; 3] = [
    Fault {
        how: "illegal",
        error: "CUDA_ERROR_ILLEGAL_ADDRESS",
        xid: 31,
        mps_xid: Some(31),
    },
    Fault {
        how: "assert",
        error: "CUDA_ERROR_ASSERT",
        xid: 43,
        mps_xid: None,
    },
    Fault {
        how: "trap",
        error: "CUDA_ERROR_LAUNCH_FAILED",
        xid: 43,
        mps_xid: Some(43),
    },
];

/// Exits with half a second of work.
const LEAVE: &str = "leave --blocks 1056 --cycles 100000000";

/// Runs a program that fails, and checks its error.
fn fail(bed: &Bed, env: &RunEnv, fault: &Fault) -> Result<()> {
    let line = bed.kit.json(env, &format!("fault --how {}", fault.how))?;
    let error = line["error"].as_str().context("no error")?;
    ensure!(error == fault.error, "{} is {line}", fault.how);
    Ok(())
}

/// Checks that a group has had one fault with this Xid, or none.
fn counted(daemon: &Daemon, group: &str, xid: Option<u32>) -> Result<()> {
    let events = daemon.get(group, "compute.events")?;
    let is = |line: String| events.lines().any(|own| own == line);
    let (faults, last) = (u32::from(xid.is_some()), xid.unwrap_or(0));
    ensure!(
        is(format!("faults {faults}")) && is(format!("last_xid {last}")),
        "expected {xid:?}: {events}"
    );
    Ok(())
}

/// Checks that a neighbour goes on, the fault counts with its owner, and the owner's reservation is
/// free.
fn faults_by_turns(bed: &Bed) -> Result<Outcome> {
    let daemon = Daemon::start(&bed.kit, &bed.tpcs.join(","))?;
    daemon.create("beside")?;
    let beside = daemon.group("beside", "");
    for fault in &FAULTS {
        let name = format!("owner-{}", fault.how);
        let owner = daemon.group(&name, "--quota 20");
        let neighbour = bed.kit.start(&beside, "exact --rounds 300 --plain")?;
        fail(bed, &owner, fault)?;
        neighbour.line()?;
        counted(&daemon, &name, Some(fault.xid))?;
        let sms = bed.kit.json(&beside, "sms --blocks 8000 --cycles 20000")?;
        let used = sms.as_object().map_or(0, serde_json::Map::len);
        ensure!(
            used == 2 * bed.tpcs.len(),
            "{used} SMs are free after {}",
            fault.how
        );
    }
    counted(&daemon, "beside", None)?;
    Ok(Outcome::Passed)
}

/// Clients of a server share an illegal address and a trap, not an assert. A later client is exact.
fn faults_under_mps(bed: &Bed) -> Result<Outcome> {
    let mps = Mps::start()?;
    let daemon = Daemon::start(&bed.kit, &bed.tpcs.join(","))?;
    daemon.create("beside")?;
    let beside = mps.client(daemon.group("beside", ""));
    for fault in &FAULTS {
        let name = format!("owner-{}", fault.how);
        let owner = mps.client(daemon.group(&name, ""));
        let work = "best-effort --blocks 1056 --cycles 20000 --seconds 6";
        let neighbour = bed.kit.start(&beside, work)?;
        std::thread::sleep(Duration::from_millis(1500));
        fail(bed, &owner, fault)?;
        let ended = neighbour.line();
        let text = format!("{}: {ended:?}", fault.how);
        ensure!(!text.contains("did not end"), "{text}");
        ensure!(ended.is_ok() == fault.mps_xid.is_none(), "{text}");
        counted(&daemon, &name, fault.mps_xid)?;
        bed.kit.run(&beside, "exact --rounds 30 --plain")?;
    }
    Ok(Outcome::Passed)
}

/// Checks that a client of MPS that exits while its kernels run takes no other client along.
fn leaves(bed: &Bed) -> Result<Outcome> {
    let mps = Mps::start()?;
    let daemon = Daemon::start(&bed.kit, &bed.tpcs.join(","))?;
    daemon.create("beside")?;
    let beside = mps.client(daemon.group("beside", ""));
    let leaver = mps.client(daemon.group("leaver", ""));
    let work = "best-effort --blocks 1056 --cycles 20000 --seconds 6";
    let neighbour = bed.kit.start(&beside, work)?;
    std::thread::sleep(Duration::from_millis(1500));
    for _ in 0..3 {
        bed.kit.run(&leaver, LEAVE)?;
    }
    neighbour.line()?;
    bed.kit.run(&beside, "exact --rounds 30 --plain")?;
    Ok(Outcome::Passed)
}

/// Checks that a frozen kernel makes no step from the end of the write on, and goes on at the thaw.
fn persistent(bed: &Bed) -> Result<Outcome> {
    let daemon = Daemon::start(&bed.kit, &bed.tpcs.join(","))?;
    daemon.create("still")?;
    let running = bed
        .kit
        .start(&daemon.group("still", ""), "persist --seconds 5")?;
    std::thread::sleep(Duration::from_secs(2));
    daemon.set("still", "compute.freeze", "1")?;
    let frozen = now()?;
    std::thread::sleep(Duration::from_secs(1));
    let thaws = now()?;
    daemon.set("still", "compute.freeze", "0")?;
    let thawed = now()?;
    let lines = running.line()?;
    let counts = |from: u64, to: u64| -> Result<Vec<u64>> {
        let mut counts = Vec::new();
        for line in lines.lines() {
            let sample = parse(line)?;
            let number = |key: &str| sample[key].as_u64().context("no number");
            if (from..to).contains(&number("ns")?) {
                counts.push(number("count")?);
            }
        }
        Ok(counts)
    };
    let spread = |counts: &[u64]| Some(counts.last()?.saturating_sub(*counts.first()?));
    let (before, during, after) = (
        counts(0, frozen)?,
        counts(frozen, thaws)?,
        counts(thawed, u64::MAX)?,
    );
    ensure!(
        during.len() > 50 && spread(&during) == Some(0),
        "frozen it counted from {:?} to {:?}",
        during.first(),
        during.last()
    );
    ensure!(
        spread(&before) > Some(1000) && spread(&after) > Some(1000),
        "it does not count: {:?} {:?}",
        spread(&before),
        spread(&after)
    );
    Ok(Outcome::Passed)
}

/// Nanoseconds of Unix time.
fn now() -> Result<u64> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    Ok(u64::try_from(now.as_nanos())?)
}
