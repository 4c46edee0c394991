// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Ties slots to the address spaces that hold their roots, and finds the sums that have changed.
//!
//! An address space has one slot on each of its GPUs, its account. If the address space closes
//! while an eviction still works on one of its roots, the slot stays in use until that root has
//! another holder.
//!
//! Roots change hands under a spinlock. Their sums are reported later, by a thread that may sleep:
//!
//! ```text
//! take, drop_root   the sums of both accounts are stale
//! next_stale        a stale account
//! report            its owner, and its bytes now: not stale any more
//! ```

use super::{Kind, Ledger, RootId, SlotId, ROOT};
use crate::units::Bytes;

/// An account.
#[derive(Clone, Copy, Debug)]
pub struct Account<T> {
    /// Who is told of its sum; `None` if there is no address space.
    owner: Option<T>,
    is_stale: bool,
}

impl<T> Default for Account<T> {
    fn default() -> Self {
        Self {
            owner: None,
            is_stale: false,
        }
    }
}

/// The accounts of one GPU's ledger: one for each of its slots. Slot 0 is nobody's.
#[derive(Debug)]
pub struct Accounts<'a, T> {
    ledger: Ledger<'a>,
    all: &'a mut [Account<T>],
}

impl<'a, T: Copy> Accounts<'a, T> {
    /// Uses the caller's tables.
    pub fn new(ledger: Ledger<'a>, all: &'a mut [Account<T>]) -> Self {
        Self { ledger, all }
    }

    /// Returns the ledger.
    pub fn ledger(&self) -> &Ledger<'a> {
        &self.ledger
    }

    fn account_mut(&mut self, slot: SlotId) -> Option<&mut Account<T>> {
        self.all.get_mut(slot.0 as usize)
    }

    fn owner(&self, slot: SlotId) -> Option<T> {
        self.all.get(slot.0 as usize)?.owner
    }

    /// Opens an account. Returns `None` if all are in use. Looks at each of them in turn.
    pub fn open(&mut self, owner: T) -> Option<SlotId> {
        let kind = Kind::Process { group: None };
        let slots = u32::try_from(self.all.len()).unwrap_or(u32::MAX);
        let free = (1..slots)
            .map(SlotId)
            .find(|slot| self.ledger.open(*slot, kind))?;
        if let Some(account) = self.account_mut(free) {
            *account = Account {
                owner: Some(owner),
                is_stale: false,
            };
        }
        Some(free)
    }

    /// Closes an account and returns its owner. Its slot can be opened again when it holds no root.
    pub fn close(&mut self, slot: SlotId) -> Option<T> {
        let closed = self.account_mut(slot).map(core::mem::take);
        self.ledger.close(slot);
        closed?.owner
    }

    /// Gives a root to an open account. Any other slot leaves it free.
    pub fn take(&mut self, slot: SlotId, root: RootId) {
        if self.owner(slot).is_none() {
            return self.drop_root(root);
        }
        let from = self.ledger.holder(root);
        if from != Some(slot) && self.ledger.take(slot, root) {
            self.changed(slot);
            self.left(from);
        }
    }

    /// Makes a root free.
    pub fn drop_root(&mut self, root: RootId) {
        let from = self.ledger.holder(root);
        self.ledger.drop_root(root);
        self.left(from);
    }

    fn left(&mut self, from: Option<SlotId>) {
        match from {
            Some(slot) if self.owner(slot).is_some() => self.changed(slot),
            // The slot is free with its last root.
            Some(slot) => drop(self.ledger.close(slot)),
            None => {}
        }
    }

    /// Marks the sum of an account as stale.
    pub fn changed(&mut self, slot: SlotId) {
        if let Some(account) = self.account_mut(slot) {
            account.is_stale = account.owner.is_some();
        }
    }

    /// Returns whether the sum of an account is stale.
    pub fn is_stale(&self, slot: SlotId) -> bool {
        let account = self.all.get(slot.0 as usize);
        account.is_some_and(|account| account.is_stale)
    }

    /// Returns the first stale account from this slot on.
    pub fn next_stale(&self, from: SlotId) -> Option<SlotId> {
        let slots = self.all.iter().zip(0u32..).skip(from.0 as usize);
        let mut stale = slots.filter(|(account, _)| account.is_stale);
        stale.next().map(|(_, number)| SlotId(number))
    }

    /// Returns the owner of a stale account and the bytes that it holds, and marks it as reported.
    pub fn report(&mut self, slot: SlotId) -> Option<(T, Bytes)> {
        let account = self.account_mut(slot)?;
        if !core::mem::take(&mut account.is_stale) {
            return None;
        }
        let owner = account.owner?;
        let roots = self.ledger.slot(slot)?.charge().roots;
        Some((owner, ROOT * u64::from(roots)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Root, Slot};
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use std::vec;
    use std::vec::Vec;

    const ROOTS: u32 = 8;
    const SLOTS: u32 = 5;

    struct World {
        roots: Vec<Root>,
        slots: Vec<Slot>,
        all: Vec<Account<u32>>,
    }

    impl World {
        fn new() -> Self {
            Self {
                roots: vec![Root::default(); ROOTS as usize],
                slots: vec![Slot::default(); SLOTS as usize],
                all: vec![Account::default(); SLOTS as usize],
            }
        }

        fn get(&mut self) -> Accounts<'_, u32> {
            Accounts::new(Ledger::new(&mut self.roots, &mut self.slots), &mut self.all)
        }
    }

    #[test]
    fn a_slot_is_opened_again_after_its_last_root() {
        let mut world = World::new();
        let slot = world.get().open(7).unwrap();
        assert_eq!(slot, SlotId(1));
        world.get().take(slot, RootId(3));
        assert_eq!(world.get().report(slot), Some((7, ROOT)));
        assert_eq!(world.get().report(slot), None);
        assert_eq!(world.get().close(slot), Some(7));
        assert_eq!(world.get().close(slot), None);
        // Its root is still being evicted.
        assert_eq!(world.get().ledger().holder(RootId(3)), Some(slot));
        let next = world.get().open(8).unwrap();
        assert_eq!(next, SlotId(2));
        world.get().take(next, RootId(3));
        assert_eq!(world.get().open(9), Some(slot));
        assert_eq!(world.get().report(slot), None);
    }

    #[test]
    fn all_slots_in_use() {
        let mut world = World::new();
        for owner in 1..SLOTS {
            assert_eq!(world.get().open(owner), Some(SlotId(owner)));
        }
        assert_eq!(world.get().open(9), None);
        // Nobody's, and one that does not exist.
        for slot in [0, SLOTS, u32::MAX] {
            world.get().take(SlotId(slot), RootId(0));
            assert_eq!(world.get().ledger().holder(RootId(0)), None);
            assert_eq!(world.get().close(SlotId(slot)), None);
        }
        world.get().take(SlotId(1), RootId(ROOTS));
        assert_eq!(world.get().next_stale(SlotId(0)), None);
    }

    proptest! {
        /// Checks against a model that the reports of an owner lead to what it holds, and that no
        /// slot has another owner before its roots have left.
        #[test]
        fn reports_lead_to_what_is_held(
            ops in prop::collection::vec((0u8..5, 0..SLOTS + 1, 0..ROOTS), 0..200),
        ) {
            let mut world = World::new();
            let mut next_owner = 100;
            let mut open: BTreeMap<u32, u32> = BTreeMap::new();
            let mut reported: BTreeMap<u32, u64> = BTreeMap::new();
            let mut held: BTreeMap<u32, u32> = BTreeMap::new();
            for (op, slot, root) in ops {
                let mut accounts = world.get();
                match op {
                    0 => if let Some(slot) = accounts.open(next_owner) {
                        prop_assert!(!open.contains_key(&slot.0));
                        prop_assert!(held.values().all(|holder| *holder != slot.0));
                        open.insert(slot.0, next_owner);
                        reported.insert(next_owner, 0);
                        next_owner += 1;
                    },
                    1 => prop_assert_eq!(accounts.close(SlotId(slot)), open.remove(&slot)),
                    2 => {
                        accounts.take(SlotId(slot), RootId(root));
                        match open.contains_key(&slot) {
                            true => held.insert(root, slot),
                            false => held.remove(&root),
                        };
                    }
                    3 => {
                        accounts.drop_root(RootId(root));
                        held.remove(&root);
                    }
                    _ => if let Some((owner, bytes)) = accounts.report(SlotId(slot)) {
                        prop_assert_eq!(open.get(&slot), Some(&owner));
                        reported.insert(owner, bytes.get());
                    },
                }
            }
            let mut from = 0;
            while let Some(slot) = world.get().next_stale(SlotId(from)) {
                let (owner, bytes) = world.get().report(slot).unwrap();
                reported.insert(owner, bytes.get());
                from = slot.0 + 1;
            }
            for (slot, owner) in open {
                let roots = held.values().filter(|holder| **holder == slot).count();
                prop_assert_eq!(reported[&owner], (ROOT * roots as u64).get());
            }
            for root in 0..ROOTS {
                let holder = world.get().ledger().holder(RootId(root));
                prop_assert_eq!(holder.map(|slot| slot.0), held.get(&root).copied());
            }
        }
    }
}
