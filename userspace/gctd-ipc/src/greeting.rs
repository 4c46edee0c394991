// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Connects a client to a daemon, and agrees with it on a version.

use crate::descriptor::Descriptor;
use crate::message::{Reply, Request};
use crate::socket;
use crate::versions::{Versions, VERSIONS};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
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

/// A greeting whose answer has yet to come.
#[derive(Debug)]
pub struct Greeting<D> {
    socket: D,
    /// The versions that it states.
    ours: Versions,
    tenant: bool,
}

/// What a daemon has answered, or that it has not.
#[derive(Debug)]
pub enum Answer<D> {
    /// It serves the client on this socket.
    Serves(D),
    /// It has not answered within the socket's timeout.
    Late(Greeting<D>),
}

/// The only version of a daemon that knows no ranges. It answers and closes the connection.
const FIRST: Versions = Versions::only(18);

impl<D: Descriptor> Greeting<D> {
    /// Connects to a daemon and greets it. The timeout also bounds each later send and receive. A
    /// `tenant` reports its ioctls. `keep` makes of a new socket what the client keeps.
    ///
    /// # Errors
    ///
    /// Those of [`socket::connect`] and of `keep`.
    pub fn send(
        path: &Path,
        timeout: Duration,
        (ours, tenant): (Versions, bool),
        keep: impl Fn(OwnedFd) -> rustix::io::Result<D>,
    ) -> Result<Self, Failure> {
        let socket = keep(socket::new()?)?;
        socket::connect_with(&socket, path, timeout)?;
        let versions = ours;
        socket::send_first(&socket, &Request::Hello { versions, tenant })?;
        Ok(Self {
            socket,
            ours,
            tenant,
        })
    }

    /// Returns whether there is an answer, or the daemon is gone, or the program has closed the
    /// socket: whether [`Greeting::receive`] does not wait.
    pub fn is_answered(&self) -> bool {
        let Ok(fd) = self.socket.checked() else {
            return true;
        };
        let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())) != Ok(0)
    }

    /// Receives the answer. Greets a daemon of version 18 again, in its own version.
    ///
    /// # Errors
    ///
    /// Those of [`socket::receive`] and of [`Greeting::send`], and the daemon's.
    pub fn receive(
        self,
        path: &Path,
        timeout: Duration,
        keep: impl Fn(OwnedFd) -> rustix::io::Result<D>,
    ) -> Result<Answer<D>, Failure> {
        let mut greeting = self;
        loop {
            let theirs = match socket::receive(&greeting.socket) {
                Ok((Reply::Hello { versions }, _)) => versions,
                Ok((Reply::Error { errno }, _)) => return Err(Failure::Refused(known(errno))),
                Ok(_) => return Err(Failure::Refused(Errno::PROTO)),
                Err(Errno::AGAIN) => return Ok(Answer::Late(greeting)),
                Err(error) => return Err(error.into()),
            };
            match greeting.ours.common(theirs) {
                None => return Err(Failure::Versions(theirs)),
                Some(FIRST) if greeting.ours != FIRST => {
                    greeting = Self::send(path, timeout, (FIRST, greeting.tenant), &keep)?;
                }
                Some(_) => return Ok(Answer::Serves(greeting.socket)),
            }
        }
    }
}

/// Connects to a daemon, and waits for its answer, as [`Greeting::send`] and [`Greeting::receive`]
/// do.
///
/// # Errors
///
/// Theirs, and `EAGAIN` if the daemon does not answer in time.
pub fn open<D: Descriptor>(
    path: &Path,
    timeout: Duration,
    tenant: bool,
    keep: impl Fn(OwnedFd) -> rustix::io::Result<D>,
) -> Result<D, Failure> {
    let greeting = Greeting::send(path, timeout, (VERSIONS, tenant), &keep)?;
    match greeting.receive(path, timeout, &keep)? {
        Answer::Serves(socket) => Ok(socket),
        Answer::Late(_) => Err(Errno::AGAIN.into()),
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
