// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Waits until the GPU has done what the program gave it, with a deadline.
//!
//! A kernel may wait for a thread of the program that waits for the mover. `cuCtxSynchronize` would
//! then never return. So a thread of the library's own calls it, and whoever asked gives up at the
//! deadline. Until the thread is back nobody can ask again. No stream may be captured meanwhile:
//! the call would end the capture.

use super::contexts::Context;
use super::symbols::CTX_SYNCHRONIZE;
use super::{Status, SUCCESS};
use crate::locks::Lock;
use crate::processors;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// States of the thread: it waits for a question, or the GPU; or it has answered.
const IDLE: u32 = 0;
const ASKED: u32 = 1;
const ENDED: u32 = 2;
const FAILED: u32 = 3;

/// Time between two looks at the answer.
const PAUSE: Duration = Duration::from_micros(10);

static STATE: AtomicU32 = AtomicU32::new(IDLE);
static IS_RUNNING: AtomicBool = AtomicBool::new(false);
static THREAD: Lock<Option<Thread>> = Lock::new(None, || None);
/// The contexts to wait for.
static CONTEXTS: Lock<Vec<Context>> = Lock::new(Vec::new(), Vec::new);

/// Waits until the thread is back from the last question, so long at most. Returns whether it is.
pub(super) fn is_ready(patience: Duration) -> bool {
    answer(patience).is_some()
}

/// Waits until the GPUs have done all work of some contexts, so long at most. Returns whether they
/// have. A context that ends has to be forgotten, and the thread to be ready, before.
pub(super) fn wait(contexts: impl Iterator<Item = Context>, patience: Duration) -> bool {
    if !IS_RUNNING.swap(true, Ordering::SeqCst) {
        processors::spawn("gct-drain", serve);
    }
    *CONTEXTS.lock() = contexts.collect();
    STATE.store(ASKED, Ordering::SeqCst);
    if let Some(thread) = &*THREAD.lock() {
        thread.unpark();
    }
    answer(patience) == Some(ENDED)
}

/// Returns the state, unless the thread still waits for the GPU after this time.
fn answer(patience: Duration) -> Option<u32> {
    let begun = Instant::now();
    loop {
        let state = STATE.load(Ordering::SeqCst);
        if state != ASKED {
            return Some(state);
        }
        if begun.elapsed() > patience {
            return None;
        }
        thread::sleep(PAUSE);
    }
}

fn serve() {
    *THREAD.lock() = Some(thread::current());
    loop {
        while STATE.load(Ordering::SeqCst) != ASKED {
            thread::park();
        }
        let contexts = core::mem::take(&mut *CONTEXTS.lock());
        let ended = contexts.into_iter().all(synchronize);
        let answer = if ended { ENDED } else { FAILED };
        STATE.store(answer, Ordering::SeqCst);
    }
}

fn synchronize(context: Context) -> bool {
    type Synchronize = unsafe extern "C" fn() -> Status;
    // SAFETY: the type is that of the function.
    let Some(synchronize) = (unsafe { CTX_SYNCHRONIZE.function::<Synchronize>() }) else {
        return false;
    };
    // SAFETY: whoever ends a context waits until this thread is ready.
    unsafe { context.enter(|| synchronize() == SUCCESS) == Some(true) }
}

/// Makes the thread startable in a forked child, where it is not.
///
/// # Safety
///
/// The process has one thread.
pub(super) unsafe fn forked() {
    STATE.store(IDLE, Ordering::SeqCst);
    IS_RUNNING.store(false, Ordering::SeqCst);
    // SAFETY: passed on.
    unsafe {
        THREAD.renew();
        CONTEXTS.renew();
    }
}
