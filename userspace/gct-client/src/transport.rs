// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The two ways to a tree: a directory that shows it, and the daemon's socket.

use std::fmt::Debug;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// Longest file that is read. `group.procs` of the most members is shorter.
const READ_BYTES_MAX: u64 = 1 << 20;

/// Reads and writes files by their path below the root. Errors are those of the files.
pub(crate) trait Transport: Debug + Send + Sync {
    /// Where the tree is, for messages.
    fn place(&self) -> &Path;

    /// Is there a tree at all?
    fn check(&self) -> io::Result<()>;

    /// Is there such a directory?
    fn is_dir(&self, path: &Path) -> bool;

    /// Names of the directories in a directory.
    fn dirs(&self, path: &Path) -> io::Result<Vec<String>>;

    /// All of a file.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;

    /// Writes a text at once.
    fn write(&self, path: &Path, text: &[u8]) -> io::Result<()>;

    /// Could a file be written? Nothing is.
    fn may_write(&self, path: &Path) -> io::Result<()>;
}

/// A directory: the kernel's, a mount point of the daemon, or one of a test.
#[derive(Debug)]
pub(crate) struct Directory(pub(crate) PathBuf);

impl Transport for Directory {
    fn place(&self) -> &Path {
        &self.0
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
            // A directory may go while it is listed; what has no type any more is gone.
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
        // Opening writes nothing: the kernel acts on write(2) only.
        let opened = OpenOptions::new().write(true).open(self.0.join(path));
        opened.map(|_| ())
    }
}
