// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Counts the streams that are being captured: no memory moves meanwhile ([`super::gate`]).

use super::gate::{self, Pass};
use super::symbols::{
    BEGIN_CAPTURE, BEGIN_CAPTURE_PER_THREAD, BEGIN_CAPTURE_TO_GRAPH,
    BEGIN_CAPTURE_TO_GRAPH_PER_THREAD, BEGIN_CAPTURE_V1, BEGIN_CAPTURE_V1_PER_THREAD, END_CAPTURE,
    END_CAPTURE_PER_THREAD,
};
use super::{Status, Stream, NOT_INITIALIZED, SUCCESS};
use core::ffi::{c_int, c_void};

macro_rules! captures {
    ($begins:literal: $($($name:ident is $symbol:ident),+: $arguments:tt;)*) => {$($(
        captures! { @ $begins $name $symbol $arguments }
    )+)*};
    (@ $begins:literal $name:ident $symbol:ident ($($argument:ident: $kind:ty),*)) => {
        /// Interposes libcuda's function: counts the capture.
        ///
        /// # Safety
        ///
        /// As for libcuda's function.
        #[no_mangle]
        #[allow(non_snake_case, reason = "libcuda's name")]
        pub unsafe extern "C" fn $name($($argument: $kind),*) -> Status {
            type Real = unsafe extern "C" fn($($kind),*) -> Status;
            // SAFETY: this is its type.
            let Some(real) = (unsafe { $symbol.function::<Real>() }) else {
                return NOT_INITIALIZED;
            };
            let _pass = Pass::begin();
            // SAFETY: passed on.
            let status = unsafe { real($($argument),*) };
            // A capture that was invalidated ends with an error.
            if status == SUCCESS || !$begins {
                gate::captures($begins);
            }
            status
        }
    };
}

captures! { true:
    cuStreamBeginCapture is BEGIN_CAPTURE_V1,
    cuStreamBeginCapture_ptsz is BEGIN_CAPTURE_V1_PER_THREAD: (stream: Stream);
    cuStreamBeginCapture_v2 is BEGIN_CAPTURE,
    cuStreamBeginCapture_v2_ptsz is BEGIN_CAPTURE_PER_THREAD: (stream: Stream, mode: c_int);
    cuStreamBeginCaptureToGraph is BEGIN_CAPTURE_TO_GRAPH,
    cuStreamBeginCaptureToGraph_ptsz is BEGIN_CAPTURE_TO_GRAPH_PER_THREAD: (
        stream: Stream, graph: *mut c_void, dependencies: *const c_void, edges: *const c_void,
        count: usize, mode: c_int
    );
}

captures! { false:
    cuStreamEndCapture is END_CAPTURE, cuStreamEndCapture_ptsz is END_CAPTURE_PER_THREAD: (
        stream: Stream, graph: *mut c_void
    );
}
