// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Checks `gct_core::submit::graph` against the model: a CUDA graph's upload and its replays.

mod common;

use common::rewriter::keep;
use common::{capture, Segment, CHANNEL, COPY};
use gct_core::submit::graph::{arm, mask_write, Index, Memory, Slot};
use gct_core::submit::mask::DisabledTpcs;
use gct_core::submit::stats::Counters;
use gct_core::submit::tracker::{QmdCall, Tracker};
use gct_model::{Config, GuestMemory, Kind, Machine, Run, SparseMemory};

/// The graph's head, which the upload stores last.
const HEAD: u64 = 0x2_04c0_0000;
/// The widths of the nodes' grids, in the order of the capture's README.
const WIDTHS: [u64; 4] = [100, 101, 102, 103];

/// An uploaded graph, in a machine that has executed the upload.
struct Graph {
    /// What was learnt of the channel; a replay relies on registers that the upload has set.
    tracker: Tracker,
    machine: Machine<SparseMemory>,
    nodes: Vec<Slot>,
    index: Index,
}

impl Graph {
    fn upload(name: &str) -> Self {
        let mut words = capture(name).remove(0).1;
        let mut found = [QmdCall::default(); 16];
        let mut counters = Counters::new();
        let mut tracker = Tracker::new(0xc86f);
        let scan = tracker.scan(&words, &mut found, &mut counters);
        let found = &found[..scan.found];
        let mut graph = Self {
            tracker,
            machine: Machine::new(SparseMemory::new(1 << 10), Config::default()),
            nodes: vec![Slot::EMPTY; 64],
            index: Index::new(0),
        };
        Memory::new(&mut graph.nodes, &mut graph.index).learn(&words, found, true, &mut counters);
        arm(&mut words, found);
        graph.machine.submit(CHANNEL, &words);
        graph.machine.run();
        graph
    }

    /// Writes a mask into every node's stored QMD. An H200 obeys it in the next replay without
    /// further action.
    fn mask(&mut self, mask: Option<&DisabledTpcs>) {
        let mut memory = Memory::new(&mut self.nodes, &mut self.index);
        let replay = memory.replay(HEAD).expect("the head is known");
        assert_eq!(
            (replay.nodes, replay.unknown),
            (5, 0),
            "the head and its nodes"
        );
        for node in memory.reached().filter(|node| node.va != HEAD) {
            let write = mask_write(node, mask).expect("the node is armed");
            for (word, at) in write
                .words
                .iter()
                .take(write.count)
                .zip((write.va..).step_by(4))
            {
                self.machine.memory().write_u32(at, *word).expect("mapped");
            }
        }
    }

    /// Replays the graph and returns its runs.
    fn replay(&mut self) -> Vec<Run> {
        let mut segment = Segment::default();
        segment.pcas(HEAD, COPY);
        self.run(&segment.0)
    }

    /// Submits a segment and returns its runs.
    fn run(&mut self, words: &[u32]) -> Vec<Run> {
        let before = self.machine.report().runs.len();
        self.machine.submit(CHANNEL, words);
        let report = self.machine.run();
        assert_eq!(report.anomalies, []);
        let blocks = |run: &&Run| run.kind == Kind::Blocks && run.count() > 0;
        report.runs[before..]
            .iter()
            .filter(blocks)
            .cloned()
            .collect()
    }
}

fn counts(runs: &[Run]) -> Vec<u64> {
    runs.iter().map(Run::count).collect()
}

#[test]
fn arming_the_nodes_changes_nothing_that_runs() {
    let mut graph = Graph::upload("graph4_upload");
    let runs = graph.replay();
    assert_eq!(counts(&runs), WIDTHS);
    assert!(runs.iter().all(|run| run.mask.0 == [0; 8]));
}

#[test]
fn masks_of_stored_nodes_change_between_replays() {
    let mut graph = Graph::upload("graph4_upload");
    for kept in [Some(keep([5])), Some(keep(0..33)), None] {
        graph.mask(kept.as_ref());
        let wanted = kept.map_or([0; 8], |mask| *mask.words());
        for _ in 0..2 {
            let runs = graph.replay();
            assert_eq!(counts(&runs), WIDTHS);
            assert!(
                runs.iter().all(|run| run.mask.0 == wanted),
                "{:08x?}",
                runs[0].mask
            );
        }
    }
}

/// Patches a captured replay with a mask, runs it and returns its runs.
fn patched(graph: &mut Graph, name: &str, mask: Option<&DisabledTpcs>) -> Vec<Run> {
    let words = capture(name).remove(0).1;
    let mut found = [QmdCall::default(); 16];
    let mut counters = Counters::new();
    let scan = graph.tracker.scan(&words, &mut found, &mut counters);
    let mut out = vec![0; 1024];
    let mut memory = Memory::new(&mut graph.nodes, &mut graph.index);
    let patched = memory.patch_replays(
        &words,
        &found[..scan.found],
        mask.into(),
        &mut out,
        &mut counters,
    );
    assert_eq!((counters.replays, counters.kept_total()), (1, 1));
    let segment = match patched.words {
        0 => &words,
        length => &out[..length].to_vec(),
    };
    graph.run(segment)
}

#[test]
fn a_patched_replay_obeys_its_mask() {
    let mut graph = Graph::upload("graph4_upload");
    let keeps = [
        None,
        Some(keep([5])),
        Some(keep([5])),
        Some(keep(0..33)),
        None,
    ];
    for kept in keeps {
        let wanted = kept.map_or([0; 8], |mask| *mask.words());
        let runs = patched(&mut graph, "graph4", kept.as_ref());
        assert_eq!(counts(&runs), WIDTHS);
        assert!(
            runs.iter().all(|run| run.mask.0 == wanted),
            "{:08x?}",
            runs[0].mask
        );
    }
}

/// Its head is a kernel, and lies in front of most nodes.
#[test]
fn a_patched_replay_of_a_graph_that_forks_obeys_its_mask() {
    let mut graph = Graph::upload("graph_fork_upload");
    for kept in [None, Some(keep([5])), Some(keep(0..33)), None] {
        let wanted = kept.map_or([0; 8], |mask| *mask.words());
        let runs = patched(&mut graph, "graph_fork", kept.as_ref());
        let mut widths = counts(&runs);
        widths.sort_unstable();
        assert_eq!(
            widths,
            [10, 20, 21, 22, 23, 24, 25, 40, 41, 42, 43, 44, 45, 60]
        );
        assert!(runs.iter().all(|run| run.mask.0 == wanted), "{wanted:x?}");
    }
}
