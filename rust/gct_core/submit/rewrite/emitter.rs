// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Writes an output. The room was checked before, so no word is lost for want of it.

use super::{apply_mask, split_of, Cut, Emitted, Order, Output, Placement};
use crate::submit::atom::Plan;
use crate::submit::class::{self, Action};
use crate::submit::join::{join, Template};
use crate::submit::limits::{SLOT_BYTES, SLOT_WORDS, SPLITS};
use crate::submit::method;
use crate::submit::qmd::{v04_00::V04_00, Layout, Version};
use crate::submit::stats::{Counters, Reason};
use crate::submit::tracker::{Found, Registers};

/// LAUNCH_DMA as CUDA writes it: pitch layout, no flush, no system membar.
const LAUNCH_PITCH: u32 = 0x41;
/// The words of a QMD, and what they are in bytes.
const QMD_WORDS: usize = V04_00::WORDS;
const QMD_BYTES: u32 = 4 * QMD_WORDS as u32;
/// The words of an upload of one QMD: its headers, and its data.
const UPLOAD_HEADERS: usize = super::UPLOAD_WORDS as usize;
const UPLOAD_ALL: usize = UPLOAD_HEADERS + QMD_WORDS;

/// Words that were inserted for one split.
#[derive(Clone, Copy)]
struct Insertion {
    /// Before which word of the segment.
    at: u32,
    /// How many were inserted up to here, all together.
    inserted: u32,
}

/// The state of one [`emit`](super::emit).
pub(super) struct Emitter<'a> {
    words: &'a [u32],
    out: &'a mut [u32],
    /// How many words of the output are written.
    len: usize,
    /// How many of the segment's words have been copied.
    copied: usize,
    placement: Placement<'a>,
    slot_va: u64,
    slots: u32,
    cuts: &'a mut [Cut],
    cut_count: u32,
    /// The insertions so far; those that are still free are behind every word.
    log: [Insertion; SPLITS],
    splits: usize,
}

impl<'a> Emitter<'a> {
    pub(super) fn new(words: &'a [u32], output: Output<'a>) -> Self {
        Self {
            words,
            out: output.words,
            len: 0,
            copied: 0,
            placement: output.placement,
            slot_va: output.slot_va,
            slots: 0,
            cuts: output.cuts,
            cut_count: 0,
            log: [Insertion {
                at: u32::MAX,
                inserted: 0,
            }; SPLITS],
            splits: 0,
        }
    }

    /// The next `count` words of the output.
    #[inline]
    fn take(&mut self, count: usize) -> Option<&mut [u32]> {
        let end = self.len.checked_add(count)?;
        let words = self.out.get_mut(self.len..end)?;
        self.len = end;
        Some(words)
    }

    #[inline]
    fn push<const N: usize>(&mut self, words: [u32; N]) {
        if let Some(out) = self.take(N) {
            put(out, words);
        }
    }

    /// Copies the tenant's words up to `end`.
    fn copy_to(&mut self, end: usize) {
        let words = self.words;
        if let Some(words) = words.get(self.copied..end) {
            if let Some(out) = self.take(words.len()) {
                out.copy_from_slice(words);
            }
            self.copied = end;
        }
    }

    /// Copies the rest.
    pub(super) fn finish(mut self) -> Emitted {
        self.copy_to(self.words.len());
        Emitted {
            words: self.position(),
            slots: self.slots,
            cuts: self.cut_count,
        }
    }

    fn position(&self) -> u32 {
        // CAST: an output is shorter than 2^32 words, or its room would not have been granted.
        self.len as u32
    }

    /// Carries out the order of one launch.
    pub(super) fn launch(
        &mut self,
        index: u32,
        found: &Found,
        order: &Order<'_>,
        counters: &mut Counters,
    ) {
        let split = match split_of(self.words, found, order) {
            Ok(Some(_)) if self.splits >= SPLITS => {
                counters.keep(Reason::TableFull);
                None
            }
            Ok(split) => split,
            Err(reason) => {
                // The scan has counted its own.
                if found.reason.is_none() {
                    counters.keep(reason);
                }
                None
            }
        };
        if order.mask.is_none() && split.is_none() {
            return;
        }
        self.copy_to(usize::try_from(found.call_end).unwrap_or(usize::MAX));
        let Some(at) = self.place_of(found) else {
            return;
        };
        let length = found.version.map_or(0, Version::words);
        let Some(qmd) = self.out.get_mut(at..).and_then(|out| out.get_mut(..length)) else {
            return;
        };
        apply_mask(qmd, found, order, counters);
        if let Some(split) = split {
            // Made from the tenant's words, not from those just copied: the processor would wait for these.
            let mut template =
                Template::new::<V04_00>(found.qmd(self.words).unwrap_or(&[]), found.qmd_va);
            template.take_mask::<V04_00>(qmd);
            join::<V04_00>(qmd, split.plan.atoms());
            self.insert(index, found, &split.plan, &template);
            counters.split = counters.split.wrapping_add(1);
            counters.atoms = counters.atoms.wrapping_add(u64::from(split.plan.atoms()));
        }
    }

    /// Where a launch's QMD is in the output: behind all insertions that lie before it.
    #[inline]
    fn place_of(&self, found: &Found) -> Option<usize> {
        found.version?;
        let log = self.log.get(..self.splits)?;
        let before = log.partition_point(|insertion| insertion.at <= found.at);
        let inserted = match before.checked_sub(1) {
            Some(last) => log.get(last)?.inserted,
            None => 0,
        };
        usize::try_from(found.at.checked_add(inserted)?).ok()
    }

    /// Writes the atoms of a launch: their QMDs, their calls, and the registers that were used.
    fn insert(&mut self, index: u32, found: &Found, plan: &Plan, template: &Template) {
        let on = found.subchannel;
        let offset = u64::from(self.slots).wrapping_mul(SLOT_BYTES);
        let first = self.slot_va.wrapping_add(offset);
        match self.placement {
            Placement::Upload => {
                self.upload(on, first, plan, template);
                for (number, slot) in slots(first, plan) {
                    self.cut_before(index, number);
                    self.push(call(on, slot, Action::Schedule));
                }
            }
            Placement::Written(_) => {
                self.write(plan, template);
                for (number, slot) in slots(first, plan) {
                    self.cut_before(index, number);
                    self.push(call(on, slot, Action::Invalidate));
                    self.push(action(on, Action::Schedule));
                }
            }
        }
        self.cut_before(index, plan.atoms());
        if matches!(self.placement, Placement::Upload) {
            self.push(restore(on, &found.registers));
        }
        self.push(address(on, found.qmd_va));
        self.slots = self.slots.wrapping_add(plan.atoms());
        let inserted = self.len.wrapping_sub(self.copied);
        if let Some(insertion) = self.log.get_mut(self.splits) {
            *insertion = Insertion {
                at: found.call_end,
                // CAST: not more than the output.
                inserted: inserted as u32,
            };
        }
        self.splits = self.splits.wrapping_add(1);
    }

    /// The atoms' QMDs, as uploads in the output.
    #[inline]
    fn upload(&mut self, on: u8, first: u64, plan: &Plan, template: &Template) {
        // CAST: at most ATOMS_MAX.
        let length = UPLOAD_ALL.wrapping_mul(plan.atoms() as usize);
        let Some(out) = self.take(length) else {
            return;
        };
        let mut slot = first;
        for (out, part) in out.chunks_exact_mut(UPLOAD_ALL).zip(plan.parts()) {
            if let Some((headers, qmd)) = out.split_at_mut_checked(UPLOAD_HEADERS) {
                put(headers, upload_headers(on, slot));
                template.write::<V04_00>(plan.axis(), part, qmd);
            }
            slot = slot.wrapping_add(SLOT_BYTES);
        }
    }

    /// The atoms' QMDs, in the view of their slots.
    fn write(&mut self, plan: &Plan, template: &Template) {
        let Placement::Written(view) = &mut self.placement else {
            return;
        };
        // CAST: slots were counted against their number.
        let view = view.chunks_exact_mut(SLOT_WORDS).skip(self.slots as usize);
        for (slot, part) in view.zip(plan.parts()) {
            template.write::<V04_00>(plan.axis(), part, slot);
        }
    }

    /// Notes that the output may be divided here, if words of this launch were called before.
    #[inline]
    fn cut_before(&mut self, launch: u32, atom: u32) {
        if atom == 0 {
            return;
        }
        let at = self.position();
        // CAST: a count of cuts.
        if let Some(cut) = self.cuts.get_mut(self.cut_count as usize) {
            *cut = Cut { at, launch, atom };
            self.cut_count = self.cut_count.wrapping_add(1);
        }
    }
}

/// Stores words one by one: they come from registers.
#[inline(always)]
fn put<const N: usize>(out: &mut [u32], words: [u32; N]) {
    for (out, word) in out.iter_mut().zip(words) {
        *out = word;
    }
}

/// The number and the slot of each atom.
#[inline]
fn slots(first: u64, plan: &Plan) -> impl Iterator<Item = (u32, u64)> {
    (0..plan.atoms()).map(move |atom| {
        (
            atom,
            first.wrapping_add(u64::from(atom).wrapping_mul(SLOT_BYTES)),
        )
    })
}

#[inline]
fn address(on: u8, va: u64) -> [u32; 2] {
    // CAST: a QMD's address is below 2^40.
    [method::incr(on, class::SEND_PCAS_A, 1), (va >> 8) as u32]
}

#[inline]
fn action(on: u8, action: Action) -> [u32; 2] {
    [
        method::incr(on, class::SEND_SIGNALING_PCAS2_B, 1),
        action.value(),
    ]
}

#[inline]
fn call(on: u8, va: u64, what: Action) -> [u32; 4] {
    let [address_header, address] = address(on, va);
    let [action_header, action] = action(on, what);
    [address_header, address, action_header, action]
}

/// The words that restore what uploads have overwritten.
fn restore(on: u8, registers: &Registers) -> [u32; 5] {
    // CAST: the halves.
    [
        method::incr(on, class::LINE_LENGTH_IN, 4),
        registers.lines as u32,
        (registers.lines >> 32) as u32,
        (registers.destination >> 32) as u32,
        registers.destination as u32,
    ]
}

/// The words that begin an upload of one QMD.
#[inline]
fn upload_headers(on: u8, va: u64) -> [u32; UPLOAD_HEADERS] {
    [
        method::incr(on, class::OFFSET_OUT_UPPER, 2),
        // CAST: the two halves.
        (va >> 32) as u32,
        va as u32,
        method::incr(on, class::LINE_LENGTH_IN, 2),
        QMD_BYTES,
        1,
        method::incr(on, class::LAUNCH_DMA, 1),
        LAUNCH_PITCH,
        method::non_incr(on, class::LOAD_INLINE_DATA, QMD_BYTES / 4),
    ]
}
