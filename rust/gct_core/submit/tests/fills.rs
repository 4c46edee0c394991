// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Checks what becomes of the macros by which CUDA fills.

use super::captures::segments;
use crate::submit::method::{immediate, incr, non_incr};
use crate::submit::rewrite::fills::{expand, ADDED_WORDS};
use crate::submit::stats::Counters;
use crate::submit::tracker::{QmdCall, Tracker};
use proptest::prelude::*;
use std::vec;
use std::vec::Vec;

/// Returns a fill as CUDA has it, on a subchannel.
fn fill(on: u8, bytes: u32, count: u32, word: u32) -> Vec<u32> {
    let upload = [incr(on, 0x180, 4), bytes, 1, 0x7f3c, 0xd9e0_0000];
    let call = [incr(on, 0x1b0, 1), 0x41, incr(on, 0x3800, 2), count, word];
    [&upload[..], &call].concat()
}

/// Returns the words of such a fill that no macro makes.
fn filled(on: u8, bytes: u32, count: u32, word: u32) -> Vec<u32> {
    let upload = [incr(on, 0x180, 4), bytes, 1, 0x7f3c, 0xd9e0_0000];
    let head = [incr(on, 0x1b0, 1), 0x41, non_incr(on, 0x1b4, count)];
    let end = vec![0; usize::from(count == 1)];
    [&upload[..], &head, &vec![word; count as usize], &end].concat()
}

/// Expands a segment where there is room.
fn expanded(words: &[u32]) -> Vec<u32> {
    let mut room = [words, &vec![0xdead_beef; ADDED_WORDS + 64]].concat();
    let length = expand(&mut room, words.len());
    room.truncate(length);
    room
}

fn macros(words: &[u32]) -> u64 {
    let mut counters = Counters::new();
    let mut found = vec![QmdCall::NONE; 64];
    Tracker::new(0xc86f).scan(words, &mut found, &mut counters);
    counters.unseen()
}

#[test]
fn a_fill_becomes_its_words() {
    let rest = [incr(1, 0x1b00, 4), 4, 0x60ff_e000, 0x44, 0];
    for (bytes, count) in [(1, 1), (4, 1), (5, 2), (12, 3), (1000, 250), (4096, 1024)] {
        let segment = [&fill(1, bytes, count, 0x0707_0707)[..], &rest].concat();
        let expected = [&filled(1, bytes, count, 0x0707_0707)[..], &rest].concat();
        assert_eq!(expanded(&segment), expected, "{bytes}");
        assert_eq!((macros(&segment), macros(&expected)), (1, 0), "{bytes}");
    }
    let [two, both] = [fill, filled].map(|one| [one(1, 8, 2, 5), one(1, 400, 100, 6)].concat());
    assert_eq!(expanded(&two), both);
}

#[test]
fn fills_that_were_captured_are_expanded() {
    let mut seen = 0;
    for name in ["graph_clusters", "graph_clusters_first"] {
        for segment in segments(name) {
            let called = macros(&segment.words);
            seen += called;
            let words = expanded(&segment.words);
            assert!(called == 0 || macros(&words) < called, "{name}");
        }
    }
    assert!(seen > 0);
}

#[test]
fn what_is_no_fill_of_cudas_stays() {
    let whole = fill(1, 400, 100, 7);
    let changed = |at: usize, word: u32| {
        let mut words = whole.clone();
        words[at] = word;
        words
    };
    let without = |from: usize, to: usize| [&whole[..from], &whole[to..]].concat();
    let others = [
        ("another macro", changed(7, incr(1, 0x3808, 2))),
        ("one word", changed(7, incr(1, 0x3800, 1))),
        ("a burst of one method", changed(7, non_incr(1, 0x3800, 2))),
        ("fewer words", changed(8, 99)),
        ("no words", changed(8, 0)),
        ("more words", changed(8, 101)),
        ("two lines", changed(2, 2)),
        ("no upload", without(5, 7)),
        ("an upload of nobody knows what", without(0, 5)),
        ("more than CUDA fills", fill(1, 8192, 2048, 7)),
        ("half a call", whole[..9].to_vec()),
        ("another subchannel's", {
            let mut words = whole.clone();
            words[7] = incr(2, 0x3800, 2);
            words
        }),
        ("behind data", {
            let data = [non_incr(1, 0x1b4, 1), 1];
            [&whole[..7], &data, &whole[7..]].concat()
        }),
        ("an immediate", {
            [&whole[..7], &[immediate(1, 0x3800, 100)][..]].concat()
        }),
        ("data", [&[non_incr(1, 0x1b4, 10)][..], &whole].concat()),
    ];
    for (name, words) in others {
        assert_eq!(expanded(&words), words, "{name}");
    }
    // Without room it stays, too, and nothing behind it is touched.
    let mut words = [&whole[..], &[9; 97]].concat();
    let before = words.clone();
    assert_eq!((expand(&mut words, 10), words), (10, before));
    let long = fill(1, 4096, 1024, 7).repeat(3);
    assert_eq!(macros(&expanded(&long)), 1);
}

proptest! {
    /// Any words: no panic, a length within bounds, and no macro more than before.
    #[test]
    fn any_words_end(mut words in prop::collection::vec(any::<u32>(), 0..80), cut in 0usize..80,
                     at in 0usize..80) {
        let cut = cut.min(words.len());
        let at = at.min(words.len());
        words.splice(at..at, fill(1, 40, 10, 3));
        let length = expand(&mut words, cut);
        prop_assert!(length <= words.len());
    }
}
