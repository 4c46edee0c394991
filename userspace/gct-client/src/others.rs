// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Finds processes that have a GPU open and not the library. No limit of the user-space mode binds
//! them, and gctd does not know them.

use crate::{Error, Owner, Target, Tree};
use gct_core::iface::{files, File};
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

/// Looks at all processes below `proc`, which is a `/proc` of the tree's pid namespace.
///
/// # Errors
///
/// Those of reading the tree.
pub fn others(tree: &Tree, proc: &Path) -> Result<Found, Error> {
    let mut gpus = Vec::new();
    for gpu in tree.gpus()? {
        let read = |file| tree.read(&Target::Gpu(gpu), files::entry(file));
        let (mode, minor) = (read(File::GpuMode)?, read(File::GpuMinor)?);
        if let (true, Ok(minor)) = (mode.to_string() == "user", minor.to_string().parse()) {
            gpus.push((minor, gpu));
        }
    }
    let owners = tree.owners()?;
    let known = owners.iter().filter_map(|owner| match owner {
        Owner::Process(pid) => Some(*pid),
        Owner::Group(_) => None,
    });
    Ok(find(proc, &gpus, &known.collect::<Vec<_>>()))
}

/// Looks at all processes but the `known` ones, which have the library. `gpus` are pairs of the N
/// of `/dev/nvidiaN` and the index.
fn find(proc: &Path, gpus: &[(u32, u32)], known: &[u32]) -> Found {
    let mut found = Found {
        gpus: gpus.iter().map(|(_, gpu)| *gpu).collect(),
        ..Found::default()
    };
    let entries = fs::read_dir(proc).into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let mut pids: Vec<u32> = pids.filter(|pid| !known.contains(pid)).collect();
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
            gpus.iter()
                .find(|(of, _)| *of == minor)
                .map(|(_, gpu)| *gpu)
        };
        let mut gpus: Vec<u32> = minors.filter_map(index).collect();
        gpus.sort_unstable();
        gpus.dedup();
        if !gpus.is_empty() && !has_library(&process) {
            let command = fs::read_to_string(process.join("comm")).unwrap_or_default();
            found.others.push(Other {
                pid,
                gpus,
                command: command.trim_end().to_owned(),
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
            fs::write(process.join("comm"), format!("program {pid}\n")).unwrap();
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
        fs::create_dir_all(proc.join("driver")).unwrap();
        let other = Other {
            pid: 30,
            gpus: vec![0, 2],
            command: "program 30".into(),
        };
        let found = find(&proc, &[(4, 0), (1, 2)], &[6]);
        fs::remove_dir_all(&proc).unwrap();
        let expected = Found {
            others: vec![other],
            gpus: vec![0, 2],
            hidden: 0,
        };
        assert_eq!(found, expected);
    }
}
