// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests the ledger against a model that sums everything anew after each step.

use super::*;
use proptest::prelude::*;
use std::vec;
use std::vec::Vec;

const ROOTS: u32 = 24;
/// Slots 0 and 1 are groups, the others processes.
const SLOTS: u32 = 8;

struct World {
    roots: Vec<Root>,
    slots: Vec<Slot>,
}

impl World {
    fn new() -> Self {
        let mut world = Self {
            roots: vec![Root::default(); ROOTS as usize],
            slots: vec![Slot::default(); SLOTS as usize],
        };
        for slot in 0..SLOTS {
            let kind = match slot {
                0 | 1 => Kind::Group,
                _ => Kind::Process {
                    group: [None, Some(SlotId(0)), Some(SlotId(1))][(slot % 3) as usize],
                },
            };
            assert!(world.ledger().open(SlotId(slot), kind));
        }
        world
    }

    fn ledger(&mut self) -> Ledger<'_> {
        Ledger::new(&mut self.roots, &mut self.slots)
    }

    fn charge(&mut self, slot: u32) -> Charge {
        *self.ledger().slot(SlotId(slot)).unwrap().charge()
    }

    /// Returns the holders of all roots by a walk over them, as an audit of the driver does.
    fn held(&mut self, slot: u32) -> Vec<u32> {
        let ledger = self.ledger();
        (0..ROOTS)
            .filter(|root| ledger.holder(RootId(*root)) == Some(SlotId(slot)))
            .collect()
    }

    /// Checks that lists, sums and the walk agree.
    fn check(&mut self) {
        for slot in 2..SLOTS {
            let held = self.held(slot);
            assert_eq!(self.charge(slot).roots as usize, held.len());
            let mut listed = self.list(slot);
            listed.sort_unstable();
            assert_eq!(listed, held);
        }
        for group in 0..2 {
            let of = |kind| {
                kind == Kind::Process {
                    group: Some(SlotId(group)),
                }
            };
            let members: Vec<u32> = (2..SLOTS)
                .filter(|slot| of(self.slots[*slot as usize].kind()))
                .collect();
            let sum = members
                .iter()
                .fold(Charge::default(), |sum, slot| sum.plus(&self.charge(*slot)));
            assert_eq!(self.charge(group), sum);
            let mut listed = self.members(group);
            listed.sort_unstable();
            assert_eq!(listed, members);
        }
        for slot in &self.slots {
            assert!(slot.peak() >= slot.charge().sum());
        }
    }

    fn list(&self, slot: u32) -> Vec<u32> {
        let next = |root: u32| self.roots[root as usize].next;
        let back = |root: u32| self.roots[root as usize].prev;
        circle(self.slots[slot as usize].hand, next, back)
    }

    fn members(&self, group: u32) -> Vec<u32> {
        let next = |slot: u32| self.slots[slot as usize].next;
        let back = |slot: u32| self.slots[slot as usize].prev;
        circle(self.slots[group as usize].hand, next, back)
    }
}

/// Walks around a circular list, and checks it backwards.
fn circle(hand: u32, next: impl Fn(u32) -> u32, back: impl Fn(u32) -> u32) -> Vec<u32> {
    let mut all = Vec::new();
    let mut at = hand;
    while at != NONE {
        assert_eq!(back(next(at)), at);
        all.push(at);
        assert!(all.len() <= ROOTS as usize, "an endless list");
        at = if next(at) == hand { NONE } else { next(at) };
    }
    all
}

#[derive(Clone, Debug)]
enum Step {
    TryTake(u32, u32),
    Take(u32, u32),
    Drop(u32),
    Leave(u32, bool),
    Use(u32, bool),
    Reserve(u32, u32),
    Cancel(u32, u32),
    TryCharge(u32, bool, u64),
    Charge(u32, bool, u64),
    Uncharge(u32, bool, u64),
    Limit(u32, Option<u64>),
    Move(u32, Option<u32>),
    Reopen(u32),
    Pick(u32),
}

fn step() -> impl Strategy<Value = Step> {
    let slot = || 0..SLOTS + 1;
    let root = || 0..ROOTS + 1;
    let bytes = || prop_oneof![0..4 * ROOT.0, any::<u64>()];
    prop_oneof![
        4 => (slot(), root()).prop_map(|(s, r)| Step::TryTake(s, r)),
        2 => (slot(), root()).prop_map(|(s, r)| Step::Take(s, r)),
        2 => root().prop_map(Step::Drop),
        1 => (root(), any::<bool>()).prop_map(|(r, on)| Step::Leave(r, on)),
        1 => (root(), any::<bool>()).prop_map(|(r, on)| Step::Use(r, on)),
        1 => (slot(), 0..4u32).prop_map(|(s, n)| Step::Reserve(s, n)),
        1 => (slot(), 0..4u32).prop_map(|(s, n)| Step::Cancel(s, n)),
        1 => (slot(), any::<bool>(), bytes()).prop_map(|(s, p, n)| Step::TryCharge(s, p, n)),
        1 => (slot(), any::<bool>(), 0..ROOT.0).prop_map(|(s, p, n)| Step::Charge(s, p, n)),
        1 => (slot(), any::<bool>(), bytes()).prop_map(|(s, p, n)| Step::Uncharge(s, p, n)),
        2 => (slot(), prop::option::of(0..12 * ROOT.0)).prop_map(|(s, l)| Step::Limit(s, l)),
        1 => (slot(), prop::option::of(0..3u32)).prop_map(|(s, g)| Step::Move(s, g)),
        1 => slot().prop_map(Step::Reopen),
        4 => slot().prop_map(Step::Pick),
    ]
}

fn part(pinned: bool) -> Part {
    if pinned {
        Part::Pinned
    } else {
        Part::Internal
    }
}

impl World {
    fn run(&mut self, step: &Step) {
        let before: Vec<Bytes> = (0..SLOTS).map(|slot| self.charge(slot).sum()).collect();
        let bounded = match *step {
            Step::TryTake(..) | Step::Reserve(..) | Step::TryCharge(..) => true,
            Step::Pick(slot) => {
                self.pick(slot);
                true
            }
            _ => false,
        };
        let mut ledger = self.ledger();
        match *step {
            Step::TryTake(slot, root) => {
                ledger.try_take(SlotId(slot), RootId(root));
            }
            Step::Take(slot, root) => {
                let taken = ledger.take(SlotId(slot), RootId(root));
                assert_eq!(taken, (2..SLOTS).contains(&slot) && root < ROOTS);
                assert!(!taken || ledger.holder(RootId(root)) == Some(SlotId(slot)));
            }
            Step::Drop(root) => {
                ledger.drop_root(RootId(root));
                assert_eq!(ledger.holder(RootId(root)), None);
            }
            Step::Leave(root, on) => ledger.set_leaving(RootId(root), on),
            Step::Use(root, on) => ledger.set_used(RootId(root), on),
            Step::Reserve(slot, roots) => {
                ledger.reserve(SlotId(slot), roots);
            }
            Step::Cancel(slot, roots) if slot >= 2 => ledger.cancel(SlotId(slot), roots),
            Step::TryCharge(slot, pinned, bytes) => {
                ledger.try_charge(SlotId(slot), part(pinned), Bytes(bytes));
            }
            Step::Charge(slot, pinned, bytes) => {
                ledger.charge(SlotId(slot), part(pinned), Bytes(bytes));
            }
            Step::Uncharge(slot, pinned, bytes) => {
                ledger.uncharge(SlotId(slot), part(pinned), Bytes(bytes));
            }
            Step::Limit(slot, limit) => ledger.set_limit(SlotId(slot), limit.map(Bytes)),
            Step::Move(slot, group) => {
                ledger.move_to(SlotId(slot), group.map(SlotId));
            }
            Step::Reopen(slot) => {
                let kind = ledger.slot(SlotId(slot)).map(Slot::kind);
                if ledger.close(SlotId(slot)) {
                    assert!(ledger.open(SlotId(slot), kind.unwrap()));
                }
            }
            Step::Cancel(..) | Step::Pick(_) => {}
        }
        if bounded {
            self.nothing_exceeds_because_of_it(&before);
        }
        self.check();
    }

    /// What is bound by limits does not raise a charge beyond one.
    fn nothing_exceeds_because_of_it(&mut self, before: &[Bytes]) {
        for (slot, before) in (0..SLOTS).zip(before) {
            let now = self.charge(slot).sum();
            let excess = self.ledger().excess(SlotId(slot));
            assert!(now <= *before || excess == Bytes(0), "slot {slot}");
        }
    }

    /// A victim belongs to whoever is over the limit, and is not leaving.
    fn pick(&mut self, slot: u32) {
        let full = |slot: &Slot| !slot.fits(ROOT);
        let group = self.ledger().group_of(SlotId(slot));
        let own = self.slots.get(slot as usize).is_some_and(full);
        let of_group = group.is_some_and(|group| full(&self.slots[group.0 as usize]));
        let candidates: Vec<u32> = (0..ROOTS)
            .filter(|root| {
                let leaving = self.roots[*root as usize].leaving;
                let ledger = self.ledger();
                let holder = ledger.holder(RootId(*root));
                let of = holder.and_then(|holder| ledger.group_of(holder));
                let within = match own {
                    true => [holder, of].contains(&Some(SlotId(slot))),
                    false => group.is_some() && of == group,
                };
                within && !leaving
            })
            .collect();
        match self.ledger().pick(SlotId(slot)) {
            Pick::Any => assert!(!own && !of_group),
            Pick::Root(root) => {
                assert!(
                    (own || of_group) && candidates.contains(&root.0),
                    "a stranger's"
                );
            }
            Pick::Nothing => assert!((own || of_group) && candidates.is_empty()),
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
        for slot in 2..SLOTS {
            let charge = world.charge(slot);
            assert_eq!(charge.roots, 0);
            let mut ledger = world.ledger();
            ledger.cancel(SlotId(slot), u32::MAX);
            assert!(ledger.uncharge(SlotId(slot), Part::Pinned, charge.pinned));
            assert!(ledger.uncharge(SlotId(slot), Part::Internal, charge.internal));
            assert!(ledger.close(SlotId(slot)));
        }
        assert!(world.ledger().close(SlotId(0)) && world.ledger().close(SlotId(1)));
    }
}

/// A limit of so many roots.
fn limit(world: &mut World, slot: u32, roots: u64) {
    world.ledger().set_limit(SlotId(slot), Some(ROOT * roots));
}

#[test]
fn a_full_owner_gives_up_its_own_roots_in_turn() {
    let mut world = World::new();
    limit(&mut world, 3, 3);
    let taken: Vec<bool> = (0..4)
        .map(|root| world.ledger().try_take(SlotId(3), RootId(root)))
        .collect();
    assert_eq!(taken, [true, true, true, false]);
    assert_eq!(world.slots[3].refusals(), 1);
    assert!(world.ledger().take(SlotId(2), RootId(9)));
    world.ledger().set_used(RootId(0), false);
    world.ledger().set_used(RootId(1), true);
    let mut order = Vec::new();
    for _ in 0..6 {
        order.push(world.ledger().pick(SlotId(3)));
    }
    // 1 and 2 were used, so 0 goes first. Then nothing was used any more.
    let expected = [0, 0, 1, 2, 0, 1].map(|root| Pick::Root(RootId(root)));
    assert_eq!(order, expected);
    for root in 0..3 {
        world.ledger().set_leaving(RootId(root), true);
    }
    assert_eq!(world.ledger().pick(SlotId(3)), Pick::Nothing);
    world.ledger().set_leaving(RootId(1), false);
    assert_eq!(world.ledger().pick(SlotId(3)), Pick::Root(RootId(1)));
    // The victim's root is used again: the sum does not move.
    assert!(world.ledger().take(SlotId(3), RootId(1)));
    assert_eq!(world.charge(3).roots, 3);
    assert_eq!(world.ledger().pick(SlotId(2)), Pick::Any);
}

#[test]
fn reserved_roots_are_charged_and_become_held() {
    let mut world = World::new();
    limit(&mut world, 4, 2);
    assert!(!world.ledger().reserve(SlotId(4), 3));
    assert!(world.ledger().reserve(SlotId(4), 2));
    assert_eq!(world.charge(4).sum(), ROOT * 2);
    assert!(!world.ledger().try_charge(SlotId(4), Part::Pinned, Bytes(1)));
    assert!(world.ledger().try_take(SlotId(4), RootId(0)));
    assert_eq!(world.charge(4).sum(), ROOT * 2);
    world.ledger().cancel(SlotId(4), 1);
    assert!(world.ledger().try_charge(SlotId(4), Part::Pinned, ROOT));
    assert!(
        !world.ledger().try_take(SlotId(4), RootId(1)),
        "one limit for all"
    );
    world.check();
}

#[test]
fn members_share_a_limit_and_strangers_lose_nothing() {
    let mut world = World::new();
    // 4 and 7 are members of group 0, 5 is one of group 1.
    limit(&mut world, 0, 4);
    for (slot, root) in [(4, 0), (4, 1), (7, 2), (7, 3), (5, 4), (5, 5)] {
        assert!(world.ledger().try_take(SlotId(slot), RootId(root)));
    }
    assert!(!world.ledger().try_take(SlotId(7), RootId(6)));
    let mut victims = Vec::new();
    for _ in 0..8 {
        match world.ledger().pick(SlotId(7)) {
            Pick::Root(root) => victims.push(root.0),
            other => panic!("{other:?}"),
        }
    }
    victims.sort_unstable();
    assert_eq!(victims, [0, 0, 1, 1, 2, 2, 3, 3], "members take turns");
    // Within the group a root changes hands without a charge.
    assert!(world.ledger().try_take(SlotId(7), RootId(0)));
    assert!(
        !world.ledger().try_take(SlotId(7), RootId(4)),
        "not a stranger's"
    );
    assert_eq!(world.charge(0).sum(), ROOT * 4);
    // A member that leaves takes its charge along, beyond any limit.
    limit(&mut world, 1, 1);
    assert!(world.ledger().move_to(SlotId(7), Some(SlotId(1))));
    assert_eq!(world.ledger().excess(SlotId(1)), ROOT * 4);
    assert_eq!(world.charge(0).sum(), ROOT);
    world.check();
}
