// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Finds libcuda's functions, and interposes `dlsym(3)` for those with a wrapper.
//!
//! `dlsym` with a handle searches that library only, so exported names do not suffice. The
//! interposed `dlsym` jumps to libc's, because libc resolves `RTLD_NEXT` and `RTLD_DEFAULT` by the
//! return address, which stays the caller's. It calls libc without a lock, and never loads libcuda.

use core::ffi::{c_char, c_int, c_void, CStr};
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

use super::{allocations, arguments, calls, contexts, launch, lookup, pageable, size};

/// A function of libcuda.
#[derive(Debug)]
pub(crate) struct Libcuda {
    /// The name that libcuda exports.
    name: &'static CStr,
    /// The address; null until it was found.
    address: AtomicPtr<c_void>,
}

impl Libcuda {
    /// Names a function. Its first use looks it up.
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self {
            name,
            address: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// Returns the address; `None` if libcuda is not loaded or has no such function.
    pub(super) fn address(&self) -> Option<*mut c_void> {
        let known = self.address.load(Ordering::Acquire);
        if !known.is_null() {
            return Some(known);
        }
        let found = of_libcuda(self.name)?;
        // A concurrent thread stores the same address.
        self.address.store(found, Ordering::Release);
        Some(found)
    }

    /// Returns the function as a pointer of type `F`.
    ///
    /// # Safety
    ///
    /// `F` is the type of a pointer to the function of this name.
    pub(crate) unsafe fn function<F: Copy>(&self) -> Option<F> {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        let address = self.address()?;
        // SAFETY: the contract gives the type, and the sizes are equal.
        Some(unsafe { core::mem::transmute_copy(&address) })
    }
}

/// A function of libcuda with its wrapper.
#[derive(Debug)]
pub(crate) struct Symbol {
    /// The function of libcuda.
    libcuda: Libcuda,
    /// The name by which `cuGetProcAddress` finds it.
    pub(crate) asked: &'static CStr,
    /// The first CUDA version for which `cuGetProcAddress` returns it.
    pub(crate) since: c_int,
    /// Whether it is the variant with a default stream per thread.
    pub(crate) per_thread: bool,
    /// The wrapper.
    ours: *const c_void,
}

// SAFETY: `ours` is the address of a function, and all other fields are `Sync`.
unsafe impl Sync for Symbol {}

macro_rules! symbols {
    ($($id:ident = $module:ident::$name:ident, $asked:literal, $since:literal, $per_thread:literal;)*) => {
        $(
            pub(crate) static $id: Symbol = Symbol {
                libcuda: Libcuda::new(name(concat!(stringify!($name), "\0"))),
                asked: $asked,
                since: $since,
                per_thread: $per_thread,
                ours: $module::$name as *const c_void,
            };
        )*
        /// All wrapped functions.
        static SYMBOLS: &[&Symbol] = &[$(&$id),*];
    };
}

symbols! {
    GET_PROC_ADDRESS = lookup::cuGetProcAddress, c"cuGetProcAddress", 11030, false;
    GET_PROC_ADDRESS_V2 = lookup::cuGetProcAddress_v2, c"cuGetProcAddress", 12000, false;
    DEVICE_GET_ATTRIBUTE = size::cuDeviceGetAttribute, c"cuDeviceGetAttribute", 2000, false;
    CTX_GET_EXEC_AFFINITY = size::cuCtxGetExecAffinity, c"cuCtxGetExecAffinity", 11040, false;
    POTENTIAL_BLOCK_SIZE =
        size::cuOccupancyMaxPotentialBlockSize, c"cuOccupancyMaxPotentialBlockSize", 6050, false;
    POTENTIAL_BLOCK_SIZE_WITH_FLAGS = size::cuOccupancyMaxPotentialBlockSizeWithFlags,
        c"cuOccupancyMaxPotentialBlockSizeWithFlags", 7000, false;
    ACTIVE_CLUSTERS =
        size::cuOccupancyMaxActiveClusters, c"cuOccupancyMaxActiveClusters", 11070, false;
    LAUNCH_COOPERATIVE =
        launch::cuLaunchCooperativeKernel, c"cuLaunchCooperativeKernel", 9000, false;
    LAUNCH_COOPERATIVE_PER_THREAD =
        launch::cuLaunchCooperativeKernel_ptsz, c"cuLaunchCooperativeKernel", 9000, true;
    LAUNCH_EX = launch::cuLaunchKernelEx, c"cuLaunchKernelEx", 11060, false;
    LAUNCH_EX_PER_THREAD = launch::cuLaunchKernelEx_ptsz, c"cuLaunchKernelEx", 11060, true;
    GRAPH_NODE_SET_ATTRIBUTE =
        launch::cuGraphKernelNodeSetAttribute, c"cuGraphKernelNodeSetAttribute", 11000, false;
    MEM_ALLOC = pageable::cuMemAlloc_v2, c"cuMemAlloc", 3020, false;
    MEM_ALLOC_PITCH = pageable::cuMemAllocPitch_v2, c"cuMemAllocPitch", 3020, false;
    MEM_FREE = pageable::cuMemFree_v2, c"cuMemFree", 3020, false;
    MEM_FREE_ASYNC = pageable::cuMemFreeAsync, c"cuMemFreeAsync", 11020, false;
    MEM_FREE_ASYNC_PER_THREAD = pageable::cuMemFreeAsync_ptsz, c"cuMemFreeAsync", 11020, true;
    MEM_ALLOC_MANAGED = allocations::cuMemAllocManaged, c"cuMemAllocManaged", 6000, false;
    MEM_ALLOC_ASYNC = allocations::cuMemAllocAsync, c"cuMemAllocAsync", 11020, false;
    MEM_ALLOC_ASYNC_PER_THREAD =
        allocations::cuMemAllocAsync_ptsz, c"cuMemAllocAsync", 11020, true;
    MEM_ALLOC_FROM_POOL_ASYNC =
        allocations::cuMemAllocFromPoolAsync, c"cuMemAllocFromPoolAsync", 11020, false;
    MEM_ALLOC_FROM_POOL_ASYNC_PER_THREAD =
        allocations::cuMemAllocFromPoolAsync_ptsz, c"cuMemAllocFromPoolAsync", 11020, true;
    MEM_CREATE = allocations::cuMemCreate, c"cuMemCreate", 10020, false;
    ARRAY_CREATE = allocations::cuArrayCreate_v2, c"cuArrayCreate", 3020, false;
    ARRAY_3D_CREATE = allocations::cuArray3DCreate_v2, c"cuArray3DCreate", 3020, false;
    MIPMAPPED_ARRAY_CREATE =
        allocations::cuMipmappedArrayCreate, c"cuMipmappedArrayCreate", 5000, false;
    MODULE_UNLOAD = arguments::cuModuleUnload, c"cuModuleUnload", 2000, false;
    LIBRARY_UNLOAD = arguments::cuLibraryUnload, c"cuLibraryUnload", 12000, false;
    CTX_DESTROY_V1 = contexts::cuCtxDestroy, c"cuCtxDestroy", 2000, false;
    CTX_DETACH = contexts::cuCtxDetach, c"cuCtxDetach", 2000, false;
    GREEN_CTX_DESTROY = contexts::cuGreenCtxDestroy, c"cuGreenCtxDestroy", 12040, false;
    CTX_DESTROY = contexts::cuCtxDestroy_v2, c"cuCtxDestroy", 4000, false;
    PRIMARY_CTX_RELEASE =
        contexts::cuDevicePrimaryCtxRelease, c"cuDevicePrimaryCtxRelease", 7000, false;
    PRIMARY_CTX_RELEASE_V2 =
        contexts::cuDevicePrimaryCtxRelease_v2, c"cuDevicePrimaryCtxRelease", 11000, false;
    PRIMARY_CTX_RESET =
        contexts::cuDevicePrimaryCtxReset, c"cuDevicePrimaryCtxReset", 7000, false;
    PRIMARY_CTX_RESET_V2 =
        contexts::cuDevicePrimaryCtxReset_v2, c"cuDevicePrimaryCtxReset", 11000, false;
    LAUNCH = calls::cuLaunchKernel, c"cuLaunchKernel", 4000, false;
    LAUNCH_PER_THREAD = calls::cuLaunchKernel_ptsz, c"cuLaunchKernel", 7000, true;
    GRAPH_LAUNCH = calls::cuGraphLaunch, c"cuGraphLaunch", 10000, false;
    GRAPH_LAUNCH_PER_THREAD = calls::cuGraphLaunch_ptsz, c"cuGraphLaunch", 10000, true;
    EVENT_RECORD = calls::cuEventRecord, c"cuEventRecord", 2000, false;
    EVENT_RECORD_PER_THREAD = calls::cuEventRecord_ptsz, c"cuEventRecord", 7000, true;
    STREAM_WAIT_EVENT = calls::cuStreamWaitEvent, c"cuStreamWaitEvent", 3020, false;
    STREAM_WAIT_EVENT_PER_THREAD = calls::cuStreamWaitEvent_ptsz, c"cuStreamWaitEvent", 7000, true;
    MEMCPY_ASYNC = calls::cuMemcpyAsync, c"cuMemcpyAsync", 4000, false;
    MEMCPY_ASYNC_PER_THREAD = calls::cuMemcpyAsync_ptsz, c"cuMemcpyAsync", 7000, true;
    MEMCPY_HTOD_ASYNC = calls::cuMemcpyHtoDAsync_v2, c"cuMemcpyHtoDAsync", 3020, false;
    MEMCPY_HTOD_ASYNC_PER_THREAD =
        calls::cuMemcpyHtoDAsync_v2_ptsz, c"cuMemcpyHtoDAsync", 7000, true;
    MEMCPY_DTOH_ASYNC = calls::cuMemcpyDtoHAsync_v2, c"cuMemcpyDtoHAsync", 3020, false;
    MEMCPY_DTOH_ASYNC_PER_THREAD =
        calls::cuMemcpyDtoHAsync_v2_ptsz, c"cuMemcpyDtoHAsync", 7000, true;
    MEMCPY_DTOD_ASYNC = calls::cuMemcpyDtoDAsync_v2, c"cuMemcpyDtoDAsync", 3020, false;
    MEMCPY_DTOD_ASYNC_PER_THREAD =
        calls::cuMemcpyDtoDAsync_v2_ptsz, c"cuMemcpyDtoDAsync", 7000, true;
    MEMSET_D8_ASYNC = calls::cuMemsetD8Async, c"cuMemsetD8Async", 3020, false;
    MEMSET_D8_ASYNC_PER_THREAD = calls::cuMemsetD8Async_ptsz, c"cuMemsetD8Async", 7000, true;
    MEMSET_D32_ASYNC = calls::cuMemsetD32Async, c"cuMemsetD32Async", 3020, false;
    MEMSET_D32_ASYNC_PER_THREAD = calls::cuMemsetD32Async_ptsz, c"cuMemsetD32Async", 7000, true;
    CTX_SYNCHRONIZE = calls::cuCtxSynchronize, c"cuCtxSynchronize", 2000, false;
    CTX_SYNCHRONIZE_V2 = calls::cuCtxSynchronize_v2, c"cuCtxSynchronize", 13000, false;
    STREAM_SYNCHRONIZE = calls::cuStreamSynchronize, c"cuStreamSynchronize", 2000, false;
    STREAM_SYNCHRONIZE_PER_THREAD =
        calls::cuStreamSynchronize_ptsz, c"cuStreamSynchronize", 7000, true;
    EVENT_SYNCHRONIZE = calls::cuEventSynchronize, c"cuEventSynchronize", 2000, false;
    MEMCPY_DTOH = calls::cuMemcpyDtoH_v2, c"cuMemcpyDtoH", 3020, false;
    MEMCPY_DTOH_PER_THREAD = calls::cuMemcpyDtoH_v2_ptds, c"cuMemcpyDtoH", 7000, true;
}

impl Symbol {
    /// Returns the address of the wrapper.
    pub(crate) fn ours(&self) -> *mut c_void {
        self.ours.cast_mut()
    }

    /// Returns the address of libcuda's function; `None` if libcuda is not loaded or has no such
    /// function.
    pub(crate) fn real(&self) -> Option<*mut c_void> {
        self.libcuda.address()
    }

    /// Stores the address that `cuGetProcAddress` returned for a function that libcuda does not
    /// export.
    pub(crate) fn learn(&self, real: *mut c_void) {
        if self.real().is_none() {
            self.libcuda.address.store(real, Ordering::Release);
        }
    }

    /// Returns libcuda's function as a pointer of type `F`.
    ///
    /// # Safety
    ///
    /// As for [`Libcuda::function`].
    pub(crate) unsafe fn function<F: Copy>(&self) -> Option<F> {
        // SAFETY: the contract is the same.
        unsafe { self.libcuda.function() }
    }
}

/// Converts a name that ends with a NUL.
const fn name(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(name) => name,
        Err(_) => panic!("a name has one NUL, at its end"),
    }
}

/// Returns the wrapped functions.
pub(crate) fn all() -> impl Iterator<Item = &'static Symbol> {
    SYMBOLS.iter().copied()
}

/// Returns the wrapped function of an exported name.
///
/// All begin with `cu` and a capital letter, so most names of other libraries are rejected at once.
fn named(name: &CStr) -> Option<&'static Symbol> {
    let [b'c', b'u', b'A'..=b'Z', ..] = name.to_bytes() else {
        return None;
    };
    all().find(|symbol| symbol.libcuda.name == name)
}

/// Returns whether an address is that of a function with an exported name that none has of those
/// with a wrapper which `cuGetProcAddress` finds by the name `asked`. It may take other arguments
/// than they do.
pub(crate) fn is_other(asked: &CStr, address: *mut c_void) -> bool {
    // SAFETY: all zero is a valid `Dl_info`.
    let mut found: libc::Dl_info = unsafe { core::mem::zeroed() };
    // SAFETY: it only compares the address, and `found` is valid for a write.
    let is_found = unsafe { libc::dladdr(address, &raw mut found) } != 0;
    if !is_found || found.dli_saddr != address {
        return false;
    }
    // SAFETY: with the address of a symbol there is its name, which stays as long as its library.
    let exported = unsafe { CStr::from_ptr(found.dli_sname) };
    let mut known = all().filter(|symbol| symbol.asked == asked);
    known.all(|symbol| symbol.libcuda.name != exported)
}

type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

/// Returns libc's `dlsym`, or that of the next interposer.
fn real_dlsym() -> Option<Dlsym> {
    static REAL: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
    // From glibc 2.34; before, on x86-64; before, on others.
    const VERSIONS: [&CStr; 3] = [c"GLIBC_2.34", c"GLIBC_2.2.5", c"GLIBC_2.17"];
    let mut real = REAL.load(Ordering::Acquire);
    for version in VERSIONS {
        if real.is_null() {
            // SAFETY: both are strings. This library does not interpose `dlvsym`.
            real = unsafe { libc::dlvsym(libc::RTLD_NEXT, c"dlsym".as_ptr(), version.as_ptr()) };
        }
    }
    if real.is_null() {
        return None;
    }
    REAL.store(real, Ordering::Release);
    // SAFETY: `dlsym` has this type.
    Some(unsafe { core::mem::transmute::<*mut c_void, Dlsym>(real) })
}

/// Returns the function of a name behind this library.
pub(super) fn next(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: the name is a string.
    let found = unsafe { real_dlsym()?(libc::RTLD_NEXT, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

/// Returns the address of a function of libcuda, if libcuda is loaded.
pub(crate) fn of_libcuda(name: &CStr) -> Option<*mut c_void> {
    static HANDLE: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
    let mut handle = HANDLE.load(Ordering::Acquire);
    if handle.is_null() {
        // The handle is never closed, so the library and its functions stay loaded.
        let flags = libc::RTLD_NOLOAD | libc::RTLD_LAZY;
        // SAFETY: the name is a string. With RTLD_NOLOAD no constructor runs.
        handle = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), flags) };
        if handle.is_null() {
            // SAFETY: clears the error, so that the program does not see it.
            unsafe { libc::dlerror() };
            return None;
        }
        HANDLE.store(handle, Ordering::Release);
    }
    // SAFETY: the handle stays valid, and the name is a string.
    let found = unsafe { real_dlsym()?(handle, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

/// The decision of [`resolve`]: `dlsym` returns `address`, or jumps to it.
#[repr(C)]
struct Resolved {
    answered: usize,
    address: *mut c_void,
}

/// Decides what `dlsym(handle, name)` returns.
///
/// # Safety
///
/// As for `dlsym(3)`.
unsafe extern "C" fn resolve(handle: *mut c_void, name: *const c_char) -> Resolved {
    let answer = |address| Resolved {
        answered: 1,
        address,
    };
    let Some(real) = real_dlsym() else {
        return answer(ptr::null_mut());
    };
    let pass = Resolved {
        answered: 0,
        address: real as *mut c_void,
    };
    if name.is_null() || handle == libc::RTLD_NEXT {
        return pass;
    }
    // SAFETY: `dlsym` takes a string.
    let Some(symbol) = named(unsafe { CStr::from_ptr(name) }) else {
        return pass;
    };
    // SAFETY: passes on the caller's contract.
    let mut found = unsafe { real(handle, name) };
    // Without libcuda, the program must not find the names of this library.
    if found == symbol.ours() && symbol.real().is_none() {
        // SAFETY: as above. The lookup fails, and the program reads its error.
        found = unsafe { real(libc::RTLD_NEXT, name) };
    }
    // Any other address belongs to another interposer or to a second libcuda, and stays.
    match !found.is_null() && symbol.real() == Some(found) {
        true => answer(symbol.ours()),
        false => answer(found),
    }
}

/// Interposes `dlsym(3)`: returns the wrappers of libcuda's functions. libc resolves all other
/// names.
///
/// # Safety
///
/// As for `dlsym(3)`.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[no_mangle]
pub unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    core::arch::naked_asm!(
        "endbr64",
        // Saves both arguments and keeps the stack aligned.
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {resolve}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        // `Resolved`: rax is `answered`, rdx is `address`.
        "test rax, rax",
        "jnz 2f",
        "jmp rdx",
        "2:",
        "mov rax, rdx",
        "ret",
        resolve = sym resolve,
    )
}
