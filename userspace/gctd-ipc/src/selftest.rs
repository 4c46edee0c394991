// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Stores the results of `gctctl selftest`: what is exact on a GPU under a driver.
//!
//! One file holds the result of one GPU and one version of the driver. gctd announces only features
//! that the result allows, so a file must be its administrator's:
//!
//! ```text
//! gctgroup-selftest 0.1.0
//! gpu GPU-00112233-4455-6677-8899-aabbccddeeff
//! driver 580.159.04
//! tpcs 0-3,9-16
//! masks exact
//! atoms failed: no launch was split
//! end
//! ```
//!
//! A result of another release of gctgroup counts as none: that release may write other masks.

use core::fmt;
use gct_core::features::{Feature, FeatureSet};
use gct_core::gpu::GpuFacts;
use gct_core::mask::TpcMask;
use rustix::fs::{fstat, open, Mode, OFlags};
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The directory of the results, unless configured otherwise.
pub const DEFAULT_DIRECTORY: &str = "/var/lib/gctgroup/selftest";

/// The environment variable that names another directory of results.
pub const DIRECTORY_VARIABLE: &str = "GCTGROUP_SELFTEST_DIR";

/// The first word of a file. The release of gctgroup that made the file follows.
const MAGIC: &str = "gctgroup-selftest";
const RELEASE: &str = env!("CARGO_PKG_VERSION");

/// The most bytes of a file.
const BYTES_MAX: u64 = 4096;

/// Write permission for group and others.
const OTHERS_WRITE: u32 = 0o022;

/// The outcome of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Check {
    /// Every block ran once, and where it should.
    Exact,
    /// The check failed, for this reason.
    Failed(String),
}

impl Check {
    /// Returns whether the check passed.
    pub fn is_exact(&self) -> bool {
        *self == Self::Exact
    }

    fn parse(text: &str) -> Option<Self> {
        match text.strip_prefix("failed: ") {
            Some(why) => Some(Self::Failed(why.to_owned())),
            None => (text == "exact").then_some(Self::Exact),
        }
    }
}

impl fmt::Display for Check {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact => out.write_str("exact"),
            // One line of the file.
            Self::Failed(why) => {
                let words: Vec<&str> = why.split_whitespace().collect();
                write!(out, "failed: {}", words.join(" "))
            }
        }
    }
}

/// The result of a GPU under a version of the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selftest {
    /// The TPCs that launches under masks found.
    pub tpcs: TpcMask,
    /// Masks of TPCs.
    pub masks: Check,
    /// Launches in atoms.
    pub atoms: Check,
}

/// Why there is no result.
#[derive(Debug)]
pub enum Missing {
    /// The GPU was not tested under this driver and this release.
    Untested,
    /// The file cannot be used, for this reason.
    Damaged(PathBuf, String),
}

/// Returns the directory that the environment names, or the default one.
pub fn directory() -> PathBuf {
    let named = std::env::var_os(DIRECTORY_VARIABLE).unwrap_or_else(|| DEFAULT_DIRECTORY.into());
    named.into()
}

/// Returns the version in the text of `/proc/driver/nvidia/version` or
/// `/sys/module/nvidia/version`: the first word that is numbers and dots.
pub fn driver_version(text: &str) -> Option<&str> {
    let is_version = |word: &&str| {
        let mut parts = word.split('.');
        let digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        word.contains('.') && parts.all(digits)
    };
    text.split_whitespace().find(is_version)
}

/// Returns the file of a GPU under a driver.
fn path(directory: &Path, gpu: &str, driver: &str) -> PathBuf {
    directory.join(format!("{gpu}.{driver}"))
}

impl Selftest {
    /// Reads the result of the GPU with a UUID (`GPU-..`) under a version of the driver.
    ///
    /// # Errors
    ///
    /// [`Missing`] says why there is none.
    pub fn read(directory: &Path, gpu: &str, driver: &str) -> Result<Self, Missing> {
        let path = path(directory, gpu, driver);
        let text = match text(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(Missing::Untested),
            Err(error) => return Err(Missing::Damaged(path, error.to_string())),
        };
        if let Some(release) = text
            .lines()
            .next()
            .and_then(|line| line.strip_prefix(MAGIC))
        {
            let release = release.trim();
            if release != RELEASE && !release.is_empty() {
                return Err(Missing::Untested);
            }
        }
        Self::parse(&text, gpu, driver).map_err(|why| Missing::Damaged(path, why))
    }

    /// Parses a file of this release.
    fn parse(text: &str, gpu: &str, driver: &str) -> Result<Self, String> {
        let mut lines = text.lines();
        let mut value = |key: &str| {
            let line = lines.next().unwrap_or_default();
            let value = line
                .strip_prefix(key)
                .and_then(|rest| rest.strip_prefix(' '));
            value.ok_or_else(|| format!("it has no line '{key}' where one should be"))
        };
        value(MAGIC)?;
        for (key, wanted) in [("gpu", gpu), ("driver", driver)] {
            let found = value(key)?;
            if found != wanted {
                return Err(format!("it is of {key} {found}"));
            }
        }
        let tpcs = match value("tpcs")? {
            "none" => TpcMask::EMPTY,
            list => TpcMask::parse(list.as_bytes()).map_err(|_| "its list of TPCs is wrong")?,
        };
        let mut check = |key: &str| {
            let word = value(key)?;
            Check::parse(word).ok_or_else(|| format!("'{key} {word}' is no result"))
        };
        let (masks, atoms) = (check("masks")?, check("atoms")?);
        match (lines.next(), lines.next()) {
            (Some("end"), None) => Ok(Self { tpcs, masks, atoms }),
            _ => Err("it does not end with the line 'end'".to_owned()),
        }
    }

    /// Stores the result. A reader finds the old file or the new one.
    ///
    /// # Errors
    ///
    /// Those of the file system.
    pub fn write(&self, directory: &Path, gpu: &str, driver: &str) -> io::Result<PathBuf> {
        let mut tpcs = String::new();
        // Writing to a `String` cannot fail.
        let _ = self.tpcs.show(&mut tpcs);
        if tpcs.is_empty() {
            tpcs.push_str("none");
        }
        let text = format!(
            "{MAGIC} {RELEASE}\ngpu {gpu}\ndriver {driver}\ntpcs {tpcs}\nmasks {}\natoms {}\nend\n",
            self.masks, self.atoms
        );
        create_directory(directory)?;
        let path = path(directory, gpu, driver);
        let new = directory.join(format!(".new-{}", std::process::id()));
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&new)?;
        // gctd has a user of its own, and refuses a file that others may write to, whatever the
        // umask of the writer.
        file.set_permissions(Permissions::from_mode(0o644))?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, &path)?;
        Ok(path)
    }

    fn allowed(&self, features: FeatureSet) -> FeatureSet {
        match (self.masks.is_exact(), self.atoms.is_exact()) {
            (false, _) => features.without_launches(),
            (true, false) => features.without(Feature::AtomDuration),
            (true, true) => features,
        }
    }
}

/// Makes the directory of results unless it is there. All users may read it, whatever the umask.
///
/// # Errors
///
/// Those of the file system.
pub fn create_directory(directory: &Path) -> io::Result<()> {
    if !directory.is_dir() {
        fs::create_dir_all(directory)?;
        fs::set_permissions(directory, Permissions::from_mode(0o755))?;
    }
    Ok(())
}

/// Returns the features of `features` that a GPU has: those that its result allows, and with masks,
/// quotas and atoms only where its TPCs are known. Where launches were not found exact, no limit
/// needs them, so that channels stay native: on a GPU whose test failed, on one that needs a test
/// and had none, and on one of which nothing is known.
#[must_use]
pub fn allowed(found: Option<&Selftest>, facts: &GpuFacts, features: FeatureSet) -> FeatureSet {
    let allowed = match found {
        Some(found) => found.allowed(features),
        None if facts.needs_selftest() || facts.is_unknown() => features.without_launches(),
        None => features,
    };
    match facts.topology.is_known() {
        true => allowed,
        false => allowed.without_tpcs(),
    }
}

/// Reads a file that only root or this user may have written.
fn text(path: &Path) -> io::Result<String> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = File::from(open(path, flags, Mode::empty())?);
    let facts = fstat(&file)?;
    let me = rustix::process::geteuid().as_raw();
    let invalid = |why: &str| Err(io::Error::new(io::ErrorKind::InvalidData, why));
    if facts.st_uid != 0 && facts.st_uid != me {
        return invalid("another user owns it");
    }
    if facts.st_mode & OTHERS_WRITE != 0 {
        return invalid("others may write to it");
    }
    let mut text = String::new();
    file.take(BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gct_core::gpu::{Backend, PciAddress};
    use gct_core::topology::Topology;
    use std::os::unix::fs::PermissionsExt;

    const GPU: &str = "GPU-00112233-4455-6677-8899-aabbccddeeff";
    const DRIVER: &str = "580.159.04";

    struct Folder(PathBuf);

    impl Folder {
        fn new(test: &str) -> Self {
            let name = format!("gct-selftest-{test}-{}", std::process::id());
            let folder = std::env::temp_dir().join(name);
            let _ = fs::remove_dir_all(&folder);
            Self(folder)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn result(masks: Check, atoms: Check) -> Selftest {
        let tpcs = TpcMask::parse(b"0-3,9-16").unwrap();
        Selftest { tpcs, masks, atoms }
    }

    fn failed(why: &str) -> Check {
        Check::Failed(why.to_owned())
    }

    #[test]
    fn a_result_is_read_as_it_was_written() {
        let folder = Folder::new("written");
        let written = result(Check::Exact, failed("no launch was split"));
        written.write(&folder.0, GPU, DRIVER).unwrap();
        assert_eq!(Selftest::read(&folder.0, GPU, DRIVER).unwrap(), written);
        // Neither another GPU's nor another driver's.
        for (gpu, driver) in [(GPU, "580.95.05"), ("GPU-other", DRIVER)] {
            let read = Selftest::read(&folder.0, gpu, driver);
            assert!(matches!(read, Err(Missing::Untested)), "{read:?}");
        }
        assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 1);
    }

    #[test]
    fn a_result_can_be_read_whatever_the_umask() {
        let folder = Folder::new("umask");
        let written = result(Check::Exact, Check::Exact);
        for mask in [Mode::empty(), Mode::from_raw_mode(0o077)] {
            // The other tests make files that nobody else looks at.
            let _ = fs::remove_dir_all(&folder.0);
            let before = rustix::process::umask(mask);
            let stored = written.write(&folder.0, GPU, DRIVER);
            rustix::process::umask(before);
            // gctd is another user than the writer.
            let mode = fs::metadata(stored.unwrap()).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o644, "{mask:?}");
            let mode = fs::metadata(&folder.0).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o755, "{mask:?}");
            assert_eq!(Selftest::read(&folder.0, GPU, DRIVER).unwrap(), written);
        }
    }

    #[test]
    fn a_reason_of_several_lines_becomes_one() {
        let folder = Folder::new("lines");
        let written = result(failed("a\nend\nmasks exact"), Check::Exact);
        written.write(&folder.0, GPU, DRIVER).unwrap();
        let read = Selftest::read(&folder.0, GPU, DRIVER).unwrap();
        assert_eq!(read.masks, failed("a end masks exact"));
    }

    /// Cuts the file at each byte, and changes each line. No part may read as a result.
    #[test]
    fn a_damaged_file_is_no_result() {
        let folder = Folder::new("damaged");
        let whole = result(Check::Exact, Check::Exact);
        let path = whole.write(&folder.0, GPU, DRIVER).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        let damaged = |text: &str| {
            fs::write(&path, text).unwrap();
            let read = Selftest::read(&folder.0, GPU, DRIVER);
            assert!(
                matches!(read, Err(Missing::Damaged(..) | Missing::Untested)),
                "{text:?}"
            );
            read.unwrap_err()
        };
        // Without the newline at its end, the file still has all its lines.
        for len in 0..text.len() - 1 {
            damaged(&text[..len]);
        }
        for (from, to) in [
            ("masks exact", "masks maybe"),
            ("atoms exact\n", ""),
            ("0-3,9-16", "0-3,"),
            (GPU, "GPU-other"),
            (DRIVER, "1.2"),
            ("end\n", "end\nmore\n"),
        ] {
            let why = damaged(&text.replace(from, to));
            assert!(matches!(why, Missing::Damaged(..)), "{from}: {why:?}");
        }
        fs::write(&path, [0xff, 0xfe]).unwrap();
        assert!(Selftest::read(&folder.0, GPU, DRIVER).is_err());
    }

    #[test]
    fn a_result_of_another_release_is_none() {
        let folder = Folder::new("release");
        let whole = result(Check::Exact, Check::Exact);
        let path = whole.write(&folder.0, GPU, DRIVER).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, text.replacen(RELEASE, "99.0.0", 1)).unwrap();
        let read = Selftest::read(&folder.0, GPU, DRIVER);
        assert!(matches!(read, Err(Missing::Untested)), "{read:?}");
    }

    #[test]
    fn a_file_that_others_may_write_is_not_believed() {
        let folder = Folder::new("others");
        let whole = result(Check::Exact, Check::Exact);
        let path = whole.write(&folder.0, GPU, DRIVER).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        let read = Selftest::read(&folder.0, GPU, DRIVER);
        assert!(matches!(read, Err(Missing::Damaged(..))), "{read:?}");
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
        assert!(Selftest::read(&folder.0, GPU, DRIVER).is_err());
    }

    #[test]
    fn only_what_is_exact_is_allowed() {
        let all = crate::ENFORCED;
        let allowed = |masks, atoms| result(masks, atoms).allowed(all);
        assert_eq!(allowed(Check::Exact, Check::Exact), all);
        let masks = allowed(Check::Exact, failed("x"));
        assert!(masks.has(Feature::TpcMask) && !masks.has(Feature::AtomDuration));
        let none = allowed(failed("x"), Check::Exact);
        assert!(!none.has(Feature::TpcMask) && !none.has(Feature::AtomDuration));
        assert!(none.has(Feature::GmemLimit) && none.has(Feature::Freeze));
        assert!(!none.has(Feature::Weight) && !none.has(Feature::Usage));
    }

    #[test]
    fn without_a_result_a_gpu_has_what_this_project_measured() {
        let (all, none) = (crate::ENFORCED, crate::ENFORCED.without_launches());
        let pci = PciAddress {
            domain: 0,
            bus: 1,
            slot: 0,
            function: 0,
        };
        let mut gpu = GpuFacts::new(0, pci, Backend::User);
        gpu.topology = Topology::apart(TpcMask::first(66));
        for (architecture, features) in [(0x180, all), (0x170, none), (0x190, none), (0x1a0, none)]
        {
            gpu.set_architecture(architecture);
            assert_eq!(allowed(None, &gpu, all), features, "{architecture:#x}");
            let exact = result(Check::Exact, Check::Exact);
            assert_eq!(allowed(Some(&exact), &gpu, all), all);
            let wrong = result(failed("x"), Check::Exact);
            assert_eq!(allowed(Some(&wrong), &gpu, all), none);
        }
        gpu.set_architecture(0x180);
        gpu.topology = Topology::UNKNOWN;
        assert_eq!(allowed(None, &gpu, all), all.without_tpcs());
        gpu.set_architecture(0);
        assert_eq!(allowed(None, &gpu, all), none);
    }

    #[test]
    fn the_version_is_found_in_both_files_of_the_driver() {
        let proc = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release \
            Build  (dvs)\nGCC version:  gcc version 12.2.0 (Debian)\n";
        assert_eq!(driver_version(proc), Some("580.159.04"));
        assert_eq!(driver_version("550.163.01\n"), Some("550.163.01"));
        assert_eq!(driver_version("unknown 5. .5 x.1\n"), None);
    }
}
