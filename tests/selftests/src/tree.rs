// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Reads and writes the tree for the tests: in debugfs, or through `/dev/gctgroup`.

use crate::device;
use crate::sys::errno;
use gct_core::error::Error;
use gct_ktap::{failed, During, Outcome, Stop};
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Where debugfs shows the tree.
pub(crate) const ROOT: &str = "/sys/kernel/debug/gctgroup";

/// Whether the tests use the device.
static BY_DEVICE: OnceLock<()> = OnceLock::new();

/// Has all tests use the device.
pub(crate) fn use_device() {
    BY_DEVICE.get_or_init(|| ());
}

pub(crate) fn is_by_device() -> bool {
    BY_DEVICE.get().is_some()
}

/// Skips a test of open files of debugfs where the tests use the device.
pub(crate) fn needs_debugfs() -> Outcome {
    match is_by_device() {
        true => Err(gct_ktap::skipped("not about the device")),
        false => Ok(()),
    }
}

/// Returns whether a directory or a file of the tree exists.
pub(crate) fn exists(path: &str) -> bool {
    match is_by_device() {
        true => {
            let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
            let there = |names: &[String]| names.iter().any(|there| there == name);
            device::list(above).is_ok_and(|(dirs, files)| there(&dirs) || there(&files))
        }
        false => at(path).exists(),
    }
}

/// Returns whether the tree is gone, with both of its doors.
pub(crate) fn is_gone() -> bool {
    !Path::new(ROOT).exists() && !Path::new(device::DEVICE).exists()
}

/// Returns the directories and the files in a directory of the tree, sorted.
pub(crate) fn entries(path: &str) -> io::Result<(Vec<String>, Vec<String>)> {
    match is_by_device() {
        true => device::list(path),
        false => entries_of(&at(path)),
    }
}

/// Returns the directories and the files in a directory of debugfs, sorted.
pub(crate) fn entries_of(path: &Path) -> io::Result<(Vec<String>, Vec<String>)> {
    let (mut dirs, mut files) = (Vec::new(), Vec::new());
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        match entry.file_type()?.is_dir() {
            true => dirs.push(name),
            false => files.push(name),
        }
    }
    dirs.sort();
    files.sort();
    Ok((dirs, files))
}

/// Returns the absolute path in debugfs of a path in the tree.
pub(crate) fn at(path: &str) -> PathBuf {
    Path::new(ROOT).join(path)
}

/// Reads a file.
pub(crate) fn read(path: &str) -> io::Result<String> {
    match is_by_device() {
        true => device::read(path),
        false => fs::read_to_string(at(path)),
    }
}

/// Writes to a file in one `write`.
pub(crate) fn write(path: &str, text: impl AsRef<[u8]>) -> io::Result<()> {
    match is_by_device() {
        true => device::write(path, text.as_ref()),
        false => write_at(&at(path), text),
    }
}

/// Writes to any file in one `write`. A short write is an error.
pub(crate) fn write_at(path: &Path, text: impl AsRef<[u8]>) -> io::Result<()> {
    let text = text.as_ref();
    let written = OpenOptions::new().write(true).open(path)?.write(text)?;
    if written == text.len() {
        Ok(())
    } else {
        Err(io::Error::other(format!(
            "{written} of {} bytes written",
            text.len()
        )))
    }
}

/// Fails unless the write is refused with errno `expected`.
pub(crate) fn refuses(path: &str, text: impl AsRef<[u8]>, expected: Error) -> Outcome {
    let text = text.as_ref();
    let shown = String::from_utf8_lossy(text.get(..40).unwrap_or(text)).into_owned();
    match write(path, text) {
        Ok(()) => Err(failed(format!("{path} took {shown:?}"))),
        Err(error) if errno(&error) == expected.errno() => Ok(()),
        Err(error) => Err(failed(format!(
            "{path} refused {shown:?} with {error}, expected {}",
            expected.symbol()
        ))),
    }
}

/// Lists the directories in a directory of the tree.
pub(crate) fn directories(path: &str) -> io::Result<Vec<String>> {
    Ok(entries(path)?.0)
}

/// Returns how many GPUs the tree shows.
pub(crate) fn gpus() -> io::Result<usize> {
    Ok(directories("gpus")?.len())
}

/// Returns the first GPU's index, or skips the test.
pub(crate) fn a_gpu() -> Result<String, Stop> {
    directories("gpus")?
        .into_iter()
        .next()
        .ok_or_else(|| gct_ktap::skipped("no GPU in gpus/"))
}

/// Reduces a number of repetitions on the debug kernel. With KASAN and lockdep under emulation a
/// fork takes tens of milliseconds.
pub(crate) fn repetitions(lean: usize) -> usize {
    if Path::new("/sys/kernel/debug/kmemleak").exists() {
        lean.div_ceil(5)
    } else {
        lean
    }
}

/// A group, removed on drop.
pub(crate) struct Group(pub(crate) String);

impl Group {
    /// Creates a group.
    pub(crate) fn new(name: &str) -> Result<Self, Stop> {
        write("control", format!("create {name}")).during(format!("create {name}"))?;
        Ok(Self(name.to_owned()))
    }

    /// Returns the path of one of its files.
    pub(crate) fn file(&self, name: &str) -> String {
        format!("{}/{name}", self.0)
    }

    /// Moves a process into the group.
    pub(crate) fn add(&self, pid: libc::pid_t) -> io::Result<()> {
        write(&self.file("group.procs"), pid.to_string())
    }

    /// Returns the pids of its members.
    pub(crate) fn pids(&self) -> io::Result<Vec<libc::pid_t>> {
        Ok(read(&self.file("group.procs"))?
            .lines()
            .filter_map(|line| line.parse().ok())
            .collect())
    }

    /// Removes the group and returns the result.
    pub(crate) fn remove(self) -> io::Result<()> {
        let name = self.0.clone();
        std::mem::forget(self);
        write("control", format!("remove {name}"))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A test that fails half way may leave members, which exit with it.
        let _ = write("control", format!("remove {}", self.0));
    }
}

/// Waits until `condition` holds. Allows for a loaded machine.
pub(crate) fn eventually(what: &str, condition: impl Fn() -> bool) -> Outcome {
    /// TCG on a busy host is slow; the condition itself takes milliseconds.
    const PATIENCE_S: u64 = 60;
    let start = std::time::Instant::now();
    while !condition() {
        if start.elapsed().as_secs() > PATIENCE_S {
            return Err(failed(format!("{what}: not within {PATIENCE_S} s")));
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    Ok(())
}
