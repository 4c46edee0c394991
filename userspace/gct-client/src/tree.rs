// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Reads and writes the tree.

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
use crate::kernel::Kernel;
use crate::transport::{Directory, Door, Transport};
use crate::{Content, Error, Owner, Refusal, Target};

/// The directory in which the kernel module shows the tree.
pub const DEFAULT_ROOT: &str = "/sys/kernel/debug/gctgroup";

/// The environment variable, and its value, of containers that the kernel mode limits. They have
/// no tree.
pub const KERNEL_CONTAINER: (&str, &str) = ("GCTGROUP_MODE", "kernel");

/// Most time until a directory appears or disappears. Another thread of the kernel creates it.
const DIRECTORY_WAIT: Duration = Duration::from_secs(1);
const DIRECTORY_POLL: Duration = Duration::from_millis(5);

/// A gctgroup tree.
#[derive(Clone, Debug)]
pub struct Tree {
    transport: Arc<dyn Transport>,
}

impl Tree {
    /// Takes the tree at `root`, without any access yet.
    #[must_use]
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self {
            transport: Arc::new(Directory(root.into())),
        }
    }

    /// Takes the kernel's tree, without any access yet: `root` in debugfs or, where debugfs cannot
    /// be used, `/dev/gctgroup`. If there is neither, the tree of the daemon with these sockets.
    ///
    /// Any other root than [`DEFAULT_ROOT`] is a directory and nothing else.
    #[must_use]
    pub fn of_kernel(root: impl Into<PathBuf>, daemon: Option<SocketPaths>) -> Self {
        let root = root.into();
        if root != Path::new(DEFAULT_ROOT) {
            return Self::at(root);
        }
        Self {
            transport: Arc::new(Kernel::new(root, daemon.map(Daemon::new))),
        }
    }

    /// Takes the tree of the daemon with these sockets, without connecting yet.
    #[must_use]
    pub fn of_daemon(paths: SocketPaths) -> Self {
        Self {
            transport: Arc::new(Daemon::new(paths)),
        }
    }

    /// Returns the way in which it is reached now.
    #[must_use]
    pub fn door(&self) -> Door {
        self.transport.door()
    }

    /// Returns its directory, its device, or the daemon's tenants' socket.
    #[must_use]
    pub fn root(&self) -> &Path {
        self.transport.place()
    }

    /// Returns the path of a file, for messages.
    #[must_use]
    pub fn path(&self, target: &Target, entry: &Entry) -> PathBuf {
        self.root().join(below(target, entry))
    }

    /// Returns release and ABI of the tree.
    ///
    /// # Errors
    ///
    /// [`Error::NoTree`], [`Error::Permission`], [`Error::Read`], [`Error::Form`].
    pub fn version(&self) -> Result<Version, Error> {
        let path = below(&Target::Root, files::entry(FileId::Version));
        let text = self.explain(&Target::Root, self.bytes(&path))?;
        parse::version(&text).map_err(|error| form(self.root().join(path), &text, error))
    }

    /// Returns the indices of the GPUs.
    ///
    /// # Errors
    ///
    /// [`Error::NoTree`], [`Error::Permission`], [`Error::Read`].
    pub fn gpus(&self) -> Result<Vec<u32>, Error> {
        self.explain(&Target::Root, self.numbers(Path::new("gpus")))
    }

    /// Returns the groups, then the processes, both sorted.
    ///
    /// # Errors
    ///
    /// Those of [`Tree::gpus`].
    pub fn owners(&self) -> Result<Vec<Owner>, Error> {
        let names = self.explain(&Target::Root, self.names(Path::new("")))?;
        let mut owners: Vec<Owner> = names.iter().filter_map(|name| name.parse().ok()).collect();
        owners.sort();
        Ok(owners)
    }

    /// Returns the GPUs on which an owner has a directory.
    ///
    /// # Errors
    ///
    /// [`Error::NoTarget`], and those of [`Tree::gpus`].
    pub fn pools(&self, owner: &Owner) -> Result<Vec<u32>, Error> {
        let target = Target::Owner(owner.clone());
        self.explain(&target, self.numbers(&target.path()))
    }

    /// Reads a file.
    ///
    /// # Errors
    ///
    /// [`Error::NoTarget`], [`Error::NoFile`], [`Error::Access`], [`Error::Permission`],
    /// [`Error::Read`] and [`Error::Form`].
    pub fn read(&self, target: &Target, entry: &'static Entry) -> Result<Content, Error> {
        if entry.mode == Mode::Write {
            return Err(Error::Access {
                file: entry.name,
                can_be: "written",
            });
        }
        if target.place() != Some(entry.place) {
            self.check(target, entry)?;
        }
        let path = below(target, entry);
        let text = self.explain(target, self.bytes(&path))?;
        Content::parse(entry.format, &text)
            .map_err(|error| form(self.root().join(path), &text, error))
    }

    /// Parses a text as the file would. Writes nothing.
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
        // A write of a `Pids` file is one pid, a read a list. Both parse as a list.
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

    /// Writes a value, reads it back and returns the value in force.
    ///
    /// # Errors
    ///
    /// [`Error::Mismatch`] if another value is in force, [`Error::Write`] if the kernel refuses,
    /// and those of [`Tree::parse`], before the write, and of [`Tree::read`].
    pub fn set(
        &self,
        target: &Target,
        entry: &'static Entry,
        text: &str,
    ) -> Result<Content, Error> {
        let wanted = Self::parse(entry, text)?;
        self.write(target, entry, &wanted.to_string())?;
        let found = self.read(target, entry)?;
        // Writing any number to this file resets the peak, so it reads another value.
        if found == wanted || entry.file == FileId::GmemPeak {
            return Ok(found);
        }
        Err(Error::Mismatch {
            path: self.path(target, entry),
            wanted: wanted.to_string(),
            found: found.to_string(),
        })
    }

    /// Creates a group and waits until its directory exists.
    ///
    /// # Errors
    ///
    /// [`Error::Value`] for an invalid name, [`Error::Write`] if the kernel refuses, and
    /// [`Error::Directory`].
    pub fn create(&self, name: &str) -> Result<(), Error> {
        self.command("create", name, true, "did not appear")
    }

    /// Removes a group and waits until its directory is gone.
    ///
    /// # Errors
    ///
    /// Those of [`Tree::create`].
    pub fn remove(&self, name: &str) -> Result<(), Error> {
        self.command("remove", name, false, "stayed")
    }

    /// Moves a process, with its future children, into a group; 0 is the calling process. In the
    /// user-space mode any other number is a pid of the daemon's pid namespace.
    ///
    /// # Errors
    ///
    /// [`Error::Mismatch`] if the group does not list the process afterwards, and those of the
    /// write and of the read. For 0 the group is not read.
    pub fn attach_pid(&self, group: &str, pid: u32) -> Result<(), Error> {
        let target = Target::Owner(Owner::Group(group.to_owned()));
        let entry = files::entry(FileId::GroupProcs);
        self.write(&target, entry, &pid.to_string())?;
        if pid == 0 {
            // The daemon shows pids of its own pid namespace, in which this process has another.
            return Ok(());
        }
        let found = self.read(&target, entry)?;
        match &found {
            Content::Pids(pids) if pids.contains(&pid) => Ok(()),
            // The process has ended in between.
            _ if !Path::new("/proc").join(pid.to_string()).exists() => Ok(()),
            _ => Err(Error::Mismatch {
                path: self.path(&target, entry),
                wanted: pid.to_string(),
                found: found.to_string(),
            }),
        }
    }

    /// Makes the processes of a cgroup and its descendants members of a group; `none` for no
    /// cgroup.
    ///
    /// # Errors
    ///
    /// Those of [`Tree::set`].
    pub fn attach_cgroup(&self, group: &str, path: &str) -> Result<(), Error> {
        let target = Target::Owner(Owner::Group(group.to_owned()));
        self.set(&target, files::entry(FileId::GroupCgroup), path)
            .map(|_| ())
    }

    /// Checks that the user may create groups.
    ///
    /// # Errors
    ///
    /// Those of a write to `control`.
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

    /// Writes a text and a newline in one system call, as the kernel requires.
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

    /// Checks that the target exists and has the file.
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

    /// Says of a failure whether the target or the tree is not there. A look beforehand would cost
    /// each access that succeeds another one.
    fn explain<T>(&self, target: &Target, found: Result<T, Error>) -> Result<T, Error> {
        found.map_err(|error| match error.core() {
            // The core answered, so the directory is there.
            Some(_) => error,
            None => self.directory(target).err().unwrap_or(error),
        })
    }

    /// Fails if the directory of a target does not exist.
    fn directory(&self, target: &Target) -> Result<(), Error> {
        if self.transport.is_dir(&target.path()) {
            return Ok(());
        }
        // Only now: the root lists every process, and most targets exist.
        let Err(source) = self.transport.check() else {
            return Err(Error::NoTarget {
                target: target.to_string(),
                root: self.root().to_owned(),
            });
        };
        let root = self.root().to_owned();
        Err(match source.kind() {
            io::ErrorKind::PermissionDenied => Error::Permission { path: root, source },
            _ => Error::NoTree { root, source },
        })
    }

    fn bytes(&self, path: &Path) -> Result<Vec<u8>, Error> {
        let text = self.transport.read(path);
        text.map_err(|error| unreadable(&self.root().join(path), error))
    }

    /// Returns the names of the directories in a directory.
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

/// Returns the path of a file below the root.
fn below(target: &Target, entry: &Entry) -> PathBuf {
    target.path().join(entry.name)
}

/// Returns the cause of a failed write. ENOENT from `control` means that the group does not exist.
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
