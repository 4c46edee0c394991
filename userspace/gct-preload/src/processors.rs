// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Finds the processors that the library's threads may use, and how many the program has.
//!
//! A thread inherits affinity and scheduling class from the thread that makes it, and any thread of
//! the program may make a channel. The worker serves all of them, so it gets the affinity that the
//! process started with.

use crate::signals::Blocked;
use core::sync::atomic::{AtomicBool, Ordering};
use gct_core::units::Cpus;
use std::fs;
use std::path::{Path, PathBuf};

/// Bytes of a processor set. Linux supports at most 8192 processors.
const SET_BYTES: usize = 1024;

#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Set([u8; SET_BYTES]);

impl Set {
    fn count(&self) -> u64 {
        self.0.iter().map(|byte| u64::from(byte.count_ones())).sum()
    }

    /// Returns the calling thread's set; `None` if the kernel has more processors than the set has
    /// room for.
    fn own() -> Option<Self> {
        let mut set = Self([0; SET_BYTES]);
        // SAFETY: the set has so many bytes.
        let ret = unsafe { libc::sched_getaffinity(0, SET_BYTES, set.0.as_mut_ptr().cast()) };
        (ret == 0).then_some(set)
    }
}

/// The affinity with which the process started.
struct AtStart(core::cell::UnsafeCell<Set>);

// SAFETY: written once, by the loader before any other code runs, and read after `KNOWN` was seen.
unsafe impl Sync for AtStart {}

static AT_START: AtStart = AtStart(core::cell::UnsafeCell::new(Set([0; SET_BYTES])));
static KNOWN: AtomicBool = AtomicBool::new(false);

/// Remembers the affinity at the start of the process.
pub(crate) extern "C" fn remember() {
    if let Some(set) = Set::own() {
        // SAFETY: the loader calls this before there is another thread.
        unsafe { *AT_START.0.get() = set };
        KNOWN.store(true, Ordering::Release);
    }
}

/// Makes the loader call [`remember`].
#[used]
#[link_section = ".init_array"]
static REMEMBER: extern "C" fn() = remember;

/// Gives the calling thread the process's processors and the normal scheduling class. Where the
/// kernel refuses, the inherited value stays.
pub(crate) fn use_all() {
    // SAFETY: a plain structure, and it lives for the call; 0 is the calling thread.
    unsafe {
        let class = libc::sched_getscheduler(0) & !libc::SCHED_RESET_ON_FORK;
        // A program that chose the idle class keeps it.
        if class != libc::SCHED_IDLE {
            let priority: libc::sched_param = core::mem::zeroed();
            libc::sched_setscheduler(0, libc::SCHED_OTHER, &priority);
        }
    }
    if KNOWN.load(Ordering::Acquire) {
        // SAFETY: nobody writes it any more; the set has so many bytes.
        unsafe { libc::sched_setaffinity(0, SET_BYTES, AT_START.0.get().cast()) };
    }
}

/// Ends the calling thread's sleeps in time. By default Linux may end them 50 us late.
pub(crate) fn wake_in_time() {
    // SAFETY: changes only when the kernel wakes this thread. 0 would mean the default.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
}

/// Returns the processors that the program has: those of the calling thread, or fewer by the quota
/// of its cgroup.
pub(crate) fn count() -> Cpus {
    let all = Set::own().map_or(Cpus::whole(1), |set| Cpus::whole(set.count()));
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    match quota(Path::new("/sys/fs/cgroup"), &groups) {
        Some(quota) => all.min(quota),
        None => all,
    }
}

/// Returns how often the scheduler has preempted the calling thread.
pub(crate) fn preemptions() -> u64 {
    // SAFETY: all zero is a valid `rusage`, which lives for the call.
    let usage = unsafe {
        let mut usage: libc::rusage = core::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &mut usage);
        usage
    };
    u64::try_from(usage.ru_nivcsw).unwrap_or(0)
}

/// Returns the smallest quota of the cgroups that `/proc/self/cgroup` names and of those above
/// them.
fn quota(root: &Path, groups: &str) -> Option<Cpus> {
    let mut least: Option<Cpus> = None;
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else {
            continue;
        };
        let is_cpu = controllers.split(',').any(|name| name == "cpu");
        if !controllers.is_empty() && !is_cpu {
            continue;
        }
        // Version 2 has one hierarchy. Version 1 has one for the controller.
        for mounted in ["", "cpu", "cpu,cpuacct"] {
            let top = root.join(mounted);
            let group = top.join(path.trim_start_matches('/'));
            let above = group
                .ancestors()
                .take_while(|group| group.starts_with(&top));
            // A container may see its own group at the top, regardless of the path.
            for group in above {
                let own = quota_of(group);
                least = [least, own].into_iter().flatten().min();
            }
        }
    }
    least
}

/// Returns a cgroup's own quota.
fn quota_of(group: &Path) -> Option<Cpus> {
    let read = |name: &str| fs::read_to_string(PathBuf::from(group).join(name)).ok();
    if let Some(max) = read("cpu.max") {
        return Cpus::from_cpu_max(max.as_bytes());
    }
    let [quota, period] = ["cpu.cfs_quota_us", "cpu.cfs_period_us"].map(|name| {
        // -1 means no quota.
        read(name)?.trim().parse().ok()
    });
    Cpus::of_quota(quota?, period?)
}

/// Starts a thread of this library, with the processors of the process. It handles no signal of the
/// program. Returns false if the system allows no more threads.
pub(crate) fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> bool {
    // A thread inherits the mask of the thread that makes it.
    let _blocked = Blocked::all();
    let thread = std::thread::Builder::new().name(name.into());
    let begin = || {
        use_all();
        run();
    };
    thread.spawn(begin).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_quota_above_counts() {
        let root = std::env::temp_dir().join(format!("gct-cgroup-{}", std::process::id()));
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("pod/cpu.max", "150000 100000\n");
        write("pod/app/cpu.max", "max 100000\n");
        write("other/cpu.max", "10000 100000\n");
        write("cpu/old/cpu.cfs_quota_us", "50000\n");
        write("cpu/old/cpu.cfs_period_us", "100000\n");
        write("cpu/free/cpu.cfs_quota_us", "-1\n");
        write("cpu/free/cpu.cfs_period_us", "100000\n");
        for (groups, cpus) in [
            ("0::/pod/app\n", Some(Cpus(1_500))),
            ("0::/\n", None),
            ("0::/gone/below\n", None),
            (
                "4:cpu,cpuacct:/old\n1:name=systemd:/other\n",
                Some(Cpus(500)),
            ),
            ("4:cpu:/free\n0::/pod\n", Some(Cpus(1_500))),
            ("1:memory:/old\nnonsense\n", None),
        ] {
            assert_eq!(quota(&root, groups), cpus, "{groups}");
        }
        write("cpu.max", "100000 100000\n");
        assert_eq!(quota(&root, "0::/unseen/here\n"), Some(Cpus(1_000)));
        fs::remove_dir_all(&root).unwrap();
    }
}
