// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Models NVIDIA's launch hardware in software.
//!
//! The model executes a channel's methods, uploads and descriptors with the semantics measured on
//! an H200. It reports how often each block ran, under which TPC mask, and the order of all
//! effects. It runs no shaders. It shares no code with the rewriter of `gct_core::submit` and was
//! written apart from it, so that neither can hide an error of the other. The software GPU and the
//! simulator use it, too.
//!
//! Input is hostile: nothing panics, and [`Config`] bounds everything.
//!
//! ```
//! use gct_model::{ChannelId, Config, Machine, SparseMemory};
//!
//! let mut machine = Machine::new(SparseMemory::new(16), Config::default());
//! machine.submit(ChannelId(0), &[0x8041_206c]);
//! assert!(machine.run().runs.is_empty());
//! ```

mod channel;
mod check;
mod command;
mod descriptor;
mod execute;
mod grid;
mod machine;
mod memory;
pub mod qmd;
mod report;
mod schedule;
mod stream;
mod upload;

pub use check::{compare, memory_differences, Expected, Violation};
pub use descriptor::{Dependent, Descriptor, Kernel, Kind, Mask, Reference, Release, Unreadable};
pub use grid::{blocks_from, Blocks, Coverage, Span};
pub use machine::{Config, Machine, Order};
pub use memory::{Fault, GuestMemory, SparseMemory};
pub use report::{Act, Anomaly, ChannelId, Effect, Moment, Report, Run, Waiting};
