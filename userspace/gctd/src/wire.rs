// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Sends answers, and counts the descriptors in them until the peer has read them.
//!
//! The kernel counts descriptors in flight for the user who sends, and refuses that user's next
//! ones beyond its limit of open files (`ETOOMANYREFS`). They stay in flight as long as the peer
//! keeps its socket and does not read, also after the daemon has closed its own. So a peer that has
//! not read everything gets no descriptors, and its socket is kept, and charged, until it has.

use crate::budget::{Account, Budget, FDS_PAGE};
use gctd_ipc::message::Reply;
use gctd_ipc::socket;
use rustix::event::epoll;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::io::{Errno, IoSliceMut, Result};
use rustix::net::sockopt::set_socket_passcred;
use rustix::net::{
    recvmsg, shutdown, RecvAncillaryBuffer, RecvFlags, ReturnFlags, SendFlags, Shutdown,
};

/// The daemon's end of a connection.
#[derive(Debug)]
pub(crate) struct Wire {
    socket: OwnedFd,
    account: Account,
    /// Descriptors of the last answer that had any, unless it was read.
    in_flight: u64,
}

impl Wire {
    /// Takes over a socket that is charged to an account.
    pub(crate) fn new(socket: OwnedFd, account: Account) -> Self {
        Self {
            socket,
            account,
            in_flight: 0,
        }
    }

    /// Returns the socket, for epoll and to receive requests.
    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Returns what the connection is charged to.
    pub(crate) fn account(&self) -> &Account {
        &self.account
    }

    /// Returns a further descriptor of the socket, for an answer that comes later.
    ///
    /// # Errors
    ///
    /// Those of `dup`.
    pub(crate) fn later(&self) -> Result<Later> {
        rustix::io::fcntl_dupfd_cloexec(&self.socket, 0).map(Later)
    }

    /// Sends an answer.
    ///
    /// # Errors
    ///
    /// `EAGAIN` if the peer does not read, and others of the kernel.
    pub(crate) fn send(&self, reply: &Reply) -> Result<()> {
        send(&self.socket, reply, &[])
    }

    /// Sends an answer with descriptors, at the expense of the account.
    ///
    /// # Errors
    ///
    /// `EPROTO` if the peer has not read everything, `ENOSPC` if its account has no room, and those
    /// of the kernel.
    pub(crate) fn send_fds(
        &mut self,
        reply: &Reply,
        fds: &[BorrowedFd<'_>],
        budget: &mut Budget,
    ) -> Result<()> {
        if fds.is_empty() {
            return self.send(reply);
        }
        if unread(&self.socket)? > 0 {
            return Err(Errno::PROTO);
        }
        self.settle(budget);
        let count = u64::try_from(fds.len()).unwrap_or(u64::MAX);
        if !budget.try_charge(&self.account, count) {
            return Err(Errno::NOSPC);
        }
        let sent = send(&self.socket, reply, fds);
        match sent {
            Ok(()) => self.in_flight = count,
            Err(_) => budget.uncharge(&self.account, count),
        }
        sent
    }

    /// Returns whether the peer may have unread descriptors.
    pub(crate) fn is_unsettled(&self) -> bool {
        self.in_flight > 0
    }

    /// Uncharges the descriptors if the peer has read them, or has closed its socket.
    pub(crate) fn settle(&mut self, budget: &mut Budget) {
        if self.in_flight > 0 && unread(&self.socket) == Ok(0) {
            budget.uncharge(&self.account, self.in_flight);
            self.in_flight = 0;
        }
    }

    /// Closes the connection and uncharges it with its pages. Returns the rest of it, which must be
    /// [settled](Self::end) later, if the peer has not read its descriptors.
    pub(crate) fn close(
        mut self,
        pages: u64,
        epoll: &OwnedFd,
        budget: &mut Budget,
    ) -> Option<Self> {
        budget.uncharge(&self.account, pages.saturating_mul(FDS_PAGE));
        if self.end(budget) {
            return None;
        }
        // The peer sees the end, and the daemon sees no events. Neither can fail: the socket is
        // connected, or its peer is gone, and epoll knows it.
        let _ = shutdown(&self.socket, Shutdown::Both);
        let _ = epoll::delete(epoll, &self.socket);
        drop_received(&self.socket);
        Some(self)
    }

    /// Uncharges a connection that was closed, once nothing of it is in flight. Returns whether
    /// that is so.
    pub(crate) fn end(&mut self, budget: &mut Budget) -> bool {
        self.settle(budget);
        let ended = self.in_flight == 0;
        if ended {
            budget.disconnect(&self.account);
        }
        ended
    }
}

/// Drops the messages that a peer has sent, to a socket that takes no more. The peer's own socket
/// may be in one of them: it would live as long as this one.
fn drop_received(socket: &OwnedFd) {
    // Each message has the credentials of its sender then, for which there is no room. So an empty
    // one is not taken for the end. Fails for no socket.
    let _ = set_socket_passcred(socket, true);
    let next = || {
        let (mut none, flags) = (RecvAncillaryBuffer::default(), RecvFlags::DONTWAIT);
        recvmsg(socket, &mut [IoSliceMut::new(&mut [0])], &mut none, flags)
    };
    while next().is_ok_and(|message| message.flags.contains(ReturnFlags::CTRUNC)) {}
}

/// A further descriptor of a connection's socket.
#[derive(Debug)]
pub(crate) struct Later(OwnedFd);

impl Later {
    /// Sends an answer. A client that does not read gets none.
    pub(crate) fn send(&self, reply: &Reply) {
        let _ = send(&self.0, reply, &[]);
    }
}

/// Sends without blocking. A client that does not read its answers gets `EAGAIN` here, and its
/// connection is closed.
pub(crate) fn send(socket: &OwnedFd, reply: &Reply, fds: &[BorrowedFd<'_>]) -> Result<()> {
    socket::send(socket.as_fd(), reply, fds, SendFlags::DONTWAIT)
}

/// Returns how much memory the messages have that the peer has not read; 0 if it has read all.
fn unread(socket: &OwnedFd) -> Result<i32> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the kernel writes one `int` for this request (SIOCOUTQ), to `bytes`.
    let status = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    match status {
        0 => Ok(bytes),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL)),
    }
}
