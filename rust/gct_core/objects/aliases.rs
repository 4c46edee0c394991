// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Several objects that name one thing.
//!
//! A client may give an object of another a name of its own, and the thing lives
//! as long as it has a name. So all names of one thing are linked in a ring, and
//! when the one that is charged goes, another inherits the charge.

use super::{Object, ObjectKey, Objects};
use crate::error::Error;
use crate::limits;

/// The neighbours in the ring of names; `None` for the only name.
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
    /// Makes sure that what `known` names may have one more name, so that a walk over the names of a thing is bounded.
    ///
    /// # Errors
    ///
    /// [`Error::NoSpace`] when it has [`ALIASES_MAX`](limits::ALIASES_MAX).
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

    /// Makes `new`, which has no other name, a further name of what `known` names.
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
        self.set_ring(new, |own| {
            *own = Some(Ring {
                previous: known,
                next: ring.next,
            });
        });
        self.set_neighbour(ring.next, |ring| ring.previous = new);
        self.set_neighbour(known, |ring| ring.next = new);
        *self.extra_aliases = self.extra_aliases.saturating_add(1);
    }

    /// How many names could inherit a charge: all of each thing but one.
    pub(crate) fn extra_aliases(&self) -> usize {
        *self.extra_aliases
    }

    /// Takes an object out of its ring and returns another name of the thing.
    pub(super) fn remove_alias(&mut self, key: ObjectKey) -> Option<ObjectKey> {
        let Ring { previous, next } = self.get(key)?.aliases.0?;
        self.set_ring(key, |own| *own = None);
        *self.extra_aliases = self.extra_aliases.saturating_sub(1);
        if previous == next {
            // The other is alone now.
            self.set_ring(next, |own| *own = None);
        } else {
            self.set_neighbour(previous, |ring| ring.next = next);
            self.set_neighbour(next, |ring| ring.previous = previous);
        }
        Some(next)
    }

    /// The name of a thing that is the subject of controls, which may be `key` itself.
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

    /// The next name in the ring, which is `key` itself where it has no other.
    pub(crate) fn next_alias(&self, key: ObjectKey) -> ObjectKey {
        let ring = self.get(key).and_then(|object| object.aliases.0);
        ring.map_or(key, |ring| ring.next)
    }

    /// An object has got another key: its neighbours have to know.
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

    /// Do the neighbours in the ring know this object?
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

    /// Is the count of extra_aliases that of the rings?
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
