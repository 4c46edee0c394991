// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What C asks to end mappings of the GPU's memory with the memory (`gct_map.c`).

use super::{bytes, glue, token};
use crate::bindings;
use crate::rm;
use gct_core::rmapi::{self, Action, Class};
use kernel::ffi::c_void;

check_signatures!(gct_governs, gct_frees, gct_kind);

/// Returns whether the rules for governed tenants hold for a file. One that is not followed may be
/// anybody's.
///
/// # Safety
///
/// Any token is valid; a stale one names no file.
#[no_mangle]
unsafe extern "C" fn gct_governs(file: *mut c_void) -> bool {
    let Some(glue) = glue() else { return false };
    token(file).is_none_or(|file| glue.locked(|state| state.is_bound_tenant(file)))
}

/// Stores the client and the handle that an ioctl frees. Returns false if it frees nothing.
///
/// # Safety
///
/// `arg` is null or points to `size` bytes that do not change during the call, and `freed` to two
/// words.
#[no_mangle]
unsafe extern "C" fn gct_frees(
    escape: u32,
    arg: *const c_void,
    size: u32,
    freed: *mut u32,
) -> bool {
    // SAFETY: the caller's contract; null is handled.
    let decoded = unsafe { bytes(arg, size) }.map(|bytes| rmapi::decode(escape, bytes));
    let call = decoded.and_then(Result::ok).flatten();
    let Some(call) = call.filter(|call| call.action == Action::Free) else {
        return false;
    };
    // SAFETY: the caller's contract.
    unsafe { freed.cast::<[u32; 2]>().write([call.client, call.object]) };
    true
}

/// Returns what an object is, as far as mappings depend on it: one of `GCT_KIND_*`.
///
/// # Safety
///
/// Any numbers are valid. In an ioctl, without a lock of the resource manager.
#[no_mangle]
unsafe extern "C" fn gct_kind(client: u32, object: u32) -> u32 {
    match rm::class_of(client, object).map(Class::from_number) {
        Err(_) => bindings::GCT_KIND_GONE,
        Ok(Class::DeviceMemory | Class::Usermode) => bindings::GCT_KIND_LEAF,
        Ok(Class::OtherMemory) => bindings::GCT_KIND_MEMORY,
        Ok(Class::Client | Class::Device | Class::Subdevice) => bindings::GCT_KIND_ABOVE,
        Ok(_) => bindings::GCT_KIND_OTHER,
    }
}
