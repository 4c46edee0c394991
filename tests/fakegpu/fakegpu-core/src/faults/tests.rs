// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Plays accesses that fault, and the driver that serves them.

use super::*;
use crate::regs::NV_VIRTUAL_FUNCTION_PRIV_CPU_INTR_LEAF;
use crate::testing::Bench;
use proptest::prelude::*;

const VECTOR: u32 = 64;
/// Nothing is mapped there.
const UNMAPPED: u64 = 1 << 50;
const PAGES: [PhysicalAddress; 2] = [
    PhysicalAddress::system(0x7000),
    PhysicalAddress::system(0x3000),
];

fn place(bench: &Bench) -> Place {
    Place {
        channel: ObjectKey {
            client: 1,
            handle: 5,
        },
        instance: PhysicalAddress::system(0x1_2345_6000),
        subcontext: 3,
        space: bench.space,
        replayable: true,
    }
}

fn faults() -> Faults {
    let mut faults = Faults::default();
    faults.register(PAGES.to_vec());
    faults
}

fn report(bench: &mut Bench) -> Report<'_> {
    Report {
        memory: &mut bench.memory,
        intr: &mut bench.intr,
        vector: VECTOR,
        now_ns: 0x11_2233_4455,
    }
}

fn words(bench: &Bench, at: PhysicalAddress) -> Vec<u32> {
    let word = |at| bench.memory.read_u32(at).unwrap();
    (0..8).map(|index| word(at.plus(4 * index))).collect()
}

/// Returns whether the vector is pending, and clears it.
fn interrupted(bench: &mut Bench) -> bool {
    let leaf = NV_VIRTUAL_FUNCTION_PRIV_CPU_INTR_LEAF::OFFSET + 4 * (VECTOR / 32);
    let pending = bench.intr.read(leaf).unwrap();
    bench.intr.write(leaf, pending);
    pending & 1 << (VECTOR % 32) != 0
}

#[test]
fn a_fault_is_a_packet_and_an_interrupt() {
    let mut bench = Bench::new();
    let (place, mut faults) = (place(&bench), faults());
    let va = UNMAPPED + 0x7_6543_2108;
    let ticket = faults.stall(report(&mut bench), place, va, true).unwrap();
    assert_eq!((faults.read(GET), faults.read(PUT)), (Some(0), Some(1)));
    assert!(interrupted(&mut bench));
    let expected = [
        0x2345_6200,
        1,
        0x6543_2000,
        0x0004_0007,
        0x2233_4455,
        0x11,
        387,
        1 << 31 | 1 << 30 | 1 << 16 | 1 << 7 | 2,
    ];
    assert_eq!(words(&bench, PAGES[0]), expected);
    assert_eq!(faults.state(ticket), State::Stalled);
    // The interrupt comes again until GET has moved on.
    faults.write(&mut bench.intr, VECTOR, GET, 0);
    assert!(interrupted(&mut bench));
    faults.write(&mut bench.intr, VECTOR, GET, 1);
    assert!(!interrupted(&mut bench));
}

#[test]
fn what_the_driver_takes_is_a_batch() {
    let mut bench = Bench::new();
    let (first, mut faults) = (place(&bench), faults());
    let second = Place {
        channel: ObjectKey {
            client: 1,
            handle: 6,
        },
        ..first
    };
    for place in [first, second, second, first] {
        faults.stall(report(&mut bench), place, UNMAPPED, true);
    }
    let mut take = |offset, value| faults.write(&mut bench.intr, VECTOR, offset, value);
    let batch = |faults, channels| Some(Batch { faults, channels });
    assert_eq!(take(GET, 1), batch(1, 1));
    assert_eq!(take(GET, 1), batch(0, 0));
    assert_eq!(take(GET, 4), batch(3, 2));
    assert_eq!(take(PUT, 4), batch(0, 0));
    // There are no packets beyond PUT.
    assert_eq!(take(GET, 9), batch(0, 0));
    assert_eq!(take(0, 0), None);
}

#[test]
fn a_replay_tries_again() {
    let mut bench = Bench::new();
    let (place, mut faults) = (place(&bench), faults());
    let (writable, read_only) = (bench.va(0x40), bench.va_read_only(0x40));
    let unmapped = faults.stall(report(&mut bench), place, UNMAPPED, false);
    // What is mapped meanwhile goes on.
    let mapped = faults.stall(report(&mut bench), place, writable, true);
    let denied = faults.stall(report(&mut bench), place, read_only, true);
    faults.replay(report(&mut bench));
    assert_eq!(faults.read(PUT), Some(5));
    let access_of = |index: u64| words(&bench, PAGES[0].plus(32 * index))[7] & 0x1f001f;
    assert_eq!([access_of(3), access_of(4)], [2, 1 << 16 | 6]);
    let states = [unmapped, mapped, denied].map(|ticket| faults.state(ticket.unwrap()));
    assert_eq!(states, [State::Stalled, State::Replayed, State::Stalled]);
}

#[test]
fn a_cancel_ends_accesses_to_one_page_of_one_space() {
    let mut bench = Bench::new();
    let (place, mut faults) = (place(&bench), faults());
    let target = Target {
        root: bench.space.root,
        va: UNMAPPED,
        engine: 387,
        kinds: Kinds::All,
    };
    let mut stall = |va, write| faults.stall(report(&mut bench), place, va, write).unwrap();
    let (read, write) = (stall(UNMAPPED + 0xff8, false), stall(UNMAPPED, true));
    let other = stall(UNMAPPED + 0x1000, true);
    let none = [
        Target {
            root: PhysicalAddress::video(0x1000),
            ..target
        },
        Target {
            engine: 384,
            ..target
        },
    ];
    none.iter().for_each(|target| faults.cancel(target));
    assert_eq!(faults.state(read), State::Stalled);
    faults.cancel(&Target {
        kinds: Kinds::Writes,
        ..target
    });
    assert_eq!(faults.state(write), State::Cancelled);
    assert_eq!(faults.state(read), State::Stalled);
    faults.cancel(&target);
    assert_eq!(faults.state(read), State::Cancelled);
    assert_eq!(faults.state(other), State::Stalled);
}

#[test]
fn a_full_buffer_drops_faults_until_the_next_replay() {
    let mut bench = Bench::new();
    let (place, mut faults) = (place(&bench), faults());
    for _ in 0..300 {
        faults.stall(report(&mut bench), place, UNMAPPED, false);
    }
    let full = 1 << 31 | 255;
    assert_eq!(faults.read(PUT), Some(full));
    // The index does not clear the overflow, and one packet more is dropped.
    faults.write(&mut bench.intr, VECTOR, GET, 200);
    faults.stall(report(&mut bench), place, UNMAPPED, false);
    assert_eq!(faults.read(PUT), Some(full));
    faults.write(&mut bench.intr, VECTOR, GET, 1 << 31 | 200);
    faults.replay(report(&mut bench));
    assert_eq!(faults.read(PUT), Some(1 << 31 | 199));
}

#[test]
fn who_is_gone_faults_no_more() {
    let mut bench = Bench::new();
    let (place, mut faults) = (place(&bench), faults());
    faults.stall(report(&mut bench), place, UNMAPPED, false);
    faults.forget(&BTreeSet::from([place.channel]));
    faults.replay(report(&mut bench));
    assert_eq!(faults.read(PUT), Some(1));
}

#[test]
fn without_a_buffer_nothing_stalls() {
    let mut bench = Bench::new();
    let place = place(&bench);
    let mut faults = Faults::default();
    let ticket = faults.stall(report(&mut bench), place, UNMAPPED, false);
    assert_eq!(ticket, None);
}

proptest! {
    /// Checks that a hostile driver's writes break nothing.
    #[test]
    fn any_writes(pages in 0usize..3, gets in prop::collection::vec(any::<u32>(), 0..40)) {
        let mut bench = Bench::new();
        let place = place(&bench);
        let mut faults = Faults::default();
        faults.register(PAGES.iter().copied().cycle().take(pages).collect());
        for get in gets {
            faults.stall(report(&mut bench), place, UNMAPPED, false);
            faults.write(&mut bench.intr, VECTOR, GET, get);
            faults.replay(report(&mut bench));
            prop_assert!(faults.put < faults.entries().max(1));
        }
    }
}
