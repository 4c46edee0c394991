// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Carries out orders on a segment: masks, and splits into atoms with a join.
//!
//! A split keeps every word of the tenant's and inserts words around its call, which then schedules
//! the join:
//!
//! ```text
//! ... upload of M ... PCAS_A = M                          the tenant's words
//! upload of the join to slot 0, of atom i to slot i + 1   I2M, or the caller writes the slots
//! PCAS2_B = INVALIDATE                                    of M, which the tenant's call did too
//! PCAS_A = slot 0
//! PCAS2_B = 0xA                                           the tenant's call
//! PCAS_A = slot 1, PCAS2_B = SCHEDULE                     the first atom may not be cut off
//! PCAS_A = slot 2, PCAS2_B = SCHEDULE                     <- a cut before this and further ones
//! the tenant's I2M registers and PCAS_A = M again         <- and here
//! the rest of the tenant's words
//! ```
//!
//! So the tenant's memory is the same as without the split, except for the slots.
//!
//! At a cut the output may be divided into separate GPFIFO entries, which releases the atoms one by
//! one. The order of the channel holds: the tenant's words behind the launch stay behind its last
//! atom.
//!
//! Slots that the GPU may only read ([`Placement::ReadOnly`]) have no join. The atoms' calls take
//! the place of the tenant's call. That would have waited for the end of the channel's earlier
//! launches, and an atom's does not, so the channel waits before the first one:
//!
//! ```text
//! PCAS2_B = INVALIDATE                                    of M
//! WAIT_FOR_IDLE
//! PCAS_A = slot 0, PCAS2_B = INVALIDATE, SCHEDULE         the first atom
//! PCAS_A = slot 1, ..                                     <- a cut before this and further ones
//! PCAS_A = slot n - 1, ..                                 the last atom, with the effects of M
//! PCAS_A = M                                              <- and here
//! ```
//!
//! Neither has a version without a `GRID_NULL` ([`Order::tried`]). There an inline QMD becomes a
//! stored one first:
//!
//! ```text
//! SET_INLINE_QMD_ADDRESS_A, B                             the tenant's burst without the QMD
//! upload of M to this address                             and the tenant's I2M registers again
//! PCAS_A = M
//! PCAS2_B = INVALIDATE ..                                 as above
//! PCAS_A = as it was
//! ```
//!
//! The required room is known before anything is written: exactly from [`room`], or as a bound from
//! [`Room::bound`].

pub mod detached;
mod emitter;
pub mod fills;
mod parts;
pub mod whole;

use super::atom::Plan;
use super::inline::{HEADER_WORDS, RESTORE_WORDS};
use super::join::{DoneWords, Qmd, RELEASE_VA_END};
use super::launch::{self, Launch};
use super::limits::{ATOMS_MAX, QMD_VA_END, QMD_WORDS_MAX, SLOT_BYTES, SLOT_WORDS, SPLITS};
use super::mask::{self, DisabledTpcs};
use super::methods::Action;
use super::qmd::{v03_00, v04_00::V04_00, with_layout, Layout, Version};
use super::reason::Reason;
use super::stats::Counters;
use super::tracker::{QmdCall, Source};
use crate::units::{Bytes, Sat};
use emitter::Emitter;

/// What to do with one launch. The default changes nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Order<'a> {
    /// The TPCs that it may not use, besides those that its tenant disabled.
    pub mask: Option<&'a DisabledTpcs>,
    /// Atoms to split it into; 0 and 1 leave it whole.
    pub atoms: u32,
    /// Whether it is split if it is of a version on which that was not measured. Its slots must be
    /// [`Placement::Written`].
    pub tried: bool,
}

/// Who writes the QMDs of joins and atoms into their slots.
#[derive(Debug)]
pub enum Placement<'a> {
    /// The output does, by inline-to-memory uploads. This is the way that was measured.
    Upload,
    /// [`emit`] does, through this view of the slots, [`SLOT_WORDS`] words each. The caller makes
    /// them visible at the slots' address before it publishes the output.
    Written(&'a mut [u32]),
    /// As [`Written`](Self::Written), for slots that the GPU may only read. The last atom has the
    /// effects of the launch, so the caller publishes it once the others have ended.
    ReadOnly(&'a mut [u32]),
}

impl Placement<'_> {
    /// Returns whether a split launch has a join.
    fn joins(&self) -> bool {
        !matches!(self, Self::ReadOnly(_))
    }
}

/// A place where the output may be divided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cut {
    /// The first word behind the cut.
    pub at: u32,
    /// The index of the atoms' launch in the table.
    pub launch: u32,
    /// The atom that the words behind the cut release; the number of atoms where they release none.
    pub atom: u32,
    /// The slot of the last atom that the words before the cut release. Its done word says when
    /// that atom has ended.
    pub slot: u32,
}

impl Cut {
    /// An unused entry.
    pub const NONE: Self = Self {
        at: 0,
        launch: 0,
        atom: 0,
        slot: 0,
    };
}

/// The caller's memory for an output.
#[derive(Debug)]
pub struct Output<'a> {
    /// The words to publish.
    pub words: &'a mut [u32],
    /// The address of the first QMD slot: a multiple of 256. All slots lie below 2^40.
    pub slot_va: u64,
    /// Number of slots of [`SLOT_BYTES`] each. A slot may be used again once its launch has ended.
    pub slots: u32,
    /// Who writes the slots.
    pub placement: Placement<'a>,
    /// Receives the cuts; those that do not fit are left out.
    pub cuts: &'a mut [Cut],
    /// The words that atoms write when they have ended; `None` for none.
    pub done: Option<DoneWords>,
}

/// Room that an output needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// Words of the output.
    pub words: u64,
    /// QMD slots: one for each atom and one for the join.
    pub slots: u64,
    /// Cuts.
    pub cuts: u64,
}

/// Size of what was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Emitted {
    /// Words of the output.
    pub words: u32,
    /// QMD slots used.
    pub slots: u32,
    /// Cuts written.
    pub cuts: u32,
}

/// Why nothing was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EmitError {
    /// The output is too small; this is the room that it needs.
    Room(Room),
    /// The slots' address is not a multiple of 256, or not below 2^40.
    SlotAddress,
    /// A done word is not aligned, or lies where no release can reach.
    DoneAddress,
}

/// Words of one upload besides its data.
const UPLOAD_WORDS: Sat<u64> = Sat(HEADER_WORDS as u64);
/// Words of a PCAS on another QMD: its address, its action.
const PCAS_WORDS: Sat<u64> = Sat(2 + 2);
/// Words that invalidate the scheduler's copy of a QMD.
const INVALIDATE_WORDS: Sat<u64> = Sat(2);
/// Words around the tenant's call: *M* is invalidated, PCAS_A names the join, and *M* again.
const CALL_WORDS: Sat<u64> = Sat(INVALIDATE_WORDS.0 + 2 + 2);
/// Words in place of the tenant's call, besides the atoms' calls: *M* is invalidated, the channel
/// waits, PCAS_A names *M* again.
const IN_PLACE_WORDS: Sat<u64> = Sat(INVALIDATE_WORDS.0 + 2 + 2);
/// Words that restore the upload's registers.
const RESTORE_UPLOAD_WORDS: Sat<u64> = Sat(RESTORE_WORDS as u64);
/// Words that store an inline QMD of a version without a join: the registers of its address, an
/// upload, and PCAS_A.
const STORE_INLINE_WORDS: Sat<u64> =
    Sat(3 + HEADER_WORDS as u64 + v03_00::WORDS as u64 + RESTORE_WORDS as u64 + 2);

impl Room {
    /// Returns a bound for any segment of `words` words with at most `launches` launches, each
    /// split into at most `atoms` atoms.
    pub fn bound(words: u32, launches: u32, atoms: u32) -> Self {
        let launches = Sat(u64::from(launches));
        let atoms = Sat(u64::from(atoms.min(ATOMS_MAX)));
        let slots = atoms + Sat(1);
        let qmd = UPLOAD_WORDS + Sat(QMD_WORDS_MAX as u64);
        let each = slots * qmd
            + atoms * (PCAS_WORDS + INVALIDATE_WORDS)
            + CALL_WORDS
            + RESTORE_UPLOAD_WORDS;
        Self {
            words: (Sat(u64::from(words)) + launches * each).0,
            slots: (launches * slots).0,
            cuts: (launches * atoms).0,
        }
    }

    /// Adds the room of a split into `atoms` atoms, of a launch that has a join if it `joins`. The
    /// words of a call that the atoms replace count as if they stayed.
    fn add(&mut self, atoms: u32, placement: &Placement<'_>, joins: bool) {
        let atoms = Sat(u64::from(atoms.min(ATOMS_MAX)));
        let slots = atoms + Sat(u64::from(joins));
        let (slot, atom, call) = match placement {
            Placement::Upload => (
                UPLOAD_WORDS + Sat(V04_00::WORDS as u64),
                PCAS_WORDS,
                CALL_WORDS + RESTORE_UPLOAD_WORDS,
            ),
            Placement::Written(_) | Placement::ReadOnly(_) => (
                Sat(0),
                PCAS_WORDS + INVALIDATE_WORDS,
                if joins { CALL_WORDS } else { IN_PLACE_WORDS },
            ),
        };
        let each = slots * slot + atoms * atom + call;
        self.words = (Sat(self.words) + each).0;
        self.slots = (Sat(self.slots) + slots).0;
        self.cuts = (Sat(self.cuts) + atoms).0;
    }
}

impl Room {
    /// Returns whether `output` has this room. Cuts that do not fit are left out, so they do not
    /// count.
    fn fits(&self, output: &Output<'_>) -> bool {
        let fits = |need: u64, have: usize| usize::try_from(need).is_ok_and(|need| need <= have);
        let viewed = match &output.placement {
            Placement::Upload => true,
            Placement::Written(view) | Placement::ReadOnly(view) => {
                fits(self.slots, view.len() / SLOT_WORDS)
            }
        };
        viewed
            && fits(self.words, output.words.len())
            && self.words <= u64::from(u32::MAX)
            && self.slots <= u64::from(output.slots)
    }

    /// Checks the addresses of the slots and of the done words, which releases can write below
    /// `end`.
    fn check_addresses(&self, output: &Output<'_>, end: u64) -> Result<(), EmitError> {
        if self.slots == 0 {
            return Ok(());
        }
        let behind = Bytes(output.slot_va) + Bytes(SLOT_BYTES) * self.slots;
        if output.slot_va & 0xff != 0 || behind > Bytes(QMD_VA_END) {
            return Err(EmitError::SlotAddress);
        }
        match output.done {
            Some(done) if !done.is_sound(self.slots, end) => Err(EmitError::DoneAddress),
            _ => Ok(()),
        }
    }
}

/// A split that will happen.
struct Split<'a> {
    plan: Plan,
    tenant: Tenant<'a>,
}

/// The QMD of a tenant.
enum Tenant<'a> {
    /// Of version 4.0, the one that is split but where another is tried.
    Measured(&'a Qmd),
    /// Of another version.
    Tried(Version, &'a [u32]),
}

impl Split<'_> {
    /// Returns whether the launch has a join in these slots.
    fn joins(&self, placement: &Placement<'_>) -> bool {
        match self.tenant {
            Tenant::Measured(_) => placement.joins(),
            Tenant::Tried(version, _) => version.joins(),
        }
    }
}

/// Decides whether and how an order splits a launch.
///
/// # Errors
///
/// The [`Reason`] why the launch stays whole although the order asks for a split.
#[inline(always)]
fn split_of<'a>(
    words: &'a [u32],
    table: &[QmdCall],
    call: &QmdCall,
    order: &Order<'_>,
    placement: &Placement<'_>,
) -> Result<Option<Split<'a>>, Reason> {
    if order.atoms <= 1 || !call.is_launch() {
        return Ok(None);
    }
    if let Some(reason) = call.reason {
        return Err(reason);
    }
    let (Some(version), Some(qmd)) = (call.version, call.qmd(words)) else {
        return Err(Reason::NotHere);
    };
    if version != Version::V04_00 {
        return tried_split_of(qmd, version, table, call, order, placement).map(Some);
    }
    let Some(tenant) = qmd.first_chunk() else {
        return Err(Reason::NotHere);
    };
    launch::splittable::<V04_00>(tenant, false)?;
    if call.source != Source::Upload {
        return Err(Reason::Inline);
    }
    check_call(table, call)?;
    let plan = Plan::new(launch::triple(V04_00::GRID, tenant), order.atoms);
    if plan.is_whole() {
        return Err(Reason::OneUnit);
    }
    let tenant = Tenant::Measured(tenant);
    Ok(Some(Split { plan, tenant }))
}

/// Decides the same for a QMD of a version other than 4.0.
#[cold]
#[inline(never)]
fn tried_split_of<'a>(
    qmd: &'a [u32],
    version: Version,
    table: &[QmdCall],
    call: &QmdCall,
    order: &Order<'_>,
    placement: &Placement<'_>,
) -> Result<Split<'a>, Reason> {
    Launch::splittable(qmd, version, order.tried)?;
    if !matches!(placement, Placement::Written(_)) {
        return Err(Reason::NotMeasured);
    }
    // The tenant's call schedules a join, so there must be one.
    if call.source != Source::Upload && version.joins() {
        return Err(Reason::Inline);
    }
    check_call(table, call)?;
    let grid = with_layout!(version, L => launch::triple(L::GRID, qmd));
    let plan = Plan::new(grid, order.atoms);
    if plan.is_whole() {
        return Err(Reason::OneUnit);
    }
    let tenant = Tenant::Tried(version, qmd);
    Ok(Split { plan, tenant })
}

/// Checks whether words can be inserted around a call.
#[inline(always)]
fn check_call(table: &[QmdCall], call: &QmdCall) -> Result<(), Reason> {
    if call.is_shared(table) {
        return Err(Reason::Shared);
    }
    if !matches!(
        call.action,
        Action::InvalidateCopySchedule | Action::InvalidatePrefetchCopySchedule
    ) {
        return Err(Reason::Action);
    }
    if !call.registers.known {
        return Err(Reason::Registers);
    }
    match call.alone {
        true => Ok(()),
        false => Err(Reason::Fragmented),
    }
}

/// Pairs each entry of the table with its order. Entries beyond the orders stay unchanged.
fn pairs<'a>(
    calls: &'a [QmdCall],
    orders: &'a [Order<'a>],
) -> impl Iterator<Item = (&'a QmdCall, &'a Order<'a>)> {
    calls.iter().zip(orders)
}

/// Returns exactly the room that [`emit`] needs for these orders.
pub fn room(
    words: &[u32],
    calls: &[QmdCall],
    orders: &[Order<'_>],
    placement: &Placement<'_>,
) -> Room {
    let mut room = Room {
        words: u64::try_from(words.len()).unwrap_or(u64::MAX),
        ..Room::default()
    };
    let splits = pairs(calls, orders).filter_map(|(call, order)| {
        let split = split_of(words, calls, call, order, placement)
            .ok()
            .flatten();
        Some((call, split?))
    });
    for (call, split) in splits.take(SPLITS) {
        let joins = split.joins(placement);
        room.add(split.plan.atoms(), placement, joins);
        if call.source == Source::Inline {
            room.words = (Sat(room.words) + STORE_INLINE_WORDS).0;
        }
        if !joins {
            let replaced = Sat(call.call_end) - Sat(call.call_at);
            room.words = (Sat(room.words) - Sat(u64::from(replaced.0))).0;
        }
    }
    room
}

/// Applies the masks of the orders in the segment itself, and ignores the splits.
pub fn in_place(
    words: &mut [u32],
    calls: &[QmdCall],
    orders: &[Order<'_>],
    counters: &mut Counters,
) {
    for (call, order) in pairs(calls, orders) {
        let (Some(mask), Some(version), true) = (order.mask, call.version, call.is_launch()) else {
            continue;
        };
        if let Some(qmd) = call.at_qmd_mut(words) {
            counters.mask(mask::apply(qmd, version, mask));
        }
    }
}

/// Writes the segment as ordered.
///
/// # Errors
///
/// [`EmitError`]; nothing was written then.
pub fn emit(
    words: &[u32],
    calls: &[QmdCall],
    orders: &[Order<'_>],
    output: Output<'_>,
    counters: &mut Counters,
) -> Result<Emitted, EmitError> {
    check_room(words, calls, orders, &output)?;
    let mut emitter = Emitter::new(words, calls, output);
    for (index, (call, order)) in (0..u32::MAX).zip(pairs(calls, orders)) {
        if call.is_launch() {
            emitter.launch(index, call, order, counters);
        }
    }
    Ok(emitter.finish())
}

/// Checks that the output has the room that the orders need. If it has room for the worst case of
/// so many atoms, no QMD is read.
fn check_room(
    words: &[u32],
    calls: &[QmdCall],
    orders: &[Order<'_>],
    output: &Output<'_>,
) -> Result<(), EmitError> {
    let mut need = Room {
        words: words.len() as u64,
        ..Room::default()
    };
    let mut end = RELEASE_VA_END;
    for (call, order) in pairs(calls, orders) {
        if order.atoms > 1 && call.is_launch() {
            need.add(order.atoms, &output.placement, output.placement.joins());
            if order.tried {
                need.words = (Sat(need.words) + STORE_INLINE_WORDS).0;
                end = QMD_VA_END;
            }
        }
    }
    if need.fits(output) && need.check_addresses(output, end).is_ok() {
        return Ok(());
    }
    need = room(words, calls, orders, &output.placement);
    if !need.fits(output) {
        return Err(EmitError::Room(need));
    }
    need.check_addresses(output, end)
}
