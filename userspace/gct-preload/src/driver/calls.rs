// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Interposes libcuda functions that submit work and return without waiting for it. They then
//! publish the work without a fault ([`crate::calls`]). And those that wait for the program's work:
//! it ends a request.
//!
//! Each ring of a function that is missing here costs a fault. A function that waits for its own
//! work must not be a [`Call`]: it returns only after that was published.

use super::pageable::launching;
use super::symbols::{
    CTX_SYNCHRONIZE, CTX_SYNCHRONIZE_V2, EVENT_RECORD, EVENT_RECORD_PER_THREAD, EVENT_SYNCHRONIZE,
    GRAPH_LAUNCH, GRAPH_LAUNCH_PER_THREAD, LAUNCH, LAUNCH_PER_THREAD, MEMCPY_ASYNC,
    MEMCPY_ASYNC_PER_THREAD, MEMCPY_DTOD_ASYNC, MEMCPY_DTOD_ASYNC_PER_THREAD, MEMCPY_DTOH,
    MEMCPY_DTOH_ASYNC, MEMCPY_DTOH_ASYNC_PER_THREAD, MEMCPY_DTOH_PER_THREAD, MEMCPY_HTOD_ASYNC,
    MEMCPY_HTOD_ASYNC_PER_THREAD, MEMSET_D32_ASYNC, MEMSET_D32_ASYNC_PER_THREAD, MEMSET_D8_ASYNC,
    MEMSET_D8_ASYNC_PER_THREAD, STREAM_SYNCHRONIZE, STREAM_SYNCHRONIZE_PER_THREAD,
    STREAM_WAIT_EVENT, STREAM_WAIT_EVENT_PER_THREAD,
};
use super::{Address, Function, Status, Stream, NOT_INITIALIZED};
use crate::sys::keep_errno;
use crate::{calls, worker};
use core::ffi::{c_uchar, c_uint, c_void};

/// A call of the program, from before it rings until it returns.
#[derive(Debug)]
pub(super) struct Call {
    counted: bool,
}

impl Call {
    /// Begins a call.
    pub(super) fn begin() -> Self {
        let counted = calls::begin();
        Self { counted }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        calls::end(self.counted, || keep_errno(worker::publish_call));
    }
}

/// A wait of the program, until it returns.
#[derive(Debug)]
struct Wait;

impl Wait {
    fn begin() -> Self {
        Self
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        keep_errno(worker::waited);
    }
}

/// Defines the functions of one signature: libcuda's, and its variant for the default stream of
/// each thread. While one runs, a `$guard` lives.
macro_rules! calls {
    ($guard:ident: $($($name:ident is $symbol:ident),+: $arguments:tt;)*) => {$($(
        call! { $guard $name $symbol $arguments }
    )+)*};
}

macro_rules! call {
    ($guard:ident $name:ident $symbol:ident ($($argument:ident: $kind:ty),*)) => {
        /// Interposes libcuda's function.
        ///
        /// # Safety
        ///
        /// As for libcuda's function.
        #[no_mangle]
        #[allow(non_snake_case, reason = "libcuda's name")]
        #[allow(clippy::too_many_arguments, reason = "libcuda's arguments")]
        pub unsafe extern "C" fn $name($($argument: $kind),*) -> Status {
            type Real = unsafe extern "C" fn($($kind),*) -> Status;
            // SAFETY: this is its type.
            let Some(real) = (unsafe { $symbol.function::<Real>() }) else {
                return NOT_INITIALIZED;
            };
            let _call = $guard::begin();
            // SAFETY: passed on.
            unsafe { real($($argument),*) }
        }
    };
}

type Launch = unsafe extern "C" fn(
    Function,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    Stream,
    *mut *mut c_void,
    *mut *mut c_void,
) -> Status;

macro_rules! launch {
    ($($name:ident is $symbol:ident;)*) => {$(
        /// Interposes libcuda's function: its work is published when it returns.
        ///
        /// # Safety
        ///
        /// As for libcuda's function.
        #[no_mangle]
        #[allow(non_snake_case, reason = "libcuda's name")]
        #[allow(clippy::too_many_arguments, reason = "libcuda's arguments")]
        pub unsafe extern "C" fn $name(
            function: Function,
            grid_x: c_uint,
            grid_y: c_uint,
            grid_z: c_uint,
            block_x: c_uint,
            block_y: c_uint,
            block_z: c_uint,
            shared: c_uint,
            stream: Stream,
            arguments: *mut *mut c_void,
            extra: *mut *mut c_void,
        ) -> Status {
            // SAFETY: this is its type.
            let Some(real) = (unsafe { $symbol.function::<Launch>() }) else {
                return NOT_INITIALIZED;
            };
            // SAFETY: the program launches it.
            unsafe { launching(&$symbol, function, stream, arguments, extra) };
            let _call = Call::begin();
            // SAFETY: passed on.
            unsafe {
                real(
                    function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream,
                    arguments, extra,
                )
            }
        }
    )*};
}

launch! {
    cuLaunchKernel is LAUNCH;
    cuLaunchKernel_ptsz is LAUNCH_PER_THREAD;
}

calls! { Call:
    cuGraphLaunch is GRAPH_LAUNCH, cuGraphLaunch_ptsz is GRAPH_LAUNCH_PER_THREAD: (
        graph: *mut c_void, stream: Stream
    );
    cuEventRecord is EVENT_RECORD, cuEventRecord_ptsz is EVENT_RECORD_PER_THREAD: (
        event: *mut c_void, stream: Stream
    );
    cuStreamWaitEvent is STREAM_WAIT_EVENT,
    cuStreamWaitEvent_ptsz is STREAM_WAIT_EVENT_PER_THREAD: (
        stream: Stream, event: *mut c_void, flags: c_uint
    );
    cuMemcpyAsync is MEMCPY_ASYNC, cuMemcpyAsync_ptsz is MEMCPY_ASYNC_PER_THREAD: (
        to: Address, from: Address, bytes: usize, stream: Stream
    );
    cuMemcpyHtoDAsync_v2 is MEMCPY_HTOD_ASYNC,
    cuMemcpyHtoDAsync_v2_ptsz is MEMCPY_HTOD_ASYNC_PER_THREAD: (
        to: Address, from: *const c_void, bytes: usize, stream: Stream
    );
    cuMemcpyDtoHAsync_v2 is MEMCPY_DTOH_ASYNC,
    cuMemcpyDtoHAsync_v2_ptsz is MEMCPY_DTOH_ASYNC_PER_THREAD: (
        to: *mut c_void, from: Address, bytes: usize, stream: Stream
    );
    cuMemcpyDtoDAsync_v2 is MEMCPY_DTOD_ASYNC,
    cuMemcpyDtoDAsync_v2_ptsz is MEMCPY_DTOD_ASYNC_PER_THREAD: (
        to: Address, from: Address, bytes: usize, stream: Stream
    );
    cuMemsetD8Async is MEMSET_D8_ASYNC, cuMemsetD8Async_ptsz is MEMSET_D8_ASYNC_PER_THREAD: (
        to: Address, value: c_uchar, count: usize, stream: Stream
    );
    cuMemsetD32Async is MEMSET_D32_ASYNC, cuMemsetD32Async_ptsz is MEMSET_D32_ASYNC_PER_THREAD: (
        to: Address, value: c_uint, count: usize, stream: Stream
    );
}

calls! { Wait:
    cuCtxSynchronize is CTX_SYNCHRONIZE: ();
    cuCtxSynchronize_v2 is CTX_SYNCHRONIZE_V2: (context: *mut c_void);
    cuStreamSynchronize is STREAM_SYNCHRONIZE,
    cuStreamSynchronize_ptsz is STREAM_SYNCHRONIZE_PER_THREAD: (stream: Stream);
    cuEventSynchronize is EVENT_SYNCHRONIZE: (event: *mut c_void);
    cuMemcpyDtoH_v2 is MEMCPY_DTOH, cuMemcpyDtoH_v2_ptds is MEMCPY_DTOH_PER_THREAD: (
        to: *mut c_void, from: Address, bytes: usize
    );
}
