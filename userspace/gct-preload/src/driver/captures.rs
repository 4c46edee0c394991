// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Knows the streams that are being captured: no memory moves meanwhile ([`super::gate`]).

use super::gate::{self, Pass};
use super::symbols::{
    BEGIN_CAPTURE, BEGIN_CAPTURE_PER_THREAD, BEGIN_CAPTURE_TO_GRAPH,
    BEGIN_CAPTURE_TO_GRAPH_PER_THREAD, BEGIN_CAPTURE_V1, BEGIN_CAPTURE_V1_PER_THREAD, END_CAPTURE,
    END_CAPTURE_PER_THREAD, STREAM_DESTROY, STREAM_DESTROY_V1,
};
use super::{Status, Stream, NOT_INITIALIZED, SUCCESS};
use crate::sys::keep_errno;
use core::ffi::{c_int, c_void};

fn begins(status: Status, stream: Stream) {
    if status == SUCCESS {
        gate::capture_begins(stream);
    }
}

/// A capture that was invalidated ends with an error, and one whose stream is destroyed ends, too.
fn ends(_status: Status, stream: Stream) {
    gate::capture_ends(stream);
}

macro_rules! captures {
    ($then:ident: $($($name:ident is $symbol:ident),+: $arguments:tt;)*) => {$($(
        captures! { @ $then $name $symbol $arguments }
    )+)*};
    (@ $then:ident $name:ident $symbol:ident ($stream:ident: Stream $(, $argument:ident: $kind:ty)*)) => {
        /// Interposes libcuda's function: records that a capture begins or ends.
        ///
        /// # Safety
        ///
        /// As for libcuda's function.
        #[no_mangle]
        #[allow(non_snake_case, reason = "libcuda's name")]
        pub unsafe extern "C" fn $name($stream: Stream $(, $argument: $kind)*) -> Status {
            type Real = unsafe extern "C" fn(Stream $(, $kind)*) -> Status;
            // SAFETY: this is its type.
            let Some(real) = (unsafe { $symbol.function::<Real>() }) else {
                return NOT_INITIALIZED;
            };
            let _pass = Pass::begin();
            // SAFETY: passed on.
            let status = unsafe { real($stream $(, $argument)*) };
            keep_errno(|| $then(status, $stream));
            status
        }
    };
}

captures! { begins:
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

captures! { ends:
    cuStreamEndCapture is END_CAPTURE, cuStreamEndCapture_ptsz is END_CAPTURE_PER_THREAD: (
        stream: Stream, graph: *mut c_void
    );
    cuStreamDestroy is STREAM_DESTROY_V1, cuStreamDestroy_v2 is STREAM_DESTROY: (stream: Stream);
}
