// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Reading and writing the tree.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use gct_core::error::Error as CoreError;
use gct_core::iface::files::{self, Entry, Mode};
use gct_core::iface::parse::{self, Version};
use gct_core::iface::value::Format;
use gct_core::iface::File as FileId;
use gctd_ipc::paths::SocketPaths;

use crate::daemon::Daemon;
use crate::transport::{Directory, Transport};
use crate::{Content, Error, Owner, Refusal, Target};

/// Where the kernel module shows the tree.
pub const DEFAULT_ROOT: &str = "/sys/kernel/debug/gctgroup";

/// How long a directory may take to appear or go: another thread of the kernel may be at it.
const DIRECTORY_WAIT: Duration = Duration::from_secs(1);
const DIRECTORY_POLL: Duration = Duration::from_millis(5);

/// A gctgroup tree.
#[derive(Clone, Debug)]
pub struct Tree {
    transport: Arc<dyn Transport>,
}

impl Tree {
    /// The tree at `root`; nothing is touched yet.
    #[must_use]
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self {
            transport: Arc::new(Directory(root.into())),
        }
    }

    /// The tree of the daemon that listens at these sockets; nothing is connected yet.
    #[must_use]
    pub fn of_daemon(paths: SocketPaths) -> Self {
        Self {
            transport: Arc::new(Daemon::new(paths)),
        }
    }

    /// Its directory or its tenants' socket.
    #[must_use]
    pub fn root(&self) -> &Path {
        self.transport.place()
    }

    /// The path of a file, for messages.
    #[must_use]
    pub fn path(&self, target: &Target, entry: &Entry) -> PathBuf {
        self.root().join(below(target, entry))
    }

    /// Release and form of whoever shows the tree.
    ///
    /// # Errors
    ///
    /// [`Error::NoTree`], [`Error::Permission`], [`Error::Read`], [`Error::Form`].
    pub fn version(&self) -> Result<Version, Error> {
        self.directory(&Target::Root)?;
        let path = below(&Target::Root, files::entry(FileId::Version));
        let text = self.bytes(&path)?;
        parse::version(&text).map_err(|error| form(self.root().join(path), &text, error))
    }

    /// GPUs, by index.
    ///
    /// # Errors
    ///
    /// [`Error::NoTree`], [`Error::Permission`], [`Error::Read`].
    pub fn gpus(&self) -> Result<Vec<u32>, Error> {
        self.directory(&Target::Root)?;
        self.numbers(Path::new("gpus"))
    }

    /// Named groups, then processes, in order.
    ///
    /// # Errors
    ///
    /// As [`Tree::gpus`].
    pub fn owners(&self) -> Result<Vec<Owner>, Error> {
        self.directory(&Target::Root)?;
        let mut owners: Vec<Owner> = self
            .names(Path::new(""))?
            .iter()
            .filter_map(|name| name.parse().ok())
            .collect();
        owners.sort();
        Ok(owners)
    }

    /// The GPUs that an owner has directories for.
    ///
    /// # Errors
    ///
    /// [`Error::NoTarget`] and as [`Tree::gpus`].
    pub fn nodes(&self, owner: &Owner) -> Result<Vec<u32>, Error> {
        let target = Target::Owner(owner.clone());
        self.numbers(&self.directory(&target)?)
    }

    /// Reads a file.
    ///
    /// # Errors
    ///
    /// [`Error::NoTarget`], [`Error::NoFile`], [`Error::Access`], [`Error::Permission`], [`Error::Read`] and
    /// [`Error::Form`].
    pub fn read(&self, target: &Target, entry: &'static Entry) -> Result<Content, Error> {
        if entry.mode == Mode::Write {
            return Err(Error::Access {
                file: entry.name,
                can_be: "written",
            });
        }
        self.check(target, entry)?;
        let path = below(target, entry);
        let text = self.bytes(&path)?;
        Content::parse(entry.format, &text)
            .map_err(|error| form(self.root().join(path), &text, error))
    }

    /// Checks a text as the file would; nothing is written.
    ///
    /// # Errors
    ///
    /// [`Error::Value`], [`Error::Access`].
    pub fn parse(entry: &'static Entry, text: &str) -> Result<Content, Error> {
        if entry.mode == Mode::Read {
            return Err(Error::Access {
                file: entry.name,
                can_be: "read",
            });
        }
        // A write of a Pids file is one pid, a read is a list; both parse as the list.
        Content::parse(entry.format, text.as_bytes()).map_err(|error| Error::Value {
            file: entry.name,
            text: text.to_owned(),
            hint: match entry.range {
                "" => String::new(),
                range => format!(" (its range is {range})"),
            },
            source: Refusal::Core(error),
        })
    }

    /// Writes a value, reads it back and returns what is in force.
    ///
    /// # Errors
    ///
    /// [`Error::Mismatch`] when what is in force is not what was written; the errors of [`Tree::parse`] before
    /// anything is written; [`Error::Write`] when the kernel refuses; and those of [`Tree::read`].
    pub fn set(
        &self,
        target: &Target,
        entry: &'static Entry,
        text: &str,
    ) -> Result<Content, Error> {
        let wanted = Self::parse(entry, text)?;
        self.write(target, entry, &wanted.to_string())?;
        let found = self.read(target, entry)?;
        // Any number written to this file means "now", so what it then reads is another.
        if found == wanted || entry.file == FileId::GmemPeak {
            return Ok(found);
        }
        Err(Error::Mismatch {
            path: self.path(target, entry),
            wanted: wanted.to_string(),
            found: found.to_string(),
        })
    }

    /// Makes a named group and waits until its directory is there.
    ///
    /// # Errors
    ///
    /// [`Error::Value`] for the name, [`Error::Write`] when the kernel refuses, [`Error::Directory`].
    pub fn create(&self, name: &str) -> Result<(), Error> {
        self.command("create", name, true, "did not appear")
    }

    /// Removes a named group and waits until its directory is gone.
    ///
    /// # Errors
    ///
    /// As [`Tree::create`].
    pub fn remove(&self, name: &str) -> Result<(), Error> {
        self.command("remove", name, false, "stayed")
    }

    /// Moves a process, and the children that it will have, into a group; 0 is the calling process.
    ///
    /// # Errors
    ///
    /// Those of writing and of reading back; [`Error::Mismatch`] when the process is not listed then.
    pub fn attach_pid(&self, group: &str, pid: u32) -> Result<(), Error> {
        let target = Target::Owner(Owner::Group(group.to_owned()));
        let entry = files::entry(FileId::GroupProcs);
        self.write(&target, entry, &pid.to_string())?;
        let wanted = match pid {
            0 => std::process::id(),
            pid => pid,
        };
        let found = self.read(&target, entry)?;
        match &found {
            Content::Pids(pids) if pids.contains(&wanted) => Ok(()),
            // It ended meanwhile.
            _ if !Path::new("/proc").join(wanted.to_string()).exists() => Ok(()),
            _ => Err(Error::Mismatch {
                path: self.path(&target, entry),
                wanted: wanted.to_string(),
                found: found.to_string(),
            }),
        }
    }

    /// Makes everybody in a cgroup and below it a member of a group; `none` ends that.
    ///
    /// # Errors
    ///
    /// As [`Tree::set`].
    pub fn attach_cgroup(&self, group: &str, path: &str) -> Result<(), Error> {
        let target = Target::Owner(Owner::Group(group.to_owned()));
        self.set(&target, files::entry(FileId::GroupCgroup), path)
            .map(|_| ())
    }

    /// May groups be made here?
    ///
    /// # Errors
    ///
    /// What the system says of writing `control`.
    pub fn may_control(&self) -> io::Result<()> {
        let control = below(&Target::Root, files::entry(FileId::Control));
        self.transport.may_write(&control)
    }

    fn command(
        &self,
        verb: &str,
        name: &str,
        there: bool,
        what: &'static str,
    ) -> Result<(), Error> {
        let entry = files::entry(FileId::Control);
        let text = format!("{verb} {name}");
        parse::command(text.as_bytes()).map_err(|error| Error::Value {
            file: entry.name,
            text: text.clone(),
            hint: " (a name is a letter or underscore, then up to 63 letters, digits, '.', '_' and '-')".to_owned(),
            source: Refusal::Core(error),
        })?;
        self.write(&Target::Root, entry, &text)?;
        let started = Instant::now();
        while self.transport.is_dir(Path::new(name)) != there {
            if started.elapsed() > DIRECTORY_WAIT {
                return Err(Error::Directory {
                    path: self.path(&Target::Root, entry),
                    name: name.to_owned(),
                    what,
                });
            }
            std::thread::sleep(DIRECTORY_POLL);
        }
        Ok(())
    }

    /// Writes a text with its newline in one system call, as the kernel requires.
    fn write(&self, target: &Target, entry: &'static Entry, text: &str) -> Result<(), Error> {
        self.check(target, entry)?;
        let path = self.path(target, entry);
        let line = format!("{text}\n");
        let written = self.transport.write(&below(target, entry), line.as_bytes());
        written.map_err(|error| match error.kind() {
            io::ErrorKind::PermissionDenied => Error::Permission {
                path: path.clone(),
                source: error,
            },
            _ => Error::Write {
                path: path.clone(),
                text: text.to_owned(),
                source: write_refusal(entry, error),
            },
        })
    }

    /// The directory of a target, which must exist and have the file.
    fn check(&self, target: &Target, entry: &Entry) -> Result<(), Error> {
        self.directory(target)?;
        match target.place() {
            Some(place) if place == entry.place => Ok(()),
            _ => Err(Error::NoFile {
                target: target.to_string(),
                file: entry.name.to_owned(),
            }),
        }
    }

    fn directory(&self, target: &Target) -> Result<PathBuf, Error> {
        if let Err(source) = self.transport.check() {
            let root = self.root().to_owned();
            return Err(match source.kind() {
                io::ErrorKind::PermissionDenied => Error::Permission { path: root, source },
                _ => Error::NoTree { root, source },
            });
        }
        let path = target.path();
        match self.transport.is_dir(&path) {
            true => Ok(path),
            false => Err(Error::NoTarget {
                target: target.to_string(),
                root: self.root().to_owned(),
            }),
        }
    }

    fn bytes(&self, path: &Path) -> Result<Vec<u8>, Error> {
        let text = self.transport.read(path);
        text.map_err(|error| unreadable(&self.root().join(path), error))
    }

    /// Names of the directories in a directory.
    fn names(&self, path: &Path) -> Result<Vec<String>, Error> {
        let names = self.transport.dirs(path);
        names.map_err(|error| unreadable(&self.root().join(path), error))
    }

    fn numbers(&self, path: &Path) -> Result<Vec<u32>, Error> {
        let mut numbers: Vec<u32> = self
            .names(path)?
            .iter()
            .filter_map(|name| name.parse().ok())
            .collect();
        numbers.sort_unstable();
        Ok(numbers)
    }
}

/// The path of a file below the root.
fn below(target: &Target, entry: &Entry) -> PathBuf {
    target.path().join(entry.name)
}

/// ENOENT from writing `control` means that no such group exists, not that the file is missing.
fn write_refusal(entry: &Entry, error: io::Error) -> Refusal {
    match error.kind() {
        io::ErrorKind::NotFound if entry.format == Format::Command => {
            Refusal::Core(CoreError::NotFound)
        }
        _ => error.into(),
    }
}

fn unreadable(path: &Path, error: io::Error) -> Error {
    let path = path.to_owned();
    match error.kind() {
        io::ErrorKind::PermissionDenied => Error::Permission {
            path,
            source: error,
        },
        _ => Error::Read {
            path,
            source: error.into(),
        },
    }
}

fn form(path: PathBuf, text: &[u8], error: CoreError) -> Error {
    Error::Form {
        path,
        text: String::from_utf8_lossy(text).trim_end().to_owned(),
        source: Refusal::Core(error),
    }
}
