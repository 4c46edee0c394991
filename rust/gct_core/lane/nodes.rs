// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Keeps a tenant's nodes of CUDA graphs, and has the backend add room for them.
//!
//! ```text
//! lane       before it reads a segment: room for all launches that it may have, else it waits
//! backend    sees that (lacks), allocates without a lock, and adds it (grow), or says that there
//!            is no more: then nodes that were used long ago go
//! ```

use super::words::Storage;
use crate::submit::graph::{Index, Memory, Slot, Table};
use crate::submit::join::Qmd;

/// The stored QMDs of CUDA graphs.
pub(super) struct Nodes<S: Storage> {
    slots: S::Table<Slot>,
    /// The words of the first of them, if the launches of their replays can be listed.
    descriptors: Option<S::Table<Qmd>>,
    index: Index,
    /// Whether the backend may add room.
    grows: bool,
}

impl<S: Storage> Nodes<S> {
    pub(super) fn new(slots: S::Table<Slot>) -> Self {
        Self {
            slots,
            descriptors: None,
            index: Index::new(0),
            grows: false,
        }
    }

    pub(super) fn memory(&mut self) -> Memory<'_, S::Table<Slot>, S::Table<Qmd>> {
        let memory = Memory::new(&mut self.slots, &mut self.index);
        memory.keeping(self.descriptors.as_mut())
    }

    /// Takes room for the words of nodes: as many slots as for nodes, or fewer to list fewer. `key`
    /// is a secret number. `grows` says that the backend adds room.
    pub(super) fn keep(&mut self, descriptors: S::Table<Qmd>, key: u64, grows: bool) {
        self.descriptors = Some(descriptors);
        self.index = Index::new(key);
        self.grows = grows;
    }

    /// Returns whether there may be room for so many further nodes once the backend adds some.
    #[inline]
    pub(super) fn lacks(&self, count: usize) -> bool {
        let free = || self.slots.count().saturating_sub(self.index.nodes());
        self.grows && free() < count
    }

    /// Has `grow` add empty slots for nodes, and as many for their words. If it returns false there
    /// is no more room.
    pub(super) fn grow(
        &mut self,
        grow: impl FnOnce(&mut S::Table<Slot>, &mut S::Table<Qmd>) -> bool,
    ) {
        let slots = &mut self.slots;
        let descriptors = self.descriptors.as_mut();
        self.grows = descriptors.is_some_and(|descriptors| grow(slots, descriptors));
    }
}
