// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Makes the library usable in a forked child, at whatever moment its parent forks.
//!
//! The loader registers a handler, which runs in each child of `fork` before it returns there. A
//! child of `vfork` or `posix_spawn` shares its parent's memory, threads and locks, so no handler
//! runs there, and [`Mark`] recognizes it.

use crate::{daemon, driver, fault, managed, sys, worker};
use core::ffi::c_void;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Set once this process may have a channel or memory that this library manages.
static MANAGES: AtomicBool = AtomicBool::new(false);
/// Set in a child that was forked from such a process. CUDA does not work there, and neither does
/// this library.
static INERT: AtomicBool = AtomicBool::new(false);

/// Makes children that are forked from now on inert. The caller has not begun to manage anything.
pub(crate) fn manage() {
    MANAGES.store(true, Ordering::SeqCst);
}

/// Returns whether this is a child that was forked from a process with a managed channel or memory.
pub(crate) fn is_inert() -> bool {
    INERT.load(Ordering::Relaxed)
}

/// Makes a forked child a process of its own. It makes system calls and stores, and allocates
/// nothing: another thread of the parent may have been anywhere.
unsafe extern "C" fn forked() {
    INERT.store(MANAGES.load(Ordering::SeqCst), Ordering::Relaxed);
    fault::forked();
    // SAFETY: a forked child has one thread, and this runs before `fork` returns in it.
    unsafe {
        worker::forked();
        daemon::forked();
        managed::forked();
        driver::forked();
    }
}

/// Registers the handler, before another thread or a fork exists.
extern "C" fn register() {
    // SAFETY: `forked` does what is safe after a fork.
    unsafe { libc::pthread_atfork(None, None, Some(forked)) };
}

/// Makes the loader call [`register`].
#[used]
#[link_section = ".init_array"]
static REGISTER: extern "C" fn() = register;

/// A mark in memory that a forked child finds empty. A child that shares the memory sees it.
#[derive(Debug)]
pub(crate) struct Mark(Option<NonNull<AtomicU32>>);

// SAFETY: it points to an atomic in a mapping of its own.
unsafe impl Send for Mark {}

impl Mark {
    /// Makes a mark. Linux before 4.14 cannot: the mark is empty in every child then.
    pub(crate) fn new() -> Self {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let page = unsafe { sys::mmap(core::ptr::null_mut(), sys::PAGE, prot, flags, -1, 0) };
        if page == libc::MAP_FAILED {
            return Self(None);
        }
        let mark = Self(NonNull::new(page.cast::<AtomicU32>()));
        // SAFETY: the page is the one above.
        let wipes = unsafe { libc::madvise(page, sys::PAGE, libc::MADV_WIPEONFORK) } == 0;
        if let Some(word) = mark.word().filter(|_| wipes) {
            word.store(1, Ordering::SeqCst);
        }
        mark
    }

    fn word(&self) -> Option<&AtomicU32> {
        // SAFETY: the mapping is aligned, and lives as long as the mark.
        self.0.map(|at| unsafe { at.as_ref() })
    }

    /// Returns whether this process uses the memory of the one that made the mark.
    pub(crate) fn is_seen(&self) -> bool {
        self.word()
            .is_some_and(|word| word.load(Ordering::SeqCst) == 1)
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        if let Some(at) = self.0 {
            // SAFETY: the mapping of `new`, and nothing refers to it any more.
            unsafe { sys::munmap(at.as_ptr().cast::<c_void>(), sys::PAGE) };
        }
    }
}
