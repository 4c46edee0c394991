// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Decides which TPCs a right-sized tenant leaves to others while it works: tidal masking (SGDRC,
//! section 7.1).
//!
//! Terminology
//!   reach  the number that all TPCs of a piece are below; [`ALL`] if the piece has no size
//!   tide   the largest reach of the last PIECES to 2 * PIECES pieces
//!   ebb    a tenant's TPCs that are not below its tide
//!
//! A size takes the lowest TPCs ([`scale`](super::scale)), so one number tells which these are.
//! Others may use the ebb while the tenant works, for work that holds it for [`HOLD_MAX`] at most
//! ([`tpc`](super::tpc)).
//!
//! The tide rises with the first piece that needs more, and falls PIECES later at the earliest. So
//! at most one in PIECES pieces finds work of others on its TPCs. A tenant whose kernels need many
//! TPCs by turns has no ebb.

use crate::units::Ns;

/// The reach of a piece that may use any TPC.
pub const ALL: u32 = u32::MAX;

/// The longest time for which the ebb is lent, because a piece that needs more may come.
pub const HOLD_MAX: Ns = Ns(1_000_000);

/// Pieces for which the tide stays high. Fewer than one in a hundred of them may be delayed, so
/// that the 99th percentile is none.
const PIECES: u32 = 128;

/// The reach of a tenant's last pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tide {
    /// The largest reach of the present pieces, their number, and the largest of those before.
    now: u32,
    pieces: u32,
    before: u32,
}

impl Tide {
    /// The tide of a tenant that has released nothing: it leaves nothing.
    pub const HIGH: Self = Self {
        now: ALL,
        pieces: 0,
        before: ALL,
    };

    /// Returns the tide after a piece with this reach.
    #[must_use]
    pub fn after(self, reach: u32) -> Self {
        match self.pieces < PIECES {
            true => Self {
                now: self.now.max(reach),
                pieces: self.pieces.saturating_add(1),
                before: self.before,
            },
            false => Self {
                now: reach,
                pieces: 1,
                before: self.now,
            },
        }
    }

    /// Returns the number that all TPCs of the last pieces are below.
    pub fn reach(&self) -> u32 {
        self.now.max(self.before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    fn after(reaches: &[u32]) -> u32 {
        let tide = |tide: Tide, reach: &u32| tide.after(*reach);
        reaches.iter().fold(Tide::HIGH, tide).reach()
    }

    #[test]
    fn the_tide_falls_once_no_piece_needs_more() {
        let mut reaches = std::vec![9; 2 * PIECES as usize];
        assert_eq!(after(&reaches), ALL, "the first of them are not forgotten");
        reaches.push(9);
        assert_eq!(after(&reaches), 9);
        reaches.push(12);
        assert_eq!(after(&reaches), 12);
    }

    proptest! {
        /// Checks that no piece of the last ones exceeds the tide, and that it is the reach of one.
        #[test]
        fn the_tide_covers_the_last_pieces(reaches in prop::collection::vec(1u32..200, 300..900)) {
            let tide = after(&reaches);
            let last = |count: u32| -> Vec<u32> {
                reaches.iter().rev().take(count as usize).copied().collect()
            };
            prop_assert!(last(PIECES).iter().all(|reach| *reach <= tide));
            prop_assert!(last(2 * PIECES + 1).contains(&tide));
        }
    }
}
