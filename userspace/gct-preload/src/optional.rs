// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Stops a program if limits were asked for that cannot be set. `GCTGROUP_OPTIONAL=1` lets it run
//! without them.

use crate::sys::say;
use gctd_ipc::environment::variable;

/// Makes limits optional, with any value but `0` and the empty string.
const OPTIONAL: &str = "GCTGROUP_OPTIONAL";

/// The exit status of a program that is stopped: `EX_CONFIG` of `sysexits.h`.
const STATUS: i32 = 78;

/// Returns whether the program may run without its limits.
pub(crate) fn is_set() -> bool {
    variable(OPTIONAL).is_some_and(|value| !value.is_empty() && value != "0")
}

/// Reports a limit that cannot be set. Ends the program, unless limits are optional.
pub(crate) fn cannot(why: &str) {
    if is_set() {
        say(&format!("gctgroup: {why}: this limit does not hold\n"));
        return;
    }
    say(&format!(
        "gctgroup: {why}: the program is stopped ({OPTIONAL}=1 lets it run without this limit)\n"
    ));
    // SAFETY: ends the process. Not `exit`: what it calls may wait for locks that are held here.
    unsafe { libc::_exit(STATUS) };
}
