// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Checks that equivalent encodings of a launch scan alike, and that any words can be scanned.

use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::captures::{segments, CAPTURES};
use super::random::{config, qmd_va, random, words_of};
use crate::submit::method::{immediate, incr, Header, Opcode, Walk};
use crate::submit::methods;
use crate::submit::reason::Reason;
use crate::submit::stats::Counters;
use crate::submit::tracker::{QmdCall, Scan, Source, Tracker};

/// Scans with `tracker`, where a test needs its state.
pub(super) fn scan_with(tracker: &mut Tracker, words: &[u32]) -> (Vec<QmdCall>, Scan, Counters) {
    let mut found = vec![QmdCall::default(); 256];
    let mut counters = Counters::new();
    let scan = tracker.scan(words, &mut found, &mut counters);
    found.truncate(scan.found);
    (found, scan, counters)
}

pub(super) fn scan(words: &[u32]) -> (Vec<QmdCall>, Scan, Counters) {
    scan_with(&mut Tracker::new(0xc86f), words)
}

/// Generates words that are methods much more often than random ones.
fn methods() -> impl Strategy<Value = Vec<u32>> {
    let known = proptest::sample::select(methods::METHODS).prop_map(|method| method.0);
    let burst = (0u32..8, 0u8..3, known, 0u32..12, any::<u32>()).prop_map(
        |(op, subchannel, method, count, seed)| {
            let header = incr(subchannel, method, count) & 0x1fff_ffff | op << 29;
            let header = if seed % 37 == 0 { seed } else { header };
            let data = (0..count).map(move |index| match (seed >> 3) % 4 {
                0 => seed.wrapping_mul(index + 1),
                1 => 0xa,
                2 => 0x0204_e000,
                _ => index,
            });
            std::iter::once(header).chain(data).collect::<Vec<u32>>()
        },
    );
    proptest::collection::vec(burst, 0..30).prop_map(|bursts| bursts.concat())
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_scan_of_anything_ends_and_stays_inside(words in proptest::collection::vec(any::<u32>(), 0..600)) {
        let (found, _, _) = scan(&words);
        for found in found {
            prop_assert!(found.call_end as usize <= words.len() && found.call_at <= found.call_end);
            prop_assert!(found.version.is_none() || found.qmd(&words).is_some());
        }
    }

    #[test]
    fn the_fast_path_reads_what_single_bursts_do(
        launches in proptest::collection::vec(random(), 0..4),
        noise in methods(),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut words = words_of(&launches);
        let at = cut.index(words.len() + 1);
        words.splice(at..at, noise);
        let mut fast = Tracker::new(0xc86f);
        let mut plain = Tracker::new(0xc86f);
        plain.plain = true;
        prop_assert_eq!(scan_with(&mut fast, &words), scan_with(&mut plain, &words));
        // Both leave the same state.
        let next = [immediate(1, methods::LAUNCH_DMA, 0x41), immediate(1, methods::SEND_SIGNALING_PCAS2_B, 0xa)];
        prop_assert_eq!(scan_with(&mut fast, &next), scan_with(&mut plain, &next));
        prop_assert_eq!(fast.last_release(), plain.last_release());
    }

    #[test]
    fn every_form_of_a_launch_is_found(launches in proptest::collection::vec(random(), 1..5)) {
        let words = words_of(&launches);
        let (found, scan, _) = scan(&words);
        prop_assert_eq!((found.len(), scan.refused), (launches.len(), None));
        for (index, (found, launch)) in found.iter().zip(&launches).enumerate() {
            prop_assert_eq!(found.source, Source::Upload);
            prop_assert_eq!(found.qmd_va, qmd_va(index));
            prop_assert_eq!(found.qmd(&words).unwrap(), &launch.qmd(index)[..]);
        }
    }

    #[test]
    fn a_walk_visits_each_word_once(words in methods(), cut in any::<prop::sample::Index>()) {
        // Cutting the words into two segments changes only where bursts are divided.
        let at = cut.index(words.len() + 1);
        let addressed = |walk: &mut Walk<'_>, part: &[u32]| -> (Vec<(u16, u32)>, bool) {
            let mut seen = vec![];
            for burst in walk.by_ref() {
                let Ok(burst) = burst else {
                    return (seen, true);
                };
                for index in 0..burst.count {
                    seen.push((burst.method_of(index), part[(burst.data + index) as usize]));
                }
                if burst.opcode == Opcode::Immediate {
                    seen.push((burst.method, u32::from(burst.immediate)));
                }
            }
            (seen, false)
        };
        // END_PB_SEGMENT ends only its own segment, so the words have none.
        let words: Vec<u32> = words.into_iter().map(|word| if word >> 29 == 7 { word ^ 2 << 29 } else { word }).collect();
        let (whole, _) = addressed(&mut Walk::new(&words), &words);
        let mut first = Walk::new(&words[..at]);
        let (mut parts, refused) = addressed(&mut first, &words[..at]);
        if !refused {
            let mut second = Walk::resume(&words[at..], first.partial());
            parts.extend(addressed(&mut second, &words[at..]).0);
        }
        prop_assert_eq!(whole, parts);
    }
}

#[test]
fn the_fast_path_reads_captures_as_single_bursts_do() {
    for (name, _) in CAPTURES {
        for segment in segments(name) {
            let mut fast = Tracker::new(segment.class);
            let mut plain = Tracker::new(segment.class);
            plain.plain = true;
            let same =
                scan_with(&mut fast, &segment.words) == scan_with(&mut plain, &segment.words);
            assert!(same, "{name}");
        }
    }
}

#[test]
fn old_and_reserved_headers_are_refused() {
    for (word, reason) in [
        (0x0004_0180, Reason::OldForm),
        (0x0001_0010, Reason::OldForm),
        (0x4004_0180, Reason::OldForm),
        (0xc000_0000, Reason::BadHeader),
        // They would go on at the first method.
        (incr(1, 0x3ffc, 2), Reason::BadHeader),
        (
            incr(1, methods::SET_INLINE_QMD_ADDRESS_A, 4096),
            Reason::BadHeader,
        ),
        (5 << 29 | 2 << 16 | 1 << 13 | 0xfff, Reason::BadHeader),
    ] {
        assert_eq!(Header::decode(word), Err(reason));
        let (_, scan, counters) = scan(&[0, word, 0]);
        assert_eq!(scan.refused.unwrap().at, 1);
        assert_eq!(counters.kept(reason), 1);
    }
    assert_eq!(Header::decode(0), Ok(Header::Nop));
    assert_eq!(Header::decode(0xe000_0000), Ok(Header::End));
}

#[test]
fn words_of_a_refused_header_go_on_in_the_next_segment() {
    let launch = segments("one_launch").remove(0);
    // The words of the launch go to methods that do nothing here.
    let header = incr(1, 0x1c00, 4096);
    let mut tracker = Tracker::new(launch.class);
    let (_, scan, _) = scan_with(&mut tracker, &[header, 0, 0]);
    assert!(scan.refused.is_some());
    assert!(!tracker.is_between_bursts());
    // They are data: nobody may insert words of a launch between them.
    assert!(scan_with(&mut tracker, &launch.words).0.is_empty());
    assert!(!scan_with(&mut Tracker::new(launch.class), &launch.words)
        .0
        .is_empty());
    scan_with(&mut tracker, &[0; 4096]);
    assert!(tracker.is_between_bursts());
}
