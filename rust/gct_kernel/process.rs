// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Who a process is, and word of its forks and its exit.

use crate::bindings;
use core::ptr::NonNull;
use gct_core::error::Error;
use gct_core::ids::{ProcKey, UserId};
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

/// The process of a task.
fn key_of(task: *const kernel::bindings::task_struct) -> ProcKey {
    let mut process = bindings::gct_process {
        tgid: 0,
        reserved: 0,
        start_time_ns: 0,
    };
    // SAFETY: the callers below pass current or a task that they hold a
    // reference to, and `process` is writable.
    unsafe { bindings::gct_helper_process_of(task, &mut process) };
    process.into()
}

/// The process that runs this code.
pub(crate) fn current() -> ProcKey {
    key_of(Task::current_raw())
}

/// Who answers for the process that runs this code.
pub(crate) fn user() -> UserId {
    // SAFETY: reads current's credentials, which nobody else changes.
    UserId(unsafe { bindings::gct_helper_user() })
}

/// A process that somebody named by pid. It cannot be replaced by another of the
/// same pid while this value lives.
pub(crate) struct Found(ARef<Task>);

impl Found {
    /// The process that is `pid` in the caller's pid namespace.
    pub(crate) fn new(pid: u32) -> Result<Self, Error> {
        // SAFETY: takes any number.
        let task = unsafe { bindings::gct_helper_find_task(pid) };
        let task = NonNull::new(task).ok_or(Error::NoProcess)?;
        // SAFETY: the helper returned a live task with one reference, which the
        // `ARef` takes over. `Task` is a transparent wrapper of `task_struct`.
        Ok(Self(unsafe { ARef::from_raw(task.cast()) }))
    }

    /// The process that runs this code.
    pub(crate) fn own() -> Self {
        // SAFETY: current is alive while it runs this; the reference that is taken
        // here is the one that the `ARef` gives back.
        let task: &Task = unsafe { &*Task::current_raw().cast() };
        Self(ARef::from(task))
    }

    /// Its identity.
    pub(crate) fn key(&self) -> ProcKey {
        key_of(self.0.as_ptr())
    }

    /// Has it begun to exit? Then [`gct_trace_exit`](crate::ffi) was called for
    /// it or will be, in an order that is not known.
    pub(crate) fn is_dead(&self) -> bool {
        // SAFETY: `self` holds a reference to the task.
        unsafe { bindings::gct_helper_process_dead(self.0.as_ptr()) }
    }
}

/// The pid that the caller's pid namespace has for a process; `None` where it is
/// not visible or dead, whoever has its pid now.
pub(crate) fn visible_pid(key: &ProcKey) -> Option<u32> {
    let process = bindings::gct_process {
        tgid: key.tgid,
        reserved: 0,
        start_time_ns: key.start_time_ns,
    };
    // SAFETY: `process` is readable; any numbers will do.
    let pid = unsafe { bindings::gct_helper_visible_tgid(&process) };
    (pid != 0).then_some(pid)
}

/// Does the kernel report forks and exits?
pub(crate) fn is_watching() -> bool {
    WATCHING.load(Relaxed)
}

/// Room for a path that is as long as a group's may be and one byte more, so that
/// a longer one is seen.
pub(crate) type CgroupBuffer = [u8; limits::CGROUP_LEN_MAX + 2];

/// An empty one.
pub(crate) const CGROUP_BUFFER: CgroupBuffer = [0; limits::CGROUP_LEN_MAX + 2];

/// The caller's path in the cgroup v2 hierarchy; empty where it has none. A long one is
/// cut, one byte after the longest that a group may have: so a group above it is found,
/// and none equals it.
pub(crate) fn cgroup(buffer: &mut CgroupBuffer) -> &[u8] {
    let size = u32::try_from(buffer.len()).unwrap_or(0);
    // SAFETY: `buffer` is writable and has `size` bytes.
    let length = unsafe { bindings::gct_helper_cgroup_path(buffer.as_mut_ptr(), size) };
    usize::try_from(length)
        .ok()
        .and_then(|length| buffer.get(..length))
        .unwrap_or_default()
}

/// Is there a [`Watch`]?
static WATCHING: Atomic<bool> = Atomic::new(false);

/// While it lives, [`crate::ffi`] hears of every fork and exit.
pub(crate) struct Watch(());

impl Watch {
    /// Begins to listen. At most one may live at a time.
    pub(crate) fn start() -> Result<Self, kernel::error::Error> {
        // SAFETY: the caller, `tree::Tree`, has at most one `Watch` and a lock.
        kernel::error::to_result(unsafe { bindings::gct_helper_trace_start() })?;
        WATCHING.store(true, Relaxed);
        Ok(Self(()))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        WATCHING.store(false, Relaxed);
        // SAFETY: it was started, and nobody starts another before this returns.
        unsafe { bindings::gct_helper_trace_stop() };
    }
}
