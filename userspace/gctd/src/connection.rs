// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What one connection may ask, and the answers.

use crate::authority::{Door, Peer};
use crate::budget::Payer;
use crate::daemon::{Daemon, Session};
use crate::files::ErrorNumber;
use crate::server::lock;
use crate::trial::Answer;
use gct_core::error::Error;
use gct_core::ids::ProcKey;
use gct_core::limits::WRITE_LEN_MAX;
use gctd_ipc::message::{Reply, Request, CHUNK_BYTES};
use gctd_ipc::{socket, VERSION};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{Errno, Result};
use rustix::net::SendFlags;
use std::sync::Mutex;

/// A connection through one of the doors.
#[derive(Debug)]
pub(crate) struct Connection {
    socket: OwnedFd,
    door: Door,
    peer: Peer,
    payer: Payer,
    greeted: bool,
    session: Option<Session>,
    /// What remains of a text.
    text: Vec<u8>,
}

impl Connection {
    pub(crate) fn new(socket: OwnedFd, door: Door, peer: Peer, payer: Payer) -> Self {
        Self {
            socket,
            door,
            peer,
            payer,
            greeted: false,
            session: None,
            text: Vec::new(),
        }
    }

    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Returns whether it is a connection of this process's.
    pub(crate) fn is_of(&self, key: ProcKey) -> bool {
        self.session
            .as_ref()
            .is_some_and(|session| session.key == key)
    }

    /// Gives back all that it had.
    pub(crate) fn close(self, daemon: &mut Daemon) {
        let pages = self.session.map_or(0, |session| daemon.bye(session));
        daemon.budget.disconnect(&self.payer, pages);
    }

    /// Answers one request. An error ends the connection.
    pub(crate) fn handle(
        &mut self,
        id: u64,
        request: Request,
        daemon: &Mutex<Daemon>,
    ) -> Result<()> {
        if self.greeted == matches!(request, Request::Hello { .. }) {
            return Err(Errno::PROTO);
        }
        let mut daemon = lock(daemon);
        match request {
            Request::Hello { version, tenant } => self.greet(id, version, tenant, &mut daemon),
            Request::List { path } => self.text(daemon.list(&path)),
            Request::Read { path } => self.text(daemon.read(&path)),
            Request::More => self.chunk(),
            Request::Write { path, bytes } => match self.door {
                Door::Admin => self.write(&path, &bytes, &mut daemon),
                Door::Tenants => self.refuse(Error::Access),
            },
            request => self.of_tenant(request, &mut daemon),
        }
    }

    fn greet(&mut self, id: u64, version: u32, tenant: bool, daemon: &mut Daemon) -> Result<()> {
        let hello = Reply::Hello { version: VERSION };
        if version != VERSION {
            self.send(&hello, &[])?;
            return Err(Errno::PROTO);
        }
        if tenant {
            let identity = self.peer.identity.as_ref();
            let identity = identity.filter(|_| self.door == Door::Tenants);
            let outcome = match identity {
                Some(identity) => daemon.hello(id, identity, &self.payer),
                None => Err(Error::NoProcess),
            };
            match outcome {
                Ok(session) => self.session = Some(session),
                Err(error) => {
                    self.refuse(error)?;
                    return Err(Errno::PROTO);
                }
            }
        }
        self.greeted = true;
        self.send(&hello, &[])
    }

    fn write(&self, path: &str, bytes: &[u8], daemon: &mut Daemon) -> Result<()> {
        // One byte over the maximum is enough for the parser to refuse it.
        let bytes = bytes.get(..WRITE_LEN_MAX + 1).unwrap_or(bytes);
        let socket = self.socket.try_clone().map_err(|_| Errno::MFILE)?;
        let later = || -> Answer {
            Box::new(move |outcome| {
                // Who does not read its answers goes without.
                let _ = send(&socket, &written(outcome), &[]);
            })
        };
        match daemon.write(path, bytes, self.peer.writer, later) {
            Some(outcome) => self.send(&written(outcome), &[]),
            None => Ok(()),
        }
    }

    /// Answers a process that reports its ioctls.
    fn of_tenant(&mut self, request: Request, daemon: &mut Daemon) -> Result<()> {
        let session = self.session.as_mut().ok_or(Errno::PROTO)?;
        let outcome = match request {
            Request::Enter(ioctl) => {
                daemon.enter(session, &ioctl);
                return Ok(());
            }
            Request::Leave { ioctl, granted } => {
                daemon.leave(session, &ioctl, granted);
                return Ok(());
            }
            Request::Took {
                minor,
                generation,
                refused,
            } => {
                daemon.took(session.connection, minor, generation, refused);
                return Ok(());
            }
            Request::Managed(managed) => {
                daemon.managed_exists(session, managed);
                return Ok(());
            }
            Request::ManagedGone { number } => {
                daemon.managed_gone(session, number);
                return Ok(());
            }
            Request::Ask(ioctl) => daemon.ask(session, &ioctl).map(Reply::Granted),
            Request::Manage(managed) => daemon.manage(session, managed).map(|()| Reply::Done),
            Request::Mapped { minor } => daemon.mapped(session, minor).map(|()| Reply::Done),
            Request::Page { client, object } => match daemon.page(session, client, object) {
                Ok(given) => {
                    let (minor, slot) = (given.minor, given.slot);
                    return send(&self.socket, &Reply::Page { minor, slot }, &given.fds);
                }
                Err(error) => Err(error),
            },
            Request::Dependable { minor } => {
                let tpcs = daemon.dependable(session, minor);
                tpcs.map(|tpcs| Reply::Dependable(*tpcs.words()))
            }
            Request::Peers { minor } => {
                let (slots, fds): (_, Vec<BorrowedFd<'_>>) =
                    daemon.neighbours(session, minor).into_iter().unzip();
                return send(&self.socket, &Reply::Peers(slots), &fds);
            }
            _ => return Err(Errno::PROTO),
        };
        match outcome {
            Ok(reply) => self.send(&reply, &[]),
            Err(error) => self.refuse(error),
        }
    }

    fn refuse(&self, error: Error) -> Result<()> {
        let errno = error.errno();
        self.send(&Reply::Error { errno }, &[])
    }

    fn text(&mut self, outcome: core::result::Result<String, ErrorNumber>) -> Result<()> {
        match outcome {
            Ok(text) => {
                self.text = text.into_bytes();
                self.chunk()
            }
            Err(errno) => self.send(&Reply::Error { errno }, &[]),
        }
    }

    fn chunk(&mut self) -> Result<()> {
        let rest = self.text.split_off(self.text.len().min(CHUNK_BYTES));
        let bytes = core::mem::replace(&mut self.text, rest);
        let more = !self.text.is_empty();
        self.send(&Reply::Text { bytes, more }, &[])
    }

    fn send(&self, reply: &Reply, fds: &[BorrowedFd<'_>]) -> Result<()> {
        send(&self.socket, reply, fds)
    }
}

/// Sends without waiting: who does not read its answers is dropped.
fn send(socket: &OwnedFd, reply: &Reply, fds: &[BorrowedFd<'_>]) -> Result<()> {
    socket::send(socket.as_fd(), reply, fds, SendFlags::DONTWAIT)
}

/// Says why somebody who connected is not served.
pub(crate) fn refuse(socket: &OwnedFd, error: Error) {
    let errno = error.errno();
    // Nothing was sent on it before, so there is room for this.
    let _ = send(socket, &Reply::Error { errno }, &[]);
}

/// How a write went.
fn written(outcome: core::result::Result<(), ErrorNumber>) -> Reply {
    match outcome {
        Ok(()) => Reply::Done,
        Err(errno) => Reply::Error { errno },
    }
}
