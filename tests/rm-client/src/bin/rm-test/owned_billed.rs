// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests the time that `compute.stat` shows of owners with owned channels.

use crate::limits::set;
use crate::owned::{count, no_worker};
use crate::owned_time::{groups, stat, tenant, MILLISECOND, ONE, PROGRAM_OF_ONE};
use crate::tree::{self, eventually};
use gct_core::mask::TpcMask;
use gct_ktap::{failed, same, Outcome, Stop, Test};
use std::time::Instant;

pub(crate) const TESTS: &[Test] = &[
    ("owned_time_is_billed", billed),
    ("owned_time_is_weighed_by_tpcs", weighed),
];

/// `compute.stat` shows how long an owner had the GPU.
fn billed() -> Outcome {
    let [one, _other] = groups()?;
    let mut child = tenant(&one, PROGRAM_OF_ONE, |tenant, parent| {
        let (before, start) = (count("usage_usec")?, Instant::now());
        for _ in 0..10 {
            tenant.launch(50 * MILLISECOND);
        }
        tenant.wait(0)?;
        eventually("pending", &0, || count("pending"))?;
        let used = count("usage_usec")? - before;
        let passed = start.elapsed().as_micros();
        println!("# {used} us for 500 ms, of {passed} us");
        // The worker bills the time until it sees an end.
        same("enough", used >= 480_000, true)?;
        same("no more than passed", u128::from(used) <= passed, true)?;
        parent.step()
    })?;
    child.next()?;
    same("its group's", stat(ONE, "usage_usec")? >= 480_000, true)?;
    child.go()?;
    child.finish()?;
    no_worker()
}

/// A mask has the time of an owner count for the part of the GPU's TPCs that it was granted.
fn weighed() -> Outcome {
    const GRANTED: u64 = 8;
    let [one, _other] = groups()?;
    set(ONE, "tpc.mask", "0-7")?;
    let list = tree::read(&format!("gpus/{}/tpcs.list", tree::index_of(0)?))?;
    let existing = TpcMask::parse(list.trim().as_bytes()).map_err(|_| failed(list))?;
    let mut child = tenant(&one, PROGRAM_OF_ONE, |tenant, _| {
        let times = || Ok::<_, Stop>([count("usage_usec")?, count("usage_tpc_usec")?]);
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
        // Both were rounded down to microseconds.
        let expected = used * GRANTED / u64::from(existing.count());
        same("weighed", weighed.abs_diff(expected) <= 2, true)
    })?;
    child.go()?;
    child.finish()?;
    no_worker()
}
