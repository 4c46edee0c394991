// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Names the two sockets of a daemon: the tenants' door and the administrators' door.
//!
//! The tenants' socket lies in a folder of its own, which can be mounted into containers without
//! the administrators' socket.

use std::env;
use std::path::{Path, PathBuf};

/// The daemon's directory unless it is told otherwise.
pub const DEFAULT_DIRECTORY: &str = "/run/gctgroup";

/// The variable that names another directory, and with it both sockets.
pub const DIRECTORY_VARIABLE: &str = "GCTGROUP_DIR";

/// The variable that names another tenants' socket.
pub const SOCKET_VARIABLE: &str = "GCTGROUP_SOCKET";

/// Below the directory: the folder for containers, and the tenants' socket in it.
const TENANTS_FOLDER: &str = "tenants";
const TENANTS_SOCKET: &str = "gctd.sock";
const ADMIN_SOCKET: &str = "admin.sock";

/// The paths of both sockets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Doors {
    /// Serves reads of the tree, and each tenant's own messages.
    pub tenants: PathBuf,
    /// Serves reads and writes of the tree.
    pub admin: PathBuf,
}

impl Doors {
    /// Returns the sockets of the daemon whose directory this is.
    pub fn of(directory: &Path) -> Self {
        Self {
            tenants: directory.join(TENANTS_FOLDER).join(TENANTS_SOCKET),
            admin: directory.join(ADMIN_SOCKET),
        }
    }

    /// Returns the sockets that the environment names, or the usual ones.
    pub fn from_environment() -> Self {
        let usual = Self::of(&directory());
        let tenants = env::var_os(SOCKET_VARIABLE).map_or(usual.tenants, PathBuf::from);
        Self { tenants, ..usual }
    }
}

/// Returns the directory of the daemon that the environment names, or the usual one.
pub fn directory() -> PathBuf {
    let path = env::var_os(DIRECTORY_VARIABLE).unwrap_or_else(|| DEFAULT_DIRECTORY.into());
    path.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tenants_socket_has_a_folder_without_the_administrators() {
        let doors = Doors::of(Path::new("/x"));
        let folder = doors.tenants.parent().unwrap();
        assert!(folder.starts_with("/x") && folder != Path::new("/x"));
        assert!(!doors.admin.starts_with(folder));
    }
}
