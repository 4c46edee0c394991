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
//! Before version 4.0 there is no `GRID_NULL`, so launches have no join either. All versions have
//! room in the words of version 4.0, whose slots are read as far as the version goes.

use super::launch::{ACTION_DECREMENT_DEPENDENCE, TYPE_NULL};
use super::limits::{ATOMS_MAX, QMD_VA_END, SLOT_BYTES};
use super::qmd::v04_00::{self as v04, V04_00, WORDS};
use super::qmd::{Field, Layout, ReleaseFields, TypeField};
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
/// The first address that no release can name: `RELEASE_SEMAPHORE0_ADDR` has 57 bits. Before
/// version 4.0 it has the 40 bits of a slot's address.
pub(crate) const RELEASE_VA_END: u64 =
    ((v04::RELEASE_SEMAPHORE0_ADDR_UPPER.max() as u64) << 32) + (1 << 32);
/// `RELEASE_STRUCTURE_SIZE_SEMAPHORE_ONE_WORD`.
const RELEASE_ONE_WORD: u32 = 1;

/// A QMD of version 4.0, the one that is split, or a shorter one and words that nothing reads.
pub type Qmd = [u32; WORDS];

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
    pub(crate) fn give<L: Layout>(&self, qmd: &mut Qmd, slot: u32) {
        if let [release, ..] = L::RELEASES {
            put_address(qmd, release, self.va_of(slot));
        }
    }

    /// Returns whether a release can write each of the words of `slots` slots below `end`.
    pub(crate) fn is_sound(&self, slots: u64, end: u64) -> bool {
        let behind = Bytes(self.va) + Bytes(u64::from(self.stride_bytes)) * slots;
        self.va % 4 == 0 && self.stride_bytes % 4 == 0 && behind < Bytes(end)
    }
}

/// Stores a value that fits its field.
#[inline(always)]
fn put(field: Field, qmd: &mut Qmd, value: u32) {
    let stored = field.set(qmd, value);
    debug_assert!(stored.is_ok(), "a value is too wide for its field");
}

/// Turns `qmd` into the join of `atoms` atoms, in a version that has one.
#[inline]
pub(crate) fn make_join<L: Layout>(qmd: &mut Qmd, atoms: u32) {
    if let (TypeField::Typed(kind), Some(counter)) = (L::TYPE, L::DEPENDENCE_COUNTER) {
        put(kind, qmd, TYPE_NULL);
        put(counter, qmd, atoms);
    }
    for field in L::GRID {
        put(field, qmd, 1);
    }
}

/// Turns `qmd` into the common part of all atoms of the join at `join_va`, or of those without a
/// join. The join has all effects of the launch.
#[inline]
pub(crate) fn make_atom<L: Layout>(qmd: &mut Qmd, join_va: Option<u64>) {
    for release in L::RELEASES {
        release.enable.clear(qmd);
    }
    if let Some(latch) = L::LATCH {
        latch.arrive.clear(qmd);
        latch.pre_exit.clear(qmd);
        latch.pre_exit_at_last.clear(qmd);
    }
    L::REFERENCE.increment.clear(qmd);
    L::REFERENCE.decrement.clear(qmd);
    for dependent in L::DEPENDENTS {
        dependent.enable.clear(qmd);
    }
    let (Some(join_va), [first, ..]) = (join_va, L::DEPENDENTS) else {
        return;
    };
    if let (Some(action), Some(pointer)) = (first.action, first.pointer) {
        put(first.enable, qmd, 1);
        put(action, qmd, ACTION_DECREMENT_DEPENDENCE);
        // CAST: the address is below 2^40 and a multiple of 256.
        put(pointer, qmd, (join_va >> 8) as u32);
    }
}

/// Makes an atom write a done word. Each atom gets its own address afterwards.
#[inline]
pub(crate) fn make_done<L: Layout>(qmd: &mut Qmd, done: &DoneWords) {
    if let [release, ..] = L::RELEASES {
        enable_done(qmd, release, done.payload);
    }
}

/// Makes a release one of a done word: without a system membar, a reduction, a trap, 64 bits. Its
/// address is another matter.
#[inline(always)]
fn enable_done(qmd: &mut Qmd, release: &ReleaseFields, payload: u32) {
    release.membar.clear(qmd);
    release.reduction_enable.clear(qmd);
    release.reduction_op.clear(qmd);
    for field in release.others {
        field.clear(qmd);
    }
    put(release.enable, qmd, 1);
    put(release.structure_size, qmd, RELEASE_ONE_WORD);
    let (low, high) = release.payload;
    put(low, qmd, payload);
    if let Some(high) = high {
        put(high, qmd, 0);
    }
}

/// Sets the address that a release writes.
#[inline(always)]
fn put_address(qmd: &mut Qmd, release: &ReleaseFields, va: u64) {
    let [lower, upper] = release.address;
    // CAST: the two halves; `is_sound` has checked the address against the field.
    put(lower, qmd, va as u32);
    put(upper, qmd, (va >> 32) as u32);
}

/// Returns the number of a release that a QMD of version 4.0 does not use.
pub(crate) fn unused_release(qmd: &Qmd) -> Option<u8> {
    (0..3).find(|release| !v04::RELEASE_ENABLE.nth(*release).is_set(qmd))
}

/// Makes a launch of version 4.0 write a done word besides its own releases, unless it uses all of
/// them.
pub(crate) fn add_done(qmd: &mut Qmd, va: u64, payload: u32) {
    // Each number by itself, so that the places of its fields are constants.
    let [first, second, third] = V04_00::RELEASES else {
        return;
    };
    match unused_release(qmd) {
        Some(0) => put_done(qmd, first, va, payload),
        Some(1) => put_done(qmd, second, va, payload),
        Some(2) => put_done(qmd, third, va, payload),
        _ => (),
    }
}

/// Makes a release write a done word.
#[inline(always)]
fn put_done(qmd: &mut Qmd, release: &ReleaseFields, va: u64, payload: u32) {
    put_address(qmd, release, va);
    enable_done(qmd, release, payload);
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
