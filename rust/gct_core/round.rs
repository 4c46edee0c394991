// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Divides an owner's time slice among its channel groups, so that together they get it once per
//! round.
//!
//! ```text
//! round    one pass of a runlist: each channel group with work runs for its time slice once
//! share    the part of a group's time slice that one process gets
//! divisor  the number by which a time slice is divided; it follows a count in steps
//!
//! share = min(compute.timeslice of the process,
//!             compute.timeslice of the group / divisor(processes with channel groups on the GPU))
//! slice = share / divisor(channel groups that the process has in the round)
//! ```
//!
//! The share is divided first between processes: a process that creates a thousand channel groups
//! divides only its own share.
//!
//! Idle channel groups count, too. Only the GPU knows which groups have work, because a tenant
//! submits without an ioctl. A channel group counts until RM has freed it: until then it may run,
//! and RM may refuse to free it.
//!
//! No part is shorter than [`SLICE_MIN`]. With a shorter one the GPU preempts a channel group
//! before it has loaded its context, and the group makes no progress. Shorter slices would hardly
//! shorten the round: on an H100 the switch to the next channel group takes about 160 us whatever
//! the slice.

use crate::limits::TIMESLICE_PART_US_MIN;
use crate::rmapi::nv;
use crate::units::Us;

/// Shortest slice that a division leaves, unless the whole is shorter.
pub const SLICE_MIN: Us = Us(TIMESLICE_PART_US_MIN);

/// A set of channel groups that may share a runlist, identified by their engine.
///
/// On Ampere and newer GPUs, engines of different rounds never share a runlist. Engines of one
/// round may have a runlist each. Their slices are then shorter than necessary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Round(u8);

impl Round {
    /// Number of rounds.
    pub const COUNT: usize = 10;

    /// Compute and graphics.
    pub const GRAPHICS: Self = Self(0);

    /// Looks up the round of an engine, `NV2080_ENGINE_TYPE_*`. Copy engines 0 and 1 may share the
    /// runlist of graphics (GRCE). `COPY2` to `COPY9` have a round each. All other engines, such as
    /// video, share the last.
    pub fn of_engine(engine: u64) -> Self {
        let engine = u32::try_from(engine).unwrap_or(u32::MAX);
        let copy = engine.clamp(
            nv::NV2080_ENGINE_TYPE_COPY1,
            nv::NV2080_ENGINE_TYPE_COPY9 + 1,
        );
        let round = copy.saturating_sub(nv::NV2080_ENGINE_TYPE_COPY1);
        Self(u8::try_from(round).unwrap_or(0))
    }

    /// Returns the round's index in an array of [`Round::COUNT`].
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// A divisor of time slices. It follows a count in steps: 1, 2, 3, 4, 6, 8, 12, 16 and so on.
///
/// The divisor grows with the count and shrinks only when the count is half of it (hysteresis).
/// Each change makes all channel groups of all sharers dirty. The steps keep changes rare while
/// many sharers arrive; the hysteresis avoids changes while one sharer comes and goes among
/// several.
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
    /// Divisor of an undivided time slice.
    pub const ONE: Self = Self { count: 0, by: 1 };

    /// Returns the number of sharers.
    pub const fn count(&self) -> u32 {
        self.count
    }

    /// Returns the divisor: at least 1, and at least the count.
    pub const fn by(&self) -> u32 {
        self.by
    }

    /// Sets the number of sharers.
    pub const fn recount(&mut self, count: u32) {
        self.count = count;
        if count > self.by || count <= self.by / 2 {
            self.by = step(count);
        }
    }

    /// Adds one sharer.
    pub const fn add(&mut self) {
        self.recount(self.count.saturating_add(1));
    }

    /// Removes one sharer.
    pub const fn take(&mut self) {
        self.recount(self.count.saturating_sub(1));
    }

    /// Returns one part of a time slice.
    pub fn part(&self, whole: Us) -> Us {
        (whole / u64::from(self.by)).max(SLICE_MIN).min(whole)
    }

    /// Returns whether some sequence of counts leads to this state.
    pub(crate) const fn is_sound(&self) -> bool {
        let follows = self.count <= self.by && (self.by == 1 || self.count > self.by / 2);
        follows && step(self.by) == self.by
    }
}

/// Returns the smallest step that is not below `count`.
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
        /// Checks that the parts sum to at most the whole, unless each is the shortest slice. A
        /// part is at least a third of the exact quotient.
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
