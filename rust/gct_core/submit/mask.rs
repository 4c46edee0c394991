// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Applies masks of disabled TPCs to QMDs.
//!
//! A mask also carries the [`Precedence`] of its launches, which versions before and after 4.0 do
//! not get: only Hopper's order was measured.
//!
//! A set bit disables a TPC. The interface and the policies use the opposite, the set of allowed
//! TPCs ([`mask::TpcMask`](crate::mask::TpcMask)); [`DisabledTpcs::outside`] converts it.
//!
//! The order of the bits is the work distributor's, not that of `%smid`, and it has holes: 66 TPCs
//! have bits between 0 and 83. A launch whose mask leaves only holes never starts. So a mask is
//! made for a [`Topology`](crate::topology::Topology), which says what exists.
//!
//! | QMD version | bits of the mask | count |
//! |---|---|---|
//! | 2 and 3 | 64; 72 on Ada | always |
//! | 4.0 (Hopper) | 128 | if a further bit says so |
//! | 4.1 and 5.0 (Blackwell) | 256 | if a further bit says so |
//! | 5.1 (Blackwell) | none | |
//!
//! The tenant may have a mask of its own:
//!
//! ```text
//! disabled = tenant's | ordered        if that leaves a TPC
//!            ordered                   else
//! ```

mod disabled;

pub use disabled::{DisabledTpcs, OutOfRange};

use super::launch::{self, Kind};
use super::limits::MASK_WORDS;
use super::occupancy::Needs;
use super::precedence::{self, Precedence};
use super::qmd::v04_00::V04_00;
use super::qmd::{with_layout, Layout, Version};
use super::reason::Reason;
use crate::units::Sat;
use core::num::Wrapping;
use disabled::whole;

/// Returns the lowest `count` bits of a word, all of them for 32 and more.
#[inline]
fn low_bits(count: u16) -> u32 {
    match count {
        0 => 0,
        1..=31 => !(u32::MAX << count),
        _ => u32::MAX,
    }
}

/// How [`apply`] combined the mask with the tenant's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    /// The QMD disables the tenant's TPCs and the ordered ones.
    United,
    /// Both together left no TPC, so the QMD disables the ordered ones alone.
    Overrode,
}

/// Returns the mask bits of `qmd`, whether or not they count.
#[inline]
fn stored<L: Layout>(qmd: &[u32]) -> [u32; MASK_WORDS] {
    let mut words = [0; MASK_WORDS];
    let mut base = Wrapping(0u16);
    for field in L::MASK {
        if let Some(word) = words.get_mut(usize::from(base.0 >> 5)) {
            *word |= field.get(qmd) << (base.0 & 31);
        }
        base += field.width();
    }
    words
}

#[inline]
fn read_as<L: Layout>(qmd: &[u32]) -> Option<[u32; MASK_WORDS]> {
    match L::MASK_VALID {
        Some(valid) if !valid.is_set(qmd) => None,
        _ => Some(stored::<L>(qmd)),
    }
}

#[inline]
fn write_as<L: Layout>(qmd: &mut [u32], words: &[u32; MASK_WORDS]) {
    let mut base = Wrapping(0u16);
    for field in L::MASK {
        let word = words.get(usize::from(base.0 >> 5)).copied().unwrap_or(0);
        let value = word >> (base.0 & 31) & field.max();
        // The value was cut to the field, so it fits.
        let _ = field.set(qmd, value);
        base += field.width();
    }
    if let Some(valid) = L::MASK_VALID {
        let _ = valid.set(qmd, 1);
    }
}

/// Returns how many TPCs the version's mask covers.
fn width_of<L: Layout>() -> u16 {
    let widths = L::MASK.iter().map(|field| Wrapping(field.width()));
    widths.sum::<Wrapping<u16>>().0
}

/// Returns the disabled TPCs of `qmd`; `None` when its mask does not count.
pub fn read(qmd: &[u32], version: Version) -> Option<[u32; MASK_WORDS]> {
    with_layout!(version, L => read_as::<L>(qmd.get(..L::WORDS)?))
}

/// Stores a mask as it is, or removes it with `None`.
pub fn write(qmd: &mut [u32], version: Version, mask: Option<&[u32; MASK_WORDS]>) {
    with_layout!(version, L => {
        if let Some(qmd) = qmd.get_mut(..L::WORDS) {
            write_as::<L>(qmd, mask.unwrap_or(&[0; MASK_WORDS]));
            if let (None, Some(valid)) = (mask, L::MASK_VALID) {
                valid.clear(qmd);
            }
        }
    });
}

/// The mask words for a QMD, and how they came about.
pub(crate) type Decision = ([u32; MASK_WORDS], Applied);

/// What a masked QMD differs by from its tenant's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Marks {
    words: [u32; MASK_WORDS],
    precedence: Option<Precedence>,
}

impl Marks {
    /// Stores the marks into a QMD.
    pub(crate) fn write(&self, qmd: &mut [u32], version: Version) {
        match qmd.first_chunk_mut::<{ V04_00::WORDS }>() {
            Some(qmd) if version == Version::V04_00 => self.write_as::<V04_00>(qmd),
            _ => write(qmd, version, Some(&self.words)),
        }
    }

    /// Stores the marks into a QMD at the start of these words. Nearly every one is of version 4.0.
    #[inline(always)]
    pub(crate) fn write_as<L: Layout>(&self, qmd: &mut [u32; V04_00::WORDS]) {
        write_as::<L>(qmd, &self.words);
        if L::VERSION == Version::V04_00 {
            precedence::give(qmd, self.precedence);
        }
    }
}

/// Decides what `qmd` disables so that both `mask` and its tenant are obeyed.
#[inline(always)]
fn decide_as<L: Layout>(qmd: &[u32], mask: &DisabledTpcs) -> Result<Decision, Reason> {
    if L::MASK.is_empty() {
        return Err(Reason::SubTasks);
    }
    match launch::kind::<L>(qmd) {
        Kind::Grid => combine(read_as::<L>(qmd), mask, width_of::<L>()),
        Kind::Queue => Err(Reason::Queue),
        Kind::Null => Err(Reason::Null),
        Kind::Undocumented(_) => Err(Reason::Kind),
        Kind::Cluster | Kind::Cooperative | Kind::CooperativeCluster => {
            let decision = combine(read_as::<L>(qmd), mask, width_of::<L>())?;
            fitting(decision, Needs::of::<L>(qmd), mask)
        }
    }
}

/// Returns a decision if it leaves what a launch needs. The tenant's own mask may leave fewer TPCs
/// than the ordered one.
///
/// # Errors
///
/// [`Reason::TooWide`] if it does not.
pub(crate) fn fitting(
    decision: Decision,
    needs: Needs,
    mask: &DisabledTpcs,
) -> Result<Decision, Reason> {
    let left = mask.topology().existing().without(&whole(&decision.0));
    match needs.fit(&left, mask.topology()) {
        true => Ok(decision),
        false => Err(Reason::TooWide),
    }
}

/// Combines the mask of a QMD's tenant with the ordered one. The words from `width` on are
/// undefined.
///
/// # Errors
///
/// [`Reason::MaskEmpty`] when the order leaves no TPC, [`Reason::MaskTooNarrow`] when it disables
/// TPCs from `width` on.
#[inline(always)]
pub(crate) fn combine(
    tenant: Option<[u32; MASK_WORDS]>,
    mask: &DisabledTpcs,
    width: u16,
) -> Result<([u32; MASK_WORDS], Applied), Reason> {
    let is_wider = mask.tpcs > width;
    if is_wider && beyond(mask, width) {
        return Err(match mask.is_full() {
            true => Reason::MaskEmpty,
            false => Reason::MaskTooNarrow,
        });
    }
    let tenant = tenant.unwrap_or([0; MASK_WORDS]);
    let mut united = mask.words;
    let mut left = u32::from(is_wider);
    let mut base = Wrapping(0u16);
    for ((word, more), present) in united.iter_mut().zip(tenant).zip(mask.present) {
        if base.0 < width {
            *word |= more & present;
            left |= present & !*word;
        }
        base += 32;
    }
    if left != 0 {
        return Ok((united, Applied::United));
    }
    if mask.is_full() {
        return Err(Reason::MaskEmpty);
    }
    Ok((mask.words, Applied::Overrode))
}

/// Returns whether a mask disables a TPC from `width` on.
fn beyond(mask: &DisabledTpcs, width: u16) -> bool {
    let mut left = Sat(width);
    mask.words.iter().any(|word| {
        let outside = *word & !low_bits(left.0);
        left -= 32;
        outside != 0
    })
}

/// Makes `qmd` disable what `mask` and its tenant disable.
///
/// # Errors
///
/// The [`Reason`] why nothing was written: [`Queue`](Reason::Queue), [`Null`](Reason::Null) and
/// [`Kind`](Reason::Kind) by what is launched, [`SubTasks`](Reason::SubTasks) where the version has
/// no mask, [`TooWide`](Reason::TooWide) where it would not fit, [`MaskEmpty`](Reason::MaskEmpty),
/// [`MaskTooNarrow`](Reason::MaskTooNarrow), and [`Fragmented`](Reason::Fragmented) when `qmd` is
/// too short.
#[inline]
pub fn apply(qmd: &mut [u32], version: Version, mask: &DisabledTpcs) -> Result<Applied, Reason> {
    // Fast path: the version of every launch on Hopper.
    match qmd.first_chunk_mut::<{ V04_00::WORDS }>() {
        Some(qmd) if version == Version::V04_00 => {
            let (words, applied) = decide_as::<V04_00>(qmd, mask)?;
            write_as::<V04_00>(qmd, &words);
            precedence::give(qmd, mask.precedence);
            Ok(applied)
        }
        _ => {
            let (words, applied) = decide_any(qmd, version, mask)?;
            write(qmd, version, Some(&words));
            Ok(applied)
        }
    }
}

/// Returns whether `qmd` disables at least what `mask` does, and has its place.
pub fn is_applied(qmd: &[u32], version: Version, mask: &DisabledTpcs) -> bool {
    let stored = match qmd.first_chunk::<{ V04_00::WORDS }>() {
        Some(qmd) if version == Version::V04_00 => read_as::<V04_00>(qmd),
        _ => read(qmd, version),
    };
    let disables = stored.is_some_and(|stored| {
        let mut both = stored.iter().zip(mask.words);
        both.all(|(stored, ordered)| stored & ordered == ordered)
    });
    disables && (version != Version::V04_00 || precedence::has(qmd, mask.precedence))
}

/// Returns the marks that [`apply`] would write, and how their mask came about.
///
/// # Errors
///
/// Those of [`apply`].
#[inline]
pub(crate) fn decide(
    qmd: &[u32],
    version: Version,
    mask: &DisabledTpcs,
) -> Result<(Marks, Applied), Reason> {
    let (words, applied) = match qmd.first_chunk::<{ V04_00::WORDS }>() {
        Some(qmd) if version == Version::V04_00 => decide_as::<V04_00>(qmd, mask)?,
        _ => decide_any(qmd, version, mask)?,
    };
    let precedence = mask.precedence;
    Ok((Marks { words, precedence }, applied))
}

#[cold]
#[inline(never)]
fn decide_any(qmd: &[u32], version: Version, mask: &DisabledTpcs) -> Result<Decision, Reason> {
    with_layout!(version, L => {
        match qmd.get(..L::WORDS) {
            Some(qmd) => decide_as::<L>(qmd, mask),
            None => Err(Reason::Fragmented),
        }
    })
}

/// Returns how many TPCs the mask of this version covers.
pub fn width(version: Version) -> u16 {
    with_layout!(version, L => width_of::<L>())
}
