// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Links the objects of a space into a tree, walks it, and moves parts of it between spaces.
//!
//! A parent links to its first child, and siblings link to each other, by handle. A walk visits
//! parents first.

use super::{Object, ObjectKey, Objects, ROOT};
use crate::rmapi::{Class, Handle};

impl Objects<'_> {
    /// Returns the object after `at` in a walk of the tree `top`.
    pub(crate) fn after(&self, top: ObjectKey, at: Handle) -> Option<ObjectKey> {
        let handle = self.walk(top.space, top.space, top.handle, at)?;
        Some(ObjectKey::new(top.space, handle))
    }

    /// Returns the object after `at` and its descendants in a walk of the tree `top`.
    pub(crate) fn beyond(&self, top: ObjectKey, at: Handle) -> Option<ObjectKey> {
        let handle = self.past(top.space, top.space, top.handle, at)?;
        Some(ObjectKey::new(top.space, handle))
    }

    /// Returns the first child of an object.
    pub(crate) fn child_of(&self, key: ObjectKey) -> Option<ObjectKey> {
        let child = self.get(key)?.child;
        (child != ROOT).then(|| ObjectKey::new(key.space, child))
    }

    /// Returns the next child of the same parent.
    pub(crate) fn sibling_of(&self, key: ObjectKey) -> Option<ObjectKey> {
        let next = self.get(key)?.next;
        (next != ROOT).then(|| ObjectKey::new(key.space, next))
    }

    /// Returns the device above an object.
    pub(crate) fn device_of(&self, key: ObjectKey) -> Option<ObjectKey> {
        let mut at = key;
        // The deepest tracked object is a channel, below a channel group, below a device.
        for _ in 0..4 {
            let object = self.get(at)?;
            if object.class == Class::Device {
                return Some(at);
            }
            at.handle = object.parent;
        }
        None
    }

    /// Returns the first object directly below a root.
    pub(crate) fn first_below_root(&self, space: u64) -> Option<ObjectKey> {
        match self.get(ObjectKey::root(space))?.child {
            ROOT => None,
            child => Some(ObjectKey::new(space, child)),
        }
    }

    /// Begins to move an object and its descendants to a hidden space: `most` of them, parents
    /// first. Returns the handle of the next one, for [`detach_more`](Self::detach_more).
    pub(crate) fn detach(&mut self, top: ObjectKey, hidden: u64, most: usize) -> Option<Handle> {
        self.unlink(top);
        self.rename(top, hidden, Some(top.handle), most)
    }

    /// Goes on to move a tree from the object `next` on.
    pub(crate) fn detach_more(
        &mut self,
        top: ObjectKey,
        hidden: u64,
        next: Handle,
        most: usize,
    ) -> Option<Handle> {
        self.rename(top, hidden, Some(next), most)
    }

    /// Moves a detached tree back below its former parent, or below the root if the parent is gone.
    /// Returns false and changes nothing if a handle has been taken meanwhile.
    pub(crate) fn attach(&mut self, hidden: ObjectKey, home: u64) -> bool {
        let mut at = Some(hidden.handle);
        for _ in 0..self.map.len() {
            let Some(handle) = at else { break };
            if self.map.contains(&ObjectKey::new(home, handle)) {
                return false;
            }
            at = self.walk(hidden.space, hidden.space, hidden.handle, handle);
        }
        self.rename(hidden, home, Some(hidden.handle), usize::MAX);
        let key = ObjectKey::new(home, hidden.handle);
        let parent = self.get(key).map_or(ROOT, |object| object.parent);
        if !self.map.contains(&ObjectKey::new(home, parent)) {
            if let Some(object) = self.map.get_mut(&key) {
                object.parent = ROOT;
            }
        }
        self.link(key);
        true
    }

    /// Changes the space of `most` objects of a tree, from `at` on. Its top has no links. Returns
    /// the next one.
    fn rename(
        &mut self,
        top: ObjectKey,
        space: u64,
        mut at: Option<Handle>,
        most: usize,
    ) -> Option<Handle> {
        for _ in 0..self.map.len().min(most) {
            let Some(handle) = at else { break };
            let (from, to) = (
                ObjectKey::new(top.space, handle),
                ObjectKey::new(space, handle),
            );
            if let Some(object) = self.map.remove(&from) {
                // INVARIANT: this cannot fail. An entry was just removed.
                let _ = self.map.insert(to, object);
                self.alias_rekeyed(from, to);
                self.listing_rekeyed(to);
            }
            at = self.walk(top.space, space, top.handle, handle);
        }
        at
    }

    /// Returns the object after `handle` in a walk of the tree `top`, while the tree moves between
    /// two spaces.
    fn walk(&self, one: u64, other: u64, top: Handle, handle: Handle) -> Option<Handle> {
        match self.in_either(one, other, handle)?.child {
            ROOT => self.past(one, other, top, handle),
            child => Some(child),
        }
    }

    fn in_either(&self, one: u64, other: u64, handle: Handle) -> Option<&Object> {
        self.get(ObjectKey::new(other, handle))
            .or_else(|| self.get(ObjectKey::new(one, handle)))
    }

    /// Returns the object after `handle` and its descendants in such a walk.
    fn past(&self, one: u64, other: u64, top: Handle, handle: Handle) -> Option<Handle> {
        let find = |handle| self.in_either(one, other, handle);
        let mut at = find(handle)?;
        let mut name = handle;
        for _ in 0..self.map.len() {
            if name == top {
                return None;
            }
            if at.next != ROOT {
                return Some(at.next);
            }
            name = at.parent;
            at = find(name)?;
        }
        None
    }

    /// Makes an object the first child of its parent.
    pub(super) fn link(&mut self, key: ObjectKey) {
        let Some(object) = self.get(key) else { return };
        let parent = ObjectKey::new(key.space, object.parent);
        let first = match self.map.get_mut(&parent) {
            Some(parent) => core::mem::replace(&mut parent.child, key.handle),
            None => ROOT,
        };
        if let Some(object) = self.map.get_mut(&key) {
            object.next = first;
            object.previous = ROOT;
        }
        if first != ROOT {
            if let Some(first) = self.map.get_mut(&ObjectKey::new(key.space, first)) {
                first.previous = key.handle;
            }
        }
    }

    /// Removes an object from its parent's children.
    pub(super) fn unlink(&mut self, key: ObjectKey) {
        let Some(object) = self.map.get_mut(&key) else {
            return;
        };
        let next = core::mem::replace(&mut object.next, ROOT);
        let previous = core::mem::replace(&mut object.previous, ROOT);
        let parent = object.parent;
        if next != ROOT {
            if let Some(next) = self.map.get_mut(&ObjectKey::new(key.space, next)) {
                next.previous = previous;
            }
        }
        if previous != ROOT {
            if let Some(previous) = self.map.get_mut(&ObjectKey::new(key.space, previous)) {
                previous.next = next;
            }
        } else if let Some(parent) = self.map.get_mut(&ObjectKey::new(key.space, parent)) {
            if parent.child == key.handle {
                parent.child = next;
            }
        }
    }
}
