// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Checks CUDA graphs under `channel.strict` against the model: a lane with copies and slots lists
//! the launches of replays, and the model runs what the lane has published.

mod common;
mod lanes;
mod rings;

use common::{capture, orders, Qmd, Segment, CHANNEL, COPY};
use gct_core::lane::limits::LaunchLimits;
use gct_core::submit::method::{incr, non_incr};
use gct_core::submit::reason::Reason;
use gct_core::submit::stats::Counters;
use gct_model::qmd::V04_00;
use gct_model::{Config, Machine, Order, Run, SparseMemory};
use lanes::{limits, Bench, COPIES_WORDS, DISABLED, SLOT_COUNT, STEPS, UNSEEN};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// Words that a turn reads, but for the last segment.
const TURN: u32 = 512;
/// Words of a workspace in which each segment of a graph is read in many pieces: of two descriptors
/// at most.
const SHORT: usize = 1200;

/// A run with blocks: its grid, and how many with this grid ran before it.
type Which = ([u32; 3], usize);

/// Returns the runs with blocks, and which of them ended before which began.
fn order_of(runs: &[Run]) -> (Vec<Which>, BTreeSet<(Which, Which)>) {
    let mut counts = BTreeMap::new();
    let runs: Vec<_> = runs.iter().filter(|run| run.count() > 0).collect();
    let which = |run: &&Run| {
        let count = counts.entry(run.grid).or_insert(0);
        *count += 1;
        (run.grid, *count)
    };
    let mut all: Vec<_> = runs.iter().map(which).collect();
    let mut pairs = BTreeSet::new();
    for (first, a) in runs.iter().zip(&all) {
        let ended = first.ended.expect("each run ends");
        let later = runs
            .iter()
            .zip(&all)
            .filter(|(run, _)| run.started >= ended);
        pairs.extend(later.map(|(_, b)| (*a, *b)));
    }
    all.sort_unstable();
    (all, pairs)
}

fn word(memory: &BTreeMap<u64, u32>, at: u64) -> u32 {
    memory.get(&at).copied().unwrap_or(0)
}

/// Checks that segments have the same effects under the limit as without it: the same runs, the
/// order that the program relies on, and the words that they leave in memory. It relies on what is
/// so in all orders of events, if `may_rely`.
fn check(name: &str, segments: &[Vec<u32>], may_rely: impl Fn(&Which, &Which) -> bool) -> Counters {
    let mut counters = Counters::new();
    let natives: Vec<_> = orders().map(|order| native(segments, order)).collect();
    let (runs, mut relied) = order_of(&natives[0].0);
    for (others, _) in &natives {
        relied = &relied & &order_of(others).1;
    }
    relied.retain(|(first, then)| may_rely(first, then));
    let lengths = [COPIES_WORDS as usize, SHORT].into_iter();
    let each = lengths.flat_map(|longest| orders().zip(&natives).map(move |it| (longest, it)));
    for (longest, (order, (_, memory))) in each {
        let mut bench = Bench::reading(order, true, longest);
        for words in segments {
            assert!(bench.run(words), "{name}: {:?}", bench.counters());
        }
        bench.is_bound();
        let (found, pairs) = order_of(&bench.runs());
        assert_eq!(found, runs, "{name}");
        assert_eq!(relied.difference(&pairs).next(), None, "{name}");
        let left = bench.memory();
        // An ordinary launch is uploaded with the mask.
        let masks = |at: &u64| match at % 0x200 {
            0 => 1 << 31,
            0x130 => DISABLED,
            _ => 0,
        };
        let differs = |at: &&u64| (word(memory, **at) ^ word(&left, **at)) & !masks(at) != 0;
        let all = memory.keys().chain(left.keys());
        assert_eq!(all.filter(differs).collect::<Vec<_>>(), [&0; 0], "{name}");
        counters = bench.counters();
    }
    counters
}

/// Runs segments as the tenant submits them, each to its end.
fn native(segments: &[Vec<u32>], order: Order) -> (Vec<Run>, BTreeMap<u64, u32>) {
    let config = Config {
        order,
        ..Config::default()
    };
    let mut machine = Machine::new(SparseMemory::new(1 << 12), config);
    for words in segments {
        machine.submit(CHANNEL, words);
        machine.run();
    }
    let (report, memory) = machine.into_parts();
    assert_eq!(report.anomalies, []);
    (report.runs, memory.words().collect())
}

fn segments(names: &[&str]) -> Vec<Vec<u32>> {
    let all = names.iter().flat_map(|name| capture(name));
    all.map(|(_, words)| words).collect()
}

/// CUDA's graphs run each node once, as without the limit.
#[test]
fn captured_graphs_run_from_slots() {
    let graphs: &[&[&str]] = &[
        &["graph4_upload", "graph4", "graph4"],
        &["graph_fork_upload", "graph_fork", "graph_fork"],
        &["graph_tails_upload", "graph_tails"],
        &["graph_single_first", "graph_single"],
        &["graph_chains_first", "graph_chains", "graph_chains"],
    ];
    for names in graphs {
        let counters = check(names[0], &segments(names), |_, _| true);
        let replays = counters.kept(Reason::NotHere);
        assert_eq!(counters.kept_total(), replays, "{names:?}");
        assert_eq!(counters.replays, replays, "{names:?}");
    }
}

/// Graphs with clusters and with fills by a macro.
#[test]
fn captured_graphs_with_clusters_run_from_slots() {
    let mut bench = Bench::new(Order::Eager, true);
    for words in segments(&["graph_clusters_first", "graph_clusters"]) {
        assert!(bench.run(&words));
    }
    bench.is_bound();
    assert_eq!(order_of(&bench.runs()).0.len(), 8);
}

/// A graph: of each node but the first the ones that it waits for, and whether a call of the replay
/// decrements it, too.
type Graph = [(Vec<usize>, bool)];

/// Returns a random graph. A node starts two others at most.
fn graph() -> impl Strategy<Value = Vec<(Vec<usize>, bool)>> {
    let node = |number: usize| {
        let before = prop::collection::btree_set(0..number.max(1), 0..3);
        (before, prop::bool::weighted(0.2))
    };
    let graph = (1..30usize).prop_flat_map(move |count| (0..count).map(node).collect::<Vec<_>>());
    graph.prop_map(|graph| {
        let mut left = vec![2; graph.len()];
        let node = |(before, called): (BTreeSet<usize>, bool)| {
            let mut before: Vec<_> = before.into_iter().collect();
            before.retain(|node| left[*node] > 0);
            before.iter().for_each(|node| left[*node] -= 1);
            let called = called || before.is_empty();
            (before, called)
        };
        graph.into_iter().map(node).collect()
    })
}

/// Returns of each node, by its width, which others have ended before it.
fn ended_before(graph: &Graph) -> Vec<BTreeSet<u32>> {
    let mut all: Vec<BTreeSet<u32>> = vec![BTreeSet::new(); 2];
    for (before, _) in &graph[1..] {
        let mut ended = BTreeSet::new();
        for (node, width) in before
            .iter()
            .zip(before.iter().map(|node| *node as u32 + 1))
        {
            ended.insert(width);
            ended.extend(&all[node + 1]);
        }
        all.push(ended);
    }
    all
}

const HEAD: u64 = 0x1000_0000;

/// Returns the upload of a graph as CUDA has it, last node first, and two replays.
fn submitted(graph: &Graph) -> Vec<Vec<u32>> {
    submitted_at(HEAD, graph)
}

fn submitted_at(head: u64, graph: &Graph) -> Vec<Vec<u32>> {
    let va = |number: usize| head + 0x200 * number as u64;
    let mut left = vec![2; graph.len()];
    let mut qmds: Vec<_> = (1u32..)
        .take(graph.len())
        .map(|width| Qmd::grid(7, [width, 1, 1]))
        .collect();
    let mut called = vec![];
    for (number, (before, is_called)) in graph.iter().enumerate().skip(1) {
        let counter = match (before.len(), *is_called) {
            (1, false) => 0,
            (count, is_called) => count as u32 + u32::from(is_called),
        };
        for &node in before {
            left[node] -= 1;
            let action = if counter == 0 { 1 } else { 4 };
            qmds[node].dependent(left[node], action, va(number));
        }
        qmds[number]
            .put(V04_00.counter, counter)
            .put(V04_00.require_scheduling, 1)
            .put(V04_00.self_copy, 1);
        called.extend((*is_called).then_some(number));
    }
    let (mut upload, mut replay) = (Segment::default(), Segment::default());
    for (number, qmd) in qmds.iter().enumerate().skip(1).rev() {
        upload.launch(va(number), qmd, COPY);
    }
    upload.upload(head, &qmds[0].0);
    replay.pcas(head, COPY);
    for number in called {
        replay.pcas(va(number), 7);
    }
    vec![upload.0, replay.0.clone(), replay.0]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn random_graphs_run_from_slots(graph in graph()) {
        let ended = ended_before(&graph);
        // No number of orders shows what is no accident.
        check("random", &submitted(&graph), |(first, of), (then, in_replay)| {
            of < in_replay || of == in_replay && ended[then[0] as usize].contains(&first[0])
        });
    }

    /// Whatever a tenant writes, what runs is bound, or the channel is refused.
    #[test]
    fn hostile_graphs_run_from_slots_or_not_at_all(
        graph in graph(),
        changes in prop::collection::vec((0usize..3, any::<prop::sample::Index>(), any::<u32>(), 0u32..32), 1..8),
        whole: bool,
        name in prop::sample::select(vec![["graph4_upload", "graph4"], ["graph_fork_upload", "graph_fork"]]),
        captured: bool,
        toggles: bool,
        pieces: bool,
    ) {
        let mut segments = if captured { segments(&name) } else { submitted(&graph) };
        for (segment, at, word, bit) in changes {
            let count = segments.len();
            let words = &mut segments[segment % count];
            let at = at.index(words.len());
            words[at] = if whole { word } else { words[at] ^ 1 << bit };
        }
        let longest = if pieces { SHORT } else { COPIES_WORDS as usize };
        let mut bench = Bench::reading(Order::Random(7), true, longest);
        for words in &segments {
            if !bench.run(words) {
                break;
            }
            if toggles {
                // Launches run where they are then.
                bench.governor.set_limits(limits(false));
            } else {
                bench.is_bound();
            }
        }
    }
}

/// Returns a chain of nodes at an address: its upload, and its replay.
fn chain(head: u64, count: usize) -> [Vec<u32>; 2] {
    let before = |number: usize| (vec![number.saturating_sub(1)], false);
    let graph: Vec<_> = (0..count).map(before).collect();
    let [upload, replay, _] = submitted_at(head, &graph).try_into().expect("three");
    [upload, replay]
}

/// Returns the upload of one node of such a chain, the last one, with another width.
fn changed(head: u64, number: usize, width: u32) -> Vec<u32> {
    let mut qmd = Qmd::grid(7, [width, 1, 1]);
    qmd.put(V04_00.require_scheduling, 1)
        .put(V04_00.self_copy, 1);
    let mut upload = Segment::default();
    upload.launch(head + 0x200 * number as u64, &qmd, COPY);
    upload.0
}

/// Returns the widths of the runs from the one on with this number.
fn widths(bench: &Bench, from: usize) -> Vec<u32> {
    bench.runs()[from..].iter().map(|run| run.grid[0]).collect()
}

/// A program makes and destroys more graphs than there is room for. One that it goes on to use
/// stays known.
#[test]
fn graphs_that_come_and_go_find_room() {
    let mut bench = Bench::new(Order::Eager, true);
    let kept = chain(HEAD, 6);
    assert!(bench.run(&kept[0]));
    for number in 1..400 {
        let from = bench.runs().len();
        let [upload, replay] = chain(HEAD + 0x1_0000 * number, 6);
        for words in [&upload, &replay, &kept[1]] {
            assert!(bench.run(words), "{number}: {:?}", bench.counters());
        }
        let expected = [1, 2, 3, 4, 5, 6].repeat(2);
        assert_eq!(widths(&bench, from), expected, "{number}");
    }
    bench.is_bound();
    assert_eq!(bench.counters().kept(Reason::MemoryFull), 0);
}

/// A graph whose upload is longer than what is read at once runs as others do. The upload is read
/// twice at most, and its entry counts as read at its end.
#[test]
fn a_long_graph_is_uploaded_in_pieces() {
    let [upload, replay] = chain(HEAD, 250);
    let mut bench = Bench::reading(Order::Eager, true, 2048);
    bench.turn = TURN;
    bench.submit(&upload);
    let (mut last, mut turns) = (0, 0);
    while bench.read().1 == 0 {
        bench.publish();
        bench.execute();
        let (read, _) = bench.read();
        assert!(read - last <= 2048, "a turn ends behind a piece");
        (last, turns) = (read, turns + 1);
        assert!(turns < 100 && !bench.channel.lane.is_refused());
    }
    assert!(upload.len() > 20_000 && last < 2 * upload.len(), "{last}");
    assert!(bench.finish());
    for _ in 0..2 {
        assert!(bench.run(&replay), "{:?}", bench.counters());
    }
    assert_eq!(widths(&bench, 0), (1..=250).collect::<Vec<_>>().repeat(2));
    bench.is_bound();
    assert_eq!(bench.counters().sums.crowded, 0);
}

/// Whatever a long segment holds, a turn reads no more than the lane can read at once, its tenant
/// pays for it, and the segment comes to its end.
#[test]
fn long_segments_hold_nobody_up() {
    const WORDS: usize = 200_000;
    const LONGEST: usize = 1 << 14;
    let invalidate = [incr(1, 0x2b4, 1), 0x10_0000, incr(1, 0x2c0, 1), 1];
    // What is read at once has room for as many calls as a short segment.
    let mut calls = invalidate.repeat(WORDS / 4);
    calls[WORDS - LONGEST..].fill(0);
    // One burst after the other, the longest there are.
    let mut bursts = vec![0; WORDS];
    bursts
        .iter_mut()
        .step_by(0x2000)
        .for_each(|header| *header = non_incr(0, 0x100, 0x1fff));
    let mut rare = vec![0; WORDS];
    for at in (10..WORDS - 4).step_by(4099) {
        rare[at..at + 4].copy_from_slice(&invalidate);
    }
    // The words behind the end are not executed, so they are not read.
    let mut ended = vec![6 << 29; WORDS];
    ended[..9].fill(0);
    ended[9] = 7 << 29;
    for (name, words) in [
        ("zeros", vec![0; WORDS]),
        ("calls", calls),
        ("bursts", bursts),
        ("rare calls", rare),
        ("an end", ended),
    ] {
        let mut bench = Bench::reading(Order::Eager, true, LONGEST);
        bench.turn = TURN;
        bench.submit(&words);
        let (mut last, mut turns) = (0, 0);
        while bench.read().1 == 0 {
            bench.publish();
            bench.execute();
            let (read, _) = bench.read();
            assert!(read - last < TURN as usize + LONGEST, "{name}");
            let left = TURN.saturating_sub((read - last) as u32);
            assert!(bench.left <= left, "{name}");
            (last, turns) = (read, turns + 1);
            assert!(turns < 2000, "{name}: {:?}", bench.counters());
            assert!(!bench.channel.lane.is_refused(), "{name}");
        }
        assert!(bench.finish());
    }
}

/// Where the ends of launches are tracked, those of a list are admitted as others are: two of which
/// the duration is not known.
#[test]
fn launches_of_a_list_are_seen() {
    for tracked in [false, true] {
        let mut bench = Bench::new(Order::Eager, true);
        let [upload, replay] = chain(HEAD, 20);
        assert!(bench.run(&upload));
        bench.governor.set_limits(LaunchLimits {
            atom_ns: u64::from(tracked),
            ..limits(true)
        });
        bench.submit(&replay);
        bench.publish();
        assert_eq!(bench.channel.lane.is_watched(), tracked);
        bench.execute();
        let most = if tracked { 2 } else { SLOT_COUNT as usize };
        assert_eq!(bench.runs().len(), most);
        assert!(bench.finish());
        assert_eq!(widths(&bench, 0), (1..=20).collect::<Vec<_>>());
        bench.is_bound();
    }
}

/// A list that is refused has cost its tenant the nodes that were looked at.
#[test]
fn a_refused_list_costs_as_much_as_another() {
    let mut bench = Bench::new(Order::Eager, true);
    let mut upload = Segment::default();
    let mut node = Qmd::grid(7, [3, 1, 1]);
    node.put(V04_00.require_scheduling, 1)
        .put(V04_00.self_copy, 1)
        .dependent(0, 1, HEAD);
    upload.launch(HEAD, &node, COPY);
    let mut head = Qmd::grid(7, [1, 1, 1]);
    head.dependent(0, 1, HEAD);
    upload.upload(HEAD + 0x200, &head.0);
    assert!(bench.run(&upload.0));
    let mut replay = Segment::default();
    replay.pcas(HEAD + 0x200, COPY);
    assert!(!bench.run(&replay.0));
    assert_eq!(bench.counters().kept(Reason::TableFull), 1);
    assert!(u32::MAX - bench.left >= 16 * STEPS as u32);
}

/// A segment that is refused takes no graphs from the tenant's other channels: it stores nothing.
#[test]
fn a_refused_segment_takes_no_graphs() {
    let [upload, replay] = chain(HEAD, 4);
    // A long one is refused in its second piece, too.
    let mut long = vec![0; 2 * SHORT];
    long[SHORT] = 6 << 29;
    for unread in [&long[..], &[6 << 29]] {
        let mut bench = Bench::reading(Order::Eager, true, SHORT);
        assert!(bench.run(&upload));
        assert!(!bench.run(unread));
        bench.switch();
        assert!(bench.run(&replay), "{:?}", bench.counters());
        assert_eq!(widths(&bench, 0), [1, 2, 3, 4]);
        bench.is_bound();
    }
}

/// Without the limit a graph stays a list if any of its nodes was uploaded under it, however deep.
#[test]
fn a_graph_of_which_one_node_is_listed_runs_without_the_limit() {
    let mut bench = Bench::new(Order::Eager, false);
    let [upload, replay] = chain(HEAD, 5);
    assert!(bench.run(&upload));
    bench.governor.set_limits(limits(true));
    assert!(bench.run(&changed(HEAD, 4, 77)));
    bench.governor.set_limits(limits(false));
    for _ in 0..2 {
        let from = bench.runs().len();
        assert!(bench.run(&replay), "{:?}", bench.counters());
        assert_eq!(widths(&bench, from), [1, 2, 3, 4, 77]);
    }
}

/// Without the limit a segment that was not read may have stored any node anew. A graph of which
/// the scheduler has no copy is refused then, until it is uploaded again.
#[test]
fn a_graph_that_may_be_another_is_refused() {
    let [upload, replay] = chain(HEAD, 4);
    for again in [false, true] {
        let mut bench = Bench::new(Order::Eager, true);
        assert!(bench.run(&upload));
        bench.governor.set_limits(limits(false));
        bench.submit_at(UNSEEN, 1);
        assert!(bench.finish());
        assert!(!again || bench.run(&upload));
        assert_eq!(bench.run(&replay), again, "{:?}", bench.counters());
        let runs: &[u32] = if again { &[1, 2, 3, 4] } else { &[] };
        assert_eq!(widths(&bench, 0), runs);
        let unknown = bench.counters().kept(Reason::NotHere);
        assert_eq!(unknown, 1 + u64::from(!again), "the scan counts a replay");
    }
}

/// A node is uploaded anew by another channel while a list waits for slots. The list ends there,
/// unless it is the same node.
#[test]
fn a_list_does_not_run_what_is_uploaded_meanwhile() {
    for width in [20, 77] {
        let mut bench = Bench::new(Order::Eager, true);
        let [upload, replay] = chain(HEAD, 20);
        assert!(bench.run(&upload));
        bench.submit(&replay);
        bench.publish();
        bench.switch();
        assert!(bench.run(&changed(HEAD, 19, width)));
        bench.switch();
        let same = width == 20;
        assert_eq!(bench.finish(), same);
        assert_eq!(widths(&bench, 0).len(), if same { 20 } else { 19 });
        assert_eq!(bench.counters().kept(Reason::Patched), u64::from(!same));
        bench.is_bound();
    }
}

/// A replay is seen before the upload of its graph in another channel. It waits for that. The
/// channel ends if nobody uploads the graph, unless the limit goes.
#[test]
fn a_replay_waits_for_an_upload_in_another_channel() {
    for (uploaded, strict) in [(true, true), (false, true), (false, false)] {
        let mut bench = Bench::new(Order::Eager, true);
        let [upload, replay] = chain(HEAD, 20);
        bench.submit(&replay);
        for _ in 0..50 {
            bench.publish();
            bench.execute();
            assert!(!bench.channel.lane.is_refused() && bench.runs().is_empty());
        }
        bench.switch();
        assert!(!uploaded || bench.run(&upload));
        bench.switch();
        bench.governor.set_limits(limits(strict));
        assert_eq!(bench.finish(), uploaded || !strict);
        let all: &[u32] = &(1..=20).collect::<Vec<_>>();
        assert_eq!(widths(&bench, 0), if uploaded { all } else { &[] });
    }
}

/// Graphs run before the limit, under it and after it, whenever they were uploaded.
#[test]
fn graphs_outlive_the_limit() {
    let mut bench = Bench::new(Order::Eager, false);
    let graph = |number: u64| chain(HEAD + 0x1_0000 * number, 5);
    for (number, strict) in (0..).zip([false, true, false, true, true, false]) {
        bench.governor.set_limits(limits(strict));
        assert!(bench.run(&graph(number)[0]));
        for number in (0..=number).chain(0..=number) {
            let from = bench.runs().len();
            assert!(bench.run(&graph(number)[1]), "{:?}", bench.counters());
            assert_eq!(widths(&bench, from), [1, 2, 3, 4, 5], "{number}");
        }
    }
}

/// What a segment stores in a node's place counts, also where it is not understood.
#[test]
fn a_node_does_not_run_for_what_is_not_understood() {
    let mut bench = Bench::new(Order::Eager, true);
    let [upload, _] = chain(HEAD, 3);
    assert!(bench.run(&upload));
    let mut other = Segment::default();
    let mut unknown = Qmd::grid(7, [9, 1, 1]);
    unknown.put(V04_00.version_bits, 0x90);
    other.launch(HEAD, &unknown, COPY);
    assert!(!bench.run(&other.0));
    assert_eq!(bench.counters().kept(Reason::Version), 2);
    assert!(bench.runs().is_empty());
}

/// A node whose blocks must be resident together does not fit into the mask. Its channel ends.
#[test]
fn a_node_that_does_not_fit_ends_the_channel() {
    for (blocks, fits) in [(8, true), (16, false)] {
        let mut bench = Bench::new(Order::Eager, true);
        let mut head = Qmd::grid(7, [1, 1, 1]);
        head.put(V04_00.kind, 3);
        for (field, size) in V04_00.cluster.into_iter().zip([blocks, 1, 1]) {
            head.put(field, size);
        }
        let (mut upload, mut replay) = (Segment::default(), Segment::default());
        upload.upload(HEAD, &head.0);
        replay.pcas(HEAD, COPY);
        assert!(bench.run(&upload.0));
        assert_eq!(bench.run(&replay.0), fits);
        assert_eq!(widths(&bench, 0).len(), usize::from(fits));
        assert_eq!(bench.counters().kept(Reason::TooWide), u64::from(!fits));
    }
}
