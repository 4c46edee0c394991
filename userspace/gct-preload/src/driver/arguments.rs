// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Reads the arguments of launches.

use super::symbols::Libcuda;
use super::{Function, Status, SUCCESS};
use core::ffi::c_void;
use core::ptr;

/// `CU_LAUNCH_PARAM_BUFFER_POINTER` and `CU_LAUNCH_PARAM_BUFFER_SIZE`.
const BUFFER: usize = 1;
const BUFFER_SIZE: usize = 2;

static FUNC_GET_PARAM_INFO: Libcuda = Libcuda::new(c"cuFuncGetParamInfo");
static KERNEL_GET_PARAM_INFO: Libcuda = Libcuda::new(c"cuKernelGetParamInfo");

/// Calls `f` with each word of a launch's arguments.
///
/// # Safety
///
/// The program launches `function` with these arguments.
pub(super) unsafe fn each_argument(
    function: Function,
    arguments: *mut *mut c_void,
    extra: *mut *mut c_void,
    mut f: impl FnMut(u64),
) {
    if !arguments.is_null() {
        for index in 0.. {
            let Some(bytes) = argument_bytes(function, index) else {
                return;
            };
            // SAFETY: the function has a parameter with this index, so there is an argument of its
            // size.
            unsafe { each_word(*arguments.add(index), bytes, &mut f) };
        }
    }
    if !extra.is_null() {
        let (mut buffer, mut bytes, mut at) = (ptr::null_mut(), 0, extra);
        loop {
            // SAFETY: a list of options ends with a name that is none of these.
            let name = unsafe { *at } as usize;
            if name != BUFFER && name != BUFFER_SIZE {
                break;
            }
            // SAFETY: a value follows each name.
            let value = unsafe { *at.add(1) };
            match name {
                BUFFER => buffer = value,
                // SAFETY: the value of this option points to a size.
                _ => bytes = unsafe { *value.cast::<usize>() },
            }
            // SAFETY: another name follows.
            at = unsafe { at.add(2) };
        }
        // SAFETY: the options describe a buffer with all arguments.
        unsafe { each_word(buffer, bytes, &mut f) };
    }
}

/// Calls `f` with each word in a buffer.
///
/// # Safety
///
/// `buffer` is null or has so many bytes.
unsafe fn each_word(buffer: *mut c_void, bytes: usize, f: &mut impl FnMut(u64)) {
    if buffer.is_null() {
        return;
    }
    for at in 0..bytes / size_of::<u64>() {
        // SAFETY: inside, by contract. It may be unaligned.
        f(unsafe { buffer.cast::<u64>().add(at).read_unaligned() });
    }
}

/// Returns the size of a parameter; `None` if there are fewer.
fn argument_bytes(function: Function, index: usize) -> Option<usize> {
    type Info = unsafe extern "C" fn(Function, usize, *mut usize, *mut usize) -> Status;
    // A function may be a `CUkernel`.
    let ask = |info: &Libcuda| {
        // SAFETY: both have this type.
        let info = unsafe { info.function::<Info>() }?;
        let (mut offset, mut bytes) = (0, 0);
        // SAFETY: the program launches the function, and both are valid for the call.
        let status = unsafe { info(function, index, &mut offset, &mut bytes) };
        (status == SUCCESS).then_some(bytes)
    };
    ask(&FUNC_GET_PARAM_INFO).or_else(|| ask(&KERNEL_GET_PARAM_INFO))
}
