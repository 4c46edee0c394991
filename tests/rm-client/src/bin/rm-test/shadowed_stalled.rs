// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests that nobody waits for a tenant whose address space stays locked while its channels are
//! shadowed or handed back.
//!
//! A tenant has its own address space locked by a fork. The fork charges each page table to a
//! memory cgroup beyond `memory.high`, so the kernel has it sleep two seconds for each 64 of them.

use crate::charged::Cgroup;
use crate::limits::{path, set};
use crate::owned::{join, no_worker, NAME};
use crate::owned_ends::session_in;
use crate::owned_launch::MASK;
use crate::process::{Child, Parent};
use crate::shadowed::{come_back, counts, cuda_like};
use crate::submit::{queue, release};
use crate::tree::{eventually, stat, Group};
use gct_ktap::{failed, holds, same, Outcome, Stop, Test};
use rm_client::{Queue, Session};
use std::fs;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

pub(crate) const TESTS: &[Test] = &[
    ("shadowed_stalled_tenant_holds_up_nobody", shadowed),
    ("shadowed_stalled_tenant_holds_up_no_way_back", handed_back),
];

/// How many page tables a fork copies. It sleeps for more than a minute.
pub(crate) const TABLES: usize = 2048;
/// Bytes that a page table maps.
pub(crate) const TABLE: usize = 2 << 20;
/// How long the driver may wait for a tenant, with much to spare on a slow host.
const PATIENCE: Duration = Duration::from_secs(10);

/// Has so many page tables in this process. Returns the start of their memory. The first byte of
/// each table was used.
pub(crate) fn make_tables() -> Result<*mut u8, Stop> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let (length, access) = (TABLES * TABLE, libc::PROT_READ | libc::PROT_WRITE);
    // SAFETY: a new mapping, which replaces nothing.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), length, access, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error().into());
    }
    for table in 0..TABLES {
        // SAFETY: a byte of the mapping, which nobody else uses, and which stays.
        unsafe { start.cast::<u8>().add(table * TABLE).write_volatile(1) };
    }
    Ok(start.cast())
}

/// Forks a process that exits. Meanwhile the address space is locked.
pub(crate) fn fork_once() -> Outcome {
    // SAFETY: the new process does nothing but exit.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error().into()),
        // SAFETY: exits without destructors.
        0 => unsafe { libc::_exit(0) },
        _ => Ok(()),
    }
}

/// Waits until the address space of a process is locked. Returns a thread that waits for it.
fn locked(pid: u32) -> Result<JoinHandle<io::Result<Vec<u8>>>, Stop> {
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        let (sender, is_read) = channel();
        let reader = thread::spawn(move || {
            // The kernel takes this from the process's memory.
            let read = fs::read(format!("/proc/{pid}/cmdline"));
            let _ = sender.send(());
            read
        });
        if is_read.recv_timeout(Duration::from_secs(1)).is_err() {
            return Ok(reader);
        }
        join_reader(reader)?;
    }
    Err(failed("the address space is not locked"))
}

fn join_reader(reader: JoinHandle<io::Result<Vec<u8>>>) -> Outcome {
    let read = reader.join().map_err(|_| failed("a thread panicked"))?;
    read.map(drop)?;
    Ok(())
}

/// Runs `work` while a child's address space is locked, until the child's cgroup lets it grow.
pub(crate) fn while_locked(
    child: &Child,
    cgroup: &Cgroup,
    work: impl FnOnce() -> Outcome,
) -> Outcome {
    let reader = locked(child.pid())?;
    let outcome = work().and_then(|()| {
        // Else it was not locked all the time.
        holds("locked", !reader.is_finished())
    });
    cgroup.let_grow_at_once()?;
    join_reader(reader)?;
    outcome
}

/// Writes a mask. Fails if that took long.
fn set_at_once(mask: &str) -> Outcome {
    let start = Instant::now();
    set(NAME, MASK, mask)?;
    let took = start.elapsed();
    match took < PATIENCE {
        true => Ok(()),
        false => Err(failed(format!("the write took {took:?}"))),
    }
}

/// Returns how many channels of a process are shadowed.
fn cooperative(child: &Child) -> Result<u64, Stop> {
    stat(
        &path(&child.pid().to_string(), "compute.stat")?,
        "cooperative",
    )
}

/// Opens a channel in a space of nvidia-uvm's that works, and makes the page tables.
fn ready_to_stall() -> Result<(Session, Queue), Stop> {
    let session = session_in(true)?.with_rings_on_device();
    let mut queue = queue(&session)?;
    release(&mut queue, 0, 1)?;
    make_tables()?;
    Ok((session, queue))
}

/// Starts a process with one channel, which goes on to work at each step.
fn neighbour(group: &Group) -> Result<Child, Stop> {
    join(group, |parent: &mut Parent| {
        let session = cuda_like()?;
        let mut queue = queue(&session)?;
        release(&mut queue, 0, 1)?;
        parent.step()?;
        counts(1, 1)?;
        release(&mut queue, 0, 2)?;
        parent.step()?;
        come_back(1)?;
        release(&mut queue, 0, 3)
    })
}

/// A limit is written while a tenant's address space is locked: the tenant's channel stays native,
/// and others' are shadowed. Soon after the lock is gone, so is that channel.
fn shadowed() -> Outcome {
    let group = Group::new(NAME)?;
    let cgroup = Cgroup::new("stalled")?;
    let mut stalls = join(&group, |parent| {
        let (_session, mut queue) = ready_to_stall()?;
        cgroup.enter()?;
        parent.step()?;
        fork_once()?;
        parent.step()?;
        counts(1, 1)?;
        release(&mut queue, 0, 2)
    })?;
    stalls.next()?;
    let mut other = neighbour(&group)?;
    other.next()?;
    cgroup.delay_growth()?;
    stalls.go()?;
    let work = || {
        set_at_once("0-31")?;
        same("cooperative", cooperative(&stalls)?, 0)?;
        other.next()?;
        set_at_once("all")?;
        other.go()?;
        other.finish()?;
        set_at_once("0-31")
    };
    while_locked(&stalls, &cgroup, work)?;
    stalls.at_step()?;
    eventually("cooperative", &1, || cooperative(&stalls))?;
    stalls.go()?;
    stalls.finish()?;
    no_worker()
}

/// A limit goes while a tenant registers address spaces, and has its own locked: others' channels
/// are handed back.
fn handed_back() -> Outcome {
    let group = Group::new(NAME)?;
    let cgroup = Cgroup::new("stalled")?;
    let mut stalls = join(&group, |parent| {
        let (session, mut queue) = ready_to_stall()?;
        parent.step()?;
        counts(1, 1)?;
        cgroup.enter()?;
        parent.step()?;
        let ends = AtomicBool::new(false);
        let uvm = session.uvm().ok_or_else(|| failed("no UVM"))?;
        thread::scope(|scope| {
            scope.spawn(|| {
                while !ends.load(Ordering::Relaxed) {
                    // Refused: the GPU has a space.
                    let _ = uvm.register_space(session.gpu(), session.space());
                }
            });
            thread::sleep(Duration::from_millis(100));
            let outcome = fork_once();
            ends.store(true, Ordering::Relaxed);
            outcome
        })?;
        parent.step()?;
        come_back(1)?;
        release(&mut queue, 0, 2)
    })?;
    stalls.next()?;
    let mut other = neighbour(&group)?;
    other.next()?;
    set(NAME, MASK, "0-31")?;
    other.next()?;
    stalls.next()?;
    cgroup.delay_growth()?;
    stalls.go()?;
    let work = || {
        set_at_once("all")?;
        other.go()?;
        other.finish()
    };
    while_locked(&stalls, &cgroup, work)?;
    stalls.at_step()?;
    stalls.go()?;
    stalls.finish()?;
    no_worker()
}
