// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Limits how much of a table one owner may use.
//!
//! ```text
//! owner    a process's group, or its user without a group; neither can be multiplied at no cost
//! share    the processes, open files and objects of an owner
//! reserved room in the tables and in the share that an ioctl takes when it begins
//! ```
//!
//! An owner may have as many entries of a table as it leaves free for others:
//!
//! ```text
//! entries of the owner <= free entries, both after the new entry
//! ```
//!
//! So one owner uses at most half of a table, and `n` greedy owners leave `1 / (n + 1)` of it. A
//! process has at most an eighth of all files and objects, which leaves room for the other
//! processes of its owner.
//!
//! With reserved room, every object that RM creates can be tracked.

use crate::error::Error;
use crate::ids::{FileId, GroupId, Owner, ProcKey, UserId};
use crate::iface::CgroupPath;
use crate::limits;
use crate::objects::List;
use crate::records::{File, Share};
use crate::settings::Settings;
use crate::state::State;
use crate::units::Sat;

impl Share {
    pub(crate) const fn of_proc(files: Sat<u32>, objects: Sat<u32>) -> Self {
        Self {
            procs: Sat(1),
            files,
            objects,
        }
    }

    const fn of_files(files: Sat<u32>, objects: Sat<u32>) -> Self {
        Self {
            procs: Sat(0),
            files,
            objects,
        }
    }

    pub(crate) fn plus(&self, more: &Self) -> Self {
        Self {
            procs: self.procs + more.procs,
            files: self.files + more.files,
            objects: self.objects + more.objects,
        }
    }

    fn minus(&self, less: &Self) -> Self {
        Self {
            procs: self.procs - less.procs,
            files: self.files - less.files,
            objects: self.objects - less.objects,
        }
    }
}

/// Checks that an owner with `mine` of a table's `len` entries may add `more`.
fn may_have(mine: Sat<u32>, more: usize, len: usize, max: usize) -> Result<(), Error> {
    let mine = usize::try_from(mine.0).unwrap_or(usize::MAX);
    let (mine, more) = (Sat(mine), Sat(more));
    match mine + more <= Sat(max) - Sat(len) - more {
        true => Ok(()),
        false => Err(Error::NoSpace),
    }
}

/// Checks that a process with `mine` entries may add `more`.
fn within(mine: Sat<u32>, more: usize, max: usize) -> Result<(), Error> {
    let mine = usize::try_from(mine.0).unwrap_or(usize::MAX);
    match Sat(mine) + Sat(more) <= Sat(max) {
        true => Ok(()),
        false => Err(Error::NoSpace),
    }
}

impl State<'_> {
    /// Checks that a process may open one more file, and that there is room.
    pub(super) fn reserve_file(
        &self,
        user: UserId,
        key: ProcKey,
        by_pid: Option<GroupId>,
        cgroup: &[u8],
    ) -> Result<(), Error> {
        let known = self.procs.get(&key);
        let (files, objects) = known.map_or((Sat(0), Sat(0)), |proc| (proc.files, proc.objects));
        within(files, 1, limits::FILES_OF_PROC_MAX)?;
        within(objects, 1, limits::OBJECTS_OF_PROC_MAX)?;
        let share = match known {
            Some(proc) => self.share_of(proc.group, proc.user),
            None => {
                let share = self.share_of(self.group_of_opener(by_pid, cgroup), user);
                may_have(share.procs, 1, self.procs.len(), limits::PROCS_MAX)?;
                share
            }
        };
        may_have(share.files, 1, self.files.len(), limits::FILES_MAX)?;
        self.may_have_objects(&share, 1)?;
        self.files.reserve(1)?;
        self.reserve_proc()?;
        // The root of the file's space, and the heads of a new process's lists.
        let more = Sat(List::OF_PROC.len()) + Sat(1);
        self.objects.reserve((*self.reserved_objects + more).0)
    }

    /// Checks that a file may have more objects, and that there is room.
    pub(super) fn reserve_objects(&self, file: FileId, more: usize) -> Result<(), Error> {
        if let Some(file) = self.files.get(&file) {
            let proc = self.procs.get(&file.proc).ok_or(Error::Gone)?;
            within(proc.objects, more, limits::OBJECTS_OF_PROC_MAX)?;
            self.may_have_objects(&self.share_of(proc.group, proc.user), more)?;
        }
        self.objects.reserve((*self.reserved_objects + Sat(more)).0)
    }

    fn may_have_objects(&self, share: &Share, more: usize) -> Result<(), Error> {
        let len = Sat(self.objects.len()) + *self.reserved_objects;
        may_have(share.objects, more, len.0, limits::OBJECTS_MAX)
    }

    /// Reserves room for objects that an ioctl on a file may create, until
    /// [`State::release_reserved`].
    ///
    /// # Errors
    ///
    /// Those of [`State::reserve_objects`].
    pub(super) fn reserve_for_ioctl(&mut self, file: FileId, more: usize) -> Result<(), Error> {
        self.reserve_objects(file, more)?;
        let reserved = Sat(u32::try_from(more).unwrap_or(u32::MAX));
        let Some(file) = self.files.get_mut(&file) else {
            return Err(Error::Gone);
        };
        if file.reserved.0 == 0 && reserved.0 > 0 {
            *self.reserving_files += 1;
        }
        file.reserved += reserved;
        *self.reserved_objects += more;
        Ok(())
    }

    /// Returns the room of objects that an ioctl on a file has reserved.
    pub(super) fn release_reserved(&mut self, file: FileId, reserved: usize) {
        let Some(file) = self.files.get_mut(&file) else {
            return;
        };
        let reserved = Sat(u32::try_from(reserved).unwrap_or(u32::MAX)).min(file.reserved);
        file.reserved -= reserved;
        let last = reserved.0 > 0 && file.reserved.0 == 0;
        self.subtract_reserved(reserved, last);
    }

    fn subtract_reserved(&mut self, reserved: Sat<u32>, last: bool) {
        *self.reserved_objects -= usize::try_from(reserved.0).unwrap_or(0);
        *self.reserving_files -= usize::from(last);
    }

    /// Uses the reserved room of one object of a file. Returns whether there was some.
    pub(super) fn use_reserved(&mut self, file: FileId) -> bool {
        let reserved = self
            .files
            .get(&file)
            .is_some_and(|file| file.reserved.0 > 0);
        self.release_reserved(file, 1);
        reserved
    }

    /// Updates the shares from the number of a file's objects. O(1).
    pub(super) fn count_objects_of(&mut self, id: FileId) {
        let now = Sat(self.objects.of_file(id));
        let Some(file) = self.files.get_mut(&id) else {
            return;
        };
        let before = core::mem::replace(&mut file.objects, now);
        let key = file.proc;
        let Some(proc) = self.procs.get_mut(&key) else {
            return;
        };
        proc.objects = proc.objects - before + now;
        let (group, user) = (proc.group, proc.user);
        self.change_share(group, user, &Share::of_files(Sat(0), before), false);
        self.change_share(group, user, &Share::of_files(Sat(0), now), true);
    }

    /// Counts one more file of a process.
    pub(super) fn file_enter(&mut self, key: ProcKey) {
        let Some(proc) = self.procs.get_mut(&key) else {
            return;
        };
        proc.files += 1;
        let (group, user) = (proc.group, proc.user);
        self.change_share(group, user, &Share::of_files(Sat(1), Sat(0)), true);
    }

    /// Takes a closed file out of its process's share.
    pub(super) fn file_leave(&mut self, file: &File) {
        self.subtract_reserved(file.reserved, file.reserved.0 > 0);
        let Some(proc) = self.procs.get_mut(&file.proc) else {
            return;
        };
        proc.files -= 1;
        proc.objects -= file.objects;
        let (group, user, files) = (proc.group, proc.user, proc.files);
        self.change_share(group, user, &Share::of_files(Sat(1), file.objects), false);
        if files.0 == 0 {
            self.proc_leave(file.proc);
        }
    }

    /// Moves a process's share from one owner to another.
    pub(super) fn move_share(&mut self, key: ProcKey, from: Option<GroupId>, to: Option<GroupId>) {
        let Some(proc) = self.procs.get(&key) else {
            return;
        };
        let (user, share) = (proc.user, Share::of_proc(proc.files, proc.objects));
        self.change_share(from, user, &share, false);
        self.change_share(to, user, &share, true);
    }

    pub(super) fn change_share(
        &mut self,
        group: Option<GroupId>,
        user: UserId,
        by: &Share,
        more: bool,
    ) {
        let share = match group {
            Some(group) => self.groups.get_mut(&group).map(|group| &mut group.share),
            None => self.users.get_mut(&user).map(|user| &mut user.share),
        };
        if let Some(share) = share {
            *share = if more {
                share.plus(by)
            } else {
                share.minus(by)
            };
        }
    }

    /// Returns the share of a process's owner.
    fn share_of(&self, group: Option<GroupId>, user: UserId) -> Share {
        let share = match group {
            Some(group) => self.groups.get(&group).map(|group| group.share),
            None => self.users.get(&user).map(|user| user.share),
        };
        share.unwrap_or_default()
    }

    /// Returns the group of a process that opens the driver.
    fn group_of_opener(&self, by_pid: Option<GroupId>, cgroup: &[u8]) -> Option<GroupId> {
        by_pid.or_else(|| self.group_of_cgroup(&CgroupPath::from_path(cgroup)))
    }

    /// Returns whether a process that opens the driver would be under a limit. Its open is then
    /// refused if it cannot be tracked.
    pub fn binds_opener(&self, key: ProcKey, by_pid: Option<GroupId>, cgroup: &[u8]) -> bool {
        let by_pid = by_pid.filter(|group| self.groups.contains(group));
        let group = self.group_of_opener(by_pid, cgroup);
        group.is_some_and(|group| self.is_bound(group)) || self.binds_proc(key)
    }

    /// Returns whether the process that opened a file is under a limit. O(GPUs).
    pub fn binds_file(&self, file: FileId) -> bool {
        let file = self.files.get(&file);
        file.is_some_and(|file| self.binds_proc(file.proc))
    }

    pub(super) fn binds_proc(&self, key: ProcKey) -> bool {
        let own = |(gpu, _): (&crate::ids::GpuId, _)| {
            let pool = self.pools.get(&(Owner::Proc(key), *gpu));
            pool.is_some_and(|pool| pool.settings != Settings::DEFAULT)
        };
        let group = self.procs.get(&key).and_then(|proc| proc.group);
        group.is_some_and(|group| self.is_bound(group)) || self.gpus.iter().any(own)
    }
}
