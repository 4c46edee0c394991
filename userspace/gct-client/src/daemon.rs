// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Accesses the tree through the daemon of the user-space mode: it reads through the tenants'
//! socket and writes through the administrators'.

use std::io;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use gct_core::error::Error as CoreError;
use gctd_ipc::greeting::{self, Failure};
use gctd_ipc::message::{Reply, Request};
use gctd_ipc::paths::SocketPaths;
use gctd_ipc::socket;
use gctd_ipc::versions::{Versions, VERSIONS};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::SendFlags;

use crate::transport::{Door, Transport};

/// Most time to wait for a reply. A write that processes must acknowledge waits for those queued
/// before it, each for a second at most.
const REPLY_TIMEOUT: Duration = Duration::from_secs(20);

/// A connection to one of the sockets. The first request connects it.
#[derive(Debug, Default)]
struct Connection(Mutex<Option<OwnedFd>>);

/// The daemon.
#[derive(Debug)]
pub(crate) struct Daemon {
    paths: SocketPaths,
    tenants: Connection,
    admin: Connection,
}

/// Returns the error for a reply that no gctd sends.
fn protocol() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "gctd sent a wrong reply")
}

fn other_release(theirs: Versions) -> io::Error {
    let versions = format!("this program speaks protocol {VERSIONS}, gctd {theirs}");
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("{versions}: install the same release of both"),
    )
}

/// Names the timeout in its error.
fn timed(error: Errno) -> io::Error {
    match error {
        Errno::AGAIN => io::Error::new(
            io::ErrorKind::TimedOut,
            format!("gctd did not reply within {} s", REPLY_TIMEOUT.as_secs()),
        ),
        other => other.into(),
    }
}

impl Connection {
    /// Sends a request and waits for the reply. Joins the parts of a text.
    fn ask(&self, path: &Path, request: &Request) -> io::Result<Vec<u8>> {
        let mut slot = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let socket = match slot.take() {
            Some(socket) => socket,
            None => connect(path)?,
        };
        let mut text = Vec::new();
        let mut reply = exchange(&socket, request)?;
        // An error leaves the loop without the socket, which is then closed.
        let outcome = loop {
            match reply {
                Reply::Done => break Ok(text),
                Reply::Text { bytes, more } => {
                    text.extend(bytes);
                    if !more {
                        break Ok(text);
                    }
                    reply = exchange(&socket, &Request::More)?;
                }
                Reply::Error { errno } => break Err(io::Error::from_raw_os_error(errno)),
                _ => return Err(protocol()),
            }
        };
        *slot = Some(socket);
        outcome
    }
}

impl Daemon {
    pub(crate) fn new(paths: SocketPaths) -> Self {
        Self {
            paths,
            tenants: Connection::default(),
            admin: Connection::default(),
        }
    }

    fn ask(&self, request: &Request) -> io::Result<Vec<u8>> {
        self.tenants.ask(&self.paths.tenants, request)
    }

    /// Sends a request to the administrators' socket. Its absence means that the user is no
    /// administrator: a container gets the tenants' socket only.
    fn administer(&self, request: &Request) -> io::Result<()> {
        let path = &self.paths.admin;
        let answer = self.admin.ask(path, request);
        answer.map(|_| ()).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound if !path.exists() => io::Error::new(
                io::ErrorKind::PermissionDenied,
                format!("there is no administrators' socket at {}", path.display()),
            ),
            _ => error,
        })
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        let request = Request::List { path: text(path)? };
        let names = String::from_utf8(self.ask(&request)?).map_err(|_| protocol())?;
        let dirs = names.lines().filter_map(|name| name.strip_suffix('/'));
        Ok(dirs.map(str::to_owned).collect())
    }
}

fn text(path: &Path) -> io::Result<String> {
    let text = path.to_str().ok_or(io::ErrorKind::NotFound)?;
    Ok(text.to_owned())
}

fn exchange(socket: &OwnedFd, request: &Request) -> io::Result<Reply> {
    socket::send(socket.as_fd(), request, &[], SendFlags::empty()).map_err(timed)?;
    Ok(socket::receive(socket.as_fd()).map_err(timed)?.0)
}

fn connect(path: &Path) -> io::Result<OwnedFd> {
    greeting::open(path, REPLY_TIMEOUT, false, Ok).map_err(|failure| match failure {
        Failure::Absent(errno) => timed(errno),
        Failure::Refused(errno) => errno.into(),
        Failure::Versions(theirs) => other_release(theirs),
    })
}

impl Transport for Daemon {
    fn place(&self) -> &Path {
        &self.paths.tenants
    }

    fn door(&self) -> Door {
        Door::Daemon
    }

    fn check(&self) -> io::Result<()> {
        self.list(Path::new("")).map(|_| ())
    }

    fn is_dir(&self, path: &Path) -> bool {
        self.list(path).is_ok()
    }

    fn dirs(&self, path: &Path) -> io::Result<Vec<String>> {
        self.list(path)
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.ask(&Request::Read { path: text(path)? })
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let path = text(path)?;
        let bytes = bytes.to_vec();
        self.administer(&Request::Write { path, bytes })
    }

    fn may_write(&self, path: &Path) -> io::Result<()> {
        // No file accepts an empty text. The permission is checked before the text.
        match self.write(path, b"") {
            Err(error) if error.raw_os_error() == Some(CoreError::Syntax.errno()) => Ok(()),
            other => other,
        }
    }
}
