// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tracks the calls of libcuda functions that publish their work when they return. That saves a
//! fault ([`gct_core::policy::doorbell`] defines the terms).

use core::cell::Cell;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Whether doorbells are open.
static OPEN: AtomicBool = AtomicBool::new(false);
/// The calls that began while doorbells were open and have not returned.
static UNDER_WAY: AtomicU32 = AtomicU32::new(0);

std::thread_local! {
    /// The depth of this thread's calls.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// Begins a call of the program, before it rings. [`end`] gets the result.
pub(crate) fn begin() -> bool {
    // An ending thread may call, too. Then its ring faults.
    let _ = DEPTH.try_with(|depth| depth.set(depth.get() + 1));
    let counted = is_open();
    if counted {
        UNDER_WAY.fetch_add(1, Ordering::SeqCst);
    }
    counted
}

/// Ends a call, which returns then. While doorbells are open, `publish` publishes its work.
pub(crate) fn end(counted: bool, publish: impl FnOnce()) {
    let _ = DEPTH.try_with(|depth| depth.set(depth.get() - 1));
    if is_open() {
        publish();
    }
    if counted {
        UNDER_WAY.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Returns whether this thread is in a call. A signal handler may call this.
pub(crate) fn is_inside() -> bool {
    DEPTH.try_with(|depth| depth.get() > 0).unwrap_or(false)
}

/// Returns whether any thread may be between its ring and the end of its call.
pub(crate) fn is_under_way() -> bool {
    UNDER_WAY.load(Ordering::SeqCst) > 0
}

/// Returns whether doorbells are open.
pub(crate) fn is_open() -> bool {
    OPEN.load(Ordering::SeqCst)
}

/// Makes calls publish. This is called before doorbells stop faulting, so that every later ring has
/// a publisher.
pub(crate) fn open() {
    OPEN.store(true, Ordering::SeqCst);
}

/// Stops calls from publishing. This is called once doorbells fault again or a thread polls, and
/// before the last check for rings in between.
pub(crate) fn close() {
    OPEN.store(false, Ordering::SeqCst);
}
