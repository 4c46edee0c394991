// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tracks the objects that clients have allocated on GSP.

use std::collections::{BTreeMap, BTreeSet};

/// An object's key: its client and handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectKey {
    /// hClient.
    pub client: u32,
    /// hObject.
    pub handle: u32,
}

/// One object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Object {
    /// Its class.
    pub class: u32,
    /// Handle of the parent.
    pub parent: u32,
    /// The object that this one duplicates; itself if it is no duplicate.
    pub origin: ObjectKey,
}

/// Maximum number of tracked objects. Further ones of a driver that leaks are not tracked.
const OBJECTS_MAX: usize = 1 << 20;

/// Maximum depth of objects. It ends loops of parents.
const DEPTH_MAX: usize = 16;

/// All tracked objects.
#[derive(Default)]
pub struct Objects {
    objects: BTreeMap<ObjectKey, Object>,
    /// Client, parent and handle of each object.
    children: BTreeSet<(u32, u32, u32)>,
}

impl Objects {
    /// Adds an object of `class` below `parent`. It replaces an object of the same handle.
    pub fn add(&mut self, key: ObjectKey, parent: u32, class: u32) {
        self.insert(
            key,
            Object {
                class,
                parent,
                origin: key,
            },
        );
    }

    /// Adds an object of `class` that is only another name of its parent.
    pub fn add_name_of_parent(&mut self, key: ObjectKey, parent: u32, class: u32) {
        let origin = self.origin(ObjectKey {
            client: key.client,
            handle: parent,
        });
        self.insert(
            key,
            Object {
                class,
                parent,
                origin,
            },
        );
    }

    /// Returns the closest object of `class` among `key` and its ancestors.
    pub fn ancestor(&self, key: ObjectKey, class: u32) -> Option<ObjectKey> {
        let mut at = key;
        for _ in 0..DEPTH_MAX {
            let object = self.get(at)?;
            if object.class == class {
                return Some(at);
            }
            at.handle = object.parent;
        }
        None
    }

    /// Adds `key` as another name of `source`, if `source` exists.
    pub fn duplicate(&mut self, key: ObjectKey, parent: u32, source: ObjectKey) {
        if let Some(object) = self.get(source) {
            self.insert(key, Object { parent, ..object });
        }
    }

    /// Returns the object called `key`.
    pub fn get(&self, key: ObjectKey) -> Option<Object> {
        self.objects.get(&key).copied()
    }

    /// Returns the first name of the object called `key`.
    pub fn origin(&self, key: ObjectKey) -> ObjectKey {
        self.get(key).map_or(key, |object| object.origin)
    }

    /// Removes `key` and its descendants; a client is removed with all its objects. Returns the
    /// removed keys.
    pub fn remove(&mut self, key: ObjectKey) -> BTreeSet<ObjectKey> {
        let client = key.client;
        let object = |handle| ObjectKey { client, handle };
        let mut removed = BTreeSet::from([key]);
        if key.handle == client {
            let all = self.objects.range(object(0)..=object(u32::MAX));
            removed.extend(all.map(|(key, _)| *key));
        } else {
            let mut gone = vec![key.handle];
            while let Some(parent) = gone.pop() {
                let below = (client, parent, 0)..=(client, parent, u32::MAX);
                for (_, _, child) in self.children.range(below) {
                    // Parents may form loops.
                    if removed.insert(object(*child)) {
                        gone.push(*child);
                    }
                }
            }
        }
        for key in &removed {
            self.forget(*key);
        }
        removed
    }

    fn forget(&mut self, key: ObjectKey) {
        if let Some(object) = self.objects.remove(&key) {
            self.children
                .remove(&(key.client, object.parent, key.handle));
        }
    }

    /// Returns the number of objects.
    pub fn len(&self) -> usize {
        self.objects.len()
    }

    /// Returns whether there are no objects.
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    fn insert(&mut self, key: ObjectKey, object: Object) {
        if self.objects.len() < OBJECTS_MAX || self.objects.contains_key(&key) {
            self.forget(key);
            self.children
                .insert((key.client, object.parent, key.handle));
            self.objects.insert(key, object);
        } else {
            log::warn!("more than {OBJECTS_MAX} objects: {key:x?} is lost from sight");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key(client: u32, handle: u32) -> ObjectKey {
        ObjectKey { client, handle }
    }

    #[test]
    fn children_go_with_their_parent() {
        let mut objects = Objects::default();
        objects.add(key(1, 1), 0, 0x41);
        objects.add(key(1, 2), 1, 0x80);
        objects.add(key(1, 3), 2, 0xa06c);
        objects.add(key(1, 4), 3, 0xc86f);
        objects.add(key(2, 4), 3, 0xc86f);
        assert_eq!(
            objects.remove(key(1, 3)),
            BTreeSet::from([key(1, 3), key(1, 4)])
        );
        assert_eq!(objects.len(), 3);
        objects.remove(key(1, 1));
        assert!(objects.get(key(1, 2)).is_none());
        assert!(objects.get(key(2, 4)).is_some());
    }

    #[test]
    fn an_object_finds_its_device() {
        let mut objects = Objects::default();
        objects.add(key(1, 2), 1, 0x80);
        objects.add(key(1, 3), 2, 0xa06c);
        objects.add_name_of_parent(key(1, 4), 2, 0x90f1);
        assert_eq!(objects.ancestor(key(1, 3), 0x80), Some(key(1, 2)));
        assert_eq!(objects.ancestor(key(1, 3), 0x81), None);
        assert_eq!(objects.origin(key(1, 4)), key(1, 2));
        objects.add(key(1, 5), 5, 0);
        assert_eq!(objects.ancestor(key(1, 5), 0x80), None);
    }

    #[test]
    fn a_duplicate_knows_its_origin() {
        let mut objects = Objects::default();
        objects.add(key(1, 2), 1, 0x90f1);
        objects.duplicate(key(7, 8), 7, key(1, 2));
        objects.duplicate(key(9, 9), 9, key(7, 8));
        assert_eq!(objects.origin(key(9, 9)), key(1, 2));
        assert_eq!(objects.origin(key(5, 5)), key(5, 5));
        assert_eq!(
            objects.get(key(9, 9)).map(|object| object.class),
            Some(0x90f1)
        );
    }

    proptest! {
        /// Handles that are their own or each other's parents do no harm.
        #[test]
        fn any_parents(adds in prop::collection::vec((0u32..4, 0u32..8, 0u32..8), 0..40), frees in prop::collection::vec((0u32..4, 0u32..8), 0..10)) {
            let mut objects = Objects::default();
            for (client, handle, parent) in adds {
                objects.add(key(client, handle), parent, 0);
            }
            for (client, handle) in frees {
                objects.remove(key(client, handle));
                prop_assert!(objects.get(key(client, handle)).is_none());
            }
            prop_assert_eq!(objects.children.len(), objects.len());
        }
    }
}
