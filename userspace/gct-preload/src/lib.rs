// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The user-space mode's library: loaded into an unmodified CUDA program by
//! `LD_PRELOAD`, it puts ordinary memory in the place of the program's rings and
//! doorbells, and publishes to the GPU what [`gct_core::submit`] makes of it.
//!
//! It decides nothing about masks or atoms; `governor` asks the core. On anything it
//! does not know it gets out of the way, and counts it.

#![allow(
    clippy::manual_is_multiple_of,
    reason = "written as in the core, which older compilers build too"
)]

mod actions;
mod alone;
mod calls;
mod channel;
mod daemon;
mod driver;
mod fault;
mod governor;
mod governors;
mod halts;
mod interpose;
mod limits;
mod line;
mod looks;
mod managed;
mod neighbours;
mod notifiers;
mod places;
mod processors;
mod ranges;
mod ring;
mod rm;
mod scratch;
mod session;
mod shadow;
#[cfg(test)]
mod simulated;
mod slices;
mod split;
mod stack;
mod startup;
mod stats;
mod store;
mod sys;
#[cfg(test)]
mod tests;
mod worker;

pub use driver::calls::*;
pub use driver::launch::{
    cuGraphKernelNodeSetAttribute, cuLaunchCooperativeKernel, cuLaunchCooperativeKernel_ptsz,
    cuLaunchKernelEx, cuLaunchKernelEx_ptsz,
};
pub use driver::lookup::{cuGetProcAddress, cuGetProcAddress_v2};
pub use driver::memory::cuMemAllocManaged;
pub use driver::size::{
    cuCtxGetExecAffinity, cuDeviceGetAttribute, cuOccupancyMaxActiveClusters,
    cuOccupancyMaxPotentialBlockSize, cuOccupancyMaxPotentialBlockSizeWithFlags,
};
pub use driver::symbols::dlsym;
pub use interpose::{
    __sysv_signal, gctgroup_restrict, ioctl, mmap, mmap64, munmap, pthread_sigmask, sigaction,
    signal, sigprocmask,
};
