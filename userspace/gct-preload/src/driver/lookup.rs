// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Returns the wrappers from `cuGetProcAddress`, by which the CUDA runtime finds every function.

use super::symbols::{self, Symbol, GET_PROC_ADDRESS, GET_PROC_ADDRESS_V2};
use super::{Status, NOT_INITIALIZED, SUCCESS};
use core::ffi::{c_char, c_int, c_void, CStr};

/// `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`.
const PER_THREAD: u64 = 2;

/// Returns the wrapper to return instead of `real` for a name, a CUDA version and flags.
///
/// Usually `real` is a function that libcuda exports, which identifies the wrapper; a variant of a
/// newer libcuda has none. Otherwise name, version and flags do: it is the newest variant that is
/// not newer than the version.
fn wrapper(name: &CStr, version: c_int, flags: u64, real: *mut c_void) -> Option<&'static Symbol> {
    let asked = || symbols::all().filter(|symbol| symbol.asked == name);
    if let Some(same) = asked().find(|symbol| symbol.real() == Some(real)) {
        return Some(same);
    }
    let per_thread = flags & PER_THREAD != 0;
    let old_enough = asked().filter(|symbol| symbol.since <= version);
    // Functions without a stream have one variant.
    let found = old_enough.max_by_key(|symbol| (symbol.per_thread == per_thread, symbol.since))?;
    if symbols::is_other(name, real) {
        return None;
    }
    found.learn(real);
    Some(found)
}

/// Replaces the function at `*pfn` by its wrapper.
///
/// # Safety
///
/// `name` is null or a string. `pfn` is null, or `cuGetProcAddress` has just written it.
unsafe fn wrap(name: *const c_char, pfn: *mut *mut c_void, version: c_int, flags: u64) {
    if name.is_null() || pfn.is_null() {
        return;
    }
    // SAFETY: by contract.
    let (name, real) = unsafe { (CStr::from_ptr(name), *pfn) };
    if real.is_null() {
        return;
    }
    if let Some(symbol) = wrapper(name, version, flags, real) {
        // SAFETY: by contract.
        unsafe { *pfn = symbol.ours() };
    }
}

/// Interposes the function of CUDA 11.3 to 11.8.
///
/// # Safety
///
/// As for libcuda's function.
#[no_mangle]
#[allow(non_snake_case, reason = "libcuda's name")]
pub unsafe extern "C" fn cuGetProcAddress(
    name: *const c_char,
    pfn: *mut *mut c_void,
    version: c_int,
    flags: u64,
) -> Status {
    type Real = unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64) -> Status;
    // SAFETY: `Real` is the type of the function.
    let Some(real) = (unsafe { GET_PROC_ADDRESS.function::<Real>() }) else {
        return NOT_INITIALIZED;
    };
    // SAFETY: passes on the caller's contract.
    let status = unsafe { real(name, pfn, version, flags) };
    if status == SUCCESS {
        // SAFETY: the call succeeded, so it has written `pfn`.
        unsafe { wrap(name, pfn, version, flags) };
    }
    status
}

/// Interposes the function of CUDA 12.0 and later.
///
/// # Safety
///
/// As for libcuda's function.
#[no_mangle]
#[allow(non_snake_case, reason = "libcuda's name")]
pub unsafe extern "C" fn cuGetProcAddress_v2(
    name: *const c_char,
    pfn: *mut *mut c_void,
    version: c_int,
    flags: u64,
    found: *mut c_int,
) -> Status {
    type Real =
        unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64, *mut c_int) -> Status;
    // SAFETY: `Real` is the type of the function.
    let Some(real) = (unsafe { GET_PROC_ADDRESS_V2.function::<Real>() }) else {
        return NOT_INITIALIZED;
    };
    // SAFETY: passes on the caller's contract.
    let status = unsafe { real(name, pfn, version, flags, found) };
    if status == SUCCESS {
        // SAFETY: the call succeeded, so it has written `pfn`.
        unsafe { wrap(name, pfn, version, flags) };
    }
    status
}
