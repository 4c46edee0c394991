// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Accesses the files of a tree: in a directory, through a device, or through the daemon.

use std::fmt::Debug;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// Most bytes that are read of a file. `group.procs` with the most members is shorter.
const READ_BYTES_MAX: u64 = 1 << 20;

/// The way in which a tree is reached.
#[derive(Debug)]
pub enum Door {
    /// A directory: debugfs, or another one.
    Directory,
    /// The device of the patched driver. With the reason why debugfs cannot be used, if it was
    /// looked for.
    Device(Option<io::Error>),
    /// The sockets of the daemon.
    Daemon,
}

/// Reads and writes files by their path below the root.
pub(crate) trait Transport: Debug + Send + Sync {
    /// Returns where the tree is, for messages.
    fn place(&self) -> &Path;

    /// Returns the way in which the tree is reached.
    fn door(&self) -> Door;

    /// Fails if there is no tree.
    fn check(&self) -> io::Result<()>;

    /// Returns whether a directory exists.
    fn is_dir(&self, path: &Path) -> bool;

    /// Returns the names of the directories in a directory.
    fn dirs(&self, path: &Path) -> io::Result<Vec<String>>;

    /// Returns the content of a file.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;

    /// Writes a text in one system call or message.
    fn write(&self, path: &Path, text: &[u8]) -> io::Result<()>;

    /// Fails if the user may not write a file. Writes nothing.
    fn may_write(&self, path: &Path) -> io::Result<()>;
}

/// A directory: the kernel's, the daemon's mount, or one of a test.
#[derive(Debug)]
pub(crate) struct Directory(pub(crate) PathBuf);

impl Transport for Directory {
    fn place(&self) -> &Path {
        &self.0
    }

    fn door(&self) -> Door {
        Door::Directory
    }

    fn check(&self) -> io::Result<()> {
        match fs::metadata(&self.0)?.is_dir() {
            true => Ok(()),
            false => Err(io::ErrorKind::NotADirectory.into()),
        }
    }

    fn is_dir(&self, path: &Path) -> bool {
        self.0.join(path).is_dir()
    }

    fn dirs(&self, path: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(self.0.join(path))? {
            let entry = entry?;
            // A directory that was removed while the list was read has no type.
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                names.extend(entry.file_name().into_string());
            }
        }
        Ok(names)
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        File::open(self.0.join(path))?
            .take(READ_BYTES_MAX)
            .read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn write(&self, path: &Path, text: &[u8]) -> io::Result<()> {
        let mut file = OpenOptions::new()
            .write(true)
            .truncate(true)
            .open(self.0.join(path))?;
        match file.write(text)? == text.len() {
            true => Ok(()),
            false => Err(io::ErrorKind::WriteZero.into()),
        }
    }

    fn may_write(&self, path: &Path) -> io::Result<()> {
        // Opening has no effect: the kernel acts on write(2) only.
        let opened = OpenOptions::new().write(true).open(self.0.join(path));
        opened.map(|_| ())
    }
}
