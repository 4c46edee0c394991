// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests that evictions end when the thread that waits for them gets a signal: a write of
//! `gmem.limit` for any signal, an allocation for one that kills. What is too early or too late is
//! tried again, so that no test depends on how long an eviction takes.

use crate::gmem::{current, events, number, LIMIT};
use crate::gpus::me;
use crate::limits::{path, set};
use crate::managed::{in_threads, session, shown, Range, ROOT, START};
use crate::process::{Child, Parent};
use crate::tree::{self, eventually, Group};
use gct_ktap::{failed, holds, same, During, Outcome, Stop, Test};
use rm_client::{Memory, Session};
use std::io;
use std::ptr;
use std::time::Duration;

pub(crate) const TESTS: &[Test] = &[
    ("managed_memory_of_an_interrupted_limit_stays", limit),
    ("managed_memory_of_a_limit_stays_at_a_signal", || {
        ended_by(libc::SIGINT)
    }),
    ("managed_memory_of_a_limit_stays_at_a_kill", || {
        ended_by(libc::SIGKILL)
    }),
    ("managed_memory_of_a_killed_allocation_stays", allocation),
    ("managed_memory_of_limits_lowered_at_once", at_once),
];

const ROOTS: usize = 24;
/// Enough that a process sees some of them leave, and can send a signal before the last.
pub(crate) const MANY: usize = 96;

/// Has a signal interrupt calls of this process, and do nothing else.
fn interrupt_at(signal: libc::c_int) -> io::Result<()> {
    extern "C" fn ignore(_: libc::c_int) {}
    // SAFETY: all zeros are a valid value: no flags, so no call is started again.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = ignore as *const () as usize;
    // SAFETY: the structure is complete, and the handler does nothing.
    match unsafe { libc::sigaction(signal, &action, ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Signals this thread again and again, with nothing but `EINTR` to it.
struct Alarm;

impl Alarm {
    fn every(interval: Duration) -> io::Result<Self> {
        interrupt_at(libc::SIGALRM)?;
        Self::set(interval).map(|()| Self)
    }

    fn set(interval: Duration) -> io::Result<()> {
        let micros = libc::suseconds_t::from(interval.subsec_micros());
        let time = libc::timeval {
            tv_sec: 0,
            tv_usec: micros,
        };
        let timer = libc::itimerval {
            it_interval: time,
            it_value: time,
        };
        // SAFETY: the structure is complete.
        match unsafe { libc::setitimer(libc::ITIMER_REAL, &timer, ptr::null_mut()) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        let _ = Self::set(Duration::ZERO);
    }
}

/// Writes a limit while signals come. Returns the errno with which it fails.
pub(crate) fn write_with_signals(
    owner: &str,
    limit: u64,
    interval: Duration,
) -> Result<Option<i32>, Stop> {
    let file = path(owner, LIMIT)?;
    let alarm = Alarm::every(interval)?;
    let outcome = tree::write(&file, &limit.to_string());
    drop(alarm);
    Ok(outcome.err().and_then(|error| error.raw_os_error()))
}

/// A signal ends the write of a lower limit. The old one is in force again, and all of it can be
/// used.
fn limit() -> Outcome {
    let session = session()?;
    let alone = current(&me())?;
    let [low, high] = [1, ROOTS].map(|roots| alone + (roots * ROOT) as u64);
    set(&me(), LIMIT, &high.to_string())?;
    let range = Range::new(&session, START, ROOTS * ROOT)?;
    range.write(1);
    let mut interval = Duration::from_millis(32);
    loop {
        range.migrate(&session)?;
        same("on the GPU", shown(&me())?, ROOTS * ROOT)?;
        match write_with_signals(&me(), low, interval)? {
            Some(libc::EBUSY) => break,
            Some(errno) => return Err(failed(format!("errno {errno}"))),
            None => set(&me(), LIMIT, &high.to_string())?,
        }
        interval /= 2;
        holds(
            "a signal comes in time",
            interval > Duration::from_micros(50),
        )?;
    }
    same("the old limit", number(&me(), LIMIT)?, high)?;
    holds("some stayed", shown(&me())? > ROOT)?;
    range.migrate(&session).during("within the old limit")?;
    same("all again", shown(&me())?, ROOTS * ROOT)?;
    same("refused", events(&me(), "limit")?, 0)?;
    set(&me(), LIMIT, &low.to_string()).during("without a signal")?;
    same("the lower limit", current(&me())?, low)?;
    range.check(1)
}

/// An owner with much managed memory on the GPU, and a limit that it just reaches.
pub(crate) struct Owner {
    session: Session,
    pub(crate) range: Range,
    /// What it is charged for without its managed memory.
    alone: u64,
    limit: u64,
}

impl Owner {
    pub(crate) fn new() -> Result<Self, Stop> {
        let session = session()?;
        let alone = current(&me())?;
        let limit = alone + (MANY * ROOT) as u64;
        set(&me(), LIMIT, &limit.to_string())?;
        let range = Range::new(&session, START, MANY * ROOT)?;
        range.write(1);
        let owner = Self {
            session,
            range,
            alone,
            limit,
        };
        owner.fill().map(|()| owner)
    }

    /// Moves all managed memory to the GPU, which the old limit allows.
    pub(crate) fn fill(&self) -> Outcome {
        self.range.migrate(&self.session)?;
        same("on the GPU", shown(&me())?, MANY * ROOT)
    }

    /// Checks that the old limit is in force, that nothing but evictions has changed what is
    /// charged, and that all memory comes back.
    fn check_kept(&self, evicted: u64) -> Outcome {
        same("the old limit", number(&me(), LIMIT)?, self.limit)?;
        // CAST: a small number.
        let left = (MANY - evicted as usize) * ROOT;
        same("left", shown(&me())?, left)?;
        same("current", current(&me())?, self.alone + left as u64)?;
        same("refused", events(&me(), "limit")?, 0)?;
        self.fill().during("within the old limit")?;
        self.range.check(1)
    }
}

/// Forks a process that writes a limit of one root for this one, which is full, at its second step.
/// That ends with `errno`, if there is one, before the third step.
pub(crate) fn writer(errno: Option<i32>) -> Result<Child, Stop> {
    let owner = me();
    let mut child = Child::fork(move |parent: &mut Parent| {
        interrupt_at(libc::SIGINT)?;
        parent.step()?;
        let low = current(&owner)? - ((MANY - 1) * ROOT) as u64;
        let outcome = tree::write(&path(&owner, LIMIT)?, &low.to_string());
        let found = outcome.err().and_then(|error| error.raw_os_error());
        same("errno", found, errno)?;
        parent.step()
    })?;
    child.at_step()?;
    Ok(child)
}

/// Has a process lower the limit of this one, and waits until memory leaves for that.
pub(crate) fn begin(writer: &mut Child) -> Outcome {
    same("evicted before", events(&me(), "evicted")?, 0)?;
    writer.go()?;
    let evicted = || events(&me(), "evicted");
    eventually("evictions", &true, || Ok(evicted()? > 1))
}

/// Has a process lower the limit of this one, and sends it a signal while memory is evicted for
/// that. Once the signal is there, the root that is leaving may leave, and no other. Returns how
/// many have left.
fn lower_until(writer: &mut Child, signal: libc::c_int) -> Result<u64, Stop> {
    let evicted = || events(&me(), "evicted");
    begin(writer)?;
    writer.signal(signal)?;
    let meanwhile = evicted()?;
    match signal {
        libc::SIGKILL => writer.kill(),
        _ => writer.at_step().during("the end of the write")?,
    }
    let all = evicted()?;
    println!("# {meanwhile} roots had left at the signal, {all} in all");
    holds("it comes in time", all < MANY as u64 - 1)?;
    holds("one more root at most", all <= meanwhile + 1)?;
    Ok(all)
}

/// A signal to whoever writes a lower limit ends that within one root. The old limit stays, and the
/// next write need not wait, though the signal kills the first writer.
fn ended_by(signal: libc::c_int) -> Outcome {
    let (mut first, mut next) = (writer(Some(libc::EBUSY))?, writer(None)?);
    let owner = Owner::new()?;
    let evicted = lower_until(&mut first, signal)?;
    owner.check_kept(evicted)?;
    next.next().during("the next writer")?;
    same("the lower limit", shown(&me())?, ROOT)?;
    if signal != libc::SIGKILL {
        first.go()?;
        first.finish()?;
    }
    next.go()?;
    next.finish()?;
    owner.range.check(1)
}

/// An allocation that has to evict all managed memory of its process ends when that is killed.
fn allocation() -> Outcome {
    const TRIES: usize = 8;
    let group = Group::new("killed")?;
    for _ in 0..TRIES {
        let before = events("killed", "evicted").unwrap_or(0);
        let mut child = Child::fork(allocate_at_the_limit)?;
        child.at_step()?;
        group.add(child.pid())?;
        child.next().during("its managed memory")?;
        set("killed", LIMIT, &current("killed")?.to_string())?;
        child.go()?;
        let evicted = || Ok::<_, Stop>(events("killed", "evicted")? - before);
        eventually("an eviction", &true, || Ok(evicted()? > 0))?;
        child.kill();
        let stayed = evicted()? < ROOTS as u64;
        set("killed", LIMIT, "max")?;
        eventually("current", &0, || current("killed"))?;
        if stayed {
            return Ok(());
        }
    }
    Err(failed("it evicts all, although it is to die"))
}

fn allocate_at_the_limit(parent: &mut Parent) -> Outcome {
    parent.step()?;
    let session = session()?;
    let range = Range::new(&session, START, ROOTS * ROOT)?;
    range.write(1);
    range.migrate(&session)?;
    parent.step()?;
    let bytes = (ROOTS * ROOT) as u64;
    session.gpu().alloc_memory(Memory::Device, bytes)?;
    parent.step()
}

/// Threads that lower the limit of one owner take turns: each write returns when its limit holds.
fn at_once() -> Outcome {
    const THREADS: usize = 4;
    let session = session()?;
    let alone = current(&me())?;
    let file = path(&me(), LIMIT)?;
    for round in 0..3 {
        tree::write(&file, "max")?;
        let range = Range::new(&session, START, 2 * THREADS * ROOT)?;
        range.write(round);
        range.migrate(&session)?;
        let lower = |thread: usize| -> Outcome {
            let limit = alone + (2 * thread * ROOT) as u64;
            Ok(tree::write(&file, &limit.to_string())?)
        };
        in_threads(THREADS, lower)?;
        let limit = number(&me(), LIMIT)?;
        same("the lowest was in force", shown(&me())?, 0)?;
        holds("one of them", limit < alone + (2 * THREADS * ROOT) as u64)?;
        range.check(round)?;
    }
    Ok(())
}
