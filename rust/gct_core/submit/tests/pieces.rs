// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests where long segments are cut into pieces.

use super::captures::segments;
use crate::submit::method::{incr, non_incr};
use crate::submit::stats::Counters;
use crate::submit::tracker::{QmdCall, Source, Tracker};
use std::vec;
use std::vec::Vec;

/// Calls for which a channel has room here.
const CALLS: usize = 16;

/// What is known of a call, wherever it is.
type Found = (u64, Source, bool, bool);

fn found(calls: &[QmdCall]) -> impl Iterator<Item = Found> + '_ {
    calls
        .iter()
        .map(|call| (call.qmd_va, call.source, call.alone, call.is_node()))
}

/// Scans a segment piece by piece: `most` words are read for each. Returns the pieces and the
/// calls in them.
fn pieces(words: &[u32], most: usize) -> (Vec<Vec<u32>>, Vec<Found>) {
    let mut tracker = Tracker::new(0xc86f);
    let (mut pieces, mut all, mut rest) = (vec![], vec![], words);
    while !rest.is_empty() {
        let piece = match rest.len() > 2 * most {
            true => tracker.piece(&rest[..most], CALLS),
            false => tracker.piece(rest, usize::MAX),
        };
        // What is left is read at once.
        let count = match rest.len() > 2 * most || piece.ends {
            true => piece.words as usize,
            false => rest.len(),
        };
        assert!(count > 0);
        let (first, behind) = rest.split_at(count);
        let mut calls = vec![QmdCall::NONE; words.len()];
        let scan = tracker.scan(first, &mut calls, &mut Counters::new());
        assert_eq!((scan.refused, scan.missed), (None, 0));
        assert!(scan.found <= CALLS || rest.len() <= 2 * most);
        all.extend(found(&calls[..scan.found]));
        pieces.push(first.to_vec());
        rest = if piece.ends { &[] } else { behind };
    }
    (pieces, all)
}

fn whole(words: &[u32]) -> Vec<Found> {
    let mut calls = vec![QmdCall::NONE; words.len()];
    let mut tracker = Tracker::new(0xc86f);
    let scan = tracker.scan(words, &mut calls, &mut Counters::new());
    found(&calls[..scan.found]).collect()
}

/// The scan finds a descriptor that is stored for later once it is among the older ones.
fn sorted(mut calls: Vec<Found>) -> Vec<Found> {
    calls.sort_by_key(|(va, ..)| *va);
    calls
}

/// The launches and graphs of CUDA are found in pieces as in one segment, wherever these end.
#[test]
fn calls_are_found_in_pieces() {
    let names = [
        "one_launch",
        "graph4_upload",
        "pdl_pair",
        "graph_fork_upload",
    ];
    let words: Vec<u32> = names
        .iter()
        .flat_map(|name| segments(name))
        .flat_map(|segment| segment.words)
        .collect();
    let all = sorted(whole(&words));
    for most in (900..1400).step_by(7) {
        let (pieces, calls) = pieces(&words, most);
        assert!(pieces.len() > 2, "{most}");
        assert_eq!(pieces.concat(), words, "{most}");
        assert_eq!(sorted(calls), all, "{most}");
    }
}

/// The words behind the end of a segment are not executed, so they are in no piece.
#[test]
fn nothing_is_behind_the_end() {
    const END: u32 = 7 << 29;
    let launch = segments("one_launch").remove(0).words;
    for zeros in [0, 3] {
        let ended = [&launch[..], &vec![0; zeros], &[END]].concat();
        let words = [&ended[..], &launch.repeat(9)].concat();
        let (pieces, calls) = pieces(&words, ended.len());
        assert_eq!(pieces, [ended]);
        assert_eq!(calls, whole(&launch));
    }
}

/// Without a call a piece ends before a header, also where the segment continues a burst. A burst
/// that is longer is cut.
#[test]
fn bursts_lie_in_one_piece() {
    let tracker = Tracker::new(0xc86f);
    let cut = |words: &[u32], most| tracker.piece(&words[..most], CALLS).words;
    let burst = [&[non_incr(1, 0x1b4, 9)][..], &[0; 9]].concat();
    let bursts = burst.repeat(4);
    assert_eq!(
        [10, 19, 20, 29].map(|most| cut(&bursts, most)),
        [10, 10, 20, 20]
    );
    assert_eq!(cut(&bursts, 7), 7);
    let mut tracker = Tracker::new(0xc86f);
    tracker.scan(&burst[..4], &mut [], &mut Counters::new());
    let rest = [&burst[4..], &burst[..]].concat();
    assert_eq!(tracker.piece(&rest[..12], CALLS).words, 6);
}

/// The address of a call stays with it, and what follows a call without an upload does, too.
#[test]
fn calls_lie_in_one_piece() {
    let tracker = Tracker::new(0xc86f);
    let call = [incr(1, 0x2b4, 1), 7, incr(1, 0x2c0, 1), 0xa];
    let upload = [incr(1, 0x180, 2), 4, 1];
    let words = [&call[..], &call, &upload, &call, &upload].concat();
    let cut = |most: usize| tracker.piece(&words[..most], CALLS).words;
    // In the second call, behind it, and behind what follows.
    assert_eq!([6, 8, 11, 13, 15, 18].map(cut), [4, 8, 8, 8, 8, 15]);
    let few = tracker.piece(&words, 2);
    assert_eq!(few.words, 4, "room for one call and the next");
}
