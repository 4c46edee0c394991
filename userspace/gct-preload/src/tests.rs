// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests the whole way from a submission to a simulated GPU.

mod ahead;
mod chips;
pub(crate) mod copies;
mod graph;
mod paced;

use crate::sys;
use core::sync::atomic::{AtomicUsize, Ordering};

/// Maps shared anonymous memory in place of the driver's. It lies where the kernel maps nothing by
/// itself, because other tests map memory while it is shadowed.
pub(crate) fn device(len: usize) -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0x1d00_0000_0000);
    let at = NEXT.fetch_add(len.next_multiple_of(2 << 20), Ordering::Relaxed);
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping where nothing is, or none.
    let mapped = unsafe { sys::mmap(at as *mut _, len, prot, flags, -1, 0) };
    assert_eq!(mapped as usize, at);
    at
}
