// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Checks that each fast path does what the plain way does.

use std::vec;
use std::vec::Vec;

use proptest::prelude::*;
use proptest::sample::{select, Index};

use super::captures::{segments, CAPTURES};
use super::random::{config, random, words_of};
use crate::submit::method::{immediate, incr, non_incr};
use crate::submit::methods;
use crate::submit::reason::Reason;
use crate::submit::stats::Counters;
use crate::submit::tracker::{QmdCall, Scan, Tracker};

/// A change of a segment that leaves most of it unchanged.
#[derive(Clone, Debug)]
enum Change {
    /// Replaces a word.
    Set(Index, u32),
    /// Flips one bit.
    Flip(Index, u32),
    /// Removes a word.
    Remove(Index),
    /// Repeats words at another place: an upload or a call twice, or half of one.
    Again(Index, Index, usize),
    /// Ends the words here.
    End(Index),
}

fn change() -> impl Strategy<Value = Change> {
    let special = vec![
        0,
        1,
        2,
        3,
        256,
        384,
        u32::MAX,
        0x41,
        incr(1, methods::SEND_PCAS_A, 1),
        incr(2, methods::SEND_SIGNALING_PCAS2_B, 1),
        incr(1, methods::OFFSET_OUT_UPPER, 2),
        incr(1, methods::LAUNCH_DMA, 1),
        incr(1, methods::SET_OBJECT, 1),
        incr(1, methods::SET_QMD_VIRTUALIZATION_CONTROL, 1),
        incr(1, methods::SET_REPORT_SEMAPHORE_A, 4),
        non_incr(1, methods::LOAD_INLINE_DATA, 96),
        immediate(1, methods::SEND_SIGNALING_PCAS2_B, 0xa),
    ];
    prop_oneof![
        2 => (any::<Index>(), select(special)).prop_map(|(at, word)| Change::Set(at, word)),
        1 => (any::<Index>(), any::<u32>()).prop_map(|(at, word)| Change::Set(at, word)),
        4 => (any::<Index>(), 0u32..32).prop_map(|(at, bit)| Change::Flip(at, bit)),
        1 => any::<Index>().prop_map(Change::Remove),
        4 => (any::<Index>(), any::<Index>(), 1usize..130)
            .prop_map(|(from, to, count)| Change::Again(from, to, count)),
        1 => any::<Index>().prop_map(Change::End),
    ]
}

/// Returns the positions of headers and of a few data words: where a change matters.
fn headers(words: &[u32]) -> Vec<usize> {
    let mut at = 0;
    let mut headers = vec![];
    while let Some(header) = words.get(at) {
        let count = (header >> 16 & 0x1fff) as usize;
        headers.extend(at..(at + 1 + count.min(5)).min(words.len()));
        at += 1 + count;
    }
    headers
}

fn apply(words: &mut Vec<u32>, change: &Change) {
    let places = headers(words);
    if places.is_empty() {
        return;
    }
    match change {
        Change::Set(at, word) => words[places[at.index(places.len())]] = *word,
        Change::Flip(at, bit) => words[places[at.index(places.len())]] ^= 1 << bit,
        Change::Remove(at) => {
            words.remove(places[at.index(places.len())]);
        }
        Change::Again(from, to, count) => {
            let from = places[from.index(places.len())];
            let again = words[from..(from + count).min(words.len())].to_vec();
            let to = places[to.index(places.len())];
            words.splice(to..to, again);
        }
        Change::End(at) => words.truncate(places[at.index(places.len())]),
    }
}

/// Generates the segments of a capture, or of random launches.
fn tenant() -> impl Strategy<Value = Vec<Vec<u32>>> {
    let captured = select(CAPTURES)
        .prop_map(|(name, _)| segments(name).into_iter().map(|one| one.words).collect());
    let made = proptest::collection::vec(random(), 1..4).prop_map(|all| vec![words_of(&all)]);
    prop_oneof![2 => captured, 1 => made]
}

/// Scans segments, and returns the results with the state they leave.
fn scans(
    tracker: &mut Tracker,
    segments: &[Vec<u32>],
    room: usize,
) -> Vec<(Vec<QmdCall>, Scan, Counters)> {
    // Calls that use every register that a segment can leave behind.
    let last = vec![
        immediate(1, methods::LAUNCH_DMA, 0x41),
        immediate(1, methods::SEND_SIGNALING_PCAS2_B, 0xa),
        immediate(2, methods::SEND_SIGNALING_PCAS2_B, 2),
    ];
    let scanned = segments.iter().chain([&last]).map(|words| {
        let mut found = vec![QmdCall::default(); room];
        let mut counters = Counters::new();
        let scan = tracker.scan(words, &mut found, &mut counters);
        found.truncate(scan.found);
        (found, scan, counters)
    });
    scanned.collect()
}

/// Checks words for another class that would go on at SET_OBJECT, behind the last method.
#[test]
fn a_burst_for_another_class_does_not_begin_anew() {
    let other = vec![incr(3, methods::SET_OBJECT, 1), 0xcbc0];
    let count = 3;
    let words = [&[incr(3, 0x3ffc, count)][..], &vec![0xcbc0; count as usize]].concat();
    for plain in [false, true] {
        let mut tracker = Tracker::new(0xc86f);
        tracker.plain = plain;
        let scanned = scans(&mut tracker, &[other.clone(), words.clone()], 4);
        let refused = scanned[1]
            .1
            .refused
            .map(|refused| (refused.at, refused.reason));
        assert_eq!(refused, Some((0, Reason::BadHeader)), "{plain}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..config() })]

    #[test]
    fn a_changed_segment_is_read_as_its_bursts(
        tenant in tenant(),
        changes in proptest::collection::vec(change(), 0..6),
        before in proptest::option::of((0u32..4, any::<u32>())),
        class in select(vec![0xc86fu16, 0xc56f, 0xc96f, 0]),
        room in select(vec![64usize, 2, 0]),
    ) {
        let mut segments = tenant;
        // Addresses may be relative, and subchannels of another class.
        match before {
            Some((0, bits)) => segments.insert(0, vec![incr(1, methods::SET_QMD_VIRTUALIZATION_CONTROL, 1), bits]),
            Some((1, object)) => segments.insert(0, vec![incr(1, methods::SET_OBJECT, 1), object & 0xffff]),
            Some((2, _)) => segments.insert(0, vec![incr(1, methods::SET_OBJECT, 1), 0xcbc0]),
            Some(_) => segments.insert(0, vec![incr(2, methods::SET_OBJECT, 1), 0xa140]),
            None => {}
        }
        for (index, change) in changes.iter().enumerate() {
            let at = index % segments.len();
            apply(&mut segments[at], change);
        }
        let mut fast = Tracker::new(class);
        let mut plain = Tracker::new(class);
        plain.plain = true;
        prop_assert_eq!(scans(&mut fast, &segments, room), scans(&mut plain, &segments, room));
        prop_assert_eq!(fast.last_release(), plain.last_release());
        prop_assert_eq!(fast.first_acquire(), plain.first_acquire());
        prop_assert_eq!(fast.family(), plain.family());
    }
}
