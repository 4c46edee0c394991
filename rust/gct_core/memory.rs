// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Keeps the account of one GPU's managed memory, and chooses what an owner over its limit evicts.
//!
//! Terminology
//!
//! ```text
//! root     2 MiB of device memory. UVM allocates managed memory in roots, and evicts whole roots.
//!          A root is free or has one holder, so its state alone says who is charged for it
//! table    a root with page tables of its holder. It cannot be evicted, so no list has it
//! slot     the account of a process
//! reserve  charge a root before its allocator has chosen it
//! charge   (roots held + tables held + roots reserved) * 2 MiB
//! ```
//!
//! Both tables belong to the caller. Nothing here allocates, and everything is O(1) but
//! [`Ledger::pick`], which looks at [`LOOKS_MAX`] roots at most. So it can run under a spinlock.
//!
//! ```text
//! root          take(s), take_table(s)           drop_root
//! free          held by s                        -
//! held by a     held by s; a is not charged      free
//! ```
//!
//! Limits are the engine's. It is asked before a reservation stands ([`accounts`]).

pub mod accounts;
mod clock;

use crate::units::{Bytes, Sat};

/// Bytes of a root.
pub const ROOT: Bytes = Bytes(2 << 20);

/// Maximum of what one process is charged for as pageable memory: more than a GPU has, and so
/// little that no sum overflows.
pub const BYTES_MAX: Bytes = Bytes(1 << 44);

/// Maximum number of roots that one [`Ledger::pick`] looks at.
pub const LOOKS_MAX: u32 = 4096;

/// The number of a root: its address divided by [`ROOT`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RootId(pub u32);

/// The number of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotId(pub u32);

/// No root, or no slot.
const NONE: u32 = u32::MAX;

/// A root.
#[derive(Clone, Copy, Debug)]
pub struct Root {
    holder: u32,
    /// Its neighbours in the circular list of its holder's roots.
    next: u32,
    prev: u32,
    /// Whether it was used since [`Ledger::pick`] looked at it last.
    used: bool,
    is_table: bool,
}

impl Default for Root {
    fn default() -> Self {
        Self {
            holder: NONE,
            next: NONE,
            prev: NONE,
            used: false,
            is_table: false,
        }
    }
}

/// The account of a process.
#[derive(Clone, Copy, Debug)]
pub struct Slot {
    is_open: bool,
    roots: u32,
    tables: u32,
    reserved: u32,
    /// The next of its roots that [`Ledger::pick`] looks at.
    hand: u32,
}

impl Default for Slot {
    fn default() -> Self {
        Self {
            is_open: false,
            roots: 0,
            tables: 0,
            reserved: 0,
            hand: NONE,
        }
    }
}

impl Slot {
    /// Returns how many roots of managed memory it holds.
    pub const fn roots(&self) -> u32 {
        self.roots
    }

    /// Returns what is charged.
    pub fn charge(&self) -> Bytes {
        let held = Sat(u64::from(self.roots)) + Sat(u64::from(self.tables));
        ROOT * (held + Sat(u64::from(self.reserved))).0
    }

    /// Returns the part of the charge that is for page tables.
    pub fn tables(&self) -> Bytes {
        ROOT * u64::from(self.tables)
    }
}

/// The account of one GPU's managed memory.
#[derive(Debug)]
pub struct Ledger<'a> {
    roots: &'a mut [Root],
    slots: &'a mut [Slot],
}

impl<'a> Ledger<'a> {
    /// Uses the caller's tables. New ones hold default values.
    pub fn new(roots: &'a mut [Root], slots: &'a mut [Slot]) -> Self {
        Self { roots, slots }
    }

    /// Returns the account in a slot.
    pub fn slot(&self, slot: SlotId) -> Option<&Slot> {
        self.slots.get(slot.0 as usize)
    }

    fn slot_mut(&mut self, slot: SlotId) -> Option<&mut Slot> {
        self.slots.get_mut(slot.0 as usize)
    }

    fn open_slot_mut(&mut self, slot: SlotId) -> Option<&mut Slot> {
        self.slot_mut(slot).filter(|slot| slot.is_open)
    }

    fn root(&self, root: RootId) -> Option<&Root> {
        self.roots.get(root.0 as usize)
    }

    fn root_mut(&mut self, root: RootId) -> Option<&mut Root> {
        self.roots.get_mut(root.0 as usize)
    }

    /// Returns who holds a root.
    pub fn holder(&self, root: RootId) -> Option<SlotId> {
        let holder = self.root(root)?.holder;
        (holder != NONE).then_some(SlotId(holder))
    }

    /// Opens an account. Returns false if the slot is in use or does not exist.
    pub fn open(&mut self, slot: SlotId) -> bool {
        let Some(new) = self.slot_mut(slot).filter(|new| !new.is_open) else {
            return false;
        };
        *new = Slot {
            is_open: true,
            ..Slot::default()
        };
        true
    }

    /// Closes an account. Returns false while something is charged to it.
    pub fn close(&mut self, slot: SlotId) -> bool {
        let free = self
            .open_slot_mut(slot)
            .filter(|slot| slot.charge() == Bytes(0));
        free.map(|slot| *slot = Slot::default()).is_some()
    }

    /// Reserves a root for an account. Returns false if the GPU has no more.
    pub fn reserve(&mut self, slot: SlotId) -> bool {
        let exist = self.roots.len();
        let Some(slot) = self.open_slot_mut(slot) else {
            return false;
        };
        let reserved = slot.reserved.saturating_add(1);
        if !usize::try_from(reserved).is_ok_and(|reserved| reserved <= exist) {
            return false;
        }
        slot.reserved = reserved;
        true
    }

    /// Gives reserved roots back, at most as many as are reserved.
    pub fn cancel(&mut self, slot: SlotId, roots: u32) {
        if let Some(slot) = self.slot_mut(slot) {
            slot.reserved = slot.reserved.saturating_sub(roots);
        }
    }

    /// Gives a root to an account, and consumes a reservation if it has one. Returns false if one
    /// of the two does not exist.
    pub fn take(&mut self, slot: SlotId, root: RootId) -> bool {
        if self.open_slot_mut(slot).is_none() || self.root(root).is_none() {
            return false;
        }
        self.cancel(slot, 1);
        if self.holder(root) != Some(slot) || self.is_table(root) {
            self.drop_root(root);
            self.link(slot, root);
        }
        self.set_used(root, true);
        true
    }

    /// Gives a root for page tables to an account, like [`Ledger::take`].
    pub fn take_table(&mut self, slot: SlotId, root: RootId) -> bool {
        if self.open_slot_mut(slot).is_none() || self.root(root).is_none() {
            return false;
        }
        self.cancel(slot, 1);
        self.drop_root(root);
        if let Some(root) = self.root_mut(root) {
            (root.holder, root.is_table) = (slot.0, true);
        }
        if let Some(slot) = self.slot_mut(slot) {
            slot.tables = slot.tables.saturating_add(1);
        }
        true
    }

    /// Makes a root free.
    pub fn drop_root(&mut self, root: RootId) {
        let Some(holder) = self.holder(root) else {
            return;
        };
        if !self.is_table(root) {
            return self.unlink(holder, root);
        }
        if let Some(root) = self.root_mut(root) {
            *root = Root::default();
        }
        if let Some(holder) = self.slot_mut(holder) {
            holder.tables = holder.tables.saturating_sub(1);
        }
    }

    fn is_table(&self, root: RootId) -> bool {
        self.root(root).is_some_and(|root| root.is_table)
    }

    /// Records that a root was used, or that it is cold.
    pub fn set_used(&mut self, root: RootId, used: bool) {
        if let Some(root) = self.root_mut(root).filter(|root| root.holder != NONE) {
            root.used = used;
        }
    }
}

#[cfg(test)]
mod tests;
