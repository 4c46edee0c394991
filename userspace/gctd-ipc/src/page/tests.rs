// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests that limits, counters and times arrive at the other side of a page.

use super::*;
use crate::shared::{Shared, SharedFd, PAGE_BYTES};
use core::mem::offset_of;
use gct_core::lane::limits::LaunchLimits;
use gct_core::policy::clock::Clock;
use gct_core::policy::native::Native;
use gct_core::policy::share::{DutyCycle, Level, Share};
use gct_core::policy::tpc::Rank;
use gct_core::settings::Settings;
use gct_core::topology::Topology;
use gct_core::units::{Percent, Priority, Weight};
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
        of(&slips).launches.clock,
        Clock::new(900),
        "who has a slip is told the clock"
    );
}

#[test]
fn a_ring_wakes_the_waiting_thread() {
    let (fd, page) = SharedFd::create::<Page>("page").unwrap();
    let theirs = Shared::<Page>::open(fd.writable()).unwrap();
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
    for (value, count) in (5..).zip(COUNTS) {
        (count.set)(&mut counters.sums, value);
    }
    counters.keep(Reason::Queue);
    page.set_counters(&counters);
    let launches = page.launches();
    assert_eq!((launches.launches, launches.passed_total()), (5, 1));
    assert_eq!(launches, counters.sums);
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
fn unmanaged_channels_arrive_by_reason() {
    let (_fd, page) = SharedFd::create::<Page>("page").unwrap();
    assert!(!page.has_unmanaged() && page.unmanaged().all(|count| count == 0));
    page.set_unmanaged((0..).take(Unmanaged::COUNT));
    assert!(page.has_unmanaged() && page.unmanaged().eq((0..).take(Unmanaged::COUNT)));
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
        launches: LaunchLimits {
            frozen,
            ..LaunchLimits::NONE
        },
        ..Limits::NONE
    };
    assert_eq!(limits(0, false, false).controlled(), (0, false));
    assert_eq!(limits(500, false, false).controlled(), (500, false));
    assert_eq!(limits(500, true, false).controlled(), (0, false));
    assert_eq!(limits(500, true, true).controlled(), (0, true));
}

/// Checks that each field lies where it always did. New ones are appended.
#[test]
fn the_page_keeps_its_form() {
    for (found, wanted) in [
        (offset_of!(Page, limits), 0),
        (offset_of!(Page, bell), 184),
        (offset_of!(Page, counters.launches), 192),
        (offset_of!(Page, counters.unmanaged), 296),
        (offset_of!(Page, counters.unreadable), 304),
        (offset_of!(Page, counters.faults), 312),
        (offset_of!(Page, counters.last_xid), 320),
        (offset_of!(Page, counters.acknowledged), 328),
        (offset_of!(Page, counters.effective), 336),
        (offset_of!(Page, counters.used), 376),
        (offset_of!(Page, counters.weighted), 384),
        (offset_of!(Page, counters.waited), 392),
        (offset_of!(Page, counters.held), 400),
        (offset_of!(Page, counters.pending), 464),
        (offset_of!(Page, counters.kept), 472),
        (offset_of!(Page, counters.requests), 984),
        (offset_of!(Page, counters.clock_base), 2520),
        (offset_of!(Page, counters.clock_sensitive), 2528),
        (offset_of!(Page, counters.clock_fresh), 2536),
        (offset_of!(Page, counters.open_request), 2544),
        (offset_of!(Page, counters.unmanaged_by), 2552),
        (offset_of!(Page, counters.late_launches), 2808),
        (PAGE_BYTES, 8192),
    ] {
        assert_eq!(found, wanted);
    }
}

/// Checks that indices of the page mean what they always did. New ones are appended.
#[test]
fn counters_keep_their_places() {
    const KEYS: &str = "launches rewritten split atoms predicted mispredicted narrowed spared \
        slip_narrowed slip_refused slip_saved_usec stalled crowded refused";
    assert!(COUNTS
        .iter()
        .map(|count| count.key)
        .eq(KEYS.split_whitespace()));
}

/// The same of reasons.
#[test]
fn reasons_keep_their_places() {
    const REASONS: &str = "old-form bad-header segment-too-long segment-too-slow qmd-not-here \
        qmd-fragmented qmd-patched qmd-version qmd-ambiguous qmd-virtualized macro \
        macro-fill table-full no-address queue null kind cooperative too-wide \
        waits-on-latch requires-pcas dependence-counter self-copy sequential resumed \
        launch-queue one-unit not-measured inline-qmd pcas-action qmd-shared \
        i2m-registers mask-too-narrow mask-empty graph-replay graph-memory-full \
        unreadable releases sub-tasks";
    let reasons = Reason::ALL.iter().map(|reason| reason.name());
    let reasons = reasons.collect::<Vec<_>>().join(" ");
    assert!(reasons.starts_with(REASONS), "{reasons}");
    let holds = Hold::ALL.iter().map(|hold| hold.name());
    let holds = holds.collect::<Vec<_>>().join(" ");
    assert!(
        holds.starts_with("freeze tpcs atoms graph weight max"),
        "{holds}"
    );
}

/// Checks that each limit lies in the bits where it always did. New ones have bits that were 0.
#[test]
fn limits_keep_their_form() {
    let level = |weight, quota, period| Level {
        weight: Some(Weight(weight)),
        max: Some(DutyCycle {
            quota: Ns(quota),
            period: Ns(period),
        }),
    };
    let limits = Limits {
        launches: LaunchLimits {
            tpcs: Some(TpcMask::from_words([1, 2, 3, 4])),
            atom_ns: 6,
            tried: true,
            frozen: true,
            steal: true,
            rank: Rank {
                best_effort: true,
                priority: Priority(8),
            },
            pressed: true,
            taken: 3,
            timed: true,
            slip: Percent(10),
            slip_power: Percent(11),
            clock: Clock::new(12),
            share: Share {
                owner: level(21, 22_000, 23_000),
                own: level(24, 25_000, 26_000),
            },
            ..LaunchLimits::NONE
        },
        timeslice_us: 7,
        yields: true,
        gmem_limit: 9,
        own: [13, 14, 15, 16],
        topology: Topology::from_words([17, 18, 19, 20, 2 << 16 | 9]),
        native: Some(Native::MemoryOnly),
        binds_launches: true,
        is_stray: true,
    };
    let golden = [
        0x0c0b_0aff,
        1,
        2,
        3,
        4,
        0,
        6,
        7,
        0x3b08,
        9,
        17,
        18,
        19,
        20,
        2 << 16 | 9,
        24 << 16 | 21,
        22 << 32 | 23,
        25 << 32 | 26,
        13,
        14,
        15,
        16,
    ];
    let words = limits.words();
    assert_eq!(words.get(..22), Some(&golden[..]));
    assert!(words.iter().skip(22).all(|word| *word == 0));
    // A daemon that knows no further limits has written none.
    assert_eq!(Limits::from_words(&words), limits);
    // An older daemon writes the quota of an owner that is not best effort.
    let quota = [&words[..5], &[5], &words[6..]].concat();
    let read = Limits::from_words(&quota.try_into().unwrap());
    assert!(!read.launches.rank.best_effort);
}

/// Checks that an older side does not see what a newer one appends, and that a newer one finds 0
/// where an older one writes nothing.
#[test]
fn pages_of_other_versions_are_understood() {
    #[repr(C)]
    struct Newer {
        page: Page,
        appended: [AtomicU64; 8],
    }
    // SAFETY: consists of atomics.
    unsafe impl crate::shared::Shareable for Newer {}

    let (fd, daemon) = SharedFd::create::<Newer>("page").unwrap();
    let older = Shared::<Page>::open(fd.writable()).unwrap();
    daemon.page.set_limits(1, &Limits::NONE);
    for word in &daemon.appended {
        word.store(u64::MAX, Ordering::Relaxed);
    }
    assert_eq!(older.limits(), Some((1, Limits::NONE)));
    older.fault(31);
    assert_eq!(daemon.page.faults(), (1, 31));

    let (fd, daemon) = SharedFd::create::<Page>("page").unwrap();
    let newer = Shared::<Newer>::open(fd.writable()).unwrap();
    daemon.set_limits(1, &Limits::NONE);
    assert_eq!(newer.page.limits(), Some((1, Limits::NONE)));
    let appended = newer.appended.each_ref();
    assert_eq!(appended.map(|word| word.load(Ordering::Relaxed)), [0; 8]);
}

proptest! {
    #[test]
    fn limits_survive_the_page(
        tpcs: Option<MaskWords>, atom_ns: u64, flags: [bool; 9], timeslice_us: u32, priority: u8,
        gmem_limit: u64, topology: [u64; 5],
        weights: [Option<u16>; 2], cycles: [Option<(u32, u32)>; 2], taken in 0u8..4, slip: u8,
        slip_power: u8, own: MaskWords, clock in proptest::option::of(1u64..=1000),
        native in 0usize..3,
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
        let [steal, frozen, pressed, yields, timed, binds_launches, is_stray, best_effort, tried] = flags;
        let native = [None, Some(Native::MemoryOnly), Some(Native::Untested)][native];
        let limits = Limits {
            launches: LaunchLimits {
                tpcs: tpcs.map(TpcMask::from_words), atom_ns, frozen, steal, pressed, taken, timed,
                tried,
                rank: Rank { best_effort, priority: Priority(priority) },
                slip: Percent(slip), slip_power: Percent(slip_power),
                clock: clock.and_then(Clock::new), share, ..LaunchLimits::NONE
            },
            timeslice_us, yields, gmem_limit, topology, own, native, binds_launches,
            is_stray,
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
