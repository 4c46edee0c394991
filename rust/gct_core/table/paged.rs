// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Defines the storage of a table: slots and buckets.

/// An array of slots and as many buckets. The owner adds and removes pages at its end.
pub trait Paged<K, V> {
    /// Returns the number of slots in a page; at least one.
    fn page(&self) -> usize;

    /// Returns the number of slots in all pages.
    fn capacity(&self) -> usize;

    /// Returns a slot.
    fn slot(&self, at: usize) -> Option<&Slot<K, V>>;

    /// Returns a slot for writing.
    fn slot_mut(&mut self, at: usize) -> Option<&mut Slot<K, V>>;

    /// Returns the first link of a bucket.
    fn first(&self, bucket: usize) -> Link;

    /// Sets the first link of a bucket.
    fn set_first(&mut self, bucket: usize, link: Link);

    /// Finds a key in a bucket with at most `most` entries. The loop is part of the trait so that a
    /// lookup costs one virtual call.
    fn find<'s>(&'s self, bucket: usize, key: &K, most: usize) -> Option<Found<'s, V>>
    where
        K: PartialEq + 's,
        V: 's,
    {
        let mut before = Before::First(bucket);
        let mut link = self.first(bucket);
        for _ in 0..most {
            let at = link.get()?;
            let slot = self.slot(at)?;
            #[cfg(test)]
            super::steps::count();
            match &slot.entry {
                Some((other, value)) if other == key => return Some(Found { at, before, value }),
                _ => (before, link) = (Before::Next(at), slot.next),
            }
        }
        None
    }
}

/// The place of a link to an entry.
#[derive(Clone, Copy, Debug)]
pub(super) enum Before {
    /// The first link of a bucket.
    First(usize),
    /// The link in the previous slot of the chain.
    Next(usize),
}

/// An entry and the place of the link to it.
#[derive(Debug)]
pub struct Found<'s, V> {
    pub(super) at: usize,
    pub(super) before: Before,
    pub(super) value: &'s V,
}

/// The index of a slot, or none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Link(u32);

impl Link {
    pub(crate) const NONE: Self = Self(0);

    pub(super) fn new(at: usize) -> Self {
        Self(u32::try_from(at.saturating_add(1)).unwrap_or(0))
    }

    pub(super) fn get(self) -> Option<usize> {
        usize::try_from(self.0.checked_sub(1)?).ok()
    }
}

/// Room for one entry; empty by default.
#[derive(Debug)]
pub struct Slot<K, V> {
    /// The next slot in the chain of the bucket.
    pub(super) next: Link,
    pub(super) entry: Option<(K, V)>,
}

impl<K, V> Default for Slot<K, V> {
    fn default() -> Self {
        Self {
            next: Link::NONE,
            entry: None,
        }
    }
}
