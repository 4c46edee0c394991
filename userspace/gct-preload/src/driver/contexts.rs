// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Names a context of the program, for work in a thread of the library, and forgets it before the
//! program destroys it. Then it uncharges the pageable memory that has gone with it.
//!
//! A release ends a context if it is the last one. So libcuda is asked which memory it still knows.
//! A green context is destroyed by another name than the one that a thread has as its current
//! context. So all contexts are forgotten then.

use super::symbols::{
    Libcuda, Symbol, CTX_DESTROY, CTX_DESTROY_V1, CTX_DETACH, GREEN_CTX_DESTROY,
    PRIMARY_CTX_RELEASE, PRIMARY_CTX_RELEASE_V2, PRIMARY_CTX_RESET, PRIMARY_CTX_RESET_V2,
};
use super::{arguments, pageable};
use super::{Device, Status, NOT_INITIALIZED, SUCCESS};
use crate::sys::keep_errno;
use core::ffi::{c_int, c_void};
use core::ptr;

/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
const RELAXED: c_int = 2;

static GET_CURRENT: Libcuda = Libcuda::new(c"cuCtxGetCurrent");
static PUSH_CURRENT: Libcuda = Libcuda::new(c"cuCtxPushCurrent_v2");
static POP_CURRENT: Libcuda = Libcuda::new(c"cuCtxPopCurrent_v2");
static EXCHANGE_CAPTURE_MODE: Libcuda = Libcuda::new(c"cuThreadExchangeStreamCaptureMode");

/// A `CUcontext` of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Context(usize);

impl Context {
    /// Returns the context of the calling thread.
    pub(super) fn current() -> Option<Self> {
        type Get = unsafe extern "C" fn(*mut *mut c_void) -> Status;
        // SAFETY: the type is that of the function.
        let get = unsafe { GET_CURRENT.function::<Get>() }?;
        let mut context = ptr::null_mut();
        // SAFETY: `context` is valid for the call.
        let is_known = unsafe { get(&mut context) } == SUCCESS && !context.is_null();
        is_known.then_some(Self(context as usize))
    }

    /// Calls `f` with the context, in a thread of the library, beside captures of the program.
    ///
    /// # Safety
    ///
    /// The context exists until `f` has returned.
    pub(super) unsafe fn enter<T>(self, f: impl FnOnce() -> T) -> Option<T> {
        type Push = unsafe extern "C" fn(*mut c_void) -> Status;
        type Pop = unsafe extern "C" fn(*mut *mut c_void) -> Status;
        // SAFETY: the types are those of the functions.
        let (push, pop) = unsafe {
            (
                PUSH_CURRENT.function::<Push>()?,
                POP_CURRENT.function::<Pop>()?,
            )
        };
        // SAFETY: by contract.
        if unsafe { push(self.0 as *mut c_void) } != SUCCESS {
            return None;
        }
        let result = relaxed(f);
        let mut popped = ptr::null_mut();
        // SAFETY: `popped` is valid for the call.
        unsafe { pop(&mut popped) };
        result
    }
}

/// Calls `f` beside captures of the program: this thread's calls are in the relaxed mode meanwhile,
/// which no capture forbids.
pub(super) fn relaxed<T>(f: impl FnOnce() -> T) -> Option<T> {
    type Exchange = unsafe extern "C" fn(*mut c_int) -> Status;
    // SAFETY: the type is that of the function.
    let exchange = unsafe { EXCHANGE_CAPTURE_MODE.function::<Exchange>() }?;
    let mut mode = RELAXED;
    // SAFETY: `mode` is valid for the call. It is the mode of this thread alone.
    if unsafe { exchange(&mut mode) } != SUCCESS {
        return None;
    }
    let result = f();
    // SAFETY: as above. `mode` is the mode that the thread had.
    unsafe { exchange(&mut mode) };
    Some(result)
}

macro_rules! ends {
    ($($name:ident is $symbol:ident ($argument:ident: $kind:ty): $forget:expr;)*) => {$(
        /// Interposes libcuda's function: no thread of the library uses the context any more, and
        /// its memory is not charged any more.
        ///
        /// # Safety
        ///
        /// As for libcuda's function.
        #[no_mangle]
        #[allow(non_snake_case, reason = "libcuda's name")]
        pub unsafe extern "C" fn $name($argument: $kind) -> Status {
            keep_errno(|| {
                arguments::forget();
                $forget
            });
            // SAFETY: passed on; the type is that of the function.
            let status = unsafe { end(&$symbol, $argument) };
            if status == SUCCESS {
                keep_errno(pageable::sweep);
            }
            status
        }
    )*};
}

/// Calls libcuda's function, which ends something.
///
/// # Safety
///
/// The function takes one `T`, and this contract is its own.
pub(super) unsafe fn end<T>(symbol: &Symbol, argument: T) -> Status {
    type Real<T> = unsafe extern "C" fn(T) -> Status;
    // SAFETY: by contract.
    match unsafe { symbol.function::<Real<T>>() } {
        // SAFETY: by contract.
        Some(real) => unsafe { real(argument) },
        None => NOT_INITIALIZED,
    }
}

ends! {
    cuCtxDestroy is CTX_DESTROY_V1 (context: *mut c_void):
        pageable::forget(|_, known| known == Context(context as usize));
    cuCtxDetach is CTX_DETACH (context: *mut c_void):
        pageable::forget(|_, known| known == Context(context as usize));
    cuGreenCtxDestroy is GREEN_CTX_DESTROY (context: *mut c_void): pageable::forget(|_, _| true);
    cuCtxDestroy_v2 is CTX_DESTROY (context: *mut c_void):
        pageable::forget(|_, known| known == Context(context as usize));
    cuDevicePrimaryCtxRelease is PRIMARY_CTX_RELEASE (device: Device):
        pageable::forget(|of, _| of == device);
    cuDevicePrimaryCtxRelease_v2 is PRIMARY_CTX_RELEASE_V2 (device: Device):
        pageable::forget(|of, _| of == device);
    cuDevicePrimaryCtxReset is PRIMARY_CTX_RESET (device: Device):
        pageable::forget(|of, _| of == device);
    cuDevicePrimaryCtxReset_v2 is PRIMARY_CTX_RESET_V2 (device: Device):
        pageable::forget(|of, _| of == device);
}
