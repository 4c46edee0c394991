// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests the time that `compute.stat` shows of owners with owned channels.

use crate::gpus::me;
use crate::limits::{path, set};
use crate::owned::{count, no_worker};
use crate::owned_time::{groups, stat, tenant, MILLISECOND, ONE, PROGRAM_OF_ONE};
use crate::process::Child;
use crate::timing::undisturbed;
use crate::tree::{self, eventually, Group};
use gct_core::mask::TpcMask;
use gct_ktap::{failed, same, Outcome, Stop, Test};
use std::time::Instant;

pub(crate) const TESTS: &[Test] = &[
    ("owned_time_is_billed", || undisturbed(billed)),
    ("owned_time_is_weighed_by_tpcs", weighed),
];

/// Returns `usage_usec` and `usage_tpc_usec` of this process, as of one moment.
fn times() -> Result<[u64; 2], Stop> {
    let text = tree::read(&path(&me(), "compute.stat")?)?;
    let time = |key| tree::value(&text, key).ok_or_else(|| failed(format!("no {key}: {text}")));
    Ok([time("usage_usec")?, time("usage_tpc_usec")?])
}

/// The least that ten launches of 50 ms are billed, in microseconds. The last one has ended between
/// two looks of the worker, and these were 20 ms apart where six processes shared two processors.
const ENOUGH: u64 = 450_000;

/// `compute.stat` shows how long an owner had the GPU.
fn billed() -> Outcome {
    let [one, _other] = groups()?;
    let mut child = member_of_time(&one)?;
    child.next()?;
    same("its group's", stat(ONE, "usage_usec")? >= ENOUGH, true)?;
    child.go()?;
    child.finish()?;
    no_worker()
}

/// Starts a tenant that works for 500 ms, and checks its time.
fn member_of_time(group: &Group) -> Result<Child, Stop> {
    // The worker bills the time until it sees an end, so the first launches may be billed late.
    let opened = Instant::now();
    tenant(group, PROGRAM_OF_ONE, move |tenant, parent| {
        let [before, _] = times()?;
        for _ in 0..10 {
            tenant.launch(50 * MILLISECOND);
        }
        tenant.wait(0)?;
        eventually("pending", &0, || count("pending"))?;
        let ([used, _], passed) = (times()?, opened.elapsed().as_micros());
        println!("# {} us for 500 ms, {used} of {passed} us", used - before);
        same("enough", used - before >= ENOUGH, true)?;
        same("no more than passed", u128::from(used) <= passed, true)?;
        parent.step()
    })
}

/// A mask has the time of an owner count for the part of the GPU's TPCs that it was granted.
fn weighed() -> Outcome {
    const GRANTED: u64 = 8;
    let [one, _other] = groups()?;
    set(ONE, "tpc.mask", "0-7")?;
    let list = tree::read(&format!("gpus/{}/tpcs.list", tree::index_of(0)?))?;
    let existing = TpcMask::parse(list.trim().as_bytes()).map_err(|_| failed(list))?;
    let mut child = tenant(&one, PROGRAM_OF_ONE, |tenant, _| {
        let [used, weighed] = times()?;
        for _ in 0..10 {
            tenant.launch(5 * MILLISECOND);
        }
        tenant.wait(0)?;
        eventually("pending", &0, || count("pending"))?;
        let [used_then, weighed_then] = times()?;
        let (used, weighed) = (used_then - used, weighed_then - weighed);
        println!("# {weighed} us of {used} us");
        same("used", used >= 50_000, true)?;
        let expected = used * GRANTED / u64::from(existing.count());
        // Both were rounded down to microseconds, and the part to nanoseconds in each round.
        let rounded = 2 + expected / 1_000;
        same("weighed", weighed.abs_diff(expected) <= rounded, true)
    })?;
    child.go()?;
    child.finish()?;
    no_worker()
}
