// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Creates and removes groups, and decides to which group a process belongs.

use crate::dirs::DirPath;
use crate::error::Error;
use crate::features::FeatureSet;
use crate::ids::{GpuId, GroupId, Owner, ProcKey, Scope};
use crate::iface::{CgroupPath, Name};
use crate::records::{Group, PathHash, Pool, Share};
use crate::settings::Settings;
use crate::state::State;
use crate::table::mix;
use crate::topology::Topology;
use crate::units::Sat;
use core::fmt::Write;

impl State<'_> {
    /// Creates a group, with a directory for each GPU.
    ///
    /// # Errors
    ///
    /// [`Error::Exists`], [`Error::NoSpace`], [`Error::NeedSlots`].
    pub fn group_create(&mut self, name: &Name) -> Result<GroupId, Error> {
        if self.group_by_name(name).is_ok() {
            return Err(Error::Exists);
        }
        self.groups.reserve(1)?;
        let gpus = self.gpus.len();
        self.reserve_places(gpus, (Sat(gpus) + Sat(1)).0)?;

        let sequence = self.sequence.next();
        let id = self.group_slots.take(sequence).ok_or(Error::NoSpace)?;
        let group = Group {
            name: *name,
            cgroup: CgroupPath::EMPTY,
            share: Share::default(),
            first_proc: None,
            stale: false,
        };
        self.groups.insert(id, group)?;
        self.dirs.want(DirPath::Group(id), Scope::Group(id))?;
        for (gpu, entry) in self.gpus.iter() {
            let owner = Owner::Group(id);
            self.pools.insert((owner, *gpu), Pool::default())?;
            let path = DirPath::of_pool(owner, entry.index);
            self.dirs.want(path, Scope::Pool(owner, *gpu))?;
        }
        Ok(id)
    }

    /// Removes a group. `members` is the number of processes that belong to it by pid.
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`]; [`Error::Busy`] while a process belongs to it by pid, or has the driver
    /// open.
    pub fn group_remove(&mut self, id: GroupId, members: usize) -> Result<(), Error> {
        self.group_check(id)?;
        let used = |group: &Group| members > 0 || group.share.procs.0 > 0;
        if self.groups.get(&id).is_some_and(used) {
            return Err(Error::Busy);
        }
        for at in 0..self.gpus.len() {
            if let Some(gpu) = self.gpus.key_at(at) {
                self.pauses_no_more(Owner::Group(id), gpu);
            }
        }
        let mut freed = false;
        for (gpu, entry) in self.gpus.iter() {
            let owner = Owner::Group(id);
            let pool = self.pools.remove(&(owner, *gpu));
            freed |= pool.is_some_and(|pool| !pool.reserved.is_empty());
            let path = DirPath::of_pool(owner, entry.index);
            self.dirs.unwant(path, Scope::Pool(owner, *gpu));
        }
        self.dirs.unwant(DirPath::Group(id), Scope::Group(id));
        self.group_slots.give(id);
        if let Some(group) = self.groups.remove(&id) {
            self.plan.stale -= usize::from(group.stale);
            self.paths.remove(&PathHash::of(group.cgroup.as_bytes()));
        }
        for at in 0..self.gpus.len() {
            if let Some(gpu) = self.gpus.key_at(at).filter(|_| freed) {
                self.reserve_quotas(gpu);
            }
        }
        Ok(())
    }

    /// Returns whether a group has a limit on any GPU.
    pub fn is_bound(&self, id: GroupId) -> bool {
        let limited = |gpu: &GpuId| {
            let pool = self.pools.get(&(Owner::Group(id), *gpu));
            pool.is_some_and(|pool| pool.settings != Settings::DEFAULT)
        };
        self.gpus.iter().any(|(gpu, _)| limited(gpu))
    }

    /// Returns the group with a name.
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`].
    pub fn group_by_name(&self, name: &Name) -> Result<GroupId, Error> {
        let found = |(id, group): (&GroupId, &Group)| (group.name == *name).then_some(*id);
        self.groups.iter().find_map(found).ok_or(Error::NotFound)
    }

    /// Checks that a group exists.
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`].
    pub fn group_check(&self, id: GroupId) -> Result<(), Error> {
        match self.groups.contains(&id) {
            true => Ok(()),
            false => Err(Error::NotFound),
        }
    }

    /// Moves a process into a group by pid, or out of it, together with its open files.
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`] when the group does not exist.
    pub fn member_moved(&mut self, key: ProcKey, group: Option<GroupId>) -> Result<(), Error> {
        if let Some(group) = group {
            self.group_check(group)?;
        }
        if let Some(proc) = self.procs.get_mut(&key) {
            proc.by_pid = group;
            self.place(key);
        }
        Ok(())
    }

    /// Writes the members of a group, one pid per line: those by pid, from
    /// [`Members`](crate::members::Members), and those by cgroup that have the driver open.
    /// `pid_of` returns the pid to show for a process, or `None` to skip it.
    ///
    /// # Errors
    ///
    /// [`Error::Gone`]; [`Error::NoSpace`] when `out` is full.
    pub fn show_procs(
        &self,
        id: GroupId,
        by_pid: &[ProcKey],
        pid_of: &mut dyn FnMut(&ProcKey) -> Option<u32>,
        out: &mut dyn Write,
    ) -> Result<(), Error> {
        self.group_check(id).map_err(|_| Error::Gone)?;
        let by_cgroup = |key: &ProcKey| {
            let proc = self.procs.get(key);
            proc.is_some_and(|proc| proc.by_pid.is_none())
        };
        let by_cgroup = self.procs_in_group(id).filter(by_cgroup);
        for key in by_pid.iter().copied().chain(by_cgroup) {
            if let Some(pid) = pid_of(&key) {
                writeln!(out, "{pid}").map_err(|_| Error::NoSpace)?;
            }
        }
        Ok(())
    }

    pub(super) fn set_cgroup(
        &mut self,
        id: GroupId,
        path: Option<CgroupPath>,
    ) -> Result<(), Error> {
        let path = path.unwrap_or_default();
        let hash = PathHash::of(path.as_bytes());
        let taken = |other: &GroupId| *other != id;
        if !path.is_empty() {
            // The table is keyed by the hash, so a second path with the same hash is refused.
            if self.paths.get(&hash).is_some_and(taken) {
                return Err(Error::Exists);
            }
            self.paths.reserve(1)?;
        }
        let group = self.groups.get_mut(&id).ok_or(Error::Gone)?;
        let old = core::mem::replace(&mut group.cgroup, path);
        self.paths.remove(&PathHash::of(old.as_bytes()));
        if !path.is_empty() {
            self.paths.insert(hash, id)?;
        }
        for at in 0..self.procs.len() {
            if let Some(key) = self.procs.key_at(at) {
                self.place(key);
            }
        }
        Ok(())
    }

    /// Puts a process into its group: by pid, or else by cgroup.
    pub(super) fn place(&mut self, key: ProcKey) {
        let Some(proc) = self.procs.get(&key) else {
            return;
        };
        let group = proc.by_pid.or_else(|| self.group_of_cgroup(&proc.cgroup));
        let old = proc.group;
        if old == group {
            return;
        }
        self.transfer(key, old, group);
        self.unlink_from_group(key, old);
        if let Some(proc) = self.procs.get_mut(&key) {
            proc.group = group;
        }
        self.link_to_group(key, group);
        self.move_share(key, old, group);
        let has_node = |(gpu, _): (&GpuId, _)| self.pools.contains(&(Owner::Proc(key), *gpu));
        let has_something = self.gpus.iter().any(has_node);
        if has_something && self.bind_differently(old, group) {
            self.mark_owner(Owner::Proc(key), None);
        }
        for at in 0..self.gpus.len() {
            let gpu = self.gpus.key_at(at);
            let has_quota = |gpu: &GpuId| {
                let pool = self.pools.get(&(Owner::Proc(key), *gpu));
                pool.is_some_and(|pool| pool.settings.tpc_quota.is_some())
            };
            if let Some(gpu) = gpu.filter(has_quota) {
                // The new group's mask may differ.
                self.reserve_quotas(gpu);
            }
        }
    }

    /// Returns the group with the longest path that is `path` or above it. O(length of the path).
    pub(crate) fn group_of_cgroup(&self, path: &CgroupPath) -> Option<GroupId> {
        let path = path.as_bytes();
        let mut found = self.group_of_path(path.get(..1)?);
        let mut hash = PathHash::EMPTY;
        for (at, byte) in path.iter().enumerate() {
            hash = hash.then(*byte);
            let end = at.saturating_add(1);
            if path.get(end).is_none_or(|next| *next == b'/') {
                let above = path.get(..end).unwrap_or_default();
                found = self.group_at(hash, above).or(found);
            }
        }
        found
    }

    fn group_of_path(&self, path: &[u8]) -> Option<GroupId> {
        self.group_at(PathHash::of(path), path)
    }

    /// Returns the group with this path, whose hash is `hash`.
    fn group_at(&self, hash: PathHash, path: &[u8]) -> Option<GroupId> {
        let id = self.paths.get(&hash)?;
        (self.groups.get(id)?.cgroup.as_bytes() == path).then_some(*id)
    }

    /// Returns the features of a GPU and its TPCs.
    pub(super) fn gpu_can(&self, id: GpuId) -> Result<(FeatureSet, Topology), Error> {
        let gpu = self.gpus.get(&id).ok_or(Error::Gone)?;
        Ok((gpu.features, gpu.facts.topology))
    }
}

impl PathHash {
    const EMPTY: Self = Self(0);

    fn then(self, byte: u8) -> Self {
        Self(mix(self.0, u64::from(byte)))
    }

    pub(crate) fn of(path: &[u8]) -> Self {
        path.iter().fold(Self::EMPTY, |hash, byte| hash.then(*byte))
    }
}

#[cfg(test)]
mod tests {
    use crate::ids::Scope;
    use crate::iface::{CgroupPath, File, Name};
    use crate::testing::Store;

    fn below(path: &str, above: &str) -> bool {
        let mut store = Store::new(1);
        let name = Name::new("web").unwrap();
        let group = store
            .retry(|store| store.state().group_create(&name))
            .unwrap();
        let write = |store: &mut Store| {
            let scope = Scope::Group(group);
            store
                .state()
                .write(File::GroupCgroup, scope, above.as_bytes())
        };
        store.retry(write).unwrap();
        let found = store
            .state()
            .group_of_cgroup(&CgroupPath::from_path(path.as_bytes()));
        assert!(found.is_none_or(|found| found == group));
        found.is_some()
    }

    #[test]
    fn paths_are_compared_by_component() {
        assert!(below("/a", "/a") && below("/a/b", "/a") && below("/a", "/") && below("/", "/"));
        assert!(!below("/ab", "/a") && !below("/a", "/a/b") && !below("/", "/a"));
        assert!(!below("", "/") && !below("/a", "none") && !below("", "none"));
    }
}
