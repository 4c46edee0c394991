// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Finds processes that have a GPU open and not the library. No limit of the user-space mode binds
//! them, and gctd does not know them.

use crate::{Content, Error, Owner, Target, Tree};
use gct_core::iface::files::{self, Mode, FILES};
use gct_core::iface::{File, Place};
use gctd_ipc::procfs::{self, stat_field, ANCESTORS_MAX, PARENT};
use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

/// The name that the library's file begins with.
const LIBRARY: &str = "/libgct_preload.so";

/// A process that has GPUs open.
#[derive(Debug, PartialEq)]
pub struct Other {
    /// Its pid.
    pub pid: u32,
    /// The indices of the GPUs.
    pub gpus: Vec<u32>,
    /// The name of its program.
    pub command: String,
    /// The group of which it would be a member with the library.
    pub group: Option<String>,
    /// Those of the GPUs on which that group has a limit. It does not bind the process.
    pub escapes: Vec<u32>,
}

impl Other {
    /// Says that it escapes its group's limits, if it does. Its name may be any bytes.
    pub fn escape(&self) -> Option<String> {
        let group = self.group.as_ref().filter(|_| !self.escapes.is_empty())?;
        let gpus: Vec<String> = self.escapes.iter().map(u32::to_string).collect();
        let (pid, command) = (self.pid, &self.command);
        Some(format!(
            "process {pid} ({command:?}) has GPU {} open without the library, so no limit of {group} binds it",
            gpus.join(",")
        ))
    }
}

/// What a look at all processes found.
#[derive(Debug, Default, PartialEq)]
pub struct Found {
    /// By pid.
    pub others: Vec<Other>,
    /// The indices of the GPUs of the user-space mode.
    pub gpus: Vec<u32>,
    /// Processes whose descriptors this user may not see.
    pub hidden: usize,
}

/// What the tree has.
#[derive(Debug, Default)]
struct Known {
    /// Pairs of the N of `/dev/nvidiaN` and the index.
    gpus: Vec<(u32, u32)>,
    /// Processes that have the library.
    pids: Vec<u32>,
    /// The groups of members by pid.
    members: BTreeMap<u32, String>,
    /// The groups of cgroups.
    cgroups: BTreeMap<String, String>,
}

/// Looks at all processes below `proc`, which is a `/proc` of the tree's pid namespace.
///
/// # Errors
///
/// Those of reading the tree.
pub fn others(tree: &Tree, proc: &Path) -> Result<Found, Error> {
    let mut found = find(proc, &Known::read(tree)?);
    let mut limited = BTreeMap::new();
    for other in &mut found.others {
        let Some(group) = &other.group else {
            continue;
        };
        for gpu in &other.gpus {
            let pool = Target::Pool(Owner::Group(group.clone()), *gpu);
            let of_pool = limited.entry((group.clone(), *gpu));
            if *of_pool.or_insert_with(|| is_limited(tree, &pool)) {
                other.escapes.push(*gpu);
            }
        }
    }
    Ok(found)
}

/// Returns whether a file of a pool has another value than its default. What a GPU does not
/// support, and what went meanwhile, limits nothing.
fn is_limited(tree: &Tree, pool: &Target) -> bool {
    let mut limits = FILES.iter().filter(|entry| {
        let settable = entry.place == Place::Pool && entry.mode == Mode::ReadWrite;
        settable && entry.feature.is_some() && !entry.default.is_empty()
    });
    limits.any(|entry| {
        let value = tree.read(pool, entry).map(|value| value.to_string());
        value.is_ok_and(|value| value != entry.default)
    })
}

impl Known {
    fn read(tree: &Tree) -> Result<Self, Error> {
        let mut known = Self::default();
        for gpu in tree.gpus()? {
            let read = |file| tree.read(&Target::Gpu(gpu), files::entry(file));
            let (mode, minor) = (read(File::GpuMode)?, read(File::GpuMinor)?);
            if let (true, Ok(minor)) = (mode.to_string() == "user", minor.to_string().parse()) {
                known.gpus.push((minor, gpu));
            }
        }
        for owner in tree.owners()? {
            let group = match &owner {
                Owner::Process(pid) => {
                    known.pids.push(*pid);
                    continue;
                }
                Owner::Group(name) => name.clone(),
            };
            let target = Target::Owner(owner);
            // A group that went meanwhile has no members.
            let read = |file| tree.read(&target, files::entry(file)).ok();
            if let Some(Content::Pids(pids)) = read(File::GroupProcs) {
                let members = pids.into_iter().map(|pid| (pid, group.clone()));
                known.members.extend(members);
            }
            if let Some(Content::Cgroup(Some(path))) = read(File::GroupCgroup) {
                known.cgroups.insert(path, group);
            }
        }
        Ok(known)
    }

    /// Returns the group of a process: that of the closest member among it and its ancestors, or
    /// else that of the closest cgroup.
    fn group(&self, proc: &Path, pid: u32) -> Option<String> {
        let mut ancestor = pid;
        for _ in 0..ANCESTORS_MAX {
            if let Some(group) = self.members.get(&ancestor) {
                return Some(group.clone());
            }
            match parent(&proc.join(ancestor.to_string())) {
                Some(parent) => ancestor = parent,
                None => break,
            }
        }
        let text = fs::read_to_string(proc.join(format!("{pid}/cgroup"))).ok()?;
        let cgroup = text.lines().find_map(|line| line.strip_prefix("0::"))?;
        let mut above = Path::new(cgroup).ancestors();
        above.find_map(|path| self.cgroups.get(path.to_str()?).cloned())
    }
}

/// Returns the pid of a process's parent.
fn parent(process: &Path) -> Option<u32> {
    let stat = fs::read(process.join("stat")).ok()?;
    stat_field(&stat, PARENT)?.parse().ok()
}

/// Looks at all processes but those that have the library.
fn find(proc: &Path, known: &Known) -> Found {
    let mut found = Found {
        gpus: known.gpus.iter().map(|(_, gpu)| *gpu).collect(),
        ..Found::default()
    };
    let entries = fs::read_dir(proc).into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let mut pids: Vec<u32> = pids.filter(|pid| !known.pids.contains(pid)).collect();
    pids.sort_unstable();
    for pid in pids {
        let process = proc.join(pid.to_string());
        let fds = match fs::read_dir(process.join("fd")) {
            Ok(fds) => fds,
            Err(error) => {
                // A process that has ended meanwhile is none.
                found.hidden += usize::from(error.kind() == ErrorKind::PermissionDenied);
                continue;
            }
        };
        let links = fds.flatten().filter_map(|fd| fs::read_link(fd.path()).ok());
        let minors = links.filter_map(|link| minor(&link));
        let index = |minor| {
            let mut gpus = known.gpus.iter();
            gpus.find(|(of, _)| *of == minor).map(|(_, gpu)| *gpu)
        };
        let mut gpus: Vec<u32> = minors.filter_map(index).collect();
        gpus.sort_unstable();
        gpus.dedup();
        if !gpus.is_empty() && !has_library(&process) {
            found.others.push(Other {
                pid,
                gpus,
                command: procfs::program(&process),
                group: known.group(proc, pid),
                escapes: Vec::new(),
            });
        }
    }
    found
}

/// Returns the N of `/dev/nvidiaN`.
fn minor(path: &Path) -> Option<u32> {
    path.to_str()?.strip_prefix("/dev/nvidia")?.parse().ok()
}

/// Returns whether the library is mapped in a process.
fn has_library(process: &Path) -> bool {
    let maps = fs::read_to_string(process.join("maps")).unwrap_or_default();
    maps.lines().any(|line| line.contains(LIBRARY))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn who_has_a_gpu_open_without_the_library_is_found() {
        let proc = std::env::temp_dir().join(format!("gctctl-others-{}", std::process::id()));
        let _ = fs::remove_dir_all(&proc);
        let process = |pid: u32, open: &[&str], maps: &str| {
            let process = proc.join(pid.to_string());
            fs::create_dir_all(process.join("fd")).unwrap();
            for (fd, path) in open.iter().enumerate() {
                symlink(path, process.join(format!("fd/{fd}"))).unwrap();
            }
            fs::write(process.join("maps"), maps).unwrap();
            fs::write(process.join("comm"), format!("\x1b[2J\n{pid}\n")).unwrap();
        };
        let library = "7f00-7f01 r-xp 0 08:01 7 /usr/lib/gctgroup/libgct_preload.so\n";
        process(
            30,
            &["/dev/null", "/dev/nvidia1", "/dev/nvidia4", "/dev/nvidia1"],
            "",
        );
        process(
            4,
            &["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia9"],
            "",
        );
        process(5, &["/dev/nvidia1"], library);
        process(6, &["/dev/nvidia1"], "");
        // Its shell was attached; the name of the program is no field.
        fs::write(proc.join("30/stat"), "30 (a) 7) S 4 30 30 0 -1").unwrap();
        fs::write(proc.join("30/cgroup"), "0::/a\n").unwrap();
        fs::create_dir_all(proc.join("driver")).unwrap();
        let other = Other {
            pid: 30,
            gpus: vec![0, 2],
            command: "?[2J?30".into(),
            group: Some("web".into()),
            escapes: Vec::new(),
        };
        let name = |name: &str| name.to_owned();
        let mut known = Known {
            gpus: vec![(4, 0), (1, 2)],
            pids: vec![6],
            members: BTreeMap::from([(4, name("web"))]),
            cgroups: [("/a", "a"), ("/a/b", "b"), ("/", "all")]
                .map(|(path, group)| (name(path), name(group)))
                .into(),
        };
        let found = find(&proc, &known);
        known.members.clear();
        let of_cgroup = ["/a/b/c/d", "/a/bc", "/ab", ""].map(|path| {
            fs::write(proc.join("30/cgroup"), format!("7:cpu:/a/b\n0::{path}\n")).unwrap();
            known.group(&proc, 30)
        });
        fs::remove_dir_all(&proc).unwrap();
        let expected = Found {
            others: vec![other],
            gpus: vec![0, 2],
            hidden: 0,
        };
        assert_eq!(found, expected);
        let expected = ["b", "a", "all"].map(|group| Some(name(group)));
        assert_eq!(of_cgroup[..3], expected);
        assert_eq!(of_cgroup[3], None);
    }
}
