// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The gctgroup tree, typed.
//!
//! [`Tree`] reads and writes the files below one directory, as the kernel's debugfs directory or a plain directory in a
//! test, or those that the daemon of the user-space mode shows on its socket. What a file may hold and how it looks is defined in
//! [`gct_core::iface`] alone; this crate adds paths, system calls and errors that can be shown to a person.
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
