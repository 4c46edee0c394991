// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Chooses addresses for doorbell pages, far below those that the kernel chooses for other
//! mappings.
//!
//! While a page is being shadowed, its address range is free for a moment. The kernel searches for
//! free ranges from the top, so it does not reach these.

use crate::sys;
use core::ffi::c_void;
use core::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a usermode object's mapping, the doorbell page.
pub(crate) const DOORBELL_BYTES: usize = 0x10000;
/// The most doorbell pages that are shadowed: the fault handler has a slot for each. A CUDA context
/// maps two (recorded on an H200).
pub(crate) const DOORBELLS_MAX: usize = 64;

/// The first address. It is below libraries, stacks and heaps in every Linux layout, and above the
/// range that libcuda reserves for device memory.
const FIRST: usize = 0x1c00_0000_0000;

/// The ranges in use, one bit each.
static TAKEN: AtomicU64 = AtomicU64::new(0);

/// Reserves an unused range for one doorbell page. Returns `None` if none is left.
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

/// Maps a reservation at `at`. If something else is there, the range stays unused for good.
fn reserve(at: usize) -> Option<usize> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    let first = at as *mut c_void;
    // SAFETY: a new mapping, in the place of none.
    let mapped = unsafe { sys::mmap(first, DOORBELL_BYTES, libc::PROT_NONE, flags, -1, 0) };
    if mapped != libc::MAP_FAILED && mapped != first {
        // A kernel before 4.17 treats the address as a hint.
        // SAFETY: the mapping just made.
        unsafe { sys::munmap(mapped, DOORBELL_BYTES) };
    }
    (mapped == first).then_some(at)
}

/// Returns a range at which nothing could be mapped.
pub(crate) fn undo(at: usize) {
    // SAFETY: what `reserve` has mapped, and nobody else knows.
    unsafe { sys::munmap(at as *mut c_void, DOORBELL_BYTES) };
    give(at);
}

/// Returns the range of a page that is no longer mapped.
pub(crate) fn give(at: usize) {
    let offset = at.wrapping_sub(FIRST);
    if offset % DOORBELL_BYTES == 0 && offset / DOORBELL_BYTES < DOORBELLS_MAX {
        TAKEN.fetch_and(!(1 << (offset / DOORBELL_BYTES)), Ordering::Relaxed);
    }
}
