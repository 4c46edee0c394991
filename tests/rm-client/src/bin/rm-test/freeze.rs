// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests that frozen channels stop, and that they continue when they are thawed.

use crate::gpus::{free_subdevice, me, session, ENGINE};
use crate::limits::{set, FREEZE};
use crate::process::{Child, Parent};
use crate::submit::{queue, release};
use crate::tree::{eventually, expect, expect_gone, Group};
use gct_ktap::{failed, same, During, Outcome, Stop, Test};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

pub(crate) const TESTS: &[Test] = &[
    ("limit_freeze_stops_and_goes_on", frozen),
    ("limit_freeze_of_what_comes_later", frozen_later),
    ("limit_freeze_is_not_thawed_by_the_tenant", thawed_by_tenant),
    (
        "limit_freeze_holds_while_threads_undo_it",
        undone_by_threads,
    ),
    (
        "limit_freeze_leaves_what_the_tenant_stopped",
        stopped_by_tenant,
    ),
    ("limit_freeze_without_a_subdevice", without_subdevice),
    ("limit_freeze_of_200_channels", frozen_200),
    ("limit_freeze_of_a_named_group", frozen_members),
    ("limit_freeze_ends_with_a_killed_process", frozen_and_killed),
];

/// Forks another process on the GPU whose work serves as the clock: after each step every runnable
/// group has had many turns.
pub(crate) fn clock() -> Result<Child, Stop> {
    const TURNS: u32 = 20;
    let mut child = Child::fork(|parent: &mut Parent| {
        let session = session(0)?;
        let mut queue = queue(&session)?;
        parent.step()?;
        for payload in 1.. {
            for _ in 0..TURNS {
                release(&mut queue, 0, payload)?;
                release(&mut queue, 0, 0)?;
            }
            parent.step()?;
        }
        Ok(())
    })?;
    child.at_step()?;
    Ok(child)
}

fn frozen() -> Outcome {
    let mut clock = clock()?;
    let session = session(0)?;
    let mut queues = [queue(&session)?, queue(&session)?];
    for round in 1..=3 {
        set(&me(), FREEZE, "1")?;
        for queue in &mut queues {
            queue.submit_release(0, round);
        }
        clock.next()?;
        for queue in &queues {
            same("frozen", queue.payload(0), round - 1)?;
        }
        set(&me(), FREEZE, "0")?;
        for queue in &queues {
            queue.ring();
            eventually("thawed", &round, || Ok(queue.payload(0)))?;
        }
    }
    Ok(())
}

fn frozen_later() -> Outcome {
    let mut clock = clock()?;
    let session = session(0)?;
    let keeper = session.group(ENGINE)?;
    set(&me(), FREEZE, "1")?;
    let mut new_group = queue(&session)?;
    let mut old_group = session.queue(keeper, ENGINE)?;
    session.schedule(keeper, true)?;
    for queue in [&mut new_group, &mut old_group] {
        queue.submit_release(0, 7);
    }
    clock.next()?;
    same("new group", new_group.payload(0), 0)?;
    same("new channel", old_group.payload(0), 0)?;
    set(&me(), FREEZE, "0")?;
    for queue in [&new_group, &old_group] {
        queue.ring();
        eventually("thawed", &7, || Ok(queue.payload(0)))?;
    }
    Ok(())
}

fn thawed_by_tenant() -> Outcome {
    let mut clock = clock()?;
    let session = session(0)?;
    let group = session.group(ENGINE)?;
    let mut queue = session.queue(group, ENGINE)?;
    session.schedule(group, true)?;
    set(&me(), FREEZE, "1")?;
    session.disable(queue.channel(), false)?;
    session.schedule(group, false)?;
    session.schedule(group, true)?;
    queue.submit_release(0, 7);
    clock.next()?;
    same("frozen", queue.payload(0), 0)?;
    set(&me(), FREEZE, "0")?;
    queue.ring();
    eventually("thawed", &7, || Ok(queue.payload(0)))
}

/// Checks that a write ends although threads undo it all the time. When they stop, the frozen
/// channels do not run.
fn undone_by_threads() -> Outcome {
    const THREADS: usize = 3;
    let mut clock = clock()?;
    let session = session(0)?;
    let group = session.group(ENGINE)?;
    let mut queue = session.queue(group, ENGINE)?;
    session.schedule(group, true)?;
    let channel = queue.channel();
    for round in 1..=5 {
        let frozen = AtomicBool::new(false);
        let undo = || -> Result<(), rm_client::Error> {
            while !frozen.load(Ordering::Relaxed) {
                session.disable(channel, false)?;
                session.schedule(group, true)?;
            }
            Ok(())
        };
        thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(undo)).collect();
            let written = set(&me(), FREEZE, "1");
            thread::sleep(Duration::from_millis(20));
            frozen.store(true, Ordering::Relaxed);
            for thread in threads {
                thread.join().map_err(|_| failed("a thread panicked"))??;
            }
            written
        })?;
        queue.submit_release(0, round);
        clock.next()?;
        same("frozen", queue.payload(0), round - 1)?;
        set(&me(), FREEZE, "0")?;
        queue.ring();
        eventually("thawed", &round, || Ok(queue.payload(0)))?;
    }
    Ok(())
}

/// Checks that thawing puts only those channels on the runlist that their owner has put there.
fn stopped_by_tenant() -> Outcome {
    let mut clock = clock()?;
    let session = session(0)?;
    let group = session.group(ENGINE)?;
    let mut queue = session.queue(group, ENGINE)?;
    set(&me(), FREEZE, "1")?;
    set(&me(), FREEZE, "0")?;
    queue.submit_release(0, 7);
    clock.next()?;
    same("not scheduled", queue.payload(0), 0)?;
    session.schedule(group, true)?;
    queue.ring();
    eventually("scheduled", &7, || Ok(queue.payload(0)))
}

/// Checks a tenant that has no subdevice, when nobody has one on the GPU.
fn without_subdevice() -> Outcome {
    let session = session(0)?;
    let mut queue = queue(&session)?;
    free_subdevice(&session)?;
    set(&me(), FREEZE, "1")?;
    queue.submit_release(0, 7);
    // The clock has a subdevice, so it starts after the freeze.
    let mut clock = clock()?;
    clock.next()?;
    same("frozen", queue.payload(0), 0)?;
    set(&me(), FREEZE, "0")?;
    queue.ring();
    eventually("thawed", &7, || Ok(queue.payload(0)))
}

/// Checks channels that need several controls, since a control names 64 channels at most.
fn frozen_200() -> Outcome {
    const CHANNELS: u32 = 100;
    let mut clock = clock()?;
    let session = session(0)?;
    let mut last = Vec::new();
    for _ in 0..2 {
        let group = session.group(ENGINE)?;
        for _ in 1..CHANNELS {
            session.channel(group, ENGINE)?;
        }
        last.push(session.queue(group, ENGINE)?);
        session.schedule(group, true)?;
    }
    expect(&me(), 0, Some((2, 200)))?;
    set(&me(), FREEZE, "1")?;
    for queue in &mut last {
        queue.submit_release(0, 7);
    }
    clock.next()?;
    for queue in &last {
        same("frozen", queue.payload(0), 0)?;
    }
    set(&me(), FREEZE, "0")?;
    for queue in &last {
        queue.ring();
        eventually("thawed", &7, || Ok(queue.payload(0)))?;
    }
    Ok(())
}

/// Forks a process that submits at each step and reports the work completed so far.
fn worker() -> Result<Child, Stop> {
    let mut child = Child::fork(|parent: &mut Parent| {
        let session = session(0)?;
        let mut queue = queue(&session)?;
        parent.step()?;
        queue.submit_release(0, 1);
        parent.step()?;
        if queue.payload(0) != 0 {
            return Err(failed("it ran while it was frozen"));
        }
        parent.step()?;
        queue.ring();
        eventually("thawed", &1, || Ok(queue.payload(0)))?;
        parent.step()
    })?;
    child.at_step()?;
    Ok(child)
}

fn frozen_members() -> Outcome {
    let group = Group::new("rm")?;
    let mut clock = clock()?;
    let mut workers = [worker()?, worker()?];
    group.add(workers[0].pid())?;
    set("rm", FREEZE, "1")?;
    // A process that joins a frozen group stops.
    group.add(workers[1].pid())?;
    workers.iter_mut().try_for_each(Child::next)?;
    clock.next()?;
    workers.iter_mut().try_for_each(Child::next)?;
    set("rm", FREEZE, "0")?;
    workers.iter_mut().try_for_each(Child::next)
}

fn frozen_and_killed() -> Outcome {
    let mut worker = worker()?;
    let pid = worker.pid().to_string();
    set(&pid, FREEZE, "1")?;
    worker.next()?;
    worker.kill();
    expect_gone(worker.pid())?;
    let mut clock = clock()?;
    clock.next().during("the GPU afterwards")
}
