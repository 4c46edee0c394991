// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Checks a lane with copies: the GPU executes what was scanned, whatever the tenant does later.

use super::backend::{Lent, Ram, Run, Sides};
use super::{
    check, marks_at, write_launch, Slots, APART, ATOMS, COPIES, COPIES_WORDS, ENTRIES, FRAME_WORDS,
    LONG_COPIES, LONG_COPIES_WORDS, NOW, PROGRESS, RELEASE, SEGMENT, VA,
};
use crate::lane::channel::Lane;
use crate::lane::copies::Copies;
use crate::lane::governor::{Governor, Nobody};
use crate::lane::in_flight::InFlightQueue;
use crate::lane::leave::Leave;
use crate::lane::limits::LaunchLimits;
use crate::lane::ring::RealRing;
use crate::lane::scratch::Scratch;
use crate::lane::split::{AtomRoom, ATOMS_MAX};
use crate::lane::whole::WholeSlots;
use crate::lane::words::{Control, Side, Words};
use crate::lane::work::{Round, Stream, Workspace};
use crate::mask::TpcMask;
use crate::submit::gpfifo::{Control as Command, Entry, Fetch, Segment};
use crate::submit::limits::SLOT_WORDS;
use crate::submit::methods::Action;
use crate::submit::qmd::v04_00;
use crate::submit::rewrite::whole;
use crate::submit::selftest::{Failure, QMD_AT, SEGMENT_WORDS};
use crate::topology::Topology;
use core::cell::Cell;
use core::num::Wrapping;

/// A lane whose tenant is kept to some TPCs, with room for the copy of one segment.
struct Bench<'a> {
    lane: Lane<Lent<'a>, Run>,
    governor: Governor<Lent<'a>, Nobody>,
    work: Workspace<Lent<'a>>,
    copies: Copies<Lent<'a>, Run>,
    scratch: Option<Scratch<Lent<'a>, Run>>,
    slots: Option<WholeSlots<Run>>,
}

/// What a step of a lane takes.
type Parts<'b, 'a, 'r> = (
    &'b mut Lane<Lent<'a>, Run>,
    &'b mut Governor<Lent<'a>, Nobody>,
    Round<'b, Lent<'a>, Ram<'r>>,
);

impl<'a> Bench<'a> {
    /// Returns the lane, what governs it, and a round of both.
    fn round<'b, 'r>(&'b mut self, ram: &'b Ram<'r>) -> Parts<'b, 'a, 'r> {
        let round = Round {
            memory: ram,
            scratch: self.scratch.as_mut(),
            copies: Some(&mut self.copies),
            slots: self.slots.as_mut(),
            turn: 2,
            words: u32::MAX,
            work: &mut self.work,
            now: NOW,
            ahead: None,
        };
        (&mut self.lane, &mut self.governor, round)
    }

    /// Publishes once. Returns the number of the tenant's entries.
    fn publish(&mut self, ram: &Ram<'_>, sides: &Sides<'_>) -> u32 {
        let (lane, governor, mut round) = self.round(ram);
        lane.publish(sides, governor, &mut round)
    }

    /// Takes a step towards the end of the lane.
    fn leave(&mut self, ram: &Ram<'_>, sides: &Sides<'_>) -> Leave {
        let (lane, governor, mut round) = self.round(ram);
        lane.leave(sides, governor, &mut round)
    }
}

/// Returns the address of the memory's word `index`.
fn va(index: usize) -> u64 {
    // CAST: widening.
    VA.wrapping_add((index as u64) << 2)
}

/// Runs the checks, on both sides anew.
pub(super) fn run(ram: &Ram<'_>, sides: &Sides<'_>, slots: &mut Slots) -> Result<(), Failure> {
    for word in sides.userd.iter().flatten() {
        word.set(0);
    }
    let Some(mut bench) = bench(slots, (COPIES, COPIES_WORDS)) else {
        return check(false, "copies fit");
    };
    masks(&mut bench, ram, sides)?;
    waits(&mut bench, ram, sides)?;
    for word in sides.userd.iter().flatten() {
        word.set(0);
    }
    let Some(mut bench) = self::bench(slots, (LONG_COPIES, LONG_COPIES_WORDS)) else {
        return check(false, "longer copies fit");
    };
    places(&mut bench, ram, sides)?;
    refuses(&mut bench, ram, sides)?;
    for word in sides.userd.iter().flatten() {
        word.set(0);
    }
    let Some(mut bench) = self::bench(slots, (LONG_COPIES, LONG_COPIES_WORDS)) else {
        return check(false, "longer copies fit again");
    };
    splits(&mut bench, ram, sides)?;
    leaves(&mut bench, ram, sides)
}

/// Returns a lane with memory for copies, by its index and its words.
#[inline(never)]
fn bench(slots: &mut Slots, (first, words): (usize, usize)) -> Option<Bench<'_>> {
    let progress = Run {
        first: PROGRESS,
        words: 1,
    };
    let copies = Copies::new(
        // CAST: a small constant.
        (va(first), Run { first, words }, words as u32),
        (va(PROGRESS), progress),
        &mut slots.marks[..],
    )?;
    let frame = Run {
        first: 0,
        words: FRAME_WORDS,
    };
    // CAST: a small constant.
    let most = ATOMS_MAX as usize;
    let ends = Run {
        first: APART,
        words: most,
    };
    let scratch = Scratch::read_only(
        (va(0), frame, FRAME_WORDS),
        FRAME_WORDS,
        (va(APART), ends, most),
        &mut slots.frames[..],
    );
    let room = AtomRoom::new(&mut slots.slots[..], &mut slots.cuts[..]);
    // Nothing is known of the kernel.
    slots.kernels.fill(None);
    let limits = LaunchLimits {
        tpcs: Some(TpcMask::first(4)),
        ..LaunchLimits::NONE
    };
    let mut bench = Bench {
        lane: Lane::new(
            ENTRIES,
            RealRing::new(&mut slots.ring[..]),
            InFlightQueue::new(&mut slots.in_flight[..]),
            Stream::new(0xc86f, room, &mut slots.found[..]),
        ),
        governor: Governor::new(
            limits,
            &mut slots.kernels[..],
            &mut slots.nodes[..],
            &mut slots.laws[..],
        ),
        work: Workspace::new(
            &mut slots.words[..],
            &mut slots.orders[..],
            &mut slots.output[..],
        ),
        copies,
        scratch,
        slots: None,
    };
    bench
        .governor
        .set_gpu(Topology::together(TpcMask::first(8)));
    bench.lane.set_token(9);
    Some(bench)
}

/// Returns the segment of an entry of the real ring.
fn segment(sides: &Sides<'_>, index: usize) -> Option<Segment> {
    let entry = sides.real.get(index)?.get();
    match Fetch::new().decode(entry) {
        Entry::Segment(segment) => Some(segment),
        _ => None,
    }
}

/// Checks that the copy has the mask, and that the tenant's words are only read.
#[inline(never)]
fn masks(bench: &mut Bench<'_>, ram: &Ram<'_>, sides: &Sides<'_>) -> Result<(), Failure> {
    sides.submit(write_launch(ram));
    check(bench.publish(ram, sides) == 1, "the copy is published")?;
    let found = segment(sides, 0).map(|copy| (copy.va, copy.words));
    // CAST: a small constant.
    let copy = (va(COPIES), SEGMENT_WORDS as u32);
    check(found == Some(copy), "the entry names the copy")?;
    let masked = |at: usize| {
        marks_at(ram, at)
            .0
            .is_some_and(|mask| mask.first() == Some(&0xf0))
    };
    check(masked(COPIES + QMD_AT), "the copy has the mask")?;
    check(!masked(SEGMENT + QMD_AT), "the tenant's words have none")?;
    let words = [0; SEGMENT_WORDS];
    let tenant = Run {
        first: SEGMENT,
        words: SEGMENT_WORDS,
    };
    ram.write(&tenant, 0, &words);
    check(masked(COPIES + QMD_AT), "the copy is the driver's")?;
    check(segment(sides, 1).is_some(), "an entry ends the batch")?;
    check(sides.rung.take() == Some(9), "the doorbell rings")
}

/// Checks that a copy is not overwritten while the GPU may read it, that an entry that waits is read
/// once, and that bases stay the lane's.
#[inline(never)]
fn waits(bench: &mut Bench<'_>, ram: &Ram<'_>, sides: &Sides<'_>) -> Result<(), Failure> {
    sides.submit(write_launch(ram));
    let progress = Run {
        first: PROGRESS,
        words: 1,
    };
    ram.store(&progress, 0, 1);
    check(
        bench.publish(ram, sides) == 0,
        "a forged number frees nothing",
    )?;
    // The tenant changes the entry that waits. It was read.
    for entry in sides.tenant {
        entry.set(0);
    }
    ram.store(&progress, 0, 0);
    sides.fetch();
    check(bench.publish(ram, sides) == 0, "GP_GET alone frees nothing")?;
    ram.store(&progress, 0, 1);
    check(bench.publish(ram, sides) == 1, "both free the copy")?;
    let found = segment(sides, 2).map(|copy| copy.va);
    check(found == Some(va(COPIES)), "an entry is read once")?;
    sides.fetch();
    check(bench.lane.follow_get(sides), "the GPU has read both")?;
    let get = sides.control(Side::Tenant, Control::Get).get();
    check(get == 2, "GP_GET reaches the tenant")?;
    sides.submit(Entry::Control(Command::ExtendedBase(1)).encode());
    check(bench.publish(ram, sides) == 1, "a base is published")?;
    let last = sides.real.get(4).map(core::cell::Cell::get);
    check(last == Some(0), "as an entry that does nothing")?;
    check(!bench.lane.is_pending(sides), "nothing is left")
}

/// Checks that a masked launch runs from a slot, which is used again when its word says so.
#[inline(never)]
fn places(bench: &mut Bench<'_>, ram: &Ram<'_>, sides: &Sides<'_>) -> Result<(), Failure> {
    let word = |first| Run { first, words: 1 };
    ram.store(&word(PROGRESS), 0, 0);
    let slots = Run {
        first: 0,
        words: SLOT_WORDS,
    };
    bench.slots = WholeSlots::new((va(0), slots), (va(APART), word(APART)), 1);
    check(bench.slots.is_some(), "there is a slot")?;
    sides.submit(write_launch(ram));
    check(bench.publish(ram, sides) == 1, "the launch is published")?;
    let masked = |at: usize| {
        marks_at(ram, at)
            .0
            .is_some_and(|mask| mask.first() == Some(&0xf0))
    };
    check(masked(0), "the slot has the mask")?;
    let copy = segment(sides, 0);
    // CAST: small constants.
    let longer = SEGMENT_WORDS
        .wrapping_add(whole::ADDED_WORDS)
        .wrapping_sub(1) as u32;
    let found = copy.map(|copy| (copy.va, copy.words));
    check(
        found == Some((va(LONG_COPIES), longer)),
        "its copy is replaced",
    )?;
    // The words that name the slot, and schedule it.
    let at = LONG_COPIES.wrapping_add(SEGMENT_WORDS).wrapping_add(2);
    let named = ram.0.get(at.wrapping_add(1)).map(Cell::get);
    // CAST: the address has 37 bits.
    check(named == Some((va(0) >> 8) as u32), "the slot is named")?;
    let action = ram.0.get(at.wrapping_add(5)).map(Cell::get);
    check(action == Some(Action::Schedule.value()), "it is scheduled")?;
    sides.fetch();
    ram.store(&word(PROGRESS), 0, 1);
    sides.submit(write_launch(ram));
    check(bench.publish(ram, sides) == 0, "the slot is in use")?;
    ram.store(&word(APART), 0, 0);
    check(bench.publish(ram, sides) == 1, "it has ended")?;
    sides.fetch();
    let counters = bench.governor.counters();
    check(
        counters.sums.rewritten == 2 && counters.kept_total() == 0,
        "both have the mask",
    )?;
    bench.lane.forget(|_| true);
    Ok(())
}

/// Checks that a strict limit detaches a launch, and refuses a segment that cannot be read. Nothing
/// is published any more then.
#[inline(never)]
fn refuses(bench: &mut Bench<'_>, ram: &Ram<'_>, sides: &Sides<'_>) -> Result<(), Failure> {
    let word = |first| Run { first, words: 1 };
    ram.store(&word(PROGRESS), 0, 2);
    ram.store(&word(APART), 0, 1);
    let limits = LaunchLimits {
        strict: true,
        ..*bench.governor.limits()
    };
    bench.governor.set_limits(limits);
    sides.submit(write_launch(ram));
    check(bench.publish(ram, sides) == 1, "the launch is published")?;
    let attached = v04_00::DEPENDENT_QMD_ENABLE;
    let in_slot = ram.0.get(attached.word()).map(Cell::get);
    let dependent = in_slot.is_none_or(|word| word >> (attached.shift() & 31) & 1 != 0);
    check(!dependent, "it is detached")?;
    sides.fetch();
    ram.store(&word(PROGRESS), 0, 3);
    ram.store(&word(APART), 0, 2);
    let elsewhere = Segment {
        va: 4096,
        words: 4,
        subroutine: false,
        wait: false,
        conditional: false,
    };
    sides.submit(Entry::Segment(elsewhere).encode());
    check(bench.publish(ram, sides) == 0, "it is not published")?;
    check(bench.lane.is_refused(), "it is refused")?;
    sides.submit(write_launch(ram));
    check(bench.publish(ram, sides) == 0, "nor is what follows")?;
    check(!bench.lane.is_unfinished(), "nothing is watched")?;
    let refused = bench.governor.counters().sums.refused;
    check(refused == 1, "it is counted once")?;
    let limits = LaunchLimits {
        strict: false,
        ..limits
    };
    bench.governor.set_limits(limits);
    bench.slots = None;
    Ok(())
}

/// Checks that a launch is split without a join: its atoms have the mask, and the last one waits
/// for all others.
#[inline(never)]
fn splits(bench: &mut Bench<'_>, ram: &Ram<'_>, sides: &Sides<'_>) -> Result<(), Failure> {
    let word = |first| Run { first, words: 1 };
    ram.store(&word(PROGRESS), 0, 0);
    ram.store(&word(RELEASE), 0, 0);
    let limits = LaunchLimits {
        atom_ns: 1,
        ..*bench.governor.limits()
    };
    bench.governor.set_limits(limits);
    sides.submit(write_launch(ram));
    let mut released = Wrapping(0);
    for _ in 0..3 {
        released += bench.publish(ram, sides);
        sides.fetch();
    }
    check((2..=4).contains(&released.0), "few atoms are in flight")?;
    let first = segment(sides, 0).map(|segment| segment.va);
    let copies = va(LONG_COPIES)..va(LONG_COPIES.wrapping_add(LONG_COPIES_WORDS));
    check(first.is_some_and(|va| copies.contains(&va)), "it is a copy")?;
    let masked = marks_at(ram, 0)
        .0
        .is_some_and(|mask| mask.first() == Some(&0xf0));
    check(masked, "an atom has the mask")?;
    let last = ATOMS.wrapping_sub(1);
    let number = bench.governor.splits;
    for atom in 0..last {
        // CAST: widening.
        check(released.0 as usize <= last, "the last one waits")?;
        ram.store(&word(APART.wrapping_add(atom)), 0, number);
        released += bench.publish(ram, sides);
        sides.fetch();
    }
    // CAST: widening.
    check(released.0 as usize == ATOMS, "all are released")?;
    let slot = last.wrapping_mul(SLOT_WORDS);
    let masked = marks_at(ram, slot)
        .0
        .is_some_and(|mask| mask.first() == Some(&0xf0));
    check(masked, "the last has the mask")?;
    check(bench.lane.is_pending(sides), "it is in flight")?;
    ram.store(&word(RELEASE), 0, 1);
    bench.publish(ram, sides);
    check(!bench.lane.is_pending(sides), "it has ended")?;
    check(
        bench.governor.counters().sums.crowded == 0,
        "there was room",
    )
}

/// Checks that the tenant can go on where both rings have the same index, once nothing uses the
/// lane's memory.
#[inline(never)]
fn leaves(bench: &mut Bench<'_>, ram: &Ram<'_>, sides: &Sides<'_>) -> Result<(), Failure> {
    bench.governor.set_limits(LaunchLimits::NONE);
    let word = |first| Run { first, words: 1 };
    let works = |bench: &mut Bench<'_>| bench.leave(ram, sides) == Leave::Works;
    // More batches than were closed.
    ram.store(&word(PROGRESS), 0, 100);
    ram.store(&word(RELEASE), 0, 0);
    check(works(bench), "the frame is in use")?;
    ram.store(&word(RELEASE), 0, 1);
    sides.submit(write_launch(ram));
    check(bench.publish(ram, sides) == 1, "a launch goes whole")?;
    sides.fetch();
    ram.store(&word(PROGRESS), 0, 0);
    check(works(bench), "the copy is in use")?;
    ram.store(&word(PROGRESS), 0, 100);
    let index = |side, control| sides.control(side, control).get();
    let put = index(Side::Tenant, Control::Put);
    check(index(Side::Real, Control::Put) != put, "indices differ")?;
    sides.rung.set(None);
    check(bench.leave(ram, sides) == Leave::Waits, "NOPs are added")?;
    check(sides.rung.take() == Some(9), "the doorbell rings")?;
    check(index(Side::Real, Control::Put) == put, "up to the tenant's")?;
    check(bench.leave(ram, sides) == Leave::Waits, "they are fetched")?;
    check(sides.rung.take().is_none(), "they are added once")?;
    check(sides.fetch() == 0, "the last one is a NOP")?;
    check(bench.leave(ram, sides) == Leave::Left, "the lane has left")?;
    check(index(Side::Tenant, Control::Get) == put, "with its GP_GET")
}
