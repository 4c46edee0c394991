// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Fuzzes the submission path: segments, rings, rewriting.

use gct_core::submit::gpfifo::{Entry, Fetch};
use gct_core::submit::graph::{self, Index, Memory, Slot, Step};
use gct_core::submit::join::DoneWords;
use gct_core::submit::launch::Launch;
use gct_core::submit::limits::{ATOMS_MAX, SLOT_WORDS};
use gct_core::submit::mask::DisabledTpcs;
use gct_core::submit::methods::Action;
use gct_core::submit::qmd::Version;
use gct_core::submit::rewrite::{self, detached, Cut, Order, Output, Placement, Room};
use gct_core::submit::stats::Counters;
use gct_core::submit::tracker::{QmdCall, Source, Tracker};
use gct_core::submit::transfer::{Progress, PIECE_WORDS_MAX};

/// Maximum number of calls of one segment that are checked.
const TABLE: usize = 64;
/// Address of the atoms' QMDs.
const SLOT_VA: u64 = 0x10_0000_0000;

/// Returns little-endian words. Remaining bytes are dropped.
pub fn words_of(data: &[u8]) -> Vec<u32> {
    data.chunks_exact(4)
        .map(|bytes| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
        .collect()
}

/// Splits the input into the first word, which selects the variant, and a segment.
fn split_off(data: &[u8]) -> (u32, Vec<u32>) {
    let mut words = words_of(data);
    if words.is_empty() {
        return (0, words);
    }
    (words.remove(0), words)
}

/// Returns one of the known channel classes, or an unknown one.
fn class_of(choice: u32) -> u16 {
    [0xc86f, 0xc56f, 0xc96f, 0][choice as usize % 4]
}

fn check_found(words: &[u32], found: &[QmdCall]) {
    for found in found {
        assert!(found.call_at <= found.call_end);
        assert!(found.call_end as usize <= words.len());
        assert_eq!(found.version.is_some(), found.qmd(words).is_some());
        if matches!(found.source, Source::Upload | Source::Stored) {
            assert!(found.version.is_some() && found.reason.is_none());
        }
        if let Some(launch) = found.launch(words) {
            // The products must not overflow, whatever the fields.
            let _ = (launch.blocks(), launch.threads());
        }
    }
}

/// Lists the launches of a segment's graphs. What is listed starts nothing else, and no call is
/// left.
fn check_list(words: &[u32], found: &[QmdCall], class: u16) {
    let (mut nodes, mut qmds) = (vec![Slot::EMPTY; 32], vec![[0; 96]; 32]);
    let (mut index, mut counters) = (Index::new(0), Counters::new());
    let mut memory = Memory::new(&mut nodes, &mut index).keeping(Some(&mut qmds));
    memory.learn(words, found, true, &mut counters);
    memory.keep_launches(words, found, &mut counters);
    let mut steps = [Step::default(); TABLE];
    let mut visits = 0;
    let listed = memory.unroll(found, &mut steps, 1, &mut visits);
    assert!(visits <= TABLE + 1);
    let Ok(count) = listed else {
        return;
    };
    for step in &steps[..count] {
        let (qmd, _) = memory.step(step).expect("it is listed");
        let launch = Launch::read(&qmd, Version::V04_00).expect("96 words");
        let effects = launch.effects;
        assert_eq!(effects.dependents, [None; 2]);
        assert!(effects.arrive_latch.is_none() && !effects.self_copy && !effects.pre_exit);
        assert_eq!(launch.waits, Default::default());
    }
    let (mut words, mut found) = (words.to_vec(), found.to_vec());
    if detached::take_out(&mut words, &mut found).is_ok() {
        let mut found = [QmdCall::default(); TABLE];
        let scan = Tracker::new(class).scan(&words, &mut found, &mut counters);
        let mut calls = found[..scan.found].iter();
        let starts =
            |call: &QmdCall| call.is_launch() || call.action == Action::DecrementDependence;
        assert!(!calls.any(starts));
    }
}

/// Divides the transfers of a segment of `words` words: they follow each other, each piece moves on
/// and fits, and all bytes are in one.
fn check_transfers(words: usize, tracker: &Tracker, most: u64) {
    /// Transfers of more pieces are not followed to their end.
    const PIECES_MAX: usize = 64;
    let mut at = 0;
    for transfer in tracker.transfers().iter().flatten() {
        assert!(at <= transfer.at && transfer.at < transfer.end);
        at = transfer.end;
        let (mut next, mut bytes) = (Some(Progress::default()), 0u64);
        for _ in 0..PIECES_MAX {
            let Some(progress) = next else { break };
            let piece = transfer.piece(progress, most);
            assert!(piece.bytes() > 0 && piece.bytes() <= most.max(1));
            bytes += piece.bytes();
            let mut room = [0; PIECE_WORDS_MAX];
            assert!(transfer.write(&piece, (SLOT_VA, 1), &mut room).is_some());
            assert_ne!(piece.next, Some(progress));
            next = piece.next;
        }
        assert!(bytes <= transfer.bytes());
        assert!(next.is_some() || bytes == transfer.bytes());
    }
    assert!(at as usize <= words);
}

/// Scans two segments of one channel, cut anywhere: no index lies outside, and nothing panics.
pub fn scan(data: &[u8]) {
    let (choice, words) = split_off(data);
    let mut tracker = Tracker::new(class_of(choice));
    let mut counters = Counters::new();
    let cut = (choice >> 2) as usize % (words.len() + 1);
    for part in [&words[..cut], &words[cut..]] {
        let piece = tracker.piece(part, TABLE).words as usize;
        assert!(part.is_empty() || (1..=part.len()).contains(&piece));
        let mut found = [QmdCall::default(); TABLE];
        let scan = tracker.scan(part, &mut found, &mut counters);
        assert!(scan.found <= TABLE);
        check_found(part, &found[..scan.found]);
        check_transfers(part.len(), &tracker, u64::from(choice) << (choice & 15));
    }
    assert_eq!(counters.segments, 2);
    assert_eq!(counters.words as usize, words.len());
}

/// Masks and splits a segment: the room is exact, the tenant's words stay in order, and graphs are
/// followed.
pub fn rewrite(data: &[u8]) {
    let (choice, words) = split_off(data);
    let mut tracker = Tracker::new(class_of(choice));
    let mut counters = Counters::new();
    let mut found = [QmdCall::default(); TABLE];
    let scan = tracker.scan(&words, &mut found, &mut counters);
    let found = &found[..scan.found];

    let tpcs = 1 + (choice >> 2) as u16 % 256;
    let kept = (choice >> 10) as u16 % tpcs;
    let mask = DisabledTpcs::keep_only(tpcs, [kept]).expect("a TPC that exists");
    let order = Order {
        mask: (choice >> 18 & 1 != 0).then_some(&mask),
        atoms: choice >> 19 & 0x1ff,
        tried: choice >> 30 & 1 != 0,
    };
    let orders = vec![order; found.len()];
    let upload = choice >> 28 & 1 != 0;

    let mut none = [];
    let placement = if upload {
        Placement::Upload
    } else {
        Placement::Written(&mut none)
    };
    let room = rewrite::room(&words, found, &orders, &placement);
    let bound = Room::bound(words.len() as u32, found.len() as u32, order.atoms);
    assert!(room.words <= bound.words && room.slots <= bound.slots && room.cuts <= bound.cuts);
    assert!(room.slots <= u64::from(ATOMS_MAX + 1) * found.len() as u64);
    let slots = room.slots as usize;
    let mut out = vec![0; room.words as usize];
    let mut view = vec![0; slots * SLOT_WORDS];
    let mut cuts = vec![Cut::NONE; room.cuts as usize];
    let placement = if upload {
        Placement::Upload
    } else {
        Placement::Written(&mut view)
    };
    let output = Output {
        words: &mut out,
        slot_va: SLOT_VA,
        slots: slots as u32,
        placement,
        cuts: &mut cuts,
        done: (choice >> 29 & 1 != 0).then(|| DoneWords::in_slots(SLOT_VA, choice)),
    };
    let emitted = rewrite::emit(&words, found, &orders, output, &mut counters)
        .expect("the room was announced");
    assert_eq!(u64::from(emitted.words), room.words);
    assert_eq!(u64::from(emitted.slots), room.slots);
    assert!(cuts.windows(2).all(|pair| pair[0].at < pair[1].at));

    // Outside the recognised QMDs the tenant's words are all there, in order.
    let mut in_qmd = vec![false; words.len()];
    for found in found.iter().filter(|found| found.version.is_some()) {
        let length = found.version.map_or(0, |version| version.words());
        in_qmd[found.at as usize..][..length].fill(true);
    }
    let mut left = out.iter();
    // The call of a launch without a join is not.
    let kept = |(_, inside): &(&u32, &bool)| !**inside && !order.tried;
    for (word, _) in words.iter().zip(&in_qmd).filter(kept) {
        assert!(left.any(|out| out == word), "a word of the tenant is gone");
    }

    let mut in_place = words.clone();
    rewrite::in_place(&mut in_place, found, &orders, &mut counters);
    graph::arm(&mut in_place, found);
    for ((before, after), inside) in words.iter().zip(&in_place).zip(&in_qmd) {
        assert!(before == after || *inside);
    }

    let mut nodes = vec![Slot::EMPTY; 32];
    let mut index = Index::new(0);
    let mut memory = Memory::new(&mut nodes, &mut index);
    memory.learn(&words, found, true, &mut counters);
    memory.count_replays(found, &mut counters);
    for found in found {
        if let Some(run) = memory.replay(found.qmd_va) {
            assert!(run.nodes >= 1 && run.nodes <= 32);
            assert_eq!(memory.reached().count(), run.nodes as usize);
            for node in memory.reached() {
                let _ = graph::mask_write(node, Some(&mask));
            }
        }
    }
    if scan.missed == 0 && scan.refused.is_none() {
        check_list(&words, found, class_of(choice));
    }
}

/// Decodes GPFIFO entries. Encoding an entry and decoding it again gives the same entry.
pub fn ring(data: &[u8]) {
    let mut fetch = Fetch::new();
    for bytes in data.chunks_exact(8) {
        let raw = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        let entry = fetch.decode(raw);
        if let Entry::Segment(segment) = entry {
            assert!(segment.words > 0 && segment.words < 1 << 21);
            assert_eq!(segment.va % 4, 0);
            assert_eq!(segment.va >> 40, u64::from(fetch.base()));
        }
        let again = entry.encode();
        let mut copy = fetch;
        assert_eq!(copy.decode(again), entry);
    }
}
