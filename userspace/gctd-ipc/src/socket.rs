// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Sends and receives messages with descriptors on a Unix socket.
//!
//! `rustix` makes system calls without libc, so none of these calls passes through a function that
//! a preloaded library interposes.

use crate::descriptor::Descriptor;
use crate::message::{self, Reply, Request, MESSAGE_BYTES_MAX, PEERS_MAX};
use core::mem::MaybeUninit;
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{self, Mode};
use rustix::io::{Errno, IoSlice, IoSliceMut, Result};
use rustix::net::sockopt::{set_socket_timeout, socket_timeout, Timeout};
use rustix::net::{
    self, AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::time::{Duration, Instant};

const FDS_BYTES: usize = rustix::cmsg_space!(ScmRights(PEERS_MAX));

/// Connects to a daemon. The timeout also bounds each later send and receive.
///
/// Without it, a stopped daemon would block its clients once its backlog is full.
///
/// # Errors
///
/// `ENOENT` or `ECONNREFUSED` without a daemon, `EAGAIN` after the timeout, and others of the
/// kernel.
pub fn connect(path: &Path, timeout: Duration) -> Result<OwnedFd> {
    let socket = new()?;
    connect_with(socket.as_fd(), path, timeout)?;
    Ok(socket)
}

/// Connects a new socket as [`connect`] does.
///
/// # Errors
///
/// Those of [`connect`].
pub fn connect_with(socket: impl Descriptor, path: &Path, timeout: Duration) -> Result<()> {
    // The send timeout also bounds `connect`.
    for direction in [Timeout::Send, Timeout::Recv] {
        set_socket_timeout(socket.checked()?, direction, Some(timeout))?;
    }
    let address = SocketAddrUnix::new(path)?;
    net::connect(socket.checked()?, &address)
}

/// Listens at an unused path. The socket has its mode from the start.
///
/// # Errors
///
/// `EADDRINUSE` if the path exists, and others of the kernel.
pub fn listen(path: &Path, mode: Mode) -> Result<OwnedFd> {
    const BACKLOG: i32 = 1024;
    let socket = new()?;
    // `bind` creates the file with the mode of the socket, less the umask.
    fs::fchmod(&socket, mode)?;
    net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Creates a socket for [`connect_with`].
///
/// # Errors
///
/// `EMFILE`, and others of the kernel.
pub fn new() -> Result<OwnedFd> {
    net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
}

/// Sends a message with descriptors.
///
/// # Errors
///
/// `EAGAIN` with [`SendFlags::DONTWAIT`] if the other side does not read, and others of the kernel.
pub fn send<T: Serialize>(
    socket: impl Descriptor,
    message: &T,
    fds: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> Result<()> {
    let packet = message::encode(message);
    let mut space = [MaybeUninit::uninit(); FDS_BYTES];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::TOOBIG);
    }
    let flags = flags | SendFlags::NOSIGNAL;
    let since = Instant::now();
    loop {
        let fd = socket.checked()?;
        match net::sendmsg(fd, &[IoSlice::new(&packet)], &mut control, flags) {
            Err(Errno::INTR) => wait(&socket, Timeout::Send, since)?,
            other => return other.map(|_| ()),
        }
    }
}

/// Waits, after a signal, until a socket can send or receive.
///
/// # Errors
///
/// `EAGAIN` once the socket's timeout has passed since `since`. A call that is made again after a
/// signal would begin it anew, so that signals at short intervals prolonged it for ever.
fn wait(socket: impl Descriptor, direction: Timeout, since: Instant) -> Result<()> {
    let events = match direction {
        Timeout::Send => PollFlags::OUT,
        Timeout::Recv => PollFlags::IN,
    };
    // Sockets of the daemon have none. They do not block.
    let Some(timeout) = socket_timeout(socket.checked()?, direction)? else {
        return Ok(());
    };
    loop {
        let rest = timeout.saturating_sub(since.elapsed());
        let rest_timespec = Timespec {
            tv_sec: i64::try_from(rest.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: rest.subsec_nanos().into(),
        };
        let mut fds = [PollFd::from_borrowed_fd(socket.checked()?, events)];
        match poll(&mut fds, Some(&rest_timespec)) {
            _ if rest.is_zero() => return Err(Errno::AGAIN),
            Ok(0) | Err(Errno::INTR) => {}
            other => return other.map(|_| ()),
        }
    }
}

/// Receives the next message with its descriptors.
///
/// # Errors
///
/// `EPIPE` if the other side is gone, `EBADMSG` for a packet that is no message, and others of the
/// kernel.
pub fn receive<T: for<'a> Deserialize<'a>>(socket: impl Descriptor) -> Result<(T, Vec<OwnedFd>)> {
    let mut packet = vec![0; MESSAGE_BYTES_MAX];
    let mut space = [MaybeUninit::uninit(); FDS_BYTES];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let since = Instant::now();
    let received = loop {
        let flags = RecvFlags::CMSG_CLOEXEC;
        match net::recvmsg(
            socket.checked()?,
            &mut [IoSliceMut::new(&mut packet)],
            &mut control,
            flags,
        ) {
            // A daemon that closed the connection before it had read everything causes one
            // ECONNRESET, ahead of the replies that it sent.
            Err(Errno::CONNRESET) => {}
            Err(Errno::INTR) => wait(&socket, Timeout::Recv, since)?,
            other => break other?,
        }
    };
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    decode(&packet, received.bytes, received.flags).map(|message| (message, fds))
}

/// Sends the first request, also to a daemon that has already refused and closed the connection:
/// its reply can be received.
///
/// # Errors
///
/// Those of [`send`].
pub fn send_first(socket: impl Descriptor, hello: &Request) -> Result<()> {
    match send(&socket, hello, &[], SendFlags::empty()) {
        Err(Errno::PIPE) => Ok(()),
        sent => sent,
    }
}

/// Sends the first request and receives its reply.
///
/// # Errors
///
/// Those of [`send_first`] and [`receive`].
pub fn greet(socket: impl Descriptor, hello: &Request) -> Result<Reply> {
    send_first(&socket, hello)?;
    Ok(receive(&socket)?.0)
}

/// Receives the next message without blocking. The kernel closes descriptors that came with it.
///
/// # Errors
///
/// `EAGAIN` without a message, and those of [`receive`].
pub fn receive_now<T: for<'a> Deserialize<'a>>(
    socket: BorrowedFd<'_>,
    packet: &mut [u8],
) -> Result<T> {
    let received = net::recvmsg(
        socket,
        &mut [IoSliceMut::new(packet)],
        &mut RecvAncillaryBuffer::default(),
        RecvFlags::DONTWAIT,
    )?;
    decode(packet, received.bytes, received.flags)
}

/// Decodes a received packet, which must be complete.
fn decode<T: for<'a> Deserialize<'a>>(
    packet: &[u8],
    bytes: usize,
    flags: ReturnFlags,
) -> Result<T> {
    if bytes == 0 {
        return Err(Errno::PIPE);
    }
    let packet = packet.get(..bytes).ok_or(Errno::BADMSG)?;
    if flags.contains(ReturnFlags::TRUNC) {
        return Err(Errno::BADMSG);
    }
    message::decode(packet).ok_or(Errno::BADMSG)
}
