// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests that limits, counters and times arrive at the other side of a page.

use super::*;
use crate::shared::SharedFd;
use gct_core::policy::clock::Clock;
use gct_core::policy::share::{DutyCycle, Level, Share};
use gct_core::settings::Settings;
use gct_core::topology::Topology;
use gct_core::units::{Percent, Weight};
use proptest::prelude::*;

#[test]
fn a_new_page_has_no_limits() {
    let (_fd, page) = SharedFd::create::<Page>("page").unwrap();
    assert_eq!((page.generation(), page.limits()), (0, None));
    page.set_limits(1, &Limits::NONE);
    assert_eq!(page.limits(), Some((1, Limits::NONE)));
    let of = |settings: &Settings| {
        Limits::new(
            settings,
            &TpcMask::EMPTY,
            &Topology::UNKNOWN,
            &Share::NONE,
            Clock::new(900),
        )
    };
    assert_eq!(of(&Settings::DEFAULT), Limits::NONE);
    let slips = Settings {
        slip_power: Some(Percent(5)),
        ..Settings::DEFAULT
    };
    assert_eq!(
        of(&slips).clock,
        Clock::new(900),
        "who has a slip is told the clock"
    );
}

#[test]
fn a_ring_wakes_the_waiting_thread() {
    let (fd, page) = SharedFd::create::<Page>("page").unwrap();
    let theirs = crate::shared::Shared::<Page>::open(fd.writable()).unwrap();
    let started = std::time::Instant::now();
    let rings = theirs.rings();
    let waiting = std::thread::spawn(move || {
        theirs.wait(rings, Duration::from_secs(20));
        // The second wait returns at once: the bell has rung since.
        theirs.wait(rings, Duration::from_secs(20));
    });
    page.ring();
    waiting.join().unwrap();
    assert!(started.elapsed() < Duration::from_secs(10));
}

#[test]
fn counters_and_masks_arrive() {
    let (_fd, page) = SharedFd::create::<Page>("page").unwrap();
    let mut counters = Counters::new();
    (counters.launches, counters.narrowed, counters.stalled) = (5, 2, 1);
    counters.crowded = 7;
    counters.keep(Reason::Queue);
    page.set_counters(&counters);
    let launches = page.launches();
    assert_eq!((launches.launches, launches.passed_total()), (5, 1));
    assert_eq!((launches.narrowed, launches.stalled), (2, 1));
    assert_eq!(launches.crowded, 7);
    assert_eq!(launches.passed, counters.kept);
    assert_eq!(page.faults(), (0, 0));
    page.fault(31);
    page.fault(43);
    assert_eq!(page.faults(), (2, 43));
    assert_eq!(page.effective(), EffectiveTpcs::Unknown);
    page.set_effective(None);
    assert_eq!(page.effective(), EffectiveTpcs::All);
    page.set_effective(Some([1, 2, 3, 4]));
    assert_eq!(
        page.effective(),
        EffectiveTpcs::Mask(TpcMask::from_words([1, 2, 3, 4]))
    );
}

#[test]
fn times_arrive() {
    let (_fd, page) = SharedFd::create::<Page>("page").unwrap();
    assert_eq!((page.time(), page.pending()), (GpuTime::ZERO, 0));
    let mut time = GpuTime::ZERO;
    time.use_time(Ns(10), 1, 2);
    let mut holds = gct_core::gpu_time::Holds::default();
    holds.add(Hold::Max);
    time.wait(Ns(7), holds);
    page.set_time(&time, 3);
    assert_eq!((page.time(), page.pending()), (time, 3));
}

#[test]
fn requests_arrive() {
    let (_fd, page) = SharedFd::create::<Page>("page").unwrap();
    assert_eq!(
        (page.requests(), page.open_request(Ns(7))),
        (Histogram::NEW, Ns(0))
    );
    page.count_request(Ns(3_000_000));
    page.count_request(Ns::MAX);
    let mut both = Histogram::NEW;
    both.count_one(Us(3_000));
    both.count_one(Us::MAX);
    assert_eq!(page.requests(), both);
    page.set_open_request(Some(Ns(100)));
    assert_eq!(page.open_request(Ns(150)), Ns(50));
    assert_eq!(page.open_request(Ns(50)), Ns(0), "of the future");
    page.set_open_request(None);
    assert_eq!(page.open_request(Ns(150)), Ns(0));
}

#[test]
fn what_was_measured_at_clocks_arrives() {
    let (_fd, page) = SharedFd::create::<Page>("page").unwrap();
    assert_eq!(page.clock_sums(), Sums::ZERO);
    let sums = Sums {
        base: Ns(5),
        sensitive: Ns(3),
        fresh: Ns(2),
    };
    page.set_clock_sums(&sums);
    assert_eq!(page.clock_sums(), sums);
}

/// Nobody waits for a slice that nobody wrote, and no process refuses it.
#[test]
fn a_slice_that_nobody_wrote_is_not_controlled() {
    let limits = |timeslice_us, yields, frozen| Limits {
        timeslice_us,
        yields,
        frozen,
        ..Limits::NONE
    };
    assert_eq!(limits(0, false, false).controlled(), (0, false));
    assert_eq!(limits(500, false, false).controlled(), (500, false));
    assert_eq!(limits(500, true, false).controlled(), (0, false));
    assert_eq!(limits(500, true, true).controlled(), (0, true));
}

proptest! {
    #[test]
    fn limits_survive_the_page(
        tpcs: Option<MaskWords>, quota: Option<u16>, atom_ns: u64,
        flags: [bool; 5], timeslice_us: u32, priority: u8, gmem_limit: u64, topology: [u64; 5],
        weights: [Option<u16>; 2], cycles: [Option<(u32, u32)>; 2], taken in 0u8..4, slip: u8,
        slip_power: u8, own: MaskWords, clock in proptest::option::of(1u64..=1000),
    ) {
        let level = |at: usize| Level {
            weight: weights[at].map(|weight| Weight(weight.max(1))),
            max: cycles[at].map(|(quota, period)| DutyCycle {
                quota: Ns(u64::from(quota.max(1)) * 1000),
                period: Ns(u64::from(period.max(1)) * 1000),
            }),
        };
        let share = Share { owner: level(0), own: level(1) };
        let topology = Topology::from_words(topology);
        let [steal, frozen, pressed, yields, timed] = flags;
        let limits = Limits {
            tpcs, quota, steal, atom_ns, frozen, timeslice_us, priority, gmem_limit, pressed,
            taken, slip: Percent(slip), yields, timed, topology, share,
            slip_power: Percent(slip_power), clock: clock.and_then(Clock::new), own,
        };
        prop_assert_eq!(Limits::from_words(&limits.words()), limits);
    }

    /// Checks that arbitrary words decode to limits without a panic.
    #[test]
    fn any_words_are_limits(words: [u64; LIMIT_WORDS]) {
        let limits = Limits::from_words(&words);
        prop_assert_eq!(Limits::from_words(&limits.words()), limits);
    }
}
