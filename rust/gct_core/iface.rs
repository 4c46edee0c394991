// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The tree of files as text: which files there are, what may be written to
//! them, how their values are printed.
//!
//! Nothing here knows a state. The same parsers and printers serve the kernel
//! module, `gctctl` and the tests, so that there is one definition of the form.

pub mod files;
pub mod keys;
pub mod parse;
pub mod show;
pub mod value;

pub use files::{File, Place};
pub use value::{Bandwidth, CgroupPath, Name, Value};

/// Version of the tree's form. It grows when a file changes its meaning; new
/// files do not change it.
pub const ABI: u32 = 3;

/// Version of gctgroup, as `version` shows it.
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
