// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Maps indices of the real ring to indices of the tenant's.
//!
//! One entry of the tenant may take several entries of the real ring. Both rings may differ in
//! length. GP_GET of the real ring yields the tenant's GP_GET.

use core::num::Wrapping;
use core::ops::DerefMut;

/// Returns the index after `index` in a ring of `entries` entries.
pub fn next_index(index: u32, entries: u32) -> u32 {
    let next = Wrapping(index) + Wrapping(1);
    if next.0 >= entries {
        0
    } else {
        next.0
    }
}

/// Returns the index before `index` in a ring of `entries` entries.
pub fn previous_index(index: u32, entries: u32) -> u32 {
    let behind = match index {
        0 => entries,
        index => index,
    };
    behind.saturating_sub(1)
}

/// The indices of a real ring. It has as many entries as slots.
#[derive(Debug)]
pub struct RealRing<S> {
    entries: u32,
    put: u32,
    /// The last GP_GET that was read.
    get: u32,
    /// Entries written and read since the beginning.
    pushed: Wrapping<u32>,
    fetched: Wrapping<u32>,
    /// For each index: the tenant's next entry once the GPU has read up to here.
    tenant_next: S,
}

impl<S: DerefMut<Target = [u32]>> RealRing<S> {
    /// Creates an empty ring. `tenant_next` has a slot for each entry, at least 2 and at most
    /// 2^22, filled with 0.
    pub fn new(tenant_next: S) -> Self {
        Self {
            entries: u32::try_from(tenant_next.len()).unwrap_or(u32::MAX),
            put: 0,
            get: 0,
            pushed: Wrapping(0),
            fetched: Wrapping(0),
            tenant_next,
        }
    }

    /// Goes on with a ring in which the tenant has written the entries before `put`, of which the
    /// GPU has read those before `get`. Returns false, and changes nothing, if one is no index.
    /// Nothing was written before.
    pub fn resume(&mut self, get: u32, put: u32) -> bool {
        if get >= self.entries || put >= self.entries {
            return false;
        }
        for (slot, index) in self.tenant_next.iter_mut().zip(0..) {
            *slot = index;
        }
        let in_flight = match put.checked_sub(get) {
            Some(count) => count,
            None => (Wrapping(put) + Wrapping(self.entries) - Wrapping(get)).0,
        };
        self.pushed = self.fetched + Wrapping(in_flight);
        (self.put, self.get) = (put, get);
        true
    }

    /// Returns how many entries can be added before GP_GET is read again.
    pub fn room(&self) -> u32 {
        let in_flight = (self.pushed - self.fetched).0;
        self.entries.saturating_sub(in_flight).saturating_sub(1)
    }

    /// Returns whether no entry can be added before GP_GET is read again.
    pub fn is_full(&self) -> bool {
        self.room() == 0
    }

    /// Returns how many entries were written since the beginning, modulo 2^32.
    pub fn pushed_count(&self) -> Wrapping<u32> {
        self.pushed
    }

    /// Returns how many entries the GPU had read at the last GP_GET.
    pub fn fetched_count(&self) -> Wrapping<u32> {
        self.fetched
    }

    /// Returns the index of the next entry to write.
    pub fn put(&self) -> u32 {
        self.put
    }

    /// Records that an entry was written at [`put`](Self::put). `tenant_next` is the tenant's next
    /// entry once the GPU has read it.
    pub fn pushed(&mut self, tenant_next: u32) {
        self.put = next_index(self.put, self.entries);
        self.pushed += 1;
        // CAST: an index of the ring.
        if let Some(slot) = self.tenant_next.get_mut(self.put as usize) {
            *slot = tenant_next;
        }
    }

    /// Returns the last GP_GET that was read.
    pub fn get(&self) -> u32 {
        self.get
    }

    /// Returns how many entries the ring has.
    pub fn entries(&self) -> u32 {
        self.entries
    }

    /// Records GP_GET and returns the tenant's GP_GET for it. Returns `None` if it is no index of an
    /// entry in flight, or of the next one.
    pub fn read_up_to(&mut self, get: u32) -> Option<u32> {
        // CAST: widening.
        let tenant = *self.tenant_next.get(get as usize)?;
        let passed = match get.checked_sub(self.get) {
            Some(passed) => passed,
            None => (Wrapping(get) + Wrapping(self.entries) - Wrapping(self.get)).0,
        };
        // GP_GET does not pass GP_PUT. Another number is not believed.
        (passed <= (self.pushed - self.fetched).0).then_some(())?;
        self.fetched += passed;
        self.get = get;
        Some(tenant)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn atoms_take_entries_that_the_tenant_does_not_see() {
        let mut slots = [0; 4];
        let mut ring = RealRing::new(&mut slots[..]);
        // One entry, then one that became two: the tenant's second is read once both are.
        ring.pushed(1);
        ring.pushed(1);
        ring.pushed(2);
        assert!(ring.is_full());
        assert_eq!(
            [0, 1, 2, 3].map(|get| ring.read_up_to(get)),
            [Some(0), Some(1), Some(1), Some(2)]
        );
        assert!(!ring.is_full());
        assert_eq!(ring.read_up_to(4), None);
        // Wraps around the end.
        assert_eq!(ring.put(), 3);
        ring.pushed(3);
        assert_eq!((ring.put(), ring.read_up_to(0)), (0, Some(3)));
    }

    /// Entries that the tenant wrote itself count as read one by one. What is added takes its place
    /// behind them.
    #[test]
    fn a_ring_in_use_goes_on_at_its_indices() {
        let mut ring = RealRing::new([0; 4].to_vec());
        assert!(!ring.resume(4, 0) && !ring.resume(0, 4));
        assert_eq!((ring.put(), ring.room()), (0, 3));
        assert!(ring.resume(3, 1));
        assert_eq!((ring.put(), ring.room()), (1, 1));
        // One of the tenant's becomes two.
        ring.pushed(1);
        assert!(ring.is_full());
        assert_eq!(
            [3, 0, 1].map(|get| ring.read_up_to(get)),
            [Some(3), Some(0), Some(1)]
        );
        ring.pushed(2);
        assert_eq!([2, 3].map(|get| ring.read_up_to(get)), [Some(1), Some(2)]);
        assert_eq!((ring.put(), ring.room()), (3, 3));
        // Nothing is in flight.
        let mut ring = RealRing::new([0; 4].to_vec());
        assert!(ring.resume(2, 2) && ring.room() == 3);
    }

    #[test]
    fn indices_wrap_around_the_end() {
        assert_eq!([0, 2, 3].map(|index| next_index(index, 4)), [1, 3, 0]);
        assert_eq!([0, 1, 3].map(|index| previous_index(index, 4)), [3, 0, 2]);
    }
}
