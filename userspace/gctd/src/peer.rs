// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Identifies the process at the other end of a socket, and decides what it may do.
//!
//! A pid alone does not identify it: a child may hold its parent's socket after the parent has
//! ended and the kernel has reused the pid. A pidfd (`SO_PEERPIDFD`) does.

use crate::process;
use gct_core::error::Error;
use gct_core::ids::ProcKey;
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use rustix::io::Errno;
use rustix::process::{pidfd_open, Pid, PidfdFlags};

/// `SO_PEERPIDFD`, since Linux 6.5.
const SO_PEERPIDFD: libc::c_int = 77;

/// The socket that a peer connected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Endpoint {
    /// Serves reads of the tree, and messages of tenants.
    Tenants,
    /// Serves reads and writes of the tree.
    Admin,
}

/// The credentials of a process that reads or writes the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Credentials {
    /// Its pid in the daemon's pid namespace; 0 if it has none there.
    pub(crate) pid: u32,
    /// Its effective uid.
    pub(crate) uid: u32,
}

impl Credentials {
    /// Returns whether this user is an administrator: root, or the user who started the daemon.
    pub(crate) fn is_admin(self) -> bool {
        self.uid == 0 || self.uid == rustix::process::geteuid().as_raw()
    }
}

/// A process, identified beyond the reuse of its pid.
#[derive(Debug)]
pub(crate) struct Identity {
    pub(crate) key: ProcKey,
    pub(crate) pidfd: OwnedFd,
}

impl Identity {
    /// Returns whether the process lives. As long as it does, its pid is its own.
    pub(crate) fn lives(&self) -> bool {
        !has_ended(self.pidfd.as_fd())
    }
}

/// Returns whether the process of a pidfd has ended.
pub(crate) fn has_ended(pidfd: BorrowedFd<'_>) -> bool {
    is_ready(pidfd, PollFlags::IN)
}

/// Returns whether the peer has closed its end of a socket.
pub(crate) fn has_gone(socket: BorrowedFd<'_>) -> bool {
    // The kernel reports POLLHUP unasked.
    is_ready(socket, PollFlags::empty())
}

fn is_ready(fd: BorrowedFd<'_>, flags: PollFlags) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(fd, flags)];
    !matches!(poll(&mut fds, Some(&Timespec::default())), Ok(0))
}

/// The process that connected.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) credentials: Credentials,
    /// [`Error::NoProcess`] if it has ended, or has no pid in the daemon's pid namespace,
    /// [`Error::NoSpace`] if the daemon cannot look.
    pub(crate) identity: Result<Identity, Error>,
}

impl Peer {
    /// Reads the peer of a socket from the kernel.
    pub(crate) fn of(socket: BorrowedFd<'_>) -> Option<Self> {
        let nobody = libc::ucred {
            pid: 0,
            uid: u32::MAX,
            gid: u32::MAX,
        };
        let credentials = option(socket, libc::SO_PEERCRED, nobody).ok()?;
        let credentials = Credentials {
            pid: u32::try_from(credentials.pid).unwrap_or(0),
            uid: credentials.uid,
        };
        Some(Self {
            credentials,
            identity: identify(socket, credentials),
        })
    }
}

/// Identifies a peer by its pid and start time, read while its pidfd says that it lives.
fn identify(socket: BorrowedFd<'_>, credentials: Credentials) -> Result<Identity, Error> {
    let pidfd = match option(socket, SO_PEERPIDFD, -1) {
        Ok(fd) => {
            let fd: libc::c_int = fd;
            // SAFETY: the kernel has just created this descriptor, and nothing else owns it.
            unsafe { OwnedFd::from_raw_fd(fd) }
        }
        Err(Errno::NOPROTOOPT) => open_pid(credentials)?,
        Err(error) => return Err(meaning(error)),
    };
    let key = process::find(credentials.pid)?.key;
    let identity = Identity { key, pidfd };
    identity.lives().then_some(identity).ok_or(Error::NoProcess)
}

/// Returns whether a process has ended, or the daemon has no descriptor or memory for it.
pub(crate) fn meaning(error: Errno) -> Error {
    match error {
        Errno::MFILE | Errno::NFILE | Errno::NOMEM => Error::NoSpace,
        _ => Error::NoProcess,
    }
}

/// Opens a peer by its pid, on a kernel without `SO_PEERPIDFD`. If the kernel has reused the pid,
/// the new process must at least belong to the same user.
fn open_pid(credentials: Credentials) -> Result<OwnedFd, Error> {
    let pid = i32::try_from(credentials.pid).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or(Error::NoProcess)?;
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).map_err(meaning)?;
    let same = process::user(credentials.pid)? == credentials.uid;
    same.then_some(pidfd).ok_or(Error::NoProcess)
}

/// Reads a socket option.
fn option<T: Copy>(socket: BorrowedFd<'_>, name: libc::c_int, initial: T) -> Result<T, Errno> {
    let mut value = initial;
    // CAST: the size of a number or of `ucred`.
    let mut length = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to `value`. The values of these options
    // consist of integers, so every bit pattern is a `T`.
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
    fn a_peer_is_identified_by_the_kernel() {
        let (one, _two) = pair();
        let peer = Peer::of(one.as_fd()).unwrap();
        let identity = peer.identity.unwrap();
        assert_eq!(identity.key.tgid, std::process::id());
        assert_eq!(peer.credentials.pid, std::process::id());
        assert!(identity.lives() && peer.credentials.is_admin());
    }

    #[test]
    fn without_a_peer_pidfd_the_user_must_match() {
        let own = Credentials {
            pid: std::process::id(),
            uid: rustix::process::geteuid().as_raw(),
        };
        assert!(open_pid(own).is_ok());
        let other = Credentials {
            uid: own.uid + 1,
            ..own
        };
        let of = |credentials| open_pid(credentials).err();
        assert_eq!(of(other), Some(Error::NoProcess));
        assert_eq!(of(Credentials { pid: 0, ..own }), Some(Error::NoProcess));
    }

    #[test]
    fn an_ended_process_is_noticed() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = Pid::from_child(&child);
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).unwrap();
        child.wait().unwrap();
        assert!(has_ended(pidfd.as_fd()));
    }
}
