// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests accounts: shares of payers, reservations, victims, and reports against a model.

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

/// Returns the sums of an account without page tables.
fn pages(charge: Bytes) -> Sums {
    let tables = Bytes(0);
    Sums { charge, tables }
}

/// Page tables are charged, are no victims, and keep the slot until they are freed.
#[test]
fn a_root_of_page_tables_stays_with_its_account() {
    let mut world = World::new();
    let slot = world.get().open(7, |_| false).unwrap();
    assert_eq!(world.get().reserve(slot), Some((7, ROOT)));
    world.get().take_table(slot, RootId(3));
    let tables = Sums {
        charge: ROOT,
        tables: ROOT,
    };
    assert_eq!(
        world.get().report(slot),
        Some((7, tables)),
        "the part has changed"
    );
    assert_eq!(world.get().victim(&mut SlotId(0), 0, |_| true), None);
    world.get().take(slot, RootId(3));
    assert_eq!(world.get().report(slot), Some((7, pages(ROOT))));
    assert!(world.get().victim(&mut SlotId(0), 0, |_| true).is_some());
    world.get().take_table(slot, RootId(3));
    assert_eq!(world.get().close(slot), Some(7));
    assert_eq!(world.get().open(8, |_| false), Some(SlotId(2)));
    world.get().drop_root(RootId(3));
    assert_eq!(world.get().open(9, |_| false), Some(slot));
    world.get().take_table(SlotId(0), RootId(3));
    assert_eq!(world.get().ledger().holder(RootId(3)), None);
}

#[test]
fn a_slot_is_opened_again_after_its_last_root() {
    let mut world = World::new();
    let slot = world.get().open(7, |_| false).unwrap();
    assert_eq!(slot, SlotId(1));
    world.get().take(slot, RootId(3));
    assert_eq!(world.get().report(slot), Some((7, pages(ROOT))));
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
    assert_eq!(world.get().report(slot), Some((7, pages(ROOT))));
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
    assert_eq!(world.get().report(slot), Some((7, pages(ROOT))));
    // The holder allocates its own root anew: the reservation is not needed.
    assert_eq!(world.get().reserve(slot), Some((7, ROOT * 2)));
    world.get().take(slot, RootId(3));
    assert_eq!(world.get().report(slot), Some((7, pages(ROOT))));
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
                _ => if let Some((owner, sums)) = accounts.report(SlotId(slot)) {
                    prop_assert_eq!(open.get(&slot), Some(&owner));
                    reported.insert(owner, sums.charge.get());
                },
            }
        }
        let mut from = 0;
        while let Some(slot) = world.get().next_stale(SlotId(from)) {
            let (owner, sums) = world.get().report(slot).unwrap();
            reported.insert(owner, sums.charge.get());
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

/// An account waits for the evictor while it has credit, each in its turn.
#[test]
fn accounts_with_credit_wait_for_the_evictor() {
    let mut world = World::new();
    let [first, second] = [7, 8].map(|owner| world.get().open(owner, |_| false).unwrap());
    world.get().wait(first);
    world.get().entitle(second, 0);
    world.get().entitle(SlotId(0), 1);
    world.get().entitle(SlotId(3), 1);
    assert_eq!(
        world.get().next_waiting(SlotId(0)),
        None,
        "no credit, or not open"
    );
    world.get().entitle(first, 2);
    world.get().entitle(second, 1);
    world.get().entitle(first, 1);
    assert_eq!(world.get().next_waiting(SlotId(0)), Some(first));
    assert_eq!(world.get().next_waiting(first), Some(second));
    for last in [second, SlotId(3), SlotId(u32::MAX)] {
        assert_eq!(world.get().next_waiting(last), Some(first));
    }
    world.get().spend(second);
    assert!(!world.get().has_credit(second));
    assert_eq!(world.get().next_waiting(first), Some(first));
    world.get().rest(first);
    assert_eq!(world.get().next_waiting(first), None);
    world.get().wait(first);
    world.get().spend(first);
    assert_eq!(world.get().next_waiting(first), Some(first), "one is left");
    // Who gets the slot next has no credit.
    world.get().close(first);
    assert_eq!(world.get().next_waiting(first), None);
    assert_eq!(world.get().open(9, |_| false), Some(first));
    assert!(!world.get().has_credit(first));
}

#[test]
fn a_victim_has_an_owner_until_its_slot_is_opened_again() {
    let mut world = World::new();
    let slot = world.get().open(7, |_| false).unwrap();
    world.get().take(slot, RootId(3));
    let victim = world.get().victim(&mut SlotId(0), 0, |_| true).unwrap();
    assert_eq!(world.get().owner_of_victim(victim), Some(7));
    world.get().close(slot);
    assert_eq!(world.get().owner_of_victim(victim), None);
    world.get().drop_root(RootId(3));
    world.get().open(8, |_| false);
    assert_eq!(world.get().owner_of_victim(victim), None);
}
