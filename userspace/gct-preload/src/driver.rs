// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Interposes libcuda's functions that say how large the device is, and those that depend on it.
//!
//! A program that launches one block for each SM, and has these blocks wait for each other, must
//! be told of no more SMs than its launches may use. MPS does the same for its active thread
//! percentage. The number is that of the program's limits when it first asks ([`size`]).
//!
//! A program reaches libcuda by four paths, and each answers with the wrappers:
//!
//! | path | who | how |
//! |---|---|---|
//! | the dynamic linker | `-lcuda` | this library exports the names, and comes first |
//! | `dlsym` | the CUDA runtime, cuBLAS, ctypes | [`symbols::dlsym`] |
//! | `cuGetProcAddress` | all that the runtime calls | [`lookup`] |
//! | `cuGetExportTable` | the runtime, profilers | passed on: no table is asked for a size (H100, CUDA 13.0) |
//!
//! What the resource manager says stays: libcuda sizes its own memory by that.

pub(crate) mod launch;
pub(crate) mod lookup;
pub(crate) mod memory;
pub(crate) mod size;
pub(crate) mod symbols;

use core::ffi::{c_int, c_uint, c_void};

/// `CUresult`.
pub(crate) type Status = c_int;

pub(crate) const SUCCESS: Status = 0;
/// `CUDA_ERROR_OUT_OF_MEMORY`.
pub(crate) const OUT_OF_MEMORY: Status = 2;
/// `CUDA_ERROR_NOT_INITIALIZED`: the answer of a wrapper while there is no libcuda.
pub(crate) const NOT_INITIALIZED: Status = 3;
/// `CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE`.
pub(crate) const TOO_LARGE: Status = 720;

/// `CUdevice`: the number of a GPU among those that the program sees.
pub(crate) type Device = c_int;
/// `CUfunction`, or a `CUkernel` in its place.
pub(crate) type Function = *mut c_void;
/// `CUstream`.
pub(crate) type Stream = *mut c_void;

/// A grid and its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) grid: [c_uint; 3],
    pub(crate) block: [c_uint; 3],
    /// Dynamic shared memory of a block, in bytes.
    pub(crate) shared: c_uint,
}

impl Shape {
    /// Blocks of the grid.
    pub(crate) fn blocks(&self) -> u64 {
        product(self.grid)
    }

    /// Threads of a block.
    pub(crate) fn threads(&self) -> u64 {
        product(self.block)
    }
}

fn product(sides: [c_uint; 3]) -> u64 {
    let sides = sides.map(u64::from);
    sides.into_iter().fold(1, u64::saturating_mul)
}
