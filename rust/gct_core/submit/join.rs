// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The QMDs of a split launch.
//!
//! The tenant's QMD *M* stays where it is and becomes the **join**: `QMD_TYPE = GRID_NULL`, so it runs no block, and
//! `DEPENDENCE_COUNTER` = the number of atoms. Everything that happens once for the launch (semaphore releases, dependent
//! QMDs, the latch, the reference count) stays in it and so happens once, after the last atom has ended, whatever order
//! they end in. Because it keeps its address, whatever names *M* still finds it.
//!
//! An **atom** is a copy of *M* that runs one part of the grid and has one effect: it decrements the join. It loses the
//! others, and with them `ENABLE_PROGRAM_PRE_EXIT`: with that bit a dependent is told when every block has *allowed* its
//! dependents to start (`griddepcontrol.launch_dependents`), which may be long before they end, and the join would
//! release too early. So programmatic dependents of a split launch start when it has ended: later than they could, never
//! too early.

use super::atom::Axis;
use super::launch::{ACTION_DECREMENT_DEPENDENCE, TYPE_NULL};
use super::limits::{ATOMS_MAX, QMD_VA_END, QMD_WORDS_MAX};
use super::qmd::{Field, Layout, TypeField};

// Every number of atoms fits the narrowest counter of a version that is split.
const _: () = assert!(ATOMS_MAX <= super::qmd::v04_00::DEPENDENCE_COUNTER.max());
// A dependent's address shifted right by 8 fits its field.
const _: () =
    assert!((QMD_VA_END - 1) >> 8 <= super::qmd::v04_00::DEPENDENT_QMD0_POINTER.max() as u64);

/// Stores a value that is known to fit its field.
#[inline(always)]
fn put(field: Field, qmd: &mut [u32], value: u32) {
    let stored = field.set(qmd, value);
    debug_assert!(stored.is_ok(), "a value is too wide for its field");
}

/// Written out, so that the fields are constants to the compiler.
#[inline(always)]
fn put_triple(fields: [Field; 3], qmd: &mut [u32], values: [u32; 3]) {
    let [first, second, third] = fields;
    let [x, y, z] = values;
    put(first, qmd, x);
    put(second, qmd, y);
    put(third, qmd, z);
}

/// The words of an atom, but for its part of the grid.
#[derive(Clone, Copy, Debug)]
pub struct Template {
    words: [u32; QMD_WORDS_MAX],
}

impl Template {
    /// The template of the atoms of `qmd`, which tell the join at `join_va`.
    #[inline]
    pub(crate) fn new<L: Layout>(qmd: &[u32], join_va: u64) -> Self {
        let mut words = match qmd.first_chunk() {
            Some(words) => *words,
            None => [0; QMD_WORDS_MAX],
        };
        for release in L::RELEASES {
            release.enable.clear(&mut words);
        }
        if let Some(latch) = L::LATCH {
            latch.arrive.clear(&mut words);
            latch.pre_exit.clear(&mut words);
            latch.pre_exit_at_last.clear(&mut words);
        }
        L::REFERENCE.increment.clear(&mut words);
        L::REFERENCE.decrement.clear(&mut words);
        let mut dependents = L::DEPENDENTS.iter();
        if let Some(first) = dependents.next() {
            put(first.enable, &mut words, 1);
            put(first.action, &mut words, ACTION_DECREMENT_DEPENDENCE);
            if let Some(pointer) = first.pointer {
                // CAST: the address is below 2^40 and a multiple of 256.
                put(pointer, &mut words, (join_va >> 8) as u32);
            }
        }
        for dependent in dependents {
            dependent.enable.clear(&mut words);
        }
        Self { words }
    }

    /// Takes over the mask of `qmd`.
    #[inline]
    pub(crate) fn take_mask<L: Layout>(&mut self, qmd: &[u32]) {
        for field in L::MASK.iter().copied().chain(L::MASK_VALID) {
            put(field, &mut self.words, field.get(qmd));
        }
    }

    /// Writes the QMD of the atom that runs `part` of the grid along `axis` into `out`, which has as many words as the
    /// layout. The template's own grid is whole and its RESUME is 0, so the other directions are right already.
    ///
    /// The part is stored behind the copy: stored into the template before it, the processor would have to wait for
    /// those words until it can copy them.
    #[inline]
    pub(crate) fn write<L: Layout>(&self, axis: Axis, part: (u32, u32), out: &mut [u32]) {
        if let (Some(words), Some(out)) = (self.words.get(..L::WORDS), out.get_mut(..L::WORDS)) {
            out.copy_from_slice(words);
            put(axis.of(L::RESUME), out, part.0);
            put(axis.of(L::GRID), out, part.1);
        }
    }
}

/// Turns `qmd` into the join of `atoms` atoms.
#[inline]
pub(crate) fn join<L: Layout>(qmd: &mut [u32], atoms: u32) {
    if let TypeField::Typed(field) = L::TYPE {
        put(field, qmd, TYPE_NULL);
    }
    put(L::DEPENDENCE_COUNTER, qmd, atoms);
    put_triple(L::GRID, qmd, [1; 3]);
}
