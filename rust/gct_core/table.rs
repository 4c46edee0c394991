// SPDX-License-Identifier: GPL-2.0 OR MIT

//! One hash table over storage that the caller owns.
//!
//! Open addressing with linear probing. Removal shifts the following entries
//! back, so there are no tombstones and a table is as fast after a million
//! insertions as after one. At most three quarters of the slots are used, so
//! every probe ends at an empty slot; the loops are bounded by the number of
//! slots all the same. Order depends on nothing but seed, keys and history.
//!
//! Tenants choose handles, which are keys. The seed, which they do not know,
//! keeps them from choosing keys that collide.

use crate::error::{Error, Need, Table};
use crate::ids::{FileId, GpuId, GroupId, Owner, ProcKey, UserId};
use crate::limits;
use crate::state::PathHash;

/// Room for one entry. The default is empty.
#[derive(Debug)]
pub struct Slot<K, V>(Option<(K, V)>);

impl<K, V> Default for Slot<K, V> {
    fn default() -> Self {
        Self(None)
    }
}

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

/// Mixes a word into a hash: the finaliser of SplitMix64.
pub(crate) const fn mix(hash: u64, word: u64) -> u64 {
    let mut x = (hash ^ word).wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// What can name an entry.
pub(crate) trait Key: Copy + Eq {
    /// A hash that is even over all 64 bits.
    fn hash(&self, seed: u64) -> u64;
}

impl Key for ProcKey {
    fn hash(&self, seed: u64) -> u64 {
        mix(mix(seed, u64::from(self.tgid)), self.start_time_ns)
    }
}

impl Key for GroupId {
    fn hash(&self, seed: u64) -> u64 {
        mix(seed, self.0)
    }
}

impl Key for GpuId {
    fn hash(&self, seed: u64) -> u64 {
        mix(seed, self.0)
    }
}

impl Key for FileId {
    fn hash(&self, seed: u64) -> u64 {
        mix(seed, self.0)
    }
}

impl Key for PathHash {
    fn hash(&self, seed: u64) -> u64 {
        mix(seed, self.0)
    }
}

impl Key for UserId {
    fn hash(&self, seed: u64) -> u64 {
        mix(seed, u64::from(self.0))
    }
}

impl Key for u32 {
    fn hash(&self, seed: u64) -> u64 {
        mix(seed, u64::from(*self))
    }
}

impl Key for (Owner, GpuId) {
    fn hash(&self, seed: u64) -> u64 {
        let seed = mix(seed, self.1 .0);
        match self.0 {
            Owner::Group(group) => group.hash(seed),
            Owner::Proc(proc) => proc.hash(!seed),
        }
    }
}

/// A table for the time that its storage is borrowed.
#[derive(Debug)]
pub(crate) struct Map<'a, K, V> {
    meta: &'a mut Meta,
    slots: &'a mut [Slot<K, V>],
}

impl<'a, K: Key, V> Map<'a, K, V> {
    pub(crate) fn new(meta: &'a mut Meta, slots: &'a mut [Slot<K, V>]) -> Self {
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
        let len = self.meta.len.saturating_add(extra);
        if len > self.meta.entries_max {
            return Err(Error::NoSpace);
        }
        if len <= capacity(self.slots.len()) {
            return Ok(());
        }
        Err(Error::NeedSlots(self.need(len)))
    }

    /// Storage for `len` entries, with room to double before it has to grow again.
    fn need(&self, len: usize) -> Need {
        let slots = len
            .saturating_mul(2)
            .max(limits::TABLE_SLOTS_MIN)
            .checked_next_power_of_two()
            .unwrap_or(len);
        Need {
            table: self.meta.table,
            piece: 0,
            slots,
        }
    }

    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        let at = self.find(key)?;
        self.entry(at).map(|(_, value)| value)
    }

    pub(crate) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        let at = self.find(key)?;
        match self.slots.get_mut(at) {
            Some(Slot(Some((_, value)))) => Some(value),
            _ => None,
        }
    }

    pub(crate) fn contains(&self, key: &K) -> bool {
        self.find(key).is_some()
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
        let mut at = self.home(&key);
        for _ in 0..self.slots.len() {
            match self.slots.get_mut(at) {
                Some(slot @ Slot(None)) => {
                    slot.0 = Some((key, value));
                    self.meta.len = self.meta.len.saturating_add(1);
                    return Ok(None);
                }
                _ => at = self.after(at),
            }
        }
        // INVARIANT: `reserve` found an empty slot, so the loop has returned.
        Err(Error::NoSpace)
    }

    /// Takes an entry out and closes the gap it leaves.
    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        let mut gap = self.find(key)?;
        let (_, value) = self.slots.get_mut(gap)?.0.take()?;
        self.meta.len = self.meta.len.saturating_sub(1);
        let mut at = gap;
        for _ in 0..self.slots.len() {
            at = self.after(at);
            let Some((next, _)) = self.entry(at) else {
                break;
            };
            // An entry may move back to the gap if its home does not lie
            // after the gap, counted along the probe that ends at the entry.
            if self.distance(self.home(next), at) >= self.distance(gap, at) {
                let moved = self.slots.get_mut(at).and_then(|slot| slot.0.take());
                if let Some(slot) = self.slots.get_mut(gap) {
                    slot.0 = moved;
                }
                gap = at;
            }
        }
        Some(value)
    }

    /// Takes out every entry that `doomed` picks, and hands it to `each`.
    pub(crate) fn remove_where(
        &mut self,
        doomed: impl Fn(&K, &V) -> bool,
        mut each: impl FnMut(K, V),
    ) {
        let mut at = 0;
        // Each turn takes an entry out or goes on by a slot. Closing a gap
        // moves entries towards it: none from ahead of `at` to behind it.
        for _ in 0..self.slots.len().saturating_add(self.meta.len) {
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

    /// Slots of the storage, used or not.
    pub(crate) fn slots(&self) -> usize {
        self.slots.len()
    }

    /// The key in a slot. Slots keep their entries while none is added or removed.
    pub(crate) fn key_at(&self, at: usize) -> Option<K> {
        self.entry(at).map(|(key, _)| *key)
    }

    /// All entries, in the order of the slots.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.slots.iter().filter_map(|slot| {
            #[cfg(test)]
            steps::count();
            slot.0.as_ref().map(|(key, value)| (key, value))
        })
    }

    fn entry(&self, at: usize) -> Option<&(K, V)> {
        #[cfg(test)]
        steps::count();
        self.slots.get(at)?.0.as_ref()
    }

    fn find(&self, key: &K) -> Option<usize> {
        let mut at = self.home(key);
        for _ in 0..self.slots.len() {
            if self.entry(at)?.0 == *key {
                return Some(at);
            }
            at = self.after(at);
        }
        None
    }

    /// Where the probe for `key` starts; 0 when there are no slots.
    fn home(&self, key: &K) -> usize {
        let hash = usize::try_from(key.hash(self.meta.seed) >> 32).unwrap_or(0);
        hash.checked_rem(self.slots.len()).unwrap_or(0)
    }

    fn after(&self, at: usize) -> usize {
        let next = at.saturating_add(1);
        if next < self.slots.len() {
            next
        } else {
            0
        }
    }

    /// Slots from `from` forward to `to`, around the end.
    fn distance(&self, from: usize, to: usize) -> usize {
        match to.checked_sub(from) {
            Some(ahead) => ahead,
            None => self.slots.len().saturating_sub(from.saturating_sub(to)),
        }
    }

    /// Does every entry lie where a probe finds it, and is the count right?
    pub(crate) fn is_sound(&self) -> bool {
        count(self.iter()) == self.meta.len
            && self.meta.len <= capacity(self.slots.len())
            && self.iter().all(|(key, _)| self.contains(key))
    }
}

/// Number of items. [`Iterator::count`] can panic, as far as a compiler knows.
pub(crate) fn count<I: Iterator>(items: I) -> usize {
    items.fold(0, |count, _| count.saturating_add(1))
}

/// Entries that `slots` slots may hold: three quarters.
fn capacity(slots: usize) -> usize {
    slots.saturating_sub(slots.div_ceil(4))
}

/// Moves every entry from `old` to the larger, empty `new`.
///
/// # Errors
///
/// [`Error::NoSpace`] when `new` is too small or not empty; `old` is then untouched.
pub(crate) fn rehash<K: Key, V>(
    meta: &mut Meta,
    old: &mut [Slot<K, V>],
    new: &mut [Slot<K, V>],
) -> Result<(), Error> {
    if meta.len > capacity(new.len()) || new.iter().any(|slot| slot.0.is_some()) {
        return Err(Error::NoSpace);
    }
    meta.len = 0;
    let mut map = Map::new(meta, new);
    for slot in old {
        if let Some((key, value)) = slot.0.take() {
            map.insert(key, value)?;
        }
    }
    Ok(())
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
