// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Decides which TPCs a right-sized tenant leaves to others while it works: tidal masking (SGDRC,
//! section 7.1).
//!
//! Terminology
//!   tide  the TPCs that any of the last PIECES to 2 * PIECES pieces had; all if one had no size
//!   ebb   the TPCs that are not in the tide
//!
//! A larger size adds TPCs to those of a smaller one ([`Topology::spread`]), so under the same
//! grant the tide is what the widest of these pieces had. Others may use the ebb of a tenant's TPCs
//! while it works, for work that holds them for [`HOLD_MAX`] at most ([`tpc`](super::tpc)).
//!
//! [`Topology::spread`]: crate::topology::Topology::spread
//!
//! The tide rises with the first piece that needs more, and falls PIECES later at the earliest. So
//! at most one in PIECES pieces finds work of others on its TPCs. A tenant whose kernels need many
//! TPCs by turns has no ebb.

use crate::mask::TpcMask;
use crate::units::Ns;

/// The longest time for which the ebb is lent, because a piece that needs more may come.
pub const HOLD_MAX: Ns = Ns(1_000_000);

/// Pieces for which the tide stays high. Fewer than one in a hundred of them may be delayed, so
/// that the 99th percentile is none.
const PIECES: u32 = 128;

/// What a tenant's last pieces had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tide {
    /// What the present pieces had, their number, and what those before had.
    now: TpcMask,
    pieces: u32,
    before: TpcMask,
}

impl Tide {
    /// The tide of a tenant that has released nothing: it leaves nothing.
    pub const HIGH: Self = Self {
        now: TpcMask::FULL,
        pieces: 0,
        before: TpcMask::FULL,
    };

    /// Returns the tide after a piece that had these TPCs.
    #[must_use]
    pub fn after(self, piece: &TpcMask) -> Self {
        match self.pieces < PIECES {
            true => Self {
                now: self.now.or(piece),
                pieces: self.pieces.saturating_add(1),
                before: self.before,
            },
            false => Self {
                now: *piece,
                pieces: 1,
                before: self.now,
            },
        }
    }

    /// Returns the TPCs that none of the last pieces had.
    pub fn ebb(&self) -> TpcMask {
        TpcMask::FULL.without(&self.now.or(&self.before))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    fn first(count: usize) -> TpcMask {
        TpcMask::first(count)
    }

    fn ebb_after(pieces: &[TpcMask]) -> TpcMask {
        pieces.iter().fold(Tide::HIGH, Tide::after).ebb()
    }

    #[test]
    fn the_tide_falls_once_no_piece_needs_more() {
        let mut pieces = std::vec![first(9); 2 * PIECES as usize];
        let kept = ebb_after(&pieces);
        assert!(kept.is_empty(), "the first of them are not forgotten");
        pieces.push(first(9));
        assert_eq!(ebb_after(&pieces), TpcMask::FULL.without(&first(9)));
        pieces.push(first(12));
        assert_eq!(ebb_after(&pieces), TpcMask::FULL.without(&first(12)));
    }

    proptest! {
        /// Checks that no piece of the last ones had TPCs of the ebb, and that one of them had
        /// each of the others.
        #[test]
        fn the_ebb_is_what_no_piece_had(
            pieces in prop::collection::vec(prop::array::uniform4(any::<u64>()), 300..900)
        ) {
            // Few TPCs each: a set that fills up would prove nothing.
            let sparse = |[a, b, c, d]: [u64; 4]| {
                TpcMask::from_words([a, b, c, d].map(|word| 1u64.wrapping_shl(word as u32)))
            };
            let pieces: Vec<TpcMask> = pieces.into_iter().map(sparse).collect();
            let ebb = ebb_after(&pieces);
            let of_last = |count: u32| {
                let last = pieces.iter().rev().take(count as usize);
                last.fold(TpcMask::EMPTY, |all, piece| all.or(piece))
            };
            prop_assert!(ebb.and(&of_last(PIECES)).is_empty());
            let others = TpcMask::FULL.without(&ebb);
            prop_assert!(others.without(&of_last(2 * PIECES + 1)).is_empty());
        }
    }
}
