// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tells systemd that the daemon listens (sd_notify(3)).

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The variable with the address of systemd's socket, set for units of `Type=notify`.
const VARIABLE: &str = "NOTIFY_SOCKET";

/// Reports readiness to whoever asked for it in the environment; does nothing without.
///
/// # Errors
///
/// Those of the socket. The daemon works all the same, but systemd gives up on the unit.
pub fn ready() -> io::Result<()> {
    let Some(name) = std::env::var_os(VARIABLE) else {
        return Ok(());
    };
    UnixDatagram::unbound()?
        .send_to_addr(b"READY=1\n", &address(&name)?)
        .map(|_| ())
}

/// Parses the address of a socket: a path, or `@` and an abstract name.
fn address(name: &OsStr) -> io::Result<SocketAddr> {
    match name.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(name),
    }
}
