// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Has the functions of libcuda that submit work pass the gate ([`super::gate`]), as far as no other
//! module interposes them. One that is missing here may use memory while it moves. Makes room for
//! what is refused to them, and to those that load code or make queues.
//!
//! The list of the first is that of cuda.h of CUDA 13.0, with the functions that older versions have besides. The
//! CUDA runtime and the libraries above it submit by these and by launches alone.

use super::calls::submitting;
use super::gate::Pass;
use super::symbols::Symbol;
use super::{Address, Function, Status, Stream, NOT_INITIALIZED};
use core::ffi::{c_int, c_uchar, c_uint, c_ushort, c_void};

macro_rules! interposes {
    ($module:ident $list:ident $guard:path: $(
        $asked:literal $arguments:tt: $($name:ident $since:literal $per_thread:literal),+;
    )*) => {
        $($(interposes! { @ $module $guard, $name $arguments })+)*
        pub(super) static $list: &[&Symbol] = &[$($(&$module::$name),+),*];
        mod $module {
            #![allow(non_upper_case_globals, reason = "libcuda's names")]
            use super::Symbol;
            $($(
                pub(super) static $name: Symbol = Symbol::new(
                    concat!(stringify!($name), "\0"),
                    $asked,
                    ($since, $per_thread),
                    super::$name as *const core::ffi::c_void,
                );
            )+)*
        }
    };
    (@ $module:ident $guard:path, $name:ident ($($argument:ident: $kind:ty),*)) => {
        /// Interposes libcuda's function: it waits while memory moves, if it submits work, and room
        /// is made for what it is refused.
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
            let Some(real) = (unsafe { $module::$name.function::<Real>() }) else {
                return NOT_INITIALIZED;
            };
            // SAFETY: passed on.
            submitting($guard, || unsafe { real($($argument),*) })
        }
    };
}

/// What a function holds that submits nothing. It may take long.
fn nothing() {}

interposes! { loads LOADS nothing:
    c"cuModuleLoad" (module: *mut c_void, path: *const c_void):
        cuModuleLoad 2000 false;
    c"cuModuleLoadData" (module: *mut c_void, image: *const c_void):
        cuModuleLoadData 2000 false;
    c"cuModuleLoadDataEx" (module: *mut c_void, image: *const c_void, count: c_uint, options: *mut c_void, values: *mut c_void):
        cuModuleLoadDataEx 2010 false;
    c"cuModuleLoadFatBinary" (module: *mut c_void, image: *const c_void):
        cuModuleLoadFatBinary 2000 false;
    c"cuModuleGetFunction" (function: *mut c_void, module: *mut c_void, name: *const c_void):
        cuModuleGetFunction 2000 false;
    c"cuLibraryLoadData" (library: *mut c_void, image: *const c_void, options: *mut c_void, values: *mut c_void, count: c_uint, library_options: *mut c_void, library_values: *mut c_void, library_count: c_uint):
        cuLibraryLoadData 12000 false;
    c"cuLibraryLoadFromFile" (library: *mut c_void, path: *const c_void, options: *mut c_void, values: *mut c_void, count: c_uint, library_options: *mut c_void, library_values: *mut c_void, library_count: c_uint):
        cuLibraryLoadFromFile 12000 false;
    c"cuLibraryGetModule" (module: *mut c_void, library: *mut c_void):
        cuLibraryGetModule 12000 false;
    c"cuKernelGetFunction" (function: *mut c_void, kernel: *mut c_void):
        cuKernelGetFunction 12000 false;
    c"cuFuncLoad" (function: Function):
        cuFuncLoad 12040 false;
    c"cuGraphInstantiate" (made: *mut c_void, graph: *mut c_void, flags: u64):
        cuGraphInstantiateWithFlags 12000 false;
    c"cuGraphInstantiateWithParams" (made: *mut c_void, graph: *mut c_void, parameters: *mut c_void):
        cuGraphInstantiateWithParams 12000 false,
        cuGraphInstantiateWithParams_ptsz 12000 true;
    c"cuCtxSetLimit" (limit: c_int, value: usize):
        cuCtxSetLimit 3010 false;
}

interposes! { submits SUBMITS Pass::begin:
    c"cuStreamCreate" (stream: *mut c_void, flags: c_uint):
        cuStreamCreate 2000 false;
    c"cuStreamCreateWithPriority" (stream: *mut c_void, flags: c_uint, priority: c_int):
        cuStreamCreateWithPriority 5050 false;
    c"cuMemcpy" (to: Address, from: Address, bytes: usize):
        cuMemcpy 4000 false,
        cuMemcpy_ptds 7000 true;
    c"cuMemcpyPeer" (to: Address, to_context: *mut c_void, from: Address, from_context: *mut c_void, bytes: usize):
        cuMemcpyPeer 4000 false,
        cuMemcpyPeer_ptds 7000 true;
    c"cuMemcpyHtoD" (to: Address, from: *const c_void, bytes: usize):
        cuMemcpyHtoD_v2 3020 false,
        cuMemcpyHtoD_v2_ptds 7000 true;
    c"cuMemcpyDtoD" (to: Address, from: Address, bytes: usize):
        cuMemcpyDtoD_v2 3020 false,
        cuMemcpyDtoD_v2_ptds 7000 true;
    c"cuMemcpyDtoA" (to: *mut c_void, offset: usize, from: Address, bytes: usize):
        cuMemcpyDtoA_v2 3020 false,
        cuMemcpyDtoA_v2_ptds 7000 true;
    c"cuMemcpyAtoD" (to: Address, from: *mut c_void, offset: usize, bytes: usize):
        cuMemcpyAtoD_v2 3020 false,
        cuMemcpyAtoD_v2_ptds 7000 true;
    c"cuMemcpy2D" (copy: *const c_void):
        cuMemcpy2D_v2 3020 false,
        cuMemcpy2D_v2_ptds 7000 true;
    c"cuMemcpy2DUnaligned" (copy: *const c_void):
        cuMemcpy2DUnaligned_v2 3020 false,
        cuMemcpy2DUnaligned_v2_ptds 7000 true;
    c"cuMemcpy3D" (copy: *const c_void):
        cuMemcpy3D_v2 3020 false,
        cuMemcpy3D_v2_ptds 7000 true;
    c"cuMemcpy3DPeer" (copy: *const c_void):
        cuMemcpy3DPeer 4000 false,
        cuMemcpy3DPeer_ptds 7000 true;
    c"cuMemcpyPeerAsync" (to: Address, to_context: *mut c_void, from: Address, from_context: *mut c_void, bytes: usize, stream: Stream):
        cuMemcpyPeerAsync 4000 false,
        cuMemcpyPeerAsync_ptsz 7000 true;
    c"cuMemcpy2DAsync" (copy: *const c_void, stream: Stream):
        cuMemcpy2DAsync_v2 3020 false,
        cuMemcpy2DAsync_v2_ptsz 7000 true;
    c"cuMemcpy3DAsync" (copy: *const c_void, stream: Stream):
        cuMemcpy3DAsync_v2 3020 false,
        cuMemcpy3DAsync_v2_ptsz 7000 true;
    c"cuMemcpy3DPeerAsync" (copy: *const c_void, stream: Stream):
        cuMemcpy3DPeerAsync 4000 false,
        cuMemcpy3DPeerAsync_ptsz 7000 true;
    c"cuMemcpyBatchAsync" (to: *mut Address, from: *mut Address, sizes: *mut usize, count: usize, attributes: *mut c_void, indices: *mut usize, attribute_count: usize, failed: *mut usize, stream: Stream):
        cuMemcpyBatchAsync 12080 false,
        cuMemcpyBatchAsync_ptsz 12080 true;
    c"cuMemcpyBatchAsync" (to: *mut Address, from: *mut Address, sizes: *mut usize, count: usize, attributes: *mut c_void, indices: *mut usize, attribute_count: usize, stream: Stream):
        cuMemcpyBatchAsync_v2 13000 false,
        cuMemcpyBatchAsync_v2_ptsz 13000 true;
    c"cuMemcpy3DBatchAsync" (count: usize, copies: *mut c_void, failed: *mut usize, flags: u64, stream: Stream):
        cuMemcpy3DBatchAsync 12080 false,
        cuMemcpy3DBatchAsync_ptsz 12080 true;
    c"cuMemcpy3DBatchAsync" (count: usize, copies: *mut c_void, flags: u64, stream: Stream):
        cuMemcpy3DBatchAsync_v2 13000 false,
        cuMemcpy3DBatchAsync_v2_ptsz 13000 true;
    c"cuMemsetD8" (to: Address, value: c_uchar, count: usize):
        cuMemsetD8_v2 3020 false,
        cuMemsetD8_v2_ptds 7000 true;
    c"cuMemsetD2D8" (to: Address, pitch: usize, value: c_uchar, width: usize, height: usize):
        cuMemsetD2D8_v2 3020 false,
        cuMemsetD2D8_v2_ptds 7000 true;
    c"cuMemsetD2D8Async" (to: Address, pitch: usize, value: c_uchar, width: usize, height: usize, stream: Stream):
        cuMemsetD2D8Async 3020 false,
        cuMemsetD2D8Async_ptsz 7000 true;
    c"cuMemsetD16" (to: Address, value: c_ushort, count: usize):
        cuMemsetD16_v2 3020 false,
        cuMemsetD16_v2_ptds 7000 true;
    c"cuMemsetD2D16" (to: Address, pitch: usize, value: c_ushort, width: usize, height: usize):
        cuMemsetD2D16_v2 3020 false,
        cuMemsetD2D16_v2_ptds 7000 true;
    c"cuMemsetD2D16Async" (to: Address, pitch: usize, value: c_ushort, width: usize, height: usize, stream: Stream):
        cuMemsetD2D16Async 3020 false,
        cuMemsetD2D16Async_ptsz 7000 true;
    c"cuMemsetD32" (to: Address, value: c_uint, count: usize):
        cuMemsetD32_v2 3020 false,
        cuMemsetD32_v2_ptds 7000 true;
    c"cuMemsetD2D32" (to: Address, pitch: usize, value: c_uint, width: usize, height: usize):
        cuMemsetD2D32_v2 3020 false,
        cuMemsetD2D32_v2_ptds 7000 true;
    c"cuMemsetD2D32Async" (to: Address, pitch: usize, value: c_uint, width: usize, height: usize, stream: Stream):
        cuMemsetD2D32Async 3020 false,
        cuMemsetD2D32Async_ptsz 7000 true;
    c"cuMemsetD16Async" (to: Address, value: c_ushort, count: usize, stream: Stream):
        cuMemsetD16Async 3020 false,
        cuMemsetD16Async_ptsz 7000 true;
    c"cuStreamWaitValue32" (stream: Stream, at: Address, value: c_uint, flags: c_uint):
        cuStreamWaitValue32 8000 false,
        cuStreamWaitValue32_ptsz 8000 true;
    c"cuStreamWaitValue32" (stream: Stream, at: Address, value: c_uint, flags: c_uint):
        cuStreamWaitValue32_v2 11070 false,
        cuStreamWaitValue32_v2_ptsz 11070 true;
    c"cuStreamWaitValue64" (stream: Stream, at: Address, value: u64, flags: c_uint):
        cuStreamWaitValue64 9000 false,
        cuStreamWaitValue64_ptsz 9000 true;
    c"cuStreamWaitValue64" (stream: Stream, at: Address, value: u64, flags: c_uint):
        cuStreamWaitValue64_v2 11070 false,
        cuStreamWaitValue64_v2_ptsz 11070 true;
    c"cuStreamWriteValue32" (stream: Stream, at: Address, value: c_uint, flags: c_uint):
        cuStreamWriteValue32 8000 false,
        cuStreamWriteValue32_ptsz 8000 true;
    c"cuStreamWriteValue32" (stream: Stream, at: Address, value: c_uint, flags: c_uint):
        cuStreamWriteValue32_v2 11070 false,
        cuStreamWriteValue32_v2_ptsz 11070 true;
    c"cuStreamWriteValue64" (stream: Stream, at: Address, value: u64, flags: c_uint):
        cuStreamWriteValue64 9000 false,
        cuStreamWriteValue64_ptsz 9000 true;
    c"cuStreamWriteValue64" (stream: Stream, at: Address, value: u64, flags: c_uint):
        cuStreamWriteValue64_v2 11070 false,
        cuStreamWriteValue64_v2_ptsz 11070 true;
    c"cuStreamBatchMemOp" (stream: Stream, count: c_uint, operations: *mut c_void, flags: c_uint):
        cuStreamBatchMemOp 8000 false,
        cuStreamBatchMemOp_ptsz 8000 true;
    c"cuStreamBatchMemOp" (stream: Stream, count: c_uint, operations: *mut c_void, flags: c_uint):
        cuStreamBatchMemOp_v2 11070 false,
        cuStreamBatchMemOp_v2_ptsz 11070 true;
    c"cuMemBatchDecompressAsync" (operations: *mut c_void, count: usize, flags: c_uint, failed: *mut usize, stream: Stream):
        cuMemBatchDecompressAsync 12060 false,
        cuMemBatchDecompressAsync_ptsz 12060 true;
    c"cuLaunch" (function: Function):
        cuLaunch 2000 false;
    c"cuLaunchGrid" (function: Function, width: c_int, height: c_int):
        cuLaunchGrid 2000 false;
    c"cuLaunchGridAsync" (function: Function, width: c_int, height: c_int, stream: Stream):
        cuLaunchGridAsync 2000 false;
    c"cuLaunchCooperativeKernelMultiDevice" (launches: *mut c_void, count: c_uint, flags: c_uint):
        cuLaunchCooperativeKernelMultiDevice 9000 false;
}
