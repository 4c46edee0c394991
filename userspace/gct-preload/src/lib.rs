// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Implements the user-space mode. `LD_PRELOAD` loads this library into an unmodified CUDA program.
//! It replaces the program's rings and doorbells with ordinary memory, and publishes to the GPU the
//! work that [`gct_core::lane`] has rewritten.
//!
//! The library makes no decisions about masks or atoms: a lane of the core does. It leaves alone
//! whatever it does not know, and counts it.

#![allow(
    clippy::manual_is_multiple_of,
    reason = "written as in the core, which older compilers build too"
)]

mod actions;
mod alone;
mod calls;
mod channel;
mod daemon;
mod devices;
mod driver;
mod ending;
mod fault;
mod forks;
mod governor;
mod governors;
mod halts;
mod interpose;
mod ioctls;
mod limits;
mod locks;
mod looks;
mod managed;
mod memory;
mod neighbours;
mod notifiers;
mod optional;
mod pager;
mod places;
mod processors;
mod ranges;
mod rm;
mod session;
mod shadow;
mod signals;
#[cfg(test)]
mod simulated;
mod slices;
mod stack;
mod startup;
mod stats;
mod store;
mod sys;
#[cfg(test)]
mod tests;
mod unwind;
mod worker;

pub use driver::allocations::{
    cuArray3DCreate_v2, cuArrayCreate_v2, cuMemAllocAsync, cuMemAllocAsync_ptsz,
    cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync_ptsz, cuMemAllocManaged, cuMemCreate,
    cuMipmappedArrayCreate,
};
pub use driver::arguments::{cuLibraryUnload, cuModuleUnload};
pub use driver::calls::*;
pub use driver::contexts::{
    cuCtxDestroy, cuCtxDestroy_v2, cuCtxDetach, cuDevicePrimaryCtxRelease,
    cuDevicePrimaryCtxRelease_v2, cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset_v2,
    cuGreenCtxDestroy,
};
pub use driver::launch::{
    cuGraphKernelNodeSetAttribute, cuLaunchCooperativeKernel, cuLaunchCooperativeKernel_ptsz,
    cuLaunchKernelEx, cuLaunchKernelEx_ptsz,
};
pub use driver::lookup::{cuGetProcAddress, cuGetProcAddress_v2};
#[cfg(target_arch = "x86_64")]
pub use driver::open::dlopen;
pub use driver::pageable::{
    cuMemAllocPitch_v2, cuMemAlloc_v2, cuMemFreeAsync, cuMemFreeAsync_ptsz, cuMemFree_v2,
};
pub use driver::size::{
    cuCtxGetExecAffinity, cuDeviceGetAttribute, cuOccupancyMaxActiveClusters,
    cuOccupancyMaxPotentialBlockSize, cuOccupancyMaxPotentialBlockSizeWithFlags,
};
pub use driver::symbols::dlsym;
pub use interpose::{
    __sysv_signal, gctgroup_restrict, ioctl, mmap, mmap64, munmap, pthread_sigmask, sigaction,
    signal, sigprocmask,
};
