// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Checks that the captures of an H200 decode to the launches that their README describes.

use std::string::String;
use std::vec;
use std::vec::Vec;

use crate::submit::launch::{Kind, Launch};
use crate::submit::methods::Action;
use crate::submit::qmd::Version;
use crate::submit::reason::Reason;
use crate::submit::stats::Counters;
use crate::submit::tracker::{QmdCall, Source, Tracker};

/// One GPFIFO entry of a capture.
pub(super) struct Segment {
    pub(super) channel: u32,
    pub(super) class: u16,
    pub(super) words: Vec<u32>,
}

macro_rules! capture {
    ($name:literal) => {
        (
            $name,
            include_str!(concat!(
                "../../../../tests/fixtures/captures/",
                $name,
                ".pbcap"
            )),
        )
    };
}

/// Names and texts of all captures.
pub(super) const CAPTURES: &[(&str, &str)] = &[
    capture!("cluster2"),
    capture!("cooperative"),
    capture!("dynamic_smem_64k"),
    capture!("graph4"),
    capture!("graph4_upload"),
    capture!("graph_chains"),
    capture!("graph_chains_first"),
    capture!("graph_clusters"),
    capture!("graph_clusters_first"),
    capture!("graph_fork"),
    capture!("graph_fork_upload"),
    capture!("graph_single"),
    capture!("graph_single_first"),
    capture!("graph_tails"),
    capture!("graph_tails_upload"),
    capture!("grid3d"),
    capture!("memcpy_d2h_async"),
    capture!("one_launch"),
    capture!("pdl_pair"),
    capture!("three_launches_same_stream"),
    capture!("two_streams_event"),
];

/// Parses the entries of a capture.
pub(super) fn segments(name: &str) -> Vec<Segment> {
    let text = CAPTURES.iter().find(|capture| capture.0 == name).unwrap().1;
    let value = |line: &str, key: &str| -> String {
        let rest = line.split_once(key).unwrap().1;
        rest.split_whitespace().next().unwrap().into()
    };
    text.lines()
        .filter(|line| line.starts_with("gp "))
        .map(|line| {
            let words: Vec<u32> = line
                .split_once(" :")
                .unwrap()
                .1
                .split_whitespace()
                .map(|word| u32::from_str_radix(word, 16).unwrap())
                .collect();
            assert_eq!(words.len(), value(line, "words=").parse::<usize>().unwrap());
            Segment {
                channel: value(line, "ch=").parse().unwrap(),
                class: u16::from_str_radix(&value(line, "class="), 16).unwrap(),
                words,
            }
        })
        .collect()
}

/// Scans one segment with a new tracker.
pub(super) fn scan(segment: &Segment) -> (Vec<QmdCall>, Counters) {
    let mut found = vec![QmdCall::default(); 64];
    let mut counters = Counters::new();
    let scan = Tracker::new(segment.class).scan(&segment.words, &mut found, &mut counters);
    assert_eq!((scan.missed, scan.refused), (0, None));
    found.truncate(scan.found);
    (found, counters)
}

/// Returns the launches of a capture that have blocks.
fn launches(name: &str) -> Vec<Launch> {
    let mut launches = Vec::new();
    for segment in segments(name) {
        let (found, counters) = scan(&segment);
        assert_eq!(counters.kept_total(), 0, "{name}: {counters:?}");
        let all = found.iter().filter(|found| found.is_launch());
        let read = all.map(|found| found.launch(&segment.words).unwrap());
        launches.extend(read.filter(|launch| launch.kind != Kind::Null));
    }
    launches
}

#[test]
fn plain_launches_are_what_was_launched() {
    for (name, grids, block) in [
        ("one_launch", vec![[1000, 1, 1]], [128, 1, 1]),
        (
            "three_launches_same_stream",
            vec![[1001, 1, 1], [1002, 1, 1], [1003, 1, 1]],
            [128, 1, 1],
        ),
        (
            "two_streams_event",
            vec![[1100, 1, 1], [1101, 1, 1]],
            [128, 1, 1],
        ),
        ("grid3d", vec![[30, 20, 10]], [8, 8, 2]),
        ("dynamic_smem_64k", vec![[1200, 1, 1]], [256, 1, 1]),
        ("pdl_pair", vec![[1400, 1, 1], [1401, 1, 1]], [128, 1, 1]),
    ] {
        let launches = launches(name);
        assert_eq!(launches.len(), grids.len(), "{name}");
        for (launch, grid) in launches.iter().zip(grids) {
            assert_eq!(launch.kind, Kind::Grid, "{name}");
            assert_eq!(launch.grid, grid, "{name}");
            assert_eq!(launch.grid_in_blocks(), grid, "{name}");
            assert_eq!(launch.block, block, "{name}");
            assert_eq!(launch.version, Version::V04_00);
            assert_eq!(launch.registers, 16, "{name}");
            assert_eq!(launch.resume, [0; 3]);
            assert!(
                launch.program > 0x7f00_0000_0000,
                "{name}: {:x}",
                launch.program
            );
        }
    }
}

#[test]
fn dynamic_shared_memory_is_in_the_launch() {
    let [launch] = launches("dynamic_smem_64k")[..] else {
        panic!("one launch");
    };
    // 64 KiB and the 1 KiB that the system reserves.
    assert_eq!(launch.shared_memory_bytes, 65536 + 1024);
    let [launch] = launches("one_launch")[..] else {
        panic!("one launch");
    };
    assert_eq!(launch.shared_memory_bytes, 1024);
}

#[test]
fn a_cluster_launch_counts_its_grid_in_clusters() {
    let [launch] = launches("cluster2")[..] else {
        panic!("one launch");
    };
    assert_eq!(launch.kind, Kind::Cluster);
    assert_eq!(launch.grid, [650, 1, 1]);
    assert_eq!(launch.cluster, Some([2, 1, 1]));
    assert_eq!(launch.grid_in_blocks(), [1300, 1, 1]);
    assert_eq!(launch.blocks(), 1300);
}

#[test]
fn a_cooperative_launch_is_a_gang() {
    let [launch] = launches("cooperative")[..] else {
        panic!("one launch");
    };
    assert_eq!(launch.kind, Kind::Cooperative);
    assert_eq!(launch.grid, [1, 1, 1]);
    assert_eq!(launch.gang, Some([132, 1, 1]));
    assert_eq!(launch.grid_in_blocks(), [132, 1, 1]);
    assert_eq!(launch.block, [64, 1, 1]);
}

#[test]
fn the_effects_of_a_launch_are_those_that_the_research_lists() {
    let segments = segments("one_launch");
    let (found, _) = scan(&segments[0]);
    let [companion, main] = &found[..] else {
        panic!("two calls");
    };
    let words = &segments[0].words;
    assert_eq!(
        (companion.qmd_va, main.qmd_va),
        (0x2_04e1_3800, 0x2_04e0_f800)
    );
    assert_eq!(main.action, Action::InvalidatePrefetchCopySchedule);
    let companion = companion.launch(words).unwrap();
    assert_eq!(companion.kind, Kind::Null);
    assert_eq!(companion.waits.dependences, 2);
    assert!(companion.effects.self_copy);
    let main = main.launch(words).unwrap();
    let release = main.effects.releases[0].unwrap();
    assert_eq!(
        (release.va, release.payload, release.words),
        (0x2_0463_7f04, 6, 1)
    );
    assert_eq!(main.effects.releases[1..], [None; 2]);
    assert_eq!(main.effects.dependents[0].unwrap().va, Some(0x2_04e1_3800));
    assert_eq!(main.effects.arrive_latch, Some(15));
    assert!(main.effects.pre_exit);
}

#[test]
fn programmatic_dependents_wait_and_their_trigger_is_seen() {
    let segments = segments("pdl_pair");
    let (found, _) = scan(&segments[1]);
    let sources: Vec<_> = found
        .iter()
        .map(|found| (found.source, found.action))
        .collect();
    let schedule = Action::InvalidatePrefetchCopySchedule;
    assert_eq!(
        sources,
        [
            (Source::Upload, schedule),
            (Source::Upload, schedule),
            (Source::Touch, Action::DecrementDependence)
        ]
    );
    let main = found[1].launch(&segments[1].words).unwrap();
    assert_eq!(main.waits.latch, Some(0x3a));
    assert!(main.waits.requires_pcas);
    let (first, _) = scan(&segments[0]);
    // The first launch decrements its companion, and the companion schedules the second launch.
    assert_eq!(found[2].qmd_va, first[0].qmd_va);
    let companion = first[0].launch(&segments[0].words).unwrap();
    assert_eq!(
        companion.effects.dependents[0].unwrap().va,
        Some(found[1].qmd_va)
    );
}

#[test]
fn a_copy_engine_has_no_launches() {
    let segments = segments("memcpy_d2h_async");
    let (found, counters) = scan(&segments[0]);
    assert_eq!(
        (segments[0].channel, found.len(), counters.sums.launches),
        (12, 0, 0)
    );
}

#[test]
fn a_replay_names_a_qmd_that_is_not_in_its_segment() {
    let (found, counters) = scan(&segments("graph4")[0]);
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].source, Source::Elsewhere);
    assert_eq!(found[0].qmd_va, 0x2_04c0_0000);
    assert_eq!(counters.kept(Reason::NotHere), 1);
}

#[test]
fn a_graphs_upload_stores_its_nodes_and_its_head() {
    let segments = segments("graph4_upload");
    let (found, counters) = scan(&segments[0]);
    assert_eq!(counters.kept_total(), 0);
    let seen: Vec<_> = found
        .iter()
        .map(|found| {
            let launch = found.launch(&segments[0].words).unwrap();
            (
                found.source,
                found.qmd_va & 0xfff,
                launch.grid[0],
                launch.waits.requires_pcas,
            )
        })
        .collect();
    assert_eq!(
        seen,
        [
            (Source::Upload, 0x800, 103, true),
            (Source::Upload, 0x600, 102, true),
            (Source::Upload, 0x400, 101, true),
            (Source::Upload, 0x200, 100, true),
            (Source::Stored, 0x000, 0, false),
        ]
    );
}

#[test]
fn the_last_semaphore_of_a_segment_is_kept() {
    let segments = segments("one_launch");
    let mut tracker = Tracker::new(segments[0].class);
    tracker.scan(&segments[0].words, &mut [], &mut Counters::new());
    let release = tracker.last_release().unwrap();
    assert_eq!(
        (release.va, release.payload, release.execute),
        (0x2_0460_fff0, 0x59, 4)
    );
    assert_eq!(tracker.first_acquire(), None);
}
