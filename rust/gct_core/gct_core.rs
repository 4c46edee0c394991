// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The pure core of gctgroup: it decides, and thin backends act.
//!
//! `no_std` is not declared under `cfg(kernel)`: Kbuild's Rust rule passes
//! `-Zcrate-attr=no_std`, and saying it twice is a warning.
#![cfg_attr(not(kernel), no_std)]
#![forbid(unsafe_code)]
#![deny(missing_docs)]

#[cfg(any(test, feature = "std"))]
extern crate std;

pub mod account;
pub mod check;
pub mod dirs;
pub mod engine;
pub mod error;
pub mod faults;
pub mod features;
pub mod gpu;
#[cfg(any(test, feature = "std"))]
pub mod host;
pub mod ids;
pub mod iface;
pub mod lane;
pub mod launches;
pub mod limits;
pub mod mask;
pub mod members;
pub mod objects;
pub mod plan;
pub mod policy;
mod probe;
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

#[cfg(test)]
mod testing;
