// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What an output is: the tenant's words, with changes only where they were ordered.

use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::random::{config, qmd_va, random, words_of};
use crate::submit::class::Action;
use crate::submit::launch::Launch;
use crate::submit::limits::{SLOT_BYTES, SLOT_WORDS};
use crate::submit::mask::TpcMask;
use crate::submit::qmd::{v04_00 as q, Version};
use crate::submit::rewrite::{self, Cut, Emitted, Order, Output, Placement, Room};
use crate::submit::stats::Counters;
use crate::submit::tracker::{Found, Tracker};

pub(super) const SLOT_VA: u64 = 0x10_0000_0000;

fn scan(words: &[u32]) -> Vec<Found> {
    let mut found = vec![Found::default(); 512];
    let scan = Tracker::new(0xc86f).scan(words, &mut found, &mut Counters::new());
    found.truncate(scan.found);
    found
}

pub(super) struct Done {
    pub(super) words: Vec<u32>,
    slots: Vec<u32>,
    pub(super) cuts: Vec<Cut>,
    emitted: Emitted,
    pub(super) counters: Counters,
}

/// Emits into exactly the room that was announced.
pub(super) fn emit(words: &[u32], found: &[Found], orders: &[Order<'_>], upload: bool) -> Done {
    let mut none = [];
    let placement = if upload {
        Placement::Upload
    } else {
        Placement::Written(&mut none)
    };
    let room = rewrite::room(words, found, orders, &placement);
    let slots = usize::try_from(room.slots).unwrap();
    let mut done = Done {
        words: vec![0xdead_beef; usize::try_from(room.words).unwrap()],
        slots: vec![0; if upload { 0 } else { slots * SLOT_WORDS }],
        cuts: vec![Cut::default(); slots],
        emitted: Emitted::default(),
        counters: Counters::new(),
    };
    let placement = if upload {
        Placement::Upload
    } else {
        Placement::Written(&mut done.slots)
    };
    let output = Output {
        words: &mut done.words,
        slot_va: SLOT_VA,
        slots: u32::try_from(slots).unwrap(),
        placement,
        cuts: &mut done.cuts,
    };
    done.emitted = rewrite::emit(words, found, orders, output, &mut done.counters).unwrap();
    assert_eq!(
        u64::from(done.emitted.words),
        room.words,
        "the room is exact"
    );
    assert_eq!(u64::from(done.emitted.slots), room.slots);
    assert_eq!(u64::from(done.emitted.cuts), room.cuts);
    done
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn without_orders_nothing_changes(launches in proptest::collection::vec(random(), 0..5)) {
        let words = words_of(&launches);
        let found = scan(&words);
        let done = emit(&words, &found, &[], true);
        prop_assert_eq!(&done.words, &words);
        let nothing = vec![Order::default(); found.len()];
        prop_assert_eq!(&emit(&words, &found, &nothing, true).words, &words);
        let mut in_place = words.clone();
        rewrite::in_place(&mut in_place, &found, &nothing, &mut Counters::new());
        prop_assert_eq!(in_place, words);
    }

    #[test]
    fn a_split_keeps_every_word_but_the_joins(
        launches in proptest::collection::vec(random(), 1..5),
        atoms in 2u32..20,
        upload in any::<bool>(),
        masked in any::<bool>(),
        keep in proptest::collection::vec(0u16..66, 1..20),
    ) {
        let words = words_of(&launches);
        let found = scan(&words);
        let ours = TpcMask::keep_only(66, keep).unwrap();
        let order = Order { mask: masked.then_some(&ours), atoms };
        let orders = vec![order; found.len()];
        let done = emit(&words, &found, &orders, upload);
        prop_assert!(u64::from(done.emitted.words) <= Room::bound(words.len() as u32, found.len() as u32, atoms).words);

        // Without the insertions it is what a masking in place gives, but for the joins.
        let mut expected = words.clone();
        let mut counters = Counters::new();
        rewrite::in_place(&mut expected, &found, &orders, &mut counters);
        prop_assert_eq!(counters.masked, done.counters.masked);
        let again = scan(&done.words);
        let mut at = 0;
        let mut slot = 0;
        let mut inserted = 0;
        for (index, (found, launch)) in found.iter().zip(&launches).enumerate() {
            let original = found.qmd(&expected).unwrap().to_vec();
            let can = Launch::splittable(&original, Version::V04_00).is_ok();
            let units = if launch.grid[2] > 1 { launch.grid[2] } else if launch.grid[1] > 1 { launch.grid[1] } else { launch.grid[0] };
            let count = if can { atoms.min(units) } else { 1 };
            let here = again[at];
            at += 1;
            prop_assert_eq!(here.qmd_va, qmd_va(index));
            let qmd = here.qmd(&done.words).unwrap().to_vec();
            if count <= 1 {
                prop_assert_eq!(qmd, original);
                continue;
            }
            check_join(&original, &qmd, count);
            let mut blocks = 0u64;
            for number in 0..count {
                let atom = again[at];
                at += if upload { 1 } else { 2 };
                let call = if upload { atom } else { again[at - 1] };
                prop_assert_eq!(call.action, Action::Schedule);
                prop_assert_eq!(call.qmd_va, SLOT_VA + SLOT_BYTES * slot as u64);
                let qmd = if upload {
                    atom.qmd(&done.words).unwrap().to_vec()
                } else {
                    prop_assert_eq!(atom.action, Action::Invalidate);
                    done.slots[slot * SLOT_WORDS..][..96].to_vec()
                };
                slot += 1;
                blocks += check_atom(&original, &qmd, qmd_va(index), number);
            }
            prop_assert_eq!(blocks, launch.grid.iter().map(|size| u64::from(*size)).product::<u64>());
            inserted += count;
        }
        prop_assert_eq!(at, again.len());
        prop_assert_eq!(u64::from(inserted), done.counters.atoms);
        prop_assert_eq!(slot as u32, done.emitted.slots);

        // What was inserted lies between the calls and the restored registers; taken away, the segment is the tenant's.
        let mut stripped = done.words.clone();
        let mut cuts = done.cuts.clone();
        while let Some(last) = cuts.pop() {
            if cuts.last().is_some_and(|cut| cut.launch == last.launch) {
                continue;
            }
            let launch = &found[last.launch as usize];
            let count = if last.atom == 1 { done.cuts.iter().filter(|cut| cut.launch == last.launch).count() as u32 } else { last.atom };
            let each = if upload { 9 + 96 + 4 } else { 6 };
            let restore = if upload { 7 } else { 2 };
            let length = (count * each + restore) as usize;
            let before: usize = done.cuts.iter().filter(|cut| cut.launch < last.launch).map(|cut| cut.launch).collect::<std::collections::BTreeSet<_>>().iter()
                .map(|launch| done.cuts.iter().filter(|cut| cut.launch == *launch).count() * each as usize + restore as usize).sum();
            let start = launch.call_end as usize + before;
            stripped.drain(start..start + length);
        }
        for (found, launch) in found.iter().zip(&launches) {
            let _ = launch;
            let at = found.at as usize;
            stripped[at..at + 96].copy_from_slice(&expected[at..at + 96]);
        }
        prop_assert_eq!(stripped, expected);

        // An output is understood as one: what was split is not split again.
        let orders = vec![Order { mask: order.mask, atoms }; again.len()];
        let twice = emit(&done.words, &again, &orders, true);
        if upload {
            let wholes = again.iter().filter(|found| found.action == Action::InvalidatePrefetchCopySchedule || found.action == Action::InvalidateCopySchedule).count();
            prop_assert!(twice.counters.split as usize <= wholes);
            prop_assert_eq!(twice.counters.split, 0);
            prop_assert_eq!(twice.words, done.words);
        }
    }
}

/// The join is the original but for its kind, its counter and its grid.
fn check_join(original: &[u32], join: &[u32], atoms: u32) {
    let mut expected = original.to_vec();
    q::QMD_TYPE.set(&mut expected, 1).unwrap();
    q::DEPENDENCE_COUNTER.set(&mut expected, atoms).unwrap();
    for field in [q::GRID_WIDTH, q::GRID_HEIGHT, q::GRID_DEPTH] {
        field.set(&mut expected, 1).unwrap();
    }
    assert_eq!(join, &expected[..]);
}

/// An atom differs from the original in its part of the grid and in its effects; gives the number of its blocks.
fn check_atom(original: &[u32], atom: &[u32], join_va: u64, number: u32) -> u64 {
    let launch = Launch::read(atom, Version::V04_00).unwrap();
    let effects = launch.effects;
    assert_eq!(effects.releases, [None; 3], "atom {number}");
    assert_eq!(
        (
            effects.arrive_latch,
            effects.reference,
            effects.self_copy,
            effects.pre_exit
        ),
        (None, None, false, false)
    );
    assert_eq!(effects.dependents[0].unwrap().va, Some(join_va));
    assert_eq!(effects.dependents[1], None);
    let allowed = [
        q::GRID_WIDTH,
        q::GRID_HEIGHT,
        q::GRID_DEPTH,
        q::GRID_WIDTH_RESUME,
        q::GRID_HEIGHT_RESUME,
        q::GRID_DEPTH_RESUME,
        q::RELEASE_ENABLE.nth(0),
        q::RELEASE_ENABLE.nth(1),
        q::RELEASE_ENABLE.nth(2),
        q::ARRIVE_AT_LATCH_VALID,
        q::ENABLE_PROGRAM_PRE_EXIT,
        q::PRE_EXIT_AT_LAST_CTA_LAUNCH,
        q::CWD_REFERENCE_COUNT_INCR_ENABLE,
        q::CWD_REFERENCE_COUNT_DECR_ENABLE,
        q::DEPENDENT_QMD_ENABLE.nth(0),
        q::DEPENDENT_QMD_ENABLE.nth(1),
        q::DEPENDENT_QMD_ACTION.nth(0),
        q::DEPENDENT_QMD0_POINTER,
    ];
    let cleared = |qmd: &[u32]| {
        let mut qmd = qmd.to_vec();
        for field in allowed {
            field.clear(&mut qmd);
        }
        qmd
    };
    assert_eq!(cleared(atom), cleared(original), "atom {number}");
    let [width, height, depth] =
        [0, 1, 2].map(|axis| u64::from(launch.grid[axis] - launch.resume[axis]));
    width * height * depth
}
