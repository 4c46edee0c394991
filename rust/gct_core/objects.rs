// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Mirrors the objects of the resource manager (RM) that limits depend on.
//!
//! ```text
//! handle   a tenant's number of an object; free again as soon as RM has freed the object
//! space    a set of objects with distinct handles; a key is a space and a handle
//! root     the object with handle 0 in a space; the parent of objects without another
//! hidden   a space that belongs to no file and no client, so no call finds its objects
//! alias    one of several objects that share a resource            (aliases.rs)
//! list     the channels of a process, by their pending controls    (lists.rs)
//!
//! space of a file     its clients; the space has the file's number
//! space CLIENTS       the clients of all files: a call may name a client of another file,
//!                     as the source of a dup
//! space of a client   its objects; the client's `inner` is the space
//! ```
//!
//! Before an ioctl frees an object, the object and its descendants move to a hidden space. RM may
//! give their handles to another thread before the ioctl returns. After the ioctl the core removes
//! them, or moves them back if RM has refused.
//!
//! Every loop is bounded by the number of objects.

mod aliases;
mod lists;
mod tree;

use crate::account::Amount;
use crate::error::Error;
use crate::ids::{FileId, GpuId};
use crate::ids::{KeptNames, OF_CHANNEL};
use crate::plan::Acked;
use crate::rmapi::{Class, Handle};
use crate::table::{mix, Key, Map};
use crate::units::Sat;
use aliases::Aliases;
use lists::Links;
pub(crate) use lists::{List, NO_FILE};

/// The key of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectKey {
    pub(crate) space: u64,
    pub(crate) handle: Handle,
}

impl ObjectKey {
    pub(crate) const fn new(space: u64, handle: Handle) -> Self {
        Self { space, handle }
    }

    /// Returns the key of a space's root.
    pub(crate) const fn root(space: u64) -> Self {
        Self::new(space, ROOT)
    }
}

impl Key for ObjectKey {
    fn hash(&self, seed: u64) -> u64 {
        mix(mix(seed, self.space), u64::from(self.handle))
    }
}

/// The space of all files' clients. No file and no client has this number.
const CLIENTS: u64 = 0;

/// The handle of a space's root; no object in a link.
const ROOT: Handle = 0;

/// An object.
#[derive(Clone, Copy, Debug)]
pub struct Object {
    /// The open file that made it.
    pub(crate) file: FileId,
    pub(crate) class: Class,
    pub(crate) gpu: Option<GpuId>,
    /// What is charged for it. Of several aliases one is charged.
    pub(crate) charged: Amount,
    /// Its neighbours among the aliases of its resource.
    aliases: Aliases,
    /// Whether it is an alias that RM may still refuse, or memory whose size RM has still to tell.
    pub(crate) unconfirmed: bool,
    /// Whether no pool has `charged` yet: it succeeds an alias of another owner, and is
    /// unconfirmed.
    pub(crate) charge_deferred: bool,
    /// For managed memory: whether its account is closed. It goes with its last host memory.
    pub(crate) is_closed: bool,
    /// For memory that is kept: its keepers.
    pub(crate) keepers: Sat<u32>,
    /// For a channel: the names that it keeps.
    pub(crate) keeps: KeptNames,
    /// Its neighbours in its list.
    links: Links,
    /// The handle of its client, for controls on it.
    pub(crate) client: Handle,
    pub(crate) acked: Acked,
    /// For a channel group: whether the registers of its context may be other than what was seen.
    pub(crate) is_unseen: bool,
    /// For a device: the subdevice that its client made last.
    pub(crate) subdevice: Handle,
    /// For a client: the space of its objects; else 0.
    pub(crate) inner: u64,
    /// For the root of a file's space: the number of the file's objects, including the root.
    file_objects: Sat<u32>,
    pub(crate) parent: Handle,
    child: Handle,
    next: Handle,
    previous: Handle,
}

/// An object that [`Objects::pop`] has removed.
#[derive(Debug)]
pub(crate) struct Popped {
    pub(crate) object: Object,
    /// Another alias of its resource, if there is one.
    pub(crate) successor: Option<ObjectKey>,
    /// Its parent, where to go on; `None` if it was the top of the tree.
    pub(crate) next: Option<ObjectKey>,
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
            is_closed: false,
            keepers: Sat(0),
            keeps: [None; OF_CHANNEL],
            links: Links::NONE,
            client: ROOT,
            acked: Acked::NONE,
            is_unseen: false,
            subdevice: ROOT,
            inner: 0,
            file_objects: Sat(0),
            parent: ROOT,
            child: ROOT,
            next: ROOT,
            previous: ROOT,
        }
    }
}

impl Object {
    /// Returns whether this is a channel directly below a device. The driver makes a channel group
    /// for it.
    pub(crate) fn is_alone(&self) -> bool {
        self.class == Class::Channel && self.charged.channel_groups > 0
    }
}

/// The objects, while the state is locked.
#[derive(Debug)]
pub(crate) struct Objects<'a> {
    map: Map<'a, ObjectKey, Object>,
    /// Aliases beyond the first of each resource.
    extra_aliases: &'a mut Sat<usize>,
}

impl<'a> Objects<'a> {
    pub(crate) fn new(map: Map<'a, ObjectKey, Object>, extra_aliases: &'a mut Sat<usize>) -> Self {
        Self { map, extra_aliases }
    }

    /// Checks that `extra` more entries fit: [`Map::reserve`].
    pub(crate) fn reserve(&self, extra: usize) -> Result<(), Error> {
        self.map.reserve(extra)
    }

    /// Returns whether a page is spare: [`Map::has_spare_page`].
    pub(crate) fn has_spare_page(&self, extra: usize) -> bool {
        self.map.has_spare_page(extra)
    }

    /// Returns the number of objects, including roots.
    pub(crate) fn len(&self) -> usize {
        self.map.len()
    }

    pub(crate) fn get(&self, key: ObjectKey) -> Option<&Object> {
        self.map.get(&key)
    }

    pub(crate) fn get_mut(&mut self, key: ObjectKey) -> Option<&mut Object> {
        self.map.get_mut(&key)
    }

    /// Returns whether a control can name the object. It cannot while an ioctl frees the object or
    /// its client.
    pub(crate) fn is_reachable(&self, key: ObjectKey, object: &Object) -> bool {
        self.space(object.file, object.client) == Some(key.space)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&ObjectKey, &Object)> + use<'_, 'a> {
        self.map.iter()
    }

    /// Returns the space of a file's client.
    ///
    /// RM accepts a client only from the file that made it (`rmclientValidate_IMPL`).
    pub(crate) fn space(&self, file: FileId, client: Handle) -> Option<u64> {
        let name = self.get(ObjectKey::new(file.raw(), client))?;
        (name.inner != 0).then_some(name.inner)
    }

    /// Returns the space of a client of any file.
    pub(crate) fn space_of_any(&self, client: Handle) -> Option<u64> {
        let known = self.get(ObjectKey::new(CLIENTS, client))?;
        self.space(known.file, client)
            .filter(|space| *space == known.inner)
    }

    /// Returns the file of a client.
    pub(crate) fn file_of_any(&self, client: Handle) -> Option<FileId> {
        self.space_of_any(client)?;
        Some(self.get(ObjectKey::new(CLIENTS, client))?.file)
    }

    /// Slots that [`Objects::add_client`] needs.
    pub(crate) const OF_CLIENT: usize = 3;

    /// Adds a client to a file, with `inner` as its space. Returns the file of an earlier client
    /// with this handle that an ioctl is freeing.
    ///
    /// # Errors
    ///
    /// Those of [`Objects::reserve`]; [`Error::Exists`] if the file has a client with this handle.
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

    /// Adds a space: creates its root.
    ///
    /// # Errors
    ///
    /// Those of [`Objects::reserve`].
    pub(crate) fn add_root(&mut self, space: u64, file: FileId) -> Result<(), Error> {
        let root = Object::new(file, Class::Client);
        self.put(ObjectKey::root(space), root).map(|_| ())
    }

    /// Adds an object below `object.parent`, or below the root if that parent is unknown.
    ///
    /// # Errors
    ///
    /// Those of [`Objects::reserve`]; [`Error::Exists`] if the key is taken.
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

    /// Removes one object without children: `at`, an object of the tree `top`, or a descendant of
    /// it.
    ///
    /// Repeated from `top` on, with [`Popped::next`] as `at`, this removes the whole tree. It goes
    /// down to each object once, however deep the tree is.
    pub(crate) fn pop(&mut self, top: ObjectKey, mut at: ObjectKey) -> Option<Popped> {
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
        Some(Popped {
            object,
            successor,
            next: (at != top).then(|| ObjectKey::new(top.space, object.parent)),
        })
    }

    /// Removes a client from the space of all clients, unless a newer client has its handle.
    fn forget_client(&mut self, client: Handle, inner: u64) {
        let key = ObjectKey::new(CLIENTS, client);
        if inner != 0 && self.get(key).is_some_and(|name| name.inner == inner) {
            self.take(key);
        }
    }

    /// Inserts an object and counts it for its file. Returns the object that it replaces.
    fn put(&mut self, key: ObjectKey, object: Object) -> Result<Option<Object>, Error> {
        let old = self.map.insert(key, object)?;
        if let Some(old) = old {
            self.count_for_file(old.file, |count| *count -= 1);
        }
        self.count_for_file(object.file, |count| *count += 1);
        Ok(old)
    }

    fn take(&mut self, key: ObjectKey) -> Option<Object> {
        let object = self.map.remove(&key)?;
        self.count_for_file(object.file, |count| *count -= 1);
        Some(object)
    }

    fn count_for_file(&mut self, file: FileId, change: impl FnOnce(&mut Sat<u32>)) {
        if let Some(root) = self.map.get_mut(&ObjectKey::root(file.raw())) {
            change(&mut root.file_objects);
        }
    }

    /// Returns the number of objects of an open file. O(1).
    pub(crate) fn of_file(&self, file: FileId) -> u32 {
        let root = self.get(ObjectKey::root(file.raw()));
        root.map_or(0, |root| root.file_objects.0)
    }

    /// Adds an object under a hidden key, until it gets its own.
    ///
    /// # Errors
    ///
    /// Those of [`Objects::reserve`].
    pub(crate) fn hide(&mut self, hidden: ObjectKey, object: Object) -> Result<(), Error> {
        self.put(hidden, object).map(|_| ())
    }

    /// Gives an object of [`Objects::hide`] its key, client and parent. Returns false and changes
    /// nothing if there is no such object or the key is taken.
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
        // INVARIANT: this cannot fail. An entry was just removed, and the key is free.
        let _ = self.add(key, object);
        self.alias_rekeyed(hidden, key);
        self.listing_rekeyed(key);
        true
    }

    /// Checks the invariants: links are mutual, and every object is below its parent.
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
