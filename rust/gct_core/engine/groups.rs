// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Named groups, and who belongs to them.

use crate::dirs::DirPath;
use crate::error::Error;
use crate::ids::{GpuId, GroupId, Owner, ProcKey, Scope};
use crate::iface::{CgroupPath, Name};
use crate::state::{Group, Node, Proc, State};
use core::fmt::Write;

impl State<'_> {
    /// Makes a group, with a directory for each GPU.
    ///
    /// # Errors
    ///
    /// [`Error::Exists`], [`Error::NoSpace`], [`Error::NeedSlots`].
    pub fn group_create(&mut self, name: &Name) -> Result<GroupId, Error> {
        if self.group_by_name(name).is_ok() {
            return Err(Error::Exists);
        }
        self.groups.reserve(1)?;
        self.reserve_places(self.gpus.len(), self.gpus.len().saturating_add(1))?;

        let id = GroupId(self.sequence.next());
        let group = Group {
            name: *name,
            cgroup: CgroupPath::EMPTY,
        };
        self.groups.insert(id, group)?;
        self.dirs.want(DirPath::Group(id), Scope::Group(id))?;
        for (gpu, entry) in self.gpus.iter() {
            let owner = Owner::Group(id);
            self.nodes.insert((owner, *gpu), Node::default())?;
            let path = DirPath::of_node(owner, entry.index);
            self.dirs.want(path, Scope::Node(owner, *gpu))?;
        }
        Ok(id)
    }

    /// Takes a group away. `members` is how many processes belong to it by pid.
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`]; [`Error::Busy`] while a process belongs to it, by pid
    /// or as a user of the driver.
    pub fn group_remove(&mut self, id: GroupId, members: usize) -> Result<(), Error> {
        self.group_check(id)?;
        let used = |proc: &Proc| proc.group == Some(id) || proc.by_pid == Some(id);
        if members > 0 || self.procs.iter().any(|(_, proc)| used(proc)) {
            return Err(Error::Busy);
        }
        for (gpu, entry) in self.gpus.iter() {
            let owner = Owner::Group(id);
            self.nodes.remove(&(owner, *gpu));
            let path = DirPath::of_node(owner, entry.index);
            self.dirs.unwant(path, Scope::Node(owner, *gpu));
        }
        self.dirs.unwant(DirPath::Group(id), Scope::Group(id));
        self.groups.remove(&id);
        Ok(())
    }

    /// The group of that name.
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`].
    pub fn group_by_name(&self, name: &Name) -> Result<GroupId, Error> {
        let found = |(id, group): (&GroupId, &Group)| (group.name == *name).then_some(*id);
        self.groups.iter().find_map(found).ok_or(Error::NotFound)
    }

    /// Does the group still exist?
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

    /// A process was put into a group by pid, or taken out. Its files move along.
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

    /// Writes the members of a group, one pid per line: `by_pid`, which the
    /// caller has from [`Members`](crate::members::Members), and the users of the
    /// driver that belong to it by cgroup. `pid_of` is the pid to show for a
    /// process, `None` to leave it out.
    ///
    /// # Errors
    ///
    /// [`Error::Gone`]; [`Error::NoSpace`] when `out` takes no more.
    pub fn show_procs(
        &self,
        id: GroupId,
        by_pid: &[ProcKey],
        pid_of: &mut dyn FnMut(&ProcKey) -> Option<u32>,
        out: &mut dyn Write,
    ) -> Result<(), Error> {
        self.group_check(id).map_err(|_| Error::Gone)?;
        let by_cgroup = |(key, proc): (_, &Proc)| {
            (proc.group == Some(id) && proc.by_pid.is_none()).then_some(key)
        };
        for key in by_pid.iter().chain(self.procs.iter().filter_map(by_cgroup)) {
            if let Some(pid) = pid_of(key) {
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
        let taken = |(other, group): (&GroupId, &Group)| *other != id && group.cgroup == path;
        if !path.is_empty() && self.groups.iter().any(taken) {
            return Err(Error::Exists);
        }
        self.groups.get_mut(&id).ok_or(Error::Gone)?.cgroup = path;
        for at in 0..self.procs.slots() {
            if let Some(key) = self.procs.key_at(at) {
                self.place(key);
            }
        }
        Ok(())
    }

    /// Puts a process where it belongs: by pid, or else by cgroup.
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
        if let Some(proc) = self.procs.get_mut(&key) {
            proc.group = group;
        }
        let has_something = self
            .nodes
            .iter()
            .any(|((owner, _), _)| *owner == Owner::Proc(key));
        if has_something && self.bind_differently(old, group) {
            self.reconsider(Owner::Proc(key), None);
        }
    }

    /// The group with the longest path that is `path` or above it.
    pub(crate) fn group_of_cgroup(&self, path: &CgroupPath) -> Option<GroupId> {
        let above = |group: &Group| is_below(path.as_bytes(), group.cgroup.as_bytes());
        self.groups
            .iter()
            .filter(|(_, group)| above(group))
            .max_by_key(|(_, group)| group.cgroup.as_bytes().len())
            .map(|(id, _)| *id)
    }

    /// The features of a GPU, and the number of its TPCs if it is known.
    pub(super) fn gpu_can(
        &self,
        id: GpuId,
    ) -> Result<(crate::features::FeatureSet, Option<u16>), Error> {
        let gpu = self.gpus.get(&id).ok_or(Error::Gone)?;
        Ok((gpu.features, gpu.facts.tpcs))
    }
}

/// Is `path` the cgroup `above`, or below it? An empty path is nowhere.
fn is_below(path: &[u8], above: &[u8]) -> bool {
    if above.is_empty() || path.is_empty() {
        return false;
    }
    match path.strip_prefix(above) {
        Some(rest) => rest.is_empty() || rest.first() == Some(&b'/') || above == b"/",
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::is_below;

    #[test]
    fn paths_are_compared_by_component() {
        let below = |path: &str, above: &str| is_below(path.as_bytes(), above.as_bytes());
        assert!(below("/a", "/a") && below("/a/b", "/a") && below("/a", "/") && below("/", "/"));
        assert!(!below("/ab", "/a") && !below("/a", "/a/b") && !below("/", "/a"));
        assert!(!below("", "/") && !below("/a", "") && !below("", ""));
    }
}
