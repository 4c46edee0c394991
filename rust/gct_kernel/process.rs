// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Identifies processes, and has their forks and exits reported.

use crate::bindings;
use crate::state::Glue;
use core::ptr::NonNull;
use gct_core::error::Error;
use gct_core::ids::{FileId, ProcKey, UserId};
use gct_core::limits;
use kernel::sync::aref::ARef;
use kernel::sync::atomic::{Atomic, Relaxed};
use kernel::task::Task;

impl From<bindings::gct_process> for ProcKey {
    fn from(process: bindings::gct_process) -> Self {
        Self {
            tgid: process.tgid,
            start_time_ns: process.start_time_ns,
        }
    }
}

/// Returns the process of a task.
fn key_of(task: *const kernel::bindings::task_struct) -> ProcKey {
    let mut process = bindings::gct_process {
        tgid: 0,
        reserved: 0,
        start_time_ns: 0,
    };
    // SAFETY: the callers below pass current, or a task to which they hold a reference. `process`
    // is writable.
    unsafe { bindings::gct_helper_process_of(task, &mut process) };
    process.into()
}

/// Returns the current process.
pub(crate) fn current() -> ProcKey {
    key_of(Task::current_raw())
}

/// Returns the user whose share the current process uses.
pub(crate) fn user() -> UserId {
    // SAFETY: reads the credentials of current, which only current replaces.
    UserId(unsafe { bindings::gct_helper_user() })
}

/// A process that was looked up by pid. Holds a reference to one of its tasks, so its identity can
/// still be read after another process got the pid.
pub(crate) struct Found(ARef<Task>);

impl Found {
    /// Looks up a process by its pid in the caller's pid namespace.
    ///
    /// # Errors
    ///
    /// [`Error::NoProcess`].
    pub(crate) fn new(pid: u32) -> Result<Self, Error> {
        // SAFETY: any number is valid.
        let task = unsafe { bindings::gct_helper_find_task(pid) };
        let task = NonNull::new(task).ok_or(Error::NoProcess)?;
        // SAFETY: the helper returned a live task and one reference to it, which the `ARef` takes
        // over. `Task` is a transparent wrapper of `task_struct`.
        Ok(Self(unsafe { ARef::from_raw(task.cast()) }))
    }

    /// Returns the current process.
    pub(crate) fn own() -> Self {
        // SAFETY: current is alive while it runs this. `Task` is a transparent wrapper of
        // `task_struct`.
        let task: &Task = unsafe { &*Task::current_raw().cast() };
        Self(ARef::from(task))
    }

    /// Returns its identity.
    pub(crate) fn key(&self) -> ProcKey {
        key_of(self.0.as_ptr())
    }

    /// Returns whether all its threads have begun to exit. Then its exit may or may not have been
    /// reported already.
    pub(crate) fn is_dead(&self) -> bool {
        // SAFETY: `self` holds a reference to the task.
        unsafe { bindings::gct_helper_process_dead(self.0.as_ptr()) }
    }
}

/// Returns a process's pid in the caller's pid namespace. `None` if it is dead or not visible
/// there, even if another process has the pid now.
pub(crate) fn visible_pid(key: &ProcKey) -> Option<u32> {
    let process = bindings::gct_process {
        tgid: key.tgid,
        reserved: 0,
        start_time_ns: key.start_time_ns,
    };
    // SAFETY: `process` is readable, and any numbers in it are valid.
    let pid = unsafe { bindings::gct_helper_visible_tgid(&process) };
    (pid != 0).then_some(pid)
}

/// Returns whether forks and exits are reported.
pub(crate) fn is_watching() -> bool {
    WATCHING.load(Relaxed)
}

/// Room for the longest path of a group, one byte more, and a NUL. The extra byte tells a longer
/// path from the longest.
pub(crate) type CgroupBuffer = [u8; limits::CGROUP_LEN_MAX + 2];

/// An empty buffer for [`cgroup`].
pub(crate) const CGROUP_BUFFER: CgroupBuffer = [0; limits::CGROUP_LEN_MAX + 2];

/// Returns current's path in the cgroup v2 hierarchy, empty if it has none. A path longer than a
/// group's may be is truncated one byte after that length: groups above it match, and none equals
/// it.
pub(crate) fn cgroup(buffer: &mut CgroupBuffer) -> &[u8] {
    let size = u32::try_from(buffer.len()).unwrap_or(0);
    // SAFETY: `buffer` is writable and `size` bytes long.
    let length = unsafe { bindings::gct_helper_cgroup_path(buffer.as_mut_ptr(), size) };
    usize::try_from(length)
        .ok()
        .and_then(|length| buffer.get(..length))
        .unwrap_or_default()
}

/// Returns whether a limit binds the process that opened a file; without the file, current.
pub(crate) fn is_bound(glue: &Glue, file: Option<FileId>) -> bool {
    match file {
        Some(file) => glue.binds_file(file),
        None => glue.binds_opener(current(), cgroup(&mut { CGROUP_BUFFER })),
    }
}

/// Whether a [`Watch`] exists.
static WATCHING: Atomic<bool> = Atomic::new(false);

/// While it exists, every fork and exit is reported to [`crate::ffi`].
pub(crate) struct Watch(());

impl Watch {
    /// Registers the tracepoints. At most one `Watch` may exist at a time.
    ///
    /// # Errors
    ///
    /// EOPNOTSUPP if the kernel has no such tracepoints; ENOMEM.
    pub(crate) fn start() -> Result<Self, kernel::error::Error> {
        // SAFETY: calls are serialised: `tree::Tree` alone makes a `Watch`, under its lock, and has
        // at most one.
        kernel::error::to_result(unsafe { bindings::gct_helper_trace_start() })?;
        WATCHING.store(true, Relaxed);
        Ok(Self(()))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        WATCHING.store(false, Relaxed);
        // SAFETY: `start` has registered the tracepoints. Calls are serialised as there: the tree
        // drops its `Watch` under its lock.
        unsafe { bindings::gct_helper_trace_stop() };
    }
}
