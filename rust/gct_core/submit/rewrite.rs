// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Carries out orders on a segment: masks, and splits into atoms with a join.
//!
//! A split changes the tenant's words in one place, its QMD, and adds words in one place, behind the call:
//!
//! ```text
//! ... upload of M, now the join ... PCAS_A = M, PCAS2_B = 0xA          the tenant's words
//! upload of atom 0 to slot 0 ... upload of atom n-1 to slot n-1        I2M, or the caller writes the slots
//! PCAS_A = slot 0, PCAS2_B = SCHEDULE                                  the first may not be cut off
//! PCAS_A = slot 1, PCAS2_B = SCHEDULE                                  <- a cut before this and each further one
//! the tenant's I2M registers and PCAS_A again                          <- and here
//! the rest of the tenant's words
//! ```
//!
//! At a cut the output may be divided into separate GPFIFO entries, which releases the atoms one by one. The order of the
//! channel holds: what the tenant put behind the launch stays behind its last atom.
//!
//! The room that is needed is known before anything is written: exactly from [`room`], or as a bound from
//! [`Room::bound`].

use super::atom::Plan;
use super::class::{self, Action};
use super::join::{join, template, Template};
use super::launch;
use super::limits::{ATOMS_MAX, QMD_VA_END, QMD_WORDS_MAX, SLOT_BYTES, SLOT_WORDS, SPLITS};
use super::mask::{self, Applied, TpcMask};
use super::method;
use super::qmd::{v04_00::V04_00, Layout, Version};
use super::stats::{Counters, Reason};
use super::tracker::{Found, Source};

/// What one launch is to become. The default changes nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Order<'a> {
    /// The TPCs that it may not use, in addition to those that its tenant disabled.
    pub mask: Option<&'a TpcMask>,
    /// Into how many atoms it is split; 0 and 1 leave it whole.
    pub atoms: u32,
}

/// Who writes the atoms' QMDs into their slots.
#[derive(Debug)]
pub enum Placement<'a> {
    /// The output does, by inline-to-memory uploads. This is what has been measured.
    Upload,
    /// The call does, into this view of the slots, [`SLOT_WORDS`] words each. The caller makes them visible at the slots'
    /// address before it publishes the output.
    Written(&'a mut [u32]),
}

/// A place where the output may be divided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cut {
    /// The first word behind the cut.
    pub at: u32,
    /// Whose atoms they are: the index of the launch in the table.
    pub launch: u32,
    /// Which atom the words behind the cut release; the number of atoms where they release none any more.
    pub atom: u32,
}

/// Where the output goes.
#[derive(Debug)]
pub struct Output<'a> {
    /// The words to publish.
    pub words: &'a mut [u32],
    /// The address of the first QMD slot: a multiple of 256 below 2^40, as all of them.
    pub slot_va: u64,
    /// How many slots there are, [`SLOT_BYTES`] each. A slot may be used again once its launch has ended.
    pub slots: u32,
    /// Who writes the slots.
    pub placement: Placement<'a>,
    /// Takes the places where the output may be divided; those that do not fit are left out.
    pub cuts: &'a mut [Cut],
}

/// How much room an output needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// Words of the output.
    pub words: u64,
    /// QMD slots.
    pub slots: u64,
    /// Cuts.
    pub cuts: u64,
}

/// What was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Emitted {
    /// Words of the output.
    pub words: u32,
    /// QMD slots used.
    pub slots: u32,
    /// Cuts written.
    pub cuts: u32,
}

/// Why nothing can be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EmitError {
    /// The output is too small; this is what it needs.
    Room(Room),
    /// The slots' address is not a multiple of 256, or not below 2^40.
    SlotAddress,
}

/// Words of one upload beside its data: destination, length, LAUNCH_DMA, the data's header.
const UPLOAD_WORDS: u64 = 3 + 3 + 2 + 1;
/// Words of one PCAS.
const PCAS_WORDS: u64 = 2 + 2;
/// Words that drop the scheduler's copy of a slot that was written behind its back.
const INVALIDATE_WORDS: u64 = 2;
/// Words that restore the upload's registers.
const RESTORE_UPLOAD_WORDS: u64 = 5;
/// Words that restore PCAS_A.
const RESTORE_PCAS_WORDS: u64 = 2;
/// LAUNCH_DMA as CUDA writes it: pitch layout, no flush, no system membar.
const LAUNCH_PITCH: u32 = 0x41;

impl Room {
    /// A bound that holds for any segment of `words` words with at most `launches` launches, each split into at most
    /// `atoms` atoms.
    pub fn bound(words: u32, launches: u32, atoms: u32) -> Self {
        let atoms = u64::from(atoms.min(ATOMS_MAX)).saturating_mul(u64::from(launches));
        let each = UPLOAD_WORDS + QMD_WORDS_MAX as u64 + PCAS_WORDS + INVALIDATE_WORDS;
        let restore =
            (RESTORE_UPLOAD_WORDS + RESTORE_PCAS_WORDS).saturating_mul(u64::from(launches));
        Self {
            words: u64::from(words)
                .saturating_add(atoms.saturating_mul(each))
                .saturating_add(restore),
            slots: atoms,
            cuts: atoms,
        }
    }

    fn add(&mut self, split: &Split, placement: &Placement<'_>) {
        let atoms = u64::from(split.plan.atoms());
        let (each, restore) = match placement {
            Placement::Upload => (
                UPLOAD_WORDS + V04_00::WORDS as u64 + PCAS_WORDS,
                RESTORE_UPLOAD_WORDS,
            ),
            Placement::Written(_) => (PCAS_WORDS + INVALIDATE_WORDS, 0),
        };
        self.words = self
            .words
            .saturating_add(atoms.saturating_mul(each))
            .saturating_add(restore + RESTORE_PCAS_WORDS);
        self.slots = self.slots.saturating_add(atoms);
        self.cuts = self.cuts.saturating_add(atoms);
    }
}

/// A split that is going to happen.
struct Split {
    plan: Plan,
}

/// Whether an order splits a launch, and how.
///
/// # Errors
///
/// The [`Reason`] why it does not, where the order asks for it.
fn split_of(words: &[u32], found: &Found, order: &Order<'_>) -> Result<Option<Split>, Reason> {
    if order.atoms <= 1 || !found.is_launch() {
        return Ok(None);
    }
    if let Some(reason) = found.reason {
        return Err(reason);
    }
    let (Some(version), Some(qmd)) = (found.version, found.qmd(words)) else {
        return Err(Reason::NotHere);
    };
    // Only one version is split, so only one is compiled. `splittable` says NotMeasured for the others.
    if version != Version::V04_00 {
        return Err(launch::Launch::splittable(qmd, version)
            .err()
            .unwrap_or(Reason::NotMeasured));
    }
    launch::splittable::<V04_00>(qmd)?;
    if found.source != Source::Upload {
        return Err(Reason::Inline);
    }
    if found.shared {
        return Err(Reason::Shared);
    }
    if !matches!(
        found.action,
        Action::InvalidateCopySchedule | Action::InvalidatePrefetchCopySchedule
    ) {
        return Err(Reason::Action);
    }
    if !found.registers.known {
        return Err(Reason::Registers);
    }
    if !found.ends_burst {
        return Err(Reason::Fragmented);
    }
    let plan = Plan::new(V04_00::GRID.map(|field| field.get(qmd)), order.atoms);
    if plan.is_whole() {
        return Err(Reason::OneUnit);
    }
    Ok(Some(Split { plan }))
}

/// The order for each entry of the table; entries beyond the orders change nothing.
fn pairs<'a>(
    found: &'a [Found],
    orders: &'a [Order<'a>],
) -> impl Iterator<Item = (&'a Found, &'a Order<'a>)> {
    found.iter().zip(orders)
}

/// The room that [`emit`] needs for these orders, exactly.
pub fn room(
    words: &[u32],
    found: &[Found],
    orders: &[Order<'_>],
    placement: &Placement<'_>,
) -> Room {
    let mut room = Room {
        words: u64::try_from(words.len()).unwrap_or(u64::MAX),
        ..Room::default()
    };
    let splits = pairs(found, orders)
        .filter_map(|(found, order)| split_of(words, found, order).ok().flatten());
    for split in splits.take(SPLITS) {
        room.add(&split, placement);
    }
    room
}

/// Applies one order's mask to the QMD.
#[inline]
fn apply_mask(qmd: &mut [u32], found: &Found, order: &Order<'_>, counters: &mut Counters) {
    let (Some(mask), Some(version)) = (order.mask, found.version) else {
        return;
    };
    match mask::apply(qmd, version, mask) {
        Ok(applied) => {
            counters.masked = counters.masked.wrapping_add(1);
            if applied == Applied::Overrode {
                counters.overrode = counters.overrode.wrapping_add(1);
            }
        }
        Err(reason) => counters.keep(reason),
    }
}

/// Carries out the masks of the orders in the segment itself; splits are counted as not done by nobody's order.
pub fn in_place(words: &mut [u32], found: &[Found], orders: &[Order<'_>], counters: &mut Counters) {
    for (found, order) in pairs(found, orders) {
        if found.is_launch() {
            if let Some(qmd) = found.qmd_mut(words) {
                apply_mask(qmd, found, order, counters);
            }
        }
    }
}

/// Appends to the output. Room was checked before, so nothing is lost.
struct Writer<'a> {
    words: &'a mut [u32],
    len: usize,
}

impl Writer<'_> {
    /// The next `count` words of the output.
    #[inline]
    fn take(&mut self, count: usize) -> Option<&mut [u32]> {
        let end = self.len.checked_add(count)?;
        let words = self.words.get_mut(self.len..end)?;
        self.len = end;
        Some(words)
    }

    #[inline]
    fn push<const N: usize>(&mut self, words: [u32; N]) {
        if let Some(out) = self.take(N) {
            out.copy_from_slice(&words);
        }
    }

    fn copy(&mut self, words: &[u32]) {
        if let Some(out) = self.take(words.len()) {
            out.copy_from_slice(words);
        }
    }

    fn position(&self) -> u32 {
        // CAST: an output is shorter than 2^32 words, or its room would not have been granted.
        self.len as u32
    }

    #[inline]
    fn pcas(&mut self, subchannel: u8, va: u64, action: Action) {
        self.push([
            method::incr(subchannel, class::SEND_PCAS_A, 1),
            // CAST: a QMD's address is below 2^40.
            (va >> 8) as u32,
            method::incr(subchannel, class::SEND_SIGNALING_PCAS2_B, 1),
            action.value(),
        ]);
    }
}

/// Writes the segment as the orders want it.
///
/// # Errors
///
/// [`EmitError`]; nothing was written then.
pub fn emit(
    words: &[u32],
    found: &[Found],
    orders: &[Order<'_>],
    output: Output<'_>,
    counters: &mut Counters,
) -> Result<Emitted, EmitError> {
    let need = room(words, found, orders, &output.placement);
    check_room(&need, &output)?;
    let mut emitter = Emitter {
        words,
        out: Writer {
            words: output.words,
            len: 0,
        },
        placement: output.placement,
        slot_va: output.slot_va,
        slots: 0,
        cuts: output.cuts,
        cut_count: 0,
        copied: 0,
        log: [Insertion {
            at: u32::MAX,
            inserted: 0,
        }; SPLITS],
        splits: 0,
    };
    let mut index = 0u32;
    for (found, order) in pairs(found, orders) {
        if found.is_launch() {
            emitter.copy_to(found.call_end);
            emitter.launch(index, found, order, counters);
        }
        index = index.wrapping_add(1);
    }
    emitter.copy_to(u32::MAX);
    Ok(Emitted {
        words: emitter.out.position(),
        slots: emitter.slots,
        cuts: emitter.cut_count,
    })
}

fn check_room(need: &Room, output: &Output<'_>) -> Result<(), EmitError> {
    let fits = |need: u64, have: usize| usize::try_from(need).is_ok_and(|need| need <= have);
    let viewed = match &output.placement {
        Placement::Upload => true,
        Placement::Written(view) => fits(need.slots, view.len() / SLOT_WORDS),
    };
    if !fits(need.words, output.words.len())
        || need.words > u64::from(u32::MAX)
        || need.slots > u64::from(output.slots)
        || !viewed
    {
        return Err(EmitError::Room(*need));
    }
    let end = need
        .slots
        .checked_mul(SLOT_BYTES)
        .and_then(|bytes| output.slot_va.checked_add(bytes));
    if need.slots != 0 && (output.slot_va & 0xff != 0 || end.is_none_or(|end| end > QMD_VA_END)) {
        return Err(EmitError::SlotAddress);
    }
    Ok(())
}

/// The state of one [`emit`].
struct Emitter<'a> {
    words: &'a [u32],
    out: Writer<'a>,
    placement: Placement<'a>,
    slot_va: u64,
    slots: u32,
    cuts: &'a mut [Cut],
    cut_count: u32,
    /// How many of the segment's words have been copied.
    copied: u32,
    /// The insertions so far; those that are still free are behind every word.
    log: [Insertion; SPLITS],
    /// How many there are.
    splits: usize,
}

/// Words that were inserted for one split.
#[derive(Clone, Copy)]
struct Insertion {
    /// Before which word of the segment.
    at: u32,
    /// How many were inserted up to here, all together.
    inserted: u32,
}

impl Emitter<'_> {
    /// Copies the tenant's words up to `end`.
    fn copy_to(&mut self, end: u32) {
        let from = usize::try_from(self.copied).unwrap_or(usize::MAX);
        let end = usize::try_from(end)
            .unwrap_or(usize::MAX)
            .min(self.words.len());
        if let Some(words) = self.words.get(from..end) {
            self.out.copy(words);
            // CAST: a segment has fewer than 2^21 words.
            self.copied = end as u32;
        }
    }

    /// Carries out the order of one launch whose call was copied last.
    fn launch(&mut self, index: u32, found: &Found, order: &Order<'_>, counters: &mut Counters) {
        let split = match split_of(self.words, found, order) {
            Ok(Some(_)) if self.splits >= SPLITS => {
                counters.keep(Reason::TableFull);
                None
            }
            Ok(split) => split,
            Err(reason) => {
                if found.reason.is_none() {
                    counters.keep(reason);
                }
                None
            }
        };
        let Some(at) = self.place_of(found) else {
            return;
        };
        let length = found.version.map_or(0, Version::words);
        let Some(qmd) = self
            .out
            .words
            .get_mut(at..)
            .and_then(|out| out.get_mut(..length))
        else {
            return;
        };
        apply_mask(qmd, found, order, counters);
        if let Some(split) = split {
            let template = template::<V04_00>(qmd, found.qmd_va);
            join::<V04_00>(qmd, split.plan.atoms());
            self.atoms(index, found, &split.plan, template);
            let inserted = self.out.position().wrapping_sub(self.copied);
            if let Some(insertion) = self.log.get_mut(self.splits) {
                *insertion = Insertion {
                    at: found.call_end,
                    inserted,
                };
            }
            self.splits = self.splits.wrapping_add(1);
            counters.split = counters.split.wrapping_add(1);
            counters.atoms = counters.atoms.wrapping_add(u64::from(split.plan.atoms()));
        }
    }

    /// Where a launch's QMD is in the output: behind all insertions that lie before it.
    fn place_of(&self, found: &Found) -> Option<usize> {
        found.version?;
        let before = self
            .log
            .partition_point(|insertion| insertion.at <= found.at);
        let inserted = match before.checked_sub(1) {
            Some(last) => self.log.get(last)?.inserted,
            None => 0,
        };
        usize::try_from(found.at.checked_add(inserted)?).ok()
    }

    /// Writes the atoms of a launch: their QMDs, their calls, and the registers that were used.
    fn atoms(&mut self, index: u32, found: &Found, plan: &Plan, mut template: Template) {
        let subchannel = found.subchannel;
        let first = self
            .slot_va
            .wrapping_add(u64::from(self.slots).wrapping_mul(SLOT_BYTES));
        let slot = |atom: u32| first.wrapping_add(u64::from(atom).wrapping_mul(SLOT_BYTES));
        let uploads = matches!(self.placement, Placement::Upload);
        for number in 0..plan.atoms() {
            let Some(atom) = plan.atom(number) else {
                break;
            };
            let target = match &mut self.placement {
                Placement::Upload => {
                    self.out.push(upload_header(subchannel, slot(number)));
                    self.out.take(V04_00::WORDS)
                }
                Placement::Written(view) => usize::try_from(self.slots.wrapping_add(number))
                    .ok()
                    .and_then(|slot| view.get_mut(slot.checked_mul(SLOT_WORDS)?..))
                    .and_then(|view| view.get_mut(..V04_00::WORDS)),
            };
            if let Some(target) = target {
                template.write::<V04_00>(&atom, target);
            }
        }
        for number in 0..plan.atoms() {
            if number != 0 {
                self.cut(index, number);
            }
            if !uploads {
                self.out.pcas(subchannel, slot(number), Action::Invalidate);
                self.out.push([
                    method::incr(subchannel, class::SEND_SIGNALING_PCAS2_B, 1),
                    Action::Schedule.value(),
                ]);
            } else {
                self.out.pcas(subchannel, slot(number), Action::Schedule);
            }
        }
        self.cut(index, plan.atoms());
        if uploads {
            let registers = found.registers;
            self.out.push([
                method::incr(subchannel, class::LINE_LENGTH_IN, 4),
                registers.line_length,
                registers.line_count,
                registers.offset_upper,
                registers.offset,
            ]);
        }
        self.out.push([
            method::incr(subchannel, class::SEND_PCAS_A, 1),
            // CAST: a QMD's address is below 2^40.
            (found.qmd_va >> 8) as u32,
        ]);
        self.slots = self.slots.wrapping_add(plan.atoms());
    }

    fn cut(&mut self, launch: u32, atom: u32) {
        let at = self.out.position();
        if let Some(cut) = usize::try_from(self.cut_count)
            .ok()
            .and_then(|index| self.cuts.get_mut(index))
        {
            *cut = Cut { at, launch, atom };
            self.cut_count = self.cut_count.wrapping_add(1);
        }
    }
}

/// The words that begin an upload of one QMD.
#[inline]
fn upload_header(subchannel: u8, va: u64) -> [u32; UPLOAD_WORDS as usize] {
    const BYTES: u32 = 4 * V04_00::WORDS as u32;
    [
        method::incr(subchannel, class::OFFSET_OUT_UPPER, 2),
        // CAST: the two halves.
        (va >> 32) as u32,
        va as u32,
        method::incr(subchannel, class::LINE_LENGTH_IN, 2),
        BYTES,
        1,
        method::incr(subchannel, class::LAUNCH_DMA, 1),
        LAUNCH_PITCH,
        method::non_incr(subchannel, class::LOAD_INLINE_DATA, BYTES / 4),
    ]
}
