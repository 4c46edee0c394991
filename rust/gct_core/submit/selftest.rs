// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The same checks on the host and, as KUnit, in the kernel: that this object code splits, masks and refuses as it should.
//!
//! The vectors are made of constants and need nothing but the stack. The host's tests go much further; this is what runs
//! where the product runs.

use super::class::{self, Action};
use super::gpfifo::{Entry, Fetch};
use super::launch::{Kind, Launch};
use super::limits::SLOT_BYTES;
use super::mask::{self, TpcMask};
use super::method;
use super::qmd::{v04_00, Version};
use super::rewrite::{self, Cut, Order, Output, Placement};
use super::stats::{Counters, Reason};
use super::tracker::{Found, Source, Tracker};

/// A check that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Which one, in words.
    pub check: &'static str,
}

/// The words of one upload of a QMD and its PCAS.
const SEGMENT_WORDS: usize = 9 + v04_00::WORDS + 4;
/// Where the QMD is in it.
const QMD_AT: usize = 9;
/// Its address, as in the captures.
const QMD_VA: u64 = 0x2_04e0_f800;
/// Where the atoms' QMDs go.
const SLOT_VA: u64 = 0x10_0000_0000;
/// A GPFIFO entry of the captures: 385 words at 0x200833944.
const ENTRY: u64 = 0x0006_0402_0083_3944;
/// Words of an output of four atoms, with room to spare.
const OUTPUT_WORDS: usize = 640;
/// Blocks of the vector's grid.
const BLOCKS: u32 = 1000;

fn check(holds: bool, check: &'static str) -> Result<(), Failure> {
    if holds {
        Ok(())
    } else {
        Err(Failure { check })
    }
}

/// A launch of 1000 blocks as CUDA writes it on Hopper, with every kind of effect.
fn segment() -> [u32; SEGMENT_WORDS] {
    let mut words = [0; SEGMENT_WORDS];
    let upload = [
        method::incr(1, class::OFFSET_OUT_UPPER, 2),
        // CAST: the two halves.
        (QMD_VA >> 32) as u32,
        QMD_VA as u32,
        method::incr(1, class::LINE_LENGTH_IN, 2),
        384,
        1,
        method::incr(1, class::LAUNCH_DMA, 1),
        0x41,
        method::non_incr(1, class::LOAD_INLINE_DATA, 96),
    ];
    let call = [
        method::incr(1, class::SEND_PCAS_A, 1),
        (QMD_VA >> 8) as u32,
        method::incr(1, class::SEND_SIGNALING_PCAS2_B, 1),
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
    words
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

fn finding(words: &[u32], found: &mut [Found]) -> Result<usize, Failure> {
    let mut counters = Counters::new();
    let scan = Tracker::new(0xc86f).scan(words, found, &mut counters);
    check(
        scan.found == 1 && scan.refused.is_none(),
        "one launch is found",
    )?;
    let Some(first) = found.first() else {
        return check(false, "the table has room").map(|()| 0);
    };
    check(
        first.source == Source::Upload && first.qmd_va == QMD_VA,
        "its QMD is found",
    )?;
    let Some(launch) = first.launch(words) else {
        return check(false, "its QMD is read").map(|()| 0);
    };
    check(
        launch.kind == Kind::Grid && launch.grid == [BLOCKS, 1, 1],
        "its grid is read",
    )?;
    check(
        launch.effects.pre_exit && launch.effects.arrive_latch == Some(0),
        "its effects are read",
    )?;
    Ok(scan.found)
}

fn masking() -> Result<(), Failure> {
    let mut words = segment();
    let Some(qmd) = words.get_mut(QMD_AT..) else {
        return check(false, "the vector has a QMD");
    };
    let Ok(ours) = TpcMask::keep_only(66, [3, 64]) else {
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

/// Four atoms that cover the grid, one effect each, and a join that keeps the rest.
fn splitting(words: &[u32], found: &[Found]) -> Result<(), Failure> {
    let orders = [Order {
        mask: None,
        atoms: 4,
    }];
    let mut output = [0; OUTPUT_WORDS];
    let mut cuts = [Cut::default(); 4];
    let mut counters = Counters::new();
    let need = rewrite::room(words, found, &orders, &Placement::Upload);
    let emitted = rewrite::emit(
        words,
        found,
        &orders,
        Output {
            words: &mut output,
            slot_va: SLOT_VA,
            slots: 4,
            placement: Placement::Upload,
            cuts: &mut cuts,
        },
        &mut counters,
    );
    let Ok(emitted) = emitted else {
        return check(false, "a split fits its room");
    };
    check(
        u64::from(emitted.words) == need.words && emitted.slots == 4,
        "the room is known beforehand",
    )?;
    check(
        counters.split == 1 && counters.atoms == 4 && emitted.cuts == 4,
        "the split is counted",
    )?;
    let join = output
        .get(QMD_AT..)
        .and_then(|join| Launch::read(join, Version::V04_00));
    let joined = join.is_some_and(|join| {
        join.kind == Kind::Null
            && join.waits.dependences == 4
            && join.effects.arrive_latch == Some(0)
            && join.effects.reference.is_some()
    });
    check(joined, "the join keeps the effects")?;
    let mut table = [Found::default(); 8];
    let mut counters = Counters::new();
    let length = usize::try_from(emitted.words).unwrap_or(0);
    let output = output.get(..length).unwrap_or(&[]);
    let scan = Tracker::new(0xc86f).scan(output, &mut table, &mut counters);
    check(
        scan.found == 5 && counters.kept_total() == 0,
        "the output is understood",
    )?;
    let mut next = 0;
    let mut slot = SLOT_VA;
    for atom in table.iter().skip(1).take(4) {
        let Some(launch) = atom.launch(output) else {
            return check(false, "an atom's QMD is in the output");
        };
        let [start, ..] = launch.resume;
        check(
            atom.action == Action::Schedule && atom.qmd_va == slot,
            "an atom is scheduled without a copy",
        )?;
        check(start == next, "the atoms follow each other")?;
        let [first, second] = launch.effects.dependents;
        let tells_join =
            first.is_some_and(|dependent| dependent.va == Some(QMD_VA)) && second.is_none();
        let once = launch.effects.arrive_latch.is_none()
            && launch.effects.releases == [None; 3]
            && launch.effects.reference.is_none()
            && !launch.effects.pre_exit;
        check(
            tells_join && once,
            "an atom's only effect is to tell the join",
        )?;
        let [end, ..] = launch.grid;
        next = end;
        slot = slot.wrapping_add(SLOT_BYTES);
    }
    check(next == BLOCKS, "the atoms cover the grid")
}

/// What waits is left whole.
fn refusing() -> Result<(), Failure> {
    let mut words = segment();
    if let Some(qmd) = words.get_mut(QMD_AT..) {
        let _ = v04_00::WAIT_ON_LATCH_VALID.set(qmd, 1);
        let refused = Launch::splittable(qmd, Version::V04_00);
        check(
            refused == Err(Reason::WaitsOnLatch),
            "what waits for a latch is not split",
        )?;
    }
    let mut found = [Found::default(); 1];
    let mut counters = Counters::new();
    // A header of the forms before Fermi.
    let scan = Tracker::new(0xc86f).scan(&[0x0004_0180, 0], &mut found, &mut counters);
    check(
        scan.refused.is_some() && counters.kept(Reason::OldForm) == 1,
        "an old header is refused",
    )
}

/// Runs all checks.
///
/// # Errors
///
/// The first that fails.
pub fn run() -> Result<(), Failure> {
    let words = segment();
    let mut found = [Found::default(); 4];
    entries()?;
    let count = finding(&words, &mut found)?;
    masking()?;
    splitting(&words, found.get(..count).unwrap_or(&[]))?;
    refusing()
}
