// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Serves the requests of one connection.

use crate::budget::Account;
use crate::daemon::{Daemon, OnDone, Session};
use crate::errno::errno;
use crate::peer::{Endpoint, Peer};
use crate::shared::SharedDaemon;
use gct_core::error::Error;
use gct_core::ids::ProcKey;
use gct_core::limits::WRITE_LEN_MAX;
use gctd_ipc::message::{MemoryView, Reply, Request, CHUNK_BYTES};
use gctd_ipc::{socket, VERSION};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{Errno, Result};
use rustix::net::SendFlags;
use std::time::{Duration, Instant};

/// A connection to one of the sockets.
#[derive(Debug)]
pub(crate) struct Connection {
    socket: OwnedFd,
    endpoint: Endpoint,
    peer: Peer,
    account: Account,
    greeted: bool,
    since: Instant,
    session: Option<Session>,
    /// The part of the last text that has not been sent.
    text: Vec<u8>,
}

impl Connection {
    /// Takes over a socket. Its first message must be a greeting.
    pub(crate) fn new(socket: OwnedFd, endpoint: Endpoint, peer: Peer, account: Account) -> Self {
        Self {
            socket,
            endpoint,
            peer,
            account,
            greeted: false,
            since: Instant::now(),
            session: None,
            text: Vec::new(),
        }
    }

    /// Returns the socket, for epoll and to receive requests.
    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Returns whether a process made this connection, as a tenant.
    pub(crate) fn is_of(&self, key: ProcKey) -> bool {
        let identity = self.peer.identity.as_ref();
        self.endpoint == Endpoint::Tenants && identity.is_some_and(|identity| identity.key == key)
    }

    /// Returns whether the peer has not greeted yet.
    pub(crate) fn is_mute(&self) -> bool {
        !self.greeted
    }

    /// Returns how long the connection exists.
    pub(crate) fn age(&self) -> Duration {
        self.since.elapsed()
    }

    /// Tells a child that holds the socket of its ended parent why it is not served.
    pub(crate) fn refuse_heir(&self) {
        refuse(&self.socket, Error::NoProcess);
    }

    /// Closes the session and uncharges the connection.
    pub(crate) fn close(self, daemon: &mut Daemon) {
        let pages = self
            .session
            .map_or(0, |session| daemon.close_session(session));
        daemon.budget.disconnect(&self.account, pages);
    }

    /// Serves one request.
    ///
    /// # Errors
    ///
    /// Any error means that the connection must be closed.
    pub(crate) fn handle(
        &mut self,
        id: u64,
        request: Request,
        daemon: &SharedDaemon,
    ) -> Result<()> {
        if self.greeted == matches!(request, Request::Hello { .. }) {
            return Err(Errno::PROTO);
        }
        let mut daemon = daemon.lock();
        match request {
            Request::Hello { version, tenant } => self.greet(id, version, tenant, &mut daemon),
            Request::List { path } => self.text(daemon.list(&path)),
            Request::Read { path } => self.text(daemon.read(&path)),
            Request::More => self.chunk(),
            Request::Write { path, bytes } => match self.endpoint {
                Endpoint::Admin => self.write(&path, &bytes, &mut daemon),
                Endpoint::Tenants => self.refuse(Error::Access),
            },
            request => self.serve_tenant(request, &mut daemon),
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
            let identity = identity.filter(|_| self.endpoint == Endpoint::Tenants);
            let outcome = match identity {
                Some(identity) => daemon.open_session(id, identity, &self.account),
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
        // One byte beyond the maximum suffices for the parser to refuse the text.
        let bytes = bytes.get(..WRITE_LEN_MAX + 1).unwrap_or(bytes);
        let socket = self.socket.try_clone().map_err(|_| Errno::MFILE)?;
        let on_done = || -> OnDone {
            Box::new(move |outcome| {
                // Replies to a client that does not read them are dropped.
                let _ = send(&socket, &written(outcome), &[]);
            })
        };
        match daemon.write(path, bytes, self.peer.credentials, on_done) {
            Some(outcome) => self.send(&written(outcome), &[]),
            None => Ok(()),
        }
    }

    /// Serves a request of a process that reports its ioctls.
    fn serve_tenant(&mut self, request: Request, daemon: &mut Daemon) -> Result<()> {
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
            Request::Ack {
                minor,
                generation,
                refused,
            } => {
                daemon.ack(session.connection, minor, generation, refused);
                return Ok(());
            }
            Request::AddManaged(managed) => {
                daemon.add_managed(session, managed);
                return Ok(());
            }
            Request::AddPaged { minor, paged } => {
                daemon.add_paged(session, minor, paged);
                return Ok(());
            }
            Request::UnchargeManaged { number } => {
                daemon.uncharge_managed(session, number);
                return Ok(());
            }
            Request::Charge(ioctl) => daemon.charge(session, &ioctl).map(Reply::Granted),
            Request::ChargeManaged(managed) => daemon
                .charge_managed(session, managed)
                .map(|()| Reply::Done),
            Request::IsPageable { bus_id } => {
                Ok(Reply::Pageable(daemon.pageable_on(session, &bus_id)))
            }
            Request::PageableRoom { minor, spare } => daemon
                .pageable_room(session, minor, spare)
                .map(|room| Reply::Repaged(Some(room))),
            Request::Repage {
                minor,
                paged,
                spare,
                is_last,
            } => {
                let repaged = daemon.repage(session, minor, paged, spare, is_last);
                repaged.map(Reply::Repaged)
            }
            Request::PageMapped { minor } => {
                daemon.page_mapped(session, minor).map(|()| Reply::Done)
            }
            Request::OpenPage { client, object } => match daemon.open_page(session, client, object)
            {
                Ok(given) => {
                    let (minor, slot) = (given.minor, given.slot);
                    return send(&self.socket, &Reply::Page { minor, slot }, &given.fds);
                }
                Err(error) => Err(error),
            },
            Request::MemoryView { client, object } => {
                let view = daemon.memory_view(session, client, object);
                Ok(Reply::MemoryView(view.map(|view| MemoryView {
                    limit: view.limit.get(),
                    left: view.left.get(),
                })))
            }
            Request::DependableTpcs { minor } => {
                let tpcs = daemon.dependable_tpcs(session, minor);
                tpcs.map(|tpcs| Reply::DependableTpcs(*tpcs.words()))
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
        self.send(&error_reply(errno(error)), &[])
    }

    fn text(&mut self, outcome: Result<String>) -> Result<()> {
        match outcome {
            Ok(text) => {
                self.text = text.into_bytes();
                self.chunk()
            }
            Err(errno) => self.send(&error_reply(errno), &[]),
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

/// Sends without blocking. A client that does not read its replies gets `EAGAIN` here, and its
/// connection is closed.
fn send(socket: &OwnedFd, reply: &Reply, fds: &[BorrowedFd<'_>]) -> Result<()> {
    socket::send(socket.as_fd(), reply, fds, SendFlags::DONTWAIT)
}

/// Tells a peer why it is not served.
pub(crate) fn refuse(socket: &OwnedFd, error: Error) {
    // A peer that has not read its replies does not get this one.
    let _ = send(socket, &error_reply(errno(error)), &[]);
}

fn error_reply(errno: Errno) -> Reply {
    Reply::Error {
        errno: errno.raw_os_error(),
    }
}

/// Returns the reply to a write.
fn written(outcome: Result<()>) -> Reply {
    match outcome {
        Ok(()) => Reply::Done,
        Err(errno) => error_reply(errno),
    }
}
