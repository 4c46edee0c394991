// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Connects the core with Linux and NVIDIA's driver.
//!
//! `gct_core` decides; the glue copies, locks, allocates and makes directories. Data goes one way:
//!
//! ```text
//! ffi      extern "C" functions: C's arguments to safe values
//! hooks    what the driver and the scheduler report; ioctl: around a tenant's ioctl
//! debugfs  the tree in debugfs; door: the same in /dev/gctgroup; files: what both read and write
//! state    locks and storage; each calls the core
//! evictor  evicts managed memory before its room is needed
//! exec     outside the locks: controls to the resource manager (rm), directories (tree)
//! ```
//!
//! nvidia.ko's C code owns the module, so there is no `module!` here.
#![deny(clippy::undocumented_unsafe_blocks)]
#![deny(unsafe_op_in_unsafe_fn)]

// Generated: it declares all of both headers, used or not.
#[allow(dead_code, improper_ctypes, missing_docs, unreachable_pub)]
mod bindings;
mod debugfs;
mod door;
mod evictor;
mod exec;
mod faults;
mod ffi;
mod files;
mod hooks;
mod ioctl;
mod kept;
#[cfg(gct_kunit)]
mod kunit;
mod maps;
mod memory_info;
mod owned;
mod process;
mod queue;
mod rm;
mod rules;
mod serve;
mod state;
mod tree;
mod uvm;
mod uvm_ffi;

/// The prefix that `pr_*!` print. `module!` would define it.
const __LOG_PREFIX: &[u8] = b"gct\0";
