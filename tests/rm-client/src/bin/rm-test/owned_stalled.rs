// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests that work goes on while a process keeps the resource manager's locks.
//!
//! The resource manager reads the name of a key from its caller's memory with these locks held. The
//! caller has its address space locked by a fork, as in `shadowed_stalled`, so that a page of the
//! name does not come.

use crate::charged::Cgroup;
use crate::gpus::session;
use crate::limits::set;
use crate::owned::{join, no_worker, NAME, OWNED};
use crate::owned_memory::{Segment, AT};
use crate::process::{pipe, Child};
use crate::shadowed_stalled::{fork_once, make_tables, while_locked, TABLE, TABLES};
use crate::submit::{queue, release};
use crate::suspended::has_lockdep;
use crate::tree::{eventually, Group};
use gct_ktap::{failed, skipped, Outcome, Stop, Test};
use std::fs::File;
use std::io::{Read, Write};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::mpsc::channel;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

pub(crate) const TESTS: &[Test] = &[("owned_work_beside_a_stalled_resource_manager", works)];

/// How long the resource manager answers nobody before its locks count as kept, and how long they
/// may take to be so.
const KEPT: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(10);

/// Where the thread that calls the resource manager finds the key's name.
static NAMED: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());

/// Writes a key when it is told to, whose name is in memory that no page is in yet. Touches nothing
/// but its own stack before.
fn write_key(mut tell: &File, session: &rm_client::Session) -> Outcome {
    let mut byte = [0];
    tell.read_exact(&mut byte)?;
    let name = NAMED.load(Ordering::Acquire).cast::<[u8; 2]>();
    // SAFETY: memory of a mapping that stays, and that nobody writes.
    session.gpu().client().write_key(unsafe { &*name })?;
    Ok(())
}

/// Waits until the resource manager answers nobody. Returns a thread that waits for it.
fn kept() -> Result<JoinHandle<bool>, Stop> {
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        let (sender, has_opened) = channel();
        let asks = thread::spawn(move || {
            let opened = session(0).is_ok();
            let _ = sender.send(());
            opened
        });
        if has_opened.recv_timeout(KEPT).is_err() {
            return Ok(asks);
        }
        asks.join().map_err(|_| failed("a thread panicked"))?;
    }
    Err(failed("the resource manager's locks are not kept"))
}

/// A process without limits keeps the locks. One member submits words that the driver has no window
/// to, so that the resource manager is called for it. Another one's work goes on.
fn works() -> Outcome {
    if has_lockdep() {
        // Then it switches itself off.
        return Err(skipped(
            "lockdep reports a copy of the resource manager's with its locks held",
        ));
    }
    let group = Group::new(NAME)?;
    set(NAME, OWNED, "1")?;
    let cgroup = Cgroup::new("stalled")?;
    let (told, mut tell) = pipe()?;
    let mut needs = join(&group, |parent| {
        let session = session(0)?;
        let mut queue = queue(&session)?;
        release(&mut queue, 0, 1)?;
        let semaphore = queue.ring_address() + 0xf000;
        let segment = Segment::new(&session, AT, semaphore, 2)?;
        parent.step()?;
        segment.submit(&mut queue);
        parent.step()?;
        eventually("its payload", &2, || Ok(queue.payload(0)))
    })?;
    needs.next()?;
    let mut other = join(&group, |parent| {
        let session = session(0)?;
        let mut queue = queue(&session)?;
        release(&mut queue, 0, 1)?;
        parent.step()?;
        for number in 2..20 {
            release(&mut queue, 0, number)?;
        }
        parent.step()
    })?;
    other.next()?;
    let mut keeps = Child::fork(|parent| {
        let session = session(0)?;
        thread::scope(|scope| {
            let call = scope.spawn(|| write_key(&told, &session));
            let start = make_tables()?;
            // Behind the last byte that was used.
            NAMED.store(
                start.wrapping_add((TABLES - 1) * TABLE + TABLE / 2),
                Ordering::Release,
            );
            cgroup.enter()?;
            parent.step()?;
            fork_once()?;
            call.join().map_err(|_| failed("a thread panicked"))?
        })?;
        parent.step()
    })?;
    keeps.at_step()?;
    cgroup.delay_growth()?;
    keeps.go()?;
    let mut asks = None;
    while_locked(&keeps, &cgroup, || {
        tell.write_all(&[1])?;
        asks = Some(kept()?);
        needs.next()?;
        thread::sleep(Duration::from_millis(200));
        other.next()
    })?;
    if let Some(asks) = asks {
        asks.join().map_err(|_| failed("a thread panicked"))?;
    }
    keeps.at_step()?;
    for child in [&mut keeps, &mut needs, &mut other] {
        child.go()?;
        child.finish()?;
    }
    no_worker()
}
