// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests that limits are those of a process, whatever files it opens, and end with it.

use crate::gpus::{me, session};
use crate::launch::recorder;
use crate::limits::set;
use crate::owned::{count, no_worker};
use crate::owned_time::{
    groups, launches, reserved, tenant, Tenant, MILLISECOND, ONE, OTHER, PRIORITY, PROGRAM_OF_ONE,
    PROGRAM_OF_OTHER, QUOTA,
};
use crate::timing::undisturbed;
use crate::tree::eventually;
use fakegpu_record::Event;
use gct_ktap::{failed, same, Outcome, Test};
use std::time::{Duration, Instant};

pub(crate) const TESTS: &[Test] = &[
    ("owned_time_files_share_a_limit", || undisturbed(shared)),
    ("owned_time_the_dead_hold_nobody", || undisturbed(dead)),
    ("owned_time_the_dead_reserve_nothing", dead_quota),
];

/// A process that opens the driver twice has the time of `compute.max` once.
fn shared() -> Outcome {
    let [one, _other] = groups()?;
    set(ONE, "compute.max", "20000 100000")?;
    let recorder = recorder()?;
    let mut child = tenant(&one, PROGRAM_OF_ONE, |first, parent| {
        let mut second = Tenant::with(session(0)?, PROGRAM_OF_OTHER)?;
        parent.step()?;
        let end = Instant::now() + Duration::from_secs(3);
        while Instant::now() < end {
            for tenant in [&mut *first, &mut second] {
                tenant.launch(MILLISECOND);
                tenant.wait(7)?;
            }
        }
        first.wait(0)?;
        second.wait(0)
    })?;
    child.next()?;
    let mark = recorder.mark()?;
    child.go()?;
    child.finish()?;
    let mut all = launches(&recorder, mark, PROGRAM_OF_ONE)?;
    all.extend(launches(&recorder, mark, PROGRAM_OF_OTHER)?);
    let first = all.iter().map(|launch| launch.began).min();
    let last = all.iter().map(|launch| launch.ns).max();
    let (Some(first), Some(last)) = (first, last) else {
        return Err(failed("no launches"));
    };
    // Each takes a millisecond and two microseconds.
    let percent = all.len() as u64 * 1_002_000 * 100 / (last - first).max(1);
    println!("# {} launches in {} us", all.len(), (last - first) / 1000);
    same(&format!("{percent}%"), (2..=22).contains(&percent), true)?;
    no_worker()
}

/// An owner of an earlier priority is killed with seconds of work in flight. Work of the other that
/// waits for it runs at once.
fn dead() -> Outcome {
    let [one, other] = groups()?;
    set(ONE, PRIORITY, "0")?;
    let mut first = tenant(&one, PROGRAM_OF_ONE, |tenant, parent| {
        // More than a busy host takes for what follows.
        for _ in 0..200 {
            tenant.launch(100 * MILLISECOND);
        }
        eventually("pending", &true, || Ok(count("pending")? > 0))?;
        parent.step()?;
        tenant.wait(0)
    })?;
    let mut second = tenant(&other, PROGRAM_OF_OTHER, |tenant, parent| {
        tenant.launch(MILLISECOND);
        eventually("pending", &true, || Ok(count("pending")? > 0))?;
        parent.step()?;
        let start = Instant::now();
        tenant.wait(0)?;
        let took = start.elapsed();
        println!("# {} ms", took.as_millis());
        same("soon", took < Duration::from_secs(1), true)
    })?;
    first.next()?;
    second.next()?;
    first.kill();
    second.go()?;
    second.finish()?;
    no_worker()
}

/// The TPCs of a process's own quota are everybody's once it was killed, also for those who take no
/// lent ones. Those of its group's quota stay reserved.
fn dead_quota() -> Outcome {
    let [one, other] = groups()?;
    set(ONE, QUOTA, "12")?;
    set(OTHER, "tpc.steal", "0")?;
    let recorder = recorder()?;
    let mut owner = tenant(&one, PROGRAM_OF_ONE, |_, parent| {
        set(&me(), QUOTA, "20")?;
        parent.step()
    })?;
    let mut second = tenant(&other, PROGRAM_OF_OTHER, |tenant, parent| {
        for _ in 0..3 {
            tenant.launch(MILLISECOND);
            tenant.wait(0)?;
            parent.step()?;
        }
        Ok(())
    })?;
    owner.next()?;
    let of_group = reserved(ONE)?;
    let mut of_both = reserved(&owner.pid().to_string())?;
    for (word, of_group) in of_both.iter_mut().zip(of_group) {
        *word |= of_group;
    }
    let steps = [
        ("of both", of_both),
        ("of the group", of_group),
        ("free", [0; 8]),
    ];
    for (what, disabled) in steps {
        let mark = recorder.mark()?;
        second.next()?;
        let launches = launches(&recorder, mark, PROGRAM_OF_OTHER)?;
        let masks: Vec<_> = launches.iter().map(Event::mask_words).collect();
        same(what, masks, vec![disabled.to_vec()])?;
        if what == "of both" {
            owner.kill();
        } else {
            set(ONE, QUOTA, "none")?;
        }
    }
    second.go()?;
    second.finish()?;
    no_worker()
}
