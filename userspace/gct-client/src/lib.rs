// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Gives typed access to the gctgroup tree.
//!
//! [`Tree`] reads and writes the kernel's tree in debugfs or through `/dev/gctgroup`, the one that
//! the daemon of the user-space mode serves on its socket, or a plain directory of a test.
//! [`gct_core::iface`] alone defines what a file may hold and how it looks. This crate adds paths,
//! system calls and errors for people.
//!
//! [`capture`] reads and writes recorded submissions, [`mps`] takes clients from their MPS server.

pub mod capture;
mod content;
mod daemon;
mod device;
mod error;
mod kernel;
pub mod mps;
mod others;
mod target;
mod transport;
mod tree;

pub use content::Content;
pub use error::{one_line, Error, Kind, Refusal};
pub use others::{is_member, others, Found, Other};
pub use target::{Owner, Target};
pub use transport::Door;
pub use tree::{Tree, DEFAULT_ROOT, KERNEL_CONTAINER};
