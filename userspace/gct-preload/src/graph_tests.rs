// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A CUDA graph's upload and its replays on a simulated GPU.

use crate::governor::{Governor, Next};
use crate::limits::Limits;
use crate::simulated::{low_memory, words_of, Bench};
use gct_core::launches::Launches;
use gct_core::mask::TpcMask;
use gct_core::policy::pace::{self, InFlight};
use gct_core::submit::mask::DisabledTpcs;
use gct_core::units::Ns;
use gct_model::Order;

#[test]
fn a_graph_obeys_the_mask_of_each_replay() {
    let mut bench = Bench::new(8, Limits::NONE, Order::Eager);
    // Where the captured replay tells its end.
    let page = low_memory(0x2_0460_f000, 4096);
    bench.machine.memory().mapped.push((page, 4096));
    let upload = words_of(include_str!(
        "../../../tests/fixtures/captures/graph4_upload.pbcap"
    ));
    bench.submit(&upload, 32 << 10);
    assert_eq!(bench.masks(), [], "an upload runs nothing");
    let mut replay = words_of(include_str!(
        "../../../tests/fixtures/captures/graph4.pbcap"
    ));
    let limits = |list: &str| Limits {
        mask: DisabledTpcs::outside(128, &TpcMask::parse(list.as_bytes()).unwrap()).ok(),
        ..Limits::NONE
    };
    for (number, list) in (1u32..).zip(["0-127", "0-3", "0-3", "64-69", "0-127"]) {
        let limits = match list {
            "0-127" => Limits::NONE,
            list => limits(list),
        };
        let mask = limits.mask.map_or([0; 8], |mask| *mask.words());
        bench.governor.set_limits(limits);
        // The payload of its release counts up.
        assert_eq!(replay[14..17], [0x2004_26c0, 2, 0x0460_ffe0]);
        replay[17] = number;
        bench.submit(&replay, 2048 * bench.put as usize);
        let wanted = [100, 101, 102, 103].map(|blocks| (blocks, mask));
        assert_eq!(bench.masks(), wanted, "{list}");
    }
    let counters = bench.governor.counters();
    assert_eq!((counters.replays, counters.kept_total()), (5, 5));
    assert_eq!(Launches::of(counters).passed_total(), 0);
}

#[test]
fn a_patched_replay_waits_for_what_is_in_flight_but_not_for_ever() {
    let mut governor = Governor::new();
    let next = Next::Whole {
        entry: 0,
        piece: None,
        drains_since: Some(Ns(100)),
    };
    let mut in_flight = InFlight::default();
    assert!(governor.admits(&in_flight, &next, 100));
    in_flight.add(Ns(0));
    let last = 100 + pace::DRAIN_MAX.get();
    assert!(!governor.admits(&in_flight, &next, last - 1));
    assert!(governor.admits(&in_flight, &next, last));
}
