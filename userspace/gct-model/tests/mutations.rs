// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Damages splits on purpose. The checker must find each damage, or its silence would prove
//! nothing.

mod common;

use common::rewriter::{keep, rewrite, SLOTS};
use common::{capture, orders, CHANNEL};
use gct_model::qmd::{self, Bits, V04_00};
use gct_model::{compare, Config, Expected, Machine, Mask, Order, Report, SparseMemory, Violation};

/// The split of `one_launch` (1000 blocks) into 4 atoms, with its companion at N.
const ATOMS: u64 = 4;
const N: u64 = 0x2_04e1_3800;
const JOIN: u64 = SLOTS;

/// Returns the address of atom `i`.
fn slot(i: u64) -> u64 {
    SLOTS + 512 * (i + 1)
}

fn run(words: &[u32], order: Order) -> Report {
    let config = Config {
        order,
        ..Config::default()
    };
    let mut machine = Machine::new(SparseMemory::new(1 << 10), config);
    machine.submit(CHANNEL, words);
    machine.run();
    machine.into_parts().0
}

/// Returns the violations of a split damaged by `damage`, over all orders.
fn judge(damage: impl FnOnce(&mut Vec<u32>)) -> Vec<Violation> {
    let original = capture("one_launch").remove(0).1;
    let mask = keep(0..60);
    let atoms = u32::try_from(ATOMS).expect("few");
    let mut words = rewrite(std::slice::from_ref(&original), Some(&mask), atoms, false)
        .segments
        .remove(0);
    damage(&mut words);
    let before = run(&original, Order::Eager);
    let expected = Expected {
        slots: SLOTS..1 << 40,
        mask: Mask(*mask.words()),
    };
    orders()
        .flat_map(|order| compare(&before, &run(&words, order), &expected))
        .collect()
}

/// Returns the index of the data of the upload to `address`.
fn upload(words: &[u32], address: u64) -> usize {
    let [low, high] =
        [address & 0xffff_ffff, address >> 32].map(|half| u32::try_from(half).expect("32 bits"));
    let destination = words
        .windows(3)
        .position(|window| window == [0x2002_2062, high, low])
        .expect("an upload to the address");
    let header = words[destination..]
        .iter()
        .position(|word| *word == 0x6060_206d);
    destination + header.expect("the data's header") + 1
}

/// Returns the index of the action of the PCAS on `address`.
fn action(words: &[u32], address: u64) -> usize {
    let shifted = u32::try_from(address >> 8).expect("below 2^40");
    let pcas = [0x2001_20ad, shifted, 0x2001_20b0];
    let at = words.windows(3).position(|window| window == pcas);
    at.expect("a PCAS on the address") + 3
}

fn set(words: &mut [u32], address: u64, field: Option<Bits>, value: u32) {
    let at = upload(words, address);
    qmd::set(&mut words[at..at + 96], field, value);
}

fn get(words: &[u32], address: u64, field: Option<Bits>) -> u32 {
    let at = upload(words, address);
    qmd::get(&words[at..at + 96], field)
}

#[track_caller]
fn finds(violations: &[Violation], wanted: impl Fn(&Violation) -> bool) {
    assert!(violations.iter().any(wanted), "{violations:?}");
}

fn is_blocks(violation: &Violation) -> bool {
    matches!(violation, Violation::Blocks { .. })
}

fn is_early(violation: &Violation) -> bool {
    matches!(violation, Violation::Early { .. })
}

fn is_times(violation: &Violation) -> bool {
    matches!(violation, Violation::Times { .. })
}

#[test]
fn an_undamaged_split_is_right() {
    assert_eq!(judge(|_| {}), []);
}

#[test]
fn an_atom_scheduled_with_copy_runs_from_the_beginning() {
    for copies in [3, 9, 0xa] {
        let found = judge(|words| {
            let at = action(words, slot(2));
            words[at] = copies;
        });
        finds(&found, is_blocks);
    }
}

#[test]
fn an_atom_that_is_never_scheduled_leaves_blocks_out() {
    let found = judge(|words| {
        let at = action(words, slot(3));
        words[at] = 0;
    });
    finds(&found, is_blocks);
    finds(&found, is_times);
}

#[test]
fn a_join_that_waits_for_one_atom_too_few_is_early() {
    let found = judge(|words| set(words, JOIN, V04_00.counter, 3));
    finds(&found, is_early);
}

#[test]
fn a_join_that_waits_for_one_atom_too_many_never_ends() {
    let found = judge(|words| set(words, JOIN, V04_00.counter, 5));
    finds(&found, is_times);
    finds(
        &found,
        |violation| matches!(violation, Violation::Waits(waiting) if waiting.qmd == JOIN),
    );
}

#[test]
fn a_join_that_still_runs_blocks_runs_them_twice() {
    let found = judge(|words| {
        set(words, JOIN, V04_00.kind, 2);
        set(words, JOIN, V04_00.grid[0], 1000);
    });
    finds(&found, is_blocks);
}

#[test]
fn boundaries_that_are_off_by_one_are_found() {
    let overlap = judge(|words| {
        let start = get(words, slot(1), V04_00.resume[0]);
        set(words, slot(1), V04_00.resume[0], start - 1);
    });
    finds(&overlap, is_blocks);
    let gap = judge(|words| {
        let end = get(words, slot(1), V04_00.grid[0]);
        set(words, slot(1), V04_00.grid[0], end - 1);
    });
    finds(&gap, is_blocks);
}

#[test]
fn an_effect_that_an_atom_kept_happens_too_often() {
    let release = V04_00.releases[0].expect("a release").enable;
    let companion = V04_00.dependents[1];
    finds(&judge(|words| set(words, slot(0), release, 1)), is_times);
    finds(
        &judge(|words| set(words, slot(3), V04_00.arrive[0], 1)),
        is_times,
    );
    let decrements = |words: &mut Vec<u32>| {
        set(words, slot(1), companion.enable, 1);
        set(words, slot(1), companion.action, 4);
        set(
            words,
            slot(1),
            companion.pointer,
            u32::try_from(N >> 8).expect("below 2^40"),
        );
    };
    finds(&judge(decrements), is_times);
}

#[test]
fn an_effect_that_the_join_lost_never_happens() {
    let release = V04_00.releases[0].expect("a release").enable;
    for field in [release, V04_00.arrive[0], V04_00.dependents[0].enable] {
        finds(&judge(|words| set(words, JOIN, field, 0)), is_times);
    }
}

#[test]
fn pre_exit_left_on_an_atom_ends_the_launch_early() {
    let found = judge(|words| {
        for i in 0..ATOMS {
            set(words, slot(i), V04_00.pre_exit, 1);
        }
    });
    finds(&found, is_early);
}

#[test]
fn atoms_before_their_join_lose_their_decrements() {
    let found = judge(|words| {
        // The last PCAS copies the join, instead of one before the atoms.
        let (join, last) = (action(words, JOIN), action(words, slot(ATOMS - 1)));
        let (copied, shifted) = (words[join], words[join - 2]);
        words[join] = 0;
        words.splice(
            last + 1..last + 1,
            [0x2001_20ad, shifted, 0x2001_20b0, copied],
        );
    });
    finds(&found, is_times);
}

#[test]
fn a_slot_that_is_used_twice_at_once_is_found() {
    let found = judge(|words| {
        let at = action(words, slot(1));
        words[at - 2] = u32::try_from(slot(0) >> 8).expect("below 2^40");
    });
    finds(&found, is_blocks);
}

#[test]
fn a_slot_that_is_overwritten_before_its_atom_started_is_found() {
    let found = judge(|words| {
        // The effect of a later launch of the same channel that uses a slot too early.
        let at = upload(words, slot(1));
        let mut again = words[at - 9..at + 96].to_vec();
        qmd::set(&mut again[9..], V04_00.resume[0], 0);
        words.extend(again);
    });
    finds(&found, is_blocks);
}

#[test]
fn an_atom_without_its_mask_is_found() {
    let found = judge(|words| set(words, slot(2), V04_00.mask_valid, 0));
    finds(
        &found,
        |violation| matches!(violation, Violation::Mask { qmd, .. } if *qmd == slot(2)),
    );
}

#[test]
fn registers_that_were_not_restored_are_found() {
    let original = capture("one_launch").remove(0).1;
    // The tenant's next word: PCAS_A still names M, whose queue gets an entry.
    let next = [0x2001_20b0, 6];
    let mut words = rewrite(std::slice::from_ref(&original), None, 4, false)
        .segments
        .remove(0);
    let restore = words.len() - (original.len() - 380);
    assert_eq!(
        words[restore - 2],
        0x2001_20ad,
        "the last inserted words restore PCAS_A"
    );
    let with = |words: &[u32]| run(&[words, &next].concat(), Order::Eager);
    let before = with(&original);
    let expected = Expected {
        slots: SLOTS..1 << 40,
        ..Expected::default()
    };
    assert_eq!(compare(&before, &with(&words), &expected), []);
    words[restore - 1] = 0x1000_0000;
    finds(&compare(&before, &with(&words), &expected), is_times);
}
