// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Checks that there is room for the nodes of CUDA graphs as a tenant uploads them, up to a bound.

mod common;
mod lanes;
mod rings;

use common::{Qmd, Segment, COPY};
use gct_core::submit::reason::Reason;
use gct_model::qmd::V04_00;
use lanes::{Bench, NODES};

const NODES_OF_ONE: u32 = 100;

/// Returns the upload of a chain of nodes, last node first, and its replay.
fn graph(number: u64) -> [Vec<u32>; 2] {
    let va = |node: u32| 0x1000_0000 + 0x10_0000 * number + 0x200 * u64::from(node);
    let (mut upload, mut replay) = (Segment::default(), Segment::default());
    for node in (0..NODES_OF_ONE).rev() {
        let mut qmd = Qmd::grid(7, [node + 1, 1, 1]);
        if node + 1 < NODES_OF_ONE {
            qmd.dependent(0, 1, va(node + 1));
        }
        if node == 0 {
            upload.upload(va(0), &qmd.0);
            continue;
        }
        qmd.put(V04_00.require_scheduling, 1)
            .put(V04_00.self_copy, 1);
        upload.launch(va(node), &qmd, COPY);
    }
    replay.pcas(va(0), COPY);
    [upload.0, replay.0]
}

/// Fails unless a replay runs each node once.
fn runs(bench: &mut Bench, number: u64) {
    let from = bench.runs().len();
    assert!(
        bench.run(&graph(number)[1]),
        "{number}: {:?}",
        bench.counters()
    );
    let runs = bench.runs();
    let widths = runs[from..].iter().map(|run| run.grid[0]);
    assert!(widths.eq(1..=NODES_OF_ONE), "{number}");
}

/// Graphs of ten times as many nodes as there is room for at first are all known.
#[test]
fn all_graphs_are_known_up_to_the_bound() {
    let graphs = 10 * NODES as u64 / u64::from(NODES_OF_ONE);
    let mut bench = Bench::growing(12 * NODES);
    for number in 0..graphs {
        assert!(bench.run(&graph(number)[0]), "{number}");
    }
    for number in (0..graphs).chain([0]) {
        runs(&mut bench, number);
    }
    bench.is_bound();
    assert_eq!(bench.room, Some(2 * NODES), "no more than is needed");
    assert_eq!(bench.counters().kept(Reason::MemoryFull), 0);
}

/// Beyond the bound, nodes go that were used longest ago. A replay of one ends its channel, and
/// what was used since goes on.
#[test]
fn beyond_the_bound_the_oldest_nodes_go() {
    let mut bench = Bench::growing(NODES);
    for number in 0..40 {
        assert!(bench.run(&graph(number)[0]), "{number}");
        runs(&mut bench, number);
        runs(&mut bench, 0);
    }
    assert_eq!(bench.room, Some(0));
    assert!(!bench.run(&graph(1)[1]));
    assert_eq!(bench.counters().sums.refused, 1);
    bench.switch();
    runs(&mut bench, 0);
    runs(&mut bench, 39);
    bench.is_bound();
    assert_eq!(bench.counters().kept(Reason::MemoryFull), 0);
}

/// A segment whose nodes may not fit is not read before the backend has answered. It need not add
/// room.
#[test]
fn a_segment_waits_for_room() {
    for room in [NODES, 0] {
        let mut bench = Bench::growing(room);
        bench.room = None;
        for number in 0..3 {
            assert!(bench.run(&graph(number)[0]));
        }
        bench.submit(&graph(3)[0]);
        let (read, _) = bench.read();
        for _ in 0..1000 {
            bench.publish();
            bench.execute();
            assert!(!bench.channel.lane.is_quiet() && bench.channel.lane.is_unfinished());
        }
        assert_eq!(bench.read().0, read);
        bench.room = Some(room);
        assert!(bench.finish());
        (0..4).for_each(|number| runs(&mut bench, number));
        bench.is_bound();
    }
}
