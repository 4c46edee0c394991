// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Counts what was done, and what was left alone for which [`Reason`].

use super::mask::Applied;
use super::reason::Reason;
use crate::launches::Launches;
use crate::units::Sat;
use core::num::Wrapping;

/// Counts over all segments of their owner. Every number only grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counters {
    /// What is shown. Its launches are the calls that schedule a QMD.
    pub sums: Launches,
    /// Segments scanned.
    pub segments: u64,
    /// Words of these segments.
    pub words: u64,
    /// Calls without a grid, where the caller counts them.
    pub nulls: u64,
    /// Masked launches where the tenant's mask and the ordered one left no TPC, so that the
    /// tenant's was replaced.
    pub overrode: u64,
    /// Segments whose copies were cut into pieces, where the caller cuts them.
    pub cut: u64,
    /// Recognised graph replays.
    pub replays: u64,
}

/// Adds to a counter, modulo 2^64.
#[inline]
pub(crate) fn add(counter: &mut u64, things: u64) {
    *counter = (Wrapping(*counter) + Wrapping(things)).0;
}

impl Counters {
    /// Creates counters of 0.
    pub const fn new() -> Self {
        Self {
            sums: Launches::ZERO,
            segments: 0,
            words: 0,
            nulls: 0,
            overrode: 0,
            cut: 0,
            replays: 0,
        }
    }

    /// Counts a segment that is scanned.
    #[inline]
    pub(crate) fn scan_segment(&mut self, words: u32) {
        add(&mut self.segments, 1);
        add(&mut self.words, u64::from(words));
    }

    /// Counts a call that schedules a QMD, and why it is left alone if it is.
    #[inline]
    pub(crate) fn find_launch(&mut self, reason: Option<Reason>) {
        add(&mut self.sums.launches, 1);
        if let Some(reason) = reason {
            self.keep(reason);
        }
    }

    /// Counts what became of the mask that was ordered for a launch.
    #[inline]
    pub(crate) fn mask(&mut self, outcome: Result<Applied, Reason>) {
        match outcome {
            Ok(applied) => {
                add(&mut self.sums.rewritten, 1);
                add(&mut self.overrode, u64::from(applied == Applied::Overrode));
            }
            Err(reason) => self.keep(reason),
        }
    }

    /// Counts a launch that was split.
    #[inline]
    pub(crate) fn split(&mut self, atoms: u32) {
        add(&mut self.sums.split, 1);
        add(&mut self.sums.atoms, u64::from(atoms));
    }

    /// Counts a recognised replay; `is_covered` says whether all of its nodes obey the mask.
    pub(crate) fn replay(&mut self, is_covered: bool) {
        add(&mut self.replays, 1);
        if !is_covered {
            self.keep(Reason::Replay);
        }
    }

    /// Counts one thing that was passed through.
    #[inline]
    pub fn keep(&mut self, reason: Reason) {
        self.keep_all(reason, 1);
    }

    /// Counts several things that were passed through for the same reason.
    #[inline]
    pub(crate) fn keep_all(&mut self, reason: Reason, things: u64) {
        // CAST: a fieldless enum's discriminant.
        if let Some(count) = self.sums.passed.get_mut(reason as usize) {
            add(count, things);
        }
    }

    /// Returns how often something was passed through for `reason`.
    pub fn kept(&self, reason: Reason) -> u64 {
        // CAST: a fieldless enum's discriminant.
        self.sums.passed.get(reason as usize).copied().unwrap_or(0)
    }

    /// Returns how often a segment did what no look at its launches shows: it called a macro, or
    /// made addresses relative.
    pub(crate) fn unseen(&self) -> u64 {
        let all = [Reason::Macro, Reason::MacroFill, Reason::Virtualized];
        all.map(|reason| Wrapping(self.kept(reason)))
            .into_iter()
            .sum::<Wrapping<u64>>()
            .0
    }

    /// Returns the sums as they are shown. A call without a grid is not a launch, and a recognised
    /// graph replay is not a call of an unknown QMD.
    pub fn shown(&self) -> Launches {
        let mut shown = self.sums;
        shown.launches = (Sat(shown.launches) - Sat(self.nulls)).0;
        for (count, reason) in shown.passed.iter_mut().zip(Reason::ALL) {
            match reason {
                Reason::Null => *count = 0,
                Reason::NotHere => *count = (Sat(*count) - Sat(self.replays)).0,
                _ => {}
            }
        }
        shown
    }

    /// Returns how often something was passed through, for any reason.
    pub fn kept_total(&self) -> u64 {
        self.sums
            .passed
            .iter()
            .copied()
            .map(Wrapping)
            .sum::<Wrapping<u64>>()
            .0
    }
}

impl Default for Counters {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn companions_are_no_launches_and_known_replays_are_not_passed() {
        let mut counters = Counters::new();
        (counters.sums.launches, counters.nulls, counters.replays) = (9, 4, 2);
        counters.keep(Reason::Null);
        for _ in 0..3 {
            counters.keep(Reason::NotHere);
        }
        counters.keep(Reason::Queue);
        let shown = counters.shown();
        assert_eq!((shown.launches, shown.passed_total()), (5, 2));
    }
}
