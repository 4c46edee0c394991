// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The core's vectors, run inside the kernel by KUnit.

use kernel::prelude::*;

#[kunit_tests(gct_core)]
mod tests {
    #[test]
    fn selftest() {
        assert!(gct_core::selftest::run().is_ok());
    }
}
