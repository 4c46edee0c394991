// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Finds processes that have a GPU open and that gctd does not know. No limit of the user-space
//! mode binds them, whether the library is mapped in them or not: libcuda that was loaded by
//! `dlmopen` calls past it.

use crate::{Content, Error, Owner, Target, Tree};
use gct_core::iface::files::{self, Mode, FILES};
use gct_core::iface::{File, Place};
use gctd_ipc::procfs::{self, stat_field, ANCESTORS_MAX, PARENT};
use rustix::fs::{statx, AtFlags, FileType, StatxFlags, CWD};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The major number of the nodes `/dev/nvidiaN` (`nv-linux.h`, NV_MAJOR_DEVICE_NUMBER).
const MAJOR: u32 = 195;

/// A process that has GPUs open.
#[derive(Debug, PartialEq)]
pub struct Other {
    /// Its pid.
    pub pid: u32,
    /// The indices of the GPUs.
    pub gpus: Vec<u32>,
    /// The name of its program.
    pub command: String,
    /// The group of which it would be a member if gctd knew it.
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
            "process {pid} ({command:?}) has GPU {} open and gctd does not know it, so no limit of {group} binds it",
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
    /// Processes whose descriptors this user may not see, or that have too many.
    pub hidden: usize,
}

/// What the tree has.
#[derive(Debug, Default)]
struct Known {
    /// Pairs of the N of `/dev/nvidiaN` and the index.
    gpus: Vec<(u32, u32)>,
    /// Processes that gctd knows.
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
    let mut found = find(proc, &Known::read(tree)?, Look::new(proc));
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

/// Returns whether a process is a member of a group. One that gctd does not know is, if its cgroup
/// says so: whose child it is says nothing, for the parent may have become a member later. `proc`
/// is a `/proc` of the tree's pid namespace.
///
/// # Errors
///
/// Those of reading the tree.
pub fn is_member(tree: &Tree, proc: &Path, group: &str, pid: u32) -> Result<bool, Error> {
    let target = Target::Owner(Owner::Group(group.to_owned()));
    let procs = tree.read(&target, files::entry(File::GroupProcs))?;
    if matches!(procs, Content::Pids(pids) if pids.contains(&pid)) {
        return Ok(true);
    }
    if tree.owners()?.contains(&Owner::Process(pid)) {
        return Ok(false);
    }
    let known = Known::read(tree)?;
    let of_cgroup = known.by_cgroup(proc, pid).map(String::as_str);
    Ok(of_cgroup == Some(group) && known.by_ancestor(proc, pid).is_none())
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
    fn group(&self, proc: &Path, pid: u32) -> Option<&String> {
        let of_member = self.by_ancestor(proc, pid);
        of_member.or_else(|| self.by_cgroup(proc, pid))
    }

    fn by_ancestor(&self, proc: &Path, pid: u32) -> Option<&String> {
        let mut ancestor = pid;
        for _ in 0..ANCESTORS_MAX {
            if let Some(group) = self.members.get(&ancestor) {
                return Some(group);
            }
            ancestor = parent(&proc.join(ancestor.to_string()))?;
        }
        None
    }

    fn by_cgroup(&self, proc: &Path, pid: u32) -> Option<&String> {
        let text = fs::read(proc.join(format!("{pid}/cgroup"))).ok()?;
        let mut lines = text.split(|byte| *byte == b'\n');
        let cgroup = lines.find_map(|line| line.strip_prefix(b"0::"))?;
        let mut above = Path::new(OsStr::from_bytes(cgroup)).ancestors();
        above.find_map(|path| self.cgroups.get(path.to_str()?))
    }
}

/// Returns the pid of a process's parent.
fn parent(process: &Path) -> Option<u32> {
    let stat = fs::read(process.join("stat")).ok()?;
    stat_field(&stat, PARENT)?.parse().ok()
}

/// Looks at all processes but those that gctd knows.
fn find(proc: &Path, known: &Known, mut look: Look) -> Found {
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
        let minors = match look.minors(&process, pid) {
            Ok(minors) => minors,
            Err(error) => {
                let hides = [ErrorKind::PermissionDenied, ErrorKind::QuotaExceeded];
                // A process that has ended meanwhile is none.
                found.hidden += usize::from(hides.contains(&error.kind()));
                continue;
            }
        };
        let index = |minor| {
            let mut gpus = known.gpus.iter();
            gpus.find(|(of, _)| *of == minor).map(|(_, gpu)| *gpu)
        };
        let mut gpus: Vec<u32> = minors.into_iter().filter_map(index).collect();
        gpus.sort_unstable();
        gpus.dedup();
        if !gpus.is_empty() {
            found.others.push(Other {
                pid,
                gpus,
                command: procfs::program(&process),
                group: known.group(proc, pid).cloned(),
                escapes: Vec::new(),
            });
        }
    }
    found
}

/// A look at the descriptors of processes. One takes some microseconds, and a process may have as
/// many as it likes, once for each of its threads.
struct Look {
    /// Whether pids there are those of this program's pid namespace.
    own_pids: bool,
    /// Descriptors of a process, and of all processes, that are still looked at.
    of_process: usize,
    left: usize,
}

impl Look {
    const OF_PROCESS: usize = 1 << 17;
    const ALL: usize = 1 << 19;

    fn new(proc: &Path) -> Self {
        let own = fs::read_link(proc.join("self"));
        let own = own.is_ok_and(|own| own.as_os_str() == std::process::id().to_string().as_str());
        Self {
            own_pids: own,
            of_process: Self::OF_PROCESS,
            left: Self::ALL,
        }
    }

    /// Returns the N of each `/dev/nvidiaN` that a process has open. A leader that has ended before
    /// its threads has no descriptors, and they have. A thread may have descriptors of its own.
    fn minors(&mut self, process: &Path, pid: u32) -> io::Result<Vec<u32>> {
        let mut left = self.left.min(self.of_process);
        let before = left;
        let found = self.minors_of_threads(process, pid, &mut left);
        self.left -= before - left;
        found
    }

    fn minors_of_threads(
        &self,
        process: &Path,
        pid: u32,
        left: &mut usize,
    ) -> io::Result<Vec<u32>> {
        let of_leader = minors_in(&process.join("fd"), left)?;
        if !of_leader.is_empty() {
            return Ok(of_leader);
        }
        let threads = fs::read_dir(process.join("task")).into_iter().flatten();
        for thread in threads.flatten() {
            let tid = thread.file_name().to_str().and_then(|tid| tid.parse().ok());
            if self.own_pids && tid.is_some_and(|tid| has_descriptors_of(tid, pid)) {
                continue;
            }
            match minors_in(&thread.path().join("fd"), left) {
                Ok(minors) if minors.is_empty() => {}
                Err(error) if error.kind() != ErrorKind::QuotaExceeded => {}
                found => return found,
            }
        }
        Ok(Vec::new())
    }
}

/// Returns whether two threads have the same descriptors: all of them, as long as both run.
fn has_descriptors_of(thread: u32, other: u32) -> bool {
    const KCMP_FILES: libc::c_int = 2;
    // SAFETY: the call compares, and takes no pointer.
    let order = unsafe { libc::syscall(libc::SYS_kcmp, thread, other, KCMP_FILES, 0, 0) };
    order == 0
}

/// Looks at the descriptors in a directory, and fails when there are more than are `left`.
fn minors_in(fds: &Path, left: &mut usize) -> io::Result<Vec<u32>> {
    let mut minors = Vec::new();
    for fd in fs::read_dir(fds)?.flatten() {
        *left = left.checked_sub(1).ok_or(ErrorKind::QuotaExceeded)?;
        minors.extend(minor(&fd.path()));
    }
    Ok(minors)
}

/// Returns the N of the `/dev/nvidiaN` that a descriptor is: by its number, since the node may have
/// any name, or by its name, if it cannot be looked at. A server of files is not asked.
fn minor(fd: &Path) -> Option<u32> {
    if let Ok(node) = statx(CWD, fd, AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE) {
        let is_device = FileType::from_raw_mode(node.stx_mode.into()).is_char_device();
        return (is_device && node.stx_rdev_major == MAJOR).then_some(node.stx_rdev_minor);
    }
    let link = fs::read_link(fd).ok()?;
    link.to_str()?.strip_prefix("/dev/nvidia")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{makedev, mknodat, Mode};
    use std::os::unix::fs::symlink;

    #[test]
    fn who_has_a_gpu_open_and_is_not_known_is_found() {
        let proc = std::env::temp_dir().join(format!("gctctl-others-{}", std::process::id()));
        let _ = fs::remove_dir_all(&proc);
        let process = |pid: u32, fds: &str, open: &[&str]| {
            let process = proc.join(pid.to_string());
            fs::create_dir_all(process.join("fd")).unwrap();
            fs::create_dir_all(process.join(fds)).unwrap();
            for (fd, path) in open.iter().enumerate() {
                symlink(path, process.join(fds).join(fd.to_string())).unwrap();
            }
            fs::write(process.join("comm"), format!("\x1b[2J\n{pid}\n")).unwrap();
        };
        let open = ["/dev/null", "/dev/nvidia1", "/dev/nvidia4", "/dev/nvidia1"];
        process(30, "fd", &open);
        process(
            4,
            "fd",
            &["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia9"],
        );
        process(5, "task/7/fd", &["/dev/null", "/dev/nvidia1"]);
        process(6, "fd", &["/dev/nvidia1"]);
        // Root alone can make a node.
        let node = proc.join("card");
        let mode = Mode::from_raw_mode(0o600);
        let made = mknodat(
            CWD,
            &node,
            FileType::CharacterDevice,
            mode,
            makedev(MAJOR, 1),
        );
        process(7, "fd", &[node.to_str().unwrap()]);
        // Its shell was attached; the name of the program is no field.
        fs::write(proc.join("30/stat"), "30 (a) 7) S 4 30 30 0 -1").unwrap();
        fs::write(proc.join("30/cgroup"), "0::/a\n").unwrap();
        fs::create_dir_all(proc.join("driver")).unwrap();
        let other = |pid: u32, gpus: &[u32], group: Option<&str>| Other {
            pid,
            gpus: gpus.to_vec(),
            command: format!("?[2J?{pid}"),
            group: group.map(str::to_owned),
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
        let found = find(&proc, &known, Look::new(&proc));
        let few = Look {
            of_process: 3,
            ..Look::new(&proc)
        };
        let of_few = find(&proc, &known, few);
        known.members.clear();
        let of_cgroup = ["/a/b/c/d", "/a/bc", "/ab", ""].map(|path| {
            fs::write(proc.join("30/cgroup"), format!("7:cpu:/a/b\n0::{path}\n")).unwrap();
            known.group(&proc, 30).cloned()
        });
        // Who may make cgroups may give them any name.
        fs::write(proc.join("30/cgroup"), b"0::/a/b/\xff\n").unwrap();
        let of_any_name = known.group(&proc, 30).cloned();
        fs::remove_dir_all(&proc).unwrap();
        let by_number = made.is_ok().then(|| other(7, &[2], None));
        let others = [
            Some(other(5, &[2], None)),
            by_number,
            Some(other(30, &[0, 2], Some("web"))),
        ];
        let expected = Found {
            others: others.into_iter().flatten().collect(),
            gpus: vec![0, 2],
            hidden: 0,
        };
        assert_eq!(found, expected);
        assert_eq!(
            (of_few.hidden, of_few.others.len()),
            (1, found.others.len() - 1)
        );
        let expected = ["b", "a", "all"].map(|group| Some(name(group)));
        assert_eq!(of_cgroup[..3], expected);
        assert_eq!(of_cgroup[3], None);
        assert_eq!(of_any_name, Some(name("b")));
    }

    /// A process with many threads costs what its descriptors cost, and a thread hides nothing.
    #[test]
    fn threads_with_the_same_descriptors_are_looked_at_once() {
        let own = std::process::id();
        if !has_descriptors_of(own, own) {
            return eprintln!("skipped: this system has no kcmp");
        }
        let node = std::env::temp_dir().join(format!("gctctl-node-{}", std::process::id()));
        let mode = Mode::from_raw_mode(0o600);
        let device = makedev(MAJOR, 3);
        let made = mknodat(CWD, &node, FileType::CharacterDevice, mode, device);
        let opened: Vec<_> = (0..300).map(|_| fs::File::open("/dev/null")).collect();
        let ready = std::sync::Barrier::new(42);
        let looked = std::sync::Barrier::new(42);
        let waits = || {
            ready.wait();
            looked.wait();
        };
        let looks = std::thread::scope(|scope| {
            for _ in 0..40 {
                scope.spawn(waits);
            }
            scope.spawn(|| {
                // SAFETY: this thread gets descriptors of its own, and runs nothing else.
                assert_eq!(unsafe { libc::unshare(libc::CLONE_FILES) }, 0);
                let opened = rustix::fs::open(&node, rustix::fs::OFlags::PATH, Mode::empty());
                waits();
                drop(opened);
            });
            ready.wait();
            let mut look = Look::new(Path::new("/proc"));
            let process = Path::new("/proc").join(own.to_string());
            let minors = look.minors(&process, own);
            looked.wait();
            (minors.unwrap(), Look::ALL - look.left)
        });
        drop(opened);
        let _ = fs::remove_file(&node);
        assert!((300..2000).contains(&looks.1), "{looks:?}");
        if made.is_ok() {
            assert_eq!(looks.0, [3]);
        }
    }
}
