// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Defines the tree as text: its files, what may be written to them, and how values are printed.
//!
//! This module holds no state. The kernel module, `gctctl` and the tests use the same parsers and
//! printers, so the form is defined once.

pub mod door;
pub mod files;
pub mod keys;
pub mod parse;
pub mod path;
pub mod show;
pub mod value;

pub use files::{File, Place};
pub use value::{Bandwidth, CgroupPath, Name, Value};

/// Version of the tree's form. It grows when a file changes its meaning. New files do not change
/// it.
pub const ABI: u32 = 3;

/// Version of gctgroup that the file `version` shows.
pub const VERSION: [u32; 3] = [0, 1, 0];

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;

    #[test]
    fn the_version_is_the_package_version() {
        let [major, minor, patch] = VERSION;
        assert_eq!(
            format!("{major}.{minor}.{patch}"),
            env!("CARGO_PKG_VERSION")
        );
    }
}
