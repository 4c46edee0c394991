// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The tree on the socket of the user-space mode's daemon.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use gct_core::error::Error as CoreError;
use gct_share::message::{Reply, Request};
use gct_share::{socket, VERSION};
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::SendFlags;

use crate::transport::Transport;

/// A daemon, connected when it is first used.
#[derive(Debug)]
pub(crate) struct Daemon {
    path: PathBuf,
    socket: Mutex<Option<OwnedFd>>,
}

fn protocol() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "the daemon is of another version",
    )
}

impl Daemon {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self {
            path,
            socket: Mutex::new(None),
        }
    }

    /// Asks and waits for the answer. Text that comes in parts is put together.
    fn ask(&self, request: &Request) -> io::Result<Vec<u8>> {
        let mut slot = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        let socket = match slot.take() {
            Some(socket) => socket,
            None => connect(&self.path)?,
        };
        let mut text = Vec::new();
        let mut reply = exchange(&socket, request)?;
        // A socket on which something went wrong is not used again.
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
    socket::send(socket.as_fd(), request, &[], SendFlags::empty())?;
    Ok(socket::receive(socket.as_fd())?.0)
}

fn connect(path: &Path) -> io::Result<OwnedFd> {
    let socket = socket::connect(path)?;
    let hello = Request::Hello {
        version: VERSION,
        tenant: false,
    };
    match exchange(&socket, &hello)? {
        Reply::Hello { version: VERSION } => Ok(socket),
        _ => Err(protocol()),
    }
}

impl Transport for Daemon {
    fn place(&self) -> &Path {
        &self.path
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
        self.ask(&Request::Write { path, bytes }).map(|_| ())
    }

    fn may_write(&self, path: &Path) -> io::Result<()> {
        // No file takes an empty text; who may not write hears that first.
        match self.write(path, b"") {
            Err(error) if error.raw_os_error() == Some(CoreError::Syntax.errno()) => Ok(()),
            other => other,
        }
    }
}
