// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Defines the set of disabled TPCs that becomes a mask.

use crate::mask::TpcMask;
use crate::submit::limits::{MASK_WORDS, TPCS_MAX};
use crate::submit::precedence::Precedence;
use crate::topology::Topology;
use crate::units::Sat;
use core::num::Wrapping;

/// A set of disabled TPCs of a GPU whose TPCs are known, and the place of the launches that get it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DisabledTpcs {
    /// The disabled TPCs, a subset of `present`.
    pub(super) words: [u32; MASK_WORDS],
    /// The TPCs that exist.
    pub(super) present: [u32; MASK_WORDS],
    topology: Topology,
    /// The number above the highest existing TPC.
    pub(super) tpcs: u16,
    existing: u16,
    /// Number of disabled TPCs, kept because each launch needs it and masks rarely change.
    disabled: u16,
    /// The place among launches that wait; `None` leaves what the tenant wrote.
    pub(super) precedence: Option<Precedence>,
}

/// A TPC, or a number of TPCs, that a mask cannot hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfRange;

/// Returns the word and the bit of a TPC.
#[inline]
fn place(tpc: u16) -> (usize, u32) {
    (usize::from(tpc >> 5), 1 << (tpc & 31))
}

impl DisabledTpcs {
    /// Creates a mask that disables nothing, on a GPU whose TPCs have all numbers below `tpcs`.
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

    /// Creates a mask that disables nothing.
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
            precedence: None,
        })
    }

    /// Creates a mask that disables all TPCs with numbers below `tpcs` except `kept`.
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

    /// Creates a mask that disables all TPCs except `allowed`.
    ///
    /// # Errors
    ///
    /// [`OutOfRange`] as [`none_of`](Self::none_of), and when no allowed TPC exists: such a launch
    /// would never start.
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

    /// Returns the mask for launches of a place.
    #[must_use]
    pub fn with_precedence(self, precedence: Option<Precedence>) -> Self {
        Self { precedence, ..self }
    }

    /// Returns the place of the launches.
    pub fn precedence(&self) -> Option<Precedence> {
        self.precedence
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

    /// Returns whether a TPC is disabled.
    pub fn is_disabled(&self, tpc: u16) -> bool {
        let (word, bit) = place(tpc);
        self.words.get(word).is_some_and(|word| word & bit != 0)
    }

    /// Returns the number above the highest TPC.
    pub fn tpcs(&self) -> u16 {
        self.tpcs
    }

    /// Returns the number of disabled TPCs.
    #[inline]
    pub fn disabled(&self) -> u16 {
        self.disabled
    }

    /// Returns the number of enabled TPCs.
    pub fn enabled(&self) -> u16 {
        (Sat(self.existing) - Sat(self.disabled())).0
    }

    /// Returns the GPU's TPCs.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Returns the disabled TPCs, the lowest in the lowest bit of the first word.
    pub fn words(&self) -> &[u32; MASK_WORDS] {
        &self.words
    }

    /// Returns the TPCs that either disables. Bits of `other` without a TPC are dropped.
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

    /// Returns whether no TPC is left.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.words == self.present
    }
}

/// Splits a set into words of 32 bits.
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

/// Joins the words of [`halves`].
pub(super) fn whole(halves: &[u32; MASK_WORDS]) -> TpcMask {
    let mut words = [0; MASK_WORDS / 2];
    for (word, pair) in words.iter_mut().zip(halves.chunks_exact(2)) {
        if let [low, high] = pair {
            *word = u64::from(*low) | u64::from(*high) << 32;
        }
    }
    TpcMask::from_words(words)
}

/// Returns the number of set bits.
fn count(words: &[u32; MASK_WORDS]) -> u16 {
    let ones: Wrapping<u32> = words.iter().map(|word| Wrapping(word.count_ones())).sum();
    // CAST: at most 256.
    ones.0 as u16
}
