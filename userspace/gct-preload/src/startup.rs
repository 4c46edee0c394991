// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Stops a program at its first use of the GPU if limits were asked for that cannot be set.
//!
//! A program that never uses a GPU is not affected. `GCTGROUP_OPTIONAL=1` lets a program run
//! without its limits.

use crate::daemon;
use crate::limits::{self, LaunchLimits};
use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::OnceLock;

/// Makes limits optional, with any value but `0` and the empty string.
const OPTIONAL: &str = "GCTGROUP_OPTIONAL";

/// The exit status of a program that is stopped: `EX_CONFIG` of `sysexits.h`.
const STATUS: i32 = 78;

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
    limits();
    if let Err(why) = daemon::required() {
        cannot(&why);
    }
    LOOKED.store(true, Ordering::Relaxed);
}

/// Returns the limits of the environment.
pub(crate) fn limits() -> LaunchLimits {
    static LIMITS: OnceLock<LaunchLimits> = OnceLock::new();
    *LIMITS.get_or_init(limits::from_environment)
}

/// Returns whether the program may run without its limits.
pub(crate) fn optional() -> bool {
    std::env::var_os(OPTIONAL).is_some_and(|value| !value.is_empty() && value != "0")
}

/// Reports a limit that cannot be set. Ends the program, unless limits are optional.
pub(crate) fn cannot(why: &str) {
    if optional() {
        eprintln!("gctgroup: {why}: this limit does not hold");
        return;
    }
    eprintln!(
        "gctgroup: {why}: the program is stopped ({OPTIONAL}=1 lets it run without this limit)"
    );
    // SAFETY: ends the process. Not `exit`: what it calls may wait for locks that are held here.
    unsafe { libc::_exit(STATUS) };
}
