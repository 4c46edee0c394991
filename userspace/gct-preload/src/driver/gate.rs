// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Keeps the program's work off the GPU while its memory changes places.
//!
//! Between two mappings of a piece an access faults, which ends the context, and a copy of it loses
//! what is written meanwhile. So whoever moves pieces closes the gate, waits until the GPU has done
//! what the program gave it, and opens the gate behind the moves:
//!
//! | state | calls that submit work ([`Pass`]) | the mover ([`Stop`]) |
//! |---|---|---|
//! | open | pass | |
//! | closed | wait, [`PATIENCE`] at most | waits for calls that have passed, then for the GPU |
//! | moving | wait | moves |
//!
//! What runs on the GPU may wait for a thread that waits at the gate. So that thread opens a closed
//! gate in the end, and the mover gives up. It gives up at once while a stream is being captured:
//! to wait for the GPU would end the capture.
//!
//! Before there is pageable memory the gate costs a call one load.

use super::contexts::Context;
use super::drain;
use super::size::current_device;
use super::{Device, Stream};
use crate::locks::Lock;
use core::cell::Cell;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const OPEN: u32 = 0;
const CLOSED: u32 = 1;
const MOVING: u32 = 2;

/// Longest wait of a call at a closed gate, and of a mover for calls that have passed.
const PATIENCE: Duration = Duration::from_secs(1);
/// Longest wait of a function that ends a context for the thread that waits for its work.
const LONGEST: Duration = Duration::from_secs(10);
/// Time between two looks at the gate.
const PAUSE: Duration = Duration::from_micros(20);

static STATE: AtomicU32 = AtomicU32::new(OPEN);
/// Calls that have passed and not returned.
static PASSED: AtomicU64 = AtomicU64::new(0);
/// Streams that are being captured, and how many these are.
static CAPTURED: Lock<Vec<usize>> = Lock::new(Vec::new(), Vec::new);
static CAPTURES: AtomicUsize = AtomicUsize::new(0);
/// Whether there has been pageable memory.
static IS_NEEDED: AtomicBool = AtomicBool::new(false);
/// The contexts in which calls have passed.
static CONTEXTS: Lock<Vec<(Device, Context)>> = Lock::new(Vec::new(), Vec::new);

std::thread_local! {
    /// Calls of this thread that have passed: libcuda may call its own functions by their names.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    /// The context of its last call.
    static CONTEXT: Cell<Option<Context>> = const { Cell::new(None) };
}

/// A call that submits work, until it returns.
#[derive(Debug)]
pub(super) struct Pass {
    is_counted: bool,
}

impl Pass {
    /// Waits until work may be submitted.
    #[inline]
    pub(super) fn begin() -> Self {
        match is_needed() {
            true => Self::enter(),
            false => Self { is_counted: false },
        }
    }

    #[cold]
    fn enter() -> Self {
        let depth = DEPTH.try_with(|depth| depth.replace(depth.get() + 1));
        if depth != Ok(0) {
            return Self {
                is_counted: depth.is_ok(),
            };
        }
        note_context();
        let mut begun = None;
        loop {
            PASSED.fetch_add(1, Ordering::SeqCst);
            let state = STATE.load(Ordering::SeqCst);
            if state == OPEN {
                return Self { is_counted: true };
            }
            PASSED.fetch_sub(1, Ordering::SeqCst);
            let begun = begun.get_or_insert_with(Instant::now);
            if state == CLOSED && begun.elapsed() > PATIENCE {
                // Fails if the mover has begun to move.
                let _ = change(CLOSED, OPEN);
            }
            thread::sleep(PAUSE);
        }
    }
}

/// Returns whether this thread has passed: it must not wait for the mover.
pub(super) fn is_inside() -> bool {
    DEPTH.try_with(Cell::get) != Ok(0)
}

impl Drop for Pass {
    fn drop(&mut self) {
        if !self.is_counted {
            return;
        }
        let _ = DEPTH.try_with(|depth| {
            depth.set(depth.get() - 1);
            if depth.get() == 0 {
                PASSED.fetch_sub(1, Ordering::SeqCst);
            }
        });
    }
}

fn change(from: u32, to: u32) -> bool {
    let changed = STATE.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst);
    changed.is_ok()
}

/// Records the context of the calling thread.
fn note_context() {
    let context = Context::current();
    let is_known = CONTEXT.try_with(|last| last.replace(context) == context);
    if let (Some(context), Ok(false)) = (context, is_known) {
        let mut contexts = CONTEXTS.lock();
        let is_new = !contexts.iter().any(|(_, known)| *known == context);
        contexts.extend(
            is_new
                .then(current_device)
                .flatten()
                .map(|device| (device, context)),
        );
    }
}

/// Forgets contexts that may be destroyed.
pub(super) fn forget(ends: impl Fn(Device, Context) -> bool) {
    CONTEXTS
        .lock()
        .retain(|(device, context)| !ends(*device, *context));
    // What ends a context waits for its work, too.
    drain::is_ready(LONGEST);
}

/// Returns whether there has been pageable memory.
#[inline]
pub(super) fn is_needed() -> bool {
    IS_NEEDED.load(Ordering::Relaxed)
}

/// Has all calls that submit work pass the gate from now on.
pub(super) fn need() {
    IS_NEEDED.store(true, Ordering::SeqCst);
}

/// Records that a capture of a stream begins.
pub(super) fn capture_begins(stream: Stream) {
    let mut captured = CAPTURED.lock();
    captured.push(stream as usize);
    CAPTURES.store(captured.len(), Ordering::SeqCst);
}

/// Records that a capture of a stream has ended, if there was one.
pub(super) fn capture_ends(stream: Stream) {
    if !is_capturing() {
        return;
    }
    let mut captured = CAPTURED.lock();
    let at = captured.iter().position(|known| *known == stream as usize);
    at.map(|at| captured.swap_remove(at));
    CAPTURES.store(captured.len(), Ordering::SeqCst);
}

/// Returns whether a stream is being captured.
pub(super) fn is_capturing() -> bool {
    CAPTURES.load(Ordering::SeqCst) > 0
}

/// Nothing of the program is on the GPU, and nothing comes there, until this is dropped.
#[derive(Debug)]
pub(super) struct Stop(());

impl Stop {
    /// Closes the gate and waits for what has passed. Returns `None` if that would take too long,
    /// end a capture, or cannot be known to have ended.
    pub(super) fn new() -> Option<Self> {
        if is_capturing() || !drain::is_ready(PATIENCE) || !change(OPEN, CLOSED) {
            return None;
        }
        let ended = has_passed() && !is_capturing() && {
            let contexts = CONTEXTS.lock().clone();
            drain::wait(contexts.into_iter().map(|(_, context)| context), PATIENCE)
        };
        if ended && change(CLOSED, MOVING) {
            return Some(Self(()));
        }
        let _ = change(CLOSED, OPEN);
        None
    }
}

impl Drop for Stop {
    fn drop(&mut self) {
        STATE.store(OPEN, Ordering::SeqCst);
    }
}

/// Waits until the calls that have passed return.
fn has_passed() -> bool {
    let begun = Instant::now();
    while PASSED.load(Ordering::SeqCst) > 0 {
        if begun.elapsed() > PATIENCE {
            return false;
        }
        thread::sleep(PAUSE);
    }
    true
}

/// Opens the gate in a forked child.
///
/// # Safety
///
/// The process has one thread.
pub(super) unsafe fn forked() {
    STATE.store(OPEN, Ordering::SeqCst);
    PASSED.store(0, Ordering::SeqCst);
    CAPTURES.store(0, Ordering::SeqCst);
    // SAFETY: passed on.
    unsafe {
        CAPTURED.renew();
        CONTEXTS.renew();
    }
}
