// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Reads a container's bundle, refuses GPUs that are not its own, and has its loader load the
//! preload library.
//!
//! The loader loads what `/etc/ld.so.preload` names into every program, whatever its environment
//! is. The file is the container's: what the image has in it stays, and so does the `LD_PRELOAD` of
//! image, pod and entrypoint. The hook writes before the container's first process runs, into the
//! container's own layer.

use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use anyhow::{bail, ensure, Context, Result};
use gctd_ipc::paths::preloads;
use rustix::fs::{
    fchmod, fstat, mkdirat, openat, openat2, stat, FileType, Mode, OFlags, ResolveFlags, CWD,
};
use rustix::io::Errno;
use rustix::path::Arg;
use serde::Deserialize;

use crate::cdi::MINOR;

/// The file whose libraries the loader loads into every program, below the root.
const PRELOADS: &str = "etc/ld.so.preload";
/// Its folder.
const FOLDER: &str = "etc";
/// The major number of NVIDIA's nodes, and the first minor number that is no GPU's.
const NVIDIA: u32 = 195;
const OTHERS: u32 = 254;
/// Most bytes of the file.
const PRELOADS_MAX: u64 = 64 << 10;

/// What a runtime was asked for: the configuration in the container's bundle.
#[derive(Debug, Deserialize)]
pub struct Config {
    root: Root,
    #[serde(default)]
    mounts: Vec<Mount>,
    #[serde(default)]
    hooks: Hooks,
    #[serde(default)]
    linux: Linux,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Hooks {
    #[serde(default)]
    create_runtime: Vec<Hook>,
}

#[derive(Debug, Deserialize)]
struct Hook {
    #[serde(default)]
    args: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
struct Linux {
    #[serde(default)]
    devices: Vec<Device>,
}

#[derive(Debug, Deserialize)]
struct Device {
    path: PathBuf,
    #[serde(default)]
    major: u32,
    #[serde(default)]
    minor: u32,
}

impl Device {
    /// Returns the number of the GPU whose node it is.
    fn gpu(&self) -> Option<u32> {
        // It may have another name, and a runtime that was asked for a path may not know more.
        if self.major == NVIDIA {
            return (self.minor < OTHERS).then_some(self.minor);
        }
        let name = self.path.file_name()?.to_str()?;
        name.strip_prefix("nvidia")?.parse().ok()
    }
}

#[derive(Debug, Deserialize)]
struct Root {
    path: PathBuf,
}

#[derive(Debug, Deserialize)]
struct Mount {
    destination: PathBuf,
}

impl Config {
    /// Reads the configuration in a bundle.
    ///
    /// # Errors
    ///
    /// Those of the file, and of its text.
    pub fn read(bundle: &Path) -> Result<Self> {
        let path = bundle.join("config.json");
        let read = || -> Result<Self> {
            let mut config: Self = serde_json::from_slice(&fs::read(&path)?)?;
            // It may be relative to the bundle.
            config.root.path = bundle.join(config.root.path);
            Ok(config)
        };
        read().with_context(|| format!("the container's {}", path.display()))
    }

    /// Checks that the container has no node of a GPU but those of its shares. Each share has a
    /// hook of this program with the number of its node.
    ///
    /// # Errors
    ///
    /// Then it must not start: on the others it would have no limit.
    pub fn check_gpus(&self) -> Result<()> {
        let args = self.hooks.create_runtime.iter().flat_map(|hook| &hook.args);
        let own: Vec<u32> = args
            .filter_map(|arg| arg.strip_prefix(MINOR)?.parse().ok())
            .collect();
        let mut devices = self.linux.devices.iter();
        let other = devices.find(|device| device.gpu().is_some_and(|gpu| !own.contains(&gpu)));
        match other {
            None => Ok(()),
            Some(other) => bail!(
                "the container has {}, of which it has no share: it is privileged, or asks for GPUs \
                 in another way as well",
                other.path.display()
            ),
        }
    }

    /// Adds a library to those that the container's loader loads into every program.
    ///
    /// # Errors
    ///
    /// Fails if something is mounted over the container's file, or it cannot be written. The
    /// container must not start then: its programs would have no limits.
    pub fn preload(&self, library: &str) -> Result<()> {
        let is_own = |root: &OwnedFd, path: &Path| match self.mount_over(root, path)? {
            None => Ok(()),
            Some(over) => bail!(
                "the container mounts {}, but {library} is loaded by its own {}",
                over.display(),
                path.display()
            ),
        };
        let file = Path::new("/").join(PRELOADS);
        add(&self.root.path, library, is_own)
            .with_context(|| format!("the container's {}", file.display()))
    }

    /// Returns the mount that hides a path of the container, which has no links.
    fn mount_over(&self, root: &OwnedFd, path: &Path) -> Result<Option<&Path>> {
        for mount in &self.mounts {
            let at = place_of(root, &mount.destination)?;
            if at.parent().is_some() && path.starts_with(&at) {
                return Ok(Some(&mount.destination));
            }
        }
        Ok(None)
    }
}

/// Returns where a runtime mounts: the links of a destination lead into the root, and its `..` not
/// out of it. What does not exist, the runtime makes.
fn place_of(root: &OwnedFd, destination: &Path) -> Result<PathBuf> {
    let mut at = PathBuf::from("/");
    for part in destination.components() {
        match part {
            Component::Normal(name) => {
                at.push(name);
                if let Ok(found) = open_in(root, &at, OFlags::PATH) {
                    at = path_below(root, &found)?;
                }
            }
            Component::ParentDir => drop(at.pop()),
            _ => {}
        }
    }
    Ok(at)
}

/// Opens a path of a container. Its links lead nowhere but into the container.
fn open_in(root: &OwnedFd, path: impl Arg, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let within = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let mode = match flags.contains(OFlags::CREATE) {
        true => Mode::from_raw_mode(0o644),
        false => Mode::empty(),
    };
    openat2(root, path, flags | OFlags::CLOEXEC, mode, within)
}

/// Returns the path of an open file below an open root, without links.
fn path_below(root: &OwnedFd, file: &OwnedFd) -> Result<PathBuf> {
    let path = |fd: &OwnedFd| fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()));
    Ok(Path::new("/").join(path(file)?.strip_prefix(path(root)?)?))
}

/// Opens the file below an open root, or makes it. It opens nothing but a file: to open a device
/// is to use it, and a node of the host's watchdog can lie in an image.
fn open_file(root: &OwnedFd) -> Result<OwnedFd> {
    let place = match open_in(root, PRELOADS, OFlags::PATH) {
        Err(Errno::NOENT) => {
            return Ok(open_in(root, PRELOADS, OFlags::RDWR | OFlags::CREATE)?);
        }
        place => place?,
    };
    ensure!(
        FileType::from_raw_mode(fstat(&place)?.st_mode) == FileType::RegularFile,
        "it is no file"
    );
    let same = format!("/proc/self/fd/{}", place.as_raw_fd());
    Ok(openat(
        CWD,
        same,
        OFlags::RDWR | OFlags::CLOEXEC,
        Mode::empty(),
    )?)
}

/// Adds a library to the file below a root, unless it is there already. `is_own` says whether the
/// container sees the file that its links lead to.
fn add(root: &Path, library: &str, is_own: impl Fn(&OwnedFd, &Path) -> Result<()>) -> Result<()> {
    let folder = OFlags::PATH | OFlags::DIRECTORY;
    let root = openat(CWD, root, folder | OFlags::CLOEXEC, Mode::empty())?;
    let (own, host) = (fstat(&root)?, stat("/")?);
    ensure!(
        (own.st_dev, own.st_ino) != (host.st_dev, host.st_ino),
        "its root is the host's"
    );
    if open_in(&root, FOLDER, folder).err() == Some(Errno::NOENT) {
        mkdirat(&root, FOLDER, Mode::from_raw_mode(0o755))?;
    }
    let file = open_file(&root)?;
    is_own(&root, &path_below(&root, &file)?)?;
    let facts = fstat(&file)?;
    // The loader of every user reads it. The mask of the runtime may be strict.
    let mode = Mode::from_raw_mode(facts.st_mode & 0o7777);
    let all = Mode::RUSR | Mode::RGRP | Mode::ROTH;
    fchmod(&file, mode | all)?;
    let mut file = fs::File::from(file);
    let mut old = Vec::new();
    (&file).take(PRELOADS_MAX + 1).read_to_end(&mut old)?;
    ensure!(old.len() as u64 <= PRELOADS_MAX, "it is too long");
    // The loader reads nothing behind one.
    ensure!(!old.contains(&0), "it has a NUL");
    if preloads(&old).any(|named| named == library.as_bytes()) {
        return Ok(());
    }
    let end = match old.last() {
        None | Some(b'\n') => "",
        Some(_) => "\n",
    };
    file.seek(SeekFrom::End(0))?;
    Ok(file.write_all(format!("{end}{library}\n").as_bytes())?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{symlink, PermissionsExt};

    use super::*;
    use rustix::event::{poll, PollFd, PollFlags, Timespec};
    use serde_json::{json, Value};

    const LIBRARY: &str = "/usr/lib/gctgroup/libgct_preload.so";

    /// A bundle, whose root is a folder in it.
    struct Bundle(PathBuf);

    impl Bundle {
        fn new(test: &str) -> Self {
            let name = format!("gct-plugin-bundle-{test}-{}", std::process::id());
            let bundle = Self(std::env::temp_dir().join(name));
            let _ = fs::remove_dir_all(&bundle.0);
            fs::create_dir_all(bundle.0.join("rootfs/etc")).unwrap();
            bundle
        }

        fn config(&self, mounts: &Value) -> Config {
            let text = json!({ "root": { "path": "rootfs" }, "mounts": mounts }).to_string();
            fs::write(self.0.join("config.json"), text).unwrap();
            Config::read(&self.0).unwrap()
        }

        fn preload(&self) -> Result<()> {
            self.config(&json!([{ "destination": "/proc" }]))
                .preload(LIBRARY)
        }

        fn file(&self) -> PathBuf {
            self.0.join("rootfs").join(PRELOADS)
        }

        fn says(&self) -> String {
            fs::read_to_string(self.file()).unwrap()
        }
    }

    impl Drop for Bundle {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn the_library_is_named_once_for_every_user() {
        let bundle = Bundle::new("once");
        bundle.preload().unwrap();
        bundle.preload().unwrap();
        assert_eq!(bundle.says(), format!("{LIBRARY}\n"));
        let mode = fs::metadata(bundle.file()).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o644);
    }

    #[test]
    fn what_the_image_preloads_stays() {
        let bundle = Bundle::new("image");
        let own = format!("/opt/own.so # not {LIBRARY}");
        fs::write(bundle.file(), &own).unwrap();
        fs::set_permissions(bundle.file(), fs::Permissions::from_mode(0o600)).unwrap();
        bundle.preload().unwrap();
        assert_eq!(bundle.says(), format!("{own}\n{LIBRARY}\n"));
        let mode = fs::metadata(bundle.file()).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o644);
        let named = format!("/opt/own.so:{LIBRARY}");
        fs::write(bundle.file(), &named).unwrap();
        bundle.preload().unwrap();
        assert_eq!(bundle.says(), named);
        fs::write(bundle.file(), "/opt/own.so\n\0").unwrap();
        let error = bundle.preload().unwrap_err();
        assert!(format!("{error:#}").contains("it has a NUL"), "{error:#}");
    }

    #[test]
    fn an_image_without_etc_has_one_then() {
        let bundle = Bundle::new("scratch");
        fs::remove_dir(bundle.0.join("rootfs/etc")).unwrap();
        bundle.preload().unwrap();
        assert_eq!(bundle.says(), format!("{LIBRARY}\n"));
    }

    #[test]
    fn links_do_not_lead_out_of_the_container() {
        let bundle = Bundle::new("links");
        let outside = bundle.0.join("outside");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("ld.so.preload"), "").unwrap();
        for target in [outside.clone(), "../outside".into()] {
            fs::remove_dir(bundle.0.join("rootfs/etc")).unwrap();
            symlink(&target, bundle.0.join("rootfs/etc")).unwrap();
            bundle.preload().unwrap_err();
            fs::remove_file(bundle.0.join("rootfs/etc")).unwrap();
            fs::create_dir(bundle.0.join("rootfs/etc")).unwrap();
        }
        symlink(outside.join("ld.so.preload"), bundle.file()).unwrap();
        bundle.preload().unwrap_err();
        fs::remove_file(bundle.file()).unwrap();
        symlink("../../outside/ld.so.preload", bundle.file()).unwrap();
        bundle.preload().unwrap_err();
        assert_eq!(fs::read(outside.join("ld.so.preload")).unwrap(), b"");
        // Within the container they are followed, as its loader does.
        fs::remove_file(bundle.file()).unwrap();
        symlink("/etc/real", bundle.file()).unwrap();
        bundle.preload().unwrap();
        let real = bundle.0.join("rootfs/etc/real");
        assert_eq!(fs::read_to_string(real).unwrap(), format!("{LIBRARY}\n"));
    }

    #[test]
    fn what_is_no_file_is_refused() {
        let bundle = Bundle::new("pipe");
        rustix::fs::mknodat(CWD, bundle.file(), FileType::Fifo, Mode::RWXU, 0).unwrap();
        let error = bundle.preload().unwrap_err();
        assert_eq!(
            format!("{error:#}"),
            "the container's /etc/ld.so.preload: it is no file"
        );
    }

    /// To open a device can be to use it. A pipe's other end sees that it was opened.
    #[test]
    fn what_is_no_file_is_not_opened() {
        let bundle = Bundle::new("opened");
        rustix::fs::mknodat(CWD, bundle.file(), FileType::Fifo, Mode::RWXU, 0).unwrap();
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        let end = openat(CWD, bundle.file(), flags, Mode::empty()).unwrap();
        bundle.preload().unwrap_err();
        let mut ends = [PollFd::new(&end, PollFlags::IN)];
        poll(&mut ends, Some(&Timespec::default())).unwrap();
        assert_eq!(ends[0].revents(), PollFlags::empty());
    }

    #[test]
    fn a_mount_over_the_file_is_refused() {
        let bundle = Bundle::new("mount");
        symlink("../etc", bundle.0.join("rootfs/etc-by-link")).unwrap();
        for over in [
            "/etc/ld.so.preload",
            "/etc",
            "/etc/",
            "/etc/ssl/../ld.so.preload",
            "/../etc",
            "/etc-by-link/ld.so.preload",
        ] {
            let config = bundle.config(&json!([{ "destination": over }]));
            let error = format!("{:#}", config.preload(LIBRARY).unwrap_err());
            assert!(error.contains(&format!("mounts {over}, but")), "{error}");
        }
        let config =
            bundle.config(&json!([{ "destination": "/" }, { "destination": "/etc/hosts" }]));
        config.preload(LIBRARY).unwrap();
        // Where its links lead.
        for (link, target, over) in [
            ("etc/ld.so.preload", "/data/preload", "/data"),
            ("etc", "/usr/etc", "/usr/etc"),
        ] {
            let root = bundle.0.join("rootfs");
            let _ = fs::remove_file(root.join(link));
            let _ = fs::remove_dir_all(root.join(link));
            fs::create_dir_all(root.join(&over[1..])).unwrap();
            symlink(target, root.join(link)).unwrap();
            let config = bundle.config(&json!([{ "destination": over }]));
            let error = format!("{:#}", config.preload(LIBRARY).unwrap_err());
            assert!(error.contains(&format!("mounts {over}, but")), "{error}");
            bundle.preload().unwrap();
        }
    }

    #[test]
    fn the_root_of_the_host_is_left_alone() {
        let bundle = Bundle::new("host");
        let text = json!({ "root": { "path": "/" } }).to_string();
        fs::write(bundle.0.join("config.json"), text).unwrap();
        let config = Config::read(&bundle.0).unwrap();
        let error = format!("{:#}", config.preload(LIBRARY).unwrap_err());
        assert!(error.ends_with("its root is the host's"), "{error}");
    }

    #[test]
    fn a_container_has_the_nodes_of_its_shares_and_no_other() {
        let check = |devices: Value| {
            let hooks =
                ["--minor=0", "--minor=3"].map(|minor| json!({ "args": ["x", "bind", minor] }));
            let config: Config = serde_json::from_value(json!({
                "root": { "path": "rootfs" },
                "hooks": { "createRuntime": hooks },
                "linux": { "devices": devices },
            }))
            .unwrap();
            config.check_gpus()
        };
        let node = |path: &str, minor: u32| json!({ "path": path, "type": "c", "major": NVIDIA, "minor": minor });
        let own = [
            node("/dev/nvidia0", 0),
            node("/dev/nvidia3", 3),
            node("/dev/nvidiactl", 255),
        ];
        check(own.to_vec().into()).unwrap();
        for (path, minor) in [("/dev/nvidia1", 1), ("/dev/gpu", 2), ("/dev/x/nvidia0", 1)] {
            let devices = [&own[..], &[node(path, minor)]].concat();
            let error = check(devices.into()).unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("the container has {path}, of")),
                "{error}"
            );
        }
        check(json!([{ "path": "/dev/null", "type": "c", "major": 1, "minor": 3 }])).unwrap();
    }

    #[test]
    fn a_bundle_without_configuration_is_refused() {
        let error = Config::read(Path::new("/nowhere")).unwrap_err();
        let error = error.to_string();
        assert_eq!(error, "the container's /nowhere/config.json");
    }
}
