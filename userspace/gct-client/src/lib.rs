// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Gives typed access to the gctgroup tree.
//!
//! [`Tree`] reads and writes the files below a directory, or those that the daemon of the
//! user-space mode serves on its socket. The directory is the kernel's in debugfs, or a plain one
//! in a test. [`gct_core::iface`] alone defines what a file may hold and how it looks. This crate
//! adds paths, system calls and errors for people.
//!
//! [`capture`] reads and writes recorded submissions.

pub mod capture;
mod content;
mod daemon;
mod error;
mod target;
mod transport;
mod tree;

pub use content::Content;
pub use error::{Error, Kind, Refusal};
pub use target::{Owner, Target};
pub use tree::{Tree, DEFAULT_ROOT};
