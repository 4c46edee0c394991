// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Says of pageable memory what a program expects of `cuMemAlloc`'s: that it is the device's,
//! wherever it lies, and where its allocation begins and ends. libcuda would say it of each piece.

use super::pageable::span_of;
use super::symbols::{MEM_GET_ADDRESS_RANGE, POINTER_GET_ATTRIBUTE, POINTER_GET_ATTRIBUTES};
use super::{Address, Status, NOT_INITIALIZED, SUCCESS};
use crate::sys::keep_errno;
use core::ffi::{c_int, c_uint, c_void};

/// `CU_POINTER_ATTRIBUTE_MEMORY_TYPE`, a `c_uint`.
const MEMORY_TYPE: c_int = 2;
/// `CU_POINTER_ATTRIBUTE_RANGE_SIZE`, a `usize`: libcuda counts the other half of the addresses.
const RANGE_SIZE: c_int = 12;
/// `CU_MEMORYTYPE_DEVICE`.
const DEVICE: c_uint = 2;

/// Corrects an attribute of pageable memory.
///
/// # Safety
///
/// libcuda has written the attribute to `value`.
unsafe fn correct(attribute: c_int, value: *mut c_void, (_, bytes): (Address, u64)) {
    match attribute {
        // SAFETY: the attribute has this type.
        MEMORY_TYPE => unsafe { value.cast::<c_uint>().write(DEVICE) },
        // SAFETY: as above.
        RANGE_SIZE => unsafe { value.cast::<u64>().write(bytes) },
        _ => {}
    }
}

/// Interposes libcuda's function: pageable memory is the device's.
///
/// # Safety
///
/// As for libcuda's function.
#[no_mangle]
#[allow(non_snake_case, reason = "libcuda's name")]
pub unsafe extern "C" fn cuPointerGetAttribute(
    value: *mut c_void,
    attribute: c_int,
    address: Address,
) -> Status {
    type Real = unsafe extern "C" fn(*mut c_void, c_int, Address) -> Status;
    // SAFETY: this is its type.
    let Some(real) = (unsafe { POINTER_GET_ATTRIBUTE.function::<Real>() }) else {
        return NOT_INITIALIZED;
    };
    // SAFETY: passed on.
    let status = unsafe { real(value, attribute, address) };
    if let (SUCCESS, Some(span)) = (status, keep_errno(|| span_of(address))) {
        // SAFETY: the call succeeded, so it has written the attribute.
        unsafe { correct(attribute, value, span) };
    }
    status
}

/// Interposes libcuda's function, as [`cuPointerGetAttribute`].
///
/// # Safety
///
/// As for libcuda's function.
#[no_mangle]
#[allow(non_snake_case, reason = "libcuda's name")]
pub unsafe extern "C" fn cuPointerGetAttributes(
    count: c_uint,
    attributes: *const c_int,
    values: *const *mut c_void,
    address: Address,
) -> Status {
    type Real = unsafe extern "C" fn(c_uint, *const c_int, *const *mut c_void, Address) -> Status;
    // SAFETY: this is its type.
    let Some(real) = (unsafe { POINTER_GET_ATTRIBUTES.function::<Real>() }) else {
        return NOT_INITIALIZED;
    };
    // SAFETY: passed on.
    let status = unsafe { real(count, attributes, values, address) };
    if let (SUCCESS, Some(span)) = (status, keep_errno(|| span_of(address))) {
        // CAST: widening.
        for at in 0..count as usize {
            // SAFETY: there are `count` of both, and libcuda has written the values.
            unsafe { correct(*attributes.add(at), *values.add(at), span) };
        }
    }
    status
}

/// Interposes libcuda's function: pageable memory has the range of its allocation.
///
/// # Safety
///
/// As for libcuda's function.
#[no_mangle]
#[allow(non_snake_case, reason = "libcuda's name")]
pub unsafe extern "C" fn cuMemGetAddressRange_v2(
    base: *mut Address,
    bytes: *mut usize,
    address: Address,
) -> Status {
    type Real = unsafe extern "C" fn(*mut Address, *mut usize, Address) -> Status;
    // SAFETY: this is its type.
    let Some(real) = (unsafe { MEM_GET_ADDRESS_RANGE.function::<Real>() }) else {
        return NOT_INITIALIZED;
    };
    // SAFETY: passed on.
    let status = unsafe { real(base, bytes, address) };
    if let (SUCCESS, Some((begin, size))) = (status, keep_errno(|| span_of(address))) {
        // SAFETY: libcuda has written what the caller passes, which may be null.
        unsafe {
            if let Some(base) = base.as_mut() {
                *base = begin;
            }
            if let Some(bytes) = bytes.as_mut() {
                // CAST: it is an allocation of this process.
                *bytes = size as usize;
            }
        }
    }
    status
}
