// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Evicts what exceeds a lowered limit, whatever the program does: a thread asks the daemon once a
//! second.
//!
//! The thread of the daemon's messages must not do that. libcuda may let a move wait while the
//! process is frozen, and that thread thaws it.

use super::mover::OwnStream;
use super::pageable::{is_locked, lock, now, updated};
use super::Device;
use crate::processors;
use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::Once;
use std::thread;
use std::time::Duration;

/// Time between two questions while nothing can leave.
const INTERVAL: Duration = Duration::from_secs(1);

/// Time between two pieces. A thread of the program that waits for the lock gets it then.
const PAUSE: Duration = Duration::from_millis(1);

/// Longest time for which the end of the process waits for a piece. It takes some 7 ms beside a
/// busy GPU, and for ever while the process is frozen.
const LONGEST: Duration = Duration::from_millis(200);

/// Whether the process is ending: libcuda must not be called any more.
static IS_ENDING: AtomicBool = AtomicBool::new(false);

/// Begins to look after the limits. Without a thread, a limit cannot be lowered while this process
/// has more than it allows.
pub(super) fn begin() {
    static BEGUN: Once = Once::new();
    BEGUN.call_once(|| {
        // SAFETY: `end` is a plain function that may run at exit. It runs before the destructors of
        // libcuda, which the program has loaded before.
        unsafe { libc::atexit(end) };
        processors::spawn("gct-pager", look_after);
    });
}

/// Keeps the thread out of libcuda from now on.
extern "C" fn end() {
    IS_ENDING.store(true, Ordering::SeqCst);
    let mut waited = Duration::ZERO;
    while waited < LONGEST && is_locked() {
        thread::sleep(PAUSE);
        waited += PAUSE;
    }
}

fn look_after() {
    loop {
        let left = over().into_iter().filter(|device| shrink(*device)).count();
        thread::sleep(if left > 0 { PAUSE } else { INTERVAL });
    }
}

/// Asks for each GPU what the limits allow. Returns those on which there is more.
fn over() -> Vec<Device> {
    let Some(mut gpus) = lock() else {
        return Vec::new();
    };
    let looked = gpus.iter_mut().filter_map(|(device, gpu)| {
        let mut accountant = gpu.accountant(*device);
        let is_over = gpu.memory.has_any() && gpu.memory.look(&mut accountant, now());
        is_over.then_some(*device)
    });
    let over = looked.collect();
    updated(&gpus);
    over
}

/// Evicts a piece. Returns whether one has left.
fn shrink(device: Device) -> bool {
    let Some(mut gpus) = lock().filter(|_| !IS_ENDING.load(Ordering::SeqCst)) else {
        return false;
    };
    let Some(gpu) = gpus.get_mut(&device) else {
        return false;
    };
    let Some(context) = gpu.context else {
        return false;
    };
    let evict = || {
        let stream = OwnStream::new()?;
        let mut mover = gpu.mover(device, &stream);
        Some(gpu.memory.shrink(&mut mover, now()))
    };
    // SAFETY: a context that is known exists, and is forgotten under the lock before it ends.
    let has_left = unsafe { context.enter(evict) }.flatten();
    updated(&gpus);
    has_left.unwrap_or(false)
}
