// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Holds the set of disabled TPCs that a mask is made of.

use crate::mask::TpcMask;
use crate::submit::limits::{MASK_WORDS, TPCS_MAX};
use crate::topology::Topology;
use crate::units::Sat;
use core::num::Wrapping;

/// A set of disabled TPCs of a GPU whose TPCs are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DisabledTpcs {
    /// The TPCs that are disabled; no bit that is not `present`.
    pub(super) words: [u32; MASK_WORDS],
    /// The TPCs that exist.
    pub(super) present: [u32; MASK_WORDS],
    topology: Topology,
    /// Above the highest that exists.
    pub(super) tpcs: u16,
    existing: u16,
    /// How many are disabled: a launch may ask more often than a mask changes.
    disabled: u16,
}

/// A TPC or a number of TPCs that a mask cannot hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfRange;

/// The word and the bit of a TPC.
#[inline]
fn place(tpc: u16) -> (usize, u32) {
    (usize::from(tpc >> 5), 1 << (tpc & 31))
}

impl DisabledTpcs {
    /// A mask that disables nothing on a GPU whose TPCs have numbers below `tpcs`.
    ///
    /// # Errors
    ///
    /// [`OutOfRange`] for no TPC and for more than [`TPCS_MAX`].
    pub fn none(tpcs: u16) -> Result<Self, OutOfRange> {
        if tpcs == 0 || tpcs > TPCS_MAX {
            return Err(OutOfRange);
        }
        Self::none_of(&Topology::together(TpcMask::first(usize::from(tpcs))))
    }

    /// A mask that disables nothing on a GPU.
    ///
    /// # Errors
    ///
    /// [`OutOfRange`] where no TPC is known.
    pub fn none_of(topology: &Topology) -> Result<Self, OutOfRange> {
        let last = topology.existing().last().ok_or(OutOfRange)?;
        let present = halves(topology.existing());
        Ok(Self {
            words: [0; MASK_WORDS],
            present,
            topology: *topology,
            tpcs: u16::try_from((Sat(last) + Sat(1)).0).map_err(|_| OutOfRange)?,
            existing: count(&present),
            disabled: 0,
        })
    }

    /// A mask that disables all TPCs with numbers below `tpcs` but `kept`.
    ///
    /// # Errors
    ///
    /// [`OutOfRange`] as [`none`](Self::none), and for a TPC that the GPU does not have.
    pub fn keep_only(tpcs: u16, kept: impl IntoIterator<Item = u16>) -> Result<Self, OutOfRange> {
        let mut mask = Self::none(tpcs)?;
        for tpc in 0..tpcs {
            mask.disable(tpc)?;
        }
        for tpc in kept {
            mask.enable(tpc)?;
        }
        Ok(mask)
    }

    /// What a tenant may not use that may use `allowed`.
    ///
    /// # Errors
    ///
    /// [`OutOfRange`] as [`none_of`](Self::none_of), and when no allowed TPC exists: such a launch would never start.
    pub fn outside(topology: &Topology, allowed: &TpcMask) -> Result<Self, OutOfRange> {
        let mut mask = Self::none_of(topology)?;
        let disabled = topology.existing().without(allowed);
        if disabled == *topology.existing() {
            return Err(OutOfRange);
        }
        mask.words = halves(&disabled);
        mask.disabled = count(&mask.words);
        Ok(mask)
    }

    /// Disables one TPC.
    ///
    /// # Errors
    ///
    /// [`OutOfRange`] for one that the GPU does not have.
    pub fn disable(&mut self, tpc: u16) -> Result<(), OutOfRange> {
        let (word, bit) = self.checked_place(tpc)?;
        *self.words.get_mut(word).ok_or(OutOfRange)? |= bit;
        self.disabled = count(&self.words);
        Ok(())
    }

    /// Enables one TPC.
    ///
    /// # Errors
    ///
    /// [`OutOfRange`] for one that the GPU does not have.
    pub fn enable(&mut self, tpc: u16) -> Result<(), OutOfRange> {
        let (word, bit) = self.checked_place(tpc)?;
        *self.words.get_mut(word).ok_or(OutOfRange)? &= !bit;
        self.disabled = count(&self.words);
        Ok(())
    }

    fn checked_place(&self, tpc: u16) -> Result<(usize, u32), OutOfRange> {
        let (word, bit) = place(tpc);
        let exists = self.present.get(word).is_some_and(|word| word & bit != 0);
        exists.then_some((word, bit)).ok_or(OutOfRange)
    }

    /// Whether a TPC is disabled.
    pub fn is_disabled(&self, tpc: u16) -> bool {
        let (word, bit) = place(tpc);
        self.words.get(word).is_some_and(|word| word & bit != 0)
    }

    /// The number above the highest TPC.
    pub fn tpcs(&self) -> u16 {
        self.tpcs
    }

    /// How many are disabled.
    #[inline]
    pub fn disabled(&self) -> u16 {
        self.disabled
    }

    /// How many are left.
    pub fn enabled(&self) -> u16 {
        (Sat(self.existing) - Sat(self.disabled())).0
    }

    /// The GPU's TPCs.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// The bits, lowest TPC first.
    pub fn words(&self) -> &[u32; MASK_WORDS] {
        &self.words
    }

    /// What both disable together; the number of TPCs is that of `self`, and bits above it are dropped.
    #[inline]
    #[must_use]
    pub fn union(&self, other: &[u32; MASK_WORDS]) -> Self {
        let mut mask = *self;
        for ((word, more), present) in mask.words.iter_mut().zip(other).zip(&self.present) {
            *word |= more & present;
        }
        mask.disabled = count(&mask.words);
        mask
    }

    /// Whether no TPC is left.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.words == self.present
    }
}

/// A set in words of 32 bits.
fn halves(set: &TpcMask) -> [u32; MASK_WORDS] {
    let mut halves = [0; MASK_WORDS];
    for (pair, word) in halves.chunks_exact_mut(2).zip(set.words()) {
        if let [low, high] = pair {
            // CAST: the two halves of a word.
            (*low, *high) = (*word as u32, (word >> 32) as u32);
        }
    }
    halves
}

/// The set that [`halves`] made words of 32 bits from.
pub(super) fn whole(halves: &[u32; MASK_WORDS]) -> TpcMask {
    let mut words = [0; MASK_WORDS / 2];
    for (word, pair) in words.iter_mut().zip(halves.chunks_exact(2)) {
        if let [low, high] = pair {
            *word = u64::from(*low) | u64::from(*high) << 32;
        }
    }
    TpcMask::from_words(words)
}

/// How many bits are set.
fn count(words: &[u32; MASK_WORDS]) -> u16 {
    let ones: Wrapping<u32> = words.iter().map(|word| Wrapping(word.count_ones())).sum();
    // CAST: at most 256.
    ones.0 as u16
}
