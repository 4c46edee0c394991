// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The storage of a table.

/// An array of slots in pages, which its owner adds and takes away at the end. There are as many buckets as slots.
pub trait Paged<K, V> {
    /// Slots of one page; at least one.
    fn page(&self) -> usize;

    /// Slots of all pages together.
    fn capacity(&self) -> usize;

    /// A slot.
    fn slot(&self, at: usize) -> Option<&Slot<K, V>>;

    /// A slot, to be written.
    fn slot_mut(&mut self, at: usize) -> Option<&mut Slot<K, V>>;

    /// The first entry of a bucket.
    fn first(&self, bucket: usize) -> Link;

    /// Sets the first entry of a bucket.
    fn set_first(&mut self, bucket: usize, link: Link);

    /// Finds an entry in a bucket of at most `most`. It is here so that a lookup costs one call through `dyn`.
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

/// Where a link to an entry is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Before {
    /// At the start of a bucket.
    First(usize),
    /// In the entry before it.
    Next(usize),
}

/// An entry, and where the link to it is.
#[derive(Debug)]
pub struct Found<'s, V> {
    pub(super) at: usize,
    pub(super) before: Before,
    pub(super) value: &'s V,
}

/// The number of an entry, or none.
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

/// Room for one entry. The default is empty.
#[derive(Debug)]
pub struct Slot<K, V> {
    /// The next entry of the bucket in which this slot's entry is.
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
