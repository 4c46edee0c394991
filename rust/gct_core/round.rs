// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Divides an owner's time slice among its channel groups, so that all of them together have it once in a round.
//!
//! Terminology
//!   round     one pass of a runlist: each channel group with work on it has its time slice once
//!   share     what one process has of the time slice of its group
//!   divisor   by how much a time slice is divided; it follows a count in steps
//!
//! ```text
//! share = min(the process's compute.timeslice, the group's / divisor(processes with channel groups on the GPU))
//! slice = share / divisor(channel groups that the process has in the round)
//! ```
//!
//! Processes come first, so that one that makes a thousand channel groups divides its own share and nobody else's.
//!
//! A channel group without work counts, too. Nobody but the GPU knows which ones have work: a tenant submits without
//! an ioctl.
//!
//! No part is shorter than [`SLICE_MIN`]. With less a channel group is taken off the GPU before its context is loaded,
//! and never gets anything done. Nor would the round be much shorter: the change from one channel group to the next
//! takes some 160 us on an H100 whatever the slice.

use crate::limits::TIMESLICE_PART_US_MIN;
use crate::rmapi::nv;
use crate::units::Us;

/// The shortest slice that a division leaves, unless the whole is shorter.
pub const SLICE_MIN: Us = Us(TIMESLICE_PART_US_MIN);

/// The channel groups that take turns on one runlist, as far as their engine tells.
///
/// Engines of unlike rounds never share a runlist on Ampere and newer GPUs. Engines of one round may have a runlist each;
/// then their slices are shorter than they need be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Round(u8);

impl Round {
    /// How many there are.
    pub const COUNT: usize = 10;

    /// Compute and graphics.
    pub const GRAPHICS: Self = Self(0);

    /// Looks up an engine, `NV2080_ENGINE_TYPE_*`. Copy engines 0 and 1 may share the runlist of graphics (GRCE). From
    /// `COPY2` to `COPY9` each has a round; video and whatever newer GPUs have share the last.
    pub fn of_engine(engine: u64) -> Self {
        let engine = u32::try_from(engine).unwrap_or(u32::MAX);
        let copy = engine.clamp(
            nv::NV2080_ENGINE_TYPE_COPY1,
            nv::NV2080_ENGINE_TYPE_COPY9 + 1,
        );
        let round = copy.saturating_sub(nv::NV2080_ENGINE_TYPE_COPY1);
        Self(u8::try_from(round).unwrap_or(0))
    }

    /// Its place in an array of all.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// By how much a time slice is divided, which follows a count in steps: 1, 2, 3, 4, 6, 8, 12, 16 and so on.
///
/// It grows with the count and shrinks once the count is half of it. So it changes a few times while many come, and
/// not at all while one comes and goes among several: each change has every sharer's channel groups told again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Divisor {
    count: u32,
    by: u32,
}

impl Default for Divisor {
    fn default() -> Self {
        Self::ONE
    }
}

impl Divisor {
    /// Nobody shares.
    pub const ONE: Self = Self { count: 0, by: 1 };

    /// How many share.
    pub const fn count(&self) -> u32 {
        self.count
    }

    /// By how much is divided: at least 1 and at least the count.
    pub const fn by(&self) -> u32 {
        self.by
    }

    /// So many share now.
    pub const fn recount(&mut self, count: u32) {
        self.count = count;
        if count > self.by || count <= self.by / 2 {
            self.by = step(count);
        }
    }

    /// One more shares.
    pub const fn add(&mut self) {
        self.recount(self.count.saturating_add(1));
    }

    /// One fewer shares.
    pub const fn take(&mut self) {
        self.recount(self.count.saturating_sub(1));
    }

    /// Its part of a time slice.
    pub fn part(&self, whole: Us) -> Us {
        let part = whole.get().checked_div(u64::from(self.by));
        Us(part.unwrap_or(0)).max(SLICE_MIN).min(whole)
    }

    /// Is it one that counting to this can have left?
    pub(crate) const fn is_sound(&self) -> bool {
        let follows = self.count <= self.by && (self.by == 1 || self.count > self.by / 2);
        follows && step(self.by) == self.by
    }
}

/// The smallest step that is no less than a count.
const fn step(count: u32) -> u32 {
    let above = match count.checked_next_power_of_two() {
        Some(above) => above,
        None => return u32::MAX,
    };
    // The step between two powers of two: 3, 6, 12, ..
    let between = (above / 4).saturating_mul(3);
    if between > 0 && count <= between {
        between
    } else {
        above
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn steps_are_half_a_power_of_two_apart() {
        let steps = [1, 1, 2, 3, 4, 6, 6, 8, 8, 12, 12, 12, 12, 16];
        for (count, expected) in (0..).zip(steps) {
            assert_eq!(step(count), expected, "{count}");
        }
        assert_eq!(step(3 << 29), 3 << 29);
        assert_eq!(step(u32::MAX), u32::MAX);
    }

    #[test]
    fn one_that_comes_and_goes_among_several_changes_nothing() {
        let mut divisor = Divisor::ONE;
        divisor.recount(4);
        divisor.add();
        assert_eq!(divisor.by(), 6);
        for _ in 0..100 {
            divisor.take();
            assert_eq!(divisor.by(), 6);
            divisor.add();
            assert_eq!(divisor.by(), 6);
        }
        divisor.recount(3);
        assert_eq!(divisor.by(), 3);
        divisor.recount(0);
        assert_eq!(divisor.by(), 1);
    }

    #[test]
    fn engines_that_may_share_a_runlist_are_in_one_round() {
        for engine in [0, 1, 8, 9, 10] {
            assert_eq!(Round::of_engine(engine), Round::GRAPHICS, "{engine}");
        }
        let copies = [11, 12, 13, 14, 15, 16, 17, 18].map(Round::of_engine);
        for (at, round) in copies.iter().enumerate() {
            assert_eq!(round.index(), at + 1);
        }
        for engine in [0x13, 0x33, 0x3e, u64::MAX] {
            assert_eq!(Round::of_engine(engine).index(), Round::COUNT - 1);
        }
    }

    proptest! {
        /// All parts together are the whole, but where each has the shortest slice; and a part is at least a third of what an
        /// exact division would leave.
        #[test]
        fn the_parts_are_no_more_than_the_whole(counts in prop::collection::vec(0u32..3000, 1..20), whole in prop_oneof![20u64..200, 20u64..1_000_000]) {
            let mut divisor = Divisor::ONE;
            for count in counts {
                divisor.recount(count);
                prop_assert!(divisor.is_sound(), "{divisor:?}");
                let part = divisor.part(Us(whole)).get();
                prop_assert!(part <= whole && part >= SLICE_MIN.get().min(whole));
                prop_assert!(part * u64::from(count) <= whole || part <= SLICE_MIN.get());
                prop_assert!(3 * part * u64::from(count.max(1)) >= whole);
            }
        }
    }
}
