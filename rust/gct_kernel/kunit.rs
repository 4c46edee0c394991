// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Runs the core's test vectors in the kernel, on the object that Kbuild compiled. Cargo's tests
//! run the same vectors on the host.
// The macro tests CONFIG_KUNIT, which rustc knows only if it is set.
#![allow(unexpected_cfgs)]

use kernel::prelude::*;

#[kunit_tests(gct_core)]
mod tests {
    use super::*;

    #[test]
    fn vectors() {
        assert_eq!(gct_core::selftest::run(), Ok(()));
    }

    #[test]
    fn submission_path() {
        use gct_core::submit::selftest::{run, Memory};
        // About 6 KiB, too much for the stack.
        let memory = KBox::<Memory>::new_uninit(GFP_KERNEL);
        let passed = memory.is_ok_and(|memory| run(&mut memory.write(Memory::EMPTY)).is_ok());
        assert!(passed);
    }
}
