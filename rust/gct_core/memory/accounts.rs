// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Ties slots to the processes that hold their roots, and finds the sums that have changed.
//!
//! A process has one slot on each of its GPUs, its account. All its address spaces there use it,
//! however many it opens. If the last of them closes while an eviction still works on one of their
//! roots, the slot stays in use until that root has another holder.
//!
//! Accounts are divided among payers: groups, and users of processes without a group.
//!
//! ```text
//! a payer may open one more if  PART_FREE * its accounts < free accounts
//! ```
//!
//! So one payer has a quarter of all accounts at most, and `n` greedy payers leave `(3/4)^n`.
//!
//! Roots change hands under a spinlock. Their sums are reported later, by a thread that may sleep:
//!
//! ```text
//! take, drop_root   the sums of both accounts are stale
//! next_stale        a stale account
//! report            its owner, and its bytes now: not stale any more
//! ```
//!
//! Under a limit the sum is charged before it grows:
//!
//! ```text
//! reserve           its owner, and its bytes with one root more. The caller charges them
//!     cancel        the limit refuses them, or no root was found
//!     take          the reservation becomes a root: the sum does not change
//! victim            an account that has to give up a root
//! pick              its root that leaves
//! ```

use super::{Charge, Kind, Ledger, RootId, SlotId};
use crate::units::Bytes;

/// How many times a payer's accounts must be free before it opens one more.
const PART_FREE: usize = 3;

/// An account.
#[derive(Clone, Copy, Debug)]
pub struct Account<T> {
    /// Who is told of its sum; `None` if there is no address space.
    owner: Option<T>,
    /// How many address spaces use it.
    spaces: u32,
    is_stale: bool,
    /// How often its slot was opened.
    opened: u32,
}

/// An account that has to give up a root: its slot, and how often the slot was opened. So nobody
/// who gets the slot meanwhile is the victim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Victim(pub u32);

impl Victim {
    /// Bits of the slot's number. Slot 0 is nobody's, so no victim is 0.
    const SLOT_BITS: u32 = 12;

    const fn new(slot: SlotId, opened: u32) -> Self {
        Self(slot.0 | (opened << Self::SLOT_BITS))
    }

    const fn slot(self) -> SlotId {
        SlotId(self.0 & ((1 << Self::SLOT_BITS) - 1))
    }
}

impl<T> Default for Account<T> {
    fn default() -> Self {
        Self {
            owner: None,
            spaces: 0,
            is_stale: false,
            opened: 0,
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

    /// Returns the owner of an open account.
    pub fn owner(&self, slot: SlotId) -> Option<T> {
        self.all.get(slot.0 as usize)?.owner
    }

    fn slots(&self) -> u32 {
        u32::try_from(self.all.len()).unwrap_or(u32::MAX)
    }

    /// Adds an address space to the open account whose owner `is_own` names, if there is one.
    pub fn join(&mut self, is_own: impl Fn(&T) -> bool) -> Option<SlotId> {
        let is_own = |account: &Account<T>| account.owner.as_ref().is_some_and(&is_own);
        let mut accounts = self.all.iter_mut().zip(0u32..);
        let (account, slot) = accounts.find(|(account, _)| is_own(account))?;
        account.spaces = account.spaces.saturating_add(1);
        Some(SlotId(slot))
    }

    /// Opens an account for one address space. Returns `None` if all are in use, or if its payer
    /// has its part of them. `is_same` returns whether an owner has that payer. Looks at each
    /// account in turn.
    pub fn open(&mut self, owner: T, is_same: impl Fn(&T) -> bool) -> Option<SlotId> {
        let kind = Kind::Process { group: None };
        let accounts = self.all.iter().skip(1);
        let (mut same, mut free) = (0usize, 0usize);
        for account in accounts {
            match &account.owner {
                Some(owner) => same = same.saturating_add(usize::from(is_same(owner))),
                None => free = free.saturating_add(1),
            }
        }
        if same.saturating_mul(PART_FREE) >= free {
            return None;
        }
        let slots = self.slots();
        let free = (1..slots)
            .map(SlotId)
            .find(|slot| self.ledger.open(*slot, kind))?;
        if let Some(account) = self.account_mut(free) {
            *account = Account {
                owner: Some(owner),
                spaces: 1,
                is_stale: false,
                opened: account.opened.wrapping_add(1),
            };
        }
        Some(free)
    }

    /// Takes an address space out of an account. Closes the account with the last, and returns its
    /// owner. Its slot can be opened again when it holds no root.
    pub fn close(&mut self, slot: SlotId) -> Option<T> {
        let account = self.account_mut(slot)?;
        account.spaces = account.spaces.saturating_sub(1);
        if account.spaces > 0 {
            return None;
        }
        account.is_stale = false;
        let owner = account.owner.take();
        self.ledger.cancel(slot, u32::MAX);
        self.ledger.close(slot);
        owner
    }

    /// Reserves a root for an open account. Returns its owner, and its bytes with that root, which
    /// the caller charges. Returns `None` if the account is not open: nobody is charged.
    pub fn reserve(&mut self, slot: SlotId) -> Option<(T, Bytes)> {
        let owner = self.owner(slot)?;
        if !self.ledger.reserve(slot, 1) {
            return None;
        }
        Some((owner, self.charge(slot)?.sum()))
    }

    /// Gives a reserved root back.
    pub fn cancel(&mut self, slot: SlotId) {
        self.ledger.cancel(slot, 1);
        self.changed(slot);
    }

    fn charge(&self, slot: SlotId) -> Option<Charge> {
        self.ledger.slot(slot).map(|slot| *slot.charge())
    }

    /// Gives a root to an open account, which consumes a reservation if it has one. Any other slot
    /// leaves the root free.
    pub fn take(&mut self, slot: SlotId, root: RootId) {
        if self.owner(slot).is_none() {
            return self.drop_root(root);
        }
        let from = self.ledger.holder(root);
        let before = self.charge(slot);
        if from == Some(slot) {
            // The holder allocates its own root anew.
            self.ledger.cancel(slot, 1);
        }
        self.ledger.take(slot, root);
        if before.map(|charge| charge.sum()) != self.charge(slot).map(|charge| charge.sum()) {
            self.changed(slot);
        }
        if from != Some(slot) {
            self.left(from);
        }
    }

    /// Returns the account that has to give up a root: of those that `is_candidate` names and that
    /// hold roots, the one after `hand`, which then stands at it. After `tried` of them could give
    /// up none, returns the next one, or `None` when all were tried.
    pub fn victim(
        &self,
        hand: &mut SlotId,
        tried: u32,
        is_candidate: impl Fn(&T) -> bool,
    ) -> Option<Victim> {
        let slots = self.slots();
        let from = hand.0.min(slots);
        // A circle: the hand's own place comes last, or was tried first.
        let until = if tried == 0 {
            from.saturating_add(1)
        } else {
            from
        };
        let circle = (from.saturating_add(1)..slots).chain(0..until.min(slots));
        let mut candidates = circle.map(SlotId).filter(|slot| {
            let held = self.charge(*slot).is_some_and(|charge| charge.roots > 0);
            held && self.owner(*slot).is_some_and(|owner| is_candidate(&owner))
        });
        let skipped = usize::try_from(tried.saturating_sub(1)).ok()?;
        let found = candidates.nth(skipped)?;
        if tried == 0 {
            *hand = found;
        }
        let opened = self.all.get(found.0 as usize)?.opened;
        Some(Victim::new(found, opened))
    }

    /// Chooses a root that the victim gives up, among those that can leave.
    pub fn pick(
        &mut self,
        victim: Victim,
        can_leave: impl FnMut(RootId) -> bool,
    ) -> Option<RootId> {
        let slot = victim.slot();
        let opened = self.all.get(slot.0 as usize)?.opened;
        if Victim::new(slot, opened) != victim {
            return None;
        }
        self.owner(slot)?;
        self.ledger.pick_of(slot, can_leave)
    }

    /// Records that an open account uses a root of its own.
    pub fn set_used(&mut self, root: RootId, used: bool) {
        self.ledger.set_used(root, used);
    }

    /// Returns the owner of the account that holds a root.
    pub fn owner_of(&self, root: RootId) -> Option<T> {
        self.owner(self.ledger.holder(root)?)
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
        Some((owner, self.charge(slot)?.sum()))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Root, Slot, ROOT};
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
            Self::of(SLOTS)
        }

        fn of(slots: u32) -> Self {
            Self {
                roots: vec![Root::default(); ROOTS as usize],
                slots: vec![Slot::default(); slots as usize],
                all: vec![Account::default(); slots as usize],
            }
        }

        fn get(&mut self) -> Accounts<'_, u32> {
            Accounts::new(Ledger::new(&mut self.roots, &mut self.slots), &mut self.all)
        }
    }

    #[test]
    fn a_slot_is_opened_again_after_its_last_root() {
        let mut world = World::new();
        let slot = world.get().open(7, |_| false).unwrap();
        assert_eq!(slot, SlotId(1));
        world.get().take(slot, RootId(3));
        assert_eq!(world.get().report(slot), Some((7, ROOT)));
        assert_eq!(world.get().report(slot), None);
        assert_eq!(world.get().close(slot), Some(7));
        assert_eq!(world.get().close(slot), None);
        // Its root is still being evicted.
        assert_eq!(world.get().ledger().holder(RootId(3)), Some(slot));
        let next = world.get().open(8, |_| false).unwrap();
        assert_eq!(next, SlotId(2));
        world.get().take(next, RootId(3));
        assert_eq!(world.get().open(9, |_| false), Some(slot));
        assert_eq!(world.get().report(slot), None);
    }

    #[test]
    fn all_slots_in_use() {
        let mut world = World::new();
        for owner in 1..SLOTS {
            assert_eq!(world.get().open(owner, |_| false), Some(SlotId(owner)));
        }
        assert_eq!(world.get().open(9, |_| false), None);
        // Nobody's, and one that does not exist.
        for slot in [0, SLOTS, u32::MAX] {
            world.get().take(SlotId(slot), RootId(0));
            assert_eq!(world.get().ledger().holder(RootId(0)), None);
            assert_eq!(world.get().close(SlotId(slot)), None);
        }
        world.get().take(SlotId(1), RootId(ROOTS));
        assert_eq!(world.get().next_stale(SlotId(0)), None);
    }

    /// An account that several address spaces use closes with the last of them.
    #[test]
    fn address_spaces_share_the_account_of_their_process() {
        let mut world = World::new();
        assert_eq!(world.get().join(|owner| *owner == 7), None);
        let slot = world.get().open(7, |_| false).unwrap();
        assert_eq!(world.get().join(|owner| *owner == 7), Some(slot));
        assert_eq!(world.get().join(|owner| *owner == 8), None);
        world.get().take(slot, RootId(3));
        assert_eq!(world.get().close(slot), None, "another is left");
        assert_eq!(world.get().report(slot), Some((7, ROOT)));
        assert_eq!(world.get().close(slot), Some(7));
        assert_eq!(world.get().join(|owner| *owner == 7), None);
        assert_eq!(world.get().close(slot), None);
    }

    /// Counts the accounts that each of several payers can open, one after the other.
    fn parts(slots: u32, payers: u32) -> Vec<usize> {
        let mut world = World::of(slots);
        let open = |world: &mut World, payer| {
            let opened = world.get().open(payer, |owner| *owner == payer);
            opened.is_some()
        };
        let all = |payer| (0..slots).take_while(|_| open(&mut world, payer)).count();
        (0..payers).map(all).collect()
    }

    /// Greedy payers leave accounts to those who come later, and who has none gets the last.
    #[test]
    fn a_payer_leaves_accounts_for_others() {
        assert_eq!(parts(4096, 5), [1024, 768, 576, 432, 324]);
        let crowd = parts(4096, 24);
        assert!(crowd.iter().all(|part| *part > 0), "{crowd:?}");
        assert_eq!(parts(5, 5), [1, 1, 1, 1, 0]);
        assert_eq!(parts(2, 2), [1, 0]);
    }

    #[test]
    fn a_reservation_becomes_a_root() {
        let mut world = World::new();
        let slot = world.get().open(7, |_| false).unwrap();
        assert_eq!(world.get().reserve(slot), Some((7, ROOT)));
        assert_eq!(world.get().reserve(slot), Some((7, ROOT * 2)));
        world.get().take(slot, RootId(3));
        assert!(!world.get().is_stale(slot), "its sum has not changed");
        world.get().cancel(slot);
        assert_eq!(world.get().report(slot), Some((7, ROOT)));
        // The holder allocates its own root anew: the reservation is not needed.
        assert_eq!(world.get().reserve(slot), Some((7, ROOT * 2)));
        world.get().take(slot, RootId(3));
        assert_eq!(world.get().report(slot), Some((7, ROOT)));
        assert_eq!(world.get().reserve(SlotId(2)), None);
        assert_eq!(world.get().reserve(SlotId(0)), None);
        assert_eq!(world.get().reserve(SlotId(SLOTS)), None);
        // Closed with a reservation.
        assert!(world.get().reserve(slot).is_some());
        world.get().drop_root(RootId(3));
        assert_eq!(world.get().close(slot), Some(7));
        assert_eq!(world.get().open(8, |_| false), Some(slot));
        assert_eq!(world.get().reserve(slot), Some((8, ROOT)));
    }

    /// Accounts of one owner take turns, and those that can give up nothing are passed.
    #[test]
    fn accounts_of_an_owner_take_turns() {
        let mut world = World::new();
        for (owner, root) in [(7, 0), (8, 1), (7, 2), (7, 3)] {
            let slot = world.get().open(owner, |_| false).unwrap();
            world.get().take(slot, RootId(root));
        }
        let mut hand = SlotId(0);
        let mut next = |world: &mut World, tried| {
            let victim = world.get().victim(&mut hand, tried, |owner| *owner == 7);
            victim.and_then(|victim| world.get().pick(victim, |_| true))
        };
        let turns: Vec<_> = (0..4).map(|_| next(&mut world, 0)).collect();
        let expected = [0, 2, 3, 0].map(|root| Some(RootId(root)));
        assert_eq!(turns, expected);
        assert_eq!(next(&mut world, 1), Some(RootId(2)));
        assert_eq!(next(&mut world, 2), Some(RootId(3)));
        assert_eq!(next(&mut world, 3), None, "all were tried");
        // The next one begins after the hand.
        assert_eq!(next(&mut world, 0), Some(RootId(2)));
    }

    /// The slot of a victim that has gone is somebody else's.
    #[test]
    fn a_victim_is_the_address_space_and_not_its_slot() {
        let mut world = World::new();
        let slot = world.get().open(7, |_| false).unwrap();
        world.get().take(slot, RootId(0));
        let victim = world.get().victim(&mut SlotId(0), 0, |_| true).unwrap();
        assert_eq!(world.get().pick(victim, |_| false), None);
        assert_eq!(world.get().pick(victim, |_| true), Some(RootId(0)));
        world.get().drop_root(RootId(0));
        assert_eq!(world.get().close(slot), Some(7));
        assert_eq!(world.get().open(8, |_| false), Some(slot));
        world.get().take(slot, RootId(1));
        assert_eq!(world.get().pick(victim, |_| true), None);
        assert_eq!(world.get().pick(Victim(0), |_| true), None);
        assert_eq!(world.get().pick(Victim(u32::MAX), |_| true), None);
    }

    proptest! {
        /// A victim is never a stranger's, and is found if there is one.
        #[test]
        fn a_victim_is_found_and_is_no_strangers(
            owners in prop::collection::vec(0u32..3, 4),
            held in prop::collection::vec((1..SLOTS, 0..ROOTS), 0..12),
            pinned in any::<u8>(),
            mut hand in (0..SLOTS + 2).prop_map(SlotId),
        ) {
            let mut world = World::new();
            for owner in &owners {
                world.get().open(*owner, |_| false).unwrap();
            }
            for (slot, root) in held {
                world.get().take(SlotId(slot), RootId(root));
            }
            let can_leave = |root: RootId| pinned & (1 << root.0) == 0;
            let exists = (0..ROOTS).map(RootId).any(|root| {
                can_leave(root) && world.get().owner_of(root) == Some(0)
            });
            let mut tried = 0;
            let found = loop {
                let Some(victim) = world.get().victim(&mut hand, tried, |owner| *owner == 0) else {
                    break None;
                };
                let picked = world.get().pick(victim, can_leave);
                if picked.is_some() {
                    break picked;
                }
                tried += 1;
                prop_assert!(tried < SLOTS);
            };
            prop_assert_eq!(found.is_some(), exists);
            if let Some(root) = found {
                prop_assert!(can_leave(root));
                prop_assert_eq!(world.get().owner_of(root), Some(0));
            }
        }

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
                    0 => if let Some(slot) = accounts.open(next_owner, |_| false) {
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
