// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Checks which launches are listed for a graph's replay, and what cannot be listed.

use super::captures::segments;
use crate::submit::graph::{Index, Memory, Slot, Step};
use crate::submit::join::Qmd;
use crate::submit::methods::Action;
use crate::submit::qmd::v04_00::{self as v04, V04_00};
use crate::submit::qmd::{Field, Layout};
use crate::submit::reason::Reason;
use crate::submit::rewrite::detached::take_out;
use crate::submit::stats::Counters;
use crate::submit::tracker::{QmdCall, Source, Tracker};
use std::vec;
use std::vec::Vec;

/// Steps that a list has at most.
const STEPS: usize = 64;

/// What a channel knows.
struct Known {
    tracker: Tracker,
    slots: Vec<Slot>,
    qmds: Vec<Qmd>,
    index: Index,
    channel: u32,
}

impl Known {
    fn new() -> Self {
        Self {
            tracker: Tracker::new(0xc86f),
            slots: vec![Slot::EMPTY; 256],
            qmds: vec![[0; v04::WORDS]; 256],
            index: Index::new(0),
            channel: 1,
        }
    }

    fn memory(&mut self) -> Memory<'_, Vec<Slot>, Vec<Qmd>> {
        Memory::new(&mut self.slots, &mut self.index).keeping(Some(&mut self.qmds))
    }

    /// Scans a segment after `change`, and lists its launches. Returns width and wait of each.
    fn list(
        &mut self,
        words: &mut [u32],
        change: impl Fn(&mut [u32], &mut [QmdCall]),
    ) -> Result<Vec<(u32, bool)>, Reason> {
        let (mut found, mut counters) = (vec![QmdCall::NONE; 64], Counters::new());
        let channel = self.channel;
        let scan = self.tracker.scan(words, &mut found, &mut counters);
        found.truncate(scan.found);
        change(words, &mut found);
        let mut memory = self.memory();
        memory.learn(words, &found, true, &mut counters);
        assert!(memory.concerns(words, &found));
        memory.keep_launches(words, &found, &mut counters);
        let mut steps = vec![Step::default(); STEPS];
        let mut visits = 0;
        let count = memory.unroll(&found, &mut steps, channel, &mut visits);
        assert!(visits <= STEPS + 1);
        let count = count?;
        assert!(count <= visits);
        let width = |step: &Step| V04_00::GRID[0].get(&memory.step(step).unwrap().0);
        let list = steps[..count].iter().map(|step| (width(step), step.waits));
        let list = list.collect();
        take_out(words, &mut found)?;
        Ok(list)
    }
}

/// Lists the launches of captures, one after the other.
fn lists(names: &[&str]) -> Vec<Vec<(u32, bool)>> {
    let mut known = Known::new();
    let all = names.iter().flat_map(|name| segments(name));
    let mut list =
        |mut segment: super::captures::Segment| known.list(&mut segment.words, |_, _| {});
    all.map(|segment| list(segment).unwrap()).collect()
}

/// The upload runs nothing. Nodes wait for what they wait for in the graph, but further chains for
/// the one before.
#[test]
fn graphs_of_cuda_are_listed() {
    let wait = |widths: &[u32]| {
        widths
            .iter()
            .map(|width| (*width, true))
            .collect::<Vec<_>>()
    };
    let nodes = wait(&[100, 101, 102, 103]);
    assert_eq!(
        lists(&["graph4_upload", "graph4", "graph4"]),
        [vec![], nodes.clone(), nodes]
    );
    let tails = vec![(10, true), (20, true), (40, false)];
    assert_eq!(
        lists(&["graph_tails_upload", "graph_tails"]),
        [vec![], tails]
    );
    let fork = wait(&[10, 20, 21, 22, 23, 24, 25, 40, 41, 42, 43, 44, 45, 60]);
    assert_eq!(lists(&["graph_fork_upload", "graph_fork"]), [vec![], fork]);
    // The first launch stores and runs it.
    let chains = wait(&[64; 20]);
    let twice = [chains.clone(), chains];
    assert_eq!(lists(&["graph_chains_first", "graph_chains"]), twice);
}

/// Nothing is left in a segment that starts a descriptor, or that holds one for later.
#[test]
fn calls_of_graphs_are_taken_out() {
    for name in ["graph4_upload", "graph_fork_upload", "graph_chains_first"] {
        let mut words = segments(name).remove(0).words;
        Known::new().list(&mut words, |_, _| {}).unwrap();
        let mut found = vec![QmdCall::NONE; 64];
        let mut tracker = Tracker::new(0xc86f);
        let scan = tracker.scan(&words, &mut found, &mut Counters::new());
        let stored = |call: &QmdCall| call.source == Source::Stored;
        assert!(found[..scan.found].iter().all(stored), "{name}");
    }
}

/// Returns why a replay is not listed whose upload has a change.
fn refused(name: [&str; 2], change: impl Fn(&mut [u32], &mut [QmdCall])) -> Option<Reason> {
    let mut known = Known::new();
    let [mut upload, mut replay] = name.map(|name| segments(name).remove(0).words);
    let uploaded = known.list(&mut upload, change);
    let replayed = uploaded.and_then(|_| known.list(&mut replay, |_, _| {}));
    replayed.err()
}

/// Sets a field of a graph's nodes, or of its head.
fn put(head: bool, field: Field, value: u32) -> impl Fn(&mut [u32], &mut [QmdCall]) {
    move |words, found| {
        for call in found
            .iter()
            .filter(|call| (call.source == Source::Stored) == head)
        {
            field.set(call.qmd_mut(words).unwrap(), value).unwrap();
        }
    }
}

#[test]
fn what_the_scan_has_not_seen_is_not_listed() {
    let chain = ["graph4_upload", "graph4"];
    let fields: &[(bool, Field, u32, Reason)] = &[
        (true, v04::DEPENDENT_QMD0_POINTER, 0x77, Reason::NotHere),
        (true, v04::DEPENDENT_QMD_ACTION, 4, Reason::NotHere),
        (false, v04::DEPENDENT_QMD_ACTION, 0, Reason::Queue),
        (false, v04::DEPENDENT_QMD_ACTION, 3, Reason::Queue),
        (false, v04::DEPENDENT_QMD_ENABLE.nth(1), 1, Reason::Queue),
        // Each starts itself.
        (
            false,
            v04::DEPENDENT_QMD0_POINTER,
            0x0204_c002,
            Reason::TableFull,
        ),
        (false, v04::DEPENDENCE_COUNTER, 1, Reason::Dependences),
        (false, v04::WAIT_ON_LATCH_VALID, 1, Reason::WaitsOnLatch),
        (false, v04::CTA_LAUNCH_QUEUE, 1, Reason::LaunchQueue),
        (false, v04::QMD_TYPE, 0, Reason::Queue),
        (false, v04::QMD_TYPE, 7, Reason::Kind),
    ];
    for (head, field, value, reason) in fields {
        let found = refused(chain, put(*head, *field, *value));
        assert_eq!(found, Some(*reason), "{} = {value}", field.name);
    }
    let releases = refused(chain, |words, found| {
        for release in 0..3 {
            put(false, v04::RELEASE_ENABLE.nth(release), 1)(words, found);
        }
    });
    assert_eq!(releases, Some(Reason::Releases));
    for action in [
        Action::Schedule,
        Action::PrefetchSchedule,
        Action::ForceRequireScheduling,
    ] {
        let found = refused(chain, |_, found| {
            found.iter_mut().for_each(|call| call.action = action);
        });
        assert_eq!(found, Some(Reason::Action), "{action:?}");
    }
    let fragmented = refused(chain, |_, found| {
        found.iter_mut().for_each(|call| call.alone = false);
    });
    assert_eq!(fragmented, Some(Reason::Fragmented));
}

/// The head of a graph without its nodes, and one over which another launch was uploaded.
#[test]
fn nodes_that_are_gone_are_not_listed() {
    let mut known = Known::new();
    let mut replay = segments("graph4").remove(0).words;
    let unknown = known.list(&mut replay.clone(), |_, _| {});
    assert_eq!(unknown, Err(Reason::NotHere));
    let mut upload = segments("graph4_upload").remove(0);
    known.list(&mut upload.words.clone(), |_, _| {}).unwrap();
    let (found, _) = super::captures::scan(&upload);
    let node = found.iter().find(|call| call.is_node()).unwrap();
    let mut memory = known.memory();
    memory.forget_overwritten(&upload.words, &found);
    let replayed = known.list(&mut replay.clone(), |_, _| {});
    assert!(replayed.is_ok(), "the same words");
    v04::GRID_WIDTH
        .set(node.qmd_mut(&mut upload.words).unwrap(), 9)
        .unwrap();
    known.memory().forget_overwritten(&upload.words, &found);
    let replayed = known.list(&mut replay, |_, _| {});
    assert_eq!(replayed, Err(Reason::NotHere));
}

/// The chains of a graph are called by two channels. Neither would wait for what the other runs,
/// where they meet.
#[test]
fn chains_of_two_channels_that_meet_are_not_listed() {
    let mut known = Known::new();
    let mut upload = segments("graph_fork_upload").remove(0).words;
    known.list(&mut upload, |_, _| {}).unwrap();
    let replay = segments("graph_fork").remove(0).words;
    let mut list = |channel, head| {
        known.channel = channel;
        let one = |_: &mut [u32], found: &mut [QmdCall]| {
            let others = found
                .iter_mut()
                .filter(|call| (call.source == Source::Elsewhere) != head);
            others.for_each(|call| call.source = Source::Stored);
        };
        known.list(&mut replay.clone(), one)
    };
    for channel in [1, 2] {
        assert!(list(channel, true).is_ok());
        assert!(list(channel, false).is_ok());
    }
    assert!(list(1, true).is_ok());
    assert_eq!(list(2, false), Err(Reason::Dependences));
}

/// A tenant calls a graph of nodes without blocks again and again in one segment. Nothing is
/// listed, and the visits are bounded all the same.
#[test]
fn visits_of_what_is_not_launched_are_bounded() {
    let mut known = Known::new();
    let mut upload = segments("graph4_upload").remove(0).words;
    let empty = |words: &mut [u32], found: &mut [QmdCall]| {
        for head in [false, true] {
            put(head, v04::GRID_WIDTH, 0)(words, found);
            put(head, v04::RELEASE_ENABLE, 0)(words, found);
        }
    };
    known.list(&mut upload, empty).unwrap();
    let replay = segments("graph4").remove(0).words;
    let calls = |count: usize| replay.repeat(count);
    assert_eq!(known.list(&mut calls(STEPS / 5), |_, _| {}), Ok(vec![]));
    let found = known.list(&mut calls(STEPS / 5 + 1), |_, _| {});
    assert_eq!(found, Err(Reason::TableFull));
}
