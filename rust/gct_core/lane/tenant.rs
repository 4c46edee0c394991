// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Reads entries from the tenant's ring. The tenant may change all of it at any time.

use super::ring::{next_index, previous_index};
use super::words::{Control, Rings, Side};

/// How far a lane has read the tenant's ring.
#[derive(Debug)]
pub(super) struct TenantRing {
    entries: u32,
    /// The next entry to process, as an index.
    taken: u32,
    /// GP_PUT at the last check.
    seen: u32,
    /// The entry at `taken`, if it was loaded and not processed.
    loaded: Option<u64>,
    /// How many entries before `taken` are not read, and the first of them, as an index.
    unread: u32,
    next_unread: u32,
}

impl TenantRing {
    /// Describes a ring of `entries` entries that are all still to be written.
    pub(super) fn new(entries: u32) -> Self {
        Self {
            entries,
            taken: 0,
            seen: 0,
            loaded: None,
            unread: 0,
            next_unread: 0,
        }
    }

    /// Goes on behind the entries before `put`, an index of the ring.
    pub(super) fn resume(&mut self, put: u32) {
        (self.taken, self.seen) = (put, put);
    }

    /// Returns GP_PUT, or `otherwise` if it cannot be loaded.
    fn put(rings: &impl Rings, otherwise: u32) -> u32 {
        let put = rings.load(Side::Tenant, Control::Put);
        put.unwrap_or(otherwise)
    }

    /// Returns how many entries the ring has.
    pub(super) fn entries(&self) -> u32 {
        self.entries
    }

    /// Returns the index of the next entry to process.
    pub(super) fn taken(&self) -> u32 {
        self.taken
    }

    /// Returns the index of the entry that was processed last.
    pub(super) fn before_taken(&self) -> u32 {
        previous_index(self.taken, self.entries)
    }

    /// Returns whether `put` is an index of the ring.
    pub(super) fn is_index(&self, put: u32) -> bool {
        put < self.entries
    }

    /// Returns whether the tenant has added entries since the last time.
    pub(super) fn has_news(&mut self, rings: &impl Rings) -> bool {
        let put = Self::put(rings, self.seen);
        core::mem::replace(&mut self.seen, put) != put
    }

    /// Returns whether there are entries to process.
    pub(super) fn has_more(&self, rings: &impl Rings) -> bool {
        Self::put(rings, self.taken) != self.taken
    }

    /// Returns how many entries there are to process.
    pub(super) fn behind(&self, rings: &impl Rings) -> u32 {
        self.distance(self.taken, Self::put(rings, self.taken).min(self.entries))
    }

    /// Returns whether so many entries lie between GP_GET and GP_PUT that the tenant may be waiting
    /// for GP_GET to advance.
    pub(super) fn is_crowded(&self, rings: &impl Rings) -> bool {
        let get = rings.load(Side::Tenant, Control::Get).unwrap_or(0);
        self.distance(get, Self::put(rings, 0)) > self.entries / 2
    }

    /// Returns how many entries lie from one index to another.
    fn distance(&self, from: u32, to: u32) -> u32 {
        match to.checked_sub(from) {
            Some(distance) => distance,
            None => to.wrapping_add(self.entries).wrapping_sub(from),
        }
    }

    /// Returns the next entry to process. Reads it once, however often it is asked for, since it
    /// must be the one that is processed.
    pub(super) fn entry(&mut self, rings: &impl Rings) -> Option<u64> {
        self.loaded = self.loaded.or_else(|| rings.entry(self.taken));
        self.loaded
    }

    /// Goes on to the entry behind it.
    pub(super) fn advance(&mut self) {
        self.loaded = None;
        self.taken = next_index(self.taken, self.entries);
    }

    /// Goes on to the entry behind it, and reads it later.
    pub(super) fn pass(&mut self) {
        if self.unread == 0 {
            self.next_unread = self.taken;
        }
        self.unread = self.unread.saturating_add(1);
        self.advance();
    }

    /// Returns how many entries were passed and not read.
    pub(super) fn unread(&self) -> u32 {
        self.unread
    }

    /// Reads the next entry that was passed. The tenant may have changed it since.
    pub(super) fn read(&mut self, rings: &impl Rings) -> Option<u64> {
        let entry = rings.entry(self.next_unread);
        self.next_unread = next_index(self.next_unread, self.entries);
        self.unread = self.unread.saturating_sub(1);
        entry
    }
}
