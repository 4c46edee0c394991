// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Who is at the other end of a socket, as the kernel says.

use rustix::fd::{AsRawFd, BorrowedFd};

/// The process that connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    /// Its pid here; 0 if it is in no pid namespace that is visible here.
    pub(crate) pid: u32,
    /// Its effective user.
    pub(crate) uid: u32,
}

impl Peer {
    /// Asks the kernel.
    pub(crate) fn of(socket: BorrowedFd<'_>) -> Option<Self> {
        let mut credentials = libc::ucred {
            pid: 0,
            uid: u32::MAX,
            gid: u32::MAX,
        };
        // CAST: twelve bytes.
        let mut length = size_of::<libc::ucred>() as libc::socklen_t;
        // SAFETY: the kernel writes at most `length` bytes to the structure.
        let status = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                (&raw mut credentials).cast(),
                &raw mut length,
            )
        };
        (status == 0).then(|| Self {
            pid: u32::try_from(credentials.pid).unwrap_or(0),
            uid: credentials.uid,
        })
    }

    /// May it write files of the tree, which are root's? The user who started the daemon may too.
    pub(crate) fn may_write(self) -> bool {
        self.uid == 0 || self.uid == rustix::process::geteuid().as_raw()
    }
}
