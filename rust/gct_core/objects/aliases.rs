// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Links the objects that share one resource.
//!
//! ```text
//! resource   what RM reference-counts: memory, a channel group, ..
//! alias      an object of a resource; dup, export and import add further ones
//! ring       all aliases of a resource, each linked to the next
//! primary    the alias that is charged, and under which controls name the resource
//! successor  the alias that becomes the primary one when that is freed
//! ```
//!
//! A resource lives until its last alias is freed, so its charge moves from alias to alias.

use super::{Object, ObjectKey, Objects};
use crate::error::Error;
use crate::limits;

/// The neighbours in the ring; `None` for the only alias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Aliases(Option<Ring>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ring {
    previous: ObjectKey,
    next: ObjectKey,
}

impl Aliases {
    pub(super) const NONE: Self = Self(None);
}

impl Objects<'_> {
    /// Checks that the resource of `known` may have a further alias. The maximum bounds every walk
    /// over a ring.
    ///
    /// # Errors
    ///
    /// [`Error::NoSpace`] if it has [`ALIASES_MAX`](limits::ALIASES_MAX).
    pub(crate) fn check_alias_limit(&self, known: ObjectKey) -> Result<(), Error> {
        let mut at = known;
        for _ in 1..limits::ALIASES_MAX {
            at = self.next_alias(at);
            if at == known {
                return Ok(());
            }
        }
        Err(Error::NoSpace)
    }

    /// Adds `new`, so far without a ring, to the ring of `known`. What may be unseen of the one may
    /// be of the other.
    pub(crate) fn add_alias(&mut self, known: ObjectKey, new: ObjectKey) {
        if known == new
            || self
                .get(new)
                .is_none_or(|object| object.aliases.0.is_some())
        {
            return;
        }
        let Some(object) = self.get_mut(known) else {
            return;
        };
        let ring = object.aliases.0.unwrap_or(Ring {
            previous: known,
            next: known,
        });
        object.aliases.0 = Some(ring);
        let is_unseen = object.is_unseen;
        if let Some(object) = self.get_mut(new) {
            object.is_unseen = is_unseen;
        }
        self.set_ring(new, |own| {
            *own = Some(Ring {
                previous: known,
                next: ring.next,
            });
        });
        self.set_neighbour(ring.next, |ring| ring.previous = new);
        self.set_neighbour(known, |ring| ring.next = new);
        *self.extra_aliases += 1;
    }

    /// Returns how many aliases could inherit a charge: those beyond the first of each resource.
    pub(crate) fn extra_aliases(&self) -> usize {
        self.extra_aliases.0
    }

    /// Removes an object from its ring, and returns another alias.
    pub(super) fn remove_alias(&mut self, key: ObjectKey) -> Option<ObjectKey> {
        let Ring { previous, next } = self.get(key)?.aliases.0?;
        self.set_ring(key, |own| *own = None);
        *self.extra_aliases -= 1;
        if previous == next {
            // One alias is left.
            self.set_ring(next, |own| *own = None);
        } else {
            self.set_neighbour(previous, |ring| ring.next = next);
            self.set_neighbour(next, |ring| ring.previous = previous);
        }
        Some(next)
    }

    /// Returns the primary alias of an object's resource.
    pub(crate) fn primary_alias(&self, key: ObjectKey) -> ObjectKey {
        let mut at = key;
        for _ in 0..limits::ALIASES_MAX {
            if self.get(at).is_none_or(|object| object.acked.primary) {
                return at;
            }
            at = self.next_alias(at);
            if at == key {
                break;
            }
        }
        key
    }

    /// Returns the next alias in the ring; `key` itself if it is the only one.
    pub(crate) fn next_alias(&self, key: ObjectKey) -> ObjectKey {
        let ring = self.get(key).and_then(|object| object.aliases.0);
        ring.map_or(key, |ring| ring.next)
    }

    /// Updates the neighbours of an object whose key has changed.
    pub(super) fn alias_rekeyed(&mut self, from: ObjectKey, to: ObjectKey) {
        let Some(Ring { previous, next }) = self.get(to).and_then(|object| object.aliases.0) else {
            return;
        };
        if previous != from {
            self.set_neighbour(previous, |ring| ring.next = to);
            self.set_neighbour(next, |ring| ring.previous = to);
        }
    }

    fn set_ring(&mut self, key: ObjectKey, set: impl FnOnce(&mut Option<Ring>)) {
        if let Some(object) = self.get_mut(key) {
            set(&mut object.aliases.0);
        }
    }

    fn set_neighbour(&mut self, key: ObjectKey, set: impl FnOnce(&mut Ring)) {
        self.set_ring(key, |ring| {
            if let Some(ring) = ring {
                set(ring);
            }
        });
    }

    /// Checks that the neighbours in the ring link to the object.
    pub(super) fn aliases_are_sound(&self, key: ObjectKey, object: &Object) -> bool {
        let Some(Ring { previous, next }) = object.aliases.0 else {
            return true;
        };
        let ring = |key| self.get(key).and_then(|object| object.aliases.0);
        previous != key
            && next != key
            && ring(previous).is_some_and(|ring| ring.next == key)
            && ring(next).is_some_and(|ring| ring.previous == key)
    }

    /// Checks that the count of further aliases is that of the rings.
    pub(super) fn extra_aliases_are_counted(&self) -> bool {
        let tied = |(key, object): (&ObjectKey, &Object)| Some((*key, object.aliases.0?));
        let follows = |key: ObjectKey| {
            let (mut at, mut first) = (key, key);
            for _ in 0..self.len() {
                first = if (at.space, at.handle) < (first.space, first.handle) {
                    at
                } else {
                    first
                };
                match self.get(at).and_then(|object| object.aliases.0) {
                    Some(ring) if ring.next != key => at = ring.next,
                    _ => break,
                }
            }
            first != key
        };
        let names = self.iter().filter_map(tied);
        crate::table::count(names.filter(|(key, _)| follows(*key))) == self.extra_aliases()
    }
}
