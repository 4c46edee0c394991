// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Defines the functions that nvidia-uvm calls.

use super::{glue, token, uuid_at};
use crate::bindings::{self, gct_uvm_mapping, gct_uvm_space};
use crate::{kept, owned};
use core::mem::size_of;
use kernel::ffi::{c_int, c_void};

// gct.h asserts the same numbers in C.
const _: () = assert!(size_of::<gct_uvm_space>() == 32);
const _: () = assert!(size_of::<gct_uvm_mapping>() == 56);

check_signatures!(
    gct_uvm_registered,
    gct_uvm_gone,
    gct_uvm_is_lent,
    gct_uvm_mapped,
    gct_uvm_unmapped,
    gct_uvm_keep,
    gct_uvm_let_go,
);

/// Records that nvidia-uvm owns the page tables of an address space. Returns whether it has.
///
/// # Safety
///
/// `space` is null or points to a structure that does not change during the call. The caller holds
/// the file by `gct_uvm_hold`.
#[no_mangle]
unsafe extern "C" fn gct_uvm_registered(file: *mut c_void, space: *const gct_uvm_space) -> c_int {
    // SAFETY: the caller's contract; null is handled.
    let space = unsafe { space.as_ref() };
    let (Some(glue), Some(file), Some(space)) = (glue(), token(file), space) else {
        return 0;
    };
    owned::uvm::registered(&glue, file, space).into()
}

/// Records that nvidia-uvm has given address spaces back.
///
/// # Safety
///
/// `uuid` is null or points to `GCT_GPU_UUID_BYTES` bytes that do not change during the call.
#[no_mangle]
unsafe extern "C" fn gct_uvm_gone(file: *mut c_void, number: u64, uuid: *const u8) {
    // SAFETY: the caller's contract.
    let uuid = unsafe { uuid_at(uuid) };
    if let (Some(glue), Some(file)) = (glue(), token(file)) {
        owned::uvm::gone(&glue, file, number, uuid);
    }
}

/// Returns whether the driver has lent memory to a client.
#[no_mangle]
extern "C" fn gct_uvm_is_lent(client: u32, memory: u32) -> c_int {
    glue()
        .is_some_and(|glue| owned::is_lent(&glue, client, memory))
        .into()
}

/// Records memory that nvidia-uvm has mapped.
///
/// # Safety
///
/// `mapping` is null or points to a structure that does not change during the call.
#[no_mangle]
unsafe extern "C" fn gct_uvm_mapped(file: *mut c_void, mapping: *const gct_uvm_mapping) {
    // SAFETY: the caller's contract; null is handled.
    let mapping = unsafe { mapping.as_ref() };
    if let (Some(glue), Some(file), Some(mapping)) = (glue(), token(file), mapping) {
        owned::uvm::mapped(&glue, file, mapping);
    }
}

/// Records that nvidia-uvm has unmapped addresses.
///
/// # Safety
///
/// As for [`gct_uvm_gone`].
#[no_mangle]
unsafe extern "C" fn gct_uvm_unmapped(
    file: *mut c_void,
    number: u64,
    address: u64,
    bytes: u64,
    uuid: *const u8,
) {
    // SAFETY: the caller's contract.
    let uuid = unsafe { uuid_at(uuid) };
    if let (Some(glue), Some(file)) = (glue(), token(file)) {
        owned::uvm::unmapped(&glue, file, number, [address, bytes], uuid);
    }
}

/// Follows memory that nvidia-uvm is about to map.
///
/// # Safety
///
/// `name` is null or points to a writable word.
#[no_mangle]
unsafe extern "C" fn gct_uvm_keep(
    control: *mut c_void,
    space: *mut c_void,
    client: u32,
    object: u32,
    name: *mut u32,
) -> u32 {
    // SAFETY: the caller's contract; null is handled.
    let (Some(glue), Some(name)) = (glue(), unsafe { name.as_mut() }) else {
        return 0;
    };
    match kept::keep(&glue.glue(), token(control), token(space), client, object) {
        Ok(kept) => {
            *name = kept;
            0
        }
        Err(status) => status,
    }
}

/// Ends what one [`gct_uvm_keep`] has begun.
#[no_mangle]
extern "C" fn gct_uvm_let_go(space: *mut c_void, name: u32) {
    if let (Some(glue), Some(space)) = (glue(), token(space)) {
        kept::let_go(&glue.glue(), space, name);
    }
}
