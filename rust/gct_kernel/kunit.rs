// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The core's vectors, run inside the kernel by KUnit: what Kbuild's object does
//! there is what cargo's does on the host.
// The macro asks for CONFIG_KUNIT, of which rustc is told only when it is set.
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
        // It is about 6 KiB, so it is not made on the stack.
        let memory = KBox::<Memory>::new_uninit(GFP_KERNEL);
        let passed = memory.is_ok_and(|memory| run(&mut memory.write(Memory::EMPTY)).is_ok());
        assert!(passed);
    }
}
