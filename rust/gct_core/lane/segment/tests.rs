// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests how much of a tenant's memory one turn of a lane reads, and when it rings.

use super::super::channel::Lane;
use super::super::governor::{Governor, Nobody};
use super::super::in_flight::InFlightQueue;
use super::super::limits::LaunchLimits;
use super::super::ring::RealRing;
use super::super::split::{self, AtomRoom};
use super::super::testing::Heap;
use super::super::words::{Control, Rings, Side, Words};
use super::super::work::{Round, Stream, Workspace, SLOW_WORDS_MAX};
use crate::owned::worker::{TURN_MAX, TURN_WORDS};
use crate::submit::gpfifo::{Entry, Segment};
use crate::submit::graph::Slot;
use crate::submit::method::incr;
use crate::submit::methods;
use crate::submit::reason::Reason;
use crate::submit::rewrite::Cut;
use crate::submit::tracker::QmdCall;
use crate::units::Ns;
use std::cell::{Cell, RefCell};
use std::vec;
use std::vec::Vec;

const ENTRIES: u32 = 64;
const WORDS: usize = 1 << 15;

/// Memory in which a segment has the same words again and again, or zeros. Counts the words that are
/// read.
#[derive(Default)]
struct Repeated {
    words: &'static [u32],
    is_slow: bool,
    read: Cell<usize>,
}

impl Words for Repeated {
    type View = ();

    fn find(&self, _: u64, _: usize) -> Option<()> {
        Some(())
    }

    fn is_slow(&self, (): &()) -> bool {
        self.is_slow
    }

    fn load(&self, (): &(), _: usize) -> Option<u32> {
        Some(0)
    }

    fn store(&self, (): &(), _: usize, _: u32) -> bool {
        true
    }

    fn read(&self, (): &(), to: &mut [u32]) -> bool {
        self.read.set(self.read.get() + to.len());
        to.fill(0);
        to.iter_mut()
            .zip(self.words.iter().cycle())
            .for_each(|(to, word)| *to = *word);
        true
    }

    fn write(&self, (): &(), _: usize, _: &[u32]) -> bool {
        true
    }
}

/// A tenant's ring full of segments of so many words each, and the GP_PUTs that were published.
struct Full(u32, RefCell<Vec<u32>>);

impl Rings for Full {
    fn entry(&self, index: u32) -> Option<u64> {
        let segment = Segment {
            va: 0x1000,
            words: self.0,
            subroutine: false,
            wait: false,
            conditional: false,
        };
        (index < ENTRIES).then(|| Entry::Segment(segment).encode())
    }

    fn set_entry(&self, _: u32, _: u64) {}

    fn load(&self, side: Side, control: Control) -> Option<u32> {
        Some(match (side, control) {
            (Side::Tenant, Control::Put) => ENTRIES - 1,
            _ => 0,
        })
    }

    fn store_get(&self, _: u32) {}

    fn publish(&self, put: u32, _: u32) {
        self.1.borrow_mut().push(put);
    }
}

/// Lets a worker take turns on a channel with segments of so many words each. Returns how many
/// entries and words each turn took, and the counters.
fn turns(words: u32, is_slow: bool, turns: usize) -> (Vec<(u32, usize)>, [u64; 2]) {
    let ring = Full(words, RefCell::default());
    let memory = Repeated {
        is_slow,
        ..Repeated::default()
    };
    turns_of(&ring, &memory, turns)
}

fn turns_of(ring: &Full, memory: &Repeated, turns: usize) -> (Vec<(u32, usize)>, [u64; 2]) {
    let limits = LaunchLimits::NONE;
    let mut governor: Governor<Heap, Nobody> =
        Governor::new(limits, vec![None; 4], vec![Slot::EMPTY; 4], vec![None; 4]);
    let cuts = vec![Cut::NONE; split::ATOMS_MAX as usize];
    let room = AtomRoom::new(vec![0; split::SLOTS_WORDS], cuts);
    let stream = Stream::new(0xc86f, room, vec![QmdCall::NONE; 256]);
    let in_flight = InFlightQueue::new((0..4).map(|_| None).collect());
    let mut lane = Lane::new(ENTRIES, RealRing::new(vec![0; 128]), in_flight, stream);
    lane.set_token(1);
    let mut work = Workspace::new(vec![0; WORDS], Vec::new(), Vec::new());
    let mut turn = |_| {
        let before = memory.read.get();
        let mut round = Round {
            memory,
            scratch: None,
            copies: None,
            slots: None,
            turn: TURN_MAX,
            words: TURN_WORDS,
            work: &mut work,
            now: Ns(1),
            ahead: None,
        };
        let count = lane.publish(ring, &mut governor, &mut round);
        (count, memory.read.get() - before)
    };
    let turns = (0..turns).map(&mut turn).collect();
    let counters = governor.counters();
    let kept = [Reason::SegmentTooSlow, Reason::SegmentTooLong].map(|it| counters.kept(it));
    (turns, kept)
}

#[test]
fn a_turn_reads_some_words_and_goes_on() {
    // Short segments are many entries, long ones are one.
    assert_eq!(turns(100, false, 3).0, [(16, 1600); 3]);
    assert_eq!(turns(1000, false, 3).0, [(9, 9000); 3]);
    let long = TURN_WORDS + 1;
    assert_eq!(turns(long, false, 3).0, [(1, long as usize); 3]);
}

#[test]
fn memory_across_the_bus_is_read_little_by_little() {
    assert_eq!(turns(20, true, 3).0, [(7, 140); 3]);
    let most = SLOW_WORDS_MAX as u32;
    assert_eq!(turns(most, true, 2), (vec![(1, SLOW_WORDS_MAX); 2], [0, 0]));
    // What would take longer is not read, and counts.
    assert_eq!(turns(most + 1, true, 2), (vec![(16, 0); 2], [32, 0]));
    assert_eq!(turns(most + 1, false, 1).1, [0, 0]);
    assert_eq!(turns(WORDS as u32 + 1, false, 1).1, [0, 16]);
}

/// A turn pays for calls that may all be compared with each other: 250 calls are some 31,000 words.
#[test]
fn calls_end_a_turn_sooner_than_other_words() {
    const CALL: [u32; 4] = [
        incr(1, methods::SEND_PCAS_A, 1),
        0x10_0000,
        incr(1, methods::SEND_SIGNALING_PCAS2_B, 1),
        1,
    ];
    let memory = Repeated {
        words: &CALL,
        ..Repeated::default()
    };
    let turns = |words| turns_of(&Full(words, RefCell::default()), &memory, 2).0;
    assert_eq!(turns(1000), [(1, 1000); 2]);
    assert_eq!(turns(16), [(16, 256); 2]);
}

/// A replay of a graph has many entries, and the GPU need not wait until the last is processed.
#[test]
fn the_gpu_begins_with_the_first_entries() {
    let ring = Full(1000, RefCell::default());
    assert_eq!(turns_of(&ring, &Repeated::default(), 2).0, [(9, 9000); 2]);
    assert_eq!(*ring.1.borrow(), [1, 2, 4, 8, 9, 10, 11, 13, 17, 18]);
    let one = Full(TURN_WORDS, RefCell::default());
    turns_of(&one, &Repeated::default(), 1);
    assert_eq!(*one.1.borrow(), [1], "once for each");
}
