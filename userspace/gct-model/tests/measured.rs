// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Checks the model against measurements on an H200.

mod common;

use common::{capture, execute, orders, Qmd, Segment, CHANNEL, COPY, SCHEDULE};
use gct_model::qmd::V04_00;
use gct_model::{Act, Anomaly, Config, Kind, Machine, Order, Report, Span, SparseMemory};

const M: u64 = 0x10_0000;
const N: u64 = 0x20_0000;

/// Returns the x ranges that ran.
fn ran(report: &Report) -> Vec<Span> {
    report
        .runs
        .iter()
        .flat_map(|run| run.blocks.iter().map(|blocks| blocks.x))
        .collect()
}

fn launch(qmd: &Qmd, action: u32) -> Report {
    let mut segment = Segment::default();
    segment.launch(M, qmd, action);
    execute(&[&segment.0], Order::Eager).0
}

#[test]
fn resume_counts_with_schedule_and_with_no_other_action() {
    // 1000 blocks in every row. The expected ranges are those of the H200.
    let mut whole = Qmd::grid(1, [1000, 1, 1]);
    assert_eq!(ran(&launch(&whole, COPY)), [Span::new(0, 1000)]);
    let resumed = whole.resume([600, 0, 0]);
    for ignores in [COPY, 3, 9] {
        assert_eq!(ran(&launch(resumed, ignores)), [Span::new(0, 1000)]);
    }
    assert_eq!(ran(&launch(resumed, SCHEDULE)), [Span::new(600, 1000)]);
    let mut piece = Qmd::grid(1, [800, 1, 1]);
    piece.resume([600, 0, 0]);
    assert_eq!(ran(&launch(&piece, SCHEDULE)), [Span::new(600, 800)]);
    let mut beyond = Qmd::grid(1, [1000, 1, 1]);
    beyond.resume([2000, 0, 0]);
    let report = launch(&beyond, SCHEDULE);
    assert_eq!((report.runs.len(), report.runs[0].count()), (1, 0));
    assert_eq!(report.anomalies, []);
}

#[test]
fn two_dimensions_and_clusters_resume_in_their_own_unit() {
    let mut flat = Qmd::grid(1, [10, 20, 1]);
    let report = launch(flat.resume([5, 3, 0]), SCHEDULE);
    assert_eq!(report.runs[0].count(), 200 - 35);
    // 1200 blocks in clusters of 4 are 300 units.
    let mut clusters = Qmd::grid(1, [300, 1, 1]);
    clusters.put(V04_00.kind, 3).put(V04_00.cluster[0], 4);
    let report = launch(clusters.resume([100, 0, 0]), SCHEDULE);
    assert_eq!(ran(&report), [Span::new(100, 300)]);
    assert_eq!(report.runs[0].kind, Kind::Clusters);
}

#[test]
fn a_dependent_runs_from_its_beginning() {
    let mut segment = Segment::default();
    let mut first = Qmd::grid(1, [10, 1, 1]);
    first.dependent(0, 1, N);
    let mut second = Qmd::grid(2, [1000, 1, 1]);
    segment.upload(N, &second.resume([600, 0, 0]).0);
    segment.launch(M, &first, COPY);
    let (report, _) = execute(&[&segment.0], Order::Eager);
    assert_eq!(ran(&report), [Span::new(0, 10), Span::new(0, 1000)]);
}

#[test]
fn force_require_scheduling_never_runs_by_itself() {
    let mut qmd = Qmd::grid(1, [1000, 1, 1]);
    qmd.put(V04_00.require_scheduling, 1);
    for action in [0xb, COPY] {
        let report = launch(&qmd, action);
        assert_eq!(report.runs, []);
        assert_eq!((report.waiting.len(), report.waiting[0].qmd), (1, M));
        assert!(report.waiting[0].scheduling);
    }
}

#[test]
fn the_join_keeps_effects_after_the_last_block_in_every_order() {
    // Section 5: the join carries the effects, and each atom only decrements it.
    let atoms: u32 = 8;
    let slot = |i: u32| 0x30_0000 + u64::from(i) * 512;
    let mut segment = Segment::default();
    let mut join = Qmd::null();
    join.put(V04_00.counter, atoms)
        .release(0, 0x9000, 7)
        .arrive(3);
    segment.launch(M, &join, COPY);
    for i in 0..atoms {
        let mut atom = Qmd::grid(1, [(i + 1) * 100, 1, 1]);
        atom.resume([i * 100, 0, 0]).dependent(0, 4, M);
        segment.upload(slot(i), &atom.0);
    }
    for i in 0..atoms {
        segment.pcas(slot(i), SCHEDULE);
    }
    for order in orders() {
        let (report, memory) = execute(&[&segment.0], order);
        let last = report.runs.iter().filter(|run| run.count() > 0);
        let last = last.filter_map(|run| run.ended).max();
        let release = report
            .effects
            .iter()
            .find(|effect| matches!(effect.act, Act::Release(_)));
        assert!(release.map(|effect| effect.at) > last, "{order:?}");
        assert_eq!(
            memory.words().filter(|word| *word == (0x9000, 7)).count(),
            1
        );
        let blocks: u64 = report.runs.iter().map(gct_model::Run::count).sum();
        assert_eq!((blocks, report.waiting.len()), (800, 0));
    }
}

#[test]
fn pre_exit_signals_dependents_before_the_end_and_releases_after_it() {
    let mut segment = Segment::default();
    let mut grid = Qmd::grid(1, [10, 1, 1]);
    grid.put(V04_00.pre_exit, 1)
        .dependent(0, 1, N)
        .release(0, 0x9000, 7);
    segment.upload(N, &Qmd::grid(2, [10, 1, 1]).0);
    segment.launch(M, &grid, COPY);
    let (report, _) = execute(&[&segment.0], Order::Eager);
    let ended = report.runs[0].ended.expect("it ended");
    let at = |wanted: fn(&Act) -> bool| {
        let found = report.effects.iter().find(|effect| wanted(&effect.act));
        found.map(|effect| effect.at).expect("it happened")
    };
    assert!(at(|act| matches!(act, Act::Schedule(N))) < ended);
    assert!(at(|act| matches!(act, Act::Release(_))) > ended);
}

#[test]
fn captures_run_the_launches_of_their_readme() {
    let blocks = |name: &str| -> Vec<u64> {
        let mut machine = Machine::new(SparseMemory::new(1 << 10), Config::default());
        for (channel, words) in capture(name) {
            machine.submit(channel, &words);
        }
        let report = machine.run();
        assert_eq!(report.anomalies, [], "{name}");
        let counts = report.runs.iter().map(gct_model::Run::count);
        counts.filter(|count| *count > 0).collect()
    };
    assert_eq!(blocks("one_launch"), [1000]);
    assert_eq!(blocks("three_launches_same_stream"), [1001, 1002, 1003]);
    let mut two = blocks("two_streams_event");
    two.sort_unstable();
    assert_eq!(two, [1100, 1101]);
    assert_eq!(blocks("grid3d"), [30 * 20 * 10]);
    assert_eq!(blocks("dynamic_smem_64k"), [1200]);
    assert_eq!(blocks("cluster2"), [650], "in clusters of two");
    assert_eq!(blocks("pdl_pair"), [1400, 1401]);
    assert_eq!(blocks("graph4_upload"), [], "an upload runs no node");
    assert_eq!(blocks("memcpy_d2h_async"), []);
}

#[test]
fn a_graph_runs_its_nodes_in_order_each_time_it_is_replayed() {
    // The replay of `graph4` comes from another process. Its head is replaced by the upload's.
    let head = 0x2_04c0_0000;
    let mut machine = Machine::new(SparseMemory::new(1 << 10), Config::default());
    let upload = capture("graph4_upload");
    // The head is uploaded last. The upload itself schedules the nodes, which wait.
    machine.submit(CHANNEL, &upload[0].1);
    let mut replay = Segment::default();
    replay.pcas(head, COPY);
    machine.submit(CHANNEL, &replay.0);
    machine.submit(CHANNEL, &replay.0);
    let report = machine.run();
    let counts: Vec<u64> = report.runs.iter().map(gct_model::Run::count).collect();
    assert_eq!(counts, [0, 100, 101, 102, 103, 0, 100, 101, 102, 103]);
}

#[test]
fn the_two_launches_of_a_pdl_pair_are_chained_by_the_latch() {
    for order in orders() {
        let config = Config {
            order,
            ..Config::default()
        };
        let mut machine = Machine::new(SparseMemory::new(1 << 10), config);
        for (channel, words) in capture("pdl_pair") {
            machine.submit(channel, &words);
        }
        let report = machine.run();
        let grids: Vec<_> = report.runs.iter().filter(|run| run.count() > 0).collect();
        assert_eq!(grids.len(), 2, "{order:?}");
        assert!(grids[0].ended < Some(grids[1].started));
    }
}

#[test]
fn unmeasured_behaviour_is_reported() {
    let mut qmd = Qmd::grid(1, [10, 1, 1]);
    qmd.put(V04_00.counter, 3);
    let report = launch(&qmd, SCHEDULE);
    assert_eq!(report.anomalies, [Anomaly::UncopiedCondition(M)]);
    let mut segment = Segment::default();
    segment.pcas(M, 7);
    let (report, _) = execute(&[&segment.0], Order::Eager);
    assert_eq!(report.anomalies, [Anomaly::StrayDecrement(M)]);
}
