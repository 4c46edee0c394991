// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Opens the daemon's two sockets in its directory.
//!
//! A lock on a file there says that the directory has a daemon; sockets that an earlier one left are
//! replaced.

use gctd_ipc::doors::Doors;
use gctd_ipc::socket;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{chmod, flock, open, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;

/// Folders are for all to pass.
const FOLDER_MODE: u32 = 0o755;
/// Everybody may come to the tenants' door.
const TENANTS_MODE: u32 = 0o666;
/// Only the daemon's user, and root, may come to the administrators' door.
const ADMIN_MODE: u32 = 0o600;

/// The sockets, which are removed with the value.
#[derive(Debug)]
pub(crate) struct Listeners {
    tenants: OwnedFd,
    admin: OwnedFd,
    paths: Doors,
    _lock: OwnedFd,
}

impl Listeners {
    /// Listens in a directory, which is made if there is none.
    ///
    /// # Errors
    ///
    /// The kernel's; `AddrInUse` when another daemon has the directory, `PermissionDenied` when
    /// strangers could change what is in it.
    pub(crate) fn open(directory: &Path) -> io::Result<Self> {
        let paths = Doors::of(directory);
        let folder = paths.tenants.parent().unwrap_or(directory);
        for folder in [directory, folder] {
            let mut builder = DirBuilder::new();
            builder.recursive(true).mode(FOLDER_MODE).create(folder)?;
            check_owner(folder)?;
        }
        let lock = lock(directory)?;
        Ok(Self {
            tenants: listen(&paths.tenants, TENANTS_MODE)?,
            admin: listen(&paths.admin, ADMIN_MODE)?,
            paths,
            _lock: lock,
        })
    }

    pub(crate) fn tenants(&self) -> BorrowedFd<'_> {
        self.tenants.as_fd()
    }

    pub(crate) fn admin(&self) -> BorrowedFd<'_> {
        self.admin.as_fd()
    }
}

impl Drop for Listeners {
    fn drop(&mut self) {
        // Whoever starts next replaces what stays.
        let _ = fs::remove_file(&self.paths.tenants);
        let _ = fs::remove_file(&self.paths.admin);
    }
}

/// Refuses a folder in which somebody else could put another socket.
fn check_owner(folder: &Path) -> io::Result<()> {
    let found = fs::metadata(folder)?;
    let own = rustix::process::geteuid().as_raw();
    let trusted = [0, own].contains(&found.uid()) && found.mode() & 0o002 == 0;
    let why = || format!("{} can be changed by others", folder.display());
    trusted
        .then_some(())
        .ok_or_else(|| io::Error::new(io::ErrorKind::PermissionDenied, why()))
}

/// Takes a directory for this daemon.
fn lock(directory: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = open(directory.join("lock"), flags, Mode::RUSR | Mode::WUSR)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => Err(io::ErrorKind::AddrInUse.into()),
        other => Ok(other.map(|()| file)?),
    }
}

/// Listens at a path of this daemon's alone.
fn listen(path: &Path, mode: u32) -> io::Result<OwnedFd> {
    let mode = Mode::from_raw_mode(mode);
    let listener = match socket::listen(path, mode) {
        Err(Errno::ADDRINUSE) => {
            fs::remove_file(path)?;
            socket::listen(path, mode)?
        }
        other => other?,
    };
    // The mask of the process took bits away.
    chmod(path, mode)?;
    Ok(listener)
}
