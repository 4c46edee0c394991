// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Decides which group a process belongs to.

use super::watches::hashed;
use super::Daemon;
use crate::budget::FDS_WATCH;
use crate::kept::Change;
use crate::peer::meaning;
use crate::process::{self, Process};
use gct_core::error::Error;
use gct_core::ids::{GroupId, ProcKey};
use gctd_ipc::procfs::ANCESTORS_MAX;
use rustix::fd::OwnedFd;
use rustix::process::{pidfd_open, Pid, PidfdFlags};

/// Opens a process.
pub(super) fn open(key: ProcKey) -> Result<OwnedFd, Error> {
    let pid = i32::try_from(key.tgid).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or(Error::NoProcess)?;
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).map_err(meaning)?;
    // If the kernel has reused the pid, the descriptor names another process.
    match process::find(key.tgid)?.key == key {
        true => Ok(pidfd),
        false => Err(Error::NoProcess),
    }
}

impl Daemon {
    /// Makes a process a member of a group, and with it the children that it forks from now on.
    pub(super) fn join(&mut self, group: GroupId, pid: u32) -> Result<(), Error> {
        let key = process::of_thread(pid)?.key;
        self.tables.state().group_check(group)?;
        if !self.watches.contains(key) {
            self.watches.add(key, open(key)?, None)?;
        }
        self.add_member(group, key)?;
        self.joined.insert(hashed(key), process::now_ns());
        self.tables.state().member_moved(key, Some(group))?;
        self.apply_effects();
        self.keep_member(group, key, false);
        Ok(())
    }

    pub(super) fn add_member(&mut self, group: GroupId, key: ProcKey) -> Result<(), Error> {
        self.tables
            .with(|tables| tables.members().put(key, group))
            .map(|_| ())
    }

    /// Returns the group that a process inherits: that of its closest ancestor that is a member,
    /// if the process descends from it by a fork after it joined.
    ///
    /// Start times have the resolution of a clock tick. A child that started in the tick in which
    /// its parent joined counts as later.
    ///
    /// # Errors
    ///
    /// [`Error::NoSpace`] if the daemon cannot look at an ancestor.
    pub(super) fn inherited_group(&mut self, process: &Process) -> Result<Option<GroupId>, Error> {
        let mut child = *process;
        for _ in 0..ANCESTORS_MAX {
            if let Some(group) = self.tables.members().group_of(child.key) {
                return Ok((child.key == process.key).then_some(group));
            }
            let parent = match process::find(child.parent) {
                Err(Error::NoProcess) => return Ok(None),
                parent => parent?,
            };
            if let Some(group) = self.tables.members().group_of(parent.key) {
                let joined = self.joined.get(&hashed(parent.key)).copied().unwrap_or(0);
                let born = child.key.start_time_ns.saturating_add(process::tick_ns());
                return Ok((born >= joined).then_some(group));
            }
            child = parent;
        }
        Ok(None)
    }

    /// Removes the process that a watch's event is about. Returns its key, or `None` for a stale
    /// event.
    pub(crate) fn process_ended(&mut self, event: u64) -> Option<ProcKey> {
        let watch = self.watches.remove(event)?;
        let key = watch.key;
        if let Some(account) = watch.account {
            self.budget.uncharge(&account, FDS_WATCH);
        }
        // The group is credited with the last counters before the member is removed.
        let state = &mut self.tables.state();
        self.tenants.collect_counters_of_process(state, key);
        self.joined.remove(&hashed(key));
        self.keeper.keep(Change::End(hashed(key)));
        self.tables.members().on_exit(key);
        // The state knows only processes that have the driver open; an unknown one is no error.
        let _ = self.tables.state().member_moved(key, None);
        Some(key)
    }
}
