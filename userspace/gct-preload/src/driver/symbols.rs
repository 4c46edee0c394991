// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Finds libcuda's own functions, and stands in front of `dlsym(3)` for those that are wrapped.
//!
//! `dlsym` of a handle looks into that library alone, so exported names do not suffice. The
//! wrapper is a jump: libc tells `RTLD_NEXT` and `RTLD_DEFAULT` by the return address, which
//! stays that of the caller. No lock is held while libc is called, and libcuda is never loaded.

use core::ffi::{c_char, c_int, c_void, CStr};
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

use super::{launch, lookup, memory, size};

/// One of libcuda's functions.
#[derive(Debug)]
pub(crate) struct Libcuda {
    /// The name under which libcuda exports it.
    name: &'static CStr,
    /// Its address, once it was found.
    address: AtomicPtr<c_void>,
}

impl Libcuda {
    /// The function of a name, which is looked for when it is called first.
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self {
            name,
            address: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// Its address; `None` while libcuda is not loaded, or where it has no such function.
    fn address(&self) -> Option<*mut c_void> {
        let known = self.address.load(Ordering::Acquire);
        if !known.is_null() {
            return Some(known);
        }
        let found = of_libcuda(self.name)?;
        // Two threads find the same.
        self.address.store(found, Ordering::Release);
        Some(found)
    }

    /// It, as its type.
    ///
    /// # Safety
    ///
    /// `F` is the type of a pointer to the function of this name.
    pub(crate) unsafe fn function<F: Copy>(&self) -> Option<F> {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        let address = self.address()?;
        // SAFETY: by contract, and of the same size.
        Some(unsafe { core::mem::transmute_copy(&address) })
    }
}

/// One of libcuda's functions, and the wrapper that stands in front of it.
#[derive(Debug)]
pub(crate) struct Symbol {
    /// libcuda's.
    libcuda: Libcuda,
    /// The name under which `cuGetProcAddress` is asked for it.
    pub(crate) asked: &'static CStr,
    /// The CUDA version from which it is the answer.
    pub(crate) since: c_int,
    /// Whether it is the variant whose default stream is the thread's own.
    pub(crate) per_thread: bool,
    /// The wrapper.
    ours: *const c_void,
}

// SAFETY: `ours` is the address of a function, and all else may be shared.
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
        /// All of them.
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
    MEM_ALLOC_MANAGED = memory::cuMemAllocManaged, c"cuMemAllocManaged", 6000, false;
}

impl Symbol {
    /// The wrapper's address.
    pub(crate) fn ours(&self) -> *mut c_void {
        self.ours.cast_mut()
    }

    /// libcuda's address; `None` while libcuda is not loaded, or where it has no such function.
    pub(crate) fn real(&self) -> Option<*mut c_void> {
        self.libcuda.address()
    }

    /// Takes an address that `cuGetProcAddress` gave for libcuda's function, where libcuda does not
    /// export it.
    pub(crate) fn learn(&self, real: *mut c_void) {
        if self.real().is_none() {
            self.libcuda.address.store(real, Ordering::Release);
        }
    }

    /// libcuda's function, as its type.
    ///
    /// # Safety
    ///
    /// As for [`Libcuda::function`].
    pub(crate) unsafe fn function<F: Copy>(&self) -> Option<F> {
        // SAFETY: the contract is the same.
        unsafe { self.libcuda.function() }
    }
}

/// A name that ends with a NUL, as a string.
const fn name(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(name) => name,
        Err(_) => panic!("a name has one NUL, at its end"),
    }
}

/// The wrapped functions.
pub(crate) fn all() -> impl Iterator<Item = &'static Symbol> {
    SYMBOLS.iter().copied()
}

/// The wrapped function of an exported name. All begin with `cu` and a capital letter, which
/// most names of other libraries do not.
fn named(name: &CStr) -> Option<&'static Symbol> {
    let [b'c', b'u', b'A'..=b'Z', ..] = name.to_bytes() else {
        return None;
    };
    all().find(|symbol| symbol.libcuda.name == name)
}

type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

/// libc's `dlsym`, or that of an interposer behind this one.
fn real_dlsym() -> Option<Dlsym> {
    static REAL: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
    // From glibc 2.34; before, on x86-64; before, on others.
    const VERSIONS: [&CStr; 3] = [c"GLIBC_2.34", c"GLIBC_2.2.5", c"GLIBC_2.17"];
    let mut real = REAL.load(Ordering::Acquire);
    for version in VERSIONS {
        if real.is_null() {
            // SAFETY: both are strings. `dlvsym` is libc's: nobody stands in front of it here.
            real = unsafe { libc::dlvsym(libc::RTLD_NEXT, c"dlsym".as_ptr(), version.as_ptr()) };
        }
    }
    if real.is_null() {
        return None;
    }
    REAL.store(real, Ordering::Release);
    // SAFETY: a function of this type has that name.
    Some(unsafe { core::mem::transmute::<*mut c_void, Dlsym>(real) })
}

/// A function of libcuda, if that is loaded already.
pub(crate) fn of_libcuda(name: &CStr) -> Option<*mut c_void> {
    static HANDLE: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
    let mut handle = HANDLE.load(Ordering::Acquire);
    if handle.is_null() {
        // What is found stays loaded: its functions are kept.
        let flags = libc::RTLD_NOLOAD | libc::RTLD_LAZY;
        // SAFETY: a string; nothing is loaded, so no constructor runs.
        handle = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), flags) };
        if handle.is_null() {
            // SAFETY: forgets the error, which is none of the program's.
            unsafe { libc::dlerror() };
            return None;
        }
        HANDLE.store(handle, Ordering::Release);
    }
    // SAFETY: the handle of a library that stays, and a string.
    let found = unsafe { real_dlsym()?(handle, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

/// What `dlsym` does: returns `address`, or jumps there.
#[repr(C)]
struct Resolved {
    answered: usize,
    address: *mut c_void,
}

/// Decides what `dlsym(handle, name)` answers.
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
    // SAFETY: as the caller's.
    let mut found = unsafe { real(handle, name) };
    // The names of this library are none where the program has no libcuda.
    if found == symbol.ours() && symbol.real().is_none() {
        // SAFETY: as above; nothing follows, and that is the error that the program reads.
        found = unsafe { real(libc::RTLD_NEXT, name) };
    }
    // What is not libcuda's is another interposer's, or of a second libcuda: that is its own.
    match !found.is_null() && symbol.real() == Some(found) {
        true => answer(symbol.ours()),
        false => answer(found),
    }
}

/// Stands in front of `dlsym(3)`: libcuda's functions are answered by their wrappers, everything
/// else by libc.
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
        // Keeps both arguments, and the stack aligned.
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
