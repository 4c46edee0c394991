// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Publishes what a function of libcuda's has submitted when it returns, where that saves a fault
//! ([`gct_core::policy::doorbell`] has the terms).

use crate::sys::keep_errno;
use crate::worker;
use core::cell::Cell;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Whether doorbells are open.
static OPEN: AtomicBool = AtomicBool::new(false);
/// Calls that began while doorbells were open and have not returned.
static UNDER_WAY: AtomicU32 = AtomicU32::new(0);

std::thread_local! {
    /// Calls that this thread is in.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// A call of the program's, from before it rings until it returns.
#[derive(Debug)]
pub(crate) struct Call {
    counted: bool,
}

impl Call {
    /// Begins one.
    pub(crate) fn begin() -> Self {
        // A thread that is ending may call too: it faults then.
        let _ = DEPTH.try_with(|depth| depth.set(depth.get() + 1));
        let counted = is_open();
        if counted {
            UNDER_WAY.fetch_add(1, Ordering::SeqCst);
        }
        Self { counted }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let _ = DEPTH.try_with(|depth| depth.set(depth.get() - 1));
        if is_open() {
            keep_errno(worker::publish_call);
        }
        if self.counted {
            UNDER_WAY.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// Returns whether this thread is in a call. May be called in a signal handler.
pub(crate) fn is_inside() -> bool {
    DEPTH.try_with(|depth| depth.get() > 0).unwrap_or(false)
}

/// Returns whether some thread may be between its ring and the end of its call.
pub(crate) fn is_under_way() -> bool {
    UNDER_WAY.load(Ordering::SeqCst) > 0
}

/// Returns whether doorbells are open.
pub(crate) fn is_open() -> bool {
    OPEN.load(Ordering::SeqCst)
}

/// Has calls publish. To be called before the doorbells stop to fault: what is rung then is published by whoever rings.
pub(crate) fn open() {
    OPEN.store(true, Ordering::SeqCst);
}

/// Has calls publish no more. To be called when doorbells fault again, or somebody polls, and before the last look at what
/// was rung meanwhile.
pub(crate) fn close() {
    OPEN.store(false, Ordering::SeqCst);
}
