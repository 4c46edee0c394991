// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Stops a program whose limits were asked for and cannot be set, when it first uses the GPU.
//!
//! A program that never uses one is not touched. `GCTGROUP_OPTIONAL=1` says that it may run without.

use crate::daemon;
use crate::limits::Limits;
use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::OnceLock;

/// Says that the limits may be left out, with any value but `0` and nothing.
const OPTIONAL: &str = "GCTGROUP_OPTIONAL";

/// With what a program exits that is stopped: `EX_CONFIG` of `sysexits.h`.
const STATUS: i32 = 78;

/// Whether the program may use the GPU: all that was asked for was looked at.
static LOOKED: AtomicBool = AtomicBool::new(false);

/// Looks at what was asked for, once. To be called before an ioctl of the driver's, without any lock.
pub(crate) fn look() {
    if LOOKED.load(Ordering::Relaxed) {
        return;
    }
    limits();
    if let Err(why) = daemon::required() {
        cannot(&why);
    }
    LOOKED.store(true, Ordering::Relaxed);
}

/// What the environment asks for.
pub(crate) fn limits() -> Limits {
    static LIMITS: OnceLock<Limits> = OnceLock::new();
    *LIMITS.get_or_init(Limits::from_environment)
}

/// Whether the program may run without its limits.
pub(crate) fn optional() -> bool {
    std::env::var_os(OPTIONAL).is_some_and(|value| !value.is_empty() && value != "0")
}

/// A limit cannot be set. Says so, and ends the program, unless the limits are optional.
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
