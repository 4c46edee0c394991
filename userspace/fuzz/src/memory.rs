// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Fuzzes the ledger of a GPU's memory: any sequence of operations leaves the sums right.

use gct_core::memory::{Charge, Kind, Ledger, Part, Pick, Root, RootId, Slot, SlotId, ROOT};
use gct_core::units::Bytes;

const ROOTS: u32 = 16;
/// Slots 0 and 1 are groups.
const SLOTS: u32 = 7;

/// Runs operations on a ledger, four bytes each, and checks it after each one.
///
/// # Panics
///
/// If a property does not hold.
pub fn memory(data: &[u8]) {
    let mut roots = vec![Root::default(); ROOTS as usize];
    let mut slots = vec![Slot::default(); SLOTS as usize];
    let mut ledger = Ledger::new(&mut roots, &mut slots);
    for slot in 0..SLOTS {
        let kind = match slot {
            0 | 1 => Kind::Group,
            _ => Kind::Process {
                group: (slot > 3).then_some(SlotId(slot % 2)),
            },
        };
        assert!(ledger.open(SlotId(slot), kind));
    }
    for step in data.chunks_exact(4) {
        run(&mut ledger, [step[0], step[1], step[2], step[3]]);
        check(&ledger);
    }
}

fn run(ledger: &mut Ledger<'_>, [what, slot, root, more]: [u8; 4]) {
    // One more of each than exist.
    let slot = SlotId(u32::from(slot) % (SLOTS + 1));
    let root = RootId(u32::from(root) % (ROOTS + 1));
    let bytes = Bytes(u64::MAX >> (more % 64));
    let part = match more % 2 {
        0 => Part::Pinned,
        _ => Part::Internal,
    };
    let over = |ledger: &Ledger<'_>, slot| ledger.excess(slot) > Bytes(0);
    match what % 14 {
        0 | 1 => {
            let before = over(ledger, slot);
            let held = ledger.holder(root) == Some(slot);
            if ledger.try_take(slot, root) && !held {
                assert!(before || !over(ledger, slot));
            }
        }
        2 => _ = ledger.take(slot, root),
        3 => ledger.drop_root(root),
        4 => ledger.set_leaving(root, more % 2 == 0),
        5 => ledger.set_used(root, more % 2 == 0),
        6 => {
            if ledger.reserve(slot, u32::from(more % 4)) {
                assert!(!over(ledger, slot));
            }
        }
        7 if slot.0 >= 2 => ledger.cancel(slot, u32::from(more % 4)),
        8 => {
            if ledger.try_charge(slot, part, bytes) {
                assert!(!over(ledger, slot));
            }
        }
        9 => _ = ledger.charge(slot, part, Bytes(u64::from(more) << 16)),
        10 => _ = ledger.uncharge(slot, part, bytes),
        11 => ledger.set_limit(slot, (more > 0).then(|| ROOT * u64::from(more % 16))),
        12 => _ = ledger.move_to(slot, (more % 3 < 2).then(|| SlotId(u32::from(more % 3)))),
        _ => {
            if let Pick::Root(victim) = ledger.pick(slot) {
                let (own, of) = (ledger.slot(slot), ledger.holder(victim));
                let group = |slot| match ledger.slot(slot).map(Slot::kind) {
                    Some(Kind::Process { group }) => group,
                    _ => None,
                };
                let mates = of.and_then(group).is_some() && of.and_then(group) == group(slot);
                let is_member = of.and_then(group) == Some(slot);
                let known = of == Some(slot) || mates || is_member;
                assert!(own.is_some() && known, "a stranger's");
            }
        }
    }
}

/// Compares all sums with a walk over the roots, and groups with their members.
fn check(ledger: &Ledger<'_>) {
    let mut sums = [(0, 0, Bytes(0)); 2];
    for slot in 2..SLOTS {
        let slot = SlotId(slot);
        let own = ledger.slot(slot).expect("it is open");
        let held = (0..ROOTS).filter(|root| ledger.holder(RootId(*root)) == Some(slot));
        let Charge {
            roots, reserved, ..
        } = *own.charge();
        assert_eq!(roots as usize, held.count());
        if let Kind::Process { group: Some(group) } = own.kind() {
            let sum = &mut sums[group.0 as usize];
            sum.0 += roots;
            sum.1 += reserved;
            sum.2 = sum.2 + own.charge().pinned + own.charge().internal;
        }
    }
    for (group, sum) in (0..2).zip(sums) {
        let of_group = ledger.slot(SlotId(group)).expect("it is open").charge();
        let bytes = of_group.pinned + of_group.internal;
        assert_eq!((of_group.roots, of_group.reserved, bytes), sum);
    }
}
