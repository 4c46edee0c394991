// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Sums up what became of an owner's launches, as `compute.stat` shows it.

use crate::mask::TpcMask;
use crate::submit::stats::{Counters, Reason};
use crate::units::Sat;

/// The TPCs that an owner's last launch was granted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EffectiveTpcs {
    /// No launch was seen.
    #[default]
    Unknown,
    /// All TPCs of the GPU.
    All,
    /// These TPCs.
    Mask(TpcMask),
}

/// Sums over all launches since the owner was first seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launches {
    /// Launches that were found.
    pub launches: u64,
    /// Launches whose mask was written.
    pub rewritten: u64,
    /// Launches that were split.
    pub split: u64,
    /// Atoms of the split launches.
    pub atoms: u64,
    /// Launches, atoms and replays of graphs that have ended and whose duration was predicted.
    pub predicted: u64,
    /// Those of them that took over 50 us more or less.
    pub mispredicted: u64,
    /// Launches whose blocks fit into one wave of the whole GPU, but not of the TPCs granted to
    /// them.
    pub narrowed: u64,
    /// Launches and atoms that had more TPCs than a goal of others leaves, because their blocks may
    /// wait for each other.
    pub spared: u64,
    /// Launches that had fewer TPCs than granted because of `slip.tpc`.
    pub slip_narrowed: u64,
    /// Launches that had all of them although there was a slip: fewer were not good.
    pub slip_refused: u64,
    /// The TPC-time that the slip has saved, in nanoseconds of the whole GPU.
    pub slip_saved: u64,
    /// Times that the work in flight of a channel stalled while a limit was in force.
    pub stalled: u64,
    /// Launches that could not be split or moved, and segments that could not be replaced, for lack
    /// of room.
    pub crowded: u64,
    /// Channels that were stopped because of `channel.strict`.
    pub refused: u64,
    /// Launches, segments and orders passed through unchanged, indexed by [`Reason`].
    pub passed: [u64; Reason::COUNT],
}

impl Launches {
    /// No launches.
    pub const ZERO: Self = Self {
        launches: 0,
        rewritten: 0,
        split: 0,
        atoms: 0,
        predicted: 0,
        mispredicted: 0,
        narrowed: 0,
        spared: 0,
        slip_narrowed: 0,
        slip_refused: 0,
        slip_saved: 0,
        stalled: 0,
        crowded: 0,
        refused: 0,
        passed: [0; Reason::COUNT],
    };

    /// Converts the counters of the submission path. A call without a grid is not a launch, and a
    /// recognised graph replay is not a call of an unknown QMD.
    pub fn of(counters: &Counters) -> Self {
        let mut passed = counters.kept;
        for (count, reason) in passed.iter_mut().zip(Reason::ALL) {
            match reason {
                Reason::Null => *count = 0,
                Reason::NotHere => *count = (Sat(*count) - Sat(counters.replays)).0,
                _ => {}
            }
        }
        Self {
            launches: (Sat(counters.launches) - Sat(counters.nulls)).0,
            rewritten: counters.masked,
            split: counters.split,
            atoms: counters.atoms,
            predicted: counters.predicted,
            mispredicted: counters.mispredicted,
            narrowed: counters.narrowed,
            spared: counters.spared,
            slip_narrowed: counters.slip_narrowed,
            slip_refused: counters.slip_refused,
            slip_saved: counters.slip_saved,
            stalled: counters.stalled,
            crowded: counters.crowded,
            refused: counters.refused,
            passed,
        }
    }

    /// Returns how often something was passed through, for any reason.
    pub fn passed_total(&self) -> u64 {
        let counts = self.passed.iter().copied().map(Sat);
        counts.fold(Sat(0), |sum, count| sum + count).0
    }

    /// Returns the sum of both.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        self.combine(other, |a, b| a + b)
    }

    /// Returns the difference to `earlier`. A count that went back, which only a liar reports,
    /// gives 0.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        self.combine(earlier, |a, b| a - b)
    }

    fn combine(&self, other: &Self, with: fn(Sat<u64>, Sat<u64>) -> Sat<u64>) -> Self {
        let with = |a, b| with(Sat(a), Sat(b)).0;
        let mut passed = self.passed;
        for (count, more) in passed.iter_mut().zip(other.passed) {
            *count = with(*count, more);
        }
        Self {
            launches: with(self.launches, other.launches),
            rewritten: with(self.rewritten, other.rewritten),
            split: with(self.split, other.split),
            atoms: with(self.atoms, other.atoms),
            predicted: with(self.predicted, other.predicted),
            mispredicted: with(self.mispredicted, other.mispredicted),
            narrowed: with(self.narrowed, other.narrowed),
            spared: with(self.spared, other.spared),
            slip_narrowed: with(self.slip_narrowed, other.slip_narrowed),
            slip_refused: with(self.slip_refused, other.slip_refused),
            slip_saved: with(self.slip_saved, other.slip_saved),
            stalled: with(self.stalled, other.stalled),
            crowded: with(self.crowded, other.crowded),
            refused: with(self.refused, other.refused),
            passed,
        }
    }
}

impl Default for Launches {
    fn default() -> Self {
        Self::ZERO
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn companions_are_no_launches_and_known_replays_are_not_passed() {
        let mut counters = Counters::new();
        (counters.launches, counters.nulls, counters.replays) = (9, 4, 2);
        counters.keep(Reason::Null);
        for _ in 0..3 {
            counters.keep(Reason::NotHere);
        }
        counters.keep(Reason::Queue);
        let shown = Launches::of(&counters);
        assert_eq!((shown.launches, shown.passed_total()), (5, 2));
    }
}
