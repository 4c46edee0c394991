// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Chooses where doorbell pages are mapped: far below what the kernel gives to whoever asks for memory
//! anywhere.
//!
//! When a page is shadowed, its place is free for a moment. The kernel looks for free memory from the top,
//! and so never takes a place down here.

use crate::session::{DOORBELLS_MAX, DOORBELL_BYTES};
use crate::sys;
use core::ffi::c_void;
use core::sync::atomic::{AtomicU64, Ordering};

/// Below the addresses of libraries, stacks and heaps in each layout of Linux's, and above what libcuda
/// reserves for device memory.
const FIRST: usize = 0x1c00_0000_0000;

/// Which places are taken, one bit each.
static TAKEN: AtomicU64 = AtomicU64::new(0);

/// Takes a place for one doorbell page, where nothing is mapped; `None` when there is none.
pub(crate) fn take() -> Option<usize> {
    let mut taken = TAKEN.load(Ordering::Relaxed);
    loop {
        // CAST: less than 64.
        let free = (!taken).trailing_zeros() as usize;
        if free >= DOORBELLS_MAX {
            return None;
        }
        let with = taken | 1 << free;
        match TAKEN.compare_exchange(taken, with, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return reserve(FIRST + free * DOORBELL_BYTES),
            Err(now) => taken = now,
        }
    }
}

/// Sees to it that nothing else is at a place, which is lost otherwise.
fn reserve(at: usize) -> Option<usize> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    let first = at as *mut c_void;
    // SAFETY: a new mapping, in the place of none.
    let mapped = unsafe { sys::mmap(first, DOORBELL_BYTES, libc::PROT_NONE, flags, -1, 0) };
    if mapped != libc::MAP_FAILED && mapped != first {
        // A kernel before 4.17 takes the address for a wish.
        // SAFETY: the mapping just made.
        unsafe { sys::munmap(mapped, DOORBELL_BYTES) };
    }
    (mapped == first).then_some(at)
}

/// Gives back a place at which nothing could be mapped.
pub(crate) fn undo(at: usize) {
    // SAFETY: what `reserve` has mapped, and nobody else knows.
    unsafe { sys::munmap(at as *mut c_void, DOORBELL_BYTES) };
    give(at);
}

/// Gives back the place of a page that is not mapped any more.
pub(crate) fn give(at: usize) {
    let offset = at.wrapping_sub(FIRST);
    if offset % DOORBELL_BYTES == 0 && offset / DOORBELL_BYTES < DOORBELLS_MAX {
        TAKEN.fetch_and(!(1 << (offset / DOORBELL_BYTES)), Ordering::Relaxed);
    }
}
