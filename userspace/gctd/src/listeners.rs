// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Opens the daemon's two sockets in its directory.
//!
//! A lock on a file there shows that the directory has a daemon. Sockets that an earlier daemon
//! left are replaced.

use gctd_ipc::paths::SocketPaths;
use gctd_ipc::socket;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{chmod, flock, open, FlockOperation, Mode, OFlags};
use rustix::io::{ioctl_fionbio, Errno};
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;

/// Mode of the directories: everybody may enter them.
const FOLDER_MODE: u32 = 0o755;
/// Mode of the tenants' socket: everybody may connect.
const TENANTS_MODE: u32 = 0o666;
/// Mode of the administrators' socket. Root without a capability connects as one of the daemon's
/// group; the daemon refuses the others of it.
const ADMIN_MODE: u32 = 0o660;

/// The listening sockets. Dropping it removes them.
#[derive(Debug)]
pub(crate) struct Listeners {
    tenants: OwnedFd,
    admin: OwnedFd,
    paths: SocketPaths,
    _lock: OwnedFd,
}

impl Listeners {
    /// Listens in a directory, and creates it if it does not exist.
    ///
    /// # Errors
    ///
    /// `AddrInUse` if another daemon has the directory, `PermissionDenied` if other users can
    /// write to it, and those of the kernel.
    pub(crate) fn open(directory: &Path) -> io::Result<Self> {
        let paths = SocketPaths::of(directory);
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
        // A socket that cannot be removed is replaced by the next daemon.
        let _ = fs::remove_file(&self.paths.tenants);
        let _ = fs::remove_file(&self.paths.admin);
    }
}

/// Modes with which users other than the owner can write to a directory.
const OTHERS_WRITE: u32 = 0o022;

/// Refuses a directory in which another user could replace a socket.
fn check_owner(folder: &Path) -> io::Result<()> {
    let found = fs::metadata(folder)?;
    let own = rustix::process::geteuid().as_raw();
    let trusted = [0, own].contains(&found.uid()) && found.mode() & OTHERS_WRITE == 0;
    let why = || {
        format!(
            "other users can write to {}: chown it to this user and run chmod go-w",
            folder.display()
        )
    };
    trusted
        .then_some(())
        .ok_or_else(|| io::Error::new(io::ErrorKind::PermissionDenied, why()))
}

/// Locks a directory for this daemon.
fn lock(directory: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = open(directory.join("lock"), flags, Mode::RUSR | Mode::WUSR)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => Err(io::Error::new(
            io::ErrorKind::AddrInUse,
            "another gctd uses this directory: name a different one with --dir",
        )),
        other => Ok(other.map(|()| file)?),
    }
}

/// Listens on a socket and then names it `path`, in place of a socket that is there: whoever finds
/// the name can connect. The directory is locked.
fn listen(path: &Path, mode: u32) -> io::Result<OwnedFd> {
    let mode = Mode::from_raw_mode(mode);
    let unready = path.with_extension("new");
    match fs::remove_file(&unready) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = socket::listen(&unready, mode)?;
    // `accept` is called until there is nobody.
    ioctl_fionbio(&listener, true)?;
    // The umask has removed bits.
    chmod(&unready, mode)?;
    fs::rename(&unready, path)?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{chown, PermissionsExt};
    use std::path::PathBuf;
    use std::time::Duration;

    /// A directory of a test, which is removed with it.
    struct Directory(PathBuf);

    impl Directory {
        fn new(test: &str) -> Self {
            let name = format!("gctd-listeners-{test}-{}", std::process::id());
            let directory = std::env::temp_dir().join(name);
            fs::create_dir_all(&directory).unwrap();
            Self(directory)
        }

        fn allow(&self, mode: u32) {
            fs::set_permissions(&self.0, fs::Permissions::from_mode(mode)).unwrap();
        }

        fn refuses(&self) -> Option<io::ErrorKind> {
            Listeners::open(&self.0).err().map(|error| error.kind())
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    /// Whoever can write to it puts a socket of his own in the place of the daemon's.
    #[test]
    fn a_directory_that_others_can_write_to_is_refused() {
        let directory = Directory::new("others");
        for (mode, refused) in [
            (0o755, false),
            (0o700, false),
            (0o775, true),
            (0o757, true),
            (0o1777, true),
        ] {
            directory.allow(mode);
            let expected = refused.then_some(io::ErrorKind::PermissionDenied);
            assert_eq!(directory.refuses(), expected, "{mode:o}");
        }
        directory.allow(0o755);
        let of_other = rustix::process::geteuid().as_raw() + 1;
        if chown(&directory.0, Some(of_other), None).is_ok() {
            assert_eq!(directory.refuses(), Some(io::ErrorKind::PermissionDenied));
        }
    }

    #[test]
    fn what_a_killed_daemon_left_is_replaced_and_a_living_one_is_not() {
        let directory = Directory::new("left");
        let first = Listeners::open(&directory.0).unwrap();
        assert_eq!(directory.refuses(), Some(io::ErrorKind::AddrInUse));
        // A killed one removes nothing, and the kernel lets its lock go.
        let paths = SocketPaths::of(&directory.0);
        drop(first);
        for path in [&paths.tenants, &paths.admin] {
            fs::write(path, "").unwrap();
            fs::write(path.with_extension("new"), "").unwrap();
        }
        let second = Listeners::open(&directory.0).unwrap();
        for path in [&paths.tenants, &paths.admin] {
            let connected = socket::connect(path, Duration::from_secs(1));
            assert!(connected.is_ok(), "{}", path.display());
        }
        drop(second);
        assert!(!paths.tenants.exists() && !paths.admin.exists());
    }
}
