// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests a CUDA graph's upload and its replays on a simulated GPU.

use crate::limits::LaunchLimits;
use crate::simulated::{low_memory, words_of, Bench};
use gct_core::mask::TpcMask;
use gct_core::policy::clock::kernels::Sums;
use gct_core::policy::clock::Clock;
use gct_core::policy::pace;
use gct_core::submit::mask::DisabledTpcs;
use gct_core::units::{Ns, Percent};
use gct_model::{Config, Order};

/// Returns the captured upload and replay of a graph of four nodes. `number` keeps tests apart. The
/// replay's release payload is word 17.
pub(super) fn graph(bench: &mut Bench, number: u32) -> (Vec<u32>, Vec<u32>) {
    // The pages of the segments' releases, and of the word that the last node adds to.
    for page in [0x2_0460_f000, 0x2_0462_7000] {
        let page = low_memory(page + number as usize * 0x10_0000, 4096);
        bench.machine.memory().mapped.push((page, 4096));
    }
    let mut upload = words_of(include_str!(
        "../../../../tests/fixtures/captures/graph4_upload.pbcap"
    ));
    let mut replay = words_of(include_str!(
        "../../../../tests/fixtures/captures/graph4.pbcap"
    ));
    assert_eq!(replay[14..17], [0x2004_26c0, 2, 0x0460_ffe0]);
    replay[16] += number * 0x10_0000;
    for word in upload.iter_mut().chain(&mut replay) {
        if *word == 0x0462_7fdc {
            *word += number * 0x10_0000;
        }
    }
    (upload, replay)
}

/// The limits of a tenant whose work in flight is tracked, and never held back.
const PACED: LaunchLimits = LaunchLimits {
    atom_ns: u64::MAX,
    ..LaunchLimits::NONE
};

/// Returns a bench in which work takes time, with a graph uploaded, and the replay. `pages`
/// keeps tests apart.
fn timed_graph(pages: u32) -> (Bench, Vec<u32>) {
    let timed = Config {
        timed: true,
        ..Config::default()
    };
    let mut bench = Bench::with(PACED, timed);
    let (upload, replay) = graph(&mut bench, pages);
    bench.submit(&upload, 32 << 10);
    bench.drain(0);
    (bench, replay)
}

#[test]
fn a_graph_obeys_the_mask_of_each_replay() {
    let mut bench = Bench::new(LaunchLimits::NONE, Order::Eager);
    let (upload, mut replay) = graph(&mut bench, 0);
    bench.submit(&upload, 32 << 10);
    assert_eq!(bench.masks(), [], "an upload runs nothing");
    let limits = |list: &str| LaunchLimits {
        tpcs: TpcMask::parse(list.as_bytes()).ok(),
        ..LaunchLimits::NONE
    };
    for (number, list) in (1u32..).zip(["0-127", "0-3", "0-3", "64-69", "0-127"]) {
        let limits = match list {
            "0-127" => LaunchLimits::NONE,
            list => limits(list),
        };
        let kept = limits.allowed(bench.governor.gpu());
        let mask = DisabledTpcs::outside(bench.governor.gpu(), &kept).unwrap();
        let mask = *mask.words();
        bench.governor.set_limits(limits);
        // The payload of its release counts up.
        replay[17] = number;
        bench.submit(&replay, 2048 * bench.put as usize);
        let wanted = [100, 101, 102, 103].map(|blocks| (blocks, mask));
        assert_eq!(bench.masks(), wanted, "{list}");
    }
    let counters = bench.governor.counters();
    assert_eq!((counters.replays, counters.kept_total()), (5, 5));
    assert_eq!(counters.shown().passed_total(), 0);
}

#[test]
fn a_replay_with_another_mask_waits_for_what_is_in_flight_but_not_for_ever() {
    let (mut bench, replay) = timed_graph(1);
    assert!(bench.launch());
    assert_eq!(bench.running().len(), 1, "it does not end");
    bench.governor.set_limits(LaunchLimits {
        tpcs: TpcMask::parse(b"0-3").ok(),
        ..PACED
    });
    let published = |bench: &Bench| bench.channel.published();
    let before = published(&bench);
    bench.submit(&replay, 8 << 10);
    bench.running();
    assert_eq!(published(&bench), before, "it waits");
    bench.pass(pace::DRAIN_MAX.get() - 1_000_000);
    bench.running();
    assert_eq!(published(&bench), before);
    bench.pass(1_000_000);
    bench.running();
    assert_eq!(published(&bench), before + 1, "not for ever");
}

/// Checks that a graph gets fewer TPCs under a slip, also where no daemon gives new limits, and
/// never fewer than hold a node at once. Four TPCs hold the blocks of each.
#[test]
fn a_graph_under_a_slip_is_narrowed() {
    let (mut bench, mut replay) = timed_graph(3);
    bench.governor.set_limits(LaunchLimits {
        slip: Percent(50),
        ..PACED
    });
    let mut least = u32::MAX;
    for number in 1..300 {
        replay[17] = number;
        replay[9] = 5 + 4 * number;
        bench.submit(&replay, 2048 * (bench.put as usize % 64));
        for _ in 0..4 {
            let running = bench.running();
            let disabled = bench.machine.report().runs[running[0]].mask.0;
            let disabled: u32 = disabled.iter().map(|word| word.count_ones()).sum();
            least = least.min(128 - disabled);
            // Its time does not depend on its TPCs.
            for _ in 0..40 {
                bench.pass(25_000);
                bench.running();
            }
            bench.machine.finish(running[0]);
        }
        bench.running();
    }
    let counters = bench.governor.counters();
    assert!(counters.sums.slip_narrowed > 100, "{counters:?}");
    assert_eq!(counters.sums.slip_refused, 0);
    assert!((4..=64).contains(&least), "{least} TPCs");
}

/// Checks that the times of a graph's replays are measured at the clock, while there is a slip of
/// it and the clock is not being changed.
#[test]
fn a_graph_s_times_are_measured_at_the_clock() {
    let (mut bench, mut replay) = timed_graph(5);
    let mut number = 0;
    let mut sums = |slip: u8, clock: Option<Clock>| {
        bench.governor.set_limits(LaunchLimits {
            slip_power: Percent(slip),
            clock,
            ..PACED
        });
        for _ in 0..40 {
            number += 1;
            replay[17] = number;
            replay[9] = 5 + 4 * number;
            bench.submit(&replay, 2048 * (bench.put as usize % 64));
            for _ in 0..4 {
                let running = bench.running();
                for _ in 0..40 {
                    bench.pass(25_000);
                    bench.running();
                }
                bench.machine.finish(running[0]);
            }
            bench.running();
        }
        bench.governor.clock_sums()
    };
    assert_eq!(sums(0, Some(Clock::FULL)), Sums::ZERO);
    assert_eq!(sums(10, None), Sums::ZERO);
    let measured = sums(10, Some(Clock::FULL));
    assert!(measured.fresh > Ns(10_000_000), "{measured:?}");
    assert!(measured.base > measured.fresh, "{measured:?}");
    assert_eq!(measured.base, measured.sensitive);
}

#[test]
fn a_replay_is_in_flight_until_its_last_node_ends() {
    let (mut bench, mut replay) = timed_graph(2);
    for number in 1..4 {
        replay[17] = number;
        // The driver stores another number for each replay. The last node adds one to it.
        replay[9] = 5 + 4 * number;
        bench.submit(&replay, 2048 * bench.put as usize);
        for node in 0..4 {
            let running = bench.running();
            assert_eq!(running.len(), 1, "node {node}");
            assert!(bench.is_pending(), "node {node} of replay {number} runs");
            bench.pass(1_000_000);
            bench.machine.finish(running[0]);
        }
        assert_eq!(bench.running(), [] as [usize; 0]);
        assert!(!bench.is_pending(), "replay {number} has ended");
    }
    assert_eq!(bench.governor.counters().sums.stalled, 0);
}

/// Checks that a replay is predicted from the second one on, with its nodes as a whole, and that
/// one which takes longer is counted.
#[test]
fn a_replay_is_predicted_as_a_whole() {
    let (mut bench, mut replay) = timed_graph(4);
    let mut seen = Vec::new();
    for (number, node_ns) in (1..).zip([250_000, 250_000, 250_000, 500_000]) {
        replay[17] = number;
        replay[9] = 5 + 4 * number;
        bench.submit(&replay, 2048 * bench.put as usize);
        for _ in 0..4 {
            let running = bench.running();
            bench.pass(node_ns);
            bench.machine.finish(running[0]);
        }
        bench.running();
        let counters = bench.governor.counters();
        seen.push((counters.sums.predicted, counters.sums.mispredicted));
    }
    assert_eq!(seen, [(0, 0), (1, 0), (2, 0), (3, 1)]);
}
