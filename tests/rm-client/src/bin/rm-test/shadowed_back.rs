// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests that shadowed channels go back to their tenants when no limit binds these any more.

use crate::launch::{Place, PROGRAMS};
use crate::limits::{path, set, FREEZE};
use crate::owned::{join, no_worker, NAME, OWNED};
use crate::owned_bells::faults;
use crate::owned_launch::{disabled, MASK};
use crate::owned_storm::{Random, Witness};
use crate::process::{Child, Parent};
use crate::shadowed::{come_back, counts, cuda_like};
use crate::submit::{queue, release};
use crate::tree::{self, eventually, Group};
use gct_ktap::{failed, same, Outcome, Stop, Test};
use rm_client::Capture;
use std::thread;
use std::time::Duration;

pub(crate) const TESTS: &[Test] = &[
    ("shadowed_back_is_native", native),
    ("shadowed_back_when_drained", drained),
    ("shadowed_back_when_its_group_is_left", moved),
    ("shadowed_back_with_graphs_unmasked", graphs),
    ("shadowed_back_from_hostile_tenants", hostile),
    ("shadowed_back_and_killed", killed),
    ("shadowed_back_under_load", || switches(20)),
];

const ALL: &str = "all";
const SOME: &str = "0-31";
const STAT: &str = "compute.stat";

/// Starts a member of a group that gets a limit when its channels are there.
fn member(work: impl FnOnce(&mut Parent) -> Outcome) -> Result<(Group, Child), Stop> {
    let group = Group::new(NAME)?;
    let mut child = join(&group, work)?;
    child.next()?;
    set(NAME, MASK, SOME)?;
    child.next()?;
    Ok((group, child))
}

/// The GPU reads what the tenant writes again: nobody is left who would copy it. No access faults.
fn native() -> Outcome {
    let (_group, mut child) = member(|parent| {
        let session = cuda_like()?;
        let mut queue = queue(&session)?;
        release(&mut queue, 0, 1)?;
        parent.step()?;
        counts(1, 1)?;
        for number in 2..=300 {
            release(&mut queue, number % 2, number)?;
        }
        queue.write_ring(400, 0x1234_5678_9abc_def0);
        // No former entry is executed again.
        queue.set_payload(1, 0);
        parent.step()?;
        come_back(1)?;
        same("the ring", queue.read_ring(400), 0x1234_5678_9abc_def0)?;
        release(&mut queue, 0, 301)?;
        same("the other semaphore", queue.payload(1), 0)?;
        let before = faults();
        for number in 302..=900 {
            queue.submit_release(0, number);
            while queue.payload(0) != number {
                thread::sleep(Duration::from_micros(100));
            }
        }
        same("faults", faults() - before < 5, true)
    })?;
    set(NAME, MASK, ALL)?;
    child.go()?;
    child.finish()?;
    no_worker()
}

/// What is in flight when the limit goes is executed first. What is submitted meanwhile follows it.
fn drained() -> Outcome {
    let (_group, mut child) = member(|parent| {
        let session = cuda_like()?;
        let mut queue = queue(&session)?;
        release(&mut queue, 0, 1)?;
        parent.step()?;
        release(&mut queue, 0, 2)?;
        parent.step()?;
        for number in 1..=30 {
            queue.submit_release(number, number);
        }
        parent.step()?;
        for number in 31..=60 {
            queue.submit_release(number, number);
        }
        same("in a freeze", queue.payload(1), 0)?;
        counts(1, 1)?;
        parent.step()?;
        eventually("the last", &60, || Ok(queue.payload(60)))?;
        for number in 1..=60 {
            same("payload", queue.payload(number), number)?;
        }
        come_back(1)?;
        release(&mut queue, 0, 3)
    })?;
    set(NAME, FREEZE, "1")?;
    child.next()?;
    set(NAME, MASK, ALL)?;
    child.next()?;
    set(NAME, FREEZE, "0")?;
    child.go()?;
    child.finish()?;
    no_worker()
}

/// A process that leaves the group with the limit has its channels back, and shadowed ones again
/// when it returns.
fn moved() -> Outcome {
    let free = Group::new("free")?;
    let (group, mut child) = member(|parent| {
        let session = cuda_like()?;
        let mut queue = queue(&session)?;
        release(&mut queue, 0, 1)?;
        for round in 1..=3 {
            parent.step()?;
            counts(1, 1)?;
            release(&mut queue, 0, 2 * round)?;
            parent.step()?;
            come_back(1)?;
            release(&mut queue, 0, 2 * round + 1)?;
        }
        Ok(())
    })?;
    for _ in 0..2 {
        free.add(child.pid())?;
        child.next()?;
        group.add(child.pid())?;
        child.next()?;
    }
    free.add(child.pid())?;
    child.go()?;
    child.finish()?;
    no_worker()
}

/// A graph whose nodes hold the former mask keeps its channel shadowed until it is launched
/// without.
fn graphs() -> Outcome {
    let (_group, mut child) = member(|parent| {
        let (_, texts, _) = PROGRAMS.last().ok_or_else(|| failed("no program"))?;
        let whole = Capture::parse(texts)?;
        let [first, again] = [&texts[..1], &texts[1..]].map(Capture::parse);
        let (first, again) = (first?, again?);
        let place = Place::new(cuda_like()?)?;
        let mut channels = place.channels(&whole)?;
        parent.step()?;
        counts(1, 1)?;
        let mut run = |capture: &Capture, words: [u32; 8]| -> Outcome {
            let mark = place.recorder.mark()?;
            let launches = place.run_on(&mut channels, capture, mark)?;
            same("launches", launches.is_empty(), false)?;
            launches
                .iter()
                .try_for_each(|launch| same("mask", &launch.mask_words()[..], &words[..]))
        };
        run(&first, disabled(SOME)?)?;
        parent.step()?;
        // Longer than the worker takes for a channel without graphs.
        thread::sleep(Duration::from_millis(200));
        counts(1, 1)?;
        run(&again, [0; 8])?;
        come_back(1)?;
        run(&again, [0; 8])
    })?;
    set(NAME, MASK, ALL)?;
    child.go()?;
    child.finish()?;
    no_worker()
}

/// A tenant writes random numbers to its ring and USERD while limits come and go. Its neighbour,
/// which the same worker serves, has its releases in time.
fn hostile() -> Outcome {
    let owned = Group::new("beside")?;
    set("beside", OWNED, "1")?;
    let mut witness = Witness::new(&owned)?;
    let group = Group::new(NAME)?;
    let mut child = join(&group, |parent| {
        let mut random = Random::new();
        loop {
            let session = cuda_like()?;
            let mut queue = queue(&session)?;
            release(&mut queue, 0, 1)?;
            parent.work(|| {
                match random.below(5) {
                    0 => queue.write_positions(random.below(600), random.word()),
                    1 => queue.write_ring(random.word(), random.next()),
                    2 => queue.submit_release(1, random.word()),
                    3 => queue.write_put(),
                    _ => queue.ring(),
                }
                Ok(())
            })?;
        }
    })?;
    for _ in 0..10 {
        child.next()?;
        for mask in [SOME, ALL, SOME, ALL] {
            set(NAME, MASK, mask)?;
            thread::sleep(Duration::from_millis(5));
        }
        witness.0.next()?;
    }
    child.kill();
    witness.0.kill();
    no_worker()
}

/// Tenants die at any time after their limit went.
fn killed() -> Outcome {
    let group = Group::new(NAME)?;
    let mut random = Random::new();
    for _ in 0..4 {
        let mut child = join(&group, |parent| {
            let session = cuda_like()?;
            let mut queue = queue(&session)?;
            release(&mut queue, 0, 1)?;
            parent.step()?;
            for number in 1.. {
                queue.submit_release(1, number);
            }
            Ok(())
        })?;
        child.next()?;
        set(NAME, MASK, SOME)?;
        child.go()?;
        thread::sleep(Duration::from_millis(5));
        set(NAME, MASK, ALL)?;
        thread::sleep(Duration::from_micros(random.below(20_000).into()));
        child.kill();
        no_worker()?;
    }
    Ok(())
}

/// A tenant submits without a pause on two channels while a limit comes and goes. All of its
/// releases come, in order.
pub(crate) fn switches(times: u64) -> Outcome {
    const DEEP: u32 = 20;
    let group = Group::new(NAME)?;
    let mut child = join(&group, |parent| {
        let session = cuda_like()?;
        let mut queues = [queue(&session)?, queue(&session)?];
        let mut number = 0;
        let mut burst = || {
            for queue in &mut queues {
                (1..=DEEP).for_each(|ahead| queue.submit_release(ahead % 2, number + ahead));
            }
            number += DEEP;
            for queue in &queues {
                eventually("the last", &number, || Ok(queue.payload(0)))?;
                same("the one before", queue.payload(1), number - 1)?;
            }
            Ok(())
        };
        burst()?;
        parent.work(&mut burst)?;
        burst()
    })?;
    child.next()?;
    for _ in 0..times {
        set(NAME, MASK, SOME)?;
        let cooperative = || tree::stat(&path(NAME, STAT)?, "cooperative");
        same("shadowed", cooperative()?, 2)?;
        set(NAME, MASK, ALL)?;
        eventually("shadowed at last", &0, cooperative)?;
    }
    child.go()?;
    child.finish()?;
    no_worker()
}
