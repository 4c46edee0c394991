// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A mirror of the resource manager's objects, as far as they matter.
//!
//! Handles are chosen by tenants, belong to one client, and are free again as
//! soon as the resource manager has freed the object. A client's handle
//! belongs to one open file. So an object's key is a *space* and a handle:
//!
//! - each open file is a space, whose number is the file's; its objects are
//!   the names of clients, and each client points to a space of its own;
//! - the space [`CLIENTS`] has the same names once more, since a client may be
//!   spoken of through another file than its own (as the source of a dup);
//! - each client's space holds its objects;
//! - every space has a root with handle 0, the parent of what has no other.
//!
//! Before an object is freed, it and all below it move to a space that nobody
//! can name: another thread may be given the same handles before the first
//! hears that its call is done. Afterwards they go, or come back if the
//! resource manager refused.
//!
//! Siblings are linked through their handles. All loops are bounded by the
//! number of objects. What several objects name together is in `aliases`; what controls are
//! about is in `lists`.

mod aliases;
mod lists;

use crate::account::Amount;
use crate::error::Error;
use crate::ids::{FileId, GpuId};
use crate::plan::Acked;
use crate::rmapi::{Class, Handle};
use crate::table::{mix, Key, Map};
use aliases::Aliases;
use lists::Links;
pub(crate) use lists::{List, NO_FILE};

/// Where an object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectKey {
    pub(crate) space: u64,
    pub(crate) handle: Handle,
}

impl ObjectKey {
    pub(crate) const fn new(space: u64, handle: Handle) -> Self {
        Self { space, handle }
    }

    /// The root of a space.
    pub(crate) const fn root(space: u64) -> Self {
        Self::new(space, ROOT)
    }
}

impl Key for ObjectKey {
    fn hash(&self, seed: u64) -> u64 {
        mix(mix(seed, self.space), u64::from(self.handle))
    }
}

/// The space that has the names of all files' clients. Neither a file nor a client has its number.
const CLIENTS: u64 = 0;

/// Handle of a space's root, and of nobody in a link.
const ROOT: Handle = 0;

/// An object.
#[derive(Clone, Copy, Debug)]
pub struct Object {
    /// The open file through which it was made.
    pub(crate) file: FileId,
    pub(crate) class: Class,
    pub(crate) gpu: Option<GpuId>,
    /// What was charged for it, to be taken back when it goes. Of several names of
    /// one thing, one is charged.
    pub(crate) charged: Amount,
    /// Other names of the same thing.
    aliases: Aliases,
    /// It is a second name that the resource manager may yet refuse.
    pub(crate) unconfirmed: bool,
    /// While it waits: `charged` is in nobody's account. The name that was charged is gone, and had
    /// another owner.
    pub(crate) charge_deferred: bool,
    /// Its neighbours in a list.
    links: Links,
    /// The client's handle, with which the resource manager is told of the object.
    pub(crate) client: Handle,
    pub(crate) acked: Acked,
    /// Of a device, the subdevice that its client made last.
    pub(crate) subdevice: Handle,
    /// For the name of a client, the space of its objects; else 0.
    pub(crate) inner: u64,
    /// Of the root of a file's space: objects of the file, itself among them.
    weight: u32,
    pub(crate) parent: Handle,
    child: Handle,
    next: Handle,
    previous: Handle,
}

impl Object {
    pub(crate) const fn new(file: FileId, class: Class) -> Self {
        Self {
            file,
            class,
            gpu: None,
            charged: Amount::ZERO,
            aliases: Aliases::NONE,
            unconfirmed: false,
            charge_deferred: false,
            links: Links::NONE,
            client: ROOT,
            acked: Acked::NONE,
            subdevice: ROOT,
            inner: 0,
            weight: 0,
            parent: ROOT,
            child: ROOT,
            next: ROOT,
            previous: ROOT,
        }
    }
}

impl Object {
    /// Returns whether this is a channel directly below a device, for which the driver made a channel group.
    pub(crate) fn is_alone(&self) -> bool {
        self.class == Class::Channel && self.charged.channel_groups > 0
    }
}

/// The objects, while the state is locked.
#[derive(Debug)]
pub(crate) struct Objects<'a> {
    map: Map<'a, ObjectKey, Object>,
    extra_aliases: &'a mut usize,
}

impl<'a> Objects<'a> {
    pub(crate) fn new(map: Map<'a, ObjectKey, Object>, extra_aliases: &'a mut usize) -> Self {
        Self { map, extra_aliases }
    }

    /// See [`Map::reserve`].
    pub(crate) fn reserve(&self, extra: usize) -> Result<(), Error> {
        self.map.reserve(extra)
    }

    /// See [`Map::has_spare_page`].
    pub(crate) fn has_spare_page(&self, extra: usize) -> bool {
        self.map.has_spare_page(extra)
    }

    /// Number of objects, roots included.
    pub(crate) fn len(&self) -> usize {
        self.map.len()
    }

    pub(crate) fn get(&self, key: ObjectKey) -> Option<&Object> {
        self.map.get(&key)
    }

    pub(crate) fn get_mut(&mut self, key: ObjectKey) -> Option<&mut Object> {
        self.map.get_mut(&key)
    }

    /// Can the resource manager be told of the object? It cannot while its free, or
    /// that of its client, is under way.
    pub(crate) fn is_reachable(&self, key: ObjectKey, object: &Object) -> bool {
        self.space(object.file, object.client) == Some(key.space)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&ObjectKey, &Object)> + use<'_, 'a> {
        self.map.iter()
    }

    /// The space of a file's client.
    ///
    /// The resource manager takes a client from the file alone that made it (`rmclientValidate_IMPL`).
    pub(crate) fn space(&self, file: FileId, client: Handle) -> Option<u64> {
        let name = self.get(ObjectKey::new(file.raw(), client))?;
        (name.inner != 0).then_some(name.inner)
    }

    /// The space of a client, whichever file it belongs to.
    pub(crate) fn space_of_any(&self, client: Handle) -> Option<u64> {
        let known = self.get(ObjectKey::new(CLIENTS, client))?;
        self.space(known.file, client)
            .filter(|space| *space == known.inner)
    }

    /// Returns the file to which a client belongs.
    pub(crate) fn file_of_any(&self, client: Handle) -> Option<FileId> {
        self.space_of_any(client)?;
        Some(self.get(ObjectKey::new(CLIENTS, client))?.file)
    }

    /// Slots that [`Objects::add_client`] needs.
    pub(crate) const OF_CLIENT: usize = 3;

    /// Adds a client of a file, with a space of its own. Returns the file of the client that
    /// had the handle, if its free is under way.
    ///
    /// # Errors
    ///
    /// Those of [`Objects::reserve`]; [`Error::Exists`] when the file has such a client.
    pub(crate) fn add_client(
        &mut self,
        file: FileId,
        client: Handle,
        inner: u64,
    ) -> Result<Option<FileId>, Error> {
        let mut name = Object::new(file, Class::Client);
        name.inner = inner;
        self.add(ObjectKey::new(file.raw(), client), name)?;
        let old = self.put(ObjectKey::new(CLIENTS, client), name)?;
        self.add_root(inner, file)?;
        Ok(old.map(|old| old.file))
    }

    /// Makes the root of a new space.
    ///
    /// # Errors
    ///
    /// Those of [`Objects::reserve`].
    pub(crate) fn add_root(&mut self, space: u64, file: FileId) -> Result<(), Error> {
        let root = Object::new(file, Class::Client);
        self.put(ObjectKey::root(space), root).map(|_| ())
    }

    /// Adds an object below `object.parent`, or below the root if that is not known.
    ///
    /// # Errors
    ///
    /// Those of [`Objects::reserve`]; [`Error::Exists`] when the key is taken.
    pub(crate) fn add(&mut self, key: ObjectKey, mut object: Object) -> Result<(), Error> {
        if self.map.contains(&key) || key.handle == ROOT {
            return Err(Error::Exists);
        }
        if !self.map.contains(&ObjectKey::new(key.space, object.parent)) {
            object.parent = ROOT;
        }
        self.put(key, object)?;
        self.link(key);
        Ok(())
    }

    /// Takes one object out that is `top` or below it and has nothing below itself.
    /// Also tells another name of what it was, if there is one.
    ///
    /// Called until it returns `None`, it takes out the whole of `top`.
    pub(crate) fn pop(&mut self, top: ObjectKey) -> Option<(Object, Option<ObjectKey>)> {
        let mut at = top;
        for _ in 0..self.map.len() {
            match self.get(at)?.child {
                ROOT => break,
                child => at.handle = child,
            }
        }
        self.unlink(at);
        let successor = self.remove_alias(at);
        self.unlist(at);
        let object = self.take(at)?;
        self.forget_client(at.handle, object.inner);
        Some((object, successor))
    }

    /// Removes the name of a client for other files, unless a newer client has its handle.
    fn forget_client(&mut self, client: Handle, inner: u64) {
        let key = ObjectKey::new(CLIENTS, client);
        if inner != 0 && self.get(key).is_some_and(|name| name.inner == inner) {
            self.take(key);
        }
    }

    /// Inserts an object, and counts it for its file. Returns the one that it replaces.
    fn put(&mut self, key: ObjectKey, object: Object) -> Result<Option<Object>, Error> {
        let old = self.map.insert(key, object)?;
        if let Some(old) = old {
            self.weigh(old.file, |weight| weight.saturating_sub(1));
        }
        self.weigh(object.file, |weight| weight.saturating_add(1));
        Ok(old)
    }

    fn take(&mut self, key: ObjectKey) -> Option<Object> {
        let object = self.map.remove(&key)?;
        self.weigh(object.file, |weight| weight.saturating_sub(1));
        Some(object)
    }

    fn weigh(&mut self, file: FileId, change: impl FnOnce(u32) -> u32) {
        if let Some(root) = self.map.get_mut(&ObjectKey::root(file.raw())) {
            root.weight = change(root.weight);
        }
    }

    /// Returns the number of objects of an open file. O(1).
    pub(crate) fn of_file(&self, file: FileId) -> u32 {
        let root = self.get(ObjectKey::root(file.raw()));
        root.map_or(0, |root| root.weight)
    }

    /// Keeps an object where nobody can name it, until it gets a key.
    ///
    /// # Errors
    ///
    /// Those of [`Objects::reserve`].
    pub(crate) fn hide(&mut self, hidden: ObjectKey, object: Object) -> Result<(), Error> {
        self.put(hidden, object).map(|_| ())
    }

    /// Gives what [`Objects::hide`] keeps a key, a client and a parent. Returns false,
    /// and leaves it, when there is no such object or the key is taken.
    pub(crate) fn unhide(
        &mut self,
        hidden: ObjectKey,
        key: ObjectKey,
        [client, parent]: [Handle; 2],
    ) -> bool {
        if self.map.contains(&key) || key.handle == ROOT {
            return false;
        }
        let Some(mut object) = self.take(hidden) else {
            return false;
        };
        (object.client, object.parent) = (client, parent);
        object.unconfirmed = false;
        // INVARIANT: an entry was just removed, so there is room, and the key is free.
        let _ = self.add(key, object);
        self.alias_rekeyed(hidden, key);
        self.listing_rekeyed(key);
        true
    }

    /// What comes after `at` in the tree below `top`, parents first.
    pub(crate) fn after(&self, top: ObjectKey, at: Handle) -> Option<ObjectKey> {
        let handle = self.walk(top.space, top.space, top.handle, at)?;
        Some(ObjectKey::new(top.space, handle))
    }

    /// What comes after `at` and all below it in the tree below `top`, parents first.
    pub(crate) fn beyond(&self, top: ObjectKey, at: Handle) -> Option<ObjectKey> {
        let handle = self.past(top.space, top.space, top.handle, at)?;
        Some(ObjectKey::new(top.space, handle))
    }

    /// The first object directly below another.
    pub(crate) fn child_of(&self, key: ObjectKey) -> Option<ObjectKey> {
        let child = self.get(key)?.child;
        (child != ROOT).then(|| ObjectKey::new(key.space, child))
    }

    /// The next object below the same parent.
    pub(crate) fn sibling_of(&self, key: ObjectKey) -> Option<ObjectKey> {
        let next = self.get(key)?.next;
        (next != ROOT).then(|| ObjectKey::new(key.space, next))
    }

    /// The device that an object is below.
    pub(crate) fn device_of(&self, key: ObjectKey) -> Option<ObjectKey> {
        let mut at = key;
        // A channel is below a channel group, or a device; nothing lies deeper than that.
        for _ in 0..4 {
            let object = self.get(at)?;
            if object.class == Class::Device {
                return Some(at);
            }
            at.handle = object.parent;
        }
        None
    }

    /// The first object directly below a root.
    pub(crate) fn first_below_root(&self, space: u64) -> Option<ObjectKey> {
        match self.get(ObjectKey::root(space))?.child {
            ROOT => None,
            child => Some(ObjectKey::new(space, child)),
        }
    }

    /// Moves an object and all below it into a space that nobody can name.
    pub(crate) fn detach(&mut self, top: ObjectKey, hidden: u64) {
        self.unlink(top);
        self.rename(top, hidden);
    }

    /// Moves back what was detached, below the parent that it had. Returns
    /// false, and leaves it where it is, when a handle was taken meanwhile.
    pub(crate) fn attach(&mut self, hidden: ObjectKey, home: u64) -> bool {
        let mut at = Some(hidden.handle);
        for _ in 0..self.map.len() {
            let Some(handle) = at else { break };
            if self.map.contains(&ObjectKey::new(home, handle)) {
                return false;
            }
            at = self.walk(hidden.space, hidden.space, hidden.handle, handle);
        }
        self.rename(hidden, home);
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

    /// Changes the space of a tree, whose top is linked to nothing.
    fn rename(&mut self, top: ObjectKey, space: u64) {
        let mut at = Some(top.handle);
        for _ in 0..self.map.len() {
            let Some(handle) = at else { break };
            let (from, to) = (
                ObjectKey::new(top.space, handle),
                ObjectKey::new(space, handle),
            );
            if let Some(object) = self.map.remove(&from) {
                // INVARIANT: an entry was just removed, so there is room for one.
                let _ = self.map.insert(to, object);
                self.alias_rekeyed(from, to);
                self.listing_rekeyed(to);
            }
            at = self.walk(top.space, space, top.handle, handle);
        }
    }

    /// What comes after `handle` in the tree below `top`, parents first. Each
    /// object is in one of the two spaces.
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

    /// As [`Objects::walk`], but not into what is below `handle`.
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
    fn link(&mut self, key: ObjectKey) {
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

    /// Takes an object out of the list of its parent's children.
    fn unlink(&mut self, key: ObjectKey) {
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

    /// Are all links mutual, and is every object below the parent it names?
    pub(crate) fn is_sound(&self) -> bool {
        let linked = |key: &ObjectKey, object: &Object| {
            let at = |handle| self.get(ObjectKey::new(key.space, handle));
            let next = object.next == ROOT
                || at(object.next).is_some_and(|next| {
                    next.previous == key.handle && next.parent == object.parent
                });
            let above = match (key.handle, object.previous) {
                (ROOT, _) => true,
                // The top of a detached tree is linked to nothing.
                (_, ROOT) => at(object.parent).is_none_or(|parent| parent.child == key.handle),
                (_, previous) => at(previous).is_some_and(|previous| previous.next == key.handle),
            };
            let child = object.child == ROOT
                || at(object.child)
                    .is_some_and(|child| child.parent == key.handle && child.previous == ROOT);
            let inner = object.inner == 0 || self.get(ObjectKey::root(object.inner)).is_some();
            next && above
                && child
                && inner
                && self.aliases_are_sound(*key, object)
                && self.listing_is_sound(*key, object)
        };
        self.map.is_sound()
            && self.iter().all(|(key, object)| linked(key, object))
            && self.extra_aliases_are_counted()
    }
}
