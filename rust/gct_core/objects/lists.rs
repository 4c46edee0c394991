// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Keeps objects in lists, so that an event visits the objects of its owner and not the whole
//! table.
//!
//! ```text
//! list   a ring through the links of its objects and of a sentinel; an object is in at most one
//! ends   the sentinel, an object with a hidden key: previous is the last object, next the first
//! space  the hidden space of a process's sentinels
//! ```
//!
//! Each process has the lists [`List::OF_PROC`]. Every step is O(1).

use super::{Object, ObjectKey, Objects};
use crate::error::Error;
use crate::ids::FileId;
use crate::rmapi::{Class, Handle};

/// A list of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum List {
    /// Channel groups and channels without a pending control.
    Clean,
    /// Dirty channel groups, the oldest first.
    DirtyGroups,
    /// Dirty channels, the oldest first.
    DirtyChannels,
    /// Objects that the control in flight names.
    InFlight,
}

impl List {
    /// The lists of a process.
    pub(crate) const OF_PROC: [Self; 4] = [
        Self::Clean,
        Self::DirtyGroups,
        Self::DirtyChannels,
        Self::InFlight,
    ];

    /// Returns the handle of its sentinel.
    const fn handle(self) -> Handle {
        match self {
            Self::Clean => 1,
            Self::DirtyGroups => 2,
            Self::DirtyChannels => 3,
            Self::InFlight => 4,
        }
    }

    const fn ends(self, space: u64) -> ObjectKey {
        ObjectKey::new(space, self.handle())
    }
}

/// An object's neighbours in its list.
#[derive(Clone, Copy, Debug)]
pub(super) struct Links {
    previous: ObjectKey,
    next: ObjectKey,
    list: Option<List>,
}

impl Links {
    /// The links of an object in no list.
    pub(super) const NONE: Self = Self {
        previous: ObjectKey::root(0),
        next: ObjectKey::root(0),
        list: None,
    };
}

/// The file of sentinels; no file has this number.
pub(crate) const NO_FILE: FileId = FileId(0);

impl<'a> Objects<'a> {
    /// Adds an empty list.
    ///
    /// # Errors
    ///
    /// Those of [`Objects::reserve`].
    pub(crate) fn add_list(&mut self, space: u64, list: List) -> Result<(), Error> {
        let ends = list.ends(space);
        let mut object = Object::new(NO_FILE, Class::Other);
        object.links = Links {
            previous: ends,
            next: ends,
            list: Some(list),
        };
        self.map.insert(ends, object).map(|_| ())
    }

    /// Removes a list. Its objects are then in no list.
    pub(crate) fn remove_list(&mut self, space: u64, list: List) {
        // Each iteration removes an object; the bound keeps a broken ring from looping forever.
        for _ in 0..self.map.len() {
            match self.first(space, list) {
                Some(key) => self.unlist(key),
                None => break,
            }
        }
        self.map.remove(&list.ends(space));
    }

    /// Returns the list of an object.
    pub(crate) fn list_of(&self, key: ObjectKey) -> Option<List> {
        self.get(key)?.links.list
    }

    /// Moves an object to the end of a list.
    pub(crate) fn enlist(&mut self, key: ObjectKey, space: u64, list: List) {
        self.unlist(key);
        if let Some(last) = self.links(list.ends(space)).map(|links| links.previous) {
            self.join(last, key, list.ends(space), list);
        }
    }

    /// Moves an object to the start of a list.
    pub(crate) fn enlist_first(&mut self, key: ObjectKey, space: u64, list: List) {
        self.unlist(key);
        if let Some(first) = self.links(list.ends(space)).map(|links| links.next) {
            self.join(list.ends(space), key, first, list);
        }
    }

    /// Removes an object from its list.
    pub(crate) fn unlist(&mut self, key: ObjectKey) {
        let Some(links) = self.links(key).filter(|links| links.list.is_some()) else {
            return;
        };
        self.set_links(key, |own| *own = Links::NONE);
        self.set_links(links.previous, |previous| previous.next = links.next);
        self.set_links(links.next, |next| next.previous = links.previous);
    }

    /// Returns the first object of a list.
    pub(crate) fn first(&self, space: u64, list: List) -> Option<ObjectKey> {
        self.behind(space, list, list.ends(space))
    }

    /// Returns the last object of a list.
    pub(crate) fn last(&self, space: u64, list: List) -> Option<ObjectKey> {
        let last = self.links(list.ends(space))?.previous;
        (last != list.ends(space)).then_some(last)
    }

    /// Returns the object after `key` in its list.
    pub(crate) fn behind(&self, space: u64, list: List, key: ObjectKey) -> Option<ObjectKey> {
        let next = self.links(key)?.next;
        (next != list.ends(space)).then_some(next)
    }

    /// Iterates over the objects of a list.
    pub(crate) fn listed(
        &self,
        space: u64,
        list: List,
    ) -> impl Iterator<Item = ObjectKey> + use<'_, 'a> {
        let mut at = self.first(space, list);
        (0..self.map.len()).map_while(move |_| {
            let key = at?;
            at = self.behind(space, list, key);
            Some(key)
        })
    }

    /// Updates the neighbours of an object whose key has changed.
    pub(super) fn listing_rekeyed(&mut self, to: ObjectKey) {
        if let Some(links) = self.links(to).filter(|links| links.list.is_some()) {
            self.set_links(links.previous, |previous| previous.next = to);
            self.set_links(links.next, |next| next.previous = to);
        }
    }

    fn join(&mut self, previous: ObjectKey, key: ObjectKey, next: ObjectKey, list: List) {
        if self.get(key).is_none() {
            return;
        }
        self.set_links(previous, |links| links.next = key);
        self.set_links(next, |links| links.previous = key);
        self.set_links(key, |links| {
            *links = Links {
                previous,
                next,
                list: Some(list),
            };
        });
    }

    fn links(&self, key: ObjectKey) -> Option<Links> {
        self.get(key).map(|object| object.links)
    }

    fn set_links(&mut self, key: ObjectKey, set: impl FnOnce(&mut Links)) {
        if let Some(object) = self.get_mut(key) {
            set(&mut object.links);
        }
    }

    /// Checks that the neighbours are in the same list and link to the object.
    pub(super) fn listing_is_sound(&self, key: ObjectKey, object: &Object) -> bool {
        let Links {
            previous,
            next,
            list: Some(list),
        } = object.links
        else {
            return true;
        };
        let fits = |other: Option<Links>| other.is_some_and(|other| other.list == Some(list));
        let (before, behind) = (self.links(previous), self.links(next));
        fits(before)
            && fits(behind)
            && before.is_some_and(|links| links.next == key)
            && behind.is_some_and(|links| links.previous == key)
    }
}
