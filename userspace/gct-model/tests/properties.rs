// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Checks the rewriter of `gct_core::submit` against the model: a tenant must notice no difference.

mod common;

use common::launches::{launch, segments, Launch};
use common::rewriter::{
    divide, keep, mask_in_place, place, rewrite, rewrite_as, run_in_turn, How, Rewritten,
    DONE_PAYLOAD, HOPPER, SLOTS,
};
use common::{capture, orders, CHANNEL};
use gct_core::submit::limits::SLOT_BYTES;
use gct_core::submit::mask::DisabledTpcs;
use gct_model::{
    compare, memory_differences, Act, ChannelId, Config, Expected, GuestMemory, Kind, Machine,
    Mask, Order, Report, Run, SparseMemory,
};
use proptest::prelude::*;
use proptest::strategy::ValueTree;

/// More slots than any test uses. A damaged capture seldom writes here.
const SLOT_RANGE: std::ops::Range<u64> = SLOTS..SLOTS + (1 << 24);

fn run(
    channel: ChannelId,
    segments: &[Vec<u32>],
    slots: &[u32],
    order: Order,
) -> (Report, SparseMemory) {
    let config = Config {
        order,
        ..Config::default()
    };
    let mut memory = SparseMemory::new(1 << 12);
    for (word, at) in slots.iter().zip((SLOTS..).step_by(4)) {
        memory.write_u32(at, *word).expect("room for the slots");
    }
    let mut machine = Machine::new(memory, config);
    for segment in segments {
        machine.submit(channel, segment);
    }
    machine.run();
    machine.into_parts()
}

fn expected(mask: Option<&DisabledTpcs>) -> Expected {
    Expected {
        slots: SLOT_RANGE,
        mask: mask.map(|mask| Mask(*mask.words())).unwrap_or_default(),
    }
}

/// Fails if a tenant could distinguish the rewrite from the original in one of the orders.
fn check_same(
    original: &[Vec<u32>],
    rewritten: &[Vec<u32>],
    slots: &[u32],
    mask: Option<&DisabledTpcs>,
    orders: impl Iterator<Item = Order>,
) {
    let (before, memory) = run(CHANNEL, original, &[], Order::Eager);
    // The expected memory is that of a run without splits, with the requested mask.
    let memory = match mask {
        Some(mask) => {
            run(
                CHANNEL,
                &mask_in_place(original, mask, HOPPER),
                &[],
                Order::Eager,
            )
            .1
        }
        None => memory,
    };
    for order in orders {
        let (after, new_memory) = run(CHANNEL, rewritten, slots, order);
        let violations = compare(&before, &after, &expected(mask));
        assert!(
            violations.is_empty(),
            "order {order:?}: {}",
            violations
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join("; ")
        );
        let differences = memory_differences(&memory, &new_memory, &[SLOT_RANGE]);
        assert!(
            differences.is_empty(),
            "order {order:?}: memory differs at {differences:x?}"
        );
    }
}

/// Checks done words: every atom that has ended wrote its own exactly once, not before its last
/// block, and no other run wrote one.
fn check_done(report: &Report) {
    let is_atom = |run: &Run| SLOT_RANGE.contains(&run.qmd) && run.kind != Kind::Null;
    for (at, run) in report.runs.iter().enumerate() {
        let writes: Vec<_> = report
            .effects
            .iter()
            .filter(|effect| effect.by == Some(at))
            .filter_map(|effect| match effect.act {
                Act::Release(release) if SLOT_RANGE.contains(&release.address) => {
                    Some((effect.at, release.address, release.payload))
                }
                _ => None,
            })
            .collect();
        match run.ended.filter(|_| is_atom(run)) {
            Some(ended) => {
                let [(time, address, payload)] = writes[..] else {
                    panic!("{run:?} wrote {writes:?}");
                };
                assert!(time > ended);
                let payload_wanted = u64::from(DONE_PAYLOAD);
                assert_eq!((address, payload), (run.qmd + 384, payload_wanted));
            }
            None => assert_eq!(writes, []),
        }
    }
}

/// Returns the addresses of words of QMDs in slots that a run has changed.
fn changed_qmds(done: &Rewritten, mut memory: SparseMemory) -> Vec<u64> {
    let words = done.slots.iter().zip((SLOTS..).step_by(4));
    let in_qmd = |(_, at): &(&u32, u64)| (at - SLOTS) % SLOT_BYTES < 384;
    let changed = words
        .filter(in_qmd)
        .filter(|(word, at)| memory.read_u32(*at) != Ok(**word));
    changed.map(|(_, at)| at).collect()
}

/// Returns how many done words were written.
fn done_words(report: &Report) -> usize {
    let releases = report.effects.iter().filter(
        |effect| matches!(effect.act, Act::Release(release) if SLOT_RANGE.contains(&release.address)),
    );
    releases.count()
}

/// Returns how many atoms have ended.
fn atoms_ended(report: &Report) -> usize {
    let ended = |run: &&Run| SLOT_RANGE.contains(&run.qmd) && run.ended.is_some();
    report.runs.iter().filter(ended).count()
}

/// Returns how many of these have the effects of their launch.
fn lasts_ended(report: &Report, done: &Rewritten) -> usize {
    let lasts: Vec<u64> = done
        .lasts
        .iter()
        .map(|slot| SLOTS + slot * SLOT_BYTES)
        .collect();
    let ended = |run: &&Run| lasts.contains(&run.qmd) && run.ended.is_some();
    report.runs.iter().filter(ended).count()
}

/// Returns whether the tenant's own program has the same result in every order. A program with
/// races cannot be compared.
fn is_ordered(original: &[Vec<u32>], seed: u64) -> bool {
    let (eager, memory) = run(CHANNEL, original, &[], Order::Eager);
    let nothing_asked = Expected::default();
    let more = (1..5).map(|step| Order::Random(seed.wrapping_add(step)));
    few_orders(seed).chain(more).all(|order| {
        let (other, new_memory) = run(CHANNEL, original, &[], order);
        compare(&eager, &other, &nothing_asked).is_empty()
            && memory_differences(&memory, &new_memory, &[]).is_empty()
    })
}

/// Generates masks that leave a TPC which the tenant has not disabled: [`Launch`] never disables
/// those beyond word 1.
fn masks() -> impl Strategy<Value = Option<DisabledTpcs>> {
    proptest::option::of(
        proptest::collection::vec(0_u16..66, 0..20)
            .prop_map(|kept| keep(kept.into_iter().chain([64]))),
    )
}

fn several() -> impl Strategy<Value = Vec<Launch>> {
    proptest::collection::vec(launch(), 1..6)
}

/// Returns how many random cases a test runs: `gate`, or ten times as many for `make test-long`.
fn cases(gate: u32) -> u32 {
    match std::env::var_os("GCT_LONG").is_some_and(|long| !long.is_empty()) {
        true => 10 * gate,
        false => gate,
    }
}

fn few_orders(seed: u64) -> impl Iterator<Item = Order> {
    [
        Order::Eager,
        Order::Late,
        Order::Random(seed),
        Order::Random(!seed),
    ]
    .into_iter()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(60), max_global_rejects: 20 * cases(60), max_shrink_iters: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn split_and_masked_launches_keep_their_effects(
        launches in several(), mask in masks(), atoms in 0_u32..20, written: bool, seed: u64,
    ) {
        let original = segments(&launches);
        prop_assume!(is_ordered(&original, seed));
        let done = rewrite(&original, mask.as_ref(), atoms, written);
        let slots = if written { &done.slots[..] } else { &[] };
        check_same(&original, &done.segments, slots, mask.as_ref(), few_orders(seed));
    }

    #[test]
    fn so_they_do_when_their_atoms_are_released_one_by_one(
        launches in several(), atoms in 2_u32..20, written: bool, seed: u64,
    ) {
        let original = segments(&launches);
        prop_assume!(is_ordered(&original, seed));
        let done = rewrite(&original, None, atoms, written);
        let slots = if written { &done.slots[..] } else { &[] };
        check_same(&original, &divide(&done), slots, None, few_orders(seed));
    }

    /// Checks that with done words a tenant notices no difference either, and the pacer sees each
    /// atom's end exactly once.
    #[test]
    fn done_words_are_written_once_each_when_their_atom_has_ended(
        launches in several(), mask in masks(), atoms in 2_u32..20, written: bool, pieces: bool, seed: u64,
    ) {
        let original = segments(&launches);
        prop_assume!(is_ordered(&original, seed));
        let how = How { mask: mask.as_ref(), atoms, written, done: true, ..How::default() };
        let done = rewrite_as(&original, &how);
        let slots = if written { &done.slots[..] } else { &[] };
        let rewritten = if pieces { divide(&done) } else { done.segments };
        check_same(&original, &rewritten, slots, mask.as_ref(), few_orders(seed));
        for order in few_orders(seed) {
            check_done(&run(CHANNEL, &rewritten, slots, order).0);
        }
    }

    /// Checks slots that the GPU may only read: the last atom is submitted once the others have
    /// ended. Then a tenant notices no difference, and all but the last write their done words.
    #[test]
    fn so_they_do_without_a_join(
        launches in several(), mask in masks(), atoms in 2_u32..20, seed: u64,
    ) {
        let original = segments(&launches);
        prop_assume!(is_ordered(&original, seed));
        let how = How { mask: mask.as_ref(), atoms, written: true, read_only: true, done: true, tried: None };
        let done = rewrite_as(&original, &how);
        let (before, memory) = match &mask {
            Some(mask) => (
                run(CHANNEL, &original, &[], Order::Eager).0,
                run(CHANNEL, &mask_in_place(&original, mask, HOPPER), &[], Order::Eager).1,
            ),
            None => run(CHANNEL, &original, &[], Order::Eager),
        };
        // Behind a launch that never ends the channel stands still.
        prop_assume!(before.waiting.is_empty() && before.blocked.is_empty());
        for order in few_orders(seed) {
            let (after, new_memory) = run_in_turn(&done, order);
            prop_assert_eq!(compare(&before, &after, &expected(mask.as_ref())), []);
            prop_assert_eq!(memory_differences(&memory, &new_memory, &[SLOT_RANGE]), []);
            prop_assert_eq!(changed_qmds(&done, new_memory), []);
            prop_assert_eq!(done_words(&after), atoms_ended(&after) - lasts_ended(&after, &done));
        }
    }

    /// Checks masked launches that run whole from slots that the GPU may only read. Each tells its
    /// end once.
    #[test]
    fn so_they_do_whole_in_slots(
        launches in several(), kept in 0_u16..66, seed: u64,
    ) {
        let mask = keep([kept, 64]);
        let original = segments(&launches);
        prop_assume!(is_ordered(&original, seed));
        let before = run(CHANNEL, &original, &[], Order::Eager).0;
        // Behind a launch that never ends the channel stands still.
        prop_assume!(before.waiting.is_empty() && before.blocked.is_empty());
        let done = place(&original, &mask);
        check_same(&original, &done.segments, &done.slots, Some(&mask), few_orders(seed));
        for order in few_orders(seed) {
            let (after, memory) = run(CHANNEL, &done.segments, &done.slots, order);
            prop_assert_eq!(changed_qmds(&done, memory), []);
            prop_assert_eq!(done_words(&after), atoms_ended(&after));
        }
    }

    #[test]
    fn masks_in_place_change_nothing_else(launches in several(), kept in 0_u16..66, seed: u64) {
        let mask = keep([kept, 64]);
        let original = segments(&launches);
        prop_assume!(is_ordered(&original, seed));
        let masked = mask_in_place(&original, &mask, HOPPER);
        let lengths = |segments: &[Vec<u32>]| segments.iter().map(Vec::len).collect::<Vec<_>>();
        prop_assert_eq!(lengths(&original), lengths(&masked));
        check_same(&original, &masked, &[], Some(&mask), few_orders(seed));
    }

    #[test]
    fn rewriting_the_rewritten_changes_nothing(
        launches in several(), mask in masks(), atoms in 0_u32..20,
    ) {
        let original = segments(&launches);
        let once = rewrite(&original, mask.as_ref(), atoms, false);
        let twice = rewrite(&once.segments, mask.as_ref(), atoms, false);
        prop_assert_eq!(twice.counters.sums.split, 0);
        prop_assert!(once.segments == twice.segments);
    }

    #[test]
    fn no_order_is_no_change(launches in several(), atoms in 0_u32..2) {
        let original = segments(&launches);
        prop_assert_eq!(rewrite(&original, None, atoms, false).segments, original);
    }
}

#[test]
fn random_launches_are_split_often_enough_to_mean_something() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut split = 0;
    for _ in 0..200 {
        let launches = several().new_tree(&mut runner).expect("a value").current();
        split += rewrite(&segments(&launches), None, 8, false)
            .counters
            .sums
            .split;
    }
    assert!(split > 100, "{split} of 200 sets");
}

#[test]
fn random_launches_have_slots_often_enough_to_mean_something() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut slots = 0;
    for _ in 0..200 {
        let launches = several().new_tree(&mut runner).expect("a value").current();
        slots += place(&segments(&launches), &keep([64])).slots_used;
    }
    assert!(slots > 100, "{slots} of 200 sets");
}

const CAPTURES: [&str; 11] = [
    "cluster2",
    "cooperative",
    "dynamic_smem_64k",
    "graph4",
    "graph4_upload",
    "grid3d",
    "memcpy_d2h_async",
    "one_launch",
    "pdl_pair",
    "three_launches_same_stream",
    "two_streams_event",
];

/// Returns a capture's segments by channel. In these captures channels do not affect each other.
fn channels(name: &str) -> Vec<Vec<Vec<u32>>> {
    let records = capture(name);
    let mut channels: Vec<ChannelId> = records.iter().map(|(channel, _)| *channel).collect();
    channels.dedup();
    let of = |channel| records.iter().filter(move |(own, _)| *own == channel);
    channels
        .iter()
        .map(|channel| of(*channel).map(|(_, words)| words.clone()).collect())
        .collect()
}

#[test]
fn captures_keep_their_effects_however_they_are_split() {
    let masks = [None, Some(keep([3, 64])), Some(keep(0..40))];
    for name in CAPTURES {
        for original in channels(name) {
            for (mask, atoms) in masks
                .iter()
                .flat_map(|mask| [1, 2, 8, 64].map(|atoms| (mask, atoms)))
            {
                let done = rewrite(&original, mask.as_ref(), atoms, false);
                check_same(&original, &done.segments, &[], mask.as_ref(), few_orders(7));
                check_same(&original, &divide(&done), &[], mask.as_ref(), few_orders(8));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(60), max_global_rejects: 20 * cases(60), max_shrink_iters: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// Checks that a tenant that writes garbage, a damaged capture, gets the same garbage.
    #[test]
    fn damaged_captures_keep_their_effects(
        name in prop::sample::select(&CAPTURES[..]),
        flips in proptest::collection::vec((any::<prop::sample::Index>(), 0_u32..32), 1..4),
        atoms in 1_u32..10,
        seed: u64,
    ) {
        for mut original in channels(name) {
            let total: usize = original.iter().map(Vec::len).sum();
            for (index, bit) in &flips {
                let mut at = index.index(total);
                for words in &mut original {
                    if at < words.len() {
                        words[at] ^= 1 << bit;
                        break;
                    }
                    at -= words.len();
                }
            }
            prop_assume!(is_ordered(&original, seed));
            let done = rewrite(&original, None, atoms, false);
            check_same(&original, &done.segments, &[], None, few_orders(seed));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(500), max_shrink_iters: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_words_end_without_a_panic(
        words in proptest::collection::vec(prop_oneof![
            any::<u32>(),
            // Headers of the methods with effects, with small counts.
            (prop::sample::select(&[1_u32, 3, 4, 5][..]), 0_u32..8, prop::sample::select(
                &[0x0_u32, 0x6c, 0x1c, 0x110, 0x180, 0x1b0, 0x1b4, 0x2b4, 0x2bc, 0x2c0, 0x318, 0x320, 0x1b00, 0x300][..]
            ), prop::sample::select(&[1_u32, 4][..])).prop_map(|(op, count, method, sub)| {
                op << 29 | count << 16 | sub << 13 | method >> 2
            }),
            0_u32..16,
        ], 0..300),
        order in prop_oneof![Just(Order::Eager), Just(Order::Late), any::<u64>().prop_map(Order::Random)],
    ) {
        let (report, _) = run(CHANNEL, &[words], &[], order);
        prop_assert!(report.runs.len() <= Config::default().runs_max);
    }
}

#[test]
fn the_same_seed_makes_the_same_report() {
    let all = channels("three_launches_same_stream");
    for order in orders() {
        let one = run(CHANNEL, &all[0], &[], order).0;
        assert_eq!(one, run(CHANNEL, &all[0], &[], order).0);
    }
}
