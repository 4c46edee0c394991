// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Charges bytes and reserves roots.

use super::{Ledger, SlotId, ROOT};
use crate::units::{Bytes, Sat};

/// Maximum of each [`Part`] of a process: more than a GPU has, and so little that no sum overflows.
pub const BYTES_MAX: Bytes = Bytes(1 << 44);

/// Memory that is charged by the byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Allocated by the resource manager.
    Pinned,
    /// Used by the driver for its owner, such as page tables.
    Internal,
}

/// What is charged to one slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Charge {
    /// Roots that it holds.
    pub roots: u32,
    /// Roots that it has reserved.
    pub reserved: u32,
    /// Bytes of [`Part::Pinned`].
    pub pinned: Bytes,
    /// Bytes of [`Part::Internal`].
    pub internal: Bytes,
}

impl Charge {
    /// Returns all of it in bytes.
    pub fn sum(&self) -> Bytes {
        let roots = Sat(u64::from(self.roots)) + Sat(u64::from(self.reserved));
        ROOT * roots.0 + self.pinned + self.internal
    }

    fn part(&mut self, part: Part) -> &mut Bytes {
        match part {
            Part::Pinned => &mut self.pinned,
            Part::Internal => &mut self.internal,
        }
    }

    pub(super) fn plus(&self, other: &Self) -> Self {
        Self {
            roots: self.roots.saturating_add(other.roots),
            reserved: self.reserved.saturating_add(other.reserved),
            pinned: self.pinned + other.pinned,
            internal: self.internal + other.internal,
        }
    }

    pub(super) fn minus(&self, other: &Self) -> Self {
        Self {
            roots: self.roots.saturating_sub(other.roots),
            reserved: self.reserved.saturating_sub(other.reserved),
            pinned: self.pinned - other.pinned,
            internal: self.internal - other.internal,
        }
    }
}

impl Ledger<'_> {
    pub(super) fn update_one(&mut self, slot: SlotId, change: impl Fn(&mut Charge)) {
        if let Some(slot) = self.slot_mut(slot) {
            let mut charge = slot.charge;
            change(&mut charge);
            slot.set(charge);
        }
    }

    /// Changes the charge of a process and of its group.
    pub(super) fn update(&mut self, slot: SlotId, change: impl Fn(&mut Charge)) {
        let group = self.group_of(slot);
        for slot in [Some(slot), group].into_iter().flatten() {
            self.update_one(slot, &change);
        }
    }

    /// Returns whether more fits within the limits of some slots, and counts a refusal in each
    /// whose limit is exceeded.
    pub(super) fn admits(&mut self, slots: [Option<SlotId>; 2], more: Bytes) -> bool {
        let mut admitted = true;
        for slot in slots.into_iter().flatten() {
            if let Some(slot) = self.slot_mut(slot).filter(|slot| !slot.fits(more)) {
                slot.refusals = slot.refusals.saturating_add(1);
                admitted = false;
            }
        }
        admitted
    }

    /// Charges bytes within the limits of a process and of its group. Returns false and charges
    /// nothing if they do not fit.
    pub fn try_charge(&mut self, slot: SlotId, part: Part, bytes: Bytes) -> bool {
        let group = self.group_of(slot);
        let admitted = self.is_process(slot) && self.admits([Some(slot), group], bytes);
        admitted && self.charge(slot, part, bytes)
    }

    /// Charges bytes, whatever the limits. Returns false and charges nothing if the process would
    /// have more than [`BYTES_MAX`].
    pub fn charge(&mut self, slot: SlotId, part: Part, bytes: Bytes) -> bool {
        let charged = self.slot(slot).map(|slot| slot.charge);
        let sum = charged.map(|mut charge| *charge.part(part) + bytes);
        if !self.is_process(slot) || sum.is_none_or(|sum| sum > BYTES_MAX) {
            return false;
        }
        self.update(slot, |charge| {
            let part = charge.part(part);
            *part += bytes;
        });
        true
    }

    /// Uncharges bytes. Returns false and changes nothing if less is charged.
    pub fn uncharge(&mut self, slot: SlotId, part: Part, bytes: Bytes) -> bool {
        let charged = self.slot(slot).map(|slot| slot.charge);
        let charged = charged.is_some_and(|mut charge| *charge.part(part) >= bytes);
        if !charged || !self.is_process(slot) {
            return false;
        }
        self.update(slot, |charge| {
            let part = charge.part(part);
            *part -= bytes;
        });
        true
    }

    /// Reserves roots within the limits. Returns false and reserves none if they do not fit, or the
    /// GPU has fewer.
    pub fn reserve(&mut self, slot: SlotId, roots: u32) -> bool {
        let group = self.group_of(slot);
        let more = ROOT * u64::from(roots);
        let reserved = self.slot(slot).map_or(0, |slot| slot.charge.reserved);
        let reserved = reserved.saturating_add(roots);
        let exist = usize::try_from(reserved).is_ok_and(|reserved| reserved <= self.roots.len());
        if !self.is_process(slot) || !exist || !self.admits([Some(slot), group], more) {
            return false;
        }
        self.update(slot, |charge| {
            charge.reserved = charge.reserved.saturating_add(roots);
        });
        true
    }

    /// Gives reserved roots back, at most as many as are reserved.
    pub fn cancel(&mut self, slot: SlotId, roots: u32) {
        let reserved = self.slot(slot).map_or(0, |slot| slot.charge.reserved);
        let roots = roots.min(reserved);
        self.update(slot, |charge| {
            charge.reserved = charge.reserved.saturating_sub(roots);
        });
    }
}
