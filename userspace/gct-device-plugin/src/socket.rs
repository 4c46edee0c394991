// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Serves gRPC at sockets in the kubelet's folders, which a kubelet may empty.

use std::fs;
use std::future::Future;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use tokio::net::UnixListener;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnixListenerStream;

/// Tells a file from others that had its name.
pub type Identity = (u64, u64, i64, i64);

/// Returns the identity of the file at a path.
pub fn identity(path: &Path) -> Option<Identity> {
    let file = fs::metadata(path).ok()?;
    Some((file.dev(), file.ino(), file.ctime(), file.ctime_nsec()))
}

/// Returns whether an error says that folders which exist can only be read. So does a service of
/// systemd see what was made after it started, such as the folders of a node's first kubelet. In a
/// new start it can write to them.
pub fn needs_new_start(error: &io::Error, folders: &[&Path]) -> bool {
    let exist = folders.iter().all(|folder| folder.is_dir());
    exist && error.kind() == io::ErrorKind::ReadOnlyFilesystem
}

/// Says why a program ends for such an error.
pub const NEW_START: &str = "it was made after this program, which ends to be started anew";

/// A server at a socket. Dropping it stops the server and removes its socket.
#[derive(Debug)]
pub struct Serving {
    path: PathBuf,
    file: Option<Identity>,
    task: JoinHandle<()>,
}

impl Serving {
    /// Binds a socket, in place of a file that is there, and runs the server that `serve` makes.
    ///
    /// # Errors
    ///
    /// Those of the file system.
    pub fn start<F>(path: PathBuf, serve: impl FnOnce(UnixListenerStream) -> F) -> io::Result<Self>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(&path)?;
        let file = identity(&path);
        let task = tokio::spawn(serve(UnixListenerStream::new(listener)));
        Ok(Self { path, file, task })
    }

    /// Returns whether the server runs and its socket is the file that it made.
    pub fn is_intact(&self) -> bool {
        self.file.is_some() && identity(&self.path) == self.file && !self.task.is_finished()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.task.abort();
        // Another's file of that name stays.
        if self.file.is_some() && identity(&self.path) == self.file {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_that_are_not_there_yet_need_no_new_start() {
        let error = io::Error::from(io::ErrorKind::ReadOnlyFilesystem);
        let (there, later) = (Path::new("/"), Path::new("/no/kubelet"));
        assert!(needs_new_start(&error, &[there]));
        assert!(!needs_new_start(&error, &[there, later]));
        let other = io::Error::from(io::ErrorKind::PermissionDenied);
        assert!(!needs_new_start(&other, &[there]));
    }
}
