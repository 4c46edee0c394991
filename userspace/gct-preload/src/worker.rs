// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The state that the program's threads, the fault handler and the worker share, and what the fault
//! handler does when a doorbell rings while it is armed.
//!
//! What is published, and by whom, depends on whether the program has a processor to spare
//! ([`gct_core::policy::poll_backoff`]):
//!
//! - With one, the worker polls while there is work ([`looks`](crate::looks)): a launch that wakes it costs 7 us more
//!   at the median and 25 us at p95 (H200 in a virtual machine, driver 580.159.04). Doorbells fault only
//!   while it sleeps. The fault handler disarms them, publishes on the spot and wakes it: an idle tenant costs nothing, a
//!   busy one takes no faults. (Linux's NAPI does the same with interrupts.)
//! - Without one, every store to a doorbell faults, and the thread that has stored publishes. The worker
//!   is woken only for what nobody rings for. Where all rings come from functions of libcuda's that this library interposes,
//!   these publish when they return, and no store faults ([`calls`]).

use crate::calls;
use crate::fault;
use crate::governors::Governors;
use crate::looks;
use crate::session::{Session, DOORBELLS_MAX, DOORBELL_BYTES};
use crate::stack;
use crate::stats::STATS;
use crate::sys;
use core::cell::Cell;
use core::ffi::c_void;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use gct_core::policy::doorbell::Doorbells;
use gct_core::units::Ns;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};

/// Session and governors, always taken together.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) session: Session,
    pub(crate) governors: Governors,
    /// How the program rings.
    pub(crate) doorbells: Doorbells,
    /// How often a call has published.
    pub(crate) calls: u64,
}

static SHARED: Mutex<Shared> = Mutex::new(Shared {
    session: Session::new(),
    governors: Governors::new(),
    doorbells: Doorbells::new(),
    calls: 0,
});
/// Whether the doorbells fault.
static ARMED: AtomicBool = AtomicBool::new(false);
/// Whether the fault handler leaves them so, because the worker has no processor to poll on.
static STAY_ARMED: AtomicBool = AtomicBool::new(false);
/// Whether the worker sleeps for long, because there was nothing that it had to look after.
static AT_REST: AtomicBool = AtomicBool::new(false);
/// Rung to wake the worker.
static BELL: AtomicU32 = AtomicU32::new(0);
/// How often the fault handler tries to get the lock before it leaves the work to the worker.
const TRIES: u32 = 64;
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
    /// Tells the daemon what was counted, and what the GPU has ended.
    pub(crate) fn report(&mut self) {
        for (gpu, xid) in self.session.faults() {
            self.governors.fault(gpu, xid);
        }
        self.governors.report();
    }

    /// Publishes all that is new.
    pub(crate) fn publish(&mut self) -> u32 {
        let Self {
            session, governors, ..
        } = self;
        let now_ns = sys::now_ns();
        for (_, governor) in governors.iter_mut() {
            governor.begin(now_ns);
        }
        let count = session.publish(governors, now_ns);
        for (gpu, governor) in governors.iter_mut() {
            if governor.place().is_some() {
                governor.end(session.pending_on(gpu), sys::now_ns());
            }
        }
        STATS.entries.fetch_add(u64::from(count), Ordering::Relaxed);
        count
    }

    /// Whether there is something that must be looked after although nobody rings.
    pub(crate) fn unfinished(&self) -> bool {
        self.session.is_unfinished()
    }

    /// Arms the doorbells, and says whether they stay armed when one has rung; `false` where that cannot
    /// be done, and they must be looked at.
    pub(crate) fn arm(&mut self, stay: bool) -> bool {
        STAY_ARMED.store(stay, Ordering::SeqCst);
        if !ARMED.swap(true, Ordering::SeqCst) {
            fault::in_front();
            if !self.session.arm(true) {
                self.disarm();
                return false;
            }
        }
        true
    }

    /// Lets stores to the doorbells pass.
    pub(crate) fn disarm(&mut self) {
        self.session.arm(false);
        ARMED.store(false, Ordering::SeqCst);
    }

    /// Learns of a ring that faulted, and opens the doorbells if calls have rung often enough; returns whether it has.
    fn rang(&mut self, by_call: bool) -> bool {
        self.doorbells = self.doorbells.rang(by_call);
        let opens = self.doorbells.may_open();
        if opens {
            calls::open();
            self.disarm();
        }
        opens
    }
}

/// Whether doorbells fault now.
pub(crate) fn armed() -> bool {
    ARMED.load(Ordering::SeqCst)
}

/// What [`rest`] needs to have seen before the doorbells were armed.
pub(crate) fn bell() -> u32 {
    BELL.load(Ordering::SeqCst)
}

/// The worker sleeps until it is woken, which it was already if the bell is not `seen` any more.
pub(crate) fn rest(shared: Held, seen: u32, timeout: Ns) {
    AT_REST.store(!shared.unfinished(), Ordering::SeqCst);
    drop(shared);
    // CAST: at most a second.
    sys::futex_wait(&BELL, seen, timeout.get() as i64);
    AT_REST.store(false, Ordering::SeqCst);
}

/// Publishes what a call has submitted that is about to return, while doorbells are open.
pub(crate) fn publish_call() {
    let Some(mut shared) = lock() else { return };
    shared.publish();
    shared.calls = shared.calls.wrapping_add(1);
    wake_for(shared);
}

/// Wakes the worker if there is something that it must look after, and it rests.
fn wake_for(shared: Held) {
    let unfinished = shared.unfinished();
    drop(shared);
    if unfinished && AT_REST.swap(false, Ordering::SeqCst) {
        wake();
    }
}

fn wake() {
    BELL.fetch_add(1, Ordering::SeqCst);
    sys::futex_wake(&BELL);
}

/// Whether somebody publishes for this process: a thread, which is started when it is asked for first.
/// To be asked before a channel is taken over. Where the system allows no thread, none ever is.
pub(crate) fn serves(_: &Shared) -> bool {
    static SERVES: OnceLock<bool> = OnceLock::new();
    *SERVES.get_or_init(|| {
        watch_forks();
        crate::stats::write_at_exit();
        let started = sys::spawn("gct-worker", looks::run);
        if !started {
            eprintln!("gctgroup: no thread can be made; this program runs without limits");
        }
        started
    })
}

/// Makes the doorbell pages known to the signal handler.
pub(crate) fn attend(shared: &Shared) {
    for (slot, page) in PAGES
        .iter()
        .zip(shared.session.doorbell_pages().chain(core::iter::repeat(0)))
    {
        slot.store(page, Ordering::Release);
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

/// Whether some thread waits for the lock: the polling worker steps aside for it.
pub(crate) fn wanted() -> bool {
    WAITING.load(Ordering::SeqCst) > 0
}

/// The fault handler's part: `true` if `addr` is a doorbell of ours. Its work has been published or is
/// left to the worker, and the store has been let through or left out.
///
/// Async-signal-safe: system calls, atomics, and a lock that is only tried.
///
/// # Safety
///
/// `context` is that of the signal.
pub(crate) unsafe fn on_fault(addr: usize, context: *mut c_void) -> bool {
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
    // SAFETY: passed on.
    if STAY_ARMED.load(Ordering::SeqCst) && unsafe { publish_here(addr, context) } {
        return true;
    }
    if let Some(mut shared) = try_lock() {
        // SAFETY: passed on; who is in there has the lock.
        unsafe {
            stack::run(context, &mut || {
                shared.publish();
            })
        };
    }
    // What is stored there from now on is the worker's, who is woken.
    for page in pages() {
        // SAFETY: a doorbell shadow of ours; making it writable is what its users expect.
        unsafe {
            sys::mprotect(
                page as *mut c_void,
                DOORBELL_BYTES,
                libc::PROT_READ | libc::PROT_WRITE,
            )
        };
    }
    ARMED.store(false, Ordering::SeqCst);
    wake();
    true
}

/// Publishes in the thread that rings, and leaves its store out, so that the next one faults as well;
/// `false` if one of the two cannot be done.
///
/// # Safety
///
/// `context` is that of the signal.
unsafe fn publish_here(addr: usize, context: *mut c_void) -> bool {
    let locked = (0..TRIES).find_map(|_| {
        let locked = try_lock();
        if locked.is_none() {
            std::thread::yield_now();
        }
        locked
    });
    let Some(mut shared) = locked else {
        return false;
    };
    // SAFETY: passed on; who is in there has the lock.
    unsafe {
        stack::run(context, &mut || {
            shared.publish();
        })
    };
    // Where the program has its doorbell back, the store must reach it.
    // SAFETY: passed on.
    let done = shared.session.shadows(addr) && unsafe { fault::skip_store(context) };
    if !done {
        return false;
    }
    if shared.rang(calls::is_inside()) {
        drop(shared);
        // It sleeps for a second, and is to look each millisecond.
        wake();
    } else {
        wake_for(shared);
    }
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
