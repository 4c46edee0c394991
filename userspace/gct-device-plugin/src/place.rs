// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Names the places that a plugin and its hooks use: the tree, the records, the host's folders.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use gct_client::{Tree, DEFAULT_ROOT};
use gctd_ipc::paths::SocketPaths;

/// Options that the plugin passes on to the hooks that runtimes execute.
#[derive(Clone, Debug, clap::Args)]
pub struct Places {
    /// Directory of the tree.
    #[arg(long, value_name = "DIR", default_value = DEFAULT_ROOT)]
    pub root: PathBuf,

    /// The daemon's directory: use the tree of the user-space mode instead of the kernel's.
    #[arg(long, value_name = "DIR", conflicts_with = "root")]
    pub dir: Option<PathBuf>,

    /// Directory of the containers' records. It must be empty after a boot.
    #[arg(long, value_name = "DIR", default_value = "/run/gctgroup-kubernetes")]
    pub state: PathBuf,

    /// The host's processes.
    #[arg(long, value_name = "DIR", default_value = "/proc")]
    pub proc: PathBuf,

    /// The host's cgroups.
    #[arg(long, value_name = "DIR", default_value = "/sys/fs/cgroup")]
    pub cgroups: PathBuf,
}

impl Places {
    /// Returns the tree.
    pub fn tree(&self) -> Tree {
        match &self.dir {
            Some(directory) => Tree::of_daemon(SocketPaths::of(directory)),
            None => Tree::of_kernel(&self.root, None),
        }
    }

    /// Returns the options that name the same places.
    pub fn arguments(&self) -> Vec<OsString> {
        let tree: (&str, &Path) = match &self.dir {
            Some(directory) => ("--dir", directory),
            None => ("--root", &self.root),
        };
        let others: [(&str, &Path); 3] = [
            ("--state", &self.state),
            ("--proc", &self.proc),
            ("--cgroups", &self.cgroups),
        ];
        let all = std::iter::once(tree).chain(others);
        all.flat_map(|(option, path)| [option.into(), path.into()])
            .collect()
    }
}
