// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Keeps the account of one GPU's memory, and chooses what an owner over its limit has to evict.
//!
//! Terminology
//!
//! ```text
//! root     2 MiB of device memory. UVM allocates managed memory in roots, and evicts whole roots.
//!          A root is free or has one holder, so its state alone says who is charged for it
//! slot     the account of a process, or of a group, whose account is the sum of its members'
//! reserve  charge roots before their allocator has chosen them
//! charge   (roots held + roots reserved) * 2 MiB + pinned bytes + internal bytes
//! victim   a root that its holder has to give up
//! ```
//!
//! Both tables belong to the caller. Nothing here allocates, and everything is O(1) but
//! [`Ledger::pick`], which looks at [`LOOKS_MAX`] roots at most. So it can run under a spinlock.
//!
//! ```text
//! root          try_take(s), take(s)             drop_root   start, fail    pick may choose it
//! free          held by s                        -           -              no
//! held by a     held by s; a is not charged      free        leaving, held  yes
//! leaving a     the same                         free        leaving, held  no
//! ```

pub mod accounts;
mod charge;
mod clock;

pub use charge::{Charge, Part, BYTES_MAX};

use crate::units::Bytes;

/// Bytes of a root.
pub const ROOT: Bytes = Bytes(2 << 20);

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
    /// Whether it is being evicted.
    leaving: bool,
    /// Whether it was used since [`Ledger::pick`] looked at it last.
    used: bool,
}

impl Default for Root {
    fn default() -> Self {
        Self {
            holder: NONE,
            next: NONE,
            prev: NONE,
            leaving: false,
            used: false,
        }
    }
}

/// Whose account a slot is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// Nobody's.
    #[default]
    Unused,
    /// A process's.
    Process {
        /// The group of which it is a member.
        group: Option<SlotId>,
    },
    /// A group's.
    Group,
}

/// The account of a process or a group.
#[derive(Clone, Copy, Debug)]
pub struct Slot {
    kind: Kind,
    limit: Option<Bytes>,
    charge: Charge,
    peak: Bytes,
    refusals: u64,
    /// Of a process: the next of its roots that [`Ledger::pick`] looks at. Of a group: its next
    /// member.
    hand: u32,
    /// Its neighbours in the circular list of its group's members.
    next: u32,
    prev: u32,
}

impl Default for Slot {
    fn default() -> Self {
        Self {
            kind: Kind::Unused,
            limit: None,
            charge: Charge::default(),
            peak: Bytes(0),
            refusals: 0,
            hand: NONE,
            next: NONE,
            prev: NONE,
        }
    }
}

impl Slot {
    /// Returns whose account it is.
    pub const fn kind(&self) -> Kind {
        self.kind
    }

    /// Returns what is charged.
    pub const fn charge(&self) -> &Charge {
        &self.charge
    }

    /// Returns the largest sum that was charged.
    pub const fn peak(&self) -> Bytes {
        self.peak
    }

    /// Returns how often its limit has refused a charge.
    pub const fn refusals(&self) -> u64 {
        self.refusals
    }

    fn fits(&self, more: Bytes) -> bool {
        let sum = self.charge.sum().checked_add(more);
        self.limit
            .is_none_or(|limit| sum.is_some_and(|sum| sum <= limit))
    }

    fn set(&mut self, charge: Charge) {
        self.charge = charge;
        self.peak = self.peak.max(charge.sum());
    }
}

/// What [`Ledger::pick`] chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pick {
    /// No limit is in the way: whatever the driver would choose.
    Any,
    /// This root.
    Root(RootId),
    /// The owner has no root that can leave now.
    Nothing,
}

/// The account of one GPU's memory.
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

    /// Returns the group of a process.
    fn group_of(&self, slot: SlotId) -> Option<SlotId> {
        match self.slot(slot)?.kind {
            Kind::Process { group } => group,
            _ => None,
        }
    }

    fn is_group(&self, slot: SlotId) -> bool {
        self.slot(slot).is_some_and(|slot| slot.kind == Kind::Group)
    }

    fn is_process(&self, slot: SlotId) -> bool {
        let kind = self.slot(slot).map(Slot::kind);
        matches!(kind, Some(Kind::Process { .. }))
    }

    /// Opens an account. Returns false if the slot is in use or does not exist, or the group is
    /// none.
    pub fn open(&mut self, slot: SlotId, kind: Kind) -> bool {
        let group = match kind {
            Kind::Process { group } => group,
            _ => None,
        };
        let known = group.is_none_or(|group| self.is_group(group));
        let Some(new) = self.slot_mut(slot).filter(|new| new.kind == Kind::Unused) else {
            return false;
        };
        if !known {
            return false;
        }
        *new = Slot {
            kind,
            ..Slot::default()
        };
        if let Some(group) = group {
            self.link_member(group, slot);
        }
        true
    }

    /// Closes an account. Returns false while something is charged to it or it has members.
    pub fn close(&mut self, slot: SlotId) -> bool {
        let Some(old) = self.slot(slot) else {
            return false;
        };
        let has_members = old.kind == Kind::Group && old.hand != NONE;
        if old.kind == Kind::Unused || has_members || old.charge != Charge::default() {
            return false;
        }
        if let Some(group) = self.group_of(slot) {
            self.unlink_member(group, slot);
        }
        if let Some(old) = self.slot_mut(slot) {
            *old = Slot::default();
        }
        true
    }

    /// Sets a limit, which may be below the charge. It bounds later charges.
    pub fn set_limit(&mut self, slot: SlotId, limit: Option<Bytes>) {
        if let Some(slot) = self.slot_mut(slot) {
            slot.limit = limit;
        }
    }

    /// Returns by how much a slot exceeds its limit.
    pub fn excess(&self, slot: SlotId) -> Bytes {
        let slot = self.slot(slot);
        slot.map_or(Bytes(0), |slot| match slot.limit {
            Some(limit) => slot.charge.sum() - limit,
            None => Bytes(0),
        })
    }

    /// Moves a process with its charge to another group, whatever that one's limit. Returns false
    /// if one of them is not there.
    pub fn move_to(&mut self, slot: SlotId, to: Option<SlotId>) -> bool {
        if !self.is_process(slot) || to.is_some_and(|to| !self.is_group(to)) {
            return false;
        }
        let charge = self
            .slot(slot)
            .map_or(Charge::default(), |slot| slot.charge);
        if let Some(from) = self.group_of(slot) {
            self.unlink_member(from, slot);
            self.update_one(from, |of_group| *of_group = of_group.minus(&charge));
        }
        if let Some(slot) = self.slot_mut(slot) {
            slot.kind = Kind::Process { group: to };
        }
        if let Some(to) = to {
            self.link_member(to, slot);
            self.update_one(to, |of_group| *of_group = of_group.plus(&charge));
        }
        true
    }

    /// Gives a root to a process if it has reserved one or its limits allow one more. Returns false
    /// otherwise, and the root stays where it is.
    pub fn try_take(&mut self, slot: SlotId, root: RootId) -> bool {
        let holder = self.holder(root);
        let group = self.group_of(slot);
        let reserved = self.slot(slot).map_or(0, |slot| slot.charge.reserved);
        if holder != Some(slot) && reserved == 0 {
            // Within a group the sum does not move.
            let others = group.filter(|_| holder.and_then(|holder| self.group_of(holder)) != group);
            if !self.is_process(slot) || !self.admits([Some(slot), others], ROOT) {
                return false;
            }
        }
        self.take(slot, root)
    }

    /// Gives a root to a process, whatever its limits, and consumes a reservation if it has one.
    /// Returns false if one of the two does not exist.
    pub fn take(&mut self, slot: SlotId, root: RootId) -> bool {
        if !self.is_process(slot) || self.root(root).is_none() {
            return false;
        }
        if self.holder(root) != Some(slot) {
            self.drop_root(root);
            self.update(slot, |charge| {
                charge.roots = charge.roots.saturating_add(1);
            });
            self.cancel(slot, 1);
            self.link_root(slot, root);
        }
        if let Some(root) = self.root_mut(root) {
            (root.leaving, root.used) = (false, true);
        }
        true
    }

    /// Makes a root free.
    pub fn drop_root(&mut self, root: RootId) {
        let Some(holder) = self.holder(root) else {
            return;
        };
        self.unlink_root(holder, root);
        self.update(holder, |charge| {
            charge.roots = charge.roots.saturating_sub(1);
        });
    }

    /// Records that the eviction of a root begins, or that it has failed.
    pub fn set_leaving(&mut self, root: RootId, leaving: bool) {
        if let Some(root) = self.root_mut(root).filter(|root| root.holder != NONE) {
            root.leaving = leaving;
        }
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
