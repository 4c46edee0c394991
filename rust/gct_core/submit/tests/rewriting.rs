// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Checks that an output is the tenant's words, changed only where ordered.

use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::random::{config, qmd_va, random, words_of, Random};
use crate::submit::join::DoneWords;
use crate::submit::launch::{Launch, Release};
use crate::submit::limits::{SLOT_BYTES, SLOT_WORDS};
use crate::submit::mask::DisabledTpcs;
use crate::submit::method::incr;
use crate::submit::methods::{self, Action};
use crate::submit::qmd::{v04_00 as q, Version};
use crate::submit::reason::Reason;
use crate::submit::rewrite::{self, Cut, Emitted, Order, Output, Placement, Room};
use crate::submit::stats::Counters;
use crate::submit::tracker::{QmdCall, Tracker};

pub(super) const SLOT_VA: u64 = 0x10_0000_0000;

fn scan(words: &[u32]) -> Vec<QmdCall> {
    let mut found = vec![QmdCall::default(); 512];
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

/// Where the slots of an output are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slots {
    Uploaded,
    Written,
    ReadOnly,
}

impl Slots {
    fn of(upload: bool) -> Self {
        match upload {
            true => Self::Uploaded,
            false => Self::Written,
        }
    }

    fn placement(self, view: &mut [u32]) -> Placement<'_> {
        match self {
            Self::Uploaded => Placement::Upload,
            Self::Written => Placement::Written(view),
            Self::ReadOnly => Placement::ReadOnly(view),
        }
    }
}

/// Emits into exactly the announced room.
pub(super) fn emit(words: &[u32], found: &[QmdCall], orders: &[Order<'_>], upload: bool) -> Done {
    emit_with(words, found, orders, Slots::of(upload), None)
}

fn emit_with(
    words: &[u32],
    found: &[QmdCall],
    orders: &[Order<'_>],
    place: Slots,
    done_words: Option<DoneWords>,
) -> Done {
    let room = rewrite::room(words, found, orders, &place.placement(&mut []));
    let slots = usize::try_from(room.slots).unwrap();
    let mut done = Done {
        words: vec![0xdead_beef; usize::try_from(room.words).unwrap()],
        slots: vec![
            0;
            if place == Slots::Uploaded {
                0
            } else {
                slots * SLOT_WORDS
            }
        ],
        cuts: vec![Cut::NONE; usize::try_from(room.cuts).unwrap()],
        emitted: Emitted::default(),
        counters: Counters::new(),
    };
    let output = Output {
        words: &mut done.words,
        slot_va: SLOT_VA,
        slots: u32::try_from(slots).unwrap(),
        placement: place.placement(&mut done.slots),
        cuts: &mut done.cuts,
        done: done_words,
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
    fn an_output_that_is_only_masked_is_the_segment_masked_in_place(
        launches in proptest::collection::vec(random(), 1..5),
        again in proptest::collection::vec(any::<prop::sample::Index>(), 0..4),
        kept in proptest::collection::vec(0u16..128, 9),
    ) {
        // Some QMDs are called twice, with another mask each time: both hold.
        let mut words = words_of(&launches);
        for index in &again {
            let va = qmd_va(index.index(launches.len()));
            words.extend([
                incr(1, methods::SEND_PCAS_A, 1),
                u32::try_from(va >> 8).unwrap(),
                incr(1, methods::SEND_SIGNALING_PCAS2_B, 1),
                0xa,
            ]);
        }
        let found = scan(&words);
        let masks: Vec<DisabledTpcs> = kept
            .iter()
            .map(|kept| DisabledTpcs::keep_only(128, [*kept, *kept ^ 1]).unwrap())
            .collect();
        let orders: Vec<Order<'_>> = masks.iter().map(|mask| Order { mask: Some(mask), atoms: 1, ..Order::default() }).collect();
        let done = emit(&words, &found, &orders[..found.len()], true);
        let mut counters = Counters::new();
        rewrite::in_place(&mut words, &found, &orders, &mut counters);
        prop_assert_eq!(done.words, words);
        prop_assert_eq!(done.counters, counters);
    }

    #[test]
    fn a_split_keeps_every_word_and_inserts_around_the_call(
        launches in proptest::collection::vec(random(), 1..5),
        atoms in 2u32..20,
        upload in any::<bool>(),
        masked in any::<bool>(),
        done_words in done_words(),
        keep in proptest::collection::vec(0u16..66, 1..20),
    ) {
        let words = words_of(&launches);
        let found = scan(&words);
        let ours = DisabledTpcs::keep_only(66, keep).unwrap();
        let order = Order { mask: masked.then_some(&ours), atoms, ..Order::default() };
        let orders = vec![order; found.len()];
        let done = emit_with(&words, &found, &orders, Slots::of(upload), done_words);
        prop_assert!(u64::from(done.emitted.words) <= Room::bound(words.len() as u32, found.len() as u32, atoms).words);

        // Without the insertions it is the segment masked in place.
        let mut expected = words.clone();
        let mut counters = Counters::new();
        rewrite::in_place(&mut expected, &found, &orders, &mut counters);
        prop_assert_eq!(counters.sums.rewritten, done.counters.sums.rewritten);
        let again = scan(&done.words);
        let mut output = Reader { again: &again, done: &done, upload, at: 0, slot: 0 };
        let mut splits = vec![];
        for (index, (found, launch)) in found.iter().zip(&launches).enumerate() {
            let original = found.qmd(&expected).unwrap().to_vec();
            let count = parts_of(launch, &original, atoms);
            // The tenant's QMD is unchanged, scheduled or dropped from the scheduler.
            let here = output.call();
            prop_assert_eq!(here.qmd_va, qmd_va(index));
            prop_assert_eq!(here.qmd(&done.words).unwrap(), &original[..]);
            if count <= 1 {
                prop_assert_eq!(here.action, found.action);
                continue;
            }
            prop_assert_eq!(here.action, Action::Invalidate);
            let (join_va, join) = output.slot(found.action);
            check_join(&original, &join, count);
            let mut blocks = 0u64;
            for number in 0..count {
                let (_, qmd) = output.slot(Action::Schedule);
                let done_va = done_words.map(|done| (done.va_of(output.slot - 1), done.payload));
                blocks += check_atom(&original, &qmd, Some(join_va), number, done_va);
            }
            prop_assert_eq!(blocks, launch.grid.iter().map(|size| u64::from(*size)).product::<u64>());
            splits.push((found.call_at as usize, found.call_end as usize, count as usize));
        }
        prop_assert_eq!(output.at, again.len());
        prop_assert_eq!(splits.iter().map(|split| split.2 as u64).sum::<u64>(), done.counters.sums.atoms);
        prop_assert_eq!(output.slot, done.emitted.slots);
        prop_assert_eq!(strip(&done.words, &splits, upload), expected);

        // An output scans as one: a split launch is not split again.
        let orders = vec![Order { mask: order.mask, atoms, ..Order::default() }; again.len()];
        let twice = emit(&done.words, &again, &orders, true);
        if upload {
            prop_assert_eq!(twice.counters.sums.split, 0);
            prop_assert_eq!(twice.words, done.words);
        }
    }
}

/// Returns how many atoms a launch is split into.
fn parts_of(launch: &Random, original: &[u32], atoms: u32) -> u32 {
    let units = match launch.grid {
        [width, ..=1, ..=1] => width,
        [_, height, ..=1] => height,
        [.., depth] => depth,
    };
    match Launch::splittable(original, Version::V04_00, false) {
        Ok(()) => atoms.min(units),
        Err(_) => 1,
    }
}

/// Returns a QMD without its part of the grid.
fn without_part(qmd: &[u32]) -> Vec<u32> {
    let mut qmd = qmd.to_vec();
    for fields in [
        [q::GRID_WIDTH, q::GRID_HEIGHT, q::GRID_DEPTH],
        [
            q::GRID_WIDTH_RESUME,
            q::GRID_HEIGHT_RESUME,
            q::GRID_DEPTH_RESUME,
        ],
    ] {
        fields.iter().for_each(|field| field.clear(&mut qmd));
    }
    qmd
}

proptest! {
    #![proptest_config(config())]

    /// Checks slots that the GPU may only read: atoms without effects take the place of the call,
    /// and the last one is the tenant's QMD with its part of the grid.
    #[test]
    fn without_a_join_the_last_atom_has_the_effects(
        launches in proptest::collection::vec(random(), 1..5),
        atoms in 2u32..20,
        masked in any::<bool>(),
        done_words in done_words(),
        keep in proptest::collection::vec(0u16..66, 1..20),
    ) {
        let words = words_of(&launches);
        let found = scan(&words);
        let ours = DisabledTpcs::keep_only(66, keep).unwrap();
        let order = Order { mask: masked.then_some(&ours), atoms, ..Order::default() };
        let orders = vec![order; found.len()];
        let done = emit_with(&words, &found, &orders, Slots::ReadOnly, done_words);
        let mut masked = words.clone();
        rewrite::in_place(&mut masked, &found, &orders, &mut Counters::new());
        let (mut expected, mut from, mut slot) = (vec![], 0, 0);
        for (found, launch) in found.iter().zip(&launches) {
            let original = found.qmd(&masked).unwrap();
            let count = parts_of(launch, original, atoms);
            if count <= 1 {
                continue;
            }
            let mut blocks = 0;
            let [address, action, wait] = [
                methods::SEND_PCAS_A,
                methods::SEND_SIGNALING_PCAS2_B,
                methods::WAIT_FOR_IDLE,
            ].map(|method| incr(found.subchannel, method, 1));
            expected.extend(&masked[from..found.call_at as usize]);
            expected.extend([action, 1, wait, 0]);
            for number in 0..count {
                let va = SLOT_VA + SLOT_BYTES * u64::from(slot);
                expected.extend([address, (va >> 8) as u32, action, 1, action, 2]);
                let qmd = &done.slots[slot as usize * SLOT_WORDS..][..96];
                let done_va = done_words.map(|done| (done.va_of(slot), done.payload));
                slot += 1;
                if number + 1 < count {
                    blocks += check_atom(original, qmd, None, number, done_va);
                    continue;
                }
                prop_assert_eq!(without_part(qmd), without_part(original));
                let last = Launch::read(qmd, Version::V04_00).unwrap();
                let sizes = last.grid.iter().zip(last.resume);
                blocks += sizes.map(|(end, start)| u64::from(end - start)).product::<u64>();
            }
            expected.extend([address, (found.qmd_va >> 8) as u32]);
            from = found.call_end as usize;
            prop_assert_eq!(blocks, launch.grid.iter().map(|size| u64::from(*size)).product::<u64>());
        }
        expected.extend(&masked[from..]);
        prop_assert_eq!(&done.words, &expected);
        prop_assert_eq!(slot, done.emitted.slots);
        let splits = done.cuts.iter().filter(|cut| cut.atom == 1).count();
        prop_assert_eq!(splits as u64, done.counters.sums.split);
        prop_assert!(done.cuts.iter().all(|cut| cut.slot < slot));
    }
}

fn done_words() -> impl Strategy<Value = Option<DoneWords>> {
    let anywhere =
        (0u64..1 << 50, 0u32..300, any::<u32>()).prop_map(|(va, stride, payload)| DoneWords {
            va: va * 4,
            stride_bytes: stride * 4,
            payload,
        });
    prop_oneof![
        Just(None),
        Just(Some(DoneWords::in_slots(SLOT_VA, 3))),
        anywhere.prop_map(Some),
    ]
}

/// Reads the calls of an output one after another.
struct Reader<'a> {
    again: &'a [QmdCall],
    done: &'a Done,
    upload: bool,
    at: usize,
    slot: u32,
}

impl Reader<'_> {
    fn call(&mut self) -> QmdCall {
        self.at += 1;
        self.again[self.at - 1]
    }

    /// Returns the next slot's address and its QMD, which is called with `action`.
    fn slot(&mut self, action: Action) -> (u64, Vec<u32>) {
        let mut call = self.call();
        if !self.upload && action == Action::Schedule {
            assert_eq!(call.action, Action::Invalidate);
            call = self.call();
        }
        let va = SLOT_VA + SLOT_BYTES * u64::from(self.slot);
        assert_eq!((call.action, call.qmd_va), (action, va));
        let at = self.slot as usize * SLOT_WORDS;
        self.slot += 1;
        let qmd = match self.upload {
            true => call.qmd(&self.done.words).unwrap(),
            false => &self.done.slots[at..][..96],
        };
        (va, qmd.to_vec())
    }
}

/// Removes the insertions of splits into so many atoms, before and behind their calls.
fn strip(words: &[u32], splits: &[(usize, usize, usize)], upload: bool) -> Vec<u32> {
    let (slot, call, restore) = if upload { (105, 4, 7) } else { (0, 6, 2) };
    let mut stripped = vec![];
    let (mut at, mut from) = (0, 0);
    for (call_at, call_end, atoms) in splits {
        stripped.extend(&words[at..at + call_at - from]);
        at += call_at - from + (atoms + 1) * slot + 4;
        stripped.extend(&words[at..at + call_end - call_at]);
        at += call_end - call_at + atoms * call + restore;
        from = *call_end;
    }
    stripped.extend(&words[at..]);
    stripped
}

/// Checks that the join is the original except for its kind, its counter and its grid.
fn check_join(original: &[u32], join: &[u32], atoms: u32) {
    let mut expected = original.to_vec();
    q::QMD_TYPE.set(&mut expected, 1).unwrap();
    q::DEPENDENCE_COUNTER.set(&mut expected, atoms).unwrap();
    for field in [q::GRID_WIDTH, q::GRID_HEIGHT, q::GRID_DEPTH] {
        field.set(&mut expected, 1).unwrap();
    }
    assert_eq!(join, &expected[..]);
}

/// Checks that an atom differs from the original only in its part of the grid and its effects.
/// Returns the number of its blocks.
fn check_atom(
    original: &[u32],
    atom: &[u32],
    join_va: Option<u64>,
    number: u32,
    done: Option<(u64, u32)>,
) -> u64 {
    let launch = Launch::read(atom, Version::V04_00).unwrap();
    let effects = launch.effects;
    let release = done.map(|(va, payload)| Release {
        va,
        payload: payload.into(),
        words: 1,
        reduction: None,
        membar: false,
    });
    assert_eq!(effects.releases, [release, None, None], "atom {number}");
    assert_eq!(
        (
            effects.arrive_latch,
            effects.reference,
            effects.self_copy,
            effects.pre_exit
        ),
        (None, None, false, false)
    );
    assert_eq!(effects.dependents[0].map(|join| join.va), join_va.map(Some));
    assert_eq!(effects.dependents[1], None);
    let done_fields: &[_] = match done {
        Some(_) => &[
            q::RELEASE_STRUCTURE_SIZE.nth(0),
            q::RELEASE_MEMBAR_TYPE.nth(0),
            q::RELEASE_REDUCTION_ENABLE.nth(0),
            q::RELEASE_REDUCTION_OP.nth(0),
            q::RELEASE_REDUCTION_FORMAT.nth(0),
            q::RELEASE_TRAP_TYPE.nth(0),
            q::RELEASE_PAYLOAD64B.nth(0),
            q::RELEASE_RESERVED_INFO.nth(0),
            q::RELEASE_SEMAPHORE0_ADDR_LOWER,
            q::RELEASE_SEMAPHORE0_ADDR_UPPER,
            q::RELEASE_SEMAPHORE0_PAYLOAD_LOWER,
            q::RELEASE_SEMAPHORE0_PAYLOAD_UPPER,
        ],
        None => &[],
    };
    for field in [q::RELEASE_TRAP_TYPE, q::RELEASE_PAYLOAD64B] {
        assert!(done.is_none() || !field.nth(0).is_set(atom));
    }
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
        for field in allowed.iter().chain(done_fields) {
            field.clear(&mut qmd);
        }
        qmd
    };
    assert_eq!(cleared(atom), cleared(original), "atom {number}");
    let [width, height, depth] =
        [0, 1, 2].map(|axis| u64::from(launch.grid[axis] - launch.resume[axis]));
    width * height * depth
}

#[test]
fn a_qmd_that_is_called_twice_is_not_split() {
    let [launch] = super::captures::segments("one_launch")
        .try_into()
        .ok()
        .unwrap();
    let mut words = launch.words;
    let [_, main] = scan(&words)[..] else {
        panic!("two calls");
    };
    let again = main.call_at as usize - 2..main.call_end as usize;
    words.extend_from_within(again);
    let orders = [Order {
        mask: None,
        atoms: 4,
        ..Order::default()
    }; 3];
    let found = scan(&words);
    assert_eq!(found.len(), 3);
    let done = emit(&words, &found, &orders, true);
    assert_eq!(
        (done.counters.sums.split, done.counters.kept(Reason::Shared)),
        (0, 2)
    );
    // Where the table has no room for the second call, the first one is still marked.
    let mut table = [QmdCall::default(); 2];
    let scan = Tracker::new(0xc86f).scan(&words, &mut table, &mut Counters::new());
    assert_eq!((scan.found, scan.missed), (2, 1));
    let done = emit(&words, &table, &orders, true);
    assert_eq!(
        (done.counters.sums.split, done.counters.kept(Reason::Shared)),
        (0, 1)
    );
}
