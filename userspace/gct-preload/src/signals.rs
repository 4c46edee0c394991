// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Calls glibc's functions for signals, behind those that this library interposes.

use core::ffi::{c_int, c_void, CStr};
use core::sync::atomic::{AtomicPtr, Ordering};
use libc::{sigaction, sigset_t};

/// The types of glibc's functions that this library interposes.
type Sigaction = unsafe extern "C" fn(c_int, *const sigaction, *mut sigaction) -> c_int;
type Sigmask = unsafe extern "C" fn(c_int, *const sigset_t, *mut sigset_t) -> c_int;

/// A symbol of the libraries behind this one. It is looked up once, because a signal handler must
/// not call `dlsym`.
struct Next {
    name: &'static CStr,
    at: AtomicPtr<c_void>,
}

impl Next {
    const fn new(name: &'static CStr) -> Self {
        Self {
            name,
            at: AtomicPtr::new(core::ptr::null_mut()),
        }
    }

    /// Returns the symbol's address, or null if it does not exist.
    fn get(&self) -> *mut c_void {
        let known = self.at.load(Ordering::Acquire);
        if !known.is_null() {
            return known;
        }
        // SAFETY: looks a symbol up by name; `RTLD_NEXT` is whatever comes after this object.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.at.store(found, Ordering::Release);
        found
    }
}

static SIGACTION: Next = Next::new(c"sigaction");
static PTHREAD_SIGMASK: Next = Next::new(c"pthread_sigmask");

/// Calls glibc's `sigaction`.
///
/// # Safety
///
/// As for `sigaction(2)`.
pub(crate) unsafe fn real_action(
    signal: c_int,
    new: *const sigaction,
    old: *mut sigaction,
) -> c_int {
    let symbol = SIGACTION.get();
    if symbol.is_null() {
        return -1;
    }
    // SAFETY: the symbol named `sigaction` has this type in every libc.
    let real = unsafe { core::mem::transmute::<*mut c_void, Sigaction>(symbol) };
    // SAFETY: the caller's pointers are passed on unchanged.
    unsafe { real(signal, new, old) }
}

/// Calls glibc's `pthread_sigmask`.
///
/// # Safety
///
/// As for `pthread_sigmask(3)`.
pub(crate) unsafe fn real_mask(how: c_int, new: *const sigset_t, old: *mut sigset_t) -> c_int {
    let symbol = PTHREAD_SIGMASK.get();
    if symbol.is_null() {
        return libc::ENOSYS;
    }
    // SAFETY: the symbol named `pthread_sigmask` has this type in every libc.
    let real = unsafe { core::mem::transmute::<*mut c_void, Sigmask>(symbol) };
    // SAFETY: the caller's pointers are passed on unchanged.
    unsafe { real(how, new, old) }
}

/// Calls `pthread_sigmask` but leaves SIGSEGV unblocked. The kernel kills a process whose doorbell
/// faults in a thread that blocks SIGSEGV.
///
/// # Safety
///
/// As for `pthread_sigmask(3)`.
pub(crate) unsafe fn program_mask(how: c_int, new: *const sigset_t, old: *mut sigset_t) -> c_int {
    if new.is_null() || how == libc::SIG_UNBLOCK {
        // SAFETY: the caller's pointers are passed on unchanged.
        return unsafe { real_mask(how, new, old) };
    }
    // SAFETY: `new` is valid by contract.
    let mut set = unsafe { new.read() };
    // SAFETY: `set` is an initialised set.
    unsafe { libc::sigdelset(&mut set, libc::SIGSEGV) };
    // SAFETY: `set` lives for the call; `old` is the caller's.
    unsafe { real_mask(how, &set, old) }
}

/// Looks up what a signal handler may call.
pub(crate) fn prepare() {
    PTHREAD_SIGMASK.get();
}

/// A guard that blocks all signals but SIGSEGV in this thread until it is dropped.
#[derive(Debug)]
pub(crate) struct Blocked(libc::sigset_t);

impl Blocked {
    /// Blocks the signals. A signal handler may call this.
    pub(crate) fn all() -> Self {
        // SAFETY: all zero is a valid set, the empty one.
        let mut all: libc::sigset_t = unsafe { core::mem::zeroed() };
        let mut before = all;
        // SAFETY: initialised sets. Without the two that glibc keeps for itself.
        unsafe {
            libc::sigfillset(&mut all);
            program_mask(libc::SIG_BLOCK, &all, &mut before);
        }
        Self(before)
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // SAFETY: the mask of before.
        unsafe { real_mask(libc::SIG_SETMASK, &self.0, core::ptr::null_mut()) };
    }
}
