// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Connects a client to a daemon, and agrees with it on a version.

use crate::descriptor::Descriptor;
use crate::message::{Reply, Request};
use crate::socket;
use crate::versions::{Versions, VERSIONS};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::path::Path;
use std::time::Duration;

/// Why a client has no connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// No daemon answered.
    Absent(Errno),
    /// A daemon refused the client.
    Refused(Errno),
    /// A daemon speaks these versions, of which the client speaks none.
    Versions(Versions),
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Self {
        Self::Absent(errno)
    }
}

/// Connects to a daemon. The timeout also bounds each later send and receive. A `tenant` reports
/// its ioctls. `keep` makes of a new socket what the client keeps.
///
/// # Errors
///
/// Those of [`socket::connect`], [`socket::greet`] and `keep`, and the daemon's.
pub fn open<D: Descriptor>(
    path: &Path,
    timeout: Duration,
    tenant: bool,
    keep: impl Fn(OwnedFd) -> rustix::io::Result<D>,
) -> Result<D, Failure> {
    const FIRST: Versions = Versions::only(18);
    let mut ours = VERSIONS;
    loop {
        let socket = keep(socket::new()?)?;
        socket::connect_with(&socket, path, timeout)?;
        let hello = Request::Hello {
            versions: ours,
            tenant,
        };
        let theirs = match socket::greet(&socket, &hello)? {
            Reply::Hello { versions } => versions,
            Reply::Error { errno } => return Err(Failure::Refused(known(errno))),
            _ => return Err(Failure::Refused(Errno::PROTO)),
        };
        match ours.common(theirs) {
            None => return Err(Failure::Versions(theirs)),
            // A daemon of version 18 knows no ranges. It has answered and closed the connection.
            Some(FIRST) if ours != FIRST => ours = FIRST,
            Some(_) => return Ok(socket),
        }
    }
}

/// Returns the error of a daemon. [`Errno::PROTO`] stands for numbers that are none.
fn known(errno: i32) -> Errno {
    const LAST: i32 = 4095;
    match errno {
        1..=LAST => Errno::from_raw_os_error(errno),
        _ => Errno::PROTO,
    }
}
