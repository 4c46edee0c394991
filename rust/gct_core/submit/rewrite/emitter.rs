// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Writes an output. The room was checked before, so no word is lost for want of it.

use super::{apply_mask, split_of, Cut, Emitted, Order, Output, Placement};
use crate::submit::atom::{Axis, Plan};
use crate::submit::class::{self, Action};
use crate::submit::join::{give_done, give_part, make_atom, make_join, DoneWords};
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
    done: Option<DoneWords>,
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
            done: output.done,
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
        let end = if split.is_some() {
            found.call_at
        } else {
            found.call_end
        };
        self.copy_to(usize::try_from(end).unwrap_or(usize::MAX));
        let Some(at) = self.place_of(found) else {
            return;
        };
        let length = found.version.map_or(0, Version::words);
        let Some(qmd) = self.out.get_mut(at..).and_then(|out| out.get_mut(..length)) else {
            return;
        };
        apply_mask(qmd, found, order, counters);
        let tenant = found.qmd(self.words).and_then(<[u32]>::first_chunk);
        if let (Some(split), Some(tenant)) = (split, tenant) {
            // Made from the tenant's words, not from those just copied: the processor would wait for these.
            let mut masked = *tenant;
            if order.mask.is_some() {
                take_mask(&mut masked, qmd);
            }
            self.insert(index, found, &split.plan, &masked);
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

    /// Writes the join and the atoms of a launch around its call: their QMDs, the calls, the registers that were used.
    fn insert(&mut self, index: u32, found: &Found, plan: &Plan, qmd: &Qmd) {
        let on = found.subchannel;
        let join_va = slot_va(self.slot_va, self.slots);
        let launch = Parts {
            plan,
            qmd,
            first: self.slots,
            first_va: join_va,
            done: self.done,
        };
        let uploads = matches!(self.placement, Placement::Upload);
        if uploads {
            self.upload(on, &launch);
        } else if let Placement::Written(view) = &mut self.placement {
            launch.write_slots(view);
        }
        self.push(action(on, Action::Invalidate));
        self.push(address(on, join_va));
        self.copy_to(usize::try_from(found.call_end).unwrap_or(usize::MAX));
        if uploads {
            self.calls(index, &launch, |va| call(on, va));
            self.push(restore(on, &found.registers));
        } else {
            self.calls(index, &launch, |va| call_written(on, va));
        }
        self.push(address(on, found.qmd_va));
        self.slots = self.slots.wrapping_add(plan.atoms()).wrapping_add(1);
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

    /// The QMDs of a split launch, as uploads in the output.
    #[inline]
    fn upload(&mut self, on: u8, launch: &Parts<'_>) {
        // CAST: at most ATOMS_MAX.
        let slots = (launch.plan.atoms() as usize).wrapping_add(1);
        let Some(out) = self.take(UPLOAD_ALL.wrapping_mul(slots)) else {
            return;
        };
        let mut va = launch.first_va;
        let qmds = out.chunks_exact_mut(UPLOAD_ALL).filter_map(|out| {
            let (headers, qmd) = out.split_first_chunk_mut()?;
            *headers = upload_headers(on, va);
            va = va.wrapping_add(SLOT_BYTES);
            qmd.first_chunk_mut()
        });
        launch.write(qmds);
    }

    /// The calls of the atoms, of `N` words each, with a cut behind each of them.
    #[inline]
    fn calls<const N: usize>(
        &mut self,
        index: u32,
        launch: &Parts<'_>,
        call: impl Fn(u64) -> [u32; N],
    ) {
        let atoms = launch.plan.atoms();
        // CAST: a call has few words.
        let each = N as u32;
        let mut at = self.position();
        // CAST: at most ATOMS_MAX.
        let Some(out) = self.take(N.wrapping_mul(atoms as usize)) else {
            return;
        };
        let mut va = launch.first_va;
        for out in out.chunks_exact_mut(N) {
            va = va.wrapping_add(SLOT_BYTES);
            put(out, call(va));
        }
        // CAST: a count of cuts.
        let cuts = self.cuts.get_mut(self.cut_count as usize..);
        for (cut, atom) in cuts.unwrap_or_default().iter_mut().zip(1..=atoms) {
            at = at.wrapping_add(each);
            *cut = Cut {
                at,
                launch: index,
                atom,
                slot: launch.first.wrapping_add(atom),
            };
            self.cut_count = self.cut_count.wrapping_add(1);
        }
    }
}

/// A QMD of the one version that is split.
type Qmd = [u32; QMD_WORDS];

/// What a launch is split into.
struct Parts<'a> {
    plan: &'a Plan,
    /// The tenant's QMD with its mask.
    qmd: &'a Qmd,
    /// The join's slot, its number and its address; the atoms' follow.
    first: u32,
    first_va: u64,
    done: Option<DoneWords>,
}

impl Parts<'_> {
    /// Writes the QMDs of the join and of the atoms, in this order.
    #[inline]
    fn write<'a>(&self, mut slots: impl Iterator<Item = &'a mut Qmd>) {
        if let Some(join) = slots.next() {
            *join = *self.qmd;
            make_join(join, self.plan.atoms());
        }
        let mut atom = *self.qmd;
        make_atom(&mut atom, self.first_va, self.done.as_ref());
        let axis = self.plan.axis();
        match self.done {
            None => {
                for (slot, part) in slots.zip(self.plan.parts()) {
                    write_atom(slot, &atom, axis, part);
                }
            }
            Some(done) => {
                let mut number = self.first;
                for (slot, part) in slots.zip(self.plan.parts()) {
                    number = number.wrapping_add(1);
                    write_atom(slot, &atom, axis, part);
                    give_done(slot, done.va_of(number));
                }
            }
        }
    }

    /// The same in the view of all slots.
    fn write_slots(&self, view: &mut [u32]) {
        // CAST: slots were counted against the view's length.
        let slots = view.chunks_exact_mut(SLOT_WORDS).skip(self.first as usize);
        self.write(slots.filter_map(|slot| slot.first_chunk_mut()));
    }
}

/// An atom's QMD. Its part is stored behind the copy: stored in front of it, the processor would have to wait for those
/// words until it can copy them.
#[inline(always)]
fn write_atom(slot: &mut Qmd, atom: &Qmd, axis: Axis, part: (u32, u32)) {
    *slot = *atom;
    give_part(slot, axis, part);
}

/// Takes over the mask of `from`.
#[inline]
fn take_mask(qmd: &mut Qmd, from: &[u32]) {
    for field in V04_00::MASK.iter().copied().chain(V04_00::MASK_VALID) {
        // It has been in this very field, so it fits.
        let _ = field.set(qmd, field.get(from));
    }
}

/// The address of a slot.
#[inline]
fn slot_va(first: u64, number: u32) -> u64 {
    first.wrapping_add(u64::from(number).wrapping_mul(SLOT_BYTES))
}

/// Stores words one by one: they come from registers.
#[inline(always)]
fn put<const N: usize>(out: &mut [u32], words: [u32; N]) {
    for (out, word) in out.iter_mut().zip(words) {
        *out = word;
    }
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

/// Schedules the atom in the slot at `va`.
#[inline]
fn call(on: u8, va: u64) -> [u32; 4] {
    let [address_header, address] = address(on, va);
    let [action_header, action] = action(on, Action::Schedule);
    [address_header, address, action_header, action]
}

/// The same for a slot that was written behind the scheduler's back.
#[inline]
fn call_written(on: u8, va: u64) -> [u32; 6] {
    let [address_header, address] = address(on, va);
    let [invalidate_header, invalidate] = action(on, Action::Invalidate);
    let [action_header, action] = action(on, Action::Schedule);
    [
        address_header,
        address,
        invalidate_header,
        invalidate,
        action_header,
        action,
    ]
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
