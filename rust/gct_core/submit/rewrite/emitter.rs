// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Writes an output. Its room was checked before, so no word is lost.

use super::parts::{make_upload, Parts, BLOCK_WORDS};
use super::{split_of, Cut, Emitted, Order, Output, Placement, Split, Tenant};
use crate::submit::atom::Plan;
use crate::submit::inline::{headers, restore};
use crate::submit::join::{DoneWords, Qmd};
use crate::submit::limits::{SLOT_BYTES, SLOT_WORDS, SPLITS};
use crate::submit::mask::{self, Marks};
use crate::submit::method;
use crate::submit::methods::{self, Action};
use crate::submit::qmd::{joins, v04_00, with_layout, Layout, Version};
use crate::submit::reason::Reason;
use crate::submit::stats::Counters;
use crate::submit::tracker::{QmdCall, Source};
use crate::units::Va;
use core::num::Wrapping;

/// Words that were inserted for one split.
#[derive(Clone, Copy)]
struct Insertion {
    /// The position in the segment before which they are inserted.
    at: u32,
    /// Number of words inserted up to here, all splits together.
    inserted: u32,
}

/// State of one [`emit`](super::emit).
pub(super) struct Emitter<'a> {
    words: &'a [u32],
    table: &'a [QmdCall],
    out: &'a mut [u32],
    /// Words of the output that are written.
    len: usize,
    /// Words of the segment that are copied.
    copied: usize,
    placement: Placement<'a>,
    slot_va: u64,
    slots: Wrapping<u32>,
    cuts: &'a mut [Cut],
    cut_count: Wrapping<u32>,
    done: Option<DoneWords>,
    /// The insertions so far; unused entries sort behind every word.
    log: [Insertion; SPLITS],
    splits: Wrapping<usize>,
}

impl<'a> Emitter<'a> {
    pub(super) fn new(words: &'a [u32], table: &'a [QmdCall], output: Output<'a>) -> Self {
        Self {
            words,
            table,
            out: output.words,
            len: 0,
            copied: 0,
            placement: output.placement,
            slot_va: output.slot_va,
            slots: Wrapping(0),
            cuts: output.cuts,
            cut_count: Wrapping(0),
            done: output.done,
            log: [Insertion {
                at: u32::MAX,
                inserted: 0,
            }; SPLITS],
            splits: Wrapping(0),
        }
    }

    /// Reserves the next `count` words of the output.
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
            match *words {
                // A call, the most frequent copy: shorter than a call of memcpy.
                [header, data] => self.push([header, data]),
                _ => {
                    if let Some(out) = self.take(words.len()) {
                        out.copy_from_slice(words);
                    }
                }
            }
            self.copied = end;
        }
    }

    /// Copies the remaining words.
    pub(super) fn finish(mut self) -> Emitted {
        self.copy_to(self.words.len());
        Emitted {
            words: self.position(),
            slots: self.slots.0,
            cuts: self.cut_count.0,
        }
    }

    fn position(&self) -> u32 {
        // CAST: an output is shorter than 2^32 words, or its room would not have been granted.
        self.len as u32
    }

    /// Carries out the order for one launch.
    pub(super) fn launch(
        &mut self,
        index: u32,
        call: &QmdCall,
        order: &Order<'_>,
        counters: &mut Counters,
    ) {
        let split = match split_of(self.words, self.table, call, order, &self.placement) {
            Ok(Some(_)) if self.splits.0 >= SPLITS => {
                counters.keep(Reason::TableFull);
                None
            }
            Ok(split) => split,
            Err(reason) => {
                // The scan has counted its own reasons.
                if call.reason.is_none() {
                    counters.keep(reason);
                }
                None
            }
        };
        let Some(Split { plan, tenant }) = split else {
            return self.mask(call, order, counters);
        };
        match tenant {
            Tenant::Measured(tenant) => {
                let marks = decide(tenant, Version::V04_00, order, counters);
                self.split::<v04_00::V04_00>(index, call, &plan, tenant, marks.as_ref());
            }
            Tenant::Tried(version, tenant) => {
                let marks = decide(tenant, version, order, counters);
                self.try_split(index, call, &plan, (version, tenant), marks.as_ref());
            }
        }
        counters.split(plan.atoms());
    }

    /// Splits a launch of a version on which that was not measured.
    #[cold]
    #[inline(never)]
    fn try_split(
        &mut self,
        index: u32,
        call: &QmdCall,
        plan: &Plan,
        (version, words): (Version, &[u32]),
        marks: Option<&Marks>,
    ) {
        let mut tenant = [0; v04_00::WORDS];
        put_all(&mut tenant, words);
        with_layout!(version, L => self.split::<L>(index, call, plan, &tenant, marks));
    }

    /// Masks a launch that stays whole.
    fn mask(&mut self, call: &QmdCall, order: &Order<'_>, counters: &mut Counters) {
        let (Some(version), Some(_)) = (call.version, order.mask) else {
            return;
        };
        // Another call of the same QMD may have masked it in the output already.
        let is_copied = usize::try_from(call.at).is_ok_and(|at| at < self.copied);
        let qmd = match is_copied {
            true => self.qmd_of(call).map(|qmd| &*qmd),
            false => call.qmd(self.words),
        };
        let Some(marks) = qmd.and_then(|qmd| decide(qmd, version, order, counters)) else {
            return;
        };
        self.copy_to(usize::try_from(call.call_end).unwrap_or(usize::MAX));
        if let Some(qmd) = self.qmd_of(call) {
            marks.write(qmd, version);
        }
    }

    /// Copies the words up to a launch's call, masks its QMD, and splits it.
    ///
    /// The atoms' QMD is made from the segment and before these words are copied. Made from the
    /// copy, the processor would wait for its own stores.
    #[inline(always)]
    fn split<L: Layout>(
        &mut self,
        index: u32,
        call: &QmdCall,
        plan: &Plan,
        tenant: &Qmd,
        marks: Option<&Marks>,
    ) {
        let mut atom = [0; BLOCK_WORDS];
        make_upload(&mut atom, call.subchannel, tenant, 0);
        let (slot, va) = (self.slots, slot_va(self.slot_va, self.slots.0));
        let has_join = joins::<L>() && self.placement.joins();
        let before = match has_join {
            true => (slot.0, va),
            // The first atom has the first slot.
            false => ((slot - Wrapping(1)).0, va.wrapping_sub(SLOT_BYTES)),
        };
        let before = (before, has_join);
        let parts = Parts::<L>::new(plan, (tenant, marks), &mut atom, before, self.done);
        self.copy_to(usize::try_from(call.call_at).unwrap_or(usize::MAX));
        if !joins::<L>() && call.source == Source::Inline {
            self.store_inline::<L>(call, tenant, marks);
        } else if let (Some(qmd), Some(marks)) = (self.qmd_of(call), marks) {
            marks.write(qmd, L::VERSION);
        }
        match has_join {
            true => self.insert(index, call, &parts),
            false => self.insert_without_join(index, call, &parts),
        }
    }

    /// Stores an inline QMD with its marks at its address, in place of the tenant's words that
    /// would schedule it.
    fn store_inline<L: Layout>(&mut self, call: &QmdCall, tenant: &Qmd, marks: Option<&Marks>) {
        let on = call.subchannel;
        let mut qmd = *tenant;
        if let Some(marks) = marks {
            marks.write_as::<L>(&mut qmd);
        }
        let at = usize::try_from(call.call_at).unwrap_or(usize::MAX);
        let tenant = self.words.get(at..).unwrap_or_default();
        if let [_, upper, lower, ..] = *tenant {
            let header = method::incr(on, methods::SET_INLINE_QMD_ADDRESS_A, 2);
            self.push([header, upper, lower]);
        }
        // CAST: a small constant.
        self.push(headers(on, call.qmd_va, L::WORDS as u32));
        if let Some(out) = self.take(L::WORDS) {
            put_all(out, &qmd);
        }
        self.push(restore(on, &call.registers));
        self.push(address(on, call.qmd_va));
    }

    /// Returns a launch's QMD in the output, once it was copied.
    #[inline]
    fn qmd_of(&mut self, call: &QmdCall) -> Option<&mut [u32]> {
        let at = self.place_of(call)?;
        self.out.get_mut(at..)?.get_mut(..call.version?.words())
    }

    /// Returns the position of a launch's QMD in the output: behind all insertions before it.
    #[inline]
    fn place_of(&self, call: &QmdCall) -> Option<usize> {
        call.version?;
        let log = self.log.get(..self.splits.0)?;
        let before = log.partition_point(|insertion| insertion.at <= call.at);
        let inserted = log.get(..before)?.last().map_or(0, |last| last.inserted);
        usize::try_from(u64::from(call.at) + u64::from(inserted)).ok()
    }

    /// Writes the join and the atoms of a launch around its call: their QMDs, the calls, the
    /// restored registers.
    fn insert<L: Layout>(&mut self, index: u32, call: &QmdCall, parts: &Parts<'_, L>) {
        let on = call.subchannel;
        let slots = Wrapping(parts.plan.atoms()) + Wrapping(1);
        let uploads = matches!(self.placement, Placement::Upload);
        if uploads {
            // CAST: at most ATOMS_MAX.
            if let Some(out) = self.take((Wrapping(BLOCK_WORDS) * Wrapping(slots.0 as usize)).0) {
                parts.upload(on, out);
            }
        } else if let Placement::Written(view) = &mut self.placement {
            // CAST: slots were counted against the view's length.
            let from = (Wrapping(parts.before as usize) * Wrapping(SLOT_WORDS)).0;
            parts.write_slots(view.get_mut(from..).unwrap_or_default());
        }
        let [action_header, action] = action(on, Action::Invalidate);
        let [address_header, address] = address(on, parts.before_va);
        self.push([action_header, action, address_header, address]);
        self.copy_to(usize::try_from(call.call_end).unwrap_or(usize::MAX));
        if uploads {
            self.calls(index, parts, |va| schedule(on, va));
            self.push(restore(on, &call.registers));
        } else {
            self.calls(index, parts, |va| schedule_written(on, va));
        }
        self.push(self::address(on, call.qmd_va));
        self.slots += slots;
        self.record(call);
    }

    /// Writes the atoms of a launch without a join in place of its call.
    fn insert_without_join<L: Layout>(&mut self, index: u32, call: &QmdCall, parts: &Parts<'_, L>) {
        let on = call.subchannel;
        if let Placement::ReadOnly(view) | Placement::Written(view) = &mut self.placement {
            // CAST: slots were counted against the view's length.
            let from = (Wrapping(self.slots.0 as usize) * Wrapping(SLOT_WORDS)).0;
            parts.write_without_join(view.get_mut(from..).unwrap_or_default());
        }
        self.push(action(on, Action::Invalidate));
        self.push([method::incr(on, methods::WAIT_FOR_IDLE, 1), 0]);
        self.calls(index, parts, |va| schedule_written(on, va));
        // A call that has an upload has named its QMD itself.
        let before = match call.source {
            Source::Inline => u64::from(call.registers.pcas) << 8,
            _ => call.qmd_va,
        };
        self.push(address(on, before));
        self.copied = usize::try_from(call.call_end).unwrap_or(usize::MAX);
        self.slots += Wrapping(parts.plan.atoms());
        self.record(call);
    }

    /// Records the words inserted up to the end of a call.
    fn record(&mut self, call: &QmdCall) {
        let inserted = (Wrapping(self.len) - Wrapping(self.copied)).0;
        if let Some(insertion) = self.log.get_mut(self.splits.0) {
            *insertion = Insertion {
                at: call.call_end,
                // CAST: not more than the output.
                inserted: inserted as u32,
            };
        }
        self.splits += 1;
    }

    /// Writes the calls of the atoms, of `N` words each, with a cut behind each of them.
    #[inline]
    fn calls<const N: usize, L: Layout>(
        &mut self,
        index: u32,
        parts: &Parts<'_, L>,
        call: impl Fn(u64) -> [u32; N],
    ) {
        let atoms = parts.plan.atoms();
        // CAST: a call has few words.
        let each = N as u32;
        let mut at = Wrapping(self.position());
        // CAST: at most ATOMS_MAX.
        let Some(out) = self.take((Wrapping(N) * Wrapping(atoms as usize)).0) else {
            return;
        };
        let mut va = Va(parts.before_va);
        for out in out.chunks_exact_mut(N) {
            va += SLOT_BYTES;
            put(out, call(va.get()));
        }
        // CAST: a count of cuts.
        let cuts = self.cuts.get_mut(self.cut_count.0 as usize..);
        let mut count = self.cut_count;
        for (cut, atom) in cuts.unwrap_or_default().iter_mut().zip(0..atoms) {
            let atom = Wrapping(atom) + Wrapping(1);
            at += each;
            *cut = Cut {
                at: at.0,
                launch: index,
                atom: atom.0,
                slot: (Wrapping(parts.before) + atom).0,
            };
            count += 1;
        }
        self.cut_count = count;
    }
}

/// Returns the ordered marks of a QMD, if there are any, and counts the outcome.
#[inline(always)]
fn decide(
    qmd: &[u32],
    version: Version,
    order: &Order<'_>,
    counters: &mut Counters,
) -> Option<Marks> {
    let decided = mask::decide(qmd, version, order.mask?);
    counters.mask(decided.map(|(_, applied)| applied));
    decided.ok().map(|(marks, _)| marks)
}

/// Returns the address of a slot.
#[inline]
fn slot_va(first: u64, number: u32) -> u64 {
    (Va(first) + u64::from(number) * SLOT_BYTES).get()
}

/// Stores words one by one: they come from registers.
#[inline(always)]
fn put<const N: usize>(out: &mut [u32], words: [u32; N]) {
    for (out, word) in out.iter_mut().zip(words) {
        *out = word;
    }
}

/// Stores as many words as there are on both sides.
fn put_all(out: &mut [u32], words: &[u32]) {
    for (out, word) in out.iter_mut().zip(words) {
        *out = *word;
    }
}

#[inline]
pub(super) fn address(on: u8, va: u64) -> [u32; 2] {
    // CAST: a QMD's address is below 2^40.
    [method::incr(on, methods::SEND_PCAS_A, 1), (va >> 8) as u32]
}

#[inline]
pub(super) fn action(on: u8, action: Action) -> [u32; 2] {
    [
        method::incr(on, methods::SEND_SIGNALING_PCAS2_B, 1),
        action.value(),
    ]
}

/// Returns the words that schedule the atom in the slot at `va`.
#[inline]
fn schedule(on: u8, va: u64) -> [u32; 4] {
    let [address_header, address] = address(on, va);
    let [action_header, action] = action(on, Action::Schedule);
    [address_header, address, action_header, action]
}

/// Returns the same for a slot that was written behind the scheduler's back.
#[inline]
pub(super) fn schedule_written(on: u8, va: u64) -> [u32; 6] {
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
