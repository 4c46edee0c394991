// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Says who is at the other end of a socket, as the kernel knows it, and what they may do.
//!
//! A pid alone is nobody: a child may hold its parent's socket after the parent has ended and
//! another process has its pid. A descriptor of the process itself (`SO_PEERPIDFD`) tells.

use crate::process;
use gct_core::ids::ProcKey;
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use rustix::io::Errno;
use rustix::process::{pidfd_open, Pid, PidfdFlags};

/// `SO_PEERPIDFD`, since Linux 6.5.
const SO_PEERPIDFD: libc::c_int = 77;

/// Which socket somebody came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Door {
    /// Reads of the tree, and a tenant's own messages.
    Tenants,
    /// Reads and writes of the tree.
    Admin,
}

/// Who writes a file of the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Writer {
    /// Its pid here; 0 if it is in no pid namespace that is visible here.
    pub(crate) pid: u32,
    /// Its effective user.
    pub(crate) uid: u32,
}

impl Writer {
    /// Returns whether this user is an administrator: root, or the user who started the daemon.
    pub(crate) fn may_write(self) -> bool {
        self.uid == 0 || self.uid == rustix::process::geteuid().as_raw()
    }
}

/// A process that cannot be taken for another.
#[derive(Debug)]
pub(crate) struct Identity {
    pub(crate) key: ProcKey,
    pub(crate) pidfd: OwnedFd,
}

impl Identity {
    /// Returns whether the process lives, so that its pid is still its own.
    pub(crate) fn lives(&self) -> bool {
        !has_ended(self.pidfd.as_fd())
    }
}

/// Returns whether the process of a pidfd has ended.
pub(crate) fn has_ended(pidfd: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::new(&pidfd, PollFlags::IN)];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    !matches!(poll(&mut fds, Some(&now)), Ok(0))
}

/// The process that connected.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) writer: Writer,
    /// `None` if it has ended, or is in no pid namespace that is visible here.
    pub(crate) identity: Option<Identity>,
}

impl Peer {
    /// Asks the kernel who connected.
    pub(crate) fn of(socket: BorrowedFd<'_>) -> Option<Self> {
        let nobody = libc::ucred {
            pid: 0,
            uid: u32::MAX,
            gid: u32::MAX,
        };
        let credentials = option(socket, libc::SO_PEERCRED, nobody).ok()?;
        let writer = Writer {
            pid: u32::try_from(credentials.pid).unwrap_or(0),
            uid: credentials.uid,
        };
        Some(Self {
            writer,
            identity: identify(socket, writer),
        })
    }
}

/// Identifies a peer: its start time is read while its pidfd says that it lives.
fn identify(socket: BorrowedFd<'_>, writer: Writer) -> Option<Identity> {
    let pidfd = match option(socket, SO_PEERPIDFD, -1) {
        Ok(fd) => {
            let fd: libc::c_int = fd;
            // SAFETY: the kernel has just made this descriptor for the caller.
            unsafe { OwnedFd::from_raw_fd(fd) }
        }
        Err(Errno::NOPROTOOPT) => open_pid(writer)?,
        Err(_) => return None,
    };
    let key = process::find(writer.pid)?.key;
    let identity = Identity { key, pidfd };
    identity.lives().then_some(identity)
}

/// Opens a peer by its pid, where the kernel is too old for more. Another process that has the pid
/// by now must be the same user's.
fn open_pid(writer: Writer) -> Option<OwnedFd> {
    let pid = i32::try_from(writer.pid).ok().and_then(Pid::from_raw)?;
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).ok()?;
    (process::user(writer.pid)? == writer.uid).then_some(pidfd)
}

/// Reads an option of a socket.
fn option<T: Copy>(socket: BorrowedFd<'_>, name: libc::c_int, initial: T) -> Result<T, Errno> {
    let mut value = initial;
    // CAST: a few bytes.
    let mut length = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to `value`, and every bit pattern that it
    // writes for these options, numbers, is a `T`.
    let status = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            name,
            (&raw mut value).cast(),
            &raw mut length,
        )
    };
    match status {
        0 => Ok(value),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{socketpair, AddressFamily, SocketFlags, SocketType};

    fn pair() -> (OwnedFd, OwnedFd) {
        let kind = SocketType::SEQPACKET;
        socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap()
    }

    #[test]
    fn this_process_is_who_connected() {
        let (one, _two) = pair();
        let peer = Peer::of(one.as_fd()).unwrap();
        let identity = peer.identity.unwrap();
        assert_eq!(identity.key.tgid, std::process::id());
        assert_eq!(peer.writer.pid, std::process::id());
        assert!(identity.lives() && peer.writer.may_write());
    }

    #[test]
    fn where_the_kernel_is_old_the_user_is_compared() {
        let own = Writer {
            pid: std::process::id(),
            uid: rustix::process::geteuid().as_raw(),
        };
        assert!(open_pid(own).is_some());
        let other = Writer {
            uid: own.uid + 1,
            ..own
        };
        assert!(open_pid(other).is_none());
        assert!(open_pid(Writer { pid: 0, ..own }).is_none());
    }

    #[test]
    fn a_process_that_ended_is_nobody() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = Pid::from_child(&child);
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).unwrap();
        child.wait().unwrap();
        assert!(has_ended(pidfd.as_fd()));
    }
}
