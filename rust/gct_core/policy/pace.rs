// SPDX-License-Identifier: GPL-2.0 OR MIT

//! When the parts of a tenant's work go to the GPU, so that it can be made to yield soon.
//!
//! A launch that is predicted to run longer than the target is split. Its atoms last half of the target each and two of
//! them are in flight, so that the GPU has the next one before it has ended this one, and all that is in flight ends
//! within the target. No atom is made smaller than half a wave of blocks, because two smaller ones would leave SMs
//! empty; so what is in flight ends within the target or within the time of one block, whichever is longer.
//!
//! Whole launches are let go as long as all that is in flight is predicted to end within the target. Both bounds hold for
//! each channel by itself. Across channels they must not: what is in flight in one may be waiting for what is held
//! back in another, while within a channel the order is that of the tenant and its first piece is always let go.

use crate::units::{mul_div, Ns};

/// Atoms of one launch in flight.
pub const ATOMS_IN_FLIGHT: u32 = 2;

/// Into how many atoms a launch is split of which nothing is known: enough to learn from the first ones.
pub const UNKNOWN_ATOMS: u64 = 16;

/// A launch as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// Its blocks.
    pub blocks: u64,
    /// How many of them are resident at the same time.
    pub wave: u64,
    /// How long it will take, if that is known.
    pub predicted: Option<Ns>,
}

/// `a / b`, rounded up; `core`'s own adds with an overflow check.
fn div_up(a: u64, b: u64) -> u64 {
    let whole = a.checked_div(b).unwrap_or(a);
    match a.checked_rem(b) {
        Some(0) | None => whole,
        Some(_) => whole.saturating_add(1),
    }
}

/// Into how many atoms `work` is split for `target`; 1 leaves it whole. At most `most`.
pub fn atoms(work: &Work, target: Ns, most: u32) -> u32 {
    let half_wave = work.wave.div_ceil(2).max(1);
    let wanted = match work.predicted {
        Some(predicted) if predicted <= target => 1,
        Some(predicted) => {
            let half = target.get().div_ceil(u64::from(ATOMS_IN_FLIGHT)).max(1);
            let blocks = mul_div(work.blocks, half, predicted.get()).unwrap_or(0);
            div_up(work.blocks, blocks.max(half_wave))
        }
        // A launch of one wave is as short as its blocks are, whatever is done.
        None if work.blocks <= work.wave => 1,
        None => div_up(work.blocks, half_wave).min(UNKNOWN_ATOMS),
    };
    // CAST: not more than `most`.
    wanted.clamp(1, u64::from(most.max(1))) as u32
}

/// What one channel has in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InFlight {
    /// Launches and atoms.
    pub count: u32,
    /// How long all together are predicted to take.
    pub predicted: Ns,
}

impl InFlight {
    /// Adds a piece.
    pub fn add(&mut self, predicted: Ns) {
        self.count = self.count.saturating_add(1);
        self.predicted = Ns(self.predicted.get().saturating_add(predicted.get()));
    }

    /// Takes a piece away that has ended.
    pub fn remove(&mut self, predicted: Ns) {
        self.count = self.count.saturating_sub(1);
        self.predicted = match self.count {
            0 => Ns(0),
            _ => self.predicted.saturating_sub(predicted),
        };
    }
}

/// Whether a piece that is predicted to take `next` may join what its channel has in flight. The first always may.
pub fn admits(in_flight: &InFlight, next: Ns, is_atom: bool, target: Ns) -> bool {
    if in_flight.count == 0 {
        return true;
    }
    if is_atom {
        return in_flight.count < ATOMS_IN_FLIGHT;
    }
    let sum = in_flight.predicted.get().saturating_add(next.get());
    sum <= target.get()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn work(blocks: u64, wave: u64, predicted: Option<u64>) -> Work {
        Work {
            blocks,
            wave,
            predicted: predicted.map(Ns),
        }
    }

    #[test]
    fn two_atoms_last_the_target() {
        // 10 ms in 20 waves, target 1 ms: 20 atoms of half a millisecond.
        assert_eq!(
            atoms(&work(42_240, 2_112, Some(10_000_000)), Ns(1_000_000), 256),
            20
        );
        // Short enough already.
        assert_eq!(
            atoms(&work(42_240, 2_112, Some(999_999)), Ns(1_000_000), 256),
            1
        );
        // Long blocks: half waves, however short the target is.
        assert_eq!(
            atoms(&work(4_224, 2_112, Some(50_000_000)), Ns(300_000), 256),
            4
        );
        // Unknown: half waves, but not too many.
        assert_eq!(atoms(&work(4_224, 2_112, None), Ns(300_000), 256), 4);
        assert_eq!(atoms(&work(1 << 30, 2_112, None), Ns(300_000), 256), 16);
        assert_eq!(atoms(&work(2_112, 2_112, None), Ns(300_000), 256), 1);
        assert_eq!(atoms(&work(0, 0, Some(9)), Ns(1), 0), 1);
    }

    #[test]
    fn whole_launches_queue_up_to_the_target_and_the_first_always_goes() {
        let mut in_flight = InFlight::default();
        assert!(admits(&in_flight, Ns(u64::MAX), false, Ns(10)));
        in_flight.add(Ns(6));
        assert!(admits(&in_flight, Ns(4), false, Ns(10)));
        assert!(!admits(&in_flight, Ns(5), false, Ns(10)));
        assert!(admits(&in_flight, Ns(500), true, Ns(10)));
        in_flight.add(Ns(4));
        assert!(!admits(&in_flight, Ns(0), true, Ns(10)));
        in_flight.remove(Ns(6));
        in_flight.remove(Ns(4));
        assert_eq!(in_flight, InFlight::default());
    }

    proptest! {
        /// The bound: two atoms end within the target, or are not more than a wave (but for what rounding to whole blocks adds).
        #[test]
        fn what_is_in_flight_ends_in_time(
            blocks in 1u64..1 << 32, wave in 1u64..1 << 16, predicted in 1u64..1 << 40, target in 1_000u64..1 << 30,
        ) {
            let target = Ns(target);
            let count = u64::from(atoms(&work(blocks, wave, Some(predicted)), target, u32::MAX));
            let largest = blocks.div_ceil(count);
            let half = mul_div(blocks, target.get().div_ceil(2), predicted).unwrap();
            if predicted > target.get() {
                prop_assert!(largest <= half.max(wave.div_ceil(2)).max(1));
            } else {
                prop_assert_eq!(count, 1);
            }
        }

        #[test]
        fn never_more_than_the_most(blocks: u64, wave: u64, predicted: Option<u64>, target: u64, most: u32) {
            let count = atoms(&work(blocks, wave, predicted), Ns(target), most);
            prop_assert!(count >= 1 && count <= most.max(1));
        }
    }
}
