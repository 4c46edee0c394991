// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Writes the QMDs of a split launch: the join's, and one for each atom.

use crate::submit::atom::Plan;
use crate::submit::inline::{halves, headers, HEADER_WORDS};
use crate::submit::join::{make_atom, make_done, make_join, DoneWords, Qmd, Varying};
use crate::submit::limits::{SLOT_BYTES, SLOT_WORDS};
use crate::submit::mask::Marks;
use crate::submit::qmd::{v04_00, Layout};
use crate::units::{Sat, Va};
use core::marker::PhantomData;
use core::num::Wrapping;

/// Words of a QMD of version 4.0, or of a shorter one.
const QMD_WORDS: usize = v04_00::WORDS;
/// Words of an upload of one QMD.
pub(super) const BLOCK_WORDS: usize = HEADER_WORDS + QMD_WORDS;

/// An upload of one QMD: its headers and its data.
pub(super) type Block = [u32; BLOCK_WORDS];

/// The parts of one split launch.
pub(super) struct Parts<'a, L> {
    pub(super) plan: &'a Plan,
    /// Number and address of the slot before the atoms': the join's, if there is one.
    pub(super) before: u32,
    pub(super) before_va: u64,
    done: Option<DoneWords>,
    tenant: &'a Qmd,
    marks: Option<&'a Marks>,
    /// The common part of all atoms, as an upload.
    atom: &'a Block,
    layout: PhantomData<L>,
}

impl<'a, L: Layout> Parts<'a, L> {
    /// Plans the parts of the tenant's QMD with its marks, in the slots behind `before` (number and
    /// address). The join is there if the launch has one. `atom` holds an upload of the tenant's
    /// QMD and becomes the common part of the atoms.
    #[inline(always)]
    pub(super) fn new(
        plan: &'a Plan,
        (tenant, marks): (&'a Qmd, Option<&'a Marks>),
        atom: &'a mut Block,
        ((before, before_va), joins): ((u32, u64), bool),
        done: Option<DoneWords>,
    ) -> Self {
        if let Some(qmd) = atom.last_chunk_mut() {
            if let Some(marks) = marks {
                marks.write_as::<L>(qmd);
            }
            make_atom::<L>(qmd, joins.then_some(before_va));
            if let Some(done) = &done {
                make_done::<L>(qmd, done);
            }
        }
        Self {
            plan,
            before,
            before_va,
            done,
            tenant,
            marks,
            atom,
            layout: PhantomData,
        }
    }

    /// Returns the QMD that all atoms have in common.
    #[inline(always)]
    fn atom(&self) -> &Qmd {
        self.atom.last_chunk().unwrap_or(self.tenant)
    }

    /// Writes the uploads of the join and the atoms.
    pub(super) fn upload(&self, on: u8, out: &mut [u32]) {
        let Some((join, atoms)) = out.split_first_chunk_mut::<BLOCK_WORDS>() else {
            return;
        };
        let mut va = Va(self.before_va);
        let join = make_upload(join, on, self.tenant, self.before_va);
        self.make_join(join);
        for block in atoms.chunks_exact_mut(BLOCK_WORDS) {
            block.copy_from_slice(self.atom);
        }
        self.differ(atoms.chunks_exact_mut(BLOCK_WORDS).filter_map(|block| {
            va += SLOT_BYTES;
            let block: &mut Block = block.first_chunk_mut()?;
            let [_, upper, lower, ..] = block;
            (*upper, *lower) = halves(va.get());
            block.last_chunk_mut()
        }));
    }

    /// Writes the QMDs into a view of their slots.
    pub(super) fn write_slots(&self, view: &mut [u32]) {
        let Some((join, atoms)) = view.split_first_chunk_mut::<SLOT_WORDS>() else {
            return;
        };
        if let Some(join) = join.first_chunk_mut() {
            *join = *self.tenant;
            self.make_join(Some(join));
        }
        let slots = atoms.chunks_exact_mut(SLOT_WORDS);
        for (slot, _) in slots.zip(self.plan.parts()) {
            if let Some(qmd) = slot.first_chunk_mut() {
                *qmd = *self.atom();
            }
        }
        let slots = atoms.chunks_exact_mut(SLOT_WORDS);
        self.differ(slots.filter_map(|slot| slot.first_chunk_mut()));
    }

    /// Writes the QMDs of a launch without a join into a view of their slots. The last one keeps
    /// the effects of the tenant's.
    pub(super) fn write_without_join(&self, view: &mut [u32]) {
        // CAST: at most ATOMS_MAX.
        let last = (Sat(self.plan.atoms()) - Sat(1)).0;
        let others = view.chunks_exact_mut(SLOT_WORDS).take(last as usize);
        for slot in others {
            if let Some(qmd) = slot.first_chunk_mut() {
                *qmd = *self.atom();
            }
        }
        let others = view.chunks_exact_mut(SLOT_WORDS).take(last as usize);
        self.differ(others.filter_map(|slot| slot.first_chunk_mut()));
        let slot = view.chunks_exact_mut(SLOT_WORDS).nth(last as usize);
        let Some(qmd) = slot.and_then(|slot| slot.first_chunk_mut()) else {
            return;
        };
        *qmd = *self.tenant;
        if let Some(marks) = self.marks {
            marks.write_as::<L>(qmd);
        }
        if let Some(part) = self.plan.atom(last) {
            let axis = self.plan.axis();
            let field = |field| Varying::new(field, self.tenant);
            field(axis.of(L::RESUME)).put(qmd, axis.of(part.start));
            field(axis.of(L::GRID)).put(qmd, axis.of(part.end));
        }
    }

    /// Turns a copy of the tenant's QMD into the join.
    #[inline(always)]
    fn make_join(&self, join: Option<&mut Qmd>) {
        if let Some(join) = join {
            if let Some(marks) = self.marks {
                marks.write_as::<L>(join);
            }
            make_join::<L>(join, self.plan.atoms());
        }
    }

    /// Writes into each copy what differs between atoms.
    ///
    /// All copies are made before: a copy is a function call, and a loop of both would save and
    /// load its registers each time.
    #[inline(always)]
    fn differ<'b>(&self, atoms: impl Iterator<Item = &'b mut Qmd>) {
        let axis = self.plan.axis();
        let resume = Varying::new(axis.of(L::RESUME), self.atom());
        let grid = Varying::new(axis.of(L::GRID), self.atom());
        let mut number = Wrapping(self.before);
        for (atom, (start, end)) in atoms.zip(self.plan.parts()) {
            number += 1;
            // The tenant's grid is whole and its RESUME is 0, so the other directions are right
            // already.
            resume.put(atom, start);
            grid.put(atom, end);
            if let Some(done) = &self.done {
                done.give::<L>(atom, number.0);
            }
        }
    }
}

/// Turns `block` into the upload of a QMD to `va`, and returns the QMD in it.
#[inline(always)]
pub(super) fn make_upload<'a>(
    block: &'a mut Block,
    on: u8,
    qmd: &Qmd,
    va: u64,
) -> Option<&'a mut Qmd> {
    let (head, data) = block.split_first_chunk_mut()?;
    // CAST: a small constant.
    *head = headers(on, va, QMD_WORDS as u32);
    let data = data.first_chunk_mut()?;
    *data = *qmd;
    Some(data)
}
