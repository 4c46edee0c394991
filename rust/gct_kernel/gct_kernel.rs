// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The glue between Linux, NVIDIA's driver and the core.
//!
//! It copies, locks, allocates and makes directories; `gct_core` decides. Data
//! goes one way: a C function of [`ffi`] builds safe values, [`state`] takes the
//! locks and calls the core, [`exec`] does outside the locks what the core
//! asked for. [`tree`] holds the directories, [`debugfs`] is what their files do.
//!
//! nvidia.ko's C code owns the module, so there is no `module!` here.
#![deny(clippy::undocumented_unsafe_blocks)]
#![deny(unsafe_op_in_unsafe_fn)]

// Generated: it declares what it is told, used or not.
#[allow(dead_code, improper_ctypes, missing_docs, unreachable_pub)]
mod bindings;
mod debugfs;
mod exec;
mod faults;
mod ffi;
mod hooks;
mod ioctl;
#[cfg(gct_kunit)]
mod kunit;
mod process;
mod rm;
mod serve;
mod state;
mod tree;

/// What the kernel's `pr_*!` macros put in front; `module!` would define it.
const __LOG_PREFIX: &[u8] = b"gct\0";
