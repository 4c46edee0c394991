// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Decides how much of a tenant's work is released to the GPU at once, so that the tenant can be
//! preempted soon.
//!
//! Terminology
//!   target    `atom.duration`: the longest time that released work may occupy the GPU
//!   wave      the blocks that the granted SMs hold at the same time
//!   window    released and unfinished blocks; at least a wave, or SMs would idle
//!   atom      the blocks released by one PCAS
//!   single    a launch of at most one wave, whose blocks may wait for each other
//!
//! A launch that is predicted to exceed the target is split:
//!
//! ```text
//! window    = max(wave, blocks * target / predicted)
//! parts     = 2                                     # the next atom queues before this one ends
//! near a wave (window < 2 * wave):
//!     parts = clamp(time(window) / ATOM_MIN, 2, 4)  # 4 without a prediction
//! atom      = window / parts                        # rounded up if single
//! atom      = max(atom, blocks / atoms_max)         # rounded up
//! in flight = clamp(window / atom, 2, parts)        # all atoms if single
//! atom      = max(atom, window / in flight)         # fewer atoms still fill the window
//! ```
//!
//! A tenant without a target that yields to a neighbour has [`YIELDING`].
//!
//! Without a prediction the window is a wave and a launch gets at most [`UNKNOWN_ATOMS`] atoms.
//!
//! Preemption takes at most max(target, a wave): an atom cannot finish before its blocks do.
//!
//! Run-ahead. Near a wave, SMs idle for [`TURNAROUND`] between two atoms. Further atoms fill that
//! gap, but they also run before what a neighbour submits meanwhile. So they are queued only while
//! no neighbour is expected on the same TPCs. The decision is made anew for each atom.
//!
//! ```text
//! run-ahead = clamp(TURNAROUND / time(atom), 1, in flight)   # rounded up; 0 if not near a wave
//! ```
//!
//! Channels are paced independently. Work in flight on one channel may wait for work held back on
//! another, so a limit across channels could deadlock. Within a channel the tenant's order is kept,
//! and the first piece is always released. Streams may share a channel, so work in flight may also
//! wait for work held back behind it: [`patience`](super::patience) bounds that wait.

mod admission;

pub use admission::{
    admits_atom, admits_whole, atom_holds, drained, unknown_is_long, InFlight, DRAIN_MAX,
};

use crate::units::{Blocks, Ns};

/// The shortest atom near a wave. An atom costs some 0.3 us, a hundredth of this (H200,
/// `gctgroup-docs/results/user-mode-h200.md`, atoms at once).
pub const ATOM_MIN: Ns = Ns(30_000);

/// The target of a tenant that yields to neighbours and has no `atom.duration`. One H100, services
/// beside trainings: p99 is the same with 50 and 100 us, and half of the requests wait for an atom.
pub const YIELDING: Ns = Ns(50_000);

/// Time from the end of an atom until the atom that was held back for it runs, in the user-space
/// mode: the end is polled, the next atom written, rung for and fetched (H200: waves of 10.5 us
/// that are released one by one take 19 us each).
pub const TURNAROUND: Ns = Ns(9_000);

/// Atoms of a launch without a prediction: enough to learn from the first ones.
pub const UNKNOWN_ATOMS: u64 = 16;

/// The size of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// Blocks of its grid.
    pub blocks: Blocks,
    /// Blocks that are resident at the same time.
    pub wave: Blocks,
    /// Predicted duration, if its kernel is known.
    pub predicted: Option<Ns>,
}

/// How a launch is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Split {
    /// Atoms that it is split into; 1 leaves it whole.
    pub atoms: u32,
    /// Atoms that may be in flight.
    pub in_flight: u32,
    /// Further atoms that may be queued while no neighbour is expected.
    pub run_ahead: u32,
}

impl Split {
    /// Leaves the launch whole.
    pub const NONE: Self = Self {
        atoms: 1,
        in_flight: 1,
        run_ahead: 0,
    };
}

/// Splits `work` for `target`, into at most `most` atoms.
pub fn split(work: &Work, target: Ns, most: u32) -> Split {
    let wave = work.wave.max(Blocks(1));
    let (window, limit) = match work.predicted {
        Some(predicted) if predicted <= target => return Split::NONE,
        Some(predicted) => (work.blocks.scale(target, predicted).max(wave), u64::MAX),
        // A launch of at most a wave lasts as long as its blocks, split or not.
        None if work.blocks <= wave => return Split::NONE,
        None => (wave, UNKNOWN_ATOMS),
    };
    let time_of = |part: Blocks| Some(work.predicted?.scale(part, work.blocks));
    let near = window < wave * 2;
    let parts = match time_of(window) {
        _ if !near => 2,
        Some(time) => (time / ATOM_MIN).clamp(2, 4),
        None => 4,
    };
    // The blocks of a single wave may wait for each other, so all of its atoms must fit into the
    // window.
    let single_wave = work.blocks <= wave;
    let atom = if single_wave {
        window.div_ceil(parts)
    } else {
        // Rounded down: one block too many would wait for a whole atom.
        (window / parts).max(Blocks(1))
    };
    let most = limit.min(u64::from(most.max(1)));
    let largest = atom.max(work.blocks.div_ceil(most));
    let fit = (window / largest).min(parts).max(2);
    // Where fewer atoms fit than are wanted, they share the whole window, so that no SM idles.
    let atom = largest.max(window / fit);
    let atoms = work.blocks.pieces_of(atom).max(1);
    let in_flight = if single_wave { fit.max(atoms) } else { fit };
    let waiting = time_of(atom).map_or(1, |time| TURNAROUND.pieces_of(time.max(Ns(1))));
    Split {
        // CAST: not more than `most`.
        atoms: atoms as u32,
        // CAST: at most four: a single wave has no more atoms than `parts`.
        in_flight: in_flight as u32,
        // CAST: as above.
        run_ahead: if near {
            waiting.min(fit).max(1) as u32
        } else {
            0
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::mul_div;
    use proptest::prelude::*;

    fn work(blocks: u64, wave: u64, predicted: Option<u64>) -> Work {
        Work {
            blocks: Blocks(blocks),
            wave: Blocks(wave),
            predicted: predicted.map(Ns),
        }
    }

    #[test]
    fn two_atoms_last_the_target() {
        let atoms = |blocks, wave, predicted, target| {
            let split = split(&work(blocks, wave, predicted), Ns(target), 256);
            (split.atoms, split.in_flight)
        };
        // 10 ms in 20 waves, target 1 ms: 20 atoms of half a millisecond.
        assert_eq!(atoms(42_240, 2_112, Some(10_000_000), 1_000_000), (20, 2));
        // Short enough already.
        assert_eq!(atoms(42_240, 2_112, Some(999_999), 1_000_000), (1, 1));
        // Long blocks: quarter waves, however short the target is.
        assert_eq!(atoms(4_224, 2_112, Some(50_000_000), 300_000), (8, 4));
        // Unknown: quarter waves, but not too many.
        assert_eq!(atoms(4_224, 2_112, None, 300_000), (8, 4));
        assert_eq!(atoms(1 << 30, 2_112, None, 300_000), (16, 2));
        // Bounded: atoms larger than a quarter; fewer are in flight, but as many blocks.
        assert_eq!(atoms(26_400, 264, Some(25_000_000), 100_000), (200, 2));
        assert_eq!(atoms(2_112 * 90, 2_112, Some(90_000_000), 100), (180, 2));
        assert_eq!(atoms(2_112, 2_112, None, 300_000), (1, 1));
        assert_eq!(atoms(0, 0, Some(9), 1), (1, 2));
        let near = super::split(&work(4_224, 2_112, None), Ns(1), 256);
        assert_eq!((near.atoms, near.in_flight, near.run_ahead), (8, 4, 1));
        // A wave of 106 us is three atoms and one of run-ahead; a wave of 10 us two, and two of
        // run-ahead to cover the turnaround.
        let long = super::split(&work(42_240, 2_112, Some(2_120_000)), Ns(100_000), 256);
        assert_eq!((long.atoms, long.in_flight, long.run_ahead), (60, 3, 1));
        let short = super::split(&work(42_240, 2_112, Some(210_000)), Ns(10_000), 256);
        assert_eq!((short.atoms, short.in_flight, short.run_ahead), (40, 2, 2));
        let far = super::split(&work(42_240, 2_112, Some(100)), Ns(50), 256);
        assert_eq!(far.run_ahead, 0);
    }

    /// Checks that all blocks of a launch of one wave are in flight together, so a barrier between
    /// them ends as it does natively.
    #[test]
    fn a_single_wave_stays_co_resident() {
        for wave in 1..=4096 {
            let sizes = [1, 2, 3, 4, 5, 7, wave / 4 + 1, wave / 2 + 1, wave - 1, wave];
            for blocks in sizes
                .into_iter()
                .filter(|blocks| (1..=wave).contains(blocks))
            {
                for predicted in [101, 200, 30_000, 95_000, 1 << 40] {
                    for most in [1, 2, 3, 216] {
                        let split = split(&work(blocks, wave, Some(predicted)), Ns(100), most);
                        assert!(
                            split.atoms <= split.in_flight,
                            "{split:?} of {blocks} blocks, wave {wave}"
                        );
                    }
                }
            }
        }
    }

    proptest! {
        /// Checks the bound: work in flight is predicted to end within the target, or is a wave.
        #[test]
        fn work_in_flight_ends_in_time(
            blocks in 1u64..1 << 32, wave in 4u64..1 << 16, predicted in 1u64..1 << 40, target in 1_000u64..1 << 30,
        ) {
            let split = split(&work(blocks, wave, Some(predicted)), Ns(target), u32::MAX);
            if predicted <= target {
                prop_assert_eq!(split, Split::NONE);
                return Ok(());
            }
            let largest = blocks.div_ceil(u64::from(split.atoms));
            let in_flight = largest * u64::from(split.in_flight);
            let in_time = mul_div(blocks, target, predicted).unwrap();
            prop_assert!(in_flight <= wave.max(in_time));
            // With run-ahead, at most twice as much.
            prop_assert!(split.run_ahead <= split.in_flight);
            prop_assert!(split.run_ahead == 0 || in_time < wave * 2);
        }

        /// Checks that however few atoms there may be, they fill the window, except for what equal
        /// sizes cost.
        #[test]
        fn the_window_is_full(
            waves in 8u64..400, wave in 64u64..1 << 12, time in 1_000u64..1 << 20, target in 1u64..1 << 24, most in 16u32..256,
        ) {
            let (blocks, predicted) = (waves * wave, waves * time);
            let split = split(&work(blocks, wave, Some(predicted)), Ns(target), most);
            if split != Split::NONE {
                let window = mul_div(blocks, target, predicted).unwrap().max(wave);
                let largest = blocks.div_ceil(u64::from(split.atoms));
                let in_flight = largest * u64::from(split.in_flight);
                let (atoms, rounding) = (u64::from(split.atoms), u64::from(split.in_flight));
                prop_assert!((in_flight + rounding) * atoms >= window * (atoms - 1), "{split:?}: {in_flight} of {window}");
            }
        }

        #[test]
        fn never_more_than_the_most(blocks: u64, wave: u64, predicted: Option<u64>, target: u64, most: u32) {
            let split = split(&work(blocks, wave, predicted), Ns(target), most);
            prop_assert!(split.atoms >= 1 && split.atoms <= most.max(1) && split.in_flight >= 1);
        }
    }
}
