// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Converts the core's errors to errnos.

use gct_core::error::Error;
use rustix::io::Errno;

/// Returns the errno of an error.
pub(crate) fn errno(error: Error) -> Errno {
    Errno::from_raw_os_error(error.errno())
}
