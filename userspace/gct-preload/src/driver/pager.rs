// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Moves pageable memory, whatever the program does: a thread asks the daemon once a second what
//! the limits allow, and makes the moves that [`crate::pager`] names.
//!
//! The thread of the daemon's messages must not do that: a move waits for the GPU, which does
//! nothing while the process is frozen, and that thread thaws it. A launch must not do it either: a
//! program whose memory is on the host launches seldom.

use super::pageable::{is_locked, lock, now, updated, Gpu};
use super::Device;
use crate::processors;
use core::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// Time between two questions while nothing moves.
const INTERVAL: Duration = Duration::from_secs(1);

/// The most moves in one stop, which takes some 5 ms then.
const MOVES: usize = 8;

/// Time between two looks of the process's end at the thread.
const PAUSE: Duration = Duration::from_millis(1);

/// Longest time for which the end of the process waits for a move. It waits for the GPU, and for
/// ever while the process is frozen.
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

/// Makes the next moves on a GPU. Returns the pause after them, or `None` if nothing has moved.
fn step(device: Device) -> Option<Duration> {
    let mut gpus = lock().filter(|_| !IS_ENDING.load(Ordering::SeqCst))?;
    let gpu = gpus.get_mut(&device)?;
    let context = gpu.context?;
    // SAFETY: a context that is known exists, and is forgotten under the lock before it ends.
    let pause = unsafe { context.enter(|| move_some(gpu, device)) }.flatten();
    updated(&gpus);
    pause
}

/// Makes the next moves in one stop of the program.
fn move_some(gpu: &mut Gpu, device: Device) -> Option<Duration> {
    gpu.bury(device);
    let (memory, mut mover) = gpu.mover(device);
    if !memory.has_any() {
        return None;
    }
    let (began, mut last) = (now(), None);
    for _ in 0..MOVES {
        let Some(next) = memory.look(&mut mover, now()) else {
            break;
        };
        if !memory.carry_out(&[next], &mut mover, now()) {
            break;
        }
        last = Some(next);
    }
    last.map(|made| Duration::from_nanos(made.pause(now() - began).get()))
}
