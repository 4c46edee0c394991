// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Decides how many bytes of a copy are released to the GPU at once.
//!
//! ```text
//! rate  = ASSUMED                                      # of a new channel
//! rate  = max(rate * 15/16, bytes / (time + error))    # when a piece of the channel has ended
//! piece = rate * target / 2, in units of PIECE_MIN     # two are in flight
//! cut   = a copy of more than two pieces, or of PIECE_MIN whose end nothing else shows
//! ```
//!
//! `target` is that of [`pace`](super::pace). A channel copies in one direction, so each has a rate
//! of its own. The largest rate of late counts: a time includes waits for others and is known
//! between two looks only, so it is too long, and pieces that are too short never become longer.

use crate::units::{mul_div, Ns};

/// The shortest piece, and the unit of its length.
pub const PIECE_MIN: u64 = 64 << 10;

/// The longest piece.
pub const PIECE_MAX: u64 = 1 << 30;

/// Nanoseconds of the unit of a rate.
const UNIT: u64 = 1 << 20;

/// The rate of a channel that has copied nothing: the 25 GB/s of a PCIe 4.0 bus.
const ASSUMED: u64 = 25 * UNIT;

/// The rate at which a channel copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Bytes in [`UNIT`] nanoseconds.
    bytes: u64,
}

impl Default for Rate {
    fn default() -> Self {
        Self { bytes: ASSUMED }
    }
}

impl Rate {
    /// Returns how long `bytes` are expected to take.
    pub fn time(&self, bytes: u64) -> Ns {
        mul_div(bytes, UNIT, self.bytes).map_or(Ns::MAX, Ns)
    }

    /// Returns how many bytes are released at once; all without a target.
    pub fn piece(&self, target: Ns) -> u64 {
        if target == Ns(0) {
            return u64::MAX;
        }
        let bytes = mul_div(self.bytes, target.get() >> 1, UNIT).unwrap_or(PIECE_MAX);
        bytes.clamp(PIECE_MIN, PIECE_MAX) & !(PIECE_MIN - 1)
    }

    /// Returns whether a copy of `bytes` is cut. `shows` says whether the program shows its end.
    pub fn cuts(&self, bytes: u64, target: Ns, shows: bool) -> bool {
        let most = match shows {
            true => self.piece(target).saturating_mul(2),
            false => PIECE_MIN,
        };
        target > Ns(0) && bytes > most
    }

    /// Learns from a piece that took `time`, or up to `error` longer.
    pub fn learn(&mut self, bytes: u64, time: Ns, error: Ns) {
        let observed = mul_div(bytes, UNIT, (time + error).get().max(1)).unwrap_or(u64::MAX);
        let before = self.bytes.saturating_sub(self.bytes >> 4);
        self.bytes = observed.max(before).max(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn two_pieces_last_the_target_once_the_rate_is_known() {
        let mut rate = Rate::default();
        let target = Ns(50_000);
        assert_eq!(rate.piece(target), 576 << 10);
        // 50 bytes a nanosecond.
        rate.learn(50 << 20, Ns(1 << 20), Ns(0));
        let piece = rate.piece(target);
        assert_eq!(piece, 1_250_000 / PIECE_MIN * PIECE_MIN);
        assert_eq!(rate.time(50_000_000), Ns(1_000_000));
        let cuts = |bytes, shows| rate.cuts(bytes, target, shows);
        assert!(cuts(2 * piece + 1, true) && !cuts(2 * piece, true));
        assert!(cuts(PIECE_MIN + 1, false) && !cuts(PIECE_MIN, false));
        for shows in [false, true] {
            assert!(!rate.cuts(u64::MAX, Ns(0), shows), "without a target");
        }
    }

    /// Checks that a look that saw two ends at once does not make the rate infinite, and that one
    /// slow piece does not make the pieces short for long.
    #[test]
    fn a_rate_is_the_largest_of_late() {
        let mut rate = Rate::default();
        rate.learn(1 << 20, Ns(20_000), Ns(0));
        let usual = rate;
        rate.learn(1 << 20, Ns(0), Ns(80_000));
        assert!(rate.bytes <= usual.bytes);
        rate.learn(1 << 20, Ns(40_000_000), Ns(0));
        assert!(rate.bytes > usual.bytes / 2);
        rate.learn(1 << 20, Ns(20_000), Ns(0));
        assert_eq!(rate, usual);
        for _ in 0..200 {
            rate.learn(1 << 20, Ns(4_000_000), Ns(0));
        }
        assert!(
            rate.bytes <= usual.bytes / 90,
            "a slower one is learnt, too"
        );
    }

    proptest! {
        #[test]
        fn pieces_are_bounded_whatever_is_observed(
            seen in prop::collection::vec(any::<(u64, u64, u64)>(), 0..9), target in any::<u64>(),
        ) {
            let mut rate = Rate::default();
            for (bytes, time, error) in seen {
                rate.learn(bytes, Ns(time), Ns(error));
            }
            let piece = rate.piece(Ns(target));
            prop_assert!(target == 0 || (PIECE_MIN..=PIECE_MAX).contains(&piece));
            rate.time(target);
        }
    }
}
