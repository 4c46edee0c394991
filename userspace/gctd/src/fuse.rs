// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The tree as a filesystem, for those who use `echo` and `cat`.
//!
//! A text is taken when its file is opened, so that what is read in parts is of one moment. Each
//! write is whole. Nothing is cached by the kernel.

use crate::authority::Writer;
use crate::daemon::Daemon;
use crate::server::{lock, Server};
use crate::tree::Node;
use crate::trial::Answer;
use fuser::{
    BackgroundSession, BsdFileFlags, Config, Errno, FileAttr, FileHandle, FileType, Filesystem,
    FopenFlags, Generation, INodeNo, LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData,
    ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request, SessionACL, TimeOrNow,
    WriteFlags,
};
use gct_core::iface::files::Mode;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

/// Directories and files may change at any time.
const TIME_TO_LIVE: Duration = Duration::ZERO;

/// A mounted tree; it is unmounted when the value goes.
#[derive(Debug)]
pub struct Mount {
    _session: BackgroundSession,
}

impl Mount {
    /// Mounts the tree of a server.
    ///
    /// # Errors
    ///
    /// The kernel's, where there is no FUSE or no permission for it.
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
        let tree = Shown {
            daemon: server.daemon(),
            open: Mutex::new(Open::new()),
        };
        let session = fuser::spawn_mount(tree, directory, &config)?;
        Ok(Self { _session: session })
    }
}

/// What the kernel holds.
#[derive(Debug)]
struct Open {
    paths: HashMap<u64, (String, u64)>,
    numbers: HashMap<String, u64>,
    texts: HashMap<u64, String>,
    last: u64,
}

impl Open {
    fn new() -> Self {
        let root = INodeNo::ROOT.0;
        Self {
            paths: HashMap::from([(root, (String::new(), 1))]),
            numbers: HashMap::from([(String::new(), root)]),
            texts: HashMap::new(),
            last: root,
        }
    }

    /// The number of a path, which the kernel knows once more.
    fn look_up(&mut self, path: String) -> u64 {
        if let Some(number) = self.numbers.get(&path) {
            if let Some((_, count)) = self.paths.get_mut(number) {
                *count += 1;
            }
            return *number;
        }
        self.last += 1;
        self.numbers.insert(path.clone(), self.last);
        self.paths.insert(self.last, (path, 1));
        self.last
    }

    fn forget(&mut self, number: u64, times: u64) {
        let Some((_, count)) = self.paths.get_mut(&number) else {
            return;
        };
        *count = count.saturating_sub(times);
        if *count == 0 && number != INodeNo::ROOT.0 {
            if let Some((path, _)) = self.paths.remove(&number) {
                self.numbers.remove(&path);
            }
        }
    }
}

struct Shown {
    daemon: Arc<Mutex<Daemon>>,
    open: Mutex<Open>,
}

fn errno(number: i32) -> Errno {
    Errno::from_i32(number)
}

impl Shown {
    fn open(&self) -> std::sync::MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self, number: INodeNo) -> Result<String, i32> {
        let open = self.open();
        let found = open.paths.get(&number.0).map(|(path, _)| path.clone());
        found.ok_or(libc::ESTALE)
    }

    fn attributes(&self, number: u64, path: &str) -> Result<FileAttr, i32> {
        let node = lock(&self.daemon).find(path)?;
        let (kind, mode) = match node {
            Node::Dir(_) => (FileType::Directory, 0o755),
            Node::File(entry, _) => (FileType::RegularFile, entry.mode.bits()),
        };
        Ok(FileAttr {
            ino: INodeNo(number),
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

    fn entry(&self, parent: INodeNo, name: &OsStr) -> Result<FileAttr, i32> {
        let parent = self.path(parent)?;
        let path = format!("{parent}/{}", name.to_str().ok_or(libc::ENOENT)?);
        let found = self.attributes(0, &path)?;
        // The kernel will forget only what it is told of.
        let ino = INodeNo(self.open().look_up(path));
        Ok(FileAttr { ino, ..found })
    }

    fn take_text(&self, number: INodeNo, flags: OpenFlags) -> Result<u64, i32> {
        let path = self.path(number)?;
        let mut daemon = lock(&self.daemon);
        let Node::File(entry, _) = daemon.find(&path)? else {
            return Err(libc::EISDIR);
        };
        let writes = flags.0 & libc::O_ACCMODE == libc::O_WRONLY;
        // What cannot be read says so when it is read, as in debugfs; root passes mode bits.
        let text = match writes || entry.mode == Mode::Write {
            true => String::new(),
            false => daemon.read(&path)?,
        };
        drop(daemon);
        let mut open = self.open();
        open.last += 1;
        let handle = open.last;
        open.texts.insert(handle, text);
        Ok(handle)
    }

    fn part(&self, number: INodeNo, handle: u64, offset: u64, size: u32) -> Result<Vec<u8>, i32> {
        let path = self.path(number)?;
        if let Ok(Node::File(entry, _)) = lock(&self.daemon).find(&path) {
            if entry.mode == Mode::Write {
                return Err(libc::EACCES);
            }
        }
        let open = self.open();
        let text = open.texts.get(&handle).ok_or(libc::EBADF)?.as_bytes();
        let rest = usize::try_from(offset).ok().and_then(|at| text.get(at..));
        let rest = rest.unwrap_or_default();
        let size = usize::try_from(size).unwrap_or(usize::MAX).min(rest.len());
        Ok(rest.get(..size).unwrap_or_default().to_vec())
    }

    fn names(&self, number: INodeNo) -> Result<Vec<(String, FileType)>, i32> {
        let path = self.path(number)?;
        let daemon = lock(&self.daemon);
        let Node::Dir(dir) = daemon.find(&path)? else {
            return Err(libc::ENOTDIR);
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

impl Filesystem for Shown {
    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.entry(parent, name) {
            Ok(attributes) => reply.entry(&TIME_TO_LIVE, &attributes, Generation(0)),
            Err(number) => reply.error(errno(number)),
        }
    }

    fn forget(&self, _req: &Request, ino: INodeNo, nlookup: u64) {
        self.open().forget(ino.0, nlookup);
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        match self
            .path(ino)
            .and_then(|path| self.attributes(ino.0, &path))
        {
            Ok(attributes) => reply.attr(&TIME_TO_LIVE, &attributes),
            Err(number) => reply.error(errno(number)),
        }
    }

    /// A shell truncates what it writes to; nothing else can be set.
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
            return reply.error(Errno::EPERM);
        }
        self.getattr(req, ino, fh, reply);
    }

    fn open(&self, _req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        match self.take_text(ino, flags) {
            Ok(handle) => reply.opened(FileHandle(handle), FopenFlags::FOPEN_DIRECT_IO),
            Err(number) => reply.error(errno(number)),
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
        match self.part(ino, fh.0, offset, size) {
            Ok(part) => reply.data(&part),
            Err(number) => reply.error(errno(number)),
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
        let writer = Writer {
            pid: req.pid(),
            uid: req.uid(),
        };
        let path = match self.path(ino) {
            Ok(path) => path,
            Err(number) => return reply.error(errno(number)),
        };
        let mut daemon = lock(&self.daemon);
        if daemon.find(&path).is_err() {
            // The directory of an open file went.
            return reply.error(Errno::ENODEV);
        }
        let length = u32::try_from(data.len()).unwrap_or(u32::MAX);
        let answer = move |reply: ReplyWrite, outcome| match outcome {
            Ok(()) => reply.written(length),
            Err(number) => reply.error(errno(number)),
        };
        let mut reply = Some(reply);
        let later = || -> Answer {
            let reply = reply.take();
            Box::new(move |outcome| {
                if let Some(reply) = reply {
                    answer(reply, outcome);
                }
            })
        };
        let written = daemon.write(&path, data, writer, later);
        if let (Some(outcome), Some(reply)) = (written, reply) {
            answer(reply, outcome);
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
        self.open().texts.remove(&fh.0);
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
            Err(number) => return reply.error(errno(number)),
        };
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        for ((name, kind), next) in names.into_iter().zip(1..).skip(from) {
            // Numbers are given when a name is looked up.
            if reply.add(INodeNo(u64::MAX), next, kind, name) {
                break;
            }
        }
        reply.ok();
    }
}
