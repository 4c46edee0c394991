// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Determines which TPCs a GPU has, and which of them lie in one GPC.
//!
//! Terminology
//!   bit          number of a TPC in a QMD's mask
//!   gpcs, tpcs_per_gpc  size of the chip before floorsweeping
//!   virtual GPC  number that the resource manager gives a GPC (`virtualGpcId`), below `gpcs`; a
//!                higher one is a single TPC outside of these GPCs
//!
//! `NV2080_CTRL_CMD_GR_GET_GLOBAL_SM_ORDER` returns an entry for each SM, to any client. The entry
//! gives the bit of the SM's TPC:
//!
//! ```text
//! virtual GPC < gpcs:  bit = virtual GPC * tpcs_per_gpc + migratable TPC
//! else:                bit = gpcs * tpcs_per_gpc + (virtual GPC - gpcs)
//! ```
//!
//! Measured on four H100s (`tests/fixtures/tpcs`): each of the 66 bits enables the two SMs of this
//! rule, no other bit enables an SM, and a cluster fits only within one virtual GPC. The rule was
//! not measured on chips other than Hopper, so [`Topology::from_sm_order`] refuses them.

use crate::limits::TPCS_MAX;
use crate::mask::TpcMask;
use core::cmp::Reverse;

/// `NV2080_CTRL_MC_ARCH_INFO_ARCHITECTURE_GH100`.
const HOPPER: u32 = 0x180;

/// The most GPCs of a chip.
const GPCS_MAX: usize = 32;

/// TPCs that hold the largest cluster that every GPU can run: 8 blocks, an SM for each (CUDA C++
/// Programming Guide, "Thread Block Clusters").
pub const CLUSTER: u32 = 4;

/// Layout of a chip before floorsweeping, as the resource manager reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chip {
    /// Architecture: `NV2080_CTRL_MC_GET_ARCH_INFO`.
    pub architecture: u32,
    /// `NV0080_CTRL_GR_INFO_INDEX_LITTER_NUM_GPCS`.
    pub gpcs: u16,
    /// `NV0080_CTRL_GR_INFO_INDEX_LITTER_NUM_TPC_PER_GPC`.
    pub tpcs_per_gpc: u16,
}

/// One SM, by the numbers of the resource manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sm {
    /// `virtualGpcId`.
    pub virtual_gpc: u16,
    /// `migratableTpcId`.
    pub migratable_tpc: u16,
}

/// The TPCs of one GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Topology {
    existing: TpcMask,
    /// GPCs with `tpcs_per_gpc` bits each, from bit 0 on. Each higher bit is a GPC of its own.
    gpcs: u16,
    tpcs_per_gpc: u16,
}

/// TPCs that hold a cluster of 8, 4 and 2 blocks, an SM for each.
const UNITS: [u32; 3] = [CLUSTER, 2, 1];

/// The TPCs of a GPC while some of them are chosen.
#[derive(Clone, Copy, Default)]
struct Part {
    /// Those that are chosen, and those of them that were not held before.
    has: u32,
    taken: u32,
    /// Those that may be chosen.
    left: u32,
}

impl Part {
    fn all(&self) -> u32 {
        self.has.saturating_add(self.left)
    }

    /// Returns the largest unit of which fewer are left once `count` TPCs are taken.
    fn breaks(&self, count: u32) -> u32 {
        let after = self.left.saturating_sub(count);
        let fewer = |unit: &u32| after.checked_div(*unit) < self.left.checked_div(*unit);
        UNITS.into_iter().find(fewer).unwrap_or(0)
    }

    /// Returns the order in which `count` TPCs are taken of GPCs, least first.
    fn cost(&self, count: u32) -> (u32, u32, Reverse<u32>) {
        (self.breaks(count), self.taken, Reverse(self.left))
    }

    /// Chooses one more if one is `missing`. Returns whether it did.
    fn take(&mut self, missing: &mut u32) -> bool {
        let takes = self.left > 0 && *missing > 0;
        if takes {
            self.has = self.has.saturating_add(1);
            self.taken = self.taken.saturating_add(1);
            self.left = self.left.saturating_sub(1);
            *missing = missing.saturating_sub(1);
        }
        takes
    }
}

impl Topology {
    /// A GPU whose TPCs are unknown.
    pub const UNKNOWN: Self = Self::apart(TpcMask::EMPTY);

    /// Creates a topology in which no two TPCs are known to share a GPC.
    pub const fn apart(existing: TpcMask) -> Self {
        Self {
            existing,
            gpcs: 0,
            tpcs_per_gpc: 0,
        }
    }

    /// Creates a topology with all TPCs in one GPC, as in a model without GPCs.
    pub const fn together(existing: TpcMask) -> Self {
        Self {
            existing,
            gpcs: 1,
            // CAST: a small number.
            tpcs_per_gpc: TPCS_MAX as u16,
        }
    }

    /// Builds the topology from the resource manager's entry for each SM.
    ///
    /// Returns `None` for a chip other than Hopper or of more than [`GPCS_MAX`] GPCs, for no SM,
    /// for a number out of range, and for TPCs with different numbers of SMs, as where two TPCs
    /// get one bit.
    pub fn from_sm_order(chip: Chip, sms: impl Iterator<Item = Sm>) -> Option<Self> {
        let bits = chip.gpcs.checked_mul(chip.tpcs_per_gpc)?;
        if chip.architecture != HOPPER || bits == 0 || usize::from(chip.gpcs) > GPCS_MAX {
            return None;
        }
        let mut sms_of = [0u8; TPCS_MAX];
        let mut existing = TpcMask::EMPTY;
        for sm in sms {
            let bit = chip.bit(sm)?;
            let count = sms_of.get_mut(bit)?;
            *count = count.checked_add(1)?;
            existing.set(bit);
        }
        let mut used = sms_of.iter().filter(|count| **count > 0);
        let first = *used.next()?;
        used.all(|count| *count == first).then_some(Self {
            existing,
            gpcs: chip.gpcs,
            tpcs_per_gpc: chip.tpcs_per_gpc,
        })
    }

    /// Returns the TPCs that exist.
    pub const fn existing(&self) -> &TpcMask {
        &self.existing
    }

    /// Returns whether any TPC is known.
    pub fn is_known(&self) -> bool {
        !self.existing.is_empty()
    }

    /// Packs the topology into words, for a shared page.
    pub fn to_words(&self) -> [u64; TPCS_MAX / 64 + 1] {
        let [a, b, c, d] = *self.existing.words();
        let gpcs = u64::from(self.gpcs) << 16 | u64::from(self.tpcs_per_gpc);
        [a, b, c, d, gpcs]
    }

    /// Unpacks [`to_words`](Self::to_words). All words are valid: another process writes them.
    pub fn from_words([a, b, c, d, gpcs]: [u64; TPCS_MAX / 64 + 1]) -> Self {
        Self {
            existing: TpcMask::from_words([a, b, c, d]),
            // CAST: 16 bits were stored, and both bounds are small.
            gpcs: ((gpcs >> 16) as u16).min(GPCS_MAX as u16),
            tpcs_per_gpc: (gpcs as u16).min(TPCS_MAX as u16),
        }
    }

    /// Returns the TPCs of `mask` that exist in each GPC.
    fn gpcs_of(&self, mask: &TpcMask) -> impl Iterator<Item = TpcMask> + Clone {
        let (mask, size) = (mask.and(&self.existing), self.tpcs_per_gpc);
        (0..self.gpcs).map(move |gpc| {
            let from = usize::from(gpc) * usize::from(size);
            mask.between(from, from + usize::from(size))
        })
    }

    /// Returns the TPCs of `mask` that exist and lie in no GPC.
    fn apart_of(&self, mask: &TpcMask) -> TpcMask {
        let bits = usize::from(self.gpcs) * usize::from(self.tpcs_per_gpc);
        mask.and(&self.existing).between(bits, TPCS_MAX)
    }

    /// Returns how many TPCs of `mask` exist in each GPC.
    pub fn tpcs_of_gpcs(&self, mask: &TpcMask) -> impl Iterator<Item = u32> + Clone {
        self.gpcs_of(mask).map(|tpcs| tpcs.count())
    }

    /// Returns how many TPCs of `mask` exist and lie in no GPC.
    pub fn tpcs_apart(&self, mask: &TpcMask) -> u32 {
        self.apart_of(mask).count()
    }

    /// Returns `count` of the TPCs of `mask` that exist, or all if there are fewer. They are spread
    /// over the GPCs, for their bandwidth, but [`CLUSTER`] of them share a GPC if any GPC has as
    /// many. A larger `count` adds TPCs to those of a smaller one.
    pub fn spread(&self, mask: &TpcMask, count: u32) -> TpcMask {
        self.spread_beside(&TpcMask::EMPTY, mask, count)
    }

    /// Returns `count` of the TPCs of `mask` that exist, or all if there are fewer. They hold as
    /// many clusters of 2, 4 and 8 blocks as any choice could, and break up as few of those that
    /// the others hold. They are spread over the GPCs otherwise, for their bandwidth.
    ///
    /// ```text
    /// for unit in 4, 2, 1:
    ///     while `unit` are missing and a GPC has as many left:
    ///         take `unit` of the GPC where that breaks up the smallest unit;
    ///         of equals, of that with the fewest taken; then, with the most left
    /// single TPCs of no GPC come before those that break up anything
    /// ```
    ///
    /// Units divide each other. So GPCs hold `sum(left / unit)` of each, taking a larger unit takes
    /// no more smaller ones than it consists of, and the first choice is the best for each.
    pub fn pack(&self, mask: &TpcMask, count: u32) -> TpcMask {
        let mask = mask.and(&self.existing);
        let mut parts = [Part::default(); GPCS_MAX];
        for (part, free) in parts.iter_mut().zip(self.gpcs_of(&mask)) {
            part.left = free.count();
        }
        let mut missing = count;
        for unit in UNITS {
            while missing >= unit {
                let fits = parts.iter_mut().filter(|part| part.left >= unit);
                let best = fits.min_by_key(|part| part.cost(unit));
                match best.filter(|part| unit > 1 || part.breaks(1) == 1) {
                    Some(part) => (0..unit).for_each(|_| _ = part.take(&mut missing)),
                    None => break,
                }
            }
        }
        // A TPC of no GPC breaks up nothing.
        let apart = self.apart_of(&mask).lowest(missing);
        missing = missing.saturating_sub(apart.count());
        while let Some(part) = {
            let left = parts.iter_mut().filter(|part| part.left > 0);
            left.min_by_key(|part| part.cost(1))
        } {
            if !part.take(&mut missing) {
                break;
            }
        }
        let gpcs = self.gpcs_of(&mask).zip(&parts);
        gpcs.fold(apart, |all, (gpc, part)| all.or(&gpc.lowest(part.taken)))
    }

    /// Returns `count` TPCs of `mask` that spread those `held` further.
    ///
    /// ```text
    /// chosen = held, and up to CLUSTER of the GPC with most TPCs
    /// for turn in 1..: one more of each GPC with fewer than `turn` in `chosen`;
    ///                  at the end of the first turn, the TPCs of no GPC
    /// ```
    pub fn spread_beside(&self, held: &TpcMask, mask: &TpcMask, count: u32) -> TpcMask {
        let mask = mask.and(&self.existing).without(held);
        let mut parts = [Part::default(); GPCS_MAX];
        let gpcs = self.gpcs_of(held).zip(self.gpcs_of(&mask));
        for (part, (held, free)) in parts.iter_mut().zip(gpcs) {
            (part.has, part.left) = (held.count(), free.count());
        }
        let mut missing = count;
        // Of equals the first.
        let widest = parts.iter_mut().rev().max_by_key(|part| part.all());
        if let Some(part) = widest {
            while part.has < CLUSTER && part.take(&mut missing) {}
        }
        let mut apart = TpcMask::EMPTY;
        for turn in 1..=u32::from(self.tpcs_per_gpc).max(1) {
            for part in parts.iter_mut().filter(|part| part.has < turn) {
                part.take(&mut missing);
            }
            if turn == 1 {
                apart = self.apart_of(&mask).lowest(missing);
                missing = missing.saturating_sub(apart.count());
            }
            if missing == 0 {
                break;
            }
        }
        let gpcs = self.gpcs_of(&mask).zip(&parts);
        gpcs.fold(apart, |all, (gpc, part)| all.or(&gpc.lowest(part.taken)))
    }

    /// Returns whether `count` TPCs of `mask` lie in one GPC.
    pub fn has_together(&self, mask: &TpcMask, count: u32) -> bool {
        if count <= 1 {
            return count == 0 || !mask.and(&self.existing).is_empty();
        }
        self.tpcs_of_gpcs(mask).any(|tpcs| tpcs >= count)
    }
}

impl Chip {
    /// Returns the bit of the TPC that an SM belongs to.
    fn bit(&self, sm: Sm) -> Option<usize> {
        let (gpcs, size) = (usize::from(self.gpcs), usize::from(self.tpcs_per_gpc));
        let (gpc, tpc) = (usize::from(sm.virtual_gpc), usize::from(sm.migratable_tpc));
        match gpc < gpcs {
            true => (tpc < size).then_some(gpc * size + tpc),
            false => Some(gpcs * size + (gpc - gpcs)),
        }
    }
}

#[cfg(test)]
mod tests;
