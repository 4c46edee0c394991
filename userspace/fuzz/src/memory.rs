// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Fuzzes the accounts of a GPU's managed memory: any sequence of operations leaves the sums right.

use gct_core::memory::accounts::{Account, Accounts, Victim};
use gct_core::memory::{Ledger, Root, RootId, Slot, SlotId, ROOT};
use std::collections::{BTreeMap, BTreeSet};

const ROOTS: u32 = 16;
const SLOTS: u32 = 7;
/// Owners, each of them a payer of its own.
const OWNERS: u8 = 5;

/// What should be charged.
#[derive(Default)]
struct Model {
    /// The owner of each open slot, how many address spaces use it, and how many roots it has
    /// reserved.
    open: BTreeMap<u32, (u8, u32, u32)>,
    /// The slot that holds each root.
    held: BTreeMap<u32, u32>,
    /// Roots that page tables were put into last.
    tables: BTreeSet<u32>,
    /// What the caller has charged for each slot since it was opened.
    charged_to: BTreeMap<u32, u64>,
    hand: u32,
    victim: u32,
}

/// Runs operations on accounts, four bytes each, and checks them after each one.
///
/// # Panics
///
/// If a property does not hold.
pub fn memory(data: &[u8]) {
    let mut roots = vec![Root::default(); ROOTS as usize];
    let mut slots = vec![Slot::default(); SLOTS as usize];
    let mut all = vec![Account::default(); SLOTS as usize];
    let mut accounts = Accounts::new(Ledger::new(&mut roots, &mut slots), &mut all);
    let mut model = Model::default();
    for step in data.chunks_exact(4) {
        model.run(&mut accounts, [step[0], step[1], step[2], step[3]]);
        model.check(&accounts);
    }
    model.settle(&mut accounts);
}

impl Model {
    fn run(&mut self, accounts: &mut Accounts<'_, u8>, [what, slot, root, more]: [u8; 4]) {
        // One more of each than exist.
        let number = u32::from(slot) % (SLOTS + 1);
        let slot = SlotId(number);
        let root = RootId(u32::from(root) % (ROOTS + 1));
        let owner = more % OWNERS;
        match what % 11 {
            0 => self.open(accounts, owner),
            1 => self.close(accounts, slot),
            2 => {
                if let Some((owner, charge)) = accounts.reserve(slot) {
                    let of_model = self.open.get_mut(&number).expect("it is open");
                    of_model.2 += 1;
                    assert_eq!(owner, of_model.0);
                    assert_eq!(charge, ROOT * self.charged(number));
                    self.charged_to.insert(number, charge.get());
                }
            }
            3 => {
                accounts.cancel(slot);
                self.unreserve(number);
            }
            kind @ (4 | 5 | 10) => {
                match kind {
                    10 => accounts.take_table(slot, root),
                    _ => accounts.take(slot, root),
                }
                if root.0 < ROOTS {
                    self.held.remove(&root.0);
                    self.tables.remove(&root.0);
                    if kind == 10 {
                        self.tables.insert(root.0);
                    }
                    if self.open.contains_key(&number) {
                        self.unreserve(number);
                        self.held.insert(root.0, number);
                    }
                }
            }
            6 => {
                accounts.drop_root(root);
                self.held.remove(&root.0);
            }
            7 => accounts.set_used(root, more % 2 == 0),
            8 => self.report(accounts, slot),
            _ => self.evict(accounts, owner, more),
        }
    }

    fn open(&mut self, accounts: &mut Accounts<'_, u8>, owner: u8) {
        let joined = accounts.join(|other| *other == owner);
        let known = self.open.iter_mut().find(|(_, open)| open.0 == owner);
        assert_eq!(
            joined.map(|slot| slot.0),
            known.as_ref().map(|(slot, _)| **slot)
        );
        if let Some((_, open)) = known {
            open.1 += 1;
        } else if let Some(slot) = accounts.open(owner, |other| *other == owner) {
            let is_held = self.held.values().any(|holder| *holder == slot.0);
            assert!(slot.0 > 0 && !is_held, "somebody else's");
            assert!(self.open.insert(slot.0, (owner, 1, 0)).is_none());
            self.charged_to.insert(slot.0, 0);
        }
    }

    fn close(&mut self, accounts: &mut Accounts<'_, u8>, slot: SlotId) {
        let closed = accounts.close(slot);
        let Some(open) = self.open.get_mut(&slot.0) else {
            return assert_eq!(closed, None);
        };
        open.1 -= 1;
        if open.1 > 0 {
            return assert_eq!(closed, None, "another address space is left");
        }
        assert_eq!(closed, Some(open.0));
        self.open.remove(&slot.0);
    }

    fn unreserve(&mut self, slot: u32) {
        if let Some(open) = self.open.get_mut(&slot) {
            open.2 = open.2.saturating_sub(1);
        }
    }

    fn report(&mut self, accounts: &mut Accounts<'_, u8>, slot: SlotId) {
        if let Some((owner, sums)) = accounts.report(slot) {
            assert_eq!(owner, self.open[&slot.0].0);
            assert_eq!(sums.tables, ROOT * self.tables_of(slot.0));
            self.charged_to.insert(slot.0, sums.charge.get());
        }
    }

    /// Picks a root of an owner's account, and one of an account that was a victim earlier.
    fn evict(&mut self, accounts: &mut Accounts<'_, u8>, owner: u8, more: u8) {
        let can_leave = |root: RootId| root.0 % 5 != u32::from(more % 6);
        let mut hand = SlotId(self.hand);
        let tried = u32::from(more / 64);
        let victim = accounts.victim(&mut hand, tried, |other| *other == owner);
        self.hand = hand.0;
        if let Some(root) = victim.and_then(|victim| accounts.pick(victim, can_leave)) {
            assert!(can_leave(root) && accounts.owner_of(root) == Some(owner));
        }
        if let Some(root) = accounts.pick(Victim(self.victim), can_leave) {
            assert!(can_leave(root) && accounts.owner_of(root).is_some());
        }
        self.victim = victim.map_or(u32::from(more), |victim| victim.0);
    }

    /// Returns how many roots of page tables a slot should have.
    fn tables_of(&self, slot: u32) -> u64 {
        let held = self.held.iter().filter(|(_, holder)| **holder == slot);
        held.filter(|(root, _)| self.tables.contains(root)).count() as u64
    }

    /// Returns the roots for which a slot should be charged.
    fn charged(&self, slot: u32) -> u64 {
        let held = self.held.values().filter(|holder| **holder == slot);
        let reserved = self.open.get(&slot).map_or(0, |open| open.2);
        held.count() as u64 + u64::from(reserved)
    }

    /// Compares all accounts with the model.
    fn check(&self, accounts: &Accounts<'_, u8>) {
        for root in 0..ROOTS {
            let holder = accounts.ledger().holder(RootId(root));
            assert_eq!(holder.map(|slot| slot.0), self.held.get(&root).copied());
        }
        for slot in 0..SLOTS {
            let owner = self.open.get(&slot).map(|open| open.0);
            assert_eq!(accounts.owner(SlotId(slot)), owner);
            let account = accounts.ledger().slot(SlotId(slot)).expect("it exists");
            assert_eq!(account.charge(), ROOT * self.charged(slot));
            assert_eq!(account.tables(), ROOT * self.tables_of(slot));
        }
    }

    /// Checks that reservations and reports lead the caller to what the open accounts hold.
    fn settle(&mut self, accounts: &mut Accounts<'_, u8>) {
        let mut from = SlotId(0);
        while let Some(slot) = accounts.next_stale(from) {
            self.report(accounts, slot);
            from = SlotId(slot.0 + 1);
        }
        for slot in self.open.keys() {
            let bytes = (ROOT * self.charged(*slot)).get();
            assert_eq!(self.charged_to[slot], bytes);
        }
    }
}
