// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Finds the cgroup of a container, and whether it still has processes.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Hierarchies of version 1 in which a runtime puts containers, in the order in which they are
/// tried.
const VERSION_1: [&str; 4] = ["pids", "devices", "memory", "freezer"];

/// The cgroup of a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cgroup {
    /// Its path in version 2, which a group can be bound to; `None` if the machine has version 1.
    pub path: Option<String>,
    /// Its directory below the folder of cgroups, in either version.
    pub directory: PathBuf,
}

/// Returns the cgroup of a process. Below the root of `cgroups` lies version 2, or its hierarchies
/// of version 1 and perhaps version 2 as `unified`.
///
/// # Errors
///
/// Fails if the process is gone, or is in no cgroup but the root.
pub fn of(proc: &Path, cgroups: &Path, pid: u32) -> io::Result<Cgroup> {
    // A container that runs may have moved to a cgroup of any name below its own.
    let text = fs::read(proc.join(pid.to_string()).join("cgroup"))?;
    let text = String::from_utf8_lossy(&text);
    let is_pure = cgroups.join("cgroup.controllers").exists();
    let found = parse(&text, if is_pure { "" } else { "unified" });
    found.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "it has no cgroup of its own"))
}

fn parse(text: &str, version_2: &str) -> Option<Cgroup> {
    let mut lines = Vec::new();
    for line in text.lines() {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        // The root is everybody's.
        if path != "/" && path.starts_with('/') {
            lines.push((controllers, path));
        }
    }
    let directory = |folder: &str, path: &str| Path::new(folder).join(path.trim_start_matches('/'));
    if let Some((_, path)) = lines.iter().find(|(controllers, _)| controllers.is_empty()) {
        return Some(Cgroup {
            path: Some((*path).to_owned()),
            directory: directory(version_2, path),
        });
    }
    VERSION_1.iter().find_map(|wanted| {
        let has = |controllers: &str| {
            controllers
                .split(',')
                .any(|controller| controller == *wanted)
        };
        let (controllers, path) = lines.iter().find(|(controllers, _)| has(controllers))?;
        Some(Cgroup {
            path: None,
            directory: directory(controllers, path),
        })
    })
}

impl Cgroup {
    /// Returns the cgroup of a container, where this is that or one below it. Runtimes name it
    /// after the container's id.
    pub fn of_container(&self, id: &str) -> Option<Self> {
        let own = |path: &Path| {
            let is_named = |path: &&Path| {
                let name = path.file_name().and_then(|name| name.to_str());
                name.is_some_and(|name| name.contains(id))
            };
            path.ancestors().filter(is_named).last().map(Path::to_owned)
        };
        let path = match &self.path {
            Some(path) => Some(own(Path::new(path))?.to_str()?.to_owned()),
            None => None,
        };
        let directory = own(&self.directory)?;
        Some(Self { path, directory })
    }

    /// Returns whether the directory exists.
    pub fn exists(&self, cgroups: &Path) -> bool {
        cgroups.join(&self.directory).is_dir()
    }

    /// Returns whether a process is in it or below it. What cannot be read counts as one.
    pub fn is_populated(&self, cgroups: &Path) -> bool {
        let directory = cgroups.join(&self.directory);
        match fs::read_to_string(directory.join("cgroup.events")) {
            Ok(events) => !events.lines().any(|line| line == "populated 0"),
            Err(_) => is_populated(&directory),
        }
    }
}

/// Looks for processes in a directory of version 1, which does not count them.
fn is_populated(directory: &Path) -> bool {
    if fs::read_to_string(directory.join("cgroup.procs")).is_ok_and(|procs| !procs.is_empty()) {
        return true;
    }
    let Ok(entries) = fs::read_dir(directory) else {
        return directory.exists();
    };
    let paths = entries.flatten().map(|entry| entry.path());
    paths
        .filter(|path| path.is_dir())
        .any(|path| is_populated(&path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_2_comes_first() {
        let pure = parse("0::/kubepods/pod1/c\n", "").unwrap();
        assert_eq!(pure.path.as_deref(), Some("/kubepods/pod1/c"));
        assert_eq!(pure.directory, Path::new("kubepods/pod1/c"));
        let hybrid = parse("8:pids:/kubepods/pod1/c\n0::/kubepods/pod1/c\n", "unified").unwrap();
        assert_eq!(hybrid.path.as_deref(), Some("/kubepods/pod1/c"));
        assert_eq!(hybrid.directory, Path::new("unified/kubepods/pod1/c"));
    }

    #[test]
    fn version_1_has_a_directory_only() {
        let text = "9:name=systemd:/\n5:cpu,cpuacct:/x\n4:devices:/kubepods/c\n3:memory:/k\n0::/\n";
        let cgroup = parse(text, "unified").unwrap();
        assert_eq!(cgroup.path, None);
        assert_eq!(cgroup.directory, Path::new("devices/kubepods/c"));
    }

    #[test]
    fn the_root_is_no_containers() {
        for text in ["", "0::/\n", "8:pids:/\n0::/\n", "x\n", "1:pids:relative\n"] {
            assert_eq!(parse(text, ""), None, "{text}");
        }
    }

    #[test]
    fn who_has_moved_to_a_cgroup_of_any_name_is_found() {
        let name = format!("gct-plugin-names-{}", std::process::id());
        let proc = std::env::temp_dir().join(name);
        fs::create_dir_all(proc.join("7")).unwrap();
        fs::write(proc.join("7/cgroup"), b"0::/kubepods/cri-4711/\xff\n").unwrap();
        let found = of(&proc, Path::new("/nowhere"), 7);
        fs::remove_dir_all(&proc).unwrap();
        let own = found.unwrap().of_container("4711").unwrap();
        assert_eq!(own.path.as_deref(), Some("/kubepods/cri-4711"));
    }

    #[test]
    fn processes_are_found_in_both_versions() {
        let name = format!("gct-plugin-cgroup-{}", std::process::id());
        let cgroups = std::env::temp_dir().join(name);
        let below = cgroups.join("pids/a/init");
        fs::create_dir_all(&below).unwrap();
        let cgroup = Cgroup {
            path: None,
            directory: "pids/a".into(),
        };
        fs::write(cgroups.join("pids/a/cgroup.procs"), "").unwrap();
        assert!(cgroup.exists(&cgroups) && !cgroup.is_populated(&cgroups));
        fs::write(below.join("cgroup.procs"), "7\n").unwrap();
        assert!(cgroup.is_populated(&cgroups));
        fs::write(
            cgroups.join("pids/a/cgroup.events"),
            "populated 0\nfrozen 0\n",
        )
        .unwrap();
        assert!(!cgroup.is_populated(&cgroups));
        fs::remove_dir_all(&cgroups).unwrap();
        assert!(!cgroup.exists(&cgroups) && !cgroup.is_populated(&cgroups));
    }
}
