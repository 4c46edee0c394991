// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Checks the requested limits at a program's first use of the GPU. A program that never uses one
//! is not affected.

use crate::optional::cannot;
use crate::{daemon, limits};
use core::sync::atomic::{AtomicBool, Ordering};

/// Whether the check has passed, so the program may use the GPU.
static LOOKED: AtomicBool = AtomicBool::new(false);

/// Returns whether [`look`] has yet to check the requested limits.
pub(crate) fn is_due() -> bool {
    !LOOKED.load(Ordering::Relaxed)
}

/// Checks the requested limits, once. It runs before an ioctl of the driver, without any lock held.
pub(crate) fn look() {
    if !is_due() {
        return;
    }
    limits::from_environment();
    if let Err(why) = daemon::required() {
        cannot(&why);
    }
    LOOKED.store(true, Ordering::Relaxed);
}
