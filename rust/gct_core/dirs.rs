// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Reconciles the directories that exist with those that the state demands.
//!
//! ```text
//! wanted  the scope that the directory at a path should have; none is no directory
//! shown   the scope of the directory that the filesystem has
//! queue   paths whose wanted scope has changed since the last step
//!
//! step:                                   # one effect: add or remove one directory
//!     path = next of the queue
//!     shown == wanted           -> next path
//!     shown, has children       -> requeue, until they are removed
//!     shown                     -> remove; if another scope is wanted, requeue
//!     parent not shown          -> requeue, until it is added
//!     wanted                    -> add
//! ```
//!
//! The filesystem sleeps when it creates a directory, and waits for readers when it removes one. So
//! the glue performs each step without the state's lock, and the state may change meanwhile.
//! [`State::next_effect`](crate::state::State::next_effect) returns one step and marks it as done:
//! the caller must perform it before it asks for the next.
//!
//! Steps follow the order of the changes, except where a directory needs its parent or loses its
//! children first. A directory that is demanded and dropped between two steps is never shown.

use crate::error::Error;
use crate::ids::{GpuIndex, GroupId, Owner, Scope};
use crate::iface::Name;
use crate::table::{count, mix, Key, Map};
use crate::units::Sat;

/// The path of a directory. It names a process by its pid alone.
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
    /// Returns the path of an owner's directory for a GPU.
    pub(crate) const fn of_pool(owner: Owner, gpu: GpuIndex) -> Self {
        match owner {
            Owner::Group(group) => Self::GroupGpu(group, gpu),
            Owner::Proc(proc) => Self::ProcGpu(proc.tgid, gpu),
        }
    }

    /// Returns the parent directory; `None` if it always exists.
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

/// One step towards the wanted directories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Make a directory with the files of `scope`'s place.
    Add {
        /// Its path.
        path: DirPath,
        /// Its subject; the glue reads and writes its files with this.
        scope: Scope,
        /// The last component of its path.
        name: Name,
    },
    /// Remove a directory with its files.
    Remove {
        /// Its path.
        path: DirPath,
    },
}

/// A directory.
#[derive(Debug, Default)]
pub struct Dir {
    wanted: Option<Scope>,
    shown: Option<Scope>,
    /// Shown directories directly below.
    children: Sat<u32>,
    queued: bool,
    /// The next in the queue.
    next: Option<DirPath>,
}

/// Paths whose wanted scope has changed, in a list through their entries.
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

/// An [`Effect`] without the directory's name.
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

    /// Checks that `extra` more entries fit: [`Map::reserve`].
    pub(crate) fn reserve(&self, extra: usize) -> Result<(), Error> {
        self.map.reserve(extra)
    }

    /// Returns whether a page is spare: [`Map::has_spare_page`].
    pub(crate) fn has_spare_page(&self, extra: usize) -> bool {
        self.map.has_spare_page(extra)
    }

    /// Returns the wanted scope of `path`.
    pub(crate) fn wanted(&self, path: DirPath) -> Option<Scope> {
        self.map.get(&path)?.wanted
    }

    /// Demands a directory for `scope` at `path`, and drops an earlier demand for the path.
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

    /// Drops the demand for `path`, unless it is for another scope.
    pub(crate) fn unwant(&mut self, path: DirPath, scope: Scope) {
        match self.map.get_mut(&path) {
            Some(dir) if dir.wanted == Some(scope) => dir.wanted = None,
            _ => return,
        }
        self.enqueue(path);
    }

    /// Returns the next step and marks it as done.
    pub(crate) fn next_effect(&mut self) -> Option<Step> {
        // A path that waits for its parent or its children is queued behind them, so it waits at
        // most twice in a row.
        for _ in 0..(Sat(self.map.len()) * Sat(3)).0 {
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
                (Some(_), _) if dir.children.0 > 0 => self.enqueue(path),
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

    /// Returns whether there may be a next step. O(1).
    pub(crate) fn has_effects(&self) -> bool {
        self.queue.head.is_some()
    }

    /// Returns whether the parent is shown with the scope that `scope` needs.
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
            parent.children += 1;
        }
    }

    fn hide(&mut self, path: DirPath, keep: bool) {
        if let Some(parent) = path.parent().and_then(|parent| self.map.get_mut(&parent)) {
            parent.children -= 1;
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

    /// Checks that the counts of children are exact, and that every path that must change is
    /// queued.
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
                dir.children.0 == children(path)
                    && (dir.queued || dir.shown.is_some())
                    && (dir.queued || dir.shown == dir.wanted)
            })
    }

    /// Returns whether every directory is shown as wanted.
    #[cfg(test)]
    pub(crate) fn is_settled(&self) -> bool {
        self.map.iter().all(|(_, dir)| dir.shown == dir.wanted)
    }
}

#[cfg(test)]
mod tests;
