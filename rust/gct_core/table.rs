// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Implements a linear hash table (Litwin 1980) over storage that the caller owns.
//!
//! ```text
//! slot    room for one entry; slots lie in pages (Paged)
//! bucket  a chain of slots; n entries have n buckets, so a chain has one entry on average
//! parent  the bucket from which a new bucket takes its entries
//! spare   a page that no entry needs
//!
//! bucket(hash, n):                      # 2^(k-1) < n <= 2^k
//!     b = hash mod 2^k
//!     if b >= n: b = hash mod 2^(k-1)   # bucket b does not exist yet
//! parent(b) = b without its highest bit
//!
//! insert: split parent(n) into itself and bucket n; store the entry in slot n
//! remove: merge bucket n-1 into parent(n-1); move the entry of slot n-1 into the free slot
//! ```
//!
//! Entries fill the slots without gaps, so a table needs no more pages than its entries. It grows
//! and shrinks by one page. Every operation takes constant time, because no operation rehashes the
//! table. The order of the entries depends on the operations alone.
//!
//! Tenants choose handles, and handles are keys. The seed is secret, so a tenant cannot choose keys
//! that collide.

mod keys;
mod paged;

use crate::error::{Error, Need, Table};
use crate::units::Sat;
pub(crate) use keys::{mix, Key};
use paged::Before;
pub use paged::{Found, Link, Paged, Slot};

/// State of a table that outlives a [`Map`].
#[derive(Debug)]
pub(crate) struct Meta {
    table: Table,
    entries_max: usize,
    seed: u64,
    len: usize,
}

impl Meta {
    pub(crate) const fn new(table: Table, entries_max: usize, seed: u64) -> Self {
        Self {
            table,
            entries_max,
            seed,
            len: 0,
        }
    }
}

/// A table with its storage, while the state is locked.
pub(crate) struct Map<'a, K, V> {
    meta: &'a mut Meta,
    slots: &'a mut dyn Paged<K, V>,
}

impl<K, V> core::fmt::Debug for Map<'_, K, V> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.meta.fmt(f)
    }
}

/// Empty pages that a table keeps. The hysteresis avoids freeing and allocating the same page in
/// turns.
const PAGES_KEPT: usize = 1;

impl<'a, K: Key, V> Map<'a, K, V> {
    pub(crate) fn new(meta: &'a mut Meta, slots: &'a mut dyn Paged<K, V>) -> Self {
        Self { meta, slots }
    }

    /// Returns the number of entries.
    pub(crate) fn len(&self) -> usize {
        self.meta.len
    }

    /// Checks that `extra` more entries fit.
    ///
    /// # Errors
    ///
    /// [`Error::NeedSlots`] if the storage is too small, [`Error::NoSpace`] if the table would
    /// exceed its maximum.
    pub(crate) fn reserve(&self, extra: usize) -> Result<(), Error> {
        let slots = self.meta.len.saturating_add(extra);
        if slots > self.meta.entries_max {
            return Err(Error::NoSpace);
        }
        if slots <= self.slots.capacity() {
            return Ok(());
        }
        Err(Error::NeedSlots(Need {
            table: self.meta.table,
            piece: self
                .slots
                .capacity()
                .checked_div(self.slots.page())
                .unwrap_or(0),
            slots,
        }))
    }

    /// Returns whether a page is spare: neither the entries nor `extra` more need it, and the table
    /// keeps [`PAGES_KEPT`] others.
    pub(crate) fn has_spare_page(&self, extra: usize) -> bool {
        let used = Sat(self.meta.len) + Sat(extra);
        let kept = Sat(self.slots.page()) * (Sat(PAGES_KEPT) + Sat(1));
        used + kept <= Sat(self.slots.capacity())
    }

    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        self.find(key).map(|found| found.value)
    }

    pub(crate) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        let at = self.find(key)?.at;
        let slot = self.slots.slot_mut(at)?;
        slot.entry.as_mut().map(|(_, value)| value)
    }

    pub(crate) fn contains(&self, key: &K) -> bool {
        self.get(key).is_some()
    }

    /// Adds an entry, or replaces the value of an existing one. Returns the replaced value.
    ///
    /// # Errors
    ///
    /// Those of [`Map::reserve`] for one entry, if the key is new.
    pub(crate) fn insert(&mut self, key: K, value: V) -> Result<Option<V>, Error> {
        if let Some(old) = self.get_mut(&key) {
            return Ok(Some(core::mem::replace(old, value)));
        }
        self.reserve(1)?;
        let at = self.meta.len;
        self.meta.len = at.saturating_add(1);
        self.split(at);
        let bucket = self.bucket(&key);
        let next = self.slots.first(bucket);
        if let Some(slot) = self.slots.slot_mut(at) {
            (slot.entry, slot.next) = (Some((key, value)), next);
        }
        self.slots.set_first(bucket, Link::new(at));
        Ok(None)
    }

    /// Removes an entry and moves the last entry into its slot.
    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        let Found { at, before, .. } = self.find(key)?;
        let next = self.next(at);
        self.set_link(before, next);
        let slot = self.slots.slot_mut(at)?;
        slot.next = Link::NONE;
        let (_, value) = slot.entry.take()?;
        let last = self.meta.len.saturating_sub(1);
        self.merge(last);
        self.meta.len = last;
        self.move_entry(last, at);
        Some(value)
    }

    /// Removes every entry that `doomed` selects, and passes it to `each`.
    pub(crate) fn remove_where(
        &mut self,
        doomed: impl Fn(&K, &V) -> bool,
        mut each: impl FnMut(K, V),
    ) {
        let mut at = 0;
        // Each iteration removes the entry of slot `at`, which the last entry refills, or advances.
        for _ in 0..self.meta.len {
            match self.entry(at) {
                Some((key, value)) if doomed(key, value) => {
                    let key = *key;
                    if let Some(value) = self.remove(&key) {
                        each(key, value);
                    }
                }
                _ => at = at.saturating_add(1),
            }
        }
    }

    /// Returns the key in a slot below [`Map::len`]. Entries stay in their slots until one is
    /// removed.
    pub(crate) fn key_at(&self, at: usize) -> Option<K> {
        self.entry(at).map(|(key, _)| *key)
    }

    /// Iterates over the entries in the order of their slots.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &V)> + use<'_, 'a, K, V> {
        (0..self.meta.len).filter_map(|at| self.entry(at).map(|(key, value)| (key, value)))
    }

    fn slot(&self, at: usize) -> Option<&Slot<K, V>> {
        #[cfg(test)]
        steps::count();
        self.slots.slot(at)
    }

    fn entry(&self, at: usize) -> Option<&(K, V)> {
        self.slot(at)?.entry.as_ref()
    }

    fn find(&self, key: &K) -> Option<Found<'_, V>> {
        self.slots.find(self.bucket(key), key, self.meta.len)
    }

    /// Returns the bucket of a key; 0 in an empty table.
    fn bucket(&self, key: &K) -> usize {
        bucket(key.hash(self.meta.seed), self.meta.len)
    }

    /// Moves the entries of bucket `new`, now the last one, out of its parent.
    fn split(&mut self, new: usize) {
        let Some(old) = parent(new) else { return };
        let mut from = Before::First(old);
        let mut link = self.slots.first(old);
        let mut moved = Link::NONE;
        for _ in 0..self.meta.len {
            let Some(at) = link.get() else { break };
            let next = self.next(at);
            if self.bucket_of(at) == Some(new) {
                self.set_link(from, next);
                self.set_next(at, moved);
                moved = link;
            } else {
                from = Before::Next(at);
            }
            link = next;
        }
        self.slots.set_first(new, moved);
    }

    /// Moves the entries of bucket `gone`, still the last one, into its parent.
    fn merge(&mut self, gone: usize) {
        let first = self.slots.first(gone);
        self.slots.set_first(gone, Link::NONE);
        let Some((old, mut at)) = parent(gone).zip(first.get()) else {
            return;
        };
        for _ in 0..self.meta.len {
            match self.next(at).get() {
                Some(next) => at = next,
                None => break,
            }
        }
        let rest = self.slots.first(old);
        self.set_next(at, rest);
        self.slots.set_first(old, first);
    }

    /// Moves an entry to an empty slot and updates the link to it.
    fn move_entry(&mut self, from: usize, to: usize) {
        let Some(bucket) = self.bucket_of(from) else {
            return;
        };
        let mut before = Before::First(bucket);
        let mut link = self.slots.first(bucket);
        for _ in 0..=self.meta.len {
            match link.get() {
                Some(at) if at != from => {
                    before = Before::Next(at);
                    link = self.next(at);
                }
                _ => break,
            }
        }
        let Some(slot) = self.slots.slot_mut(from) else {
            return;
        };
        let next = core::mem::replace(&mut slot.next, Link::NONE);
        let entry = slot.entry.take();
        if let Some(slot) = self.slots.slot_mut(to) {
            (slot.entry, slot.next) = (entry, next);
        }
        self.set_link(before, Link::new(to));
    }

    /// Returns the bucket of the entry in a slot.
    fn bucket_of(&self, at: usize) -> Option<usize> {
        self.entry(at).map(|(key, _)| self.bucket(key))
    }

    fn next(&self, at: usize) -> Link {
        self.slots.slot(at).map_or(Link::NONE, |slot| slot.next)
    }

    fn set_next(&mut self, at: usize, link: Link) {
        if let Some(slot) = self.slots.slot_mut(at) {
            slot.next = link;
        }
    }

    fn set_link(&mut self, before: Before, link: Link) {
        match before {
            Before::First(bucket) => self.slots.set_first(bucket, link),
            Before::Next(at) => self.set_next(at, link),
        }
    }

    /// Checks the invariants: lookup finds every entry, each entry is in one chain, and slots and
    /// buckets beyond the last entry are empty.
    pub(crate) fn is_sound(&self) -> bool {
        let behind = self.meta.len..self.slots.capacity();
        let is_empty = |at| {
            let slot = self.slots.slot(at);
            self.slots.first(at) == Link::NONE
                && slot.is_some_and(|slot| slot.entry.is_none() && slot.next == Link::NONE)
        };
        let chained = (0..self.meta.len).fold(0usize, |sum, bucket| {
            let mut link = self.slots.first(bucket);
            let chain = (0..=self.meta.len).map_while(|_| {
                let at = link.get()?;
                link = self.next(at);
                Some(at)
            });
            sum.saturating_add(count(chain))
        });
        count(self.iter()) == self.meta.len
            && self.meta.len <= self.slots.capacity()
            && chained == self.meta.len
            && self.iter().all(|(key, _)| self.contains(key))
            && behind.into_iter().all(is_empty)
    }
}

/// Returns the bucket of a hash in a table with `buckets` buckets.
fn bucket(hash: u64, buckets: usize) -> usize {
    // CAST: the low bits of a hash are uniform.
    let hash = hash as usize;
    let mask = buckets
        .checked_next_power_of_two()
        .map_or(usize::MAX, |power| power.saturating_sub(1));
    match hash & mask {
        at if at < buckets => at,
        at => at & (mask >> 1),
    }
}

/// Returns the parent of a bucket: its number without the highest bit.
fn parent(new: usize) -> Option<usize> {
    Some(new ^ 1usize.checked_shl(new.checked_ilog2()?)?)
}

/// Counts the items. [`Iterator::count`] contains an overflow check that may panic.
pub(crate) fn count<I: Iterator>(items: I) -> usize {
    items.fold(0, |count, _| count.saturating_add(1))
}

/// Counts the slots visited, so that a test can bound the cost of an event.
#[cfg(test)]
pub(crate) mod steps {
    use std::cell::Cell;

    std::thread_local! {
        static STEPS: Cell<usize> = const { Cell::new(0) };
    }

    pub(super) fn count() {
        STEPS.set(STEPS.get() + 1);
    }

    /// Returns how many slots `run` visits.
    pub(crate) fn of(run: impl FnOnce()) -> usize {
        let before = STEPS.get();
        run();
        STEPS.get() - before
    }
}

#[cfg(test)]
mod tests;
