// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Makes every decision of gctgroup. Thin backends act: the kernel's glue, gctd, the preload
//! library.
//!
//! In the kernel `no_std` comes from Kbuild, as `-Zcrate-attr=no_std`. A second declaration would
//! be a warning.
#![cfg_attr(not(kernel), no_std)]
#![forbid(unsafe_code)]
#![deny(missing_docs)]

#[cfg(any(test, feature = "std"))]
extern crate std;

pub mod account;
pub mod check;
pub mod costs;
pub mod dirs;
pub mod engine;
pub mod error;
pub mod failures;
pub mod faults;
pub mod features;
pub mod gpu;
pub mod gpu_time;
#[cfg(any(test, feature = "std"))]
pub mod host;
pub mod ids;
pub mod iface;
pub mod lane;
pub mod launches;
pub mod limits;
pub mod mask;
pub mod members;
pub mod memory;
pub mod objects;
pub mod owned;
pub mod plan;
pub mod policy;
mod probe;
pub mod records;
pub mod rmapi;
pub mod round;
pub mod selftest;
pub mod settings;
pub mod slice;
pub mod state;
pub mod submit;
pub mod table;
pub mod tables;
pub mod text;
pub mod topology;
pub mod units;
pub mod unmanaged;

#[cfg(test)]
mod testing;
