// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Checks orders on the captures: which launches are split, masked or refused, and why.

use std::vec;
use std::vec::Vec;

use super::captures::{scan, segments, CAPTURES};
use super::rewriting::{emit, SLOT_VA};
use crate::submit::join::DoneWords;
use crate::submit::launch::Kind;
use crate::submit::limits::{SLOT_BYTES, SLOT_WORDS};
use crate::submit::mask::{self, DisabledTpcs};
use crate::submit::methods::Action;
use crate::submit::reason::Reason;
use crate::submit::rewrite::{self, EmitError, Order, Output, Placement};
use crate::submit::stats::Counters;
use crate::submit::tracker::{QmdCall, Source, Tracker};

#[test]
fn the_captures_split_into_what_was_ordered() {
    for (name, split, atoms) in [
        ("one_launch", 1, 8),
        ("three_launches_same_stream", 3, 24),
        ("two_streams_event", 2, 16),
        ("grid3d", 1, 8),
        ("dynamic_smem_64k", 1, 8),
        ("cluster2", 1, 8),
        ("cooperative", 0, 0),
        // The second waits for the first's latch.
        ("pdl_pair", 1, 8),
        ("graph4", 0, 0),
        ("graph4_upload", 0, 0),
        ("graph_fork", 0, 0),
        ("graph_fork_upload", 0, 0),
        ("graph_tails", 0, 0),
        ("graph_tails_upload", 0, 0),
        ("memcpy_d2h_async", 0, 0),
    ] {
        assert!(CAPTURES.iter().any(|capture| capture.0 == name));
        let mut sum = (0, 0);
        for segment in segments(name) {
            let (found, _) = scan(&segment);
            let orders = vec![
                Order {
                    mask: None,
                    atoms: 8,
                    ..Order::default()
                };
                found.len()
            ];
            let done = emit(&segment.words, &found, &orders, true);
            sum = (
                sum.0 + done.counters.sums.split,
                sum.1 + done.counters.sums.atoms,
            );
        }
        assert_eq!(sum, (split, atoms), "{name}");
    }
}

#[test]
fn launches_that_cannot_be_split_are_counted_by_reason() {
    for (name, reasons) in [
        ("cooperative", vec![Reason::Null, Reason::Cooperative]),
        (
            "pdl_pair",
            vec![Reason::Null, Reason::Null, Reason::WaitsOnLatch],
        ),
        ("graph4_upload", vec![Reason::RequiresPcas; 4]),
    ] {
        let mut counters = Counters::new();
        for segment in segments(name) {
            let (found, _) = scan(&segment);
            let orders = vec![
                Order {
                    mask: None,
                    atoms: 8,
                    ..Order::default()
                };
                found.len()
            ];
            let done = emit(&segment.words, &found, &orders, true);
            for reason in Reason::ALL {
                for _ in 0..done.counters.kept(*reason) {
                    counters.keep(*reason);
                }
            }
        }
        for reason in Reason::ALL {
            let wanted = reasons.iter().filter(|wanted| *wanted == reason).count();
            assert_eq!(
                counters.kept(*reason),
                wanted as u64,
                "{name}: {}",
                reason.name()
            );
        }
    }
}

#[test]
fn the_masks_of_the_captures_are_what_was_ordered() {
    let ours = DisabledTpcs::keep_only(66, [0, 1, 2, 3, 65]).unwrap();
    for (name, _) in CAPTURES {
        for segment in segments(name) {
            let (found, _) = scan(&segment);
            let orders = vec![
                Order {
                    mask: Some(&ours),
                    atoms: 1,
                    ..Order::default()
                };
                found.len()
            ];
            let mut words = segment.words.clone();
            rewrite::in_place(&mut words, &found, &orders, &mut Counters::new());
            for found in found.iter().filter(|found| found.source == Source::Upload) {
                let launch = found.launch(&words).unwrap();
                let mask = mask::read(found.qmd(&words).unwrap(), launch.version);
                let wanted = (launch.kind != Kind::Null).then_some(*ours.words());
                assert_eq!(mask, wanted, "{name}");
            }
        }
    }
}

#[test]
fn atoms_are_released_one_by_one_at_the_cuts() {
    let segment = &segments("one_launch")[0];
    let (found, _) = scan(segment);
    let orders = vec![
        Order {
            mask: None,
            atoms: 4,
            ..Order::default()
        };
        found.len()
    ];
    let done = emit(&segment.words, &found, &orders, true);
    let mut tracker = Tracker::new(segment.class);
    let mut from = 0;
    let mut calls = vec![];
    // Each piece is a segment of its own: published in order, they are the same channel.
    for to in done
        .cuts
        .iter()
        .map(|cut| cut.at as usize)
        .chain([done.words.len()])
    {
        let mut found = [QmdCall::default(); 16];
        let scan = tracker.scan(&done.words[from..to], &mut found, &mut Counters::new());
        assert_eq!(scan.refused, None);
        calls.push(
            found[..scan.found]
                .iter()
                .filter(|found| found.action == Action::Schedule)
                .count(),
        );
        from = to;
    }
    assert_eq!(calls, [1, 1, 1, 1, 0]);
    assert_eq!(
        done.cuts.iter().map(|cut| cut.atom).collect::<Vec<_>>(),
        [1, 2, 3, 4]
    );
}

#[test]
fn too_little_room_is_refused_before_anything_is_written() {
    let segment = &segments("one_launch")[0];
    let (found, _) = scan(segment);
    let orders = vec![
        Order {
            mask: None,
            atoms: 4,
            ..Order::default()
        };
        found.len()
    ];
    let room = rewrite::room(&segment.words, &found, &orders, &Placement::Upload);
    let length = usize::try_from(room.words).unwrap();
    let attempt = |length: usize, slots: u32, slot_va: u64, view: Option<usize>, done| {
        let mut words = vec![1; length];
        let mut view = view.map(|length| vec![0; length]);
        let placement = view
            .as_mut()
            .map_or(Placement::Upload, |view| Placement::Written(view));
        let output = Output {
            words: &mut words,
            slot_va,
            slots,
            placement,
            cuts: &mut [],
            done,
        };
        let result = rewrite::emit(
            &segment.words,
            &found,
            &orders,
            output,
            &mut Counters::new(),
        );
        (result, words.iter().all(|word| *word == 1))
    };
    // Four atoms and the join.
    assert_eq!(room.slots, 5);
    let too_little = (Err(EmitError::Room(room)), true);
    assert_eq!(attempt(length - 1, 5, SLOT_VA, None, None), too_little);
    assert_eq!(attempt(length, 4, SLOT_VA, None, None), too_little);
    assert!(matches!(
        attempt(length, 5, SLOT_VA, Some(5 * SLOT_WORDS - 1), None),
        (Err(EmitError::Room(_)), true)
    ));
    let misplaced = (Err(EmitError::SlotAddress), true);
    assert_eq!(attempt(length, 5, SLOT_VA + 128, None, None), misplaced);
    let last = (1 << 40) - 5 * SLOT_BYTES;
    assert_eq!(attempt(length, 5, last + SLOT_BYTES, None, None), misplaced);
    assert!(attempt(length, 5, last, None, None).0.is_ok());
    for (va, stride_bytes, sound) in [
        (0, 0, true),
        (2, 4, false),
        (4, 2, false),
        ((1 << 57) - 24, 4, true),
        ((1 << 57) - 20, 4, false),
        (u64::MAX - 3, 4, false),
    ] {
        let done = Some(DoneWords {
            va,
            stride_bytes,
            payload: 1,
        });
        let (result, untouched) = attempt(length, 5, SLOT_VA, None, done);
        assert_eq!((result.is_ok(), untouched), (sound, !sound), "{va:#x}");
        assert!(sound || result == Err(EmitError::DoneAddress));
    }
}

#[test]
fn a_cut_names_the_slot_whose_atom_was_released_last() {
    let segment = &segments("two_streams_event");
    let mut tenant = segment[0].words.clone();
    tenant.extend(&segment[1].words);
    let mut found = vec![QmdCall::NONE; 64];
    let scan = Tracker::new(segment[0].class).scan(&tenant, &mut found, &mut Counters::new());
    found.truncate(scan.found);
    let orders = vec![
        Order {
            mask: None,
            atoms: 3,
            ..Order::default()
        };
        found.len()
    ];
    let done = emit(&tenant, &found, &orders, true);
    assert_eq!(done.counters.sums.split, 2);
    // Slots 0 and 4 are the joins'.
    let cuts: Vec<_> = done.cuts.iter().map(|cut| (cut.atom, cut.slot)).collect();
    assert_eq!(cuts, [(1, 1), (2, 2), (3, 3), (1, 5), (2, 6), (3, 7)]);
    for cut in &done.cuts {
        let call = &done.words[cut.at as usize - 4..cut.at as usize];
        let va = SLOT_VA + SLOT_BYTES * u64::from(cut.slot);
        assert_eq!((u64::from(call[1]) << 8, call[3]), (va, 2));
    }
}
