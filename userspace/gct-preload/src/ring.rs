// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Maps indices of the real ring to indices of the tenant's. Both have the same length. One launch
//! of the tenant may take several entries of the real ring. GP_GET of the real ring thus yields the
//! tenant's GP_GET.

/// The indices of a real ring.
#[derive(Debug)]
pub(crate) struct RealRing {
    entries: u32,
    put: u32,
    /// The last GP_GET that was read.
    get: u32,
    /// For each index: the tenant's next entry once the GPU has read up to here.
    tenant_next: Vec<u32>,
}

impl RealRing {
    /// Creates an empty ring of at least 2 entries.
    pub(crate) fn new(entries: u32) -> Self {
        Self {
            entries,
            put: 0,
            get: 0,
            // CAST: `Channel::new` has bounded the number.
            tenant_next: vec![0; entries as usize],
        }
    }

    fn after(&self, index: u32) -> u32 {
        if index + 1 >= self.entries {
            0
        } else {
            index + 1
        }
    }

    /// Returns whether no entry can be added before GP_GET is read again.
    pub(crate) fn is_full(&self) -> bool {
        self.after(self.put) == self.get
    }

    /// Returns the index of the next entry to write.
    pub(crate) fn put(&self) -> u32 {
        self.put
    }

    /// Records that an entry was written at [`put`](Self::put). `tenant_next` is the tenant's next
    /// entry once the GPU has read it.
    pub(crate) fn pushed(&mut self, tenant_next: u32) {
        self.put = self.after(self.put);
        // CAST: an index of the ring.
        if let Some(slot) = self.tenant_next.get_mut(self.put as usize) {
            *slot = tenant_next;
        }
    }

    /// Records GP_GET and returns the tenant's GP_GET for it. Returns `None` if it is no index.
    pub(crate) fn read_up_to(&mut self, get: u32) -> Option<u32> {
        // CAST: an index of the ring.
        let tenant = *self.tenant_next.get(get as usize)?;
        self.get = get;
        Some(tenant)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn atoms_take_entries_that_the_tenant_does_not_see() {
        let mut ring = RealRing::new(4);
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
}
