// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Writes the QMDs of a split launch: the join's, and one for each atom.

use crate::submit::atom::{Axis, Plan};
use crate::submit::class;
use crate::submit::join::{
    give_common, give_done, give_part, make_atom, make_join, take_mask, DoneWords,
};
use crate::submit::limits::{SLOT_BYTES, SLOT_WORDS};
use crate::submit::method;
use crate::submit::qmd::{v04_00::V04_00, Layout};

/// The words of a QMD of the one version that is split.
const QMD_WORDS: usize = V04_00::WORDS;
/// The words of an upload of one: its headers, and its data.
pub(super) const BLOCK_WORDS: usize = HEADERS + QMD_WORDS;
const HEADERS: usize = super::UPLOAD_WORDS as usize;
const QMD_BYTES: u32 = 4 * QMD_WORDS as u32;
/// LAUNCH_DMA as CUDA writes it: pitch layout, no flush, no system membar.
const LAUNCH_PITCH: u32 = 0x41;

/// A QMD of the one version that is split.
pub(super) type Qmd = [u32; QMD_WORDS];

/// What a launch is split into.
pub(super) struct Parts<'a> {
    pub(super) plan: &'a Plan,
    /// The join's slot, its number and its address; the atoms' follow.
    pub(super) first: u32,
    pub(super) first_va: u64,
    done: Option<DoneWords>,
    tenant: &'a Qmd,
    /// What all atoms have in common; its mask is the join's, too.
    atom: &'a Qmd,
}

impl<'a> Parts<'a> {
    /// The parts of the tenant's QMD in the slots from `first` on, a number and an address. `masked` is the tenant's QMD
    /// with its mask, which this turns into what atoms have in common.
    #[inline]
    pub(super) fn new(
        plan: &'a Plan,
        tenant: &'a Qmd,
        masked: &'a mut Qmd,
        first: (u32, u64),
        done: Option<DoneWords>,
    ) -> Self {
        let (first, first_va) = first;
        make_atom(masked, first_va);
        Self {
            plan,
            first,
            first_va,
            done,
            tenant,
            atom: masked,
        }
    }

    /// Writes the uploads of the join and the atoms.
    pub(super) fn upload(&self, on: u8, out: &mut [u32]) {
        let mut va = self.first_va;
        let mut headers = headers_of(on);
        let slots = out.chunks_exact_mut(BLOCK_WORDS).filter_map(|block| {
            let (block_headers, qmd) = block.split_first_chunk_mut()?;
            let [_, upper, lower, ..] = &mut headers;
            // CAST: the two halves.
            *upper = (va >> 32) as u32;
            *lower = va as u32;
            *block_headers = headers;
            va = va.wrapping_add(SLOT_BYTES);
            qmd.first_chunk_mut()
        });
        self.write(slots);
    }

    /// Writes the QMDs into a view of their slots.
    pub(super) fn write_slots(&self, view: &mut [u32]) {
        let slots = view.chunks_exact_mut(SLOT_WORDS);
        self.write(slots.filter_map(|slot| slot.first_chunk_mut()));
    }

    /// Writes the join and the atoms, one into each slot.
    #[inline(always)]
    fn write<'b>(&self, mut slots: impl Iterator<Item = &'b mut Qmd>) {
        if let Some(slot) = slots.next() {
            *slot = *self.tenant;
            take_mask(slot, self.atom);
            make_join(slot, self.plan.atoms());
        }
        // For each direction a loop of its own, in which the fields are constants.
        match self.plan.axis() {
            Axis::Row => self.write_atoms(slots, |qmd, part| give_part(qmd, Axis::Row, part)),
            Axis::Column => self.write_atoms(slots, |qmd, part| give_part(qmd, Axis::Column, part)),
            Axis::Slab => self.write_atoms(slots, |qmd, part| give_part(qmd, Axis::Slab, part)),
        }
    }

    #[inline(always)]
    fn write_atoms<'b>(
        &self,
        slots: impl Iterator<Item = &'b mut Qmd>,
        give_part: impl Fn(&mut Qmd, (u32, u32)),
    ) {
        let mut number = self.first;
        for (slot, part) in slots.zip(self.plan.parts()) {
            number = number.wrapping_add(1);
            *slot = *self.tenant;
            give_common(slot, self.atom);
            give_part(slot, part);
            if let Some(done) = &self.done {
                give_done(slot, done, number);
            }
        }
    }
}

/// The words that begin an upload of one QMD.
fn headers_of(on: u8) -> [u32; HEADERS] {
    [
        method::incr(on, class::OFFSET_OUT_UPPER, 2),
        0,
        0,
        method::incr(on, class::LINE_LENGTH_IN, 2),
        QMD_BYTES,
        1,
        method::incr(on, class::LAUNCH_DMA, 1),
        LAUNCH_PITCH,
        method::non_incr(on, class::LOAD_INLINE_DATA, QMD_BYTES / 4),
    ]
}
