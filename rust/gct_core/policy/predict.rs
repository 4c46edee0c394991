// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Predicts how long a launch will take, from launches that have ended (LithOS, section 5.7).
//!
//! A kernel is a program with its grid and its block. A kernel without a history is predicted from
//! the same program with another grid, in proportion to the blocks. The table stores work, time
//! multiplied by TPCs. So a launch on fewer TPCs is predicted to take longer in proportion, which
//! is conservative: no kernel scales better.
//!
//! ```text
//! average = average - average / WEIGHT + observed / WEIGHT
//! time    = average * blocks / observed blocks / TPCs
//! ```
//!
//! The moving average keeps no distribution: a launch whose time depends on its data is predicted
//! to take what it took lately.

use crate::probe;
use crate::units::{mul_div, volume, Blocks, Ns, TpcNs};
use core::num::Wrapping;

/// Identity of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// Address where its program starts.
    pub program: u64,
    /// Its grid, in blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
}

impl Kernel {
    /// Returns the number of blocks.
    pub fn blocks(&self) -> Blocks {
        Blocks(volume(self.grid).0)
    }

    /// Returns the key of the same program with any grid.
    const fn any_grid(self) -> Self {
        Self {
            grid: [0; 3],
            ..self
        }
    }
}

/// History of one kernel.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    kernel: Kernel,
    /// Average cost of `blocks` blocks.
    work: TpcNs,
    blocks: Blocks,
    /// Clock of the table when the entry was last updated.
    used: Wrapping<u32>,
}

/// Slots of the table that a kernel may be in. The least recently updated of them makes room.
const PROBES: usize = 8;

/// Weight of a new observation in the average, as a divisor.
const WEIGHT: u64 = 4;

/// History of one tenant's kernels, in slots of the caller.
#[derive(Debug)]
pub struct Predictor<'a> {
    slots: &'a mut [Option<Entry>],
    uses: &'a mut u32,
}

/// Returns the slots of a table of `len` that a kernel may be in.
fn places(kernel: &Kernel, len: usize) -> impl Iterator<Item = usize> {
    let words = kernel.grid.iter().chain(&kernel.block);
    let hash = words.fold(kernel.program, |hash, word| probe::mix(hash, *word));
    probe::slots(hash, len, PROBES)
}

fn get<'a>(slots: &'a [Option<Entry>], kernel: &Kernel) -> Option<&'a Entry> {
    places(kernel, slots.len())
        .filter_map(|place| slots.get(place)?.as_ref())
        .find(|entry| entry.kernel == *kernel)
}

/// Predicts how long `kernel` takes on `tpcs` TPCs, from the `slots` of a [`Predictor`]. Returns
/// `None` for a program without a history, or without a TPC.
pub fn predict(slots: &[Option<Entry>], kernel: &Kernel, tpcs: u64) -> Option<Ns> {
    let entry = get(slots, kernel)
        .or_else(|| get(slots, &kernel.any_grid()))
        .filter(|_| tpcs > 0)?;
    let work = mul_div(entry.work.get(), kernel.blocks().get(), entry.blocks.get())?;
    Some(Ns(work) / tpcs)
}

impl<'a> Predictor<'a> {
    /// Creates a view of the table in `slots`, all `None` at first, and its clock, 0 at first.
    pub fn new(slots: &'a mut [Option<Entry>], uses: &'a mut u32) -> Self {
        Self { slots, uses }
    }

    /// Learns that `blocks` blocks of `kernel` took `time` on `tpcs` TPCs.
    pub fn observe(&mut self, kernel: &Kernel, blocks: u64, tpcs: u64, time: Ns) {
        if blocks == 0 || tpcs == 0 {
            return;
        }
        let work = TpcNs(time.get()) * tpcs;
        self.learn(*kernel, work, Blocks(blocks));
        self.learn(kernel.any_grid(), work, Blocks(blocks));
    }

    fn learn(&mut self, kernel: Kernel, work: TpcNs, blocks: Blocks) {
        let now = Wrapping(*self.uses) + Wrapping(1);
        *self.uses = now.0;
        let place = self.place_for(&kernel, now);
        let Some(slot) = place.and_then(|place| self.slots.get_mut(place)) else {
            return;
        };
        let known = slot
            .filter(|entry| entry.kernel == kernel)
            // The old average, for as many blocks as were seen now.
            .and_then(|entry| mul_div(entry.work.get(), blocks.get(), entry.blocks.get()));
        let work = match known {
            Some(known) => TpcNs(known) - TpcNs(known) / WEIGHT + work / WEIGHT,
            None => work,
        };
        *slot = Some(Entry {
            kernel,
            work,
            blocks,
            used: now,
        });
    }

    /// Returns the slot that holds `kernel`, else a free one, else the least recently updated.
    fn place_for(&self, kernel: &Kernel, now: Wrapping<u32>) -> Option<usize> {
        let age = |place: &usize| match self.slots.get(*place) {
            Some(Some(entry)) if entry.kernel == *kernel => (2, 0),
            Some(None) => (1, 0),
            Some(Some(entry)) => (0, (now - entry.used).0),
            None => (0, 0),
        };
        places(kernel, self.slots.len()).max_by_key(age)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec;
    use std::vec::Vec;

    fn kernel(program: u64, width: u32) -> Kernel {
        Kernel {
            program,
            grid: [width, 1, 1],
            block: [128, 1, 1],
        }
    }

    #[test]
    fn a_known_kernel_is_predicted_and_takes_longer_on_fewer_tpcs() {
        let (mut slots, mut uses) = (vec![None; 64], 0);
        let mut predictor = Predictor::new(&mut slots, &mut uses);
        let one = kernel(0x1000, 600);
        assert_eq!(predict(predictor.slots, &one, 66), None);
        predictor.observe(&one, 600, 66, Ns(100_000));
        assert_eq!(predict(predictor.slots, &one, 66), Some(Ns(100_000)));
        assert_eq!(predict(predictor.slots, &one, 33), Some(Ns(200_000)));
        assert_eq!(predict(predictor.slots, &one, 0), None);
        // Another grid of the program is scaled by its blocks; another program is unknown.
        assert_eq!(
            predict(predictor.slots, &kernel(0x1000, 1200), 66),
            Some(Ns(200_000))
        );
        assert_eq!(predict(predictor.slots, &kernel(0x2000, 600), 66), None);
    }

    #[test]
    fn an_atom_tells_of_the_whole_launch() {
        let (mut slots, mut uses) = (vec![None; 64], 0);
        let mut predictor = Predictor::new(&mut slots, &mut uses);
        let one = kernel(0x1000, 800);
        predictor.observe(&one, 100, 66, Ns(10_000));
        assert_eq!(predict(predictor.slots, &one, 66), Some(Ns(80_000)));
    }

    proptest! {
        #[test]
        fn it_settles_on_a_steady_time(first in 1u64..1 << 40, steady in 1_000u64..1 << 40, tpcs in 1u64..256) {
            let (mut slots, mut uses) = (vec![None; 16], 0);
            let mut predictor = Predictor::new(&mut slots, &mut uses);
            let one = kernel(7, 50);
            predictor.observe(&one, 50, tpcs, Ns(first));
            for _ in 0..150 {
                predictor.observe(&one, 50, tpcs, Ns(steady));
            }
            let seen = predict(predictor.slots, &one, tpcs).unwrap().get();
            prop_assert!(seen.abs_diff(steady) <= steady / 100, "{seen} is not {steady}");
        }

        #[test]
        fn any_history_leaves_the_last_kernel_known(
            seen in prop::collection::vec((0u64..40, 1u32..9, any::<u64>(), any::<u64>()), 1..200),
            len in 1usize..40,
        ) {
            let (mut slots, mut uses) = (vec![None; len], 0);
            let mut predictor = Predictor::new(&mut slots, &mut uses);
            for (program, width, blocks, time) in seen {
                let one = kernel(program, width);
                predictor.observe(&one, blocks.max(1), 3, Ns(time));
                let same_program = get(predictor.slots, &one.any_grid()).is_some();
                prop_assert!(same_program, "just learnt and already forgotten");
            }
            let full: Vec<_> = slots.iter().flatten().collect();
            for entry in &full {
                let same = full.iter().filter(|other| other.kernel == entry.kernel);
                prop_assert_eq!(same.count(), 1);
            }
        }
    }
}
