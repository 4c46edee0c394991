// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Builds the QMDs of a split launch: one join, and the atoms.
//!
//! Terminology
//!   M          the tenant's QMD
//!   join       a copy of M in a slot of its own that runs no block and keeps M's effects
//!   atom       a copy of M that runs one part of the grid
//!   done word  a word that an atom writes when it has ended ([`DoneWords`])
//!
//! The **join** has `QMD_TYPE = GRID_NULL` and `DEPENDENCE_COUNTER` = the number of atoms. Each
//! atom decrements it. Effects that happen once for the launch (semaphore releases, dependent QMDs,
//! the latch, the reference count) stay in the join. So they happen once, after the last atom has
//! ended, in whatever order the atoms end. M itself is not scheduled; it stays in the tenant's
//! memory as the tenant wrote it.
//!
//! The hardware counts the join's counter down in memory, so a join cannot lie where the GPU may
//! only read. There a launch has no join ([`Placement::ReadOnly`]): its last atom keeps the
//! effects, and is released once the others have ended.
//!
//! [`Placement::ReadOnly`]: super::rewrite::Placement::ReadOnly
//!
//! Any other **atom** has no effect but that decrement and, on request, its done word. It also
//! loses `ENABLE_PROGRAM_PRE_EXIT`. With that bit, a dependent is notified when every block has
//! *allowed* its dependents to start (`griddepcontrol.launch_dependents`). That may be long before
//! the blocks end, and the join would release too early. So programmatic dependents of a split
//! launch start when it has ended: later than they could, never too early.
//!
//! Only version 4.0 is split (`submission.md`), so this is about its layout alone.

use super::launch::{ACTION_DECREMENT_DEPENDENCE, TYPE_NULL};
use super::limits::{ATOMS_MAX, QMD_VA_END, SLOT_BYTES};
use super::qmd::v04_00::{self as v04, WORDS};
use super::qmd::Field;
use crate::units::{Bytes, Va};

// Every number of atoms fits the counter.
const _: () = assert!(ATOMS_MAX <= v04::DEPENDENCE_COUNTER.max());
// A dependent's address shifted right by 8 fits its field.
const _: () = assert!((QMD_VA_END - 1) >> 8 <= v04::DEPENDENT_QMD0_POINTER.max() as u64);
// A done word fits behind the QMD in its slot.
const _: () = assert!(DONE_OFFSET + 4 <= SLOT_BYTES);

/// Index of a done word in its slot: behind the QMD.
pub(crate) const DONE_WORD: usize = WORDS;
/// The same in bytes.
const DONE_OFFSET: u64 = 4 * DONE_WORD as u64;
/// The first address that no release can name: `RELEASE_SEMAPHORE0_ADDR` has 57 bits.
const RELEASE_VA_END: u64 = ((v04::RELEASE_SEMAPHORE0_ADDR_UPPER.max() as u64) << 32) + (1 << 32);
/// `RELEASE_STRUCTURE_SIZE_SEMAPHORE_ONE_WORD`.
const RELEASE_ONE_WORD: u32 = 1;

/// A QMD of version 4.0, the one that is split.
pub type Qmd = [u32; WORDS];

/// Effects of the launch that an atom must not have: the join has them.
const NOT_IN_ATOMS: [Field; 8] = [
    v04::RELEASE_ENABLE.nth(0),
    v04::RELEASE_ENABLE.nth(1),
    v04::RELEASE_ENABLE.nth(2),
    v04::ARRIVE_AT_LATCH_VALID,
    v04::ENABLE_PROGRAM_PRE_EXIT,
    v04::PRE_EXIT_AT_LAST_CTA_LAUNCH,
    v04::CWD_REFERENCE_COUNT_INCR_ENABLE,
    v04::CWD_REFERENCE_COUNT_DECR_ENABLE,
];

/// Fields of an atom's only dependent, the join.
const ATOM_DEPENDENTS: [Field; 4] = [
    v04::DEPENDENT_QMD_ENABLE.nth(0),
    v04::DEPENDENT_QMD_ACTION.nth(0),
    v04::DEPENDENT_QMD0_POINTER,
    v04::DEPENDENT_QMD_ENABLE.nth(1),
];

/// Returns the fields that are off in the release of a done word: a system membar, a reduction, a
/// trap, 64 bits.
const fn not_in_done(release: u8) -> [Field; 7] {
    [
        v04::RELEASE_MEMBAR_TYPE.nth(release),
        v04::RELEASE_REDUCTION_ENABLE.nth(release),
        v04::RELEASE_REDUCTION_OP.nth(release),
        v04::RELEASE_REDUCTION_FORMAT.nth(release),
        v04::RELEASE_TRAP_TYPE.nth(release),
        v04::RELEASE_PAYLOAD64B.nth(release),
        v04::RELEASE_RESERVED_INFO.nth(release),
    ]
}

/// Address and payload of each release, low halves first.
const RELEASES: [[Field; 4]; 3] = [
    [
        v04::RELEASE_SEMAPHORE0_ADDR_LOWER,
        v04::RELEASE_SEMAPHORE0_ADDR_UPPER,
        v04::RELEASE_SEMAPHORE0_PAYLOAD_LOWER,
        v04::RELEASE_SEMAPHORE0_PAYLOAD_UPPER,
    ],
    [
        v04::RELEASE_SEMAPHORE1_ADDR_LOWER,
        v04::RELEASE_SEMAPHORE1_ADDR_UPPER,
        v04::RELEASE_SEMAPHORE1_PAYLOAD_LOWER,
        v04::RELEASE_SEMAPHORE1_PAYLOAD_UPPER,
    ],
    [
        v04::RELEASE_SEMAPHORE2_ADDR_LOWER,
        v04::RELEASE_SEMAPHORE2_ADDR_UPPER,
        v04::RELEASE_SEMAPHORE2_PAYLOAD_LOWER,
        v04::RELEASE_SEMAPHORE2_PAYLOAD_UPPER,
    ],
];

/// The words that tell which atoms have ended. The atom in slot *i* of an output writes `payload`
/// to word *i* once, when its last block has ended and before any effect of the launch.
///
/// A slot that is used again should get another payload, so that nothing has to be cleared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DoneWords {
    /// Address of slot 0's word; a multiple of 4.
    pub va: u64,
    /// Distance of two words in bytes; a multiple of 4.
    pub stride_bytes: u32,
    /// The value that is written.
    pub payload: u32,
}

impl DoneWords {
    /// Places the words in the slots themselves, behind the QMDs.
    pub const fn in_slots(slot_va: u64, payload: u32) -> Self {
        Self {
            va: slot_va.wrapping_add(DONE_OFFSET),
            // CAST: a small constant.
            stride_bytes: SLOT_BYTES as u32,
            payload,
        }
    }

    /// Returns the address of a slot's word.
    pub fn va_of(&self, slot: u32) -> u64 {
        (Va(self.va) + u64::from(slot) * u64::from(self.stride_bytes)).get()
    }

    /// Sets the address of an atom's done word.
    #[inline]
    pub(crate) fn give(&self, qmd: &mut Qmd, slot: u32) {
        let va = self.va_of(slot);
        // CAST: the two halves; `is_sound` has checked the address against the field.
        put(v04::RELEASE_SEMAPHORE0_ADDR_LOWER, qmd, va as u32);
        put(v04::RELEASE_SEMAPHORE0_ADDR_UPPER, qmd, (va >> 32) as u32);
    }

    /// Returns whether a release can write each of the words of `slots` slots.
    pub(crate) fn is_sound(&self, slots: u64) -> bool {
        let end = Bytes(self.va) + Bytes(u64::from(self.stride_bytes)) * slots;
        self.va % 4 == 0 && self.stride_bytes % 4 == 0 && end < Bytes(RELEASE_VA_END)
    }
}

/// Stores a value that fits its field.
#[inline(always)]
fn put(field: Field, qmd: &mut Qmd, value: u32) {
    let stored = field.set(qmd, value);
    debug_assert!(stored.is_ok(), "a value is too wide for its field");
}

/// Turns `qmd` into the join of `atoms` atoms.
#[inline]
pub(crate) fn make_join(qmd: &mut Qmd, atoms: u32) {
    put(v04::QMD_TYPE, qmd, TYPE_NULL);
    put(v04::DEPENDENCE_COUNTER, qmd, atoms);
    put(v04::GRID_WIDTH, qmd, 1);
    put(v04::GRID_HEIGHT, qmd, 1);
    put(v04::GRID_DEPTH, qmd, 1);
}

/// Turns `qmd` into the common part of all atoms of the join at `join_va`, or of those without a
/// join.
#[inline]
pub(crate) fn make_atom(qmd: &mut Qmd, join_va: Option<u64>) {
    for field in NOT_IN_ATOMS {
        field.clear(qmd);
    }
    let [enable, action, pointer, other] = ATOM_DEPENDENTS;
    other.clear(qmd);
    let Some(join_va) = join_va else {
        enable.clear(qmd);
        return;
    };
    put(enable, qmd, 1);
    put(action, qmd, ACTION_DECREMENT_DEPENDENCE);
    // CAST: the address is below 2^40 and a multiple of 256.
    put(pointer, qmd, (join_va >> 8) as u32);
}

/// Makes an atom write a done word. Each atom gets its own address afterwards.
#[inline]
pub(crate) fn make_done(qmd: &mut Qmd, done: &DoneWords) {
    let [[_, _, low, high], ..] = RELEASES;
    enable_done(qmd, 0, [low, high], done.payload);
}

/// Makes release number `release` one of a done word. Its address is another matter.
#[inline(always)]
fn enable_done(qmd: &mut Qmd, release: u8, [low, high]: [Field; 2], payload: u32) {
    for field in not_in_done(release) {
        field.clear(qmd);
    }
    put(v04::RELEASE_ENABLE.nth(release), qmd, 1);
    let size = v04::RELEASE_STRUCTURE_SIZE.nth(release);
    put(size, qmd, RELEASE_ONE_WORD);
    put(low, qmd, payload);
    put(high, qmd, 0);
}

/// Returns the number of a release that a QMD does not use.
pub(crate) fn unused_release(qmd: &Qmd) -> Option<u8> {
    (0..3).find(|release| !v04::RELEASE_ENABLE.nth(*release).is_set(qmd))
}

/// Makes a launch write a done word besides its own releases, unless it uses all of them.
pub(crate) fn add_done(qmd: &mut Qmd, va: u64, payload: u32) {
    // Each number by itself, so that the places of its fields are constants.
    match unused_release(qmd) {
        Some(0) => put_done::<0>(qmd, va, payload),
        Some(1) => put_done::<1>(qmd, va, payload),
        Some(2) => put_done::<2>(qmd, va, payload),
        _ => (),
    }
}

/// Makes release number `RELEASE` write a done word.
fn put_done<const RELEASE: usize>(qmd: &mut Qmd, va: u64, payload: u32) {
    let [lower, upper, low, high] = const { RELEASES[RELEASE] };
    // CAST: the two halves of an address of 57 bits.
    put(lower, qmd, va as u32);
    put(upper, qmd, (va >> 32) as u32);
    // CAST: below 3.
    enable_done(qmd, const { RELEASE as u8 }, [low, high], payload);
}

/// A field in which copies of one QMD differ. The rest of its word is read before the copies are
/// made: the processor would wait for what it has just copied.
pub(crate) struct Varying {
    word: usize,
    rest: u32,
    shift: u32,
}

impl Varying {
    /// Prepares a field of the copies of `qmd`.
    #[inline]
    pub(crate) fn new(field: Field, qmd: &Qmd) -> Self {
        let mut cleared = qmd.get(field.word()).copied().unwrap_or(0);
        cleared = field.within(cleared, 0);
        Self {
            word: field.word(),
            rest: cleared,
            shift: field.shift(),
        }
    }

    /// Stores a value that fits the field.
    #[inline(always)]
    pub(crate) fn put(&self, copy: &mut Qmd, value: u32) {
        if let Some(word) = copy.get_mut(self.word) {
            *word = self.rest | value << (self.shift & 31);
        }
    }
}
