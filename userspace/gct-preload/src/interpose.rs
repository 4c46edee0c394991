// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Interposes functions of libc: `ioctl`, `mmap`, `munmap`, and those that install signal handlers
//! or masks.

use crate::devices::{device_node, DeviceNode};
use crate::driver::allocations;
use crate::managed::{self, Asked};
use crate::places::DOORBELL_BYTES;
use crate::sys::{self, keep_errno};
use crate::worker::Held;
use crate::{fault, ioctls, places, rm, signals, worker};
use core::ffi::{c_char, c_int, c_ulong, c_void, CStr};
use core::sync::atomic::{AtomicBool, Ordering};
use gct_core::iface::parse;
use gct_core::iface::value::{Format, Value};
use libc::{off_t, sigaction as Action, sighandler_t, sigset_t, size_t};

/// Interposes `ioctl(2)`: passes every request on, and tracks NVIDIA's.
///
/// # Safety
///
/// As for `ioctl(2)`.
#[no_mangle]
pub unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, arg: *mut c_void) -> c_int {
    // SAFETY: `arg` belongs to `request`, by this function's contract.
    let managers = unsafe { rm::Ioctl::new(request, arg as u64) };
    // SAFETY: passed on unchanged.
    let pass_on = || unsafe { sys::ioctl(fd, request, arg) };
    if let Some(ioctl) = managers {
        return ioctls::follow(fd, &ioctl, pass_on);
    }
    let ret = pass_on();
    if ret == 0 && request == managed::ALLOC_SEMAPHORE_POOL {
        // SAFETY: the request succeeded, so the driver has read the structure at `arg`.
        keep_errno(|| unsafe { pool_made(fd, arg) });
    }
    ret
}

/// Records a semaphore pool, if `fd` is the UVM driver's node.
///
/// # Safety
///
/// If `fd` is the UVM driver's node, the driver has just read the structure at `arg`.
unsafe fn pool_made(fd: c_int, arg: *mut c_void) {
    if device_node(fd) == Some(DeviceNode::Uvm) {
        // SAFETY: the structure begins with two numbers of 64 bits.
        let [base, len] = unsafe { arg.cast::<[u64; 2]>().read_unaligned() };
        managed::pool_made(base, len);
    }
}

/// Keeps the calling program's launches to the TPCs of a list such as `0-31,40`, or `all`, as
/// `tpc.mask` takes it. Returns 0 or an errno: ERANGE if none of the TPCs exists, EBUSY if the
/// program has native channels. It is for programs that restrict themselves. Limits of a daemon
/// replace it.
///
/// # Safety
///
/// `list` is a string that ends with a NUL.
#[no_mangle]
pub unsafe extern "C" fn gctgroup_restrict(list: *const c_char) -> c_int {
    if list.is_null() {
        return libc::EINVAL;
    }
    // SAFETY: a string, by contract.
    let list = unsafe { CStr::from_ptr(list) }.to_bytes();
    let list = match parse::value(Format::TpcList, list) {
        Ok(Value::TpcList(list)) => list,
        _ => return libc::EINVAL,
    };
    match worker::lock() {
        Some(shared) if shared.session.has_native() => libc::EBUSY,
        Some(mut shared) => match shared.governors.restrict(list.as_ref()) {
            true => 0,
            false => libc::ERANGE,
        },
        None => libc::ENODEV,
    }
}

/// Interposes `mmap(2)`: tracks mappings of NVIDIA's nodes. Managed memory over the limit fails
/// with `ENOMEM`.
///
/// # Safety
///
/// As for `mmap(2)`.
#[no_mangle]
pub unsafe extern "C" fn mmap(
    addr: *mut c_void,
    len: size_t,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    let node = match fd >= 0 && flags & libc::MAP_SHARED != 0 {
        true => keep_errno(|| device_node(fd)),
        false => None,
    };
    let asked = match node {
        Some(DeviceNode::Uvm) => keep_errno(|| managed::before(addr as usize, len)),
        _ => Asked::Nothing,
    };
    if asked == Asked::Refused {
        // CAST: widening.
        allocations::refused(len as u64);
        // SAFETY: glibc returns this thread's `errno`.
        unsafe { *libc::__errno_location() = libc::ENOMEM };
        return libc::MAP_FAILED;
    }
    let place = match node {
        Some(DeviceNode::Gpu(_)) if addr.is_null() => keep_errno(|| place(fd, len)),
        _ => None,
    };
    // The worker must not publish while one mapping replaces another.
    let over = match flags & libc::MAP_FIXED {
        0 => None,
        _ => keep_errno(|| known(addr as usize, len)),
    };
    let ret = match place {
        // SAFETY: a place that was taken for this, in which nothing is.
        Some(at) => unsafe { sys::mmap(at, len, prot, flags | libc::MAP_FIXED, fd, offset) },
        // SAFETY: passed on unchanged.
        None => unsafe { sys::mmap(addr, len, prot, flags, fd, offset) },
    };
    let at = (ret != libc::MAP_FAILED).then_some(ret as usize);
    if let Some(at) = at.filter(|_| flags & libc::MAP_FIXED != 0) {
        managed::gone(at, len);
    }
    keep_errno(|| replaced(over, at, len));
    if let Some(place) = place.filter(|_| at.is_none()) {
        keep_errno(|| places::undo(place as usize));
    }
    keep_errno(|| match (node, at) {
        (Some(DeviceNode::Uvm), at) => managed::after(asked, at, len),
        (Some(DeviceNode::Gpu(number)), Some(at)) => mapped(fd, at, len, Some(number)),
        (Some(DeviceNode::Control), Some(at)) => mapped(fd, at, len, None),
        _ => {}
    });
    ret
}

/// Whether any of NVIDIA's nodes was mapped. Before that `munmap` takes no lock.
pub(crate) static MAPPED: AtomicBool = AtomicBool::new(false);

/// Records a mapping of a GPU's node or of the control node.
fn mapped(fd: c_int, at: usize, len: size_t, gpu: Option<u32>) {
    MAPPED.store(true, Ordering::Relaxed);
    if let Some(mut shared) = worker::lock() {
        let len = len.next_multiple_of(sys::PAGE);
        shared.session.mapped(fd, at, len, gpu);
    }
}

/// Returns the address for the next mapping of a descriptor, if it is a doorbell page.
fn place(fd: c_int, len: size_t) -> Option<*mut c_void> {
    let shared = worker::lock()?;
    let doorbell = len == DOORBELL_BYTES && shared.session.announces_doorbell(fd);
    let at = doorbell.then(places::take).flatten()?;
    Some(at as *mut c_void)
}

/// Locks the shared state and publishes, if a known mapping touches `[addr, addr + len)`.
fn known(addr: usize, len: size_t) -> Option<Held> {
    let mut shared = MAPPED
        .load(Ordering::Relaxed)
        .then(worker::lock)
        .flatten()
        .filter(|shared| shared.session.knows(addr, len))?;
    shared.publish();
    Some(shared)
}

/// Forgets a known range that was mapped over, unless `at` is `None`.
fn replaced(over: Option<Held>, at: Option<usize>, len: size_t) {
    if let (Some(mut shared), Some(at)) = (over, at) {
        shared.session.unmapped(at, len);
        worker::attend(&mut shared);
    }
}

/// Forgets a known range that is about to be unmapped.
fn unmapped(at: usize, len: size_t) {
    if let Some(mut shared) = known(at, len) {
        shared.session.unmapped(at, len);
        worker::attend(&mut shared);
    }
}

/// Interposes `mmap64`, the large-file name of [`mmap`].
///
/// # Safety
///
/// As for `mmap(2)`.
#[no_mangle]
pub unsafe extern "C" fn mmap64(
    addr: *mut c_void,
    len: size_t,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    // SAFETY: the contract is the same.
    unsafe { mmap(addr, len, prot, flags, fd, offset) }
}

/// Interposes `munmap(2)`: removes the shadow of the mapping, and uncharges managed memory.
///
/// # Safety
///
/// As for `munmap(2)`.
#[no_mangle]
pub unsafe extern "C" fn munmap(addr: *mut c_void, len: size_t) -> c_int {
    managed::gone(addr as usize, len);
    keep_errno(|| unmapped(addr as usize, len));
    // SAFETY: passed on unchanged.
    let ret = unsafe { sys::munmap(addr, len) };
    if ret == 0 {
        places::give(addr as usize);
    }
    ret
}

/// Interposes `sigaction(2)`: our handler for SIGSEGV stays first.
///
/// # Safety
///
/// As for `sigaction(2)`.
#[no_mangle]
pub unsafe extern "C" fn sigaction(signum: c_int, new: *const Action, old: *mut Action) -> c_int {
    // SAFETY: passed on under the same contract.
    unsafe { fault::program_action(signum, new, old) }
}

/// Installs a handler with these flags. Returns the previous one.
///
/// # Safety
///
/// As for `signal(2)`.
unsafe fn install(signum: c_int, handler: sighandler_t, flags: c_int) -> sighandler_t {
    // SAFETY: all zero is a valid `sigaction`.
    let mut new: Action = unsafe { core::mem::zeroed() };
    new.sa_sigaction = handler;
    new.sa_flags = flags;
    // SAFETY: as above.
    let mut old: Action = unsafe { core::mem::zeroed() };
    // SAFETY: both live for the call.
    match unsafe { fault::program_action(signum, &new, &mut old) } {
        0 => old.sa_sigaction,
        _ => libc::SIG_ERR,
    }
}

/// Interposes `signal(2)`, with glibc's semantics (BSD's).
///
/// # Safety
///
/// As for `signal(2)`.
#[no_mangle]
pub unsafe extern "C" fn signal(signum: c_int, handler: sighandler_t) -> sighandler_t {
    // SAFETY: passed on under the same contract.
    unsafe { install(signum, handler, libc::SA_RESTART) }
}

/// Interposes `__sysv_signal`, the `signal` of programs that were compiled for System V.
///
/// # Safety
///
/// As for `signal(2)`.
#[no_mangle]
pub unsafe extern "C" fn __sysv_signal(signum: c_int, handler: sighandler_t) -> sighandler_t {
    // SAFETY: passed on under the same contract.
    unsafe { install(signum, handler, libc::SA_RESETHAND | libc::SA_NODEFER) }
}

/// Interposes `pthread_sigmask(3)`: SIGSEGV stays unblocked.
///
/// # Safety
///
/// As for `pthread_sigmask(3)`.
#[no_mangle]
pub unsafe extern "C" fn pthread_sigmask(
    how: c_int,
    new: *const sigset_t,
    old: *mut sigset_t,
) -> c_int {
    // SAFETY: passed on under the same contract.
    unsafe { signals::program_mask(how, new, old) }
}

/// Interposes `sigprocmask(2)`: SIGSEGV stays unblocked.
///
/// # Safety
///
/// As for `sigprocmask(2)`.
#[no_mangle]
pub unsafe extern "C" fn sigprocmask(
    how: c_int,
    new: *const sigset_t,
    old: *mut sigset_t,
) -> c_int {
    // SAFETY: passed on under the same contract.
    match unsafe { signals::program_mask(how, new, old) } {
        0 => 0,
        error => {
            // SAFETY: glibc returns this thread's `errno`.
            unsafe { *libc::__errno_location() = error };
            -1
        }
    }
}
