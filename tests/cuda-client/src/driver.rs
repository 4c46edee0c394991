// SPDX-License-Identifier: GPL-2.0 OR MIT

//! CUDA's driver API, from the libcuda of the machine.

use gct_ktap::{failed, Stop};
use std::ffi::{c_char, c_int, c_uchar, c_uint, c_void, CStr};
use std::sync::OnceLock;

/// An opaque object of the driver's: a context, stream, event, module, function or graph.
pub(crate) type Handle = *mut c_void;
/// An address in the GPU's memory.
pub(crate) type DevicePointer = u64;

/// A name of memory or an event, for other processes.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct IpcHandle(pub(crate) [u8; 64]);

/// Declares functions of libcuda as fields of a structure that [`Api::load`] fills.
macro_rules! api {
    ($($name:ident($($argument:ty),*);)*) => {
        /// The functions of libcuda.
        #[allow(non_snake_case, missing_docs)]
        pub(crate) struct Api {
            $(pub(crate) $name: unsafe extern "C" fn($($argument),*) -> c_int,)*
        }

        impl Api {
            /// Loads libcuda.
            fn load() -> Result<Self, String> {
                let library = open()?;
                Ok(Self {
                    // SAFETY: `symbol` returns the function of this name, whose type CUDA's
                    // documentation gives.
                    $($name: unsafe {
                        std::mem::transmute::<Handle, unsafe extern "C" fn($($argument),*) -> c_int>(
                            symbol(library, concat!(stringify!($name), "\0"))?,
                        )
                    },)*
                })
            }
        }
    };
}

api! {
    cuInit(c_uint);
    cuDriverGetVersion(*mut c_int);
    cuGetErrorName(c_int, *mut *const c_char);
    cuDeviceGetCount(*mut c_int);
    cuDeviceGet(*mut c_int, c_int);
    cuDeviceGetName(*mut c_char, c_int, c_int);
    cuDeviceGetUuid_v2(*mut [u8; 16], c_int);
    cuDeviceTotalMem_v2(*mut usize, c_int);
    cuDeviceGetAttribute(*mut c_int, c_int, c_int);
    cuCtxCreate_v2(*mut Handle, c_uint, c_int);
    cuCtxDestroy_v2(Handle);
    cuCtxSynchronize();
    cuMemGetInfo_v2(*mut usize, *mut usize);
    cuMemAlloc_v2(*mut DevicePointer, usize);
    cuMemFree_v2(DevicePointer);
    cuMemAllocManaged(*mut DevicePointer, usize, c_uint);
    cuMemAllocHost_v2(*mut *mut c_void, usize);
    cuMemFreeHost(*mut c_void);
    cuMemsetD32_v2(DevicePointer, c_uint, usize);
    cuMemsetD8_v2(DevicePointer, c_uchar, usize);
    cuMemsetD32Async(DevicePointer, c_uint, usize, Handle);
    cuMemcpyHtoD_v2(DevicePointer, *const c_void, usize);
    cuMemcpyDtoH_v2(*mut c_void, DevicePointer, usize);
    cuMemcpyHtoDAsync_v2(DevicePointer, *const c_void, usize, Handle);
    cuMemcpyDtoHAsync_v2(*mut c_void, DevicePointer, usize, Handle);
    cuMemcpyDtoD_v2(DevicePointer, DevicePointer, usize);
    cuMemPrefetchAsync(DevicePointer, usize, c_int, Handle);
    cuStreamCreate(*mut Handle, c_uint);
    cuStreamSynchronize(Handle);
    cuStreamWaitEvent(Handle, Handle, c_uint);
    cuStreamDestroy_v2(Handle);
    cuEventCreate(*mut Handle, c_uint);
    cuEventRecord(Handle, Handle);
    cuEventSynchronize(Handle);
    cuEventElapsedTime(*mut f32, Handle, Handle);
    cuEventDestroy_v2(Handle);
    cuModuleLoadData(*mut Handle, *const c_void);
    cuModuleGetFunction(*mut Handle, Handle, *const c_char);
    cuLaunchKernel(Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *mut *mut c_void, *mut *mut c_void);
    cuStreamBeginCapture_v2(Handle, c_int);
    cuStreamEndCapture(Handle, *mut Handle);
    cuGraphInstantiateWithFlags(*mut Handle, Handle, u64);
    cuGraphLaunch(Handle, Handle);
    cuGraphExecDestroy(Handle);
    cuGraphDestroy(Handle);
    cuIpcGetMemHandle(*mut IpcHandle, DevicePointer);
    cuIpcOpenMemHandle_v2(*mut DevicePointer, IpcHandle, c_uint);
    cuIpcCloseMemHandle(DevicePointer);
    cuIpcGetEventHandle(*mut IpcHandle, Handle);
    cuIpcOpenEventHandle(*mut Handle, IpcHandle);
}

fn open() -> Result<Handle, String> {
    // SAFETY: the name is a C string. Libcuda's constructors ask nothing of the program.
    let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
    if library.is_null() {
        // SAFETY: after a failure dlerror returns a C string, which lives until the next call.
        return Err(unsafe { text(libc::dlerror()) });
    }
    Ok(library)
}

/// Returns the function `name`, which ends with a zero byte.
fn symbol(library: Handle, name: &str) -> Result<Handle, String> {
    // SAFETY: `library` is open, and the name ends with a zero byte.
    let at = unsafe { libc::dlsym(library, name.as_ptr().cast()) };
    if at.is_null() {
        return Err(format!("libcuda has no {}", name.trim_end_matches('\0')));
    }
    Ok(at)
}

/// Returns a copy of a C string.
///
/// # Safety
/// `from` is null or a C string.
unsafe fn text(from: *const c_char) -> String {
    if from.is_null() {
        return "no reason".into();
    }
    // SAFETY: by the condition of this function.
    unsafe { CStr::from_ptr(from) }
        .to_string_lossy()
        .into_owned()
}

/// Returns libcuda, which is loaded by the first call.
pub(crate) fn api() -> Result<&'static Api, Stop> {
    static API: OnceLock<Result<Api, String>> = OnceLock::new();
    API.get_or_init(Api::load).as_ref().map_err(failed)
}

/// Turns a result of libcuda into a failure that names it.
pub(crate) fn checked(call: &str, result: c_int) -> Result<(), Stop> {
    if result == 0 {
        return Ok(());
    }
    let mut name = std::ptr::null();
    // SAFETY: `name` is a place for a pointer. Libcuda's names are constants.
    let name = unsafe {
        (api()?.cuGetErrorName)(result, &mut name);
        text(name)
    };
    Err(failed(format!("{call}: {name} ({result})")))
}

/// Calls a function of libcuda. The caller vouches for its arguments.
macro_rules! cu {
    ($name:ident($($argument:expr),* $(,)?)) => {
        $crate::driver::checked(stringify!($name), ($crate::driver::api()?.$name)($($argument),*))
    };
}
pub(crate) use cu;
