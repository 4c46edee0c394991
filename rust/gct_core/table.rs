// SPDX-License-Identifier: GPL-2.0 OR MIT

//! One hash table over storage that the caller owns.
//!
//! The entries lie side by side in an array of pages ([`Paged`]): one is added behind the last, and the last takes the
//! place of one that goes. So a table needs as many pages as its entries fill, and grows and shrinks by one.
//!
//! A linear hash table (Litwin 1980) finds them: with `n` entries there are `n` buckets, and entry `n` brings bucket `n`,
//! which takes its part of one other bucket:
//!
//! ```text
//! bucket(hash, n) = hash mod 2^k, or hash mod 2^(k-1) where there is no such bucket yet     2^(k-1) < n <= 2^k
//! ```
//!
//! A bucket is a chain through the entries' slots, one entry long on average. So every operation takes constant time,
//! whatever the size: nothing is ever rehashed. Order depends on nothing but history.
//!
//! Tenants choose handles, which are keys. The seed, which they do not know,
//! keeps them from choosing keys that collide.

mod keys;
mod paged;

use crate::error::{Error, Need, Table};
pub(crate) use keys::{mix, Key};
use paged::Before;
pub use paged::{Found, Link, Paged, Slot};

/// What a table remembers between two uses of its storage.
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

/// A table for the time that its storage is borrowed.
pub(crate) struct Map<'a, K, V> {
    meta: &'a mut Meta,
    slots: &'a mut dyn Paged<K, V>,
}

impl<K, V> core::fmt::Debug for Map<'_, K, V> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.meta.fmt(f)
    }
}

/// Pages without an entry that are kept for the next ones, so that a table does not shrink and grow by turns.
const PAGES_KEPT: usize = 1;

impl<'a, K: Key, V> Map<'a, K, V> {
    pub(crate) fn new(meta: &'a mut Meta, slots: &'a mut dyn Paged<K, V>) -> Self {
        Self { meta, slots }
    }

    /// Entries.
    pub(crate) fn len(&self) -> usize {
        self.meta.len
    }

    /// Makes sure that `extra` further entries will fit.
    ///
    /// # Errors
    ///
    /// [`Error::NeedSlots`] when the storage is too small, [`Error::NoSpace`] when the
    /// table's maximum would be exceeded.
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

    /// Is there a page, beyond those that are kept, that neither the entries need nor `extra` further ones?
    pub(crate) fn has_spare_page(&self, extra: usize) -> bool {
        let kept = self
            .slots
            .page()
            .saturating_mul(PAGES_KEPT.saturating_add(1));
        let used = self.meta.len.saturating_add(extra);
        used.saturating_add(kept) <= self.slots.capacity()
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

    /// Adds an entry, or replaces the value of one that exists and returns the old one.
    ///
    /// # Errors
    ///
    /// Those of [`Map::reserve`] for one entry, when the key is new.
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

    /// Takes an entry out. The last one takes its place.
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

    /// Takes out every entry that `doomed` picks, and hands it to `each`.
    pub(crate) fn remove_where(
        &mut self,
        doomed: impl Fn(&K, &V) -> bool,
        mut each: impl FnMut(K, V),
    ) {
        let mut at = 0;
        // Each turn takes an entry out, whose place the last one takes, or goes on by one.
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

    /// The key of an entry by its number, below [`Map::len`]. Entries keep their numbers while none is removed.
    pub(crate) fn key_at(&self, at: usize) -> Option<K> {
        self.entry(at).map(|(key, _)| *key)
    }

    /// All entries, in the order of their numbers.
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

    /// The bucket of a key among as many as there are entries; 0 when there are none.
    fn bucket(&self, key: &K) -> usize {
        bucket(key.hash(self.meta.seed), self.meta.len)
    }

    /// Fills bucket `new`, the last of all by now, from the one in which its entries are.
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

    /// Puts what is in bucket `gone`, the last of all, where its entries are without it.
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

    /// Moves an entry to an empty slot.
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

    /// The bucket in which an entry belongs.
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

    /// Is every entry found, is each in one chain, and is nothing left behind the last?
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

/// The bucket of a hash among so many.
fn bucket(hash: u64, buckets: usize) -> usize {
    // CAST: the low bits of a hash are as good as all.
    let hash = hash as usize;
    let mask = buckets
        .checked_next_power_of_two()
        .map_or(usize::MAX, |power| power.saturating_sub(1));
    match hash & mask {
        at if at < buckets => at,
        at => at & (mask >> 1),
    }
}

/// The bucket from which a new one takes its entries: its number without the highest bit.
fn parent(new: usize) -> Option<usize> {
    Some(new ^ 1usize.checked_shl(new.checked_ilog2()?)?)
}

/// Number of items. [`Iterator::count`] can panic, as far as a compiler knows.
pub(crate) fn count<I: Iterator>(items: I) -> usize {
    items.fold(0, |count, _| count.saturating_add(1))
}

/// Counts the slots that are looked at, so that a test can tell who walks over a table.
#[cfg(test)]
pub(crate) mod steps {
    use std::cell::Cell;

    std::thread_local! {
        static STEPS: Cell<usize> = const { Cell::new(0) };
    }

    pub(super) fn count() {
        STEPS.set(STEPS.get() + 1);
    }

    /// Slots that `run` looks at.
    pub(crate) fn of(run: impl FnOnce()) -> usize {
        let before = STEPS.get();
        run();
        STEPS.get() - before
    }
}

#[cfg(test)]
mod tests;
