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

mod emitter;

use super::atom::Plan;
use super::class::Action;
use super::launch;
use super::limits::{ATOMS_MAX, QMD_VA_END, QMD_WORDS_MAX, SLOT_BYTES, SLOT_WORDS, SPLITS};
use super::mask::{self, Applied, TpcMask};
use super::qmd::{v04_00::V04_00, Layout, Version};
use super::stats::{Counters, Reason};
use super::tracker::{Found, Source};
use emitter::Emitter;

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

    fn add(&mut self, atoms: u32, placement: &Placement<'_>) {
        let atoms = u64::from(atoms);
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

impl Room {
    /// Whether an output has it. Cuts that do not fit are left out, so they do not count.
    fn fits(&self, output: &Output<'_>) -> bool {
        let fits = |need: u64, have: usize| usize::try_from(need).is_ok_and(|need| need <= have);
        let viewed = match &output.placement {
            Placement::Upload => true,
            Placement::Written(view) => fits(self.slots, view.len() / SLOT_WORDS),
        };
        viewed
            && fits(self.words, output.words.len())
            && self.words <= u64::from(u32::MAX)
            && self.slots <= u64::from(output.slots)
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
        room.add(split.plan.atoms(), placement);
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
    check_room(words, found, orders, &output)?;
    let mut emitter = Emitter::new(words, output);
    let mut index = 0u32;
    for (found, order) in pairs(found, orders) {
        if found.is_launch() {
            emitter.launch(index, found, order, counters);
        }
        index = index.wrapping_add(1);
    }
    Ok(emitter.finish())
}

/// Whether the output has the room that the orders need. Where it has what the worst orders of that many atoms would need,
/// no QMD is looked at.
fn check_room(
    words: &[u32],
    found: &[Found],
    orders: &[Order<'_>],
    output: &Output<'_>,
) -> Result<(), EmitError> {
    let mut need = Room {
        words: words.len() as u64,
        ..Room::default()
    };
    for (found, order) in pairs(found, orders) {
        if order.atoms > 1 && found.is_launch() {
            need.add(order.atoms.min(ATOMS_MAX), &output.placement);
        }
    }
    if !need.fits(output) {
        need = room(words, found, orders, &output.placement);
        if !need.fits(output) {
            return Err(EmitError::Room(need));
        }
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
