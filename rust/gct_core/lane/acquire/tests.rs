// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests when a segment that begins with an acquire is published.

use super::super::channel::Lane;
use super::super::governor::{Governor, Nobody};
use super::super::in_flight::InFlightQueue;
use super::super::limits::LaunchLimits;
use super::super::ring::RealRing;
use super::super::split::{self, AtomRoom};
use super::super::testing::{Heap, Ram, View};
use super::super::words::{Control, Rings, Side};
use super::super::work::{Round, Stream, Workspace};
use crate::policy::patience::STALL_MAX;
use crate::policy::share::{DutyCycle, Level, Share};
use crate::submit::gpfifo::{Entry, Segment};
use crate::submit::graph::Slot;
use crate::submit::rewrite::Cut;
use crate::submit::tracker::QmdCall;
use crate::units::Ns;
use std::cell::Cell;
use std::vec;
use std::vec::Vec;

/// The indices of the word that is acquired, of the one that the launches of an earlier segment
/// release, and of the segments.
const WORD: usize = 16;
const EARLIER: usize = 17;
const SEGMENTS: usize = 64;
/// Room for a segment.
const ROOM: usize = 16;
const PAYLOAD: u32 = 7;
/// SEM_EXECUTE waits for a word that counts up.
const ACQ_CIRC_GEQ: u32 = 3;

/// Returns five words behind their header, for SEM_ADDR_LO to SEM_EXECUTE.
fn semaphore(index: usize, payload: u32, execute: u32) -> Vec<u32> {
    vec![0x2005_0017, index as u32 * 4, 0, payload, 0, execute]
}

/// A tenant's ring with segments, one behind the other.
struct Ring {
    segments: Vec<Vec<u32>>,
    put: Cell<u32>,
}

impl Rings for Ring {
    fn entry(&self, index: u32) -> Option<u64> {
        let segment = Segment {
            va: (SEGMENTS + index as usize * ROOM) as u64 * 4,
            words: self.segments.get(index as usize)?.len() as u32,
            subroutine: false,
            wait: false,
            conditional: false,
        };
        Some(Entry::Segment(segment).encode())
    }

    fn set_entry(&self, _: u32, _: u64) {}

    fn load(&self, side: Side, control: Control) -> Option<u32> {
        Some(match (side, control) {
            (Side::Tenant, Control::Put) => self.segments.len() as u32,
            _ => 0,
        })
    }

    fn store_get(&self, _: u32) {}

    fn publish(&self, put: u32, _: u32) {
        self.put.set(put);
    }
}

/// A channel whose tenant has submitted segments, under a duty cycle or without a limit.
struct Bed {
    ram: Ram,
    ring: Ring,
    governor: Governor<Heap, Nobody>,
    lane: Lane<Heap, View>,
    work: Workspace<Heap>,
}

impl Bed {
    fn new(segments: &[Vec<u32>], is_shared: bool) -> Self {
        let max = DutyCycle {
            quota: Ns(1_000_000),
            period: Ns(10_000_000),
        };
        let own = Level {
            weight: None,
            max: Some(max).filter(|_| is_shared),
        };
        let limits = LaunchLimits {
            share: Share { own, ..Share::NONE },
            ..LaunchLimits::NONE
        };
        let ram = Ram::new(SEGMENTS + segments.len() * ROOM);
        for (at, words) in segments.iter().enumerate() {
            for (index, word) in words.iter().enumerate() {
                ram.set(SEGMENTS + at * ROOM + index, *word);
            }
        }
        let cuts = vec![Cut::NONE; split::ATOMS_MAX as usize];
        let room = AtomRoom::new(vec![0; split::SLOTS_WORDS], cuts);
        let stream = Stream::new(0xc86f, room, vec![QmdCall::NONE; 4]);
        let in_flight = InFlightQueue::new(vec![None; 4]);
        let mut lane = Lane::new(64, RealRing::new(vec![0; 128]), in_flight, stream);
        lane.set_token(1);
        Self {
            ram,
            ring: Ring {
                segments: segments.to_vec(),
                put: Cell::new(0),
            },
            governor: Governor::new(limits, vec![None; 4], vec![Slot::EMPTY; 4], vec![None; 4]),
            lane,
            work: Workspace::new(vec![0; 64], Vec::new(), Vec::new()),
        }
    }

    /// Lets the backend look at `now`. Returns how many entries the GPU was given so far.
    fn look(&mut self, now: u64) -> u32 {
        self.governor.begin(Ns(now));
        let mut round = Round {
            memory: &self.ram,
            scratch: None,
            copies: None,
            slots: None,
            turn: 16,
            words: 1 << 12,
            work: &mut self.work,
            now: Ns(now),
            ahead: None,
        };
        self.lane
            .publish(&self.ring, &mut self.governor, &mut round);
        self.governor.end(true, Ns(now));
        self.ring.put.get()
    }
}

#[test]
fn a_segment_waits_for_its_acquire_under_a_share() {
    let acquires = semaphore(WORD, PAYLOAD, ACQ_CIRC_GEQ);
    let segments = [acquires, semaphore(EARLIER, 1, 1)];
    let mut native = Bed::new(&segments, false);
    assert_eq!(native.look(1), 2, "without a share the GPU waits");
    let mut bed = Bed::new(&segments, true);
    assert_eq!(bed.look(1), 0);
    bed.ram.set(WORD, PAYLOAD - 1);
    assert_eq!(bed.look(1_000_000), 0);
    bed.ram.set(WORD, PAYLOAD + 1);
    assert_eq!(bed.look(2_000_000), 2, "in order, with what follows");
    let mut reached = Bed::new(&segments, true);
    reached.ram.set(WORD, PAYLOAD);
    assert_eq!(reached.look(1), 2);
}

/// A program may set the word back before the backend has seen it.
#[test]
fn an_acquire_is_not_waited_for_without_end() {
    let mut bed = Bed::new(&[semaphore(WORD, PAYLOAD, ACQ_CIRC_GEQ)], true);
    assert_eq!(bed.look(1), 0);
    assert_eq!(bed.look(STALL_MAX.get()), 0);
    assert_eq!(bed.look(STALL_MAX.get() + 1), 1);
}

#[test]
fn other_acquires_wait_on_the_gpu() {
    let behind = [
        semaphore(EARLIER, 1, 1),
        semaphore(WORD, PAYLOAD, ACQ_CIRC_GEQ),
    ]
    .concat();
    let wide = semaphore(WORD, PAYLOAD, ACQ_CIRC_GEQ | 1 << 24);
    let equal = semaphore(WORD, PAYLOAD, 0);
    let unreadable = semaphore(1 << 20, PAYLOAD, ACQ_CIRC_GEQ);
    for words in [behind, wide, equal, unreadable] {
        let segments = [words];
        assert_eq!(Bed::new(&segments, true).look(1), 1, "{segments:x?}");
    }
}
