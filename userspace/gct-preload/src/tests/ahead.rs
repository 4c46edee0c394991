// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests entries that are published before they are read.

use super::graph::graph;
use crate::limits::LaunchLimits;
use crate::simulated::Bench;
use gct_core::mask::TpcMask;
use gct_core::submit::mask::DisabledTpcs;
use gct_model::Order;

fn narrow() -> LaunchLimits {
    LaunchLimits {
        tpcs: TpcMask::parse(b"0-3").ok(),
        ..LaunchLimits::NONE
    }
}

/// Returns how many launches were read. Each has a companion, which counts, too.
fn launches(bench: &Bench) -> u64 {
    bench.governor.counters().sums.launches / 2
}

#[test]
fn launches_go_before_they_are_read() {
    let mut bench = Bench::new(LaunchLimits::NONE, Order::Eager);
    bench.ahead = 2;
    for _ in 0..3 {
        assert!(bench.launch());
    }
    bench.work();
    assert_eq!((bench.channel.published(), launches(&bench)), (3, 1));
    assert!(bench.is_pending(), "the worker looks again");
    while bench.step() {}
    bench.ahead = 0;
    bench.work();
    assert_eq!(launches(&bench), 3);
    bench.check(3);
}

#[test]
fn a_tenant_writes_over_no_entry_that_is_not_read() {
    let mut bench = Bench::new(LaunchLimits::NONE, Order::Eager);
    bench.ahead = u32::MAX;
    let mut submitted = 0;
    for _ in 0..20 {
        while bench.launch() {
            submitted += 1;
        }
        bench.work();
        let unread = submitted - launches(&bench);
        assert!(unread <= 2, "{unread} of a ring of 8 entries");
        while bench.step() {}
    }
    assert!(submitted > 40, "{submitted}");
}

#[test]
fn nothing_passes_what_was_published_before_a_limit() {
    let mut bench = Bench::new(LaunchLimits::NONE, Order::Eager);
    bench.ahead = 2;
    assert!(bench.launch() && bench.launch());
    bench.work();
    assert_eq!((bench.channel.published(), launches(&bench)), (2, 0));
    bench.governor.set_limits(narrow());
    assert!(bench.launch());
    let masks = bench.masks();
    let disabled: Vec<u32> = masks
        .iter()
        .map(|(_, mask)| mask.iter().map(|word| word.count_ones()).sum())
        .collect();
    assert_eq!((launches(&bench), disabled), (3, vec![0, 0, 124]));
}

/// Checks that nodes which nobody could arm in their upload are armed by the first replay that
/// needs a mask.
#[test]
fn a_graph_that_is_read_after_its_upload_obeys_a_mask() {
    let mut bench = Bench::new(LaunchLimits::NONE, Order::Eager);
    bench.ahead = 2;
    let (upload, mut replay) = graph(&mut bench, 6);
    bench.submit(&upload, 32 << 10);
    replay[17] = 1;
    bench.submit(&replay, 2048 * bench.put as usize);
    bench.work();
    let replays = |bench: &Bench| bench.governor.counters().replays;
    assert_eq!((bench.channel.published(), replays(&bench)), (2, 0));
    while bench.step() {}
    for (number, limits) in (2..).zip([narrow(), LaunchLimits::NONE, LaunchLimits::NONE]) {
        bench.governor.set_limits(limits);
        replay[17] = number;
        bench.submit(&replay, 2048 * bench.put as usize);
        bench.ahead = 0;
        let kept = limits.allowed(bench.governor.gpu());
        let mask = *DisabledTpcs::outside(bench.governor.gpu(), &kept)
            .unwrap()
            .words();
        let wanted = [100, 101, 102, 103].map(|blocks| (blocks, mask));
        assert_eq!(bench.masks(), wanted, "replay {number}");
    }
    let counters = bench.governor.counters();
    assert_eq!((counters.replays, counters.kept_total()), (4, 4));
}
