// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What C calls to end mappings of the GPU's memory with the memory.

use super::{bytes, glue, token};
use crate::bindings::{self, gct_call};
use crate::maps::Maps;
use gct_core::owned::cpu_maps::Call;
use kernel::bindings::ENOMEM;
use kernel::ffi::{c_int, c_void};
use kernel::sync::{Arc, ArcBorrow};

check_signatures!(gct_maps_enter, gct_maps_leave, gct_maps_close);

/// Returns whether the rules for governed tenants hold for a file. One that is not followed may be
/// anybody's.
fn governs(file: *mut c_void) -> bool {
    let Some(glue) = glue() else { return false };
    token(file).is_none_or(|file| glue.locked(|state| state.is_bound_tenant(file)))
}

/// Borrows the mappings of a file, if it has any.
///
/// # Safety
///
/// `maps` is null, or what [`gct_maps_enter`] has stored, and [`gct_maps_close`] is not called
/// while it is borrowed.
unsafe fn borrow<'a>(maps: *mut c_void) -> Option<ArcBorrow<'a, Maps>> {
    // SAFETY: the caller's contract: the reference of `Arc::into_raw` is there.
    (!maps.is_null()).then(|| unsafe { ArcBorrow::from_raw(maps.cast::<Maps>()) })
}

/// Unmaps what an ioctl may end, and follows what it prepares to map. Returns 0, or a negative
/// errno if it must not run.
///
/// # Safety
///
/// As for [`gct_ioctl_enter`](super::gct_ioctl_enter), which the same task called before. `maps`
/// points to null or to what this has stored there, and nobody else uses it during the call.
#[no_mangle]
unsafe extern "C" fn gct_maps_enter(
    maps: *mut *mut c_void,
    file: *mut c_void,
    escape: u32,
    arg: *const c_void,
    size: u32,
    call: *mut gct_call,
) -> c_int {
    // SAFETY: the caller's contract; null is handled.
    let (Some(slot), Some(bytes), Some(room)) =
        (unsafe { (maps.as_mut(), bytes(arg, size), call.as_mut()) })
    else {
        return 0;
    };
    let Some((call, _)) = Call::decode(escape, bytes) else {
        return 0;
    };
    if let (Call::Map(_), true) = (&call, slot.is_null()) {
        *slot = Maps::new().map_or(core::ptr::null_mut(), |maps| {
            Arc::into_raw(maps).cast_mut().cast()
        });
    }
    // SAFETY: the caller's contract.
    let maps = unsafe { borrow(*slot) };
    let is_governed = || governs(file);
    match (call, maps) {
        (Call::Map(piece), maps) => {
            let is_governed = is_governed();
            let is_followed = maps.is_some_and(|maps| maps.begin(piece, is_governed, room));
            match is_governed && !is_followed {
                true => -(ENOMEM as c_int),
                false => 0,
            }
        }
        (call, Some(maps)) => {
            maps.enter(&call, is_governed);
            0
        }
        (_, None) => 0,
    }
}

/// Ends what an ioctl has ended, and shows the rest again.
///
/// # Safety
///
/// As for [`gct_maps_enter`], which the same task called before with the same `call`. `maps` is
/// what that has stored.
#[no_mangle]
unsafe extern "C" fn gct_maps_leave(
    maps: *mut c_void,
    escape: u32,
    arg: *const c_void,
    size: u32,
    call: *mut gct_call,
    result: u32,
) {
    // SAFETY: the caller's contract; null is handled.
    let (Some(maps), Some(bytes), Some(room)) =
        (unsafe { (borrow(maps), bytes(arg, size), call.as_mut()) })
    else {
        return;
    };
    if let Some((call, status)) = Call::decode(escape, bytes) {
        maps.leave(&call, result == 0 && status == 0, room);
    }
}

/// Ends all mappings of a file that is closed.
///
/// # Safety
///
/// `maps` is what [`gct_maps_enter`] has stored, and is not used afterwards. Any token is valid.
#[no_mangle]
unsafe extern "C" fn gct_maps_close(maps: *mut c_void, file: *mut c_void) {
    if maps.is_null() {
        return;
    }
    // SAFETY: the caller's contract: the reference of `Arc::into_raw`, given back once.
    let maps = unsafe { Arc::from_raw(maps.cast::<Maps>()) };
    maps.close(governs(file));
}
