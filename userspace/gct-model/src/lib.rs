// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A software model of NVIDIA's launch hardware.
//!
//! It executes what a channel is given (methods, uploads, descriptors) with the semantics that were measured on an
//! H200, and says which blocks ran how often, under which TPC mask, and which effects happened when. It does not
//! run shaders. It was written apart from the rewriter of `gct_core::submit` and shares no code with it, so that
//! neither can hide an error of the other; the software GPU and the simulator use it too.
//!
//! Input is hostile: nothing panics, and everything is bounded by [`Config`].
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
