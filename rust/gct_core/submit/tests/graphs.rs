// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Checks that graphs are learned at their upload, recognised at their replay, and masked in
//! between.

use std::vec;
use std::vec::Vec;

use super::captures::{scan, segments, Segment, CAPTURES};
use crate::submit::graph::{self, End, Index, Masks, Memory, Slot, Width};
use crate::submit::mask::{self, DisabledTpcs};
use crate::submit::occupancy::Needs;
use crate::submit::precedence::Precedence;
use crate::submit::qmd::{v04_00, Version};
use crate::submit::reason::Reason;
use crate::submit::rewrite::{self, Order};
use crate::submit::stats::Counters;
use crate::submit::tracker::{QmdCall, Tracker};

const HEAD: u64 = 0x2_04c0_0000;

fn upload(slots: &mut Vec<Slot>, index: &mut Index) -> (Vec<u32>, Counters) {
    let segment = &segments("graph4_upload")[0];
    let (found, mut counters) = scan(segment);
    let mut words = segment.words.clone();
    Memory::new(slots, index).learn(&words, &found, true, &mut counters);
    graph::arm(&mut words, &found);
    (words, counters)
}

#[test]
fn a_replay_runs_the_nodes_that_were_uploaded() {
    let (mut slots, mut index) = (vec![Slot::EMPTY; 64], Index::new(0));
    let (_, counters) = upload(&mut slots, &mut index);
    assert_eq!(counters.kept_total(), 0);
    let mut memory = Memory::new(&mut slots, &mut index);
    let run = memory.replay(HEAD).unwrap();
    assert_eq!((run.head, run.nodes, run.unknown), (HEAD, 5, 0));
    let mut nodes: Vec<_> = memory
        .reached()
        .map(|node| (node.va - HEAD, node.grid[0]))
        .collect();
    nodes.sort_unstable();
    assert_eq!(
        nodes,
        [
            (0, 0),
            (0x200, 100),
            (0x400, 101),
            (0x600, 102),
            (0x800, 103)
        ]
    );
    // The capture `graph4` is a replay of another process's graph at the same address.
    let (found, mut counters) = scan(&segments("graph4")[0]);
    memory.count_replays(&found, &mut counters);
    assert_eq!((counters.replays, counters.kept(Reason::NotHere)), (1, 1));
    assert_eq!(memory.replay(HEAD + 0x1000), None);
    memory.forget_scheduled();
    assert_eq!(memory.replay(HEAD), None);
}

#[test]
fn a_chain_of_which_a_part_is_not_known_says_so() {
    let (mut slots, mut index) = (vec![Slot::EMPTY; 64], Index::new(0));
    let segment = &segments("graph4_upload")[0];
    let (mut found, mut counters) = scan(segment);
    found.retain(|call| call.qmd_va != HEAD + 0x400);
    let mut memory = Memory::new(&mut slots, &mut index);
    memory.learn(&segment.words, &found, true, &mut counters);
    let run = memory.replay(HEAD).unwrap();
    assert_eq!((run.nodes, run.unknown), (2, 1));
}

#[test]
fn an_armed_upload_runs_where_it_ran() {
    let (mut slots, mut index) = (vec![Slot::EMPTY; 64], Index::new(0));
    let (words, _) = upload(&mut slots, &mut index);
    let segment = &segments("graph4_upload")[0];
    let (found, _) = scan(segment);
    for found in found.iter().filter(|found| found.is_launch()) {
        let qmd = found.qmd(&words).unwrap();
        assert_eq!(mask::read(qmd, found.version.unwrap()), Some([0; 8]));
        let mut unarmed = qmd.to_vec();
        v04_00::TPC_DISABLE_MASK_VALID.clear(&mut unarmed);
        assert_eq!(&unarmed[..], found.qmd(&segment.words).unwrap());
    }
}

#[test]
fn a_stored_mask_is_changed_by_writing_its_words() {
    let (mut slots, mut index) = (vec![Slot::EMPTY; 64], Index::new(0));
    let (words, _) = upload(&mut slots, &mut index);
    let segment = &segments("graph4_upload")[0];
    let (found, _) = scan(segment);
    let ours = DisabledTpcs::keep_only(66, 0..6).unwrap();
    let orders = vec![
        Order {
            mask: Some(&ours),
            atoms: 0,
            ..Order::default()
        };
        found.len()
    ];
    // A node's words after the store are those that the order would have given at the upload.
    let mut ordered = segment.words.clone();
    rewrite::in_place(&mut ordered, &found, &orders, &mut Counters::new());
    let memory = Memory::new(&mut slots, &mut index);
    for found in found.iter().filter(|found| found.is_launch()) {
        let node = memory.get(found.qmd_va).unwrap();
        let write = graph::mask_write(node, Some(&ours)).unwrap();
        assert_eq!((write.va, write.count), (found.qmd_va + 304, 4));
        let mut stored = found.qmd(&words).unwrap().to_vec();
        stored[76..80].copy_from_slice(&write.words[..4]);
        assert_eq!(&stored[..], found.qmd(&ordered).unwrap());
        // And back.
        let back = graph::mask_write(node, None).unwrap();
        assert_eq!(back.words, [0; 8]);
    }
    // The head was not armed: before a PCAS names it, it may be data.
    let head = memory.get(HEAD).unwrap();
    let write = graph::arm_write(head, None).unwrap();
    assert_eq!((head.armed, write.va, write.count), (false, HEAD, 1));
    let stored = found.last().unwrap().qmd(&words).unwrap()[0];
    assert_eq!(write.words[0], stored | 1 << 31);
}

/// One store writes the mask words that adjoin. What lies elsewhere in other versions stays as it
/// is, so a mask that needs it is refused.
#[test]
fn a_store_writes_the_mask_words_that_adjoin() {
    let (mut slots, mut index) = (vec![Slot::EMPTY; 64], Index::new(0));
    upload(&mut slots, &mut index);
    let known = *Memory::new(&mut slots, &mut index).get(HEAD).unwrap();
    for (version, first, count) in [
        (Version::V02_03, 672, 2),
        (Version::V02_04, 672, 2),
        (Version::V03_00, 672, 2),
        (Version::V04_00, 2432, 4),
        (Version::V04_01, 2432, 4),
        (Version::V05_00, 2240, 8),
    ] {
        let mut node = known;
        node.version = version;
        let mut mask = DisabledTpcs::none(256).unwrap();
        mask.disable(1).unwrap();
        let write = graph::mask_write(&node, Some(&mask)).unwrap();
        assert_eq!(
            (write.va, write.count),
            (HEAD + first / 8, count),
            "{version:?}"
        );
        assert_eq!(write.words, [2, 0, 0, 0, 0, 0, 0, 0]);
        if count < 8 {
            mask.disable(32 * count as u16).unwrap();
            let refused = graph::mask_write(&node, Some(&mask));
            assert_eq!(refused, Err(Reason::MaskTooNarrow), "{version:?}");
        }
    }
    let mut node = known;
    node.version = Version::V05_01;
    assert_eq!(graph::mask_write(&node, None), Err(Reason::SubTasks));
    assert_eq!(graph::arm_write(&node, None), None);
}

/// The upload of a graph that forks stores its head before 33 other uploads, and the head is the
/// first kernel.
#[test]
fn the_head_of_a_graph_that_forks_is_known_and_masked() {
    const FIRST: u64 = 0x2_04c6_a000;
    let (mut slots, mut index) = (vec![Slot::EMPTY; 64], Index::new(0));
    let mut memory = Memory::new(&mut slots, &mut index);
    let [upload, tenant] = ["graph_fork_upload", "graph_fork"].map(|name| segments(name).remove(0));
    // One channel: the replay's first call relies on registers that the upload has set.
    let (mut tracker, found) = tracked(&upload);
    let mut counters = Counters::new();
    assert_eq!(memory.learn(&upload.words, &found, true, &mut counters), 13);
    let run = memory.replay(FIRST).unwrap();
    assert_eq!((run.nodes, run.unknown), (14, 0));
    let head = *memory.get(FIRST).unwrap();
    assert_eq!((head.grid, head.armed), ([10, 1, 1], false));

    let mut found = vec![QmdCall::default(); 4];
    let scan = tracker.scan(&tenant.words, &mut found, &mut Counters::new());
    found.truncate(scan.found);
    let ours = DisabledTpcs::keep_only(66, 0..6).unwrap();
    // With the store that arms the head, and without a mask no store at all.
    let words = |nodes: usize, arms: usize| match nodes {
        0 => 0,
        nodes => tenant.words.len() + nodes * (9 + 4) + arms * (9 + 1) + 5,
    };
    for (mask, nodes, arms) in [
        (None, 0, 0),
        (Some(&ours), 14, 1),
        (Some(&ours), 0, 0),
        (None, 14, 0),
        (Some(&ours), 14, 0),
    ] {
        let mut out = vec![0; 1024];
        let patched =
            memory.patch_replays(&tenant.words, &found, mask.into(), &mut out, &mut counters);
        assert_eq!((patched.nodes, patched.words), (nodes, words(nodes, arms)));
    }
    assert_eq!((counters.replays, counters.kept(Reason::Replay)), (5, 0));
}

/// The words and calls of one segment.
type Scanned = (Vec<u32>, Vec<QmdCall>);

/// Learns the first launch of a graph. Returns the number of its nodes and heads, and the calls of
/// each segment of a replay, which the same channel runs.
fn first_launch(name: &str, memory: &mut Memory<'_, Vec<Slot>>) -> (usize, Vec<Scanned>) {
    let first = segments(&[name, "_first"].concat());
    let mut tracker = Tracker::new(first[0].class);
    let mut found = vec![QmdCall::default(); 64];
    let mut learned = 0;
    for segment in first {
        let scan = tracker.scan(&segment.words, &mut found, &mut Counters::new());
        let found = &found[..scan.found];
        learned += memory.learn(&segment.words, found, true, &mut Counters::new());
        memory.note_masks(&segment.words, found);
    }
    let replay = segments(name).into_iter().map(|segment| {
        let scan = tracker.scan(&segment.words, &mut found, &mut Counters::new());
        (segment.words, found[..scan.found].to_vec())
    });
    (learned, replay.collect())
}

/// PyTorch does not upload its graphs: the first launch stores and runs them. So a PCAS names each
/// head in the segment that stores it.
#[test]
fn a_graph_that_its_first_launch_has_stored_is_masked() {
    let ours = DisabledTpcs::keep_only(66, 0..6).unwrap();
    let placed = ours.with_precedence(Some(Precedence::First));
    for (name, learned, replays, nodes) in [
        // A head without blocks, and chains of eighteen and two nodes.
        ("graph_chains", 21, 1, 20),
        // A kernel of clusters is the head of one node, twice.
        ("graph_clusters", 4, 2, 4),
        // A kernel alone.
        ("graph_single", 1, 1, 1),
    ] {
        let (mut slots, mut index) = (vec![Slot::EMPTY; 64], Index::new(0));
        let mut memory = Memory::new(&mut slots, &mut index);
        let (known, segments) = first_launch(name, &mut memory);
        assert_eq!(known, learned, "{name}");
        let mut counters = Counters::new();
        for (mask, changed) in [
            (None, 0),
            (Some(&ours), nodes),
            (Some(&ours), 0),
            (Some(&placed), nodes),
            (Some(&placed), 0),
            (Some(&ours), nodes),
            (None, nodes),
        ] {
            let (mut stored, mut first) = (0, 0);
            for (words, found) in &segments {
                let mut out = vec![0; 1024];
                let patched =
                    memory.patch_replays(words, found, mask.into(), &mut out, &mut counters);
                stored += patched.nodes;
                // The first word of a node whose mask counts, in group 7.
                first += out
                    .iter()
                    .filter(|word| **word >> 16 & 0x803f == 0x8007)
                    .count();
            }
            let is_first = mask.is_some_and(|mask| mask.precedence().is_some());
            assert_eq!(
                (stored, first),
                (changed, if is_first { changed } else { 0 }),
                "{name}"
            );
        }
        let counted = (counters.replays, counters.kept(Reason::Replay));
        assert_eq!(counted, (7 * replays, 0), "{name}");
    }
}

/// A node that fills memory by a macro stands between two chains. Behind it the registers are known
/// again, so that the next chain can be masked.
#[test]
fn a_replay_behind_a_fill_is_masked() {
    const LENGTH: usize = 1;
    // LINE_LENGTH_IN, LINE_COUNT, OFFSET_OUT; LAUNCH_DMA; CALL_MME_MACRO(0) and its datum.
    let fill = [
        0x2004_2060,
        4,
        1,
        0x7f25,
        0xcb80_3400,
        0x2001_206c,
        0x41,
        0x2002_2e00,
        1,
        0,
    ];
    let ours = DisabledTpcs::keep_only(66, 0..6).unwrap();
    // Two words are not all of an upload of twelve bytes.
    for (length, words, changed) in [(4, 1, 20), (1, 1, 20), (12, 2, 0), (12, 3, 20)] {
        let mut fill = fill;
        (fill[LENGTH], fill[8]) = (length, words);
        let (mut slots, mut index) = (vec![Slot::EMPTY; 64], Index::new(0));
        let mut memory = Memory::new(&mut slots, &mut index);
        first_launch("graph_chains", &mut memory);
        let tenant = segments("graph_chains").remove(0);
        let mut tracker = Tracker::new(tenant.class);
        let mut found = vec![QmdCall::default(); 8];
        tracker.scan(&fill, &mut found, &mut Counters::new());
        let scan = tracker.scan(&tenant.words, &mut found, &mut Counters::new());
        let (mut out, mut counters) = (vec![0; 1024], Counters::new());
        let found = &found[..scan.found];
        let patched = memory.patch_replays(
            &tenant.words,
            found,
            Some(&ours).into(),
            &mut out,
            &mut counters,
        );
        assert_eq!(patched.nodes, changed, "{words} words of {length} bytes");
    }
}

#[test]
fn ordinary_launches_are_no_heads() {
    for (name, _) in CAPTURES
        .iter()
        .filter(|(name, _)| !name.starts_with("graph"))
    {
        let (mut slots, mut index) = (vec![Slot::EMPTY; 64], Index::new(0));
        let mut memory = Memory::new(&mut slots, &mut index);
        for segment in segments(name) {
            let (found, mut counters) = scan(&segment);
            assert_eq!(
                memory.learn(&segment.words, &found, true, &mut counters),
                0,
                "{name}"
            );
        }
        assert_eq!(index.nodes(), 0, "{name}");
    }
}

#[test]
fn a_cluster_keeps_its_mask_where_it_would_not_fit() {
    let (mut slots, mut index) = (vec![Slot::EMPTY; 64], Index::new(0));
    let mut memory = Memory::new(&mut slots, &mut index);
    let (_, segments) = first_launch("graph_clusters", &mut memory);
    for node in slots.iter_mut().filter_map(|slot| slot.node.as_mut()) {
        node.needs = match node.needs {
            Needs::Together(1) => Needs::Together(2),
            needs => needs,
        };
    }
    let mut memory = Memory::new(&mut slots, &mut index);
    let (one, two) = (
        DisabledTpcs::keep_only(66, 5..6).unwrap(),
        DisabledTpcs::keep_only(66, 5..7).unwrap(),
    );
    let mut counters = Counters::new();
    for (mask, changed, kept) in [(&one, 2, 2), (&two, 4, 2)] {
        let patched = segments.iter().map(|(words, found)| {
            let mut out = vec![0; 1024];
            memory.patch_replays(words, found, Some(mask).into(), &mut out, &mut counters)
        });
        assert_eq!(patched.map(|it| it.nodes).sum::<usize>(), changed);
        assert_eq!(counters.kept(Reason::Replay), kept);
    }
}

/// Checks that a node whose blocks fit into one wave of the wide mask, and not of the narrow one,
/// has the wide one: its blocks may wait for each other.
#[test]
fn a_node_of_one_wave_keeps_the_wide_mask() {
    let (mut slots, mut index) = (vec![Slot::EMPTY; 64], Index::new(0));
    let mut memory = Memory::new(&mut slots, &mut index);
    let (_, segments) = first_launch("graph_clusters", &mut memory);
    let (narrow, wide) = (
        DisabledTpcs::keep_only(128, 0..6).unwrap(),
        DisabledTpcs::keep_only(128, 0..66).unwrap(),
    );
    let width = |tpcs, mask| Width {
        tpcs,
        mask: Some(mask),
    };
    let others = |most| [width(3, narrow), width(most, wide)];
    let (all, few) = (others(66), others(65));
    let masks = |others| Masks {
        each: Some(&narrow),
        tpcs: 6,
        others,
    };
    // The matrix products have 66 clusters. On fewer TPCs they are not of one wave anyway.
    for (masks, changed) in [
        (Some(&wide).into(), 4),
        (masks(&all), 2),
        (masks(&all), 0),
        (masks(&few), 2),
    ] {
        let patched = segments.iter().map(|(words, found)| {
            let (mut out, mut counters) = (vec![0; 1024], Counters::new());
            memory.patch_replays(words, found, masks, &mut out, &mut counters)
        });
        assert_eq!(patched.map(|it| it.nodes).sum::<usize>(), changed);
    }
}

#[test]
fn a_mask_that_is_not_known_is_written_again() {
    let (mut slots, mut index) = (vec![Slot::EMPTY; 64], Index::new(0));
    let mut memory = Memory::new(&mut slots, &mut index);
    let (_, segments) = first_launch("graph_single", &mut memory);
    let (words, found) = &segments[0];
    let va = found[0].qmd_va;
    for changed in [0, 1] {
        let mut out = vec![0; 1024];
        let mut counters = Counters::new();
        let patched = memory.patch_replays(words, found, None.into(), &mut out, &mut counters);
        assert_eq!(patched.nodes, changed);
        memory.forget_mask(va);
    }
}

#[test]
fn a_full_memory_is_counted() {
    let (mut slots, mut index) = (vec![Slot::EMPTY; 3], Index::new(0));
    let (_, counters) = upload(&mut slots, &mut index);
    assert_eq!(counters.kept(Reason::MemoryFull), 2);
    assert_eq!(index.nodes(), 3);
}

/// Patches a replay for `mask` in at most `room` words. Returns the published words and the number
/// of changed nodes.
fn replayed(
    slots: &mut Vec<Slot>,
    index: &mut Index,
    mask: Option<&DisabledTpcs>,
    room: usize,
    counters: &mut Counters,
) -> (Vec<u32>, usize) {
    let segment = &segments("graph4")[0];
    let (found, _) = scan(segment);
    let mut out = vec![0; room];
    let mut memory = Memory::new(slots, index);
    let patched = memory.patch_replays(&segment.words, &found, mask.into(), &mut out, counters);
    out.truncate(patched.words);
    (out, patched.nodes)
}

#[test]
fn a_replay_is_patched_once_for_each_mask() {
    let (mut slots, mut index) = (vec![Slot::EMPTY; 64], Index::new(0));
    upload(&mut slots, &mut index);
    let tenant = &segments("graph4")[0].words;
    let ours = DisabledTpcs::keep_only(128, 0..6).unwrap();
    let mut counters = Counters::new();
    for (mask, nodes) in [
        (None, 0),
        (Some(&ours), 4),
        (Some(&ours), 0),
        (None, 4),
        (None, 0),
    ] {
        let (words, changed) = replayed(&mut slots, &mut index, mask, 1024, &mut counters);
        assert_eq!(changed, nodes);
        if nodes == 0 {
            assert_eq!(words, [0; 0], "the tenant's segment goes as it is");
            continue;
        }
        // Four uploads of four words and the registers, before the call, which begins at word 12.
        let inserted = 4 * (9 + 4) + 5;
        assert_eq!(words.len(), tenant.len() + inserted);
        assert_eq!(words[..12], tenant[..12]);
        assert_eq!(words[12 + inserted..], tenant[12..]);
        assert_eq!(
            words[12 + inserted - 4..12 + inserted],
            [4, 1, 2, 0x0462_7fdc]
        );
    }
    assert_eq!((counters.replays, counters.kept_total()), (5, 0));
}

#[test]
fn nodes_that_cannot_be_patched_are_counted() {
    let (mut slots, mut index) = (vec![Slot::EMPTY; 64], Index::new(0));
    upload(&mut slots, &mut index);
    let tenant = segments("graph4")[0].words.len();
    let ours = DisabledTpcs::keep_only(128, 0..6).unwrap();
    let mut counters = Counters::new();
    // No room for one, for two of four, then for the rest.
    for (room, nodes, kept) in [(0, 0, 1), (tenant + 5 + 30, 2, 2), (1024, 2, 2)] {
        let (words, changed) = replayed(&mut slots, &mut index, Some(&ours), room, &mut counters);
        assert_eq!((changed, counters.kept(Reason::Replay)), (nodes, kept));
        assert!(words.len() <= room && (changed == 0) == words.is_empty());
    }
    // A node that was stored with its mask is left alone.
    let (mut slots, mut index) = (vec![Slot::EMPTY; 64], Index::new(0));
    let segment = &segments("graph4_upload")[0];
    let (found, _) = scan(segment);
    upload(&mut slots, &mut index);
    let orders = vec![
        Order {
            mask: Some(&ours),
            atoms: 0,
            ..Order::default()
        };
        found.len()
    ];
    let mut words = segment.words.clone();
    rewrite::in_place(&mut words, &found, &orders, &mut counters);
    Memory::new(&mut slots, &mut index).note_masks(&words, &found);
    let (words, changed) = replayed(&mut slots, &mut index, Some(&ours), 1024, &mut counters);
    assert_eq!((words.len(), changed), (0, 0));
}

/// Returns the ends of a captured replay, once a captured upload has been learned.
fn ends(upload: &str, replay: &Segment) -> Vec<End> {
    let (mut slots, mut index) = (vec![Slot::EMPTY; 64], Index::new(0));
    let mut memory = Memory::new(&mut slots, &mut index);
    let segment = &segments(upload)[0];
    let (found, mut counters) = scan(segment);
    memory.learn(&segment.words, &found, true, &mut counters);
    let (tracker, found) = tracked(replay);
    let stored = |va| tracker.uploaded_word(va, &replay.words);
    let ends = memory.ends(&found, stored);
    ends.into_iter().flatten().collect()
}

fn tracked(segment: &Segment) -> (Tracker, Vec<QmdCall>) {
    let mut tracker = Tracker::new(segment.class);
    let mut found = vec![QmdCall::default(); 64];
    let scan = tracker.scan(&segment.words, &mut found, &mut Counters::new());
    found.truncate(scan.found);
    (tracker, found)
}

fn end(va: u64, number: u32) -> End {
    End { va, number }
}

/// On an H100 the words had these numbers after the last node, while the segment's release came at
/// once.
#[test]
fn the_ends_of_a_replay_are_the_words_that_its_last_nodes_add_to() {
    let [chain, fork, tails] =
        ["graph4", "graph_fork", "graph_tails"].map(|name| segments(name).remove(0));
    assert_eq!(ends("graph4_upload", &chain), [end(0x2_0462_7fdc, 10)]);
    // Two branches and a last node, which the last call names.
    assert_eq!(ends("graph_fork_upload", &fork), [end(0x2_0462_6514, 6)]);
    // Two last nodes.
    let mut both = ends("graph_tails_upload", &tails);
    both.sort_by_key(|end| end.va);
    assert_eq!(both, [end(0x2_0462_646c, 6), end(0x2_0462_6474, 6)]);
}

#[test]
fn a_replay_without_its_upload_or_its_store_has_no_end() {
    let chain = segments("graph4").remove(0);
    assert_eq!(ends("graph_tails_upload", &chain), []);
    let mut other = segments("graph4").remove(0);
    // The word that the segment stores is another.
    other.words[2] += 4;
    assert_eq!(ends("graph4_upload", &other), []);
}
