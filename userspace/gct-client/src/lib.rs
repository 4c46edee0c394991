// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The gctgroup tree, typed.
//!
//! [`Tree`] reads and writes the files below one directory: the kernel's debugfs directory, the mount point of the
//! user-space mode's daemon, or a plain directory in a test. What a file may hold and how it looks is defined in
//! [`gct_core::iface`] alone; this crate adds paths, system calls and errors that can be shown to a person.
//!
//! [`capture`] reads and writes recorded submissions.

pub mod capture;
mod content;
mod error;
mod target;
mod tree;

pub use content::Content;
pub use error::{Error, Kind, Refusal};
pub use target::{Owner, Target};
pub use tree::{Tree, DEFAULT_ROOT};
