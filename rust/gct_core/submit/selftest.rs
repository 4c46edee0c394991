// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Checks on the host and, as KUnit, in the kernel that this object code splits, masks and refuses.
//!
//! The vectors are constants. The checks work in [`Memory`] of the caller, because a kernel's stack
//! is small. The host's tests go much further; these checks run where the product runs.

use super::gpfifo::{Entry, Fetch};
use super::join::DoneWords;
use super::launch::{Effects, Kind, Launch, Release};
use super::limits::SLOT_BYTES;
use super::mask::{self, DisabledTpcs};
use super::method;
use super::methods::{self, Action};
use super::qmd::{v04_00, Version};
use super::reason::Reason;
use super::rewrite::{self, Cut, Order, Output, Placement};
use super::stats::Counters;
use super::tracker::{QmdCall, Source, Tracker};
use core::num::Wrapping;

/// A check that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What failed.
    pub check: &'static str,
}

/// Words of one upload of a QMD and its PCAS.
pub(crate) const SEGMENT_WORDS: usize = QMD_AT + v04_00::WORDS + 4;
/// Position of the QMD in them.
pub(crate) const QMD_AT: usize = 9;
/// Its address, as in the captures.
const QMD_VA: u64 = 0x2_04e0_f800;
/// Address of the slots of the join and the atoms.
const SLOT_VA: u64 = 0x10_0000_0000;
/// A GPFIFO entry of the captures: 385 words at 0x200833944.
const ENTRY: u64 = 0x0006_0402_0083_3944;
/// Atoms of the split.
const ATOMS: u32 = 4;
/// Words of an output of so many atoms, rounded up.
const OUTPUT_WORDS: usize = 768;
/// Blocks of the vector's grid.
const BLOCKS: u32 = 1000;
/// The words that the atoms write when they have ended.
const DONE: DoneWords = DoneWords::in_slots(SLOT_VA, 7);

/// Memory of the checks, about 6 KiB. It begins as [`Memory::EMPTY`].
#[derive(Debug)]
pub struct Memory {
    tracker: Tracker,
    counters: Counters,
    found: [QmdCall; 8],
    words: [u32; SEGMENT_WORDS],
    output: [u32; OUTPUT_WORDS],
    cuts: [Cut; ATOMS as usize],
}

impl Memory {
    /// Memory that no check has used.
    pub const EMPTY: Self = Self {
        tracker: Tracker::new(0xc86f),
        counters: Counters::new(),
        found: [QmdCall::NONE; 8],
        words: [0; SEGMENT_WORDS],
        output: [0; OUTPUT_WORDS],
        cuts: [Cut::NONE; ATOMS as usize],
    };
}

fn check(holds: bool, check: &'static str) -> Result<(), Failure> {
    if holds {
        Ok(())
    } else {
        Err(Failure { check })
    }
}

/// Writes a launch of 1000 blocks as CUDA does on Hopper, with every kind of effect.
#[inline(never)]
pub(crate) fn write_segment(words: &mut [u32; SEGMENT_WORDS]) {
    *words = [0; SEGMENT_WORDS];
    let upload = [
        method::incr(1, methods::OFFSET_OUT_UPPER, 2),
        // CAST: the two halves.
        (QMD_VA >> 32) as u32,
        QMD_VA as u32,
        method::incr(1, methods::LINE_LENGTH_IN, 2),
        384,
        1,
        method::incr(1, methods::LAUNCH_DMA, 1),
        0x41,
        method::non_incr(1, methods::LOAD_INLINE_DATA, 96),
    ];
    let call = [
        method::incr(1, methods::SEND_PCAS_A, 1),
        (QMD_VA >> 8) as u32,
        method::incr(1, methods::SEND_SIGNALING_PCAS2_B, 1),
        Action::InvalidatePrefetchCopySchedule.value(),
    ];
    let fields = [
        (v04_00::QMD_MAJOR_VERSION, 4),
        (v04_00::QMD_TYPE, 2),
        (v04_00::GRID_WIDTH, BLOCKS),
        (v04_00::GRID_HEIGHT, 1),
        (v04_00::GRID_DEPTH, 1),
        (v04_00::CTA_THREAD_DIMENSION0, 128),
        (v04_00::CTA_THREAD_DIMENSION1, 1),
        (v04_00::CTA_THREAD_DIMENSION2, 1),
        (v04_00::RELEASE_ENABLE, 1),
        (v04_00::ARRIVE_AT_LATCH_VALID, 1),
        (v04_00::ENABLE_PROGRAM_PRE_EXIT, 1),
        (v04_00::DEPENDENT_QMD_ENABLE, 1),
        (v04_00::DEPENDENT_QMD_ACTION, 4),
        (v04_00::DEPENDENT_QMD0_POINTER, 0x0204_e138),
        (v04_00::CWD_REFERENCE_COUNT_DECR_ENABLE, 1),
    ];
    for (word, value) in words.iter_mut().zip(upload) {
        *word = value;
    }
    if let Some(qmd) = words.get_mut(QMD_AT..) {
        for (field, value) in fields {
            // Each value is a constant that fits.
            let _ = field.set(qmd, value);
        }
    }
    for (word, value) in words.iter_mut().skip(QMD_AT + v04_00::WORDS).zip(call) {
        *word = value;
    }
}

fn entries() -> Result<(), Failure> {
    let Entry::Segment(segment) = Fetch::new().decode(ENTRY) else {
        return check(false, "a GPFIFO entry is a segment");
    };
    check(
        segment.va == 0x2_0083_3944 && segment.words == 385,
        "a GPFIFO entry is read",
    )?;
    check(
        Entry::Segment(segment).encode() == ENTRY,
        "a GPFIFO entry is written",
    )
}

#[inline(never)]
fn finding(memory: &mut Memory) -> Result<(), Failure> {
    let Memory { words, found, .. } = memory;
    let scan = memory.tracker.scan(words, found, &mut memory.counters);
    check(
        scan.found == 1 && scan.refused.is_none(),
        "one launch is found",
    )?;
    let [first, ..] = found;
    check(
        first.source == Source::Upload && first.qmd_va == QMD_VA,
        "its QMD is found",
    )?;
    let Some(launch) = first.launch(words) else {
        return check(false, "its QMD is read");
    };
    check(
        launch.kind == Kind::Grid && launch.grid == [BLOCKS, 1, 1],
        "its grid is read",
    )?;
    check(
        launch.effects.pre_exit && launch.effects.arrive_latch == Some(0),
        "its effects are read",
    )
}

#[inline(never)]
fn masking(memory: &mut Memory) -> Result<(), Failure> {
    let Some(qmd) = memory.words.get_mut(QMD_AT..) else {
        return check(false, "the vector has a QMD");
    };
    let Ok(ours) = DisabledTpcs::keep_only(66, [3, 64]) else {
        return check(false, "a mask of 66 TPCs is made");
    };
    check(
        ours.enabled() == 2 && !ours.is_disabled(64),
        "a mask beyond 64 TPCs is kept",
    )?;
    check(
        mask::apply(qmd, Version::V04_00, &ours).is_ok(),
        "a mask is applied",
    )?;
    let read = mask::read(qmd, Version::V04_00).unwrap_or([0; 8]);
    check(read == [!8, !0, 2, 0, 0, 0, 0, 0], "the mask is in the QMD")
}

/// Checks a split into four atoms, and a join that keeps the launch's effects.
#[inline(never)]
fn splitting(memory: &mut Memory) -> Result<(), Failure> {
    let orders = [Order {
        mask: None,
        atoms: ATOMS,
        ..Order::default()
    }];
    let Memory { words, found, .. } = memory;
    let found = found.get(..1).unwrap_or(&[]);
    let need = rewrite::room(words, found, &orders, &Placement::Upload);
    let emitted = rewrite::emit(
        words,
        found,
        &orders,
        Output {
            words: &mut memory.output,
            slot_va: SLOT_VA,
            slots: ATOMS + 1,
            placement: Placement::Upload,
            cuts: &mut memory.cuts,
            done: Some(DONE),
        },
        &mut memory.counters,
    );
    let Ok(emitted) = emitted else {
        return check(false, "a split fits its room");
    };
    check(
        u64::from(emitted.words) == need.words && u64::from(emitted.slots) == need.slots,
        "the room is known beforehand",
    )?;
    check(
        memory.counters.sums.split == 1 && memory.counters.sums.atoms == 4 && emitted.cuts == ATOMS,
        "the split is counted",
    )?;
    let length = usize::try_from(emitted.words).unwrap_or(0);
    let output = memory.output.get(..length).unwrap_or(&[]);
    let kept = memory.counters.kept_total();
    let scan = memory
        .tracker
        .scan(output, &mut memory.found, &mut memory.counters);
    check(
        scan.found == 6 && memory.counters.kept_total() == kept,
        "the output is understood",
    )
}

/// Checks the output of [`splitting`]: the tenant's QMD is touched, the join scheduled, and the
/// atoms cover the grid.
#[inline(never)]
fn parts(memory: &Memory) -> Result<(), Failure> {
    let [touch, join, ..] = &memory.found;
    check(
        touch.source == Source::Touch && touch.qmd_va == QMD_VA,
        "the tenant's QMD is dropped from the scheduler",
    )?;
    let joined = join.launch(&memory.output).is_some_and(|launch| {
        launch.kind == Kind::Null
            && launch.waits.dependences == ATOMS
            && launch.effects.arrive_latch == Some(0)
            && launch.effects.reference.is_some()
    });
    check(
        joined && join.qmd_va == SLOT_VA,
        "the join keeps the effects",
    )?;
    let mut next = 0;
    let mut slot = Wrapping(0u32);
    for atom in memory.found.get(2..6).unwrap_or_default() {
        slot += 1;
        let Some(launch) = atom.launch(&memory.output) else {
            return check(false, "an atom's QMD is in the output");
        };
        let va = SLOT_VA + u64::from(slot.0) * SLOT_BYTES;
        check(
            atom.action == Action::Schedule && atom.qmd_va == va,
            "an atom is scheduled without a copy",
        )?;
        let [start, ..] = launch.resume;
        check(start == next, "the atoms follow each other")?;
        check(
            is_atom(&launch.effects, slot.0),
            "an atom's only effects are to tell the join and who asked",
        )?;
        [next, ..] = launch.grid;
    }
    check(next == BLOCKS, "the atoms cover the grid")
}

/// Returns whether these are the effects of the atom in a slot.
fn is_atom(effects: &Effects, slot: u32) -> bool {
    let [join, other] = effects.dependents;
    let [done, second, third] = effects.releases;
    let tells = |release: Release| {
        release.va == DONE.va_of(slot) && release.payload == 7 && release.words == 1
    };
    join.is_some_and(|dependent| dependent.va == Some(SLOT_VA))
        && done.is_some_and(tells)
        && other.is_none()
        && second.is_none()
        && third.is_none()
        && effects.arrive_latch.is_none()
        && effects.reference.is_none()
        && !effects.pre_exit
}

/// Checks that a launch that waits stays whole, and that unknown words are refused.
#[inline(never)]
fn refusing(memory: &mut Memory) -> Result<(), Failure> {
    if let Some(qmd) = memory.words.get_mut(QMD_AT..) {
        let _ = v04_00::WAIT_ON_LATCH_VALID.set(qmd, 1);
        let refused = Launch::splittable(qmd, Version::V04_00, false);
        check(
            refused == Err(Reason::WaitsOnLatch),
            "what waits for a latch is not split",
        )?;
    }
    // A header of the forms before Fermi.
    let scan = memory
        .tracker
        .scan(&[0x0004_0180, 0], &mut memory.found, &mut memory.counters);
    check(
        scan.refused.is_some() && memory.counters.kept(Reason::OldForm) == 1,
        "an old header is refused",
    )
}

/// Runs all checks in `memory` that no check has used.
///
/// # Errors
///
/// The first check that fails.
pub fn run(memory: &mut Memory) -> Result<(), Failure> {
    entries()?;
    write_segment(&mut memory.words);
    finding(memory)?;
    splitting(memory)?;
    parts(memory)?;
    masking(memory)?;
    refusing(memory)
}
