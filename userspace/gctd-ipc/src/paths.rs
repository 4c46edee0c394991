// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Names the two sockets of a daemon, the tenants' socket and the administrators' socket, and
//! finds the preload library.
//!
//! The tenants' socket lies in a directory of its own. A container mounts that directory and does
//! not get the administrators' socket with it.

use crate::environment::variable;
use std::io;
use std::path::{Path, PathBuf};

/// The daemon's directory, unless configured otherwise.
pub const DEFAULT_DIRECTORY: &str = "/run/gctgroup";

/// The environment variable that names another directory, and with it both sockets.
pub const DIRECTORY_VARIABLE: &str = "GCTGROUP_DIR";

/// The environment variable that names another tenants' socket.
pub const SOCKET_VARIABLE: &str = "GCTGROUP_SOCKET";

/// The environment variable with the group in which `gctctl run` has started a program.
pub const GROUP_VARIABLE: &str = "GCTGROUP_GROUP";

/// The directory for containers, below the daemon's.
const TENANTS_FOLDER: &str = "tenants";
const TENANTS_SOCKET: &str = "gctd.sock";
const ADMIN_SOCKET: &str = "admin.sock";

/// The name of the preload library.
pub const LIBRARY: &str = "libgct_preload.so";

/// Where programs find the library, as seen from their own folder: in a folder of programs that
/// were built, below the prefix of an installation, and in a prefix that packs all libraries.
const LIBRARY_FOLDERS: [&str; 3] = ["", "../lib/gctgroup", "../lib"];

/// The paths of both sockets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketPaths {
    /// Serves reads of the tree, and messages of tenants.
    pub tenants: PathBuf,
    /// Serves reads and writes of the tree.
    pub admin: PathBuf,
}

impl SocketPaths {
    /// Returns the sockets in a daemon's directory.
    pub fn of(directory: &Path) -> Self {
        Self {
            tenants: directory.join(TENANTS_FOLDER).join(TENANTS_SOCKET),
            admin: directory.join(ADMIN_SOCKET),
        }
    }

    /// Returns the sockets that the environment names, or the default ones.
    pub fn from_environment() -> Self {
        let default = Self::of(&directory());
        let tenants = variable(SOCKET_VARIABLE).map_or(default.tenants, PathBuf::from);
        Self { tenants, ..default }
    }
}

/// Returns the directory that the environment names, or the default one.
pub fn directory() -> PathBuf {
    let path = variable(DIRECTORY_VARIABLE).unwrap_or_else(|| DEFAULT_DIRECTORY.into());
    path.into()
}

/// Returns what the text of an `/etc/ld.so.preload` names, as the loader reads it: up to a NUL.
pub fn preloads(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
    let lines = text.split(|byte| *byte == b'\n');
    let named = lines.flat_map(|line| {
        let line = line.split(|byte| *byte == b'#').next().unwrap_or_default();
        line.split(|byte| b" \t:".contains(byte))
    });
    named.filter(|path| !path.is_empty())
}

/// Returns the preload library that is installed with a program.
///
/// # Errors
///
/// Names the places where there is none.
pub fn library_of(program: &Path) -> io::Result<PathBuf> {
    let own = program.parent().unwrap_or(Path::new("/"));
    let places = LIBRARY_FOLDERS.map(|folder| own.join(folder).join(LIBRARY));
    let found = places.iter().find_map(|path| path.canonicalize().ok());
    found.ok_or_else(|| {
        let places = places.map(|path| path.display().to_string());
        let message = format!(
            "There is no {}: name the library with --preload.",
            places.join(" and no ")
        );
        io::Error::new(io::ErrorKind::NotFound, message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::env;
    use std::fs;

    #[test]
    fn the_tenants_directory_does_not_contain_the_admin_socket() {
        let paths = SocketPaths::of(Path::new("/x"));
        let folder = paths.tenants.parent().unwrap();
        assert!(folder.starts_with("/x") && folder != Path::new("/x"));
        assert!(!paths.admin.starts_with(folder));
    }

    #[test]
    fn the_library_is_found_where_it_is_installed() {
        let name = format!("gctd-ipc-library-{}", std::process::id());
        let prefix = env::temp_dir().join(name);
        let program = prefix.join("sbin/program");
        fs::create_dir_all(program.parent().unwrap()).unwrap();
        let error = library_of(&program).unwrap_err().to_string();
        assert!(error.contains("sbin/../lib/gctgroup/libgct"), "{error}");
        assert!(error.contains("--preload"), "{error}");
        // The nearest one is the program's.
        let mut found = Vec::new();
        for folder in ["lib", "lib/gctgroup", "sbin"] {
            let library = prefix.join(folder).join(LIBRARY);
            fs::create_dir_all(library.parent().unwrap()).unwrap();
            fs::write(&library, "").unwrap();
            found.push((
                library.canonicalize().unwrap(),
                library_of(&program).unwrap(),
            ));
        }
        fs::remove_dir_all(&prefix).unwrap();
        for (there, found) in found {
            assert_eq!(found, there);
        }
    }
}
