// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Serves the requests of one connection.

use crate::budget::{fds_of_text, Account};
use crate::daemon::{Daemon, OnDone, Session};
use crate::errno::errno;
use crate::peer::{Endpoint, Peer};
use crate::shared::SharedDaemon;
use crate::wire::{self, Wire};
use gct_core::error::Error;
use gct_core::limits::WRITE_LEN_MAX;
use gctd_ipc::message::{MemoryView, Reply, Request, CHUNK_BYTES};
use gctd_ipc::versions::{Versions, VERSIONS};
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::io::{Errno, Result};
use std::time::{Duration, Instant};

/// A connection to one of the sockets.
#[derive(Debug)]
pub(crate) struct Connection {
    wire: Wire,
    endpoint: Endpoint,
    peer: Peer,
    greeted: bool,
    since: Instant,
    session: Option<Session>,
    /// The part of the last text that has not been sent.
    text: Vec<u8>,
    /// The descriptors that the text is charged as.
    text_fds: u64,
}

impl Connection {
    /// Serves a wire. Its first message must be a greeting.
    pub(crate) fn new(wire: Wire, endpoint: Endpoint, peer: Peer) -> Self {
        Self {
            wire,
            endpoint,
            peer,
            greeted: false,
            since: Instant::now(),
            session: None,
            text: Vec::new(),
            text_fds: 0,
        }
    }

    /// Returns the socket, for epoll and to receive requests.
    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.wire.socket()
    }

    /// Returns what it is charged to.
    pub(crate) fn account(&self) -> &Account {
        self.wire.account()
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
        // A peer that has not read its replies does not get this one.
        let _ = self.refuse(Error::NoProcess);
    }

    /// Returns whether the peer may have descriptors that it has not read.
    pub(crate) fn is_unsettled(&self) -> bool {
        self.wire.is_unsettled()
    }

    /// Uncharges the descriptors that the peer has read.
    pub(crate) fn settle(&mut self, daemon: &mut Daemon) {
        self.wire.settle(&mut daemon.budget);
    }

    /// Closes the session and uncharges the connection. Returns what remains of it if the peer has
    /// not read its descriptors.
    pub(crate) fn close(mut self, epoll: &OwnedFd, daemon: &mut Daemon) -> Option<Wire> {
        self.forget_text(daemon);
        let pages = self
            .session
            .map_or(0, |session| daemon.close_session(session));
        self.wire.close(pages, epoll, &mut daemon.budget)
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
            Request::Hello { versions, tenant } => self.greet(id, versions, tenant, &mut daemon),
            Request::List { path } => {
                let text = daemon.list(&path);
                self.text(text, &mut daemon)
            }
            Request::Read { path } => {
                let text = daemon.read(&path);
                self.text(text, &mut daemon)
            }
            Request::More => self.chunk(&mut daemon),
            Request::Write { path, bytes } => match self.endpoint {
                Endpoint::Admin => self.write(&path, &bytes, &mut daemon),
                Endpoint::Tenants => self.refuse(Error::Access),
            },
            request => self.serve_tenant(request, &mut daemon),
        }
    }

    fn greet(
        &mut self,
        id: u64,
        theirs: Versions,
        tenant: bool,
        daemon: &mut Daemon,
    ) -> Result<()> {
        let Some(versions) = VERSIONS.common(theirs) else {
            daemon.speaks_other_versions(theirs, self.peer.credentials, self.wire.account());
            let versions = VERSIONS;
            self.wire.send(&Reply::Hello { versions })?;
            return Err(Errno::PROTO);
        };
        if tenant {
            let outcome = match (&self.peer.identity, self.endpoint) {
                (Ok(identity), Endpoint::Tenants) => {
                    daemon.open_session(id, identity, self.wire.account())
                }
                _ => Err(Error::NoProcess),
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
        self.wire.send(&Reply::Hello { versions })
    }

    fn write(&self, path: &str, bytes: &[u8], daemon: &mut Daemon) -> Result<()> {
        // One byte beyond the maximum suffices for the parser to refuse the text.
        let bytes = bytes.get(..WRITE_LEN_MAX + 1).unwrap_or(bytes);
        let later = self.wire.later()?;
        let on_done = || -> OnDone { Box::new(move |outcome| later.send(&written(outcome))) };
        match daemon.write(path, bytes, self.peer.credentials, on_done) {
            Some(outcome) => self.wire.send(&written(outcome)),
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
            Request::OpenPage { client, object } => {
                let page = daemon.open_page(session, client, object);
                match page {
                    Ok(gpu) => {
                        let sent = daemon.send_page(session, gpu, &mut self.wire);
                        return self.answered(sent, daemon);
                    }
                    Err(error) => Err(error),
                }
            }
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
                let sent = daemon.send_neighbours(session, minor, &mut self.wire);
                return self.answered(sent, daemon);
            }
            _ => return Err(Errno::PROTO),
        };
        match outcome {
            Ok(reply) => self.wire.send(&reply),
            Err(error) => self.refuse(error),
        }
    }

    /// Tells the client when an answer with descriptors could not be sent, so that it asks again.
    /// What was charged and published for it stays.
    fn answered(&self, sent: Result<()>, daemon: &mut Daemon) -> Result<()> {
        match sent {
            Err(error @ (Errno::TOOMANYREFS | Errno::NOBUFS | Errno::NOMEM | Errno::NOSPC)) => {
                daemon.could_not_answer(error);
                self.wire.send(&error_reply(error))
            }
            other => other,
        }
    }

    fn refuse(&self, error: Error) -> Result<()> {
        self.wire.send(&error_reply(errno(error)))
    }

    fn text(&mut self, outcome: Result<String>, daemon: &mut Daemon) -> Result<()> {
        self.forget_text(daemon);
        let kept = outcome.and_then(|text| self.keep_text(text.into_bytes(), daemon));
        match kept {
            Ok(()) => self.chunk(daemon),
            Err(errno) => self.wire.send(&error_reply(errno)),
        }
    }

    /// Keeps a text until the client has asked for all of it, at the expense of its account if
    /// that is not in the first part. Administrators may have any.
    fn keep_text(&mut self, text: Vec<u8>, daemon: &mut Daemon) -> Result<()> {
        if self.endpoint == Endpoint::Tenants && text.len() > CHUNK_BYTES {
            let fds = fds_of_text(text.len());
            if !daemon.budget.try_charge(self.wire.account(), fds) {
                return Err(Errno::NOSPC);
            }
            self.text_fds = fds;
        }
        self.text = text;
        Ok(())
    }

    fn forget_text(&mut self, daemon: &mut Daemon) {
        let fds = core::mem::take(&mut self.text_fds);
        daemon.budget.uncharge(self.wire.account(), fds);
        self.text = Vec::new();
    }

    fn chunk(&mut self, daemon: &mut Daemon) -> Result<()> {
        let rest = self.text.split_off(self.text.len().min(CHUNK_BYTES));
        let bytes = core::mem::replace(&mut self.text, rest);
        let more = !self.text.is_empty();
        if !more {
            self.forget_text(daemon);
        }
        self.wire.send(&Reply::Text { bytes, more })
    }
}

/// Tells a peer why it is not served.
pub(crate) fn refuse(socket: &OwnedFd, error: Error) {
    // A peer that has not read its replies does not get this one.
    let _ = wire::send(socket, &error_reply(errno(error)), &[]);
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
