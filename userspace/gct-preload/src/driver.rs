// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Interposes the functions of libcuda that report the size of the device or depend on it, that
//! allocate memory, and that launch.
//!
//! Some programs launch one block for each SM and let these blocks wait for each other. Such a
//! program must not see more SMs than its launches may use. MPS does the same for its active thread
//! percentage. The number follows the limits at the program's first query ([`size`]).
//!
//! A program finds libcuda's functions in four ways:
//!
//! | way | used by | the library |
//! |---|---|---|
//! | dynamic linker | `-lcuda` | exports the names, and comes first |
//! | `dlsym` | CUDA runtime, cuBLAS, ctypes | returns the wrapper ([`symbols::dlsym`]) |
//! | `cuGetProcAddress` | CUDA runtime | returns the wrapper ([`lookup`]) |
//! | `cuGetExportTable` | CUDA runtime, profilers | is not involved: no table reports a size |
//!
//! That no table reports a size was seen on an H100 with CUDA 13.0.
//!
//! The library does not change the resource manager's replies, by which libcuda sizes its own
//! memory.

pub(crate) mod allocations;
pub(crate) mod arguments;
pub(crate) mod calls;
pub(crate) mod contexts;
pub(crate) mod launch;
pub(crate) mod lookup;
mod mover;
pub(crate) mod open;
pub(crate) mod pageable;
mod pager;
pub(crate) mod size;
pub(crate) mod symbols;
mod trace;

use core::ffi::{c_int, c_uint, c_void};

/// Makes the state of these modules usable in a forked child.
///
/// # Safety
///
/// The process has one thread.
pub(crate) unsafe fn forked() {
    // SAFETY: passed on.
    unsafe {
        pageable::forked();
        arguments::forked();
        trace::forked();
    }
}

/// `CUresult`.
pub(crate) type Status = c_int;

pub(crate) const SUCCESS: Status = 0;
/// `CUDA_ERROR_INVALID_VALUE`.
pub(crate) const INVALID_VALUE: Status = 1;
/// `CUDA_ERROR_OUT_OF_MEMORY`.
pub(crate) const OUT_OF_MEMORY: Status = 2;
/// `CUDA_ERROR_NOT_INITIALIZED`: the result of a wrapper without libcuda.
pub(crate) const NOT_INITIALIZED: Status = 3;
/// `CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE`.
pub(crate) const TOO_LARGE: Status = 720;

/// `CUdevice`: the index of a GPU among those that the program sees.
pub(crate) type Device = c_int;
/// `CUfunction`, or a `CUkernel` instead.
pub(crate) type Function = *mut c_void;
/// `CUdeviceptr`.
pub(crate) type Address = u64;
/// `CUstream`.
pub(crate) type Stream = *mut c_void;

/// The dimensions of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) grid: [c_uint; 3],
    pub(crate) block: [c_uint; 3],
    /// Dynamic shared memory of a block, in bytes.
    pub(crate) shared: c_uint,
}

impl Shape {
    /// Returns the blocks of the grid.
    pub(crate) fn blocks(&self) -> u64 {
        product(self.grid)
    }

    /// Returns the threads of a block.
    pub(crate) fn threads(&self) -> u64 {
        product(self.block)
    }
}

fn product(sides: [c_uint; 3]) -> u64 {
    let sides = sides.map(u64::from);
    sides.into_iter().fold(1, u64::saturating_mul)
}
