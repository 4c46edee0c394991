// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Names the two sockets of a daemon: the tenants' socket and the administrators' socket.
//!
//! The tenants' socket lies in a directory of its own. A container mounts that directory and does
//! not get the administrators' socket with it.

use std::env;
use std::path::{Path, PathBuf};

/// The daemon's directory, unless configured otherwise.
pub const DEFAULT_DIRECTORY: &str = "/run/gctgroup";

/// The environment variable that names another directory, and with it both sockets.
pub const DIRECTORY_VARIABLE: &str = "GCTGROUP_DIR";

/// The environment variable that names another tenants' socket.
pub const SOCKET_VARIABLE: &str = "GCTGROUP_SOCKET";

/// The directory for containers, below the daemon's.
const TENANTS_FOLDER: &str = "tenants";
const TENANTS_SOCKET: &str = "gctd.sock";
const ADMIN_SOCKET: &str = "admin.sock";

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
        let tenants = env::var_os(SOCKET_VARIABLE).map_or(default.tenants, PathBuf::from);
        Self { tenants, ..default }
    }
}

/// Returns the directory that the environment names, or the default one.
pub fn directory() -> PathBuf {
    let path = env::var_os(DIRECTORY_VARIABLE).unwrap_or_else(|| DEFAULT_DIRECTORY.into());
    path.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tenants_directory_does_not_contain_the_admin_socket() {
        let paths = SocketPaths::of(Path::new("/x"));
        let folder = paths.tenants.parent().unwrap();
        assert!(folder.starts_with("/x") && folder != Path::new("/x"));
        assert!(!paths.admin.starts_with(folder));
    }
}
