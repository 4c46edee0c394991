// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests channels whose rings are the driver's: they work as others do, end with their owner, and
//! execute what was submitted, whatever the tenant does to its own ring.

use crate::gpus::{me, session, ENGINE};
use crate::limits::{path, set};
use crate::process::{Child, Parent};
use crate::submit::{queue, release};
use crate::tree::{self, eventually, Group};
use fakegpu_record::Recorder;
use gct_ktap::{failed, same, During, Outcome, Stop, Test};
use rm_client::Session;
use std::fs;
use std::thread;

pub(crate) const TESTS: &[Test] = &[
    ("owned_work_is_done", work),
    ("owned_work_around_the_ring", around),
    ("owned_groups_and_context_shares", shares),
    ("owned_nothing_without_the_switch", nothing),
    ("owned_submission_by_a_child", forked),
    ("owned_handles_are_used_again", again),
    ("owned_killed_at_every_step", killed),
    ("owned_40_channels", forty),
    ("owned_by_16_threads", threads),
    ("owned_hostile_rewrites_its_ring", rewritten),
    ("owned_hostile_writes_garbage", garbage),
    ("owned_hostile_races_its_parameters", raced),
];

pub(crate) const OWNED: &str = "channel.owned";

/// The name of the group of these tests.
pub(crate) const NAME: &str = "owned";

/// Makes all channels of this process and of its children the driver's, for good.
pub(crate) fn everybody() -> Outcome {
    const ALL: &str = "everybody";
    let group = Group::new(ALL)?;
    set(ALL, OWNED, "1")?;
    group.add(std::process::id())?;
    // It has this process as long as there are tests.
    std::mem::forget(group);
    let mut child = Child::fork(|_| {
        let session = session(0)?;
        let mut queue = queue(&session)?;
        release(&mut queue, 0, 1)?;
        counts(1, 0)
    })?;
    child.finish()
}

/// Runs `work` in a process whose channels are the driver's, and waits for it.
pub(crate) fn as_member(work: impl FnOnce(&mut Parent) -> Outcome) -> Outcome {
    let group = Group::new(NAME)?;
    let mut child = member(&group, work)?;
    child.go()?;
    child.finish()?;
    no_worker()
}

/// Starts a process whose channels are the driver's. It waits for [`Child::go`].
pub(crate) fn member(
    group: &Group,
    work: impl FnOnce(&mut Parent) -> Outcome,
) -> Result<Child, Stop> {
    set(NAME, OWNED, "1")?;
    join(group, work)
}

/// Starts a process that is a member of a group before it runs `work`. It waits for [`Child::go`].
pub(crate) fn join(
    group: &Group,
    work: impl FnOnce(&mut Parent) -> Outcome,
) -> Result<Child, Stop> {
    let mut child = Child::fork(|parent| {
        parent.step()?;
        work(parent)
    })?;
    child.at_step()?;
    group.add(child.pid())?;
    Ok(child)
}

/// Adds a process that waits to a group, and lets it do its work.
pub(crate) fn admit(group: &Group, mut child: Child) -> Outcome {
    child.at_step()?;
    group.add(child.pid())?;
    child.go()?;
    child.finish()?;
    no_worker()
}

/// Returns a count of this process.
pub(crate) fn count(key: &str) -> Result<u64, Stop> {
    tree::stat(&path(&me(), "compute.stat")?, key)
}

/// Fails unless so many channels are owned, and so many are not although they should be.
pub(crate) fn counts(owned: u64, unowned: u64) -> Outcome {
    eventually("owned, unowned", &(owned, unowned), || {
        Ok((count("owned")?, count("unowned")?))
    })
}

/// Returns what /proc says of each worker.
fn statuses() -> Result<Vec<String>, Stop> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        // A process may end between being listed and being read.
        let status = fs::read_to_string(entry?.path().join("status")).unwrap_or_default();
        if status.starts_with("Name:\tgct/") {
            found.push(status);
        }
    }
    Ok(found)
}

/// Returns how many workers there are.
pub(crate) fn workers() -> Result<usize, Stop> {
    Ok(statuses()?.len())
}

/// Returns what /proc says of a worker under a key.
pub(crate) fn worker_status(key: &str) -> Result<String, Stop> {
    let all = statuses()?;
    let mut lines = all.iter().flat_map(|status| status.lines());
    let value = lines.find_map(|line| line.strip_prefix(key)?.strip_prefix(":\t"));
    let value = value.ok_or_else(|| failed(format!("no worker with {key}")))?;
    Ok(value.to_owned())
}

/// Fails unless all workers are gone: no channel is owned any more.
pub(crate) fn no_worker() -> Outcome {
    eventually("workers", &0, workers)
}

fn work() -> Outcome {
    as_member(|_| {
        let session = session(0)?;
        let mut queue = queue(&session)?;
        counts(1, 0)?;
        same("workers", workers()?, 1)?;
        for number in 0..10 {
            release(&mut queue, number, 0x1000 + number)?;
        }
        Ok(())
    })
}

/// Submits more entries than both rings have.
fn around() -> Outcome {
    as_member(|_| {
        let session = session(0)?;
        let mut queue = queue(&session)?;
        for number in 1..=1100 {
            release(&mut queue, 0, number)?;
        }
        counts(1, 0)
    })
}

fn shares() -> Outcome {
    as_member(|_| {
        let session = session(0)?;
        let (mut one, mut two) = (queue(&session)?, queue(&session)?);
        for number in 1..=20 {
            release(&mut one, 1, number)?;
            release(&mut two, 1, 100 + number)?;
        }
        same("the first's", one.payload(1), 20)?;
        counts(2, 0)
    })
}

/// Checks that a neighbour of owned channels has no part in them: its parameters reach RM as they
/// are, and RM hears of no client but its own.
fn nothing() -> Outcome {
    let index = usize::try_from(tree::index_of(0)?).map_err(failed)?;
    let recorder = Recorder::open(index).during("recorder")?;
    // RM has clients of its own while it initialises the GPU.
    let session = session(0)?;
    let mark = recorder.mark()?;
    let mut queue = queue(&session)?;
    release(&mut queue, 0, 1)?;
    same("workers", workers()?, 0)?;
    let client = session.gpu().client().handle();
    let events = recorder.since(mark)?;
    let foreign = events.iter().filter(|event| {
        let made = ["alloc", "duplicate", "free"].contains(&event.kind.as_str());
        made && event.client != client
    });
    same("events of other clients", foreign.count(), 0)?;
    let rings = rings(&recorder, mark)?;
    same("ring", rings, vec![queue.ring_address()])
}

/// Returns the rings of the channels that GSP was told of from `mark` on.
pub(crate) fn rings(recorder: &Recorder, mark: u32) -> Result<Vec<u64>, Stop> {
    let events = recorder.since(mark)?;
    let channels = events
        .iter()
        .filter(|event| event.kind == "alloc" && event.class.contains("CHANNEL_GPFIFO"));
    // `gpFifoOffset` of `NV_CHANNEL_ALLOC_PARAMS`.
    Ok(channels.filter_map(|event| event.param(8, 8)).collect())
}

/// Checks that a forked child has its parent's mappings, and so its mailbox.
fn forked() -> Outcome {
    as_member(|_| {
        let session = session(0)?;
        let mut queue = queue(&session)?;
        release(&mut queue, 0, 1)?;
        let mut child = Child::fork(|parent| {
            parent.step()?;
            release(&mut queue, 0, 2)
        })?;
        child.at_step()?;
        child.go()?;
        child.finish()?;
        same("the child's", queue.payload(0), 2)
    })
}

/// Checks that a channel that is freed leaves nothing to the next one of its handle.
fn again() -> Outcome {
    as_member(|_| {
        let session = session(0)?;
        let client = session.gpu().client();
        for round in 1..=5 {
            let group = session.group(ENGINE)?;
            let mut queue = session.queue(group, ENGINE).during("queue")?;
            session.copy_object(queue.channel(), ENGINE)?;
            session.schedule(group, true)?;
            release(&mut queue, 0, round)?;
            match round % 2 {
                0 => client.free(group)?,
                _ => client.free(queue.channel())?,
            }
            // Nobody is left to serve it. Linux still shows a thread for a moment when
            // kthread_stop() has returned.
            no_worker()?;
        }
        Ok(())
    })
}

/// Lives the life of a channel, which a signal ends at each step.
fn life(parent: &mut Parent, session: &Session) -> Outcome {
    let group = session.group(ENGINE)?;
    parent.step()?;
    let mut queue = session.queue(group, ENGINE)?;
    parent.step()?;
    session.copy_object(queue.channel(), ENGINE)?;
    queue.submit_release(0, 1);
    parent.step()?;
    session.schedule(group, true)?;
    for number in 0..400 {
        queue.submit_release(1, number);
    }
    parent.step()?;
    release(&mut queue, 0, 2)?;
    session.gpu().client().free(queue.channel())?;
    parent.step()
}

fn killed() -> Outcome {
    dies(|| session(0))
}

/// Kills a member at each step of a channel's life, beside a member that works on.
pub(crate) fn dies(session_of: fn() -> Result<Session, Stop>) -> Outcome {
    const STEPS: u32 = 5;
    let group = Group::new(NAME)?;
    for last in 1..=STEPS {
        let mut witness = member(&group, |parent| {
            let session = session(0)?;
            let mut queue = queue(&session)?;
            for number in 1..=3 {
                release(&mut queue, 0, number)?;
                parent.step()?;
            }
            Ok(())
        })?;
        witness.next()?;
        let mut child = member(&group, |parent| life(parent, &session_of()?))?;
        for step in 1..=last {
            child.next().during(format!("step {step}"))?;
        }
        // Once while it works, and once after it.
        witness.next().during("beside it")?;
        child.kill();
        witness.next().during("after its death")?;
        witness.go()?;
        witness.finish()?;
        no_worker()?;
    }
    Ok(())
}

fn forty() -> Outcome {
    channels(40)
}

/// Creates many channels in four groups, and has each execute a release.
pub(crate) fn channels(count: u64) -> Outcome {
    as_member(|_| {
        let session = session(0)?;
        let mut queues = Vec::new();
        for _ in 0..4 {
            let group = session.group(ENGINE)?;
            for _ in 0..count / 4 {
                queues.push(session.queue(group, ENGINE).during("queue")?);
            }
            session.schedule(group, true)?;
        }
        counts(count, 0)?;
        for (queue, payload) in queues.iter_mut().zip(1..) {
            queue.submit_release(0, payload);
        }
        for (queue, payload) in queues.iter().zip(1..) {
            eventually("payload", &payload, || Ok(queue.payload(0)))?;
        }
        same("workers", workers()?, 1)
    })
}

fn threads() -> Outcome {
    as_member(|_| {
        // Each has a client of its own, and they open and close the GPU's worker in turn.
        let work = |thread: u32| -> Outcome {
            for round in 1..=3 {
                let session = session(0)?;
                let mut queue = queue(&session)?;
                release(&mut queue, 0, 100 * thread + round)?;
            }
            Ok(())
        };
        thread::scope(|scope| {
            let all: Vec<_> = (0..16).map(|at| scope.spawn(move || work(at))).collect();
            all.into_iter().try_for_each(|one| match one.join() {
                Ok(outcome) => outcome,
                Err(_) => Err(failed("a thread panicked")),
            })
        })
    })
}

/// Submits a release of semaphore 0 to a group that is not scheduled, makes the ring's entry one of
/// semaphore 1 after a while, and schedules the group. Returns both payloads.
fn replaced() -> Result<[u32; 2], Stop> {
    let session = session(0)?;
    let group = session.group(ENGINE)?;
    let mut waiting = session.queue(group, ENGINE)?;
    session.copy_object(waiting.channel(), ENGINE)?;
    waiting.submit_release(0, 7);
    let mut clock = queue(&session)?;
    for number in 1..=20 {
        release(&mut clock, 1, number)?;
    }
    waiting.replace_last(1, 9);
    session.schedule(group, true)?;
    waiting.ring();
    eventually("either", &true, || {
        Ok(waiting.payload(0) + waiting.payload(1) != 0)
    })?;
    for number in 1..=20 {
        release(&mut clock, 1, number)?;
    }
    Ok([waiting.payload(0), waiting.payload(1)])
}

/// Checks that the GPU executes the entries that were submitted, and not what the tenant makes of
/// its ring afterwards. Of a native channel it executes the latter, so the test can tell.
fn rewritten() -> Outcome {
    same("native", replaced()?, [0, 9])?;
    as_member(|_| same("owned", replaced()?, [7, 0]))
}

/// Checks that GP_PUT may be any number, and GP_GET is only shown. What lies in the ring is not
/// executed again.
fn garbage() -> Outcome {
    as_member(|_| {
        let session = session(0)?;
        let (mut lying, mut other) = (queue(&session)?, queue(&session)?);
        release(&mut lying, 5, 1)?;
        lying.replace_last(6, 9);
        for round in 1..=3 {
            for put in [512, 0x8000_0000, u32::MAX] {
                lying.write_positions(put, u32::MAX);
                lying.ring();
                release(&mut other, 0, round)?;
                release(&mut other, 0, 0)?;
            }
            same("executed again", lying.payload(6), 0)?;
            lying.write_put();
            release(&mut lying, 0, round)?;
        }
        Ok(())
    })
}

/// Changes the address of the ring in another thread while the ioctl runs. Either RM gets the
/// driver's ring, or the channel is counted; nothing in between.
fn raced() -> Outcome {
    as_member(|_| {
        let index = usize::try_from(tree::index_of(0)?).map_err(failed)?;
        let recorder = Recorder::open(index).during("recorder")?;
        let session = session(0)?;
        let group = session.group(ENGINE)?;
        let mut tenants = Vec::new();
        for _ in 0..2 {
            tenants.push(session.ring_memory().during("ring")?);
        }
        for round in 1..=40 {
            let mark = recorder.mark()?;
            session
                .channel_raced(group, ENGINE, [tenants[0], tenants[1]])
                .during("channel")?;
            let found = rings(&recorder, mark)?;
            same("rings", found.len(), 1)?;
            same("a tenant's", tenants.contains(&found[0]), false)?;
            counts(round, 0)?;
        }
        Ok(())
    })
}
