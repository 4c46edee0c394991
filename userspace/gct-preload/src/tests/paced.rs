// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests paced launches on a simulated GPU.

use crate::channel::DOORBELL;
use crate::limits::LaunchLimits;
use crate::simulated::Bench;
use core::sync::atomic::Ordering;
use gct_core::mask::TpcMask;
use gct_core::policy::patience;
use gct_model::{Config, Order};

/// Returns limits with four TPCs, which hold 128 blocks of the captured kernel.
fn paced(atom_us: u64) -> LaunchLimits {
    LaunchLimits {
        tpcs: TpcMask::parse(b"0-3").ok(),
        atom_ns: atom_us * 1000,
        ..LaunchLimits::NONE
    }
}

#[test]
fn every_block_runs_once_and_a_wave_is_in_flight_at_most() {
    for order in [
        Order::Eager,
        Order::Random(1),
        Order::Random(2),
        Order::Late,
    ] {
        let mut bench = Bench::new(paced(10), order);
        let most = bench.run(25);
        bench.check(25);
        // Near a wave, an atom is a quarter of it.
        assert!(most <= 4, "{order:?}: {most} atoms at once");
        let masks = bench.machine.report().runs.iter();
        let unmasked = masks.filter(|run| run.count() > 0 && run.mask.0[0] != !0xf);
        assert_eq!(unmasked.count(), 0);
        assert!(
            bench.governor.counters().sums.atoms > 25 * 8,
            "they were split"
        );
    }
}

#[test]
fn a_short_launch_goes_whole_once_it_is_known() {
    let mut bench = Bench::new(paced(1_000_000), Order::Eager);
    bench.run(6);
    bench.check(6);
    // Sixteen atoms while the kernel is unknown: the first launch, and those that were processed
    // before its first atom had ended.
    let atoms = bench.governor.counters().sums.atoms;
    assert!((16..=32).contains(&atoms), "{atoms} atoms");
}

#[test]
fn a_frozen_tenant_publishes_nothing_and_goes_on_afterwards() {
    let mut bench = Bench::new(paced(10), Order::Eager);
    bench.launch();
    bench.work();
    let frozen = LaunchLimits {
        frozen: true,
        ..paced(10)
    };
    bench.governor.set_limits(frozen);
    for _ in 0..2000 {
        bench.work();
        bench.step();
    }
    assert_eq!(bench.outstanding(), 0, "what was in flight has drained");
    let ran = bench.machine.report().runs.len();
    assert!(bench.channel.pending(&bench.shadow));
    bench.governor.set_limits(paced(10));
    bench.run(4);
    bench.check(4);
    assert!(bench.machine.report().runs.len() > ran);
}

/// Checks what a client of MPS waits for at its end: what the GPU has read and not ended, too.
#[test]
fn a_launch_that_runs_is_work_although_the_gpu_has_read_it() {
    let mut bench = Bench::new(paced(10), Order::Late);
    assert!(bench.launch());
    bench.work();
    while bench.outstanding() == 0 {
        assert!(bench.step());
    }
    let has_work = |bench: &mut Bench, held| bench.channel.has_work(&bench.shadow, held);
    assert!(has_work(&mut bench, false) && has_work(&mut bench, true));
    // From a signal on nothing more goes to the GPU, and what is held back is not waited for.
    bench.governor.set_limits(LaunchLimits {
        frozen: true,
        ..paced(10)
    });
    for _ in 0..2000 {
        bench.work();
        bench.step();
    }
    assert_eq!(bench.outstanding(), 0);
    assert_eq!(
        (has_work(&mut bench, false), has_work(&mut bench, true)),
        (false, true)
    );
}

#[test]
fn without_limits_the_rings_are_the_same() {
    let mut bench = Bench::new(LaunchLimits::NONE, Order::Random(1));
    assert_eq!(DOORBELL % 4, 0);
    bench.run(20);
    bench.check(20);
    assert_eq!(bench.doorbell.load(Ordering::Relaxed), 7);
    assert_eq!(bench.put, bench.get);
}

/// Each launch keeps a frame until its release is there. A tenant that resets its releases keeps
/// all frames, so its next launch goes whole.
#[test]
fn a_launch_without_a_free_frame_goes_whole_and_is_counted() {
    const FRAMES: usize = 8;
    let config = Config {
        timed: true,
        ..Config::default()
    };
    let mut bench = Bench::with(paced(10), config);
    let launch = |bench: &mut Bench, stream| {
        let before = *bench.governor.counters();
        assert!(bench.launch_on(stream));
        bench.drain(4_000_000);
        let now = bench.governor.counters();
        (
            now.sums.split - before.sums.split,
            now.sums.crowded - before.sums.crowded,
        )
    };
    for stream in 1..=FRAMES {
        assert_eq!(launch(&mut bench, stream), (1, 0), "{stream}");
        bench.release_word(stream).store(0, Ordering::Relaxed);
    }
    assert_eq!(launch(&mut bench, 0), (0, 1));
    bench.release_word(3).store(u32::MAX / 2, Ordering::Relaxed);
    assert_eq!(launch(&mut bench, 0), (1, 0), "one frame is free");
    bench.check_blocks(10);
}

/// Sets up a tenant whose kernel is known to take 4 ms and may take 10.
fn streams() -> Bench {
    let config = Config {
        timed: true,
        streams_apart: true,
        ..Config::default()
    };
    let mut bench = Bench::with(paced(10_000), config);
    train(&mut bench);
    bench
}

fn train(bench: &mut Bench) {
    for _ in 0..20 {
        bench.launch();
        bench.drain(4_000_000);
    }
}

/// Runs three launches in streams that share a channel. The first two wait for the third, as
/// receives do for a send.
#[test]
fn launches_that_wait_for_one_that_is_held_back_end() {
    let mut bench = streams();
    (1..4).for_each(|stream| assert!(bench.launch_on(stream)));
    assert_eq!(bench.running().len(), 2, "the third waits for its turn");
    let mut waited = 0;
    while bench.running().len() == 2 {
        bench.pass(1_000_000);
        waited += 1;
        assert!(waited <= 20, "the third waits for the two, and they for it");
    }
    assert_eq!(waited, 20, "not sooner");
    bench.drain(0);
    bench.check_blocks(23);
}

/// Checks that a stream whose launch waits for long does not delay the others that share its
/// channel.
#[test]
fn streams_beside_two_that_wait_keep_their_pace() {
    let mut bench = streams();
    (1..3).for_each(|stream| assert!(bench.launch_on(stream)));
    let two = bench.running();
    let mut waits = Vec::new();
    for _ in 0..50 {
        bench.launch_on(3);
        let published = bench.channel.published();
        let mut waited = 0;
        while bench.channel.published() == published {
            bench.pass(1_000_000);
            bench.running();
            waited += 1;
            assert!(waited < 100);
        }
        waits.push(waited);
        let others = bench.running().into_iter().filter(|run| !two.contains(run));
        let others: Vec<_> = others.collect();
        others.into_iter().for_each(|run| bench.machine.finish(run));
        bench.running();
    }
    let late = waits.iter().filter(|waited| **waited > 3).count();
    assert!(late <= 1, "{waits:?}");
    bench.drain(0);
    bench.check_blocks(72);
}

/// Checks that a program that does so repeatedly waits less each time.
#[test]
fn streams_that_wait_for_each_other_again_wait_less() {
    let mut bench = streams();
    let mut waits = Vec::new();
    for _ in 0..10 {
        (1..4).for_each(|stream| assert!(bench.launch_on(stream)));
        let mut waited = 0;
        while bench.running().len() == 2 {
            bench.pass(250_000);
            waited += 1;
            assert!(waited <= 80, "{waits:?}");
        }
        waits.push(waited);
        bench.drain(0);
        train(&mut bench);
    }
    // In quarters of a millisecond.
    assert_eq!(waits, [80, 40, 20, 10, 5, 4, 4, 4, 4, 4]);
    bench.check_blocks(250);
}

/// Checks that a launch of 1000 blocks fits 128 TPCs at once, but not the four of a mask.
#[test]
fn a_launch_that_its_mask_cannot_hold_at_once_is_counted() {
    for (list, atom_us, narrowed) in [("0-3", 0, 2), ("0-3", 10, 2), ("0-126", 0, 0)] {
        let limits = LaunchLimits {
            tpcs: TpcMask::parse(list.as_bytes()).ok(),
            ..paced(atom_us)
        };
        let mut bench = Bench::new(limits, Order::Eager);
        bench.run(2);
        bench.check(2);
        assert_eq!(bench.governor.counters().sums.narrowed, narrowed, "{list}");
    }
}

#[test]
fn a_launch_that_does_not_end_under_a_limit_is_counted() {
    let mut bench = streams();
    bench.launch();
    assert_eq!(bench.running().len(), 1);
    for _ in 0..patience::STALL_MAX.get() / 100_000_000 {
        assert_eq!(bench.governor.counters().sums.stalled, 0);
        bench.pass(100_000_000);
        bench.running();
    }
    assert_eq!(bench.governor.counters().sums.stalled, 1);
    assert!(
        !bench.channel.pending(&bench.shadow),
        "nobody looks for its end without pause"
    );
    bench.drain(0);
    bench.check(21);
    assert_eq!(bench.governor.counters().sums.stalled, 1);
}
