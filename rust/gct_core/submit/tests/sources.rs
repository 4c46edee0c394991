// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Checks where the QMD of a call comes from, and which calls are not believed.

use std::time::Instant;
use std::vec;
use std::vec::Vec;

use super::encodings::{scan, scan_with};
use crate::submit::method::{incr, non_incr};
use crate::submit::methods::{self, Action};
use crate::submit::qmd::{v02_04, v03_00, Version};
use crate::submit::reason::Reason;
use crate::submit::stats::Counters;
use crate::submit::tracker::{QmdCall, Source, Tracker};

/// Builds one plain launch, whose QMD is at word 9.
fn launch(va: u64) -> Vec<u32> {
    let mut words = vec![
        incr(1, methods::OFFSET_OUT_UPPER, 2),
        (va >> 32) as u32,
        va as u32,
        incr(1, methods::LINE_LENGTH_IN, 2),
        384,
        1,
        incr(1, methods::LAUNCH_DMA, 1),
        0x41,
        non_incr(1, methods::LOAD_INLINE_DATA, 96),
    ];
    words.extend([0; 96]);
    words[9 + 18] = 0x40;
    words[9] = 2 << 23;
    words
}

fn pcas(va: u64, action: u32) -> [u32; 4] {
    [
        incr(1, methods::SEND_PCAS_A, 1),
        (va >> 8) as u32,
        incr(1, methods::SEND_SIGNALING_PCAS2_B, 1),
        action,
    ]
}

/// Builds an upload of `count` words to `va`.
fn upload(va: u64, count: u32) -> Vec<u32> {
    let mut words = launch(va);
    words.truncate(9);
    words[4] = count * 4;
    words[8] = non_incr(1, methods::LOAD_INLINE_DATA, count);
    words.extend(vec![7; count as usize]);
    words
}

#[test]
fn a_qmd_that_was_patched_is_not_believed() {
    let va = 0x2_0000_0100;
    for (at, reason) in [
        (va, Some(Reason::Patched)),
        (va + 4, Some(Reason::Patched)),
        (va + 380, Some(Reason::Patched)),
        (va - 4, None),
        (va + 384, None),
    ] {
        let mut words = launch(va);
        words.extend(upload(at, 1));
        words.extend(pcas(va, 0xa));
        let (found, _, _) = scan(&words);
        assert_eq!(found[0].reason, reason, "{at:x}");
        assert_eq!(found[0].source == Source::Upload, reason.is_none());
    }
}

#[test]
fn an_upload_of_unknown_extent_hides_all_before_it() {
    let va = 0x2_0000_0100;
    let mut words = launch(va);
    let mut other = upload(0x5_0000_0000, 4);
    // Two lines.
    other[5] = 2;
    words.extend(other);
    words.extend(pcas(va, 0xa));
    assert_eq!(scan(&words).0[0].reason, Some(Reason::Fragmented));
}

#[test]
fn a_qmd_in_two_bursts_is_passed_through() {
    let va = 0x2_0000_0100;
    let mut words = launch(va);
    words[8] = non_incr(1, methods::LOAD_INLINE_DATA, 95);
    words.insert(9 + 95, non_incr(1, methods::LOAD_INLINE_DATA, 1));
    words.extend(pcas(va, 0xa));
    assert_eq!(scan(&words).0[0].reason, Some(Reason::Fragmented));
}

#[test]
fn a_qmd_in_the_middle_of_an_upload_is_found() {
    let va = 0x2_0000_0100;
    let mut words = launch(va);
    words[2] = 0x0000_0000;
    words[4] = 384 + 256 + 128;
    words[8] = non_incr(1, methods::LOAD_INLINE_DATA, 96 + 64 + 32);
    words.splice(9..9, [3; 64]);
    words.extend([4; 32]);
    words.extend(pcas(va, 0xa));
    let (found, _, _) = scan(&words);
    assert_eq!(
        (found[0].at, found[0].version),
        (9 + 64, Some(Version::V04_00))
    );
}

#[test]
fn a_virtualization_base_is_not_guessed_at() {
    let va = 0x2_0000_0100;
    let mut words = vec![incr(1, methods::SET_QMD_VIRTUALIZATION_CONTROL, 1), 1 << 24];
    words.extend(launch(va));
    words.extend(pcas(va, 0xa));
    assert_eq!(scan(&words).0[0].reason, Some(Reason::Virtualized));
}

#[test]
fn a_macro_is_counted() {
    // With the words it takes: one call.
    let (_, _, counters) = scan(&[incr(1, methods::CALL_MME_MACRO, 2), 0, 7]);
    assert_eq!(counters.kept(Reason::Macro), 1);
    assert_eq!(counters.kept_total(), 1);
    // Behind methods that are not tracked.
    for (method, count) in [(0x37fc, 2), (0x3400, 257), (0x1b00, 2000)] {
        let words = [&[incr(1, method, count)][..], &[0; 2000][..count as usize]].concat();
        let (_, _, counters) = scan(&words);
        assert!(counters.kept(Reason::Macro) > 0, "{method:#x}");
    }
}

#[test]
fn methods_that_take_remembered_data_count_as_a_macro() {
    for (mode, count) in [(0, 0), (1, 0), (2, 0), (3, 1), (7, 1)] {
        let (_, _, counters) = scan(&[incr(1, methods::SET_MME_SHADOW_RAM_CONTROL, 1), mode]);
        assert_eq!(counters.kept(Reason::Macro), count, "{mode}");
    }
}

#[test]
fn a_call_for_queues_is_one_that_may_schedule() {
    let (_, scan, counters) = scan(&[incr(1, methods::SEND_PCAS_A, 2), 0x1234, 0]);
    assert_eq!((scan.found, counters.sums.launches), (1, 1));
}

#[test]
fn a_fill_is_told_from_other_macros() {
    // `cuMemsetD8` of 4 KiB, as CUDA 13.0 wrote it on an H200.
    let fill = [
        0x2004_2060,
        0x1000,
        1,
        3,
        0x0200_1200,
        0x2001_206c,
        0x41,
        0x2002_2e00,
        0x400,
        0,
        0x2004_26c0,
        2,
        0x0460_fff0,
        0x57,
        0,
    ];
    let (_, _, counters) = scan(&fill);
    assert_eq!(counters.kept(Reason::MacroFill), 1);
    assert_eq!(counters.kept_total(), 1);
}

#[test]
fn set_object_decides_what_a_subchannel_is() {
    let va = 0x2_0000_0100;
    let mut words = launch(va);
    words.extend(pcas(va, 0xa));
    // The same words on subchannel 4, which has no class.
    let moved: Vec<u32> = {
        let mut moved = words.clone();
        for at in [0, 3, 6, 8, 9 + 96, 9 + 98] {
            moved[at] = moved[at] & !(7 << 13) | 4 << 13;
        }
        moved
    };
    assert_eq!(scan(&moved).0.len(), 0);
    let mut tracker = Tracker::new(0);
    scan_with(&mut tracker, &[incr(4, methods::SET_OBJECT, 1), 0xcbc0]);
    assert_eq!(tracker.class_of(4), 0xcbc0);
    assert_eq!(scan_with(&mut tracker, &moved).0[0].source, Source::Upload);
    // Subchannel 1 launches whatever class it is said to be.
    let mut tracker = Tracker::new(0xc86f);
    for class in [0, 0x902d, 0xc8b5] {
        scan_with(&mut tracker, &[incr(1, methods::SET_OBJECT, 1), class]);
        assert_eq!(scan_with(&mut tracker, &words).0[0].source, Source::Upload);
    }
}

/// Builds an inline QMD as CUDA writes it on Ampere.
fn inline(qmd: &[u32]) -> Vec<u32> {
    let count = 2 + u32::try_from(qmd.len()).unwrap();
    let mut words = vec![
        incr(1, methods::SET_INLINE_QMD_ADDRESS_A, count),
        1,
        0x0204_e100,
    ];
    words.extend(qmd);
    words
}

#[test]
fn inline_qmds_are_found_in_both_layouts() {
    for (version, byte) in [(Version::V02_04, 0x24), (Version::V03_00, 0x30)] {
        let mut qmd = vec![0; 64];
        qmd[18] = byte;
        v03_00::CTA_RASTER_WIDTH.set(&mut qmd, 77).unwrap();
        v02_04::CTA_THREAD_DIMENSION0.set(&mut qmd, 5).unwrap();
        let words = inline(&qmd);
        let (found, _, _) = scan_with(&mut Tracker::new(0xc56f), &words);
        assert_eq!(found.len(), 1);
        assert_eq!(
            (found[0].source, found[0].version),
            (Source::Inline, Some(version))
        );
        assert_eq!(found[0].qmd_va, (1 << 32 | 0x0204_e100) << 8);
        assert_eq!(found[0].at, 3);
        let launch = found[0].launch(&words).unwrap();
        assert_eq!((launch.grid[0], launch.block[0]), (77, 5));
        // A GPU that does not have this version does not believe it.
        let (found, _, counters) = scan_with(&mut Tracker::new(0xc96f), &words);
        assert_eq!(found[0].reason, Some(Reason::Version));
        assert_eq!(counters.kept(Reason::Version), 1);
    }
    let short = inline(&[0; 63]);
    assert_eq!(scan(&short).0[0].reason, Some(Reason::Fragmented));
}

#[test]
fn a_scan_that_finds_more_than_its_table_says_so() {
    let mut words = vec![];
    for index in 0..3u64 {
        words.extend(launch(0x2_0000_0000 + 0x800 * index));
        words.extend(pcas(0x2_0000_0000 + 0x800 * index, 0xa));
    }
    let mut found = [QmdCall::default(); 2];
    let mut counters = Counters::new();
    let scan = Tracker::new(0xc86f).scan(&words, &mut found, &mut counters);
    assert_eq!((scan.found, scan.missed, counters.sums.launches), (2, 1, 3));
    assert_eq!(counters.kept(Reason::TableFull), 1);
}

#[test]
fn calls_that_do_not_schedule_are_reported_as_touches() {
    let va = 0x2_0000_0100;
    for (action, schedules) in [
        (1, false),
        (2, true),
        (3, true),
        (6, false),
        (7, false),
        (8, false),
        (9, true),
        (0xb, true),
        (0xc, false),
    ] {
        let mut words = launch(va);
        words.extend(pcas(va, action));
        let (found, _, counters) = scan(&words);
        assert_eq!(found[0].action, Action::of_pcas2(action));
        assert_eq!(found[0].action.value(), action);
        assert_eq!(found[0].is_launch(), schedules);
        assert_eq!(counters.sums.launches, u64::from(schedules));
    }
}

#[test]
fn nothing_behind_the_end_of_a_segment_is_read() {
    let va = 0x2_0000_0100;
    let mut words = launch(va);
    words.extend(pcas(va, 0xa));
    // END_PB_SEGMENT, and a header that is refused: the words behind look like a launch, but are
    // not executed.
    for (word, refused) in [(0xe000_0000, false), (0x4004_0180, true)] {
        let mut all = vec![word];
        all.extend(&words);
        let (found, scan, _) = scan(&all);
        assert_eq!((found.len(), scan.refused.is_some()), (0, refused));
    }
}

/// Returns addresses and positions of the stored QMDs that a scan reports, in order.
fn stored(words: &[u32]) -> Vec<(u64, u32)> {
    let (found, _, _) = scan(words);
    let stored = found.iter().filter(|call| call.source == Source::Stored);
    stored.map(|call| (call.qmd_va, call.at)).collect()
}

/// The ring of uploads has room for 32.
#[test]
fn a_stored_qmd_is_reported_behind_any_number_of_uploads() {
    let (va, other) = (0x2_0000_0100, 0x5_0000_0000);
    for behind in [0, 31, 32, 33, 100] {
        let mut words = launch(va);
        for number in 0..behind {
            words.extend(upload(other + number * 4, 1));
        }
        assert_eq!(stored(&words), [(va, 9)], "{behind} uploads");
        // One that a PCAS named is a node or a launch.
        let mut named = launch(va);
        named.extend(pcas(va, 0xa));
        named.extend(&words[launch(va).len()..]);
        assert_eq!(stored(&named), [], "{behind} uploads");
        // The last one at an address counts, so it comes last.
        let again = words.len() as u32 + 9;
        words.extend(launch(va));
        assert_eq!(stored(&words).last(), Some(&(va, again)));
    }
    // One that was overwritten while it was in the ring, and data of a QMD's size.
    let mut words = launch(va);
    words.extend(upload(va, 96));
    words.extend(upload(other, 96));
    for number in 0..40 {
        words.extend(upload(other + 0x1000 + number * 4, 1));
    }
    assert_eq!(stored(&words), []);
}

/// A tenant has a segment with more calls than the table has room for. They take as long as others:
/// a look at the whole table for each would be tens of times as much.
#[test]
fn calls_without_room_cost_no_more_than_others() {
    let words = pcas(0x2_0000_0100, 1).repeat(1 << 14);
    let time = |room: usize| {
        let mut found = vec![QmdCall::default(); room];
        let once = |_| {
            let (mut tracker, mut counters) = (Tracker::new(0xc86f), Counters::new());
            let began = Instant::now();
            let scan = tracker.scan(&words, &mut found, &mut counters);
            assert_eq!(scan.missed, (1 << 14) - room);
            began.elapsed()
        };
        (0..5).map(once).min()
    };
    let (few, many) = (time(1).unwrap(), time(4096).unwrap());
    assert!(many < 10 * few, "{few:?}, {many:?}");
}

/// Of the first calls without room it is known which others they share a descriptor with.
#[test]
fn calls_without_room_are_told_from_others() {
    let (one, two) = (0x2_0000_0100, 0x2_0000_0200);
    let crowded = |missed: usize| {
        let mut words = [pcas(one, 1), pcas(two, 1)].concat();
        words.extend(pcas(one, 1).repeat(missed));
        let mut found = [QmdCall::default(); 2];
        Tracker::new(0xc86f).scan(&words, &mut found, &mut Counters::new());
        found.map(|call| call.crowded)
    };
    assert_eq!(crowded(1), [true, false]);
    assert_eq!(crowded(15), [true, false]);
    assert_eq!(crowded(16), [true, true]);
}
