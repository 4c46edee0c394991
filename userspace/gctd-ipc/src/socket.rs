// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Packets and descriptors over a Unix socket.
//!
//! `rustix` makes the system calls itself here, so that nothing of this goes through a libc
//! function that a preloaded library stands in front of.

use crate::message::{self, Reply, Request, MESSAGE_BYTES_MAX, PEERS_MAX};
use core::mem::MaybeUninit;
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::fs::{self, Mode};
use rustix::io::{Errno, IoSlice, IoSliceMut, Result};
use rustix::net::sockopt::{set_socket_timeout, Timeout};
use rustix::net::{
    self, AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::time::Duration;

const FDS_BYTES: usize = rustix::cmsg_space!(ScmRights(PEERS_MAX));

/// Connects to a daemon. Neither this nor any later send or receive on the socket takes longer than
/// `answer_max`: a daemon that was stopped accepts nobody once its backlog is full.
///
/// # Errors
///
/// The kernel's: `ENOENT` or `ECONNREFUSED` when nobody listens there, `EAGAIN` when the time is
/// over.
pub fn connect(path: &Path, answer_max: Duration) -> Result<OwnedFd> {
    let socket = socket()?;
    // The time to send bounds `connect`, too.
    for timeout in [Timeout::Send, Timeout::Recv] {
        set_socket_timeout(&socket, timeout, Some(answer_max))?;
    }
    net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// Listens at a path where nothing is, with these permissions from the first moment on.
///
/// # Errors
///
/// The kernel's: `EADDRINUSE` when something is there.
pub fn listen(path: &Path, mode: Mode) -> Result<OwnedFd> {
    const BACKLOG: i32 = 1024;
    let socket = socket()?;
    // The file gets the mode of the socket, less the mask of the process.
    fs::fchmod(&socket, mode)?;
    net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

fn socket() -> Result<OwnedFd> {
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
/// The kernel's; `EAGAIN` with [`SendFlags::DONTWAIT`] when the other side does not read.
pub fn send<T: Serialize>(
    socket: BorrowedFd<'_>,
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
    loop {
        match net::sendmsg(socket, &[IoSlice::new(&packet)], &mut control, flags) {
            Err(Errno::INTR) => {}
            other => return other.map(|_| ()),
        }
    }
}

/// Receives the next message with its descriptors.
///
/// # Errors
///
/// The kernel's; `EPIPE` when the other side is gone; `EBADMSG` for what is no message.
pub fn receive<T: for<'a> Deserialize<'a>>(socket: BorrowedFd<'_>) -> Result<(T, Vec<OwnedFd>)> {
    let mut packet = vec![0; MESSAGE_BYTES_MAX];
    let mut space = [MaybeUninit::uninit(); FDS_BYTES];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        let flags = RecvFlags::CMSG_CLOEXEC;
        match net::recvmsg(
            socket,
            &mut [IoSliceMut::new(&mut packet)],
            &mut control,
            flags,
        ) {
            // A daemon that closed with something of ours unread says so once, before what it sent.
            Err(Errno::INTR | Errno::CONNRESET) => {}
            other => break other?,
        }
    };
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    whole(&packet, received.bytes, received.flags).map(|message| (message, fds))
}

/// Sends the first request on a socket and receives the answer, which may be that of a daemon that
/// refused and closed at once.
///
/// # Errors
///
/// As [`send`] and [`receive`].
pub fn greet(socket: BorrowedFd<'_>, hello: &Request) -> Result<Reply> {
    match send(socket, hello, &[], SendFlags::empty()) {
        Ok(()) | Err(Errno::PIPE) => Ok(receive(socket)?.0),
        Err(error) => Err(error),
    }
}

/// Receives the next message without waiting. Descriptors that came with it are closed by
/// the kernel: there is no room for any.
///
/// # Errors
///
/// As [`receive`]; `EAGAIN` when there is none.
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
    whole(packet, received.bytes, received.flags)
}

fn whole<T: for<'a> Deserialize<'a>>(packet: &[u8], bytes: usize, flags: ReturnFlags) -> Result<T> {
    if bytes == 0 {
        return Err(Errno::PIPE);
    }
    let packet = packet.get(..bytes).ok_or(Errno::BADMSG)?;
    if flags.contains(ReturnFlags::TRUNC) {
        return Err(Errno::BADMSG);
    }
    message::decode(packet).ok_or(Errno::BADMSG)
}
