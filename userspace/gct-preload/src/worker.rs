// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Holds the state that the program's threads, the fault handler and the worker share, and handles
//! faults on armed doorbells.
//!
//! Three threads may publish:
//!
//! - The ringing thread, usually. Every store to a doorbell faults, and the fault handler publishes
//!   on the spot. If all rings come from libcuda functions that this library interposes, these
//!   publish when they return, and no store faults ([`calls`]).
//! - The worker, while rings come in quick succession ([`gct_core::policy::poll`]) and the program
//!   has a spare processor ([`gct_core::policy::poll_backoff`]). Doorbells do not fault then.
//!   (Linux's NAPI does the same with interrupts.)
//! - The worker, for work that no doorbell announces ([`looks`](crate::looks)).

use crate::calls;
use crate::ending;
use crate::fault;
use crate::forks;
use crate::governors::Governors;
use crate::limits::LaunchLimits;
use crate::locks::{Guard, Lock};
use crate::places::{DOORBELLS_MAX, DOORBELL_BYTES};
use crate::session::Session;
use crate::stack;
use crate::stats::STATS;
use crate::sys;
use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use gct_core::lane::ahead;
use gct_core::policy::doorbell::{self, Doorbells};
use gct_core::policy::poll::Poll;
use gct_core::units::{Cpus, Ns};

/// The session and the governors, under one lock.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) session: Session,
    pub(crate) governors: Governors,
    /// The pattern of the program's rings.
    pub(crate) doorbells: Doorbells,
    /// Whether to poll for them.
    pub(crate) poll: Poll,
    /// The number of calls that have published.
    pub(crate) calls: u64,
}

static SHARED: Lock<Shared> = Lock::new(Shared::new(), Shared::new);
/// Whether stores to doorbells fault.
static ARMED: AtomicBool = AtomicBool::new(false);
/// How long the worker sleeps, in nanoseconds; 0 while it is awake, or has been woken.
static ASLEEP: AtomicU64 = AtomicU64::new(0);
/// The counter that wakes the worker when it changes.
static BELL: AtomicU32 = AtomicU32::new(0);
/// The time within which the worker looks at work that is held back, or whose end is awaited.
/// Neighbours learn of that end as much later.
pub(crate) const AWAITED: Ns = Ns(50_000);
/// The entries of a channel that a launching thread leaves for the worker to read
/// ([`gct_core::lane::ahead`]): it looks within [`doorbell::LOOK`].
static AHEAD: AtomicU32 = AtomicU32::new(0);
/// The fault handler's attempts to get the lock before it leaves the work to the worker.
const TRIES: u32 = 64;

/// Threads that wait for the lock. The polling worker yields to them.
static WAITING: AtomicU32 = AtomicU32::new(0);

/// The doorbell pages, for the signal handler, which reads them without the lock.
static PAGES: [AtomicUsize; DOORBELLS_MAX] = [const { AtomicUsize::new(0) }; DOORBELLS_MAX];

/// The shared state, locked.
pub(crate) type Held = Guard<'static, Shared>;

/// Locks the shared state. Returns `None` in an inert child, and for the thread that holds the
/// lock: the program's allocator may call `munmap` while this library allocates under the lock.
pub(crate) fn lock() -> Option<Held> {
    if forks::is_inert() || SHARED.is_mine() {
        return None;
    }
    WAITING.fetch_add(1, Ordering::SeqCst);
    let shared = SHARED.lock();
    WAITING.fetch_sub(1, Ordering::SeqCst);
    Some(shared)
}

/// Makes the shared state usable in a forked child.
///
/// # Safety
///
/// The process has one thread.
pub(crate) unsafe fn forked() {
    // SAFETY: passed on.
    unsafe { SHARED.renew() };
    // The threads that waited, and the worker, do not exist here.
    WAITING.store(0, Ordering::SeqCst);
    ASLEEP.store(0, Ordering::SeqCst);
}

impl Shared {
    /// Creates the state of a process that has used no GPU.
    const fn new() -> Self {
        Self {
            session: Session::new(),
            governors: Governors::new(),
            doorbells: Doorbells::new(),
            poll: Poll::new(),
            calls: 0,
        }
    }

    /// Reports counters and faults to the daemon.
    pub(crate) fn report(&mut self) {
        for (gpu, xid) in self.session.faults() {
            self.governors.fault(gpu, xid);
        }
        self.governors.report();
    }

    /// Publishes all new entries, and reads what was published before. Returns how many were new.
    pub(crate) fn publish(&mut self) -> u32 {
        self.publish_ahead(0)
    }

    /// Publishes all new entries, of each channel at most `ahead` before they are read.
    fn publish_ahead(&mut self, ahead: u32) -> u32 {
        let Self {
            session, governors, ..
        } = self;
        let now_ns = sys::now_ns();
        for (_, governor) in governors.iter_mut() {
            governor.begin(Ns(now_ns));
            if ending::holds() && !governor.limits().frozen {
                governor.set_limits(LaunchLimits {
                    frozen: true,
                    ..*governor.limits()
                });
            }
        }
        let count = session.publish(governors, now_ns, ahead);
        for (gpu, governor) in governors.iter_mut() {
            if governor.peers().is_some() {
                crate::governor::end(governor, session.pending_on(gpu), Ns(sys::now_ns()));
            }
        }
        STATS.entries.fetch_add(u64::from(count), Ordering::Relaxed);
        if count > 0 {
            self.poll = self.poll.rang(Ns(now_ns));
        }
        count
    }

    /// Publishes, and returns whether the GPU has work of this process, or will have.
    pub(crate) fn has_work(&mut self) -> bool {
        self.publish();
        self.session.has_work()
    }

    /// Returns within which time the worker must look although no doorbell rings: a moment for work
    /// that is held back, or whose end somebody awaits; longer for other work in flight. Returns
    /// `None` if nothing must be looked at.
    pub(crate) fn look_within(&self) -> Option<Ns> {
        match (self.session.is_unfinished(), self.session.is_watched()) {
            (true, _) => Some(AWAITED),
            (false, true) => Some(doorbell::LOOK),
            (false, false) => None,
        }
    }

    /// Returns whether the next piece of a launch follows when one ends.
    pub(crate) fn is_paced(&self) -> bool {
        self.session.is_watched() && self.governors.paces()
    }

    /// Arms the doorbells. Returns false if that cannot be done, so they must be polled.
    pub(crate) fn arm(&mut self) -> bool {
        if !ARMED.swap(true, Ordering::SeqCst) {
            fault::in_front();
            if !self.session.arm(true) {
                self.disarm();
                return false;
            }
        }
        true
    }

    /// Disarms the doorbells: stores to them no longer fault.
    pub(crate) fn disarm(&mut self) {
        self.session.arm(false);
        ARMED.store(false, Ordering::SeqCst);
    }

    /// Records a ring that faulted. Opens the doorbells if calls have rung often enough, and
    /// returns whether it has.
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

/// Returns whether stores to doorbells fault.
pub(crate) fn armed() -> bool {
    ARMED.load(Ordering::SeqCst)
}

/// Learns how many processors the program has.
pub(crate) fn set_processors(cpus: Cpus) {
    AHEAD.store(ahead::left_unread(cpus), Ordering::Relaxed);
}

/// Returns the bell's count, which [`rest`] needs from before the doorbells were armed.
pub(crate) fn bell() -> u32 {
    BELL.load(Ordering::SeqCst)
}

/// Lets the worker sleep until it is woken. Returns at once if the bell's count is no longer
/// `seen`.
pub(crate) fn rest(shared: Held, seen: u32, timeout: Ns) {
    ASLEEP.store(timeout.get(), Ordering::SeqCst);
    drop(shared);
    // CAST: at most a second.
    sys::futex_wait(&BELL, seen, timeout.get() as i64);
    ASLEEP.store(0, Ordering::SeqCst);
}

/// Publishes the work of a call that is about to return, while doorbells are open.
pub(crate) fn publish_call() {
    let Some(mut shared) = lock() else { return };
    shared.publish_ahead(AHEAD.load(Ordering::Relaxed));
    shared.calls = shared.calls.wrapping_add(1);
    wake_for(shared);
}

/// Looks at the ends of a program's work behind a wait of it. A program alone pays nothing for
/// that: its requests end by their pauses.
pub(crate) fn waited() {
    let Some(mut shared) = lock() else { return };
    if shared.governors.have_company() {
        shared.publish();
        for (_, governor) in shared.governors.iter_mut() {
            crate::governor::waited(governor, Ns(sys::now_ns()));
        }
        wake_for(shared);
    }
}

/// Wakes the worker if it sleeps for longer than it may, or polling pays. To wake it costs more
/// than a launch, so a program that goes on launching finds it asleep for a look's time only.
pub(crate) fn wake_for(shared: Held) {
    let within = match shared.poll.pays(Ns(sys::now_ns())) {
        true => Some(AWAITED),
        false => shared.look_within(),
    };
    drop(shared);
    let sleeps_longer = |within: Ns| ASLEEP.load(Ordering::SeqCst) > within.get();
    if within.is_some_and(sleeps_longer) && ASLEEP.swap(0, Ordering::SeqCst) > 0 {
        wake();
    }
}

/// Wakes the worker. A signal handler may call this.
pub(crate) fn wake() {
    BELL.fetch_add(1, Ordering::SeqCst);
    sys::futex_wake(&BELL);
}

/// Reports the last counters to the daemon. Returns those of launches; `None` in an inert child.
pub(crate) fn finish() -> Option<String> {
    ending::at_exit();
    let mut shared = lock()?;
    shared.publish();
    shared.report();
    Some(shared.governors.text())
}

/// Publishes the doorbell pages to the signal handler. If a page is new while the others are armed,
/// it disarms them all and wakes the worker, which arms the new page with them.
pub(crate) fn attend(shared: &mut Shared) {
    let pages = shared.session.doorbell_pages();
    let mut is_any_new = false;
    for (slot, page) in PAGES.iter().zip(pages.chain(core::iter::repeat(0))) {
        let old = slot.swap(page, Ordering::AcqRel);
        is_any_new |= page != 0 && page != old;
    }
    if is_any_new && armed() {
        shared.disarm();
        wake();
    }
}

/// Returns whether this thread is in the shared state. A signal handler may call this.
pub(crate) fn is_here() -> bool {
    SHARED.is_mine()
}

/// Returns whether the GPU has work of this process, for a signal handler: `None` if another thread
/// is in the shared state.
pub(crate) fn has_work_now() -> Option<bool> {
    Some(try_lock()?.session.has_work())
}

/// Locks the shared state without waiting, for a signal handler. Returns `None` if it is taken.
fn try_lock() -> Option<Held> {
    match forks::is_inert() {
        true => None,
        false => SHARED.try_lock(),
    }
}

/// Returns whether a thread waits for the lock. The polling worker then yields.
pub(crate) fn wanted() -> bool {
    WAITING.load(Ordering::SeqCst) > 0
}

/// Handles a fault. Returns whether `addr` is a doorbell of ours. If so, its work is published or
/// left to the worker, and the store will succeed or was skipped.
///
/// Async-signal-safe: it makes system calls, uses atomics, and only tries the lock.
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
    if unsafe { publish_here(addr, context) } {
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
    // The worker publishes later stores, and is woken for them.
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

/// Publishes in the ringing thread and skips its store, so that the next one faults as well.
/// Returns false if either cannot be done.
///
/// # Safety
///
/// `context` is that of the signal.
unsafe fn publish_here(addr: usize, context: *mut c_void) -> bool {
    WAITING.fetch_add(1, Ordering::SeqCst);
    let locked = (0..TRIES).find_map(|_| {
        let locked = try_lock();
        if locked.is_none() {
            std::thread::yield_now();
        }
        locked
    });
    WAITING.fetch_sub(1, Ordering::SeqCst);
    let Some(mut shared) = locked else {
        return false;
    };
    // SAFETY: passed on; who is in there has the lock.
    unsafe {
        stack::run(context, &mut || {
            shared.publish_ahead(AHEAD.load(Ordering::Relaxed));
        })
    };
    // If the program has its real doorbell back, the store must reach it.
    // SAFETY: passed on.
    let done = shared.session.shadows(addr) && unsafe { fault::skip_store(context) };
    if !done {
        return false;
    }
    if shared.rang(calls::is_inside()) {
        drop(shared);
        // The worker may sleep for a second, but must now check each millisecond.
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
