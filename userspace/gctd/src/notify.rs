// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tells systemd that the daemon listens, and that it still serves (sd_notify(3)).

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// The variable with the address of systemd's socket, set for units of `Type=notify`.
const VARIABLE: &str = "NOTIFY_SOCKET";

/// The variable with the microseconds of `WatchdogSec`.
const WATCHDOG_VARIABLE: &str = "WATCHDOG_USEC";

/// Reports readiness to whoever asked for it in the environment; does nothing without.
///
/// # Errors
///
/// Those of the socket. The daemon works all the same, but systemd gives up on the unit.
pub fn ready() -> io::Result<()> {
    tell(b"READY=1\n", false)
}

/// Reports that the daemon serves.
pub(crate) fn serves() {
    // What systemd does not hear, it hears the next time.
    let _ = tell(b"WATCHDOG=1\n", true);
}

/// Returns how often systemd wants to hear that the daemon serves: twice in the time after which it
/// would end the daemon.
pub(crate) fn interval() -> Option<Duration> {
    let us = std::env::var(WATCHDOG_VARIABLE).ok()?.parse().ok()?;
    Some(Duration::from_micros(us) / 2).filter(|interval| !interval.is_zero())
}

/// Sends systemd a state. `at_once`: fails where systemd does not take it, since tenants wait.
fn tell(state: &[u8], at_once: bool) -> io::Result<()> {
    let Some(name) = std::env::var_os(VARIABLE) else {
        return Ok(());
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(at_once)?;
    socket.send_to_addr(state, &address(&name)?).map(|_| ())
}

/// Parses the address of a socket: a path, or `@` and an abstract name.
fn address(name: &OsStr) -> io::Result<SocketAddr> {
    match name.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(name),
    }
}
