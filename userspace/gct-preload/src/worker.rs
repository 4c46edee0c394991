// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The worker: publishes what the tenant submits, and sleeps when there is nothing.
//!
//! It polls while there is work, and for some milliseconds more ([`Poll`]): a launch that wakes
//! it costs 7 us more at the median and 25 us at p95 (H200 in a virtual machine, driver
//! 580.159.04). Then it arms the doorbells (their next store faults), looks once more, and sleeps. The fault handler disarms,
//! publishes on the spot and wakes the worker: an idle tenant costs nothing, a busy one
//! takes no faults. (Linux's NAPI does the same with interrupts.)

use crate::fault;
use crate::governors::Governors;
use crate::session::{Session, DOORBELLS_MAX, DOORBELL_BYTES};
use crate::stats::STATS;
use crate::sys;
use core::cell::Cell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use gct_core::policy::poll::Poll;
use gct_core::units::Ns;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// Sleep at most this long: a tenant that waits for room in its ring does not ring.
const SLEEP_NS: i64 = 1_000_000_000;
/// The same while some ring is crowded, or work is held back or followed: nobody rings when
/// it may go on.
const SHORT_SLEEP_NS: i64 = 200_000;

/// Session and governors, always taken together.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) session: Session,
    pub(crate) governors: Governors,
}

static SHARED: Mutex<Shared> = Mutex::new(Shared {
    session: Session::new(),
    governors: Governors::new(),
});
/// 1 while the doorbells fault.
static ARMED: AtomicU32 = AtomicU32::new(0);
static STARTED: AtomicBool = AtomicBool::new(false);
/// Set in a child that was forked from a managed process: CUDA does not work there, and
/// neither do we.
static FORKED: AtomicBool = AtomicBool::new(false);

/// Threads that want the lock: the polling worker steps aside for them.
static WAITING: AtomicU32 = AtomicU32::new(0);

/// Doorbell pages, readable without the lock (by the signal handler).
static PAGES: [AtomicUsize; DOORBELLS_MAX] = [const { AtomicUsize::new(0) }; DOORBELLS_MAX];

std::thread_local! {
    /// Whether this thread has the lock.
    static HOLDS: Cell<bool> = const { Cell::new(false) };
}

/// The shared state, locked.
#[derive(Debug)]
pub(crate) struct Held(MutexGuard<'static, Shared>);

impl Deref for Held {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}

impl DerefMut for Held {
    fn deref_mut(&mut self) -> &mut Shared {
        &mut self.0
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        HOLDS.set(false);
    }
}

/// Locks the shared state; `None` in a forked child, and for a thread that has it: what allocates
/// under the lock may be an allocator of the program's, which calls `munmap`.
pub(crate) fn lock() -> Option<Held> {
    if FORKED.load(Ordering::Relaxed) || HOLDS.get() {
        return None;
    }
    WAITING.fetch_add(1, Ordering::SeqCst);
    let shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    WAITING.fetch_sub(1, Ordering::SeqCst);
    HOLDS.set(true);
    Some(Held(shared))
}

/// Whether this is a child that was forked from a managed process.
pub(crate) fn forked_child() -> bool {
    FORKED.load(Ordering::Relaxed)
}

impl Shared {
    /// Publishes all that is new.
    pub(crate) fn publish(&mut self) -> u32 {
        let Self { session, governors } = self;
        for (_, governor) in governors.iter_mut() {
            governor.begin();
        }
        let count = session.publish(governors);
        for (gpu, governor) in governors.iter_mut() {
            if governor.place().is_some() {
                governor.end(session.pending_on(gpu), sys::now_ns());
            }
        }
        STATS.entries.fetch_add(u64::from(count), Ordering::Relaxed);
        count
    }
}

/// Makes the doorbell pages known to the signal handler and starts the thread, once
/// there is a channel to serve.
pub(crate) fn attend(shared: &Shared) {
    for (slot, page) in PAGES
        .iter()
        .zip(shared.session.doorbell_pages().chain(core::iter::repeat(0)))
    {
        slot.store(page, Ordering::Release);
    }
    if shared.session.managed() && !STARTED.swap(true, Ordering::SeqCst) {
        watch_forks();
        crate::stats::write_at_exit();
        if !sys::spawn("gct-worker", run) {
            // Rings are shadowed and nobody would serve them.
            std::process::abort();
        }
    }
}

/// The same without waiting, for a signal handler; `None` if it is taken.
fn try_lock() -> Option<Held> {
    if FORKED.load(Ordering::Relaxed) || HOLDS.get() {
        return None;
    }
    let shared = match SHARED.try_lock() {
        Ok(shared) => shared,
        Err(TryLockError::Poisoned(error)) => error.into_inner(),
        Err(TryLockError::WouldBlock) => return None,
    };
    HOLDS.set(true);
    Some(Held(shared))
}

/// Has [`forked_child`] tell a child that is forked from now on.
pub(crate) fn watch_forks() {
    static WATCHING: AtomicBool = AtomicBool::new(false);
    if !WATCHING.swap(true, Ordering::SeqCst) {
        // SAFETY: `forked` only stores to atomics, which is safe after fork.
        unsafe { libc::pthread_atfork(None, None, Some(forked)) };
    }
}

extern "C" fn forked() {
    fault::own();
    FORKED.store(true, Ordering::Relaxed);
}

fn run() {
    let mut last_work = sys::now_ns();
    let mut poll = Poll::new();
    loop {
        let Some(mut shared) = lock() else { return };
        let progress = shared.publish() > 0;
        let now = sys::now_ns();
        if progress {
            last_work = now;
        } else if Ns(now.saturating_sub(last_work)) > poll.time() {
            let unfinished = shared.session.crowded() || shared.session.pending();
            let woken = sleep(shared, unfinished);
            if woken {
                let now = sys::now_ns();
                poll = poll.after_sleep(Ns(now.saturating_sub(last_work)));
                last_work = now;
            }
            continue;
        }
        drop(shared);
        core::hint::spin_loop();
        while WAITING.load(Ordering::SeqCst) > 0 {
            std::thread::yield_now();
        }
    }
}

/// Arms the doorbells, looks once more and sleeps until one faults; `true` if there was work.
fn sleep(mut shared: Held, unfinished: bool) -> bool {
    fault::in_front();
    ARMED.store(1, Ordering::SeqCst);
    if !shared.session.arm(true) || shared.publish() > 0 {
        shared.session.arm(false);
        ARMED.store(0, Ordering::SeqCst);
        return true;
    }
    drop(shared);
    let timeout = if unfinished { SHORT_SLEEP_NS } else { SLEEP_NS };
    sys::futex_wait(&ARMED, 1, timeout);
    let Some(mut shared) = lock() else {
        return false;
    };
    shared.session.arm(false);
    let faulted = ARMED.swap(0, Ordering::SeqCst) == 0;
    shared.publish() > 0 || faulted
}

/// The fault handler's part: `true` if `addr` is a doorbell of ours, which has been
/// disarmed and whose work has been published or left to the worker.
///
/// Async-signal-safe: system calls, atomics, and a lock that is only tried.
pub(crate) fn on_fault(addr: usize) -> bool {
    let pages = || {
        PAGES
            .iter()
            .map(|p| p.load(Ordering::Acquire))
            .filter(|&p| p != 0)
    };
    if !pages().any(|page| addr.wrapping_sub(page) < DOORBELL_BYTES) {
        return false;
    }
    STATS.faults.fetch_add(1, Ordering::Relaxed);
    if let Some(mut shared) = try_lock() {
        shared.publish();
    }
    // What is stored there from now on is the worker's, who is woken.
    for page in pages() {
        // SAFETY: a doorbell shadow of ours; making it writable is what its users expect.
        unsafe {
            sys::mprotect(
                page as *mut core::ffi::c_void,
                DOORBELL_BYTES,
                libc::PROT_READ | libc::PROT_WRITE,
            )
        };
    }
    ARMED.store(0, Ordering::SeqCst);
    sys::futex_wake(&ARMED);
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::time::Duration;

    #[test]
    fn an_allocator_may_unmap_under_the_lock() {
        let (done, waits) = mpsc::channel();
        std::thread::spawn(move || {
            crate::interpose::MAPPED.store(true, Ordering::Relaxed);
            let held = lock();
            // SAFETY: nothing is mapped at the first page.
            let ret = unsafe { crate::interpose::munmap(core::ptr::null_mut(), 4096) };
            drop(held);
            assert!(lock().is_some(), "it was given back");
            done.send(ret).unwrap();
        });
        if waits.recv_timeout(Duration::from_secs(10)) != Ok(0) {
            // A panic unmaps memory.
            std::process::abort();
        }
    }
}
