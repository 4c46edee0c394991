// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Interposes `dlopen(3)`: libcuda calls this library however a program loads it.
//!
//! With `RTLD_DEEPBIND`, which is Julia's default, libcuda would find libc's `ioctl` before ours.
//! libc resolves paths by the return address, which stays the caller's.

use super::symbols;
use core::ffi::{c_char, c_int, c_void, CStr};
use core::ptr;

/// How `dlopen` goes on: with these flags, at libc's function.
#[repr(C)]
struct Opens {
    flags: usize,
    dlopen: *mut c_void,
}

/// Decides how `dlopen(name, flags)` goes on.
///
/// # Safety
///
/// As for `dlopen(3)`.
unsafe extern "C" fn decide(name: *const c_char, flags: c_int) -> Opens {
    // SAFETY: `dlopen` takes a string, or null.
    let name = (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) });
    let flags = match name.is_some_and(is_libcuda) {
        true => flags & !libc::RTLD_DEEPBIND,
        false => flags,
    };
    Opens {
        // CAST: the flags are in the lower half.
        flags: flags as u32 as usize,
        dlopen: symbols::next(c"dlopen").unwrap_or(ptr::null_mut()),
    }
}

/// Returns whether a path is that of libcuda.
fn is_libcuda(path: &CStr) -> bool {
    let name = path.to_bytes().rsplit(|byte| *byte == b'/').next();
    name.is_some_and(|name| name.starts_with(b"libcuda.so"))
}

/// Interposes `dlopen(3)`: `RTLD_DEEPBIND` does not count for libcuda.
///
/// # Safety
///
/// As for `dlopen(3)`.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[no_mangle]
pub unsafe extern "C" fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void {
    core::arch::naked_asm!(
        "endbr64",
        // Saves the name and keeps the stack aligned.
        "push rdi",
        "call {decide}",
        "pop rdi",
        // `Opens`: rax is `flags`, rdx is `dlopen`.
        "mov esi, eax",
        "test rdx, rdx",
        "jz 2f",
        "jmp rdx",
        "2:",
        "xor eax, eax",
        "ret",
        decide = sym decide,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libcuda_is_known_by_its_name() {
        for path in [
            c"libcuda.so.1",
            c"/usr/lib/libcuda.so",
            c"./libcuda.so.580.1",
        ] {
            assert!(is_libcuda(path), "{path:?}");
        }
        for path in [
            c"libcudart.so.12",
            c"libcuda.so.1/libm.so.6",
            c"",
            c"/opt/mylibcuda.so",
        ] {
            assert!(!is_libcuda(path), "{path:?}");
        }
    }
}
