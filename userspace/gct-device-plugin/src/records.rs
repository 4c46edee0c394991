// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Keeps a record of each container that has a group.
//!
//! The tree forgets groups when the driver starts anew, or a daemon that has kept nothing, and does
//! not say what a group is for. A record has all that is needed to make the group again, and to
//! know when the container is gone. Hooks and the plugin are programs of their own, so every change
//! is made under a lock of the directory. The kernel releases it when its holder dies.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use gct_kubelet::group::PodContainer;
use rustix::fs::{flock, FlockOperation};
use serde::{Deserialize, Serialize};

use crate::cgroup::Cgroup;

/// Limits: file and content, in the order in which they are written.
pub type Limits = Vec<(String, String)>;

/// What a container may use of a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// Its profile.
    pub profile: String,
    /// Its limits.
    pub limits: Limits,
    /// Whether it is a client of the GPU's MPS daemon.
    #[serde(default)]
    pub mps: bool,
    /// The claim's device that it is, which no other container may have.
    #[serde(default)]
    pub claim: Option<String>,
    /// The most containers that may have a share of its profile on the GPU, where the kubelet does
    /// not count them.
    #[serde(default)]
    pub slots: Option<u32>,
}

/// A container with a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The group.
    pub group: String,
    /// The container's id.
    pub id: String,
    /// The pod's container that it is, if it is one.
    pub pod: Option<PodContainer>,
    /// Its first process.
    pub pid: u32,
    /// When that process started, in the kernel's ticks.
    pub started: u64,
    /// Its cgroup.
    pub cgroup: Cgroup,
    /// Its shares, by the GPU's index.
    pub gpus: BTreeMap<u32, Vec<Share>>,
}

impl Record {
    /// Returns all of its shares.
    pub fn shares(&self) -> impl Iterator<Item = &Share> {
        self.gpus.values().flatten()
    }
}

/// The records, locked until this value is dropped.
#[derive(Debug)]
pub struct Records {
    directory: PathBuf,
    _lock: File,
}

impl Records {
    /// Waits until nobody else changes groups or records.
    ///
    /// # Errors
    ///
    /// Those of the file system.
    pub fn lock(directory: &Path) -> Result<Self> {
        let failed = || format!("{} cannot be locked", directory.display());
        let mut builder = DirBuilder::new();
        builder
            .recursive(true)
            .mode(0o700)
            .create(directory)
            .with_context(failed)?;
        let path = directory.join("lock");
        let mut options = OpenOptions::new();
        let lock = options
            .create(true)
            .truncate(false)
            .write(true)
            .open(path)
            .with_context(failed)?;
        loop {
            match flock(&lock, FlockOperation::LockExclusive) {
                Err(rustix::io::Errno::INTR) => {}
                other => break other.with_context(failed)?,
            }
        }
        Ok(Self {
            directory: directory.to_owned(),
            _lock: lock,
        })
    }

    /// Returns all records. What is no record is left out: nobody else has a reason to write here.
    ///
    /// # Errors
    ///
    /// Those of the file system.
    pub fn all(&self) -> Result<Vec<Record>> {
        Ok(all(&self.directory)?)
    }

    /// Returns the record of a container, without waiting for anybody.
    pub fn of_container(directory: &Path, id: &str) -> Option<Record> {
        let mut records = all(directory).ok()?.into_iter();
        records.find(|record| record.id == id)
    }

    /// Returns whether a group has a record, without waiting for anybody.
    pub fn exists(directory: &Path, group: &str) -> bool {
        path(directory, group).exists()
    }

    /// Returns the record of a group.
    pub fn read(&self, group: &str) -> Option<Record> {
        let text = fs::read(self.path(group)).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// Writes a record, in place of the group's old one. A crash leaves the old one or the new one.
    ///
    /// # Errors
    ///
    /// Those of the file system.
    pub fn write(&self, record: &Record) -> Result<()> {
        let path = self.path(&record.group);
        let new = path.with_extension("new");
        let text = serde_json::to_vec(record)?;
        let written = fs::write(&new, text).and_then(|()| fs::rename(&new, &path));
        written.with_context(|| format!("{} cannot be written", path.display()))
    }

    /// Removes the record of a group, if there is one.
    ///
    /// # Errors
    ///
    /// Those of the file system.
    pub fn remove(&self, group: &str) -> Result<()> {
        let path = self.path(group);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(error).with_context(|| format!("{} cannot be removed", path.display()))
            }
            _ => Ok(()),
        }
    }

    fn path(&self, group: &str) -> PathBuf {
        path(&self.directory, group)
    }
}

fn all(directory: &Path) -> io::Result<Vec<Record>> {
    let mut records = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path
            .extension()
            .is_some_and(|extension| extension == "json")
        {
            records.extend(
                fs::read(&path)
                    .ok()
                    .and_then(|text| serde_json::from_slice(&text).ok()),
            );
        }
    }
    Ok(records)
}

/// Returns where a record is. Names may contain dots, so the extension is added and not replaced.
fn path(directory: &Path, group: &str) -> PathBuf {
    directory.join(format!("{group}.json"))
}
