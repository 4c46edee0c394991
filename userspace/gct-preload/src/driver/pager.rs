// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Moves pageable memory, whatever the program does: a thread asks the daemon once a second what
//! the limits allow, and makes the moves that [`crate::pager`] names.
//!
//! The thread of the daemon's messages must not do that. libcuda may let a move wait while the
//! process is frozen, and that thread thaws it. A launch must not do it either: a program whose
//! memory is on the host launches seldom.

use super::mover::OwnStream;
use super::pageable::{is_locked, lock, now, updated, Gpu};
use super::{trace, Device};
use crate::processors;
use core::sync::atomic::{AtomicBool, Ordering};
use gct_core::policy::placement::Move;
use std::thread;
use std::time::Duration;

/// Time between two questions while nothing moves.
const INTERVAL: Duration = Duration::from_secs(1);

/// Time between two looks at moves that launches wait for.
const HELD: Duration = Duration::from_millis(5);

/// Time between two looks of the process's end at the thread.
const PAUSE: Duration = Duration::from_millis(1);

/// Longest time for which the end of the process waits for a move. It takes some 13 ms beside a
/// busy GPU, and for ever while the process is frozen.
const LONGEST: Duration = Duration::from_millis(200);

/// Whether the process is ending: libcuda must not be called any more.
static IS_ENDING: AtomicBool = AtomicBool::new(false);

/// Begins to look after the memory. Without a thread nothing moves, and a limit cannot be lowered
/// while this process has more than it allows.
pub(super) fn begin() {
    static BEGUN: AtomicBool = AtomicBool::new(false);
    if BEGUN.swap(true, Ordering::SeqCst) {
        return;
    }
    // SAFETY: `end` is a plain function that may run at exit. It runs before the destructors of
    // libcuda, which the program has loaded before.
    unsafe { libc::atexit(end) };
    processors::spawn("gct-pager", look_after);
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
        let pauses = devices().into_iter().filter_map(step);
        thread::sleep(pauses.min().unwrap_or(INTERVAL));
    }
}

fn devices() -> Vec<Device> {
    lock().map_or_else(Vec::new, |gpus| gpus.keys().copied().collect())
}

/// Makes the next move on a GPU. Returns the pause after it, or `None` if nothing has moved.
///
/// What launches wait for moves in another stream. So no new ones of these begin meanwhile, and
/// this one begins when they have ended.
fn step(device: Device) -> Option<Duration> {
    let mut gpus = lock().filter(|_| !IS_ENDING.load(Ordering::SeqCst))?;
    let gpu = gpus.get_mut(&device).filter(|gpu| gpu.memory.has_any())?;
    let mut accountant = gpu.accountant(device);
    let next = gpu.memory.look(&mut accountant, now());
    gpu.is_held = next.is_some();
    let pause = next.and_then(|next| match has_settled(gpu, device) {
        true => carry_out(gpu, device, next),
        false => Some(HELD),
    });
    updated(&gpus);
    pause
}

/// Returns whether the GPU has made all moves that launches wait for.
fn has_settled(gpu: &mut Gpu, device: Device) -> bool {
    let Some(context) = gpu.context else {
        return false;
    };
    // SAFETY: a context that is known exists, and is forgotten under the lock before it ends.
    unsafe { context.enter(|| trace::tell(device, &mut gpu.memory)) };
    !trace::is_moving(device)
}

fn carry_out(gpu: &mut Gpu, device: Device, next: Move) -> Option<Duration> {
    let context = gpu.context?;
    let moved = || {
        let stream = OwnStream::new()?;
        let mut mover = gpu.mover(device, &stream);
        let began = now();
        let has_moved = gpu.memory.carry_out(next, &mut mover, began);
        has_moved.then(|| next.pause(now() - began))
    };
    // SAFETY: a context that is known exists, and is forgotten under the lock before it ends.
    let pause = unsafe { context.enter(moved) }.flatten()?;
    Some(Duration::from_nanos(pause.get()))
}
