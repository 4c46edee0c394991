// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Reads and writes the tree for these tests.

use gct_ktap::{failed, Outcome, Stop};
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Where debugfs shows the tree.
const ROOT: &str = "/sys/kernel/debug/gctgroup";

/// Returns the absolute path of a path in the tree.
pub(crate) fn at(path: &str) -> PathBuf {
    Path::new(ROOT).join(path)
}

/// Reads a file.
pub(crate) fn read(path: &str) -> io::Result<String> {
    fs::read_to_string(at(path))
}

/// Writes to a file in one `write`, which a signal may interrupt.
pub(crate) fn write(path: &str, text: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).open(at(path))?;
    match file.write(text.as_bytes())? == text.len() {
        true => Ok(()),
        false => Err(io::ErrorKind::WriteZero.into()),
    }
}

/// Returns the tree's index of the GPU of `/dev/nvidiaN`.
pub(crate) fn index_of(minor: u32) -> Result<u32, Stop> {
    for entry in fs::read_dir(at("gpus"))? {
        let name = entry?.file_name();
        let name = name.to_string_lossy();
        let shown = read(&format!("gpus/{name}/minor"))?;
        if shown.trim().parse() == Ok(minor) {
            return name.parse().map_err(|_| failed(format!("gpus/{name}")));
        }
    }
    Err(failed(format!("no GPU has minor {minor}")))
}

/// Returns the number of a key in text of `KEY VALUE` lines.
pub(crate) fn value(text: &str, key: &str) -> Option<u64> {
    let mut lines = text.lines();
    let value = lines.find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
    value?.parse().ok()
}

/// Returns the number of a key in a file of `KEY VALUE` lines, which must have it.
pub(crate) fn stat(path: &str, key: &str) -> Result<u64, Stop> {
    let text = read(path)?;
    value(&text, key).ok_or_else(|| failed(format!("no {key} in {path}: {text}")))
}

/// An owner's usage of a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) groups: u64,
    pub(crate) channels: u64,
    /// Device memory; `None` if the driver's release does not count it.
    pub(crate) memory: Option<u64>,
}

/// Returns the usage of `owner`, a pid or the name of a group; `None` without a directory.
pub(crate) fn usage(owner: &str, minor: u32) -> Result<Option<Usage>, Stop> {
    let directory = format!("{owner}/{}", index_of(minor)?);
    if !at(&directory).exists() {
        return Ok(None);
    }
    let counted = |key: &str| stat(&format!("{directory}/compute.stat"), key);
    Ok(Some(Usage {
        groups: counted("channel_groups")?,
        channels: counted("channels")?,
        memory: value(&read(&format!("{directory}/gmem.stat"))?, "pinned"),
    }))
}

/// Time limit of waiting. Events take milliseconds on an idle machine, and may take a thousand
/// times as long under emulation on a busy host. No test may fail because of that.
const PATIENCE: Duration = Duration::from_secs(60);
/// Polling interval.
const PAUSE: Duration = Duration::from_millis(2);

/// Waits until `look` returns `expected`. Directories appear and disappear a moment after their
/// cause.
pub(crate) fn eventually<T: PartialEq + std::fmt::Debug>(
    what: &str,
    expected: &T,
    mut look: impl FnMut() -> Result<T, Stop>,
) -> Outcome {
    let start = Instant::now();
    loop {
        // A directory may disappear between being listed and being read.
        let found = look();
        if found.as_ref().is_ok_and(|found| found == expected) {
            return Ok(());
        }
        if start.elapsed() > PATIENCE {
            return Err(match found {
                Ok(found) => failed(format!("{what}: {found:?}, expected {expected:?}")),
                Err(Stop::Failed(why)) => failed(format!("{what}: {why}")),
                Err(skipped) => skipped,
            });
        }
        std::thread::sleep(PAUSE);
    }
}

/// Waits until an owner has this many channel groups and channels on a GPU; `None` means no
/// directory.
pub(crate) fn expect(owner: &str, minor: u32, counts: Option<(u64, u64)>) -> Outcome {
    eventually(&format!("{owner} on GPU {minor}"), &counts, || {
        Ok(usage(owner, minor)?.map(|usage| (usage.groups, usage.channels)))
    })
}

/// Waits until the tree has no directory of a process.
pub(crate) fn expect_gone(pid: u32) -> Outcome {
    eventually(&format!("directory {pid}"), &false, || {
        Ok(at(&pid.to_string()).exists())
    })
}

/// A named group, removed on drop.
pub(crate) struct Group(&'static str);

impl Group {
    /// Creates a group.
    pub(crate) fn new(name: &'static str) -> Result<Self, Stop> {
        write("control", &format!("create {name}"))?;
        Ok(Self(name))
    }

    /// Moves a process into the group.
    pub(crate) fn add(&self, pid: u32) -> io::Result<()> {
        write(&format!("{}/group.procs", self.0), &pid.to_string())
    }

    /// Removes the group and returns the result.
    pub(crate) fn remove(&self) -> io::Result<()> {
        write("control", &format!("remove {}", self.0))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let start = Instant::now();
        // A test may have removed the group. A member that was not waited for dies eventually, and
        // keeps the group until then.
        while at(self.0).exists() && self.remove().is_err() && start.elapsed() < PATIENCE {
            std::thread::sleep(PAUSE);
        }
    }
}
