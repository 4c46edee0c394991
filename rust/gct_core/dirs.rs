// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Which directories there should be, and which there are.
//!
//! Making and removing a directory sleeps and waits for its readers, so it
//! happens outside the state's lock, later, and perhaps after the world has
//! changed once more. So the core keeps for every path what is wanted there and
//! what is shown there; [`State::next_effect`](crate::state::State::next_effect) hands out one step at a time that
//! brings the two together, and takes for granted that it will be done before
//! the next is asked for.
//!
//! Steps come in the order in which the paths changed, except where the tree
//! demands another: a directory is added below the right parent only, and
//! removed when those below it are gone. What was wanted and no longer is
//! before anybody looked is never shown.

use crate::error::Error;
use crate::ids::{GpuIndex, GroupId, Owner, Scope};
use crate::iface::Name;
use crate::table::{count, mix, Key, Map};

/// Where a directory is. A pid stands for itself here: it is a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DirPath {
    /// `gpus/<n>/`.
    Gpu(GpuIndex),
    /// `<name>/` of a group.
    Group(GroupId),
    /// `<pid>/`.
    Proc(u32),
    /// `<name>/<n>/`.
    GroupGpu(GroupId, GpuIndex),
    /// `<pid>/<n>/`.
    ProcGpu(u32, GpuIndex),
}

impl DirPath {
    /// The path of an owner's directory for a GPU.
    pub(crate) const fn of_pool(owner: Owner, gpu: GpuIndex) -> Self {
        match owner {
            Owner::Group(group) => Self::GroupGpu(group, gpu),
            Owner::Proc(proc) => Self::ProcGpu(proc.tgid, gpu),
        }
    }

    /// The directory above; `None` for those at a root that always exists.
    pub const fn parent(self) -> Option<Self> {
        match self {
            Self::Gpu(_) | Self::Group(_) | Self::Proc(_) => None,
            Self::GroupGpu(group, _) => Some(Self::Group(group)),
            Self::ProcGpu(tgid, _) => Some(Self::Proc(tgid)),
        }
    }
}

impl Key for DirPath {
    fn hash(&self, seed: u64) -> u64 {
        let (kind, owner, gpu) = match *self {
            Self::Gpu(gpu) => (1, 0, gpu.0),
            Self::Group(group) => (2, group.0, 0),
            Self::Proc(tgid) => (3, u64::from(tgid), 0),
            Self::GroupGpu(group, gpu) => (4, group.0, gpu.0),
            Self::ProcGpu(tgid, gpu) => (5, u64::from(tgid), gpu.0),
        };
        mix(mix(mix(seed, kind), owner), u64::from(gpu))
    }
}

/// One step towards the directories that are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Make a directory with the files of `scope`'s place.
    Add {
        /// Where.
        path: DirPath,
        /// What it is about; its files are read and written with this.
        scope: Scope,
        /// Its name: the last component.
        name: Name,
    },
    /// Remove a directory with its files.
    Remove {
        /// Where.
        path: DirPath,
    },
}

/// A directory.
#[derive(Debug, Default)]
pub struct Dir {
    wanted: Option<Scope>,
    shown: Option<Scope>,
    /// Shown directories directly below.
    children: u32,
    queued: bool,
    /// The next in the queue.
    next: Option<DirPath>,
}

/// Paths that were changed and not yet looked at, linked through the entries.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    head: Option<DirPath>,
    tail: Option<DirPath>,
}

impl Queue {
    pub(crate) const fn new() -> Self {
        Self {
            head: None,
            tail: None,
        }
    }
}

/// A step before it has a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Add(DirPath, Scope),
    Remove(DirPath),
}

/// The directories, while the state is locked.
#[derive(Debug)]
pub(crate) struct Dirs<'a> {
    map: Map<'a, DirPath, Dir>,
    queue: &'a mut Queue,
}

impl<'a> Dirs<'a> {
    pub(crate) fn new(map: Map<'a, DirPath, Dir>, queue: &'a mut Queue) -> Self {
        Self { map, queue }
    }

    /// See [`Map::reserve`].
    pub(crate) fn reserve(&self, extra: usize) -> Result<(), Error> {
        self.map.reserve(extra)
    }

    /// See [`Map::has_spare_page`].
    pub(crate) fn has_spare_page(&self, extra: usize) -> bool {
        self.map.has_spare_page(extra)
    }

    /// What is wanted at `path`.
    pub(crate) fn wanted(&self, path: DirPath) -> Option<Scope> {
        self.map.get(&path)?.wanted
    }

    /// Wants a directory about `scope` at `path`, whatever was wanted there before.
    ///
    /// # Errors
    ///
    /// Those of [`Dirs::reserve`], which callers use beforehand.
    pub(crate) fn want(&mut self, path: DirPath, scope: Scope) -> Result<(), Error> {
        if !self.map.contains(&path) {
            self.map.insert(path, Dir::default())?;
        }
        if let Some(dir) = self.map.get_mut(&path) {
            dir.wanted = Some(scope);
        }
        self.enqueue(path);
        Ok(())
    }

    /// Wants no directory at `path`, unless it is wanted for something else than `scope`.
    pub(crate) fn unwant(&mut self, path: DirPath, scope: Scope) {
        match self.map.get_mut(&path) {
            Some(dir) if dir.wanted == Some(scope) => dir.wanted = None,
            _ => return,
        }
        self.enqueue(path);
    }

    /// The next step, which counts as done.
    pub(crate) fn next_effect(&mut self) -> Option<Step> {
        // A path that has to wait goes to the end of the queue, behind what it
        // waits for. Waiting is for a parent or for children, so no path waits
        // more than twice in a row.
        for _ in 0..self.map.len().saturating_mul(3) {
            let path = self.dequeue()?;
            let Some(dir) = self.map.get(&path) else {
                continue;
            };
            match (dir.shown, dir.wanted) {
                (shown, wanted) if shown == wanted => {
                    if wanted.is_none() {
                        self.map.remove(&path);
                    }
                }
                (Some(_), _) if dir.children > 0 => self.enqueue(path),
                (Some(_), wanted) => {
                    self.hide(path, wanted.is_some());
                    return Some(Step::Remove(path));
                }
                (None, Some(scope)) if !self.has_parent(path, scope) => self.enqueue(path),
                (None, Some(scope)) => {
                    self.show(path, scope);
                    return Some(Step::Add(path, scope));
                }
                (None, None) => {}
            }
        }
        None
    }

    /// May there be a next step?
    pub(crate) fn has_effects(&self) -> bool {
        self.queue.head.is_some()
    }

    /// Is the directory above shown, and about the right thing?
    fn has_parent(&self, path: DirPath, scope: Scope) -> bool {
        match path.parent() {
            None => true,
            Some(parent) => self
                .map
                .get(&parent)
                .is_some_and(|parent| parent.shown.is_some() && parent.shown == scope.parent()),
        }
    }

    fn show(&mut self, path: DirPath, scope: Scope) {
        if let Some(dir) = self.map.get_mut(&path) {
            dir.shown = Some(scope);
        }
        if let Some(parent) = path.parent().and_then(|parent| self.map.get_mut(&parent)) {
            parent.children = parent.children.saturating_add(1);
        }
    }

    fn hide(&mut self, path: DirPath, keep: bool) {
        if let Some(parent) = path.parent().and_then(|parent| self.map.get_mut(&parent)) {
            parent.children = parent.children.saturating_sub(1);
        }
        if let Some(dir) = self.map.get_mut(&path) {
            dir.shown = None;
        }
        if keep {
            self.enqueue(path);
        } else {
            self.map.remove(&path);
        }
    }

    fn enqueue(&mut self, path: DirPath) {
        match self.map.get_mut(&path) {
            Some(dir) if !dir.queued => dir.queued = true,
            _ => return,
        }
        match self.queue.tail.and_then(|tail| self.map.get_mut(&tail)) {
            Some(last) => last.next = Some(path),
            None => self.queue.head = Some(path),
        }
        self.queue.tail = Some(path);
    }

    fn dequeue(&mut self) -> Option<DirPath> {
        let path = self.queue.head?;
        let next = self.map.get_mut(&path).and_then(|dir| {
            dir.queued = false;
            dir.next.take()
        });
        self.queue.head = next;
        if next.is_none() {
            self.queue.tail = None;
        }
        Some(path)
    }

    /// Are the counts of children right, and is everything queued that has to change?
    pub(crate) fn is_sound(&self) -> bool {
        let children = |path: &DirPath| {
            let below = self
                .map
                .iter()
                .filter(|(below, dir)| dir.shown.is_some() && below.parent() == Some(*path));
            u32::try_from(count(below)).unwrap_or(u32::MAX)
        };
        self.map.is_sound()
            && self.map.iter().all(|(path, dir)| {
                dir.children == children(path)
                    && (dir.queued || dir.shown.is_some())
                    && (dir.queued || dir.shown == dir.wanted)
            })
    }

    /// Is nothing left to do?
    #[cfg(test)]
    pub(crate) fn is_settled(&self) -> bool {
        self.map.iter().all(|(_, dir)| dir.shown == dir.wanted)
    }
}

#[cfg(test)]
mod tests;
