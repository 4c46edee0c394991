// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Makes system calls without libc's wrappers.
//!
//! This library replaces `ioctl`, `mmap` and others of libc. It must never call them by name,
//! because it would call itself.

use core::ffi::c_void;
use core::sync::atomic::AtomicU32;

/// Bytes of the smallest page.
pub(crate) const PAGE: usize = 4096;

/// Calls the kernel's `ioctl`. Returns its result, or -1 with `errno` set.
///
/// # Safety
///
/// As for `ioctl(2)`: `arg` must be what the request of this descriptor asks for.
pub(crate) unsafe fn ioctl(fd: i32, request: u64, arg: *mut c_void) -> i32 {
    // SAFETY: the caller vouches for `arg`; the kernel checks the rest.
    let ret = unsafe { libc::syscall(libc::SYS_ioctl, fd, request, arg) };
    // CAST: an ioctl of the NVIDIA driver returns 0 or -1.
    ret as i32
}

/// Calls the kernel's `mmap`. Returns `MAP_FAILED` with `errno` set if it fails.
///
/// # Safety
///
/// As for `mmap(2)`; with `MAP_FIXED` whatever is mapped there is lost.
pub(crate) unsafe fn mmap(
    addr: *mut c_void,
    len: usize,
    prot: i32,
    flags: i32,
    fd: i32,
    offset: i64,
) -> *mut c_void {
    // SAFETY: the caller vouches for a fixed address; otherwise this only adds a mapping.
    let ret = unsafe { libc::syscall(libc::SYS_mmap, addr, len, prot, flags, fd, offset) };
    // CAST: the kernel returns an address or -1, which is `MAP_FAILED`.
    ret as *mut c_void
}

/// Calls the kernel's `munmap`.
///
/// # Safety
///
/// Nothing may use `[addr, addr + len)` afterwards.
pub(crate) unsafe fn munmap(addr: *mut c_void, len: usize) -> i32 {
    // SAFETY: the caller gives up the range.
    let ret = unsafe { libc::syscall(libc::SYS_munmap, addr, len) };
    // CAST: 0 or -1.
    ret as i32
}

/// Moves a mapping to an address of the kernel's choice. Returns `None` if the kernel refuses.
///
/// # Safety
///
/// `[addr, addr + len)` must be one whole mapping, and nothing may use the old
/// range until something else is mapped there.
pub(crate) unsafe fn move_mapping(addr: *mut c_void, len: usize) -> Option<*mut c_void> {
    // SAFETY: a fresh anonymous reservation touches nothing that exists.
    let room = unsafe {
        mmap(
            core::ptr::null_mut(),
            len,
            libc::PROT_NONE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    if room == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: the destination is the reservation made above, which nobody else knows;
    // the caller vouches for the source.
    let moved = unsafe {
        libc::syscall(
            libc::SYS_mremap,
            addr,
            len,
            len,
            libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED,
            room,
        )
    };
    if moved == -1 {
        // SAFETY: the reservation is ours and unused.
        unsafe { munmap(room, len) };
        return None;
    }
    Some(room)
}

/// Changes the protection of a mapping that this library made.
///
/// # Safety
///
/// `[addr, addr + len)` must be a mapping of ours whose users expect the change.
pub(crate) unsafe fn mprotect(addr: *mut c_void, len: usize, prot: i32) -> bool {
    // SAFETY: the caller owns the mapping.
    unsafe { libc::syscall(libc::SYS_mprotect, addr, len, prot) == 0 }
}

/// Sleeps while `*word == expected`, for at most `timeout_ns`.
pub(crate) fn futex_wait(word: &AtomicU32, expected: u32, timeout_ns: i64) {
    let timeout = libc::timespec {
        tv_sec: timeout_ns / 1_000_000_000,
        tv_nsec: timeout_ns % 1_000_000_000,
    };
    // SAFETY: `word` outlives the call, and the kernel only reads it and the timeout.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
            expected,
            &timeout,
        );
    }
}

/// Wakes all sleepers on `word`. A signal handler may call this.
pub(crate) fn futex_wake(word: &AtomicU32) {
    // SAFETY: the kernel uses the address as a key only.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
            i32::MAX,
        );
    }
}

/// Writes a line to standard error, past the standard library's lock, which another thread may have
/// held when this process was forked.
pub(crate) fn say(line: &str) {
    // SAFETY: the bytes live for the call. Nothing can be done where they cannot be written.
    unsafe { libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len()) };
}

/// Returns whether a debugger traces this process.
pub(crate) fn is_traced() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut lines = status.lines();
    let tracer = lines.find_map(|line| line.strip_prefix("TracerPid:"));
    tracer.is_some_and(|pid| pid.trim() != "0")
}

/// Returns the monotonic time in nanoseconds.
pub(crate) fn now_ns() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `now` is valid for the write; the clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    // CAST: monotonic time is not negative.
    (now.tv_sec as u64)
        .wrapping_mul(1_000_000_000)
        .wrapping_add(now.tv_nsec as u64)
}

/// Runs `f` and restores `errno`.
pub(crate) fn keep_errno<T>(f: impl FnOnce() -> T) -> T {
    // SAFETY: glibc returns this thread's `errno`, which lives as long as the thread.
    let slot = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let saved = unsafe { *slot };
    let ret = f();
    // SAFETY: as above.
    unsafe { *slot = saved };
    ret
}
