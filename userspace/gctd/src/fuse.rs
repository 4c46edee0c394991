// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Mounts the tree as a filesystem, for `echo` and `cat`.
//!
//! The text of a file is read when the file is opened, so parts of it belong to one moment. Each
//! write is one whole value. The kernel caches nothing.

mod inodes;

use crate::daemon::OnDone;
use crate::peer::Credentials;
use crate::server::Server;
use crate::shared::SharedDaemon;
use crate::tree::Node;
use fuser::{
    BackgroundSession, BsdFileFlags, Config, FileAttr, FileHandle, FileType, Filesystem,
    FopenFlags, Generation, INodeNo, LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData,
    ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request, SessionACL, TimeOrNow,
    WriteFlags,
};
use gct_core::iface::files::Mode;
use inodes::Inodes;
use rustix::io::Errno;
use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

/// How long the kernel may cache names and attributes: the tree may change at any time.
const TIME_TO_LIVE: Duration = Duration::ZERO;

/// A mounted tree. Dropping it unmounts the tree.
#[derive(Debug)]
pub struct Mount {
    _session: BackgroundSession,
}

impl Mount {
    /// Mounts the tree of a server.
    ///
    /// # Errors
    ///
    /// Those of the kernel, without FUSE or without permission for it.
    pub fn new(server: &Server, directory: &Path) -> io::Result<Self> {
        let mut config = Config::default();
        config.mount_options = vec![
            MountOption::FSName("gctgroup".to_owned()),
            MountOption::DefaultPermissions,
            MountOption::NoExec,
            MountOption::NoSuid,
            MountOption::NoDev,
        ];
        config.acl = SessionACL::All;
        let tree = TreeFs {
            daemon: server.daemon(),
            inodes: Mutex::new(Inodes::new()),
        };
        let session = fuser::spawn_mount(tree, directory, &config)?;
        Ok(Self { _session: session })
    }
}

/// The filesystem.
struct TreeFs {
    daemon: SharedDaemon,
    inodes: Mutex<Inodes>,
}

fn fuse_errno(errno: Errno) -> fuser::Errno {
    fuser::Errno::from_i32(errno.raw_os_error())
}

impl TreeFs {
    fn inodes(&self) -> MutexGuard<'_, Inodes> {
        self.inodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self, inode: INodeNo) -> Result<String, Errno> {
        let inodes = self.inodes();
        inodes.path(inode).map(str::to_owned).ok_or(Errno::STALE)
    }

    fn attributes(&self, inode: INodeNo, path: &str) -> Result<FileAttr, Errno> {
        let node = self.daemon.lock().find(path)?;
        let (kind, mode) = match node {
            Node::Dir(_) => (FileType::Directory, 0o755),
            Node::File(entry, _) => (FileType::RegularFile, entry.mode.bits()),
        };
        Ok(FileAttr {
            ino: inode,
            size: 0,
            blocks: 0,
            atime: SystemTime::UNIX_EPOCH,
            mtime: SystemTime::UNIX_EPOCH,
            ctime: SystemTime::UNIX_EPOCH,
            crtime: SystemTime::UNIX_EPOCH,
            kind,
            perm: mode,
            nlink: 1,
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            rdev: 0,
            blksize: 4096,
            flags: 0,
        })
    }

    /// Looks up a name in a directory.
    fn entry(&self, parent: INodeNo, name: &OsStr) -> Result<FileAttr, Errno> {
        let parent = self.path(parent)?;
        let path = format!("{parent}/{}", name.to_str().ok_or(Errno::NOENT)?);
        let found = self.attributes(INodeNo(0), &path)?;
        // Counted only on success: the kernel forgets only inodes that a lookup returned.
        let ino = self.inodes().look_up(path);
        Ok(FileAttr { ino, ..found })
    }

    /// Opens a file and reads its text. Returns the file handle.
    fn open_file(&self, inode: INodeNo, flags: OpenFlags) -> Result<u64, Errno> {
        let path = self.path(inode)?;
        let mut daemon = self.daemon.lock();
        let Node::File(entry, _) = daemon.find(&path)? else {
            return Err(Errno::ISDIR);
        };
        let writes = flags.0 & libc::O_ACCMODE == libc::O_WRONLY;
        // As in debugfs, a write-only file can be opened and fails when it is read. Root passes
        // the mode bits.
        let text = match writes || entry.mode == Mode::Write {
            true => String::new(),
            false => daemon.read(&path)?,
        };
        drop(daemon);
        Ok(self.inodes().open(text))
    }

    /// Reads a part of an open file.
    fn read_at(
        &self,
        inode: INodeNo,
        handle: u64,
        offset: u64,
        size: u32,
    ) -> Result<Vec<u8>, Errno> {
        let path = self.path(inode)?;
        if let Ok(Node::File(entry, _)) = self.daemon.lock().find(&path) {
            if entry.mode == Mode::Write {
                return Err(Errno::ACCESS);
            }
        }
        let inodes = self.inodes();
        let text = inodes.text(handle).ok_or(Errno::BADF)?.as_bytes();
        let rest = usize::try_from(offset).ok().and_then(|at| text.get(at..));
        let rest = rest.unwrap_or_default();
        let size = usize::try_from(size).unwrap_or(usize::MAX).min(rest.len());
        Ok(rest.get(..size).unwrap_or_default().to_vec())
    }

    /// Returns the entries of a directory.
    fn names(&self, inode: INodeNo) -> Result<Vec<(String, FileType)>, Errno> {
        let path = self.path(inode)?;
        let daemon = self.daemon.lock();
        let Node::Dir(dir) = daemon.find(&path)? else {
            return Err(Errno::NOTDIR);
        };
        let (dirs, files) = daemon.names(dir);
        let own = [".", ".."].map(str::to_owned).into_iter().chain(dirs);
        let dirs = own.map(|name| (name, FileType::Directory));
        let files = files
            .iter()
            .map(|e| (e.name.to_owned(), FileType::RegularFile));
        Ok(dirs.chain(files).collect())
    }
}

impl Filesystem for TreeFs {
    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.entry(parent, name) {
            Ok(attributes) => reply.entry(&TIME_TO_LIVE, &attributes, Generation(0)),
            Err(errno) => reply.error(fuse_errno(errno)),
        }
    }

    fn forget(&self, _req: &Request, ino: INodeNo, nlookup: u64) {
        self.inodes().forget(ino, nlookup);
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        match self.path(ino).and_then(|path| self.attributes(ino, &path)) {
            Ok(attributes) => reply.attr(&TIME_TO_LIVE, &attributes),
            Err(errno) => reply.error(fuse_errno(errno)),
        }
    }

    /// Accepts truncation, which a shell's `>` requests. Refuses every other change.
    fn setattr(
        &self,
        req: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        _size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        if mode.is_some() || uid.is_some() || gid.is_some() {
            return reply.error(fuser::Errno::EPERM);
        }
        self.getattr(req, ino, fh, reply);
    }

    fn open(&self, _req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        match self.open_file(ino, flags) {
            Ok(handle) => reply.opened(FileHandle(handle), FopenFlags::FOPEN_DIRECT_IO),
            Err(errno) => reply.error(fuse_errno(errno)),
        }
    }

    fn read(
        &self,
        _req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.read_at(ino, fh.0, offset, size) {
            Ok(part) => reply.data(&part),
            Err(errno) => reply.error(fuse_errno(errno)),
        }
    }

    fn write(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        _offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let writer = Credentials {
            pid: req.pid(),
            uid: req.uid(),
        };
        let path = match self.path(ino) {
            Ok(path) => path,
            Err(errno) => return reply.error(fuse_errno(errno)),
        };
        let mut daemon = self.daemon.lock();
        if daemon.find(&path).is_err() {
            // The directory was removed after the file had been opened.
            return reply.error(fuser::Errno::ENODEV);
        }
        let length = u32::try_from(data.len()).unwrap_or(u32::MAX);
        let respond = move |reply: ReplyWrite, outcome| match outcome {
            Ok(()) => reply.written(length),
            Err(errno) => reply.error(fuse_errno(errno)),
        };
        let mut reply = Some(reply);
        let on_done = || -> OnDone {
            let reply = reply.take();
            Box::new(move |outcome| {
                if let Some(reply) = reply {
                    respond(reply, outcome);
                }
            })
        };
        let written = daemon.write(&path, data, writer, on_done);
        if let (Some(outcome), Some(reply)) = (written, reply) {
            respond(reply, outcome);
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn release(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.inodes().close(fh.0);
        reply.ok();
    }

    fn readdir(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let names = match self.names(ino) {
            Ok(names) => names,
            Err(errno) => return reply.error(fuse_errno(errno)),
        };
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        for ((name, kind), next) in names.into_iter().zip(1..).skip(from) {
            // A lookup numbers the inode later.
            if reply.add(INodeNo(u64::MAX), next, kind, name) {
                break;
            }
        }
        reply.ok();
    }
}
