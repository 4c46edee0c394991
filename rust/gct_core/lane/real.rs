// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Writes entries to the real ring, and reads how far the GPU has fetched them.

use super::ring::{next_index, RealRing};
use super::words::{Control, Rings, Side};
use crate::submit::gpfifo::{self, Entry};
use core::num::Wrapping;
use core::ops::DerefMut;

/// The real ring of a lane. Every entry that the GPU fetches is written here.
#[derive(Debug)]
pub(super) struct Real<S> {
    ring: RealRing<S>,
    /// The extended base behind the last entry, where the lane sets it.
    base: u32,
}

impl<S: DerefMut<Target = [u32]>> Real<S> {
    /// Creates the writer of an empty ring.
    pub(super) fn new(ring: RealRing<S>) -> Self {
        Self { ring, base: 0 }
    }

    /// Goes on with a ring in use, as [`RealRing::resume`].
    pub(super) fn resume(&mut self, get: u32, put: u32) -> bool {
        self.ring.resume(get, put)
    }

    /// Returns GP_PUT.
    pub(super) fn put(&self) -> u32 {
        self.ring.put()
    }

    /// Returns how many entries were written since the beginning, modulo 2^32.
    pub(super) fn pushed_count(&self) -> Wrapping<u32> {
        self.ring.pushed_count()
    }

    /// Returns how many entries the GPU had fetched at the last GP_GET.
    pub(super) fn fetched_count(&self) -> Wrapping<u32> {
        self.ring.fetched_count()
    }

    /// Returns whether the GPU had fetched every entry at the last GP_GET.
    pub(super) fn is_fetched(&self) -> bool {
        self.fetched_count() == self.pushed_count()
    }

    /// Returns how many entries can be added without another look at GP_GET.
    pub(super) fn room(&self) -> u32 {
        self.ring.room()
    }

    /// Returns whether there is room for so many more entries.
    pub(super) fn make_room(&mut self, rings: &impl Rings, count: u32) -> bool {
        if self.ring.room() < count {
            self.read_get(rings);
        }
        self.ring.room() >= count
    }

    /// Writes an entry. `tenant_next` is the tenant's GP_GET once the GPU has fetched it.
    pub(super) fn push(&mut self, rings: &impl Rings, entry: u64, tenant_next: u32) {
        rings.set_entry(self.ring.put(), entry);
        self.ring.pushed(tenant_next);
    }

    /// Has the next entry's addresses begin with a base.
    pub(super) fn set_base(&mut self, rings: &impl Rings, base: u32, tenant_next: u32) {
        if base != self.base {
            self.base = base;
            let entry = Entry::Control(gpfifo::Control::ExtendedBase(base));
            self.push(rings, entry.encode(), tenant_next);
        }
    }

    /// Returns whether the next entry's addresses begin with a base.
    pub(super) fn has_base(&self, base: u32) -> bool {
        self.base == base
    }

    /// Reads GP_GET and stores the tenant's GP_GET for it.
    pub(super) fn read_get(&mut self, rings: &impl Rings) {
        let (mut at, get) = (self.ring.get(), rings.load(Side::Real, Control::Get));
        if let Some(tenant) = get.and_then(|get| self.ring.read_up_to(get)) {
            while at != self.ring.get() {
                rings.spend(at);
                at = next_index(at, self.ring.entries());
            }
            rings.store_get(tenant);
        }
    }

    /// Updates the tenant's GP_GET if entries are in flight. Returns whether the GPU has fetched
    /// any since the last time.
    pub(super) fn follow_get(&mut self, rings: &impl Rings) -> bool {
        let before = self.fetched_count();
        if !self.is_fetched() {
            self.read_get(rings);
        }
        before != self.fetched_count()
    }
}
