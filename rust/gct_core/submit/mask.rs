// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Masks of disabled TPCs, as a QMD holds them.
//!
//! A set bit disables a TPC. The interface and its policies deal in the opposite, the set of TPCs that may be used
//! ([`mask::TpcMask`](crate::mask::TpcMask)); [`DisabledTpcs::outside`] turns one into the other.
//!
//! The order of the bits is the work distributor's, not that of `%smid`, and it has holes: 66 TPCs have bits between 0 and
//! 83. A launch whose mask leaves only holes never starts, so a mask is made for a [`Topology`], which says what exists.
//! Versions 2 and 3 have 64 bits that always count, Ada 72; Hopper has 128 and a bit that makes them count; Blackwell has 256.

mod disabled;

pub use disabled::{DisabledTpcs, OutOfRange};

use super::launch::{self, Kind};
use super::limits::MASK_WORDS;
use super::occupancy;
use super::qmd::v04_00::V04_00;
use super::qmd::{with_layout, Layout, Version};
use super::stats::Reason;
use crate::units::Sat;
use core::num::Wrapping;
use disabled::whole;

/// The lowest `count` bits of a word, all of them for 32 and more.
#[inline]
fn low_bits(count: u16) -> u32 {
    match count {
        0 => 0,
        1..=31 => !(u32::MAX << count),
        _ => u32::MAX,
    }
}

/// What [`apply`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    /// The QMD disables what the tenant and the order disable.
    United,
    /// That would have left nothing, so it disables what the order disables.
    Overrode,
}

/// The bits of the mask that `qmd` holds, whether or not they count.
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

/// How many TPCs the version's mask can name.
fn width_of<L: Layout>() -> u16 {
    let widths = L::MASK.iter().map(|field| Wrapping(field.width()));
    widths.sum::<Wrapping<u16>>().0
}

/// The bits that disable a TPC in `qmd`, as the tenant or a mask before left them; `None` when none count.
pub fn read(qmd: &[u32], version: Version) -> Option<[u32; MASK_WORDS]> {
    with_layout!(version, L => read_as::<L>(qmd.get(..L::WORDS)?))
}

/// Stores a mask as it is, or takes it away with `None`.
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

/// What a QMD is to disable, and why.
pub(crate) type Decision = ([u32; MASK_WORDS], Applied);

/// What `qmd` is to disable so that `mask` and its tenant are obeyed.
#[inline(always)]
fn decide_as<L: Layout>(qmd: &[u32], mask: &DisabledTpcs) -> Result<Decision, Reason> {
    match launch::kind::<L>(qmd) {
        Kind::Grid => combine(read_as::<L>(qmd), mask, width_of::<L>()),
        Kind::Queue => Err(Reason::Queue),
        Kind::Null => Err(Reason::Null),
        Kind::Undocumented(_) => Err(Reason::Kind),
        Kind::Cluster | Kind::Cooperative | Kind::CooperativeCluster => {
            let decision = combine(read_as::<L>(qmd), mask, width_of::<L>())?;
            // What the tenant itself disables leaves less.
            let left = mask.topology().existing().without(&whole(&decision.0));
            if !occupancy::is_resident::<L>(qmd, &left, mask.topology()) {
                return Err(Reason::TooWide);
            }
            Ok(decision)
        }
    }
}

/// What a QMD must disable when its tenant disabled `tenant` and `mask` is ordered. Of the words from `width` on nothing is
/// said.
///
/// # Errors
///
/// [`Reason::MaskEmpty`] when the order leaves no TPC, [`Reason::MaskTooNarrow`] when it names TPCs from `width` on.
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

/// Whether a mask disables a TPC from `width` on.
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
/// The [`Reason`] why nothing was written: [`Queue`](Reason::Queue), [`Null`](Reason::Null) and [`Kind`](Reason::Kind)
/// by what is launched, [`TooWide`](Reason::TooWide) where it would not fit, [`MaskEmpty`](Reason::MaskEmpty),
/// [`MaskTooNarrow`](Reason::MaskTooNarrow), and [`Fragmented`](Reason::Fragmented) when `qmd` is too short.
#[inline]
pub fn apply(qmd: &mut [u32], version: Version, mask: &DisabledTpcs) -> Result<Applied, Reason> {
    // What every launch on Hopper has, before the general way.
    match qmd.first_chunk_mut::<{ V04_00::WORDS }>() {
        Some(qmd) if version == Version::V04_00 => {
            let (words, applied) = decide_as::<V04_00>(qmd, mask)?;
            write_as::<V04_00>(qmd, &words);
            Ok(applied)
        }
        _ => {
            let (words, applied) = decide_any(qmd, version, mask)?;
            write(qmd, version, Some(&words));
            Ok(applied)
        }
    }
}

/// What [`apply`] would make `qmd` disable.
///
/// # Errors
///
/// Those of [`apply`].
#[inline]
pub(crate) fn decide(
    qmd: &[u32],
    version: Version,
    mask: &DisabledTpcs,
) -> Result<Decision, Reason> {
    match qmd.first_chunk::<{ V04_00::WORDS }>() {
        Some(qmd) if version == Version::V04_00 => decide_as::<V04_00>(qmd, mask),
        _ => decide_any(qmd, version, mask),
    }
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

/// Stores the mask of a QMD of the version that nearly all have.
#[inline(always)]
pub(crate) fn write_v04_00(qmd: &mut [u32; V04_00::WORDS], words: &[u32; MASK_WORDS]) {
    write_as::<V04_00>(qmd, words);
}

/// How many TPCs the mask of this version can name.
pub fn width(version: Version) -> u16 {
    with_layout!(version, L => width_of::<L>())
}
