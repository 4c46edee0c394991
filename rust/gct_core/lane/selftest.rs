// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Checks that this object code publishes, masks, splits and paces the launches of a lane.
//!
//! The rest of the lane is generic, so no object holds its code before somebody uses it. These
//! checks do, with words and storage in [`Memory`] of the caller. So the core's object has that
//! code, and the checks of the object apply to it.

mod backend;
mod copied;

use super::channel::Lane;
use super::copies::Mark;
use super::governor::Governor;
use super::in_flight::{InFlightQueue, Tracked};
use super::limits::LaunchLimits;
use super::ring::RealRing;
use super::scratch::{Busy, Scratch};
use super::split::{AtomRoom, ADDED_WORDS, ATOMS_MAX};
use super::words::{Control, Side, Words};
use super::work::{Round, Stream, Workspace};
use crate::mask::TpcMask;
use crate::policy::arrivals::ArrivalStats;
use crate::policy::predict;
use crate::policy::scale::Law;
use crate::policy::tpc::Neighbour;
use crate::submit::gpfifo::{Entry, Segment};
use crate::submit::graph::Slot;
use crate::submit::limits::{MASK_WORDS, SLOT_WORDS};
use crate::submit::mask;
use crate::submit::precedence::Precedence;
use crate::submit::qmd::{v04_00, Version};
use crate::submit::reason::Reason;
use crate::submit::rewrite::{Cut, Order};
use crate::submit::selftest::{write_segment, Failure, QMD_AT, SEGMENT_WORDS};
use crate::submit::tracker::QmdCall;
use crate::topology::Topology;
use crate::units::Ns;
use backend::{Beside, Lent, Ram, Run, Sides};
use core::cell::Cell;
use core::num::Wrapping;

/// Entries of the tenant's ring.
const ENTRIES: u32 = 4;
/// Entries of the real ring.
const REAL_ENTRIES: u32 = 3;
/// Entries of the real ring of a lane with copies.
const COPIED_ENTRIES: u32 = 8;
/// Atoms of a launch whose duration is unknown ([`pace`](crate::policy::pace)).
const ATOMS: usize = 16;
/// Address of the memory: a multiple of 256.
const VA: u64 = 0x10_0000_0000;
/// Words of the frame: slots, and the segment behind them.
const FRAME_WORDS: usize = (ATOMS + 5) * SLOT_WORDS;
/// Index of the segment, behind the frame.
const SEGMENT: usize = FRAME_WORDS;
/// Index of the word that the launch releases, behind the segment.
const RELEASE: usize = SEGMENT + SEGMENT_WORDS;
/// Index of the memory for copies, behind the release.
const COPIES: usize = RELEASE + 1;
/// Entries that end batches of copies.
const MARKS: usize = 4;
/// Words of the memory for copies: one segment, and what ends batches.
const COPIES_WORDS: usize = SEGMENT_WORDS + MARKS * 11;
/// Index of the progress word, behind the copies.
const PROGRESS: usize = COPIES + COPIES_WORDS;
/// Index of the words that atoms without a join write, behind the progress word.
const APART: usize = PROGRESS + 1;
/// Index of the memory for copies of a segment that is split, behind those.
const LONG_COPIES: usize = APART + ATOMS_MAX as usize;
/// Words of that memory: the segment, the one that replaces it, and what ends batches.
const LONG_COPIES_WORDS: usize = 2 * SEGMENT_WORDS + ADDED_WORDS + MARKS * 11;
/// Words of the memory.
const WORDS: usize = LONG_COPIES + LONG_COPIES_WORDS;
/// A QMD, and so its done word's index in the slot.
const DONE: usize = v04_00::WORDS;
/// The time of the checks.
const NOW: Ns = Ns(1 << 40);

/// Words and storage of the checks, about 90 KiB. It begins as [`Memory::new`].
#[derive(Debug)]
pub struct Memory {
    ram: [Cell<u32>; WORDS],
    tenant: [Cell<u64>; ENTRIES as usize],
    real: [Cell<u64>; COPIED_ENTRIES as usize],
    userd: [[Cell<u32>; 2]; 2],
    rung: Cell<Option<u32>>,
    storage: Slots,
}

/// Storage of one lane and its governor.
#[derive(Debug)]
struct Slots {
    ring: [u32; COPIED_ENTRIES as usize],
    marks: [Mark; MARKS],
    in_flight: [Option<Tracked<Run>>; 8],
    found: [QmdCall; 8],
    slots: [u32; (ATOMS + 1) * SLOT_WORDS],
    cuts: [Cut; ATOMS],
    words: [u32; FRAME_WORDS],
    orders: [Order<'static>; 8],
    output: [u32; FRAME_WORDS],
    kernels: [Option<predict::Entry>; 16],
    nodes: [Slot; 16],
    laws: [Option<Law>; 16],
    frames: [Option<Busy<Run>>; 1],
}

impl Memory {
    /// Returns memory that no check has used.
    pub const fn new() -> Self {
        Self {
            ram: [const { Cell::new(0) }; WORDS],
            tenant: [const { Cell::new(0) }; ENTRIES as usize],
            real: [const { Cell::new(0) }; COPIED_ENTRIES as usize],
            userd: [const { [const { Cell::new(0) }; 2] }; 2],
            rung: Cell::new(None),
            storage: Slots {
                ring: [0; COPIED_ENTRIES as usize],
                marks: [Mark::NONE; MARKS],
                in_flight: [None; 8],
                found: [QmdCall::NONE; 8],
                slots: [0; (ATOMS + 1) * SLOT_WORDS],
                cuts: [Cut::NONE; ATOMS],
                words: [0; FRAME_WORDS],
                orders: [Order {
                    mask: None,
                    atoms: 0,
                    tried: false,
                }; 8],
                output: [0; FRAME_WORDS],
                kernels: [None; 16],
                nodes: [Slot::EMPTY; 16],
                laws: [None; 16],
                frames: [None; 1],
            },
        }
    }
}

impl Default for Memory {
    fn default() -> Self {
        Self::new()
    }
}

/// One tenant and its lane.
struct Bench<'a> {
    lane: Lane<Lent<'a>, Run>,
    governor: Governor<Lent<'a>, Beside>,
    work: Workspace<Lent<'a>>,
    scratch: Scratch<Lent<'a>, Run>,
}

impl Bench<'_> {
    /// Publishes once. Returns the number of entries.
    fn publish(&mut self, ram: &Ram<'_>, sides: &Sides<'_>) -> u32 {
        self.governor.begin(NOW);
        let mut round = Round {
            memory: ram,
            scratch: Some(&mut self.scratch),
            copies: None,
            slots: None,
            turn: u32::MAX,
            words: u32::MAX,
            work: &mut self.work,
            now: NOW,
            ahead: None,
        };
        let count = self.lane.publish(sides, &mut self.governor, &mut round);
        self.lane.refresh_get(sides);
        self.governor.end(self.lane.is_pending(sides), NOW);
        count
    }
}

fn check(holds: bool, check: &'static str) -> Result<(), Failure> {
    match holds {
        true => Ok(()),
        false => Err(Failure { check }),
    }
}

/// Returns the entry of the segment, after writing a launch there that releases 1.
fn write_launch(ram: &Ram<'_>) -> u64 {
    let mut words = [0; SEGMENT_WORDS];
    write_segment(&mut words);
    // CAST: the address has 37 bits.
    let release = VA + 4 * RELEASE as u64;
    let fields = [
        (v04_00::RELEASE_STRUCTURE_SIZE.nth(0), 1),
        (v04_00::RELEASE_SEMAPHORE0_ADDR_LOWER, release as u32),
        (
            v04_00::RELEASE_SEMAPHORE0_ADDR_UPPER,
            (release >> 32) as u32,
        ),
        (v04_00::RELEASE_SEMAPHORE0_PAYLOAD_LOWER, 1),
    ];
    if let Some(qmd) = words.get_mut(QMD_AT..) {
        for (field, value) in fields {
            // Each value fits; a field that stays as it is makes a check below fail.
            let _ = field.set(qmd, value);
        }
    }
    let at = Run {
        first: SEGMENT,
        words: SEGMENT_WORDS,
    };
    ram.write(&at, 0, &words);
    let segment = Segment {
        va: VA + 4 * SEGMENT as u64,
        // CAST: a small constant.
        words: SEGMENT_WORDS as u32,
        subroutine: false,
        wait: false,
        conditional: false,
    };
    Entry::Segment(segment).encode()
}

/// Returns mask and group of the QMD at an index of the memory.
fn marks_at(ram: &Ram<'_>, index: usize) -> (Option<[u32; MASK_WORDS]>, u32) {
    let mut qmd = [0; v04_00::WORDS];
    let at = Run {
        first: index,
        words: v04_00::WORDS,
    };
    ram.read(&at, &mut qmd);
    let group = v04_00::QMD_GROUP_ID.get(&qmd);
    (mask::read(&qmd, Version::V04_00), group)
}

/// Runs all checks.
///
/// # Errors
///
/// The first check that failed.
pub fn run(memory: &mut Memory) -> Result<(), Failure> {
    let (ram, slots) = (Ram(&memory.ram), &mut memory.storage);
    let (short, _) = memory.real.split_at(REAL_ENTRIES as usize);
    let sides = Sides {
        tenant: &memory.tenant,
        real: short,
        userd: &memory.userd,
        rung: &memory.rung,
    };
    let frame = Run {
        first: 0,
        words: FRAME_WORDS,
    };
    let scratch = Scratch::new(VA, frame, FRAME_WORDS, FRAME_WORDS, &mut slots.frames[..]);
    let Some(scratch) = scratch else {
        return check(false, "the frame fits");
    };
    let room = AtomRoom::new(&mut slots.slots[..], &mut slots.cuts[..]);
    let mut bench: Bench<'_> = Bench {
        lane: Lane::new(
            ENTRIES,
            RealRing::new(slots.ring.split_at_mut(REAL_ENTRIES as usize).0),
            InFlightQueue::new(&mut slots.in_flight[..]),
            Stream::new(0xc86f, room, &mut slots.found[..]),
        ),
        governor: Governor::new(
            LaunchLimits::NONE,
            &mut slots.kernels[..],
            &mut slots.nodes[..],
            &mut slots.laws[..],
        ),
        work: Workspace::new(
            &mut slots.words[..],
            &mut slots.orders[..],
            &mut slots.output[..],
        ),
        scratch,
    };
    bench
        .governor
        .set_gpu(Topology::together(TpcMask::first(8)));
    passes(&mut bench, &ram, &sides)?;
    paces(&mut bench, &ram, &sides)?;
    let sides = Sides {
        real: &memory.real,
        ..sides
    };
    copied::run(&ram, &sides, slots)
}

/// Checks what a tenant without limits sees.
#[inline(never)]
fn passes(bench: &mut Bench<'_>, ram: &Ram<'_>, sides: &Sides<'_>) -> Result<(), Failure> {
    let entry = write_launch(ram);
    (1..ENTRIES).for_each(|_| sides.submit(entry));
    check(bench.publish(ram, sides) == 0, "no token, no entry")?;
    bench.lane.set_token(7);
    check(bench.lane.has_news(sides), "news are seen")?;
    check(!bench.lane.has_news(sides), "news are seen once")?;
    check(bench.publish(ram, sides) == 2, "the real ring is filled")?;
    check(sides.rung.take() == Some(7), "the doorbell rings")?;
    check(sides.fetch() == entry, "entries are the tenant's")?;
    check(bench.publish(ram, sides) == 1, "there is room again")?;
    sides.fetch();
    let get = sides.control(Side::Tenant, Control::Get).get();
    check(get == 2, "GP_GET reaches the tenant when it may wait")?;
    check(bench.lane.rests(sides), "the lane is at rest")
}

/// Checks that a launch is split, masked and released piece by piece beside a neighbour.
#[inline(never)]
fn paces(bench: &mut Bench<'_>, ram: &Ram<'_>, sides: &Sides<'_>) -> Result<(), Failure> {
    let reserved = TpcMask::first(4);
    let limits = LaunchLimits {
        atom_ns: 1,
        ..LaunchLimits::NONE
    };
    bench.governor.set_limits(limits);
    bench.governor.set_peers(Some(Beside(Neighbour {
        own: reserved,
        allowed: reserved,
        lends: false,
        confined: false,
        rank: limits.rank,
        busy: true,
        idle: Ns(0),
        arrivals: ArrivalStats::default(),
        ebb: TpcMask::EMPTY,
    })));
    sides.submit(write_launch(ram));
    let mut released = Wrapping(0);
    for _ in 0..3 {
        released += bench.publish(ram, sides);
        sides.fetch();
    }
    check((2..=4).contains(&released.0), "few atoms are in flight")?;
    let (mask, group) = marks_at(ram, SLOT_WORDS);
    let kept = mask.is_some_and(|mask| mask.first() == Some(&0x0f));
    check(kept, "an atom avoids reserved TPCs")?;
    let place = Precedence::Middle.group(0);
    check(group == place, "an atom has its place")?;
    check(bench.publish(ram, sides) == 0, "the others wait")?;
    for atom in 1..=ATOMS {
        // The atoms end one by one: each writes the number of the split.
        let done = (Wrapping(atom) * Wrapping(SLOT_WORDS) + Wrapping(DONE)).0;
        if let Some(word) = ram.0.get(done) {
            word.set(1);
        }
        released += bench.publish(ram, sides);
        sides.fetch();
    }
    let all = bench.governor.counters().sums.atoms;
    check(u64::from(released.0) == all && all > 4, "all are released")?;
    check(!bench.lane.is_pending(sides), "all have ended")?;
    bench.lane.forget(|_| true);
    bench.scratch.forget(|_| true);
    let counters = bench.governor.counters();
    check(counters.sums.crowded == 0, "there was room")?;
    check(counters.kept(Reason::Unreadable) == 0, "all was read")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::boxed::Box;

    #[test]
    fn the_checks_pass() {
        let mut memory = Box::new(Memory::new());
        assert_eq!(run(&mut memory), Ok(()));
    }
}
