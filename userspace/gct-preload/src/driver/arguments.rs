// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Reads the arguments of launches.
//!
//! libcuda is asked once for the sizes of a function's parameters: to learn that there is no
//! further one takes it as long as some launches. A function that is unloaded is forgotten, because
//! another one may get its address.

use super::contexts::end;
use super::symbols::{Libcuda, Symbol, LIBRARY_UNLOAD, MODULE_UNLOAD};
use super::{Function, Status, SUCCESS};
use crate::locks::{Guard, Lock};
use crate::sys::keep_errno;
use core::ffi::c_void;
use core::ptr;
use std::collections::HashMap;
use std::sync::Arc;

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
        // CAST: an address.
        let known = sizes().of(function as usize, |index| argument_bytes(function, index));
        for (index, bytes) in known.iter().enumerate() {
            // SAFETY: the function has a parameter with this index, so there is an argument of its
            // size: what was known of another function at its address was forgotten before that
            // one was unloaded.
            unsafe { each_word(*arguments.add(index), *bytes, &mut f) };
        }
        return;
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

/// The sizes of the parameters of each function that was launched, by its address.
#[derive(Debug, Default)]
struct Sizes(Option<HashMap<usize, Arc<[usize]>>>);

static SIZES: Lock<Sizes> = Lock::new(Sizes(None), || Sizes(None));

fn sizes() -> Guard<'static, Sizes> {
    SIZES.lock()
}

/// Makes the sizes usable in a forked child.
///
/// # Safety
///
/// The process has one thread.
pub(super) unsafe fn forked() {
    // SAFETY: passed on.
    unsafe { SIZES.renew() };
}

impl Sizes {
    /// Returns the sizes of a function's parameters. `ask` returns the one with an index, if there
    /// is one.
    fn of(&mut self, function: usize, ask: impl Fn(usize) -> Option<usize>) -> Arc<[usize]> {
        let known = self.0.get_or_insert_default().entry(function);
        let known = known.or_insert_with(|| (0..).map_while(ask).collect());
        Arc::clone(known)
    }

    fn forget(&mut self) {
        self.0 = None;
    }
}

/// Forgets all functions, before some are unloaded.
pub(super) fn forget() {
    sizes().forget();
}

/// Unloads functions.
///
/// # Safety
///
/// As for libcuda's function.
unsafe fn unload(symbol: &Symbol, handle: *mut c_void) -> Status {
    keep_errno(forget);
    // SAFETY: both functions take a handle, and the contract is the same.
    unsafe { end(symbol, handle) }
}

/// Interposes libcuda's function: the functions of the module are forgotten.
///
/// # Safety
///
/// As for libcuda's function.
#[no_mangle]
#[allow(non_snake_case, reason = "libcuda's name")]
pub unsafe extern "C" fn cuModuleUnload(module: *mut c_void) -> Status {
    // SAFETY: passes on the caller's contract.
    unsafe { unload(&MODULE_UNLOAD, module) }
}

/// Interposes libcuda's function, as [`cuModuleUnload`].
///
/// # Safety
///
/// As for libcuda's function.
#[no_mangle]
#[allow(non_snake_case, reason = "libcuda's name")]
pub unsafe extern "C" fn cuLibraryUnload(library: *mut c_void) -> Status {
    // SAFETY: passes on the caller's contract.
    unsafe { unload(&LIBRARY_UNLOAD, library) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::Cell;

    #[test]
    fn a_function_is_asked_once_until_it_may_be_another_one() {
        let (asked, parameters) = (Cell::new(0), Cell::new(3));
        let ask = |index| {
            asked.set(asked.get() + 1);
            (index < parameters.get()).then_some(8 * (index + 1))
        };
        let mut sizes = Sizes::default();
        for _ in 0..2 {
            assert_eq!(sizes.of(1, ask)[..], [8, 16, 24]);
        }
        assert_eq!(asked.get(), 4);
        assert_eq!(sizes.of(2, ask).len(), 3);
        parameters.set(1);
        sizes.forget();
        assert_eq!(sizes.of(1, ask)[..], [8]);
    }
}
