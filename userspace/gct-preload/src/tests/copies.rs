// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests copies of a copy engine on a simulated GPU.

use crate::limits::LaunchLimits;
use crate::simulated::Bench;
use core::sync::atomic::Ordering;
use gct_core::policy::transfer::Rate;
use gct_core::submit::method::incr;
use gct_core::units::Ns;
use gct_model::{GuestMemory, Order};

const FROM: u64 = 0x40_0000_0100;
const TO: u64 = 0x41_0000_0300;
pub(crate) const BYTES: usize = (5 << 20) + 12_345;

/// Returns how many bytes of a new channel may be in flight.
fn at_once() -> usize {
    2 * Rate::default().piece(Ns(50_000)) as usize
}

fn paced() -> LaunchLimits {
    LaunchLimits {
        atom_ns: 50_000,
        ..LaunchLimits::NONE
    }
}

/// Returns a copy as libcuda submits it: the copy, and a release behind it.
pub(crate) fn copy(bytes: usize, release: u64, payload: u32) -> Vec<u32> {
    let halves = |va: u64| [(va >> 32) as u32, va as u32];
    let [[from_upper, from], [to_upper, to], [upper, lower]] = [FROM, TO, release].map(halves);
    vec![
        incr(4, 0x400, 4),
        from_upper,
        from,
        to_upper,
        to,
        incr(4, 0x418, 1),
        bytes as u32,
        incr(4, 0x300, 1),
        0x182,
        incr(4, 0x240, 3),
        upper,
        lower,
        payload,
        incr(4, 0x300, 1),
        0x14,
    ]
}

struct Copies {
    bench: Bench,
    bytes: Vec<u8>,
}

impl Copies {
    fn new(limits: LaunchLimits) -> Self {
        let mut bench = Bench::new(limits, Order::Eager);
        let bytes: Vec<u8> = (0..BYTES).map(|at| (at % 251) as u8).collect();
        bench.machine.memory().write(FROM, &bytes).unwrap();
        Self { bench, bytes }
    }

    fn submit(&mut self, payload: u32) {
        let release = core::ptr::from_ref(self.bench.release_word(0)) as u64;
        let words = copy(BYTES, release, payload);
        self.bench.submit(&words, 0);
    }

    fn released(&self) -> u32 {
        self.bench.release_word(0).load(Ordering::Relaxed)
    }

    /// Returns how many bytes have arrived, from the first on.
    fn arrived(&mut self) -> usize {
        let mut there = vec![0; BYTES];
        self.bench.machine.memory().read(TO, &mut there).unwrap();
        let same = there.iter().zip(&self.bytes).skip(1);
        same.take_while(|(there, here)| there == here).count()
    }

    /// Publishes and executes for some rounds of 20 us, in which a piece ends.
    fn run(&mut self, rounds: usize) {
        for _ in 0..rounds {
            self.bench.work();
            self.bench.step();
            self.bench.pass(20_000);
        }
    }

    fn check(&mut self, payload: u32) {
        assert!(!self.bench.is_pending(), "it hangs");
        assert_eq!((self.released(), self.arrived()), (payload, BYTES - 1));
        assert!(self.bench.machine.report().anomalies.is_empty());
    }
}

#[test]
fn a_long_copy_is_released_in_pieces() {
    let mut copies = Copies::new(paced());
    copies.submit(1);
    copies.bench.work();
    while copies.bench.step() {}
    let arrived = copies.arrived();
    assert!(
        (1..=at_once()).contains(&arrived),
        "{arrived} bytes at once"
    );
    assert_eq!(copies.released(), 0);
    copies.run(200);
    copies.check(1);
    assert_eq!(copies.bench.governor.counters().cut, 1);
    assert_eq!(copies.bench.put, 1, "the tenant's ring looks untouched");
}

#[test]
fn a_copy_without_a_limit_goes_whole() {
    let mut copies = Copies::new(LaunchLimits::NONE);
    copies.submit(1);
    copies.bench.work();
    assert_eq!(copies.bench.channel.published(), 1);
    copies.run(20);
    copies.check(1);
    assert_eq!(copies.bench.governor.counters().cut, 0);
}

#[test]
fn a_frozen_tenant_stops_copying_within_two_pieces_and_goes_on() {
    let mut copies = Copies::new(paced());
    copies.submit(1);
    copies.bench.work();
    let frozen = LaunchLimits {
        frozen: true,
        ..paced()
    };
    copies.bench.governor.set_limits(frozen);
    copies.run(1000);
    assert!(copies.arrived() <= at_once() && copies.released() == 0);
    assert!(copies.bench.is_pending());
    copies.bench.governor.set_limits(paced());
    copies.run(200);
    copies.check(1);
}

/// Checks that more copies follow each other than there are frames, and that the rest of one goes
/// at once when its limit is taken away.
#[test]
fn copies_follow_each_other_and_end_whole_without_their_limit() {
    let mut copies = Copies::new(paced());
    for payload in 1..=12 {
        copies.submit(payload);
        copies.run(120);
        copies.check(payload);
        copies
            .bench
            .machine
            .memory()
            .write(TO, &vec![0; BYTES])
            .unwrap();
    }
    assert_eq!(copies.bench.governor.counters().cut, 12);
    copies.submit(13);
    copies.bench.work();
    copies.bench.governor.set_limits(LaunchLimits::NONE);
    let published = copies.bench.channel.published();
    copies.bench.work();
    let entries = (copies.bench.channel.published() + 8 - published) % 8;
    assert_eq!(entries, 2, "the rest of the copy, and the words behind it");
    copies.run(20);
    copies.check(13);
}

/// Checks that a copy is cut whose segment shows no end, because that is in a later one; and that
/// its frames are free again.
#[test]
fn a_copy_that_another_segment_ends_is_cut() {
    let mut copies = Copies::new(paced());
    let release = core::ptr::from_ref(copies.bench.release_word(0)) as u64;
    for payload in 1..=12 {
        let words = copy(BYTES, release, payload);
        let (long, end) = words.split_at(9);
        // The registers must be known where the copy stands.
        let long = [&end[..4], long].concat();
        copies.bench.submit(&long, 0);
        copies.bench.submit(end, 4096);
        copies.bench.work();
        while copies.bench.step() {
            copies.bench.pass(20_000);
        }
        assert!(copies.arrived() <= at_once() && copies.released() < payload);
        copies.run(120);
        copies.check(payload);
        let nothing = vec![0; BYTES];
        copies.bench.machine.memory().write(TO, &nothing).unwrap();
    }
    assert_eq!(copies.bench.governor.counters().cut, 12);
    assert_eq!(copies.bench.governor.counters().sums.crowded, 0);
}

/// Checks that more pieces follow each other than a frame has slots: lines of one source.
#[test]
fn a_copy_of_more_pieces_than_slots_is_exact() {
    const LINES: usize = 224;
    const LENGTH: usize = 64 << 10;
    let limits = LaunchLimits {
        atom_ns: 1,
        ..paced()
    };
    let mut copies = Copies::new(limits);
    let release = core::ptr::from_ref(copies.bench.release_word(0)) as u64;
    let plain = copy(LENGTH, release, 1);
    let lines = [
        incr(4, 0x410, 2),
        0,
        LENGTH as u32,
        incr(4, 0x41c, 1),
        LINES as u32,
    ];
    let mut words = [&lines[..], &plain].concat();
    let launch = words.iter().position(|word| *word == 0x182).unwrap();
    words[launch] |= 1 << 9;
    copies.bench.submit(&words, 0);
    copies.run(4 * LINES);
    assert_eq!(copies.released(), 1);
    assert!(!copies.bench.is_pending());
    let mut there = vec![0; LINES * LENGTH];
    copies.bench.machine.memory().read(TO, &mut there).unwrap();
    let source = &copies.bytes[..LENGTH];
    assert!(there.chunks(LENGTH).all(|line| line == source));
}
