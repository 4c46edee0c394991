// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests the ledger against a model that sums everything anew after each step.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::vec;
use std::vec::Vec;

const ROOTS: u32 = 24;
const SLOTS: u32 = 6;

struct World {
    roots: Vec<Root>,
    slots: Vec<Slot>,
    reserved: [u32; SLOTS as usize],
    /// Roots with page tables.
    tables: BTreeSet<u32>,
}

impl World {
    fn new() -> Self {
        let mut world = Self {
            tables: BTreeSet::new(),
            roots: vec![Root::default(); ROOTS as usize],
            slots: vec![Slot::default(); SLOTS as usize],
            reserved: [0; SLOTS as usize],
        };
        for slot in 0..SLOTS {
            assert!(world.ledger().open(SlotId(slot)));
            assert!(!world.ledger().open(SlotId(slot)), "it is in use");
        }
        world
    }

    fn ledger(&mut self) -> Ledger<'_> {
        Ledger::new(&mut self.roots, &mut self.slots)
    }

    /// Returns the roots of a slot by a walk over all of them, as an audit of the driver does.
    fn held(&mut self, slot: u32) -> Vec<u32> {
        let ledger = self.ledger();
        (0..ROOTS)
            .filter(|root| ledger.holder(RootId(*root)) == Some(SlotId(slot)))
            .collect()
    }

    /// Checks that lists, sums and the walk agree.
    fn check(&mut self) {
        for slot in 0..SLOTS {
            let held = self.held(slot);
            let account = self.slots[slot as usize];
            let charged = held.len() as u64 + u64::from(self.reserved[slot as usize]);
            assert_eq!(account.charge(), ROOT * charged);
            let (tables, pages) = held
                .iter()
                .partition::<Vec<u32>, _>(|root| self.tables.contains(root));
            assert_eq!(account.roots() as usize, pages.len());
            assert_eq!(account.tables(), ROOT * tables.len() as u64);
            let mut listed = self.list(slot);
            listed.sort_unstable();
            assert_eq!(listed, pages);
        }
    }

    /// Walks around the list of a slot's roots, and checks it backwards.
    fn list(&self, slot: u32) -> Vec<u32> {
        let root = |root: u32| &self.roots[root as usize];
        let hand = self.slots[slot as usize].hand;
        let mut all = Vec::new();
        let mut at = hand;
        while at != NONE {
            let next = root(at).next;
            assert_eq!(root(next).prev, at);
            all.push(at);
            assert!(all.len() <= ROOTS as usize, "an endless list");
            at = if next == hand { NONE } else { next };
        }
        all
    }
}

#[derive(Clone, Debug)]
enum Step {
    Take(u32, u32),
    TakeTable(u32, u32),
    Drop(u32),
    Use(u32, bool),
    Reserve(u32),
    Cancel(u32, u32),
    Reopen(u32),
    /// A slot, and which roots are pinned.
    Pick(u32, u32),
}

fn step() -> impl Strategy<Value = Step> {
    // One more of each than exist.
    let slot = || 0..SLOTS + 1;
    let root = || 0..ROOTS + 1;
    prop_oneof![
        6 => (slot(), root()).prop_map(|(s, r)| Step::Take(s, r)),
        2 => (slot(), root()).prop_map(|(s, r)| Step::TakeTable(s, r)),
        2 => root().prop_map(Step::Drop),
        1 => (root(), any::<bool>()).prop_map(|(r, on)| Step::Use(r, on)),
        2 => slot().prop_map(Step::Reserve),
        1 => (slot(), 0..4u32).prop_map(|(s, n)| Step::Cancel(s, n)),
        1 => slot().prop_map(Step::Reopen),
        4 => (slot(), any::<u32>()).prop_map(|(s, pinned)| Step::Pick(s, pinned)),
    ]
}

impl World {
    fn reserved(&mut self, slot: u32) -> &mut u32 {
        &mut self.reserved[slot as usize]
    }

    fn run(&mut self, step: &Step) {
        match *step {
            Step::Take(slot, root) => {
                let taken = self.ledger().take(SlotId(slot), RootId(root));
                assert_eq!(taken, slot < SLOTS && root < ROOTS);
                if taken {
                    self.tables.remove(&root);
                    self.took(slot, root);
                }
            }
            Step::TakeTable(slot, root) => {
                let taken = self.ledger().take_table(SlotId(slot), RootId(root));
                assert_eq!(taken, slot < SLOTS && root < ROOTS);
                if taken {
                    self.tables.insert(root);
                    self.took(slot, root);
                }
            }
            Step::Drop(root) => {
                self.tables.remove(&root);
                self.ledger().drop_root(RootId(root));
                assert_eq!(self.ledger().holder(RootId(root)), None);
            }
            Step::Use(root, on) => self.ledger().set_used(RootId(root), on),
            Step::Reserve(slot) => {
                let reserved = self.ledger().reserve(SlotId(slot));
                let may = slot < SLOTS && *self.reserved(slot) < ROOTS;
                assert_eq!(reserved, may);
                if reserved {
                    *self.reserved(slot) += 1;
                }
            }
            Step::Cancel(slot, roots) => {
                self.ledger().cancel(SlotId(slot), roots);
                if slot < SLOTS {
                    *self.reserved(slot) = self.reserved(slot).saturating_sub(roots);
                }
            }
            Step::Reopen(slot) => {
                let is_free = slot < SLOTS && self.slots[slot as usize].charge() == Bytes(0);
                assert_eq!(self.ledger().close(SlotId(slot)), is_free);
                assert_eq!(self.ledger().open(SlotId(slot)), is_free);
            }
            Step::Pick(slot, pinned) => self.pick(slot, pinned),
        }
        self.check();
    }

    fn took(&mut self, slot: u32, root: u32) {
        assert_eq!(self.ledger().holder(RootId(root)), Some(SlotId(slot)));
        *self.reserved(slot) = self.reserved(slot).saturating_sub(1);
    }

    /// A victim is the account's own and can leave, has no page tables, and is found if there is
    /// one.
    fn pick(&mut self, slot: u32, pinned: u32) {
        let can_leave = |root: RootId| pinned & (1 << root.0) == 0;
        let mut candidates = self.held(slot);
        candidates.retain(|root| !self.tables.contains(root));
        let exists = candidates.iter().any(|root| can_leave(RootId(*root)));
        let picked = self.ledger().pick(SlotId(slot), can_leave);
        assert_eq!(picked.is_some(), exists);
        if let Some(root) = picked {
            assert!(candidates.contains(&root.0) && can_leave(root));
        }
    }
}

proptest! {
    #[test]
    fn any_program_leaves_the_sums_right(steps in prop::collection::vec(step(), 0..120)) {
        let mut world = World::new();
        for step in &steps {
            world.run(step);
        }
        for root in 0..ROOTS {
            world.ledger().drop_root(RootId(root));
        }
        for slot in 0..SLOTS {
            world.ledger().cancel(SlotId(slot), u32::MAX);
            assert!(world.ledger().close(SlotId(slot)));
        }
    }
}

#[test]
fn an_owner_gives_up_its_own_roots_in_turn() {
    let mut world = World::new();
    for (slot, root) in [(3, 0), (3, 1), (3, 2), (2, 9)] {
        assert!(world.ledger().take(SlotId(slot), RootId(root)));
    }
    world.ledger().set_used(RootId(0), false);
    let pick = |world: &mut World, pinned: &[u32]| {
        let can_leave = |root: RootId| !pinned.contains(&root.0);
        let picked = world.ledger().pick(SlotId(3), can_leave);
        picked.map(|root| root.0)
    };
    // 1 and 2 were used, so 0 goes first. Then nothing was used any more.
    let order: Vec<_> = (0..6).map(|_| pick(&mut world, &[])).collect();
    assert_eq!(order, [0, 0, 1, 2, 0, 1].map(Some));
    assert_eq!(pick(&mut world, &[0, 1, 2]), None);
    assert_eq!(pick(&mut world, &[0, 2]), Some(1));
    // Only a used one can leave.
    world.ledger().set_used(RootId(2), true);
    assert_eq!(pick(&mut world, &[0, 1]), Some(2));
    // The victim's root is used again: the sum does not move.
    assert!(world.ledger().take(SlotId(3), RootId(1)));
    assert_eq!(world.slots[3].roots(), 3);
    world.check();
}

#[test]
fn reserved_roots_are_charged_and_become_held() {
    let mut world = World::new();
    assert!(world.ledger().reserve(SlotId(4)) && world.ledger().reserve(SlotId(4)));
    assert_eq!(world.slots[4].charge(), ROOT * 2);
    assert!(world.ledger().take(SlotId(4), RootId(0)));
    assert_eq!(world.slots[4].charge(), ROOT * 2);
    // The holder allocates its own root anew: the other reservation is not needed.
    assert!(world.ledger().take(SlotId(4), RootId(0)));
    assert_eq!(world.slots[4].charge(), ROOT);
    assert!(!world.ledger().close(SlotId(4)), "it holds a root");
}
