// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Accesses the kernel's tree by the door that is open: debugfs, or else `/dev/gctgroup`.
//!
//! ```text
//! debugfs's control can be opened for writing   debugfs
//! the device can be opened                      the device
//! debugfs shows the tree                        debugfs: it says why it refuses
//! the device exists                             the device: the same
//! a daemon is to be used, and its socket exists the daemon
//! else                                          debugfs
//! ```
//!
//! Lockdown hides files of debugfs that can be written, even from readers, so `control` tells more
//! than `version`. The choice is made for each access: the driver may be loaded at any time.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use gct_core::iface::files;
use gct_core::iface::File as FileId;

use crate::daemon::Daemon;
use crate::device::Device;
use crate::transport::{Directory, Door, Transport};

/// The device of the patched driver.
const DEVICE: &str = "/dev/gctgroup";

/// The tree of the kernel module, or of the daemon where there is no module.
#[derive(Debug)]
pub(crate) struct Kernel {
    debugfs: Directory,
    device: Device,
    daemon: Option<Daemon>,
}

impl Kernel {
    /// Takes the tree at `debugfs`. Without a kernel module, the daemon's.
    pub(crate) fn new(debugfs: PathBuf, daemon: Option<Daemon>) -> Self {
        Self {
            debugfs: Directory(debugfs),
            device: Device(DEVICE.into()),
            daemon,
        }
    }

    /// Returns why limits cannot be written in debugfs.
    fn debugfs_refuses(&self) -> Option<io::Error> {
        let control = self.debugfs.0.join(files::entry(FileId::Control).name);
        // Opening has no effect: the kernel acts on write(2) only.
        OpenOptions::new().write(true).open(control).err()
    }

    fn choose(&self) -> &dyn Transport {
        let device = &self.device.0;
        if self.debugfs_refuses().is_none() {
            return &self.debugfs;
        }
        if File::open(device).is_ok() {
            return &self.device;
        }
        match &self.daemon {
            _ if self.debugfs.0.exists() => &self.debugfs,
            _ if device.exists() => &self.device,
            Some(daemon) if daemon.place().exists() => daemon,
            _ => &self.debugfs,
        }
    }
}

impl Transport for Kernel {
    fn place(&self) -> &Path {
        self.choose().place()
    }

    fn door(&self) -> Door {
        match self.choose().door() {
            Door::Device(_) => Door::Device(self.debugfs_refuses()),
            door => door,
        }
    }

    fn check(&self) -> io::Result<()> {
        self.choose().check()
    }

    fn is_dir(&self, path: &Path) -> bool {
        self.choose().is_dir(path)
    }

    fn dirs(&self, path: &Path) -> io::Result<Vec<String>> {
        self.choose().dirs(path)
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.choose().read(path)
    }

    fn write(&self, path: &Path, text: &[u8]) -> io::Result<()> {
        self.choose().write(path, text)
    }

    fn may_write(&self, path: &Path) -> io::Result<()> {
        self.choose().may_write(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gctd_ipc::paths::SocketPaths;
    use std::fs;

    /// A directory with places for each door, removed on drop.
    struct Places(PathBuf);

    impl Drop for Places {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    impl Places {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("gct-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        /// Makes a file, or a directory that cannot be opened for writing.
        fn make(&self, path: &str, is_open: bool) {
            let path = self.0.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            match is_open {
                true => fs::write(path, "").unwrap(),
                false => fs::create_dir_all(path).unwrap(),
            }
        }

        fn chosen(&self, has_daemon: bool) -> &'static str {
            let paths = SocketPaths::of(&self.0.join("gctd"));
            let daemon = has_daemon.then(|| Daemon::new(paths));
            let mut kernel = Kernel::new(self.0.join("debugfs"), daemon);
            kernel.device = Device(self.0.join("device"));
            match kernel.door() {
                Door::Directory => "debugfs",
                Door::Device(Some(_)) => "device, for a reason",
                Door::Device(None) => "device",
                Door::Daemon => "daemon",
            }
        }
    }

    #[test]
    fn the_first_door_that_is_open_is_used() {
        let places = Places::new("doors");
        assert_eq!(places.chosen(true), "debugfs");
        places.make("gctd/tenants/socket", true);
        let socket = SocketPaths::of(&places.0.join("gctd")).tenants;
        fs::create_dir_all(socket.parent().unwrap()).unwrap();
        fs::write(&socket, "").unwrap();
        assert_eq!(places.chosen(true), "daemon");
        assert_eq!(places.chosen(false), "debugfs");
        places.make("device", true);
        assert_eq!(places.chosen(true), "device, for a reason");
        // As under lockdown: the tree is there, and `control` cannot be opened.
        places.make("debugfs/control", false);
        assert_eq!(places.chosen(true), "device, for a reason");
        fs::remove_file(places.0.join("device")).unwrap();
        assert_eq!(places.chosen(true), "debugfs");
        fs::remove_dir(places.0.join("debugfs/control")).unwrap();
        places.make("debugfs/control", true);
        assert_eq!(places.chosen(true), "debugfs");
        places.make("device", true);
        assert_eq!(places.chosen(true), "debugfs");
    }
}
