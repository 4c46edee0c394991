// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Predicts how long a launch will take, from launches that have ended (LithOS, section 5.7).
//!
//! Terminology
//!   kernel    a program with its grid, its block, and how many blocks a TPC holds
//!   work      time multiplied by TPCs
//!   wave      the blocks that the granted TPCs hold at the same time
//!
//! A kernel without a history is predicted from the same program with another grid.
//!
//! ```text
//! average   = average - average / WEIGHT + observed / WEIGHT    # of work, and of wave time
//! waves     = blocks / (blocks per TPC * TPCs)                  # rounded up
//! predicted = max(work * blocks / observed blocks / TPCs, wave time * waves)
//! ```
//!
//! The first term is conservative for more blocks and fewer TPCs: no kernel scales better. The
//! second one is for fewer blocks and more TPCs: a part of a wave takes as long as its blocks. The
//! time of one wave is that of the launch, divided by its waves. An atom tells of the launch by its
//! part of the blocks, because atoms overlap.
//!
//! A replay of a graph is predicted as a whole: as a kernel of one block that fills any number of
//! TPCs. So on fewer TPCs than it was seen on it takes longer by their ratio, and on more as long.
//!
//! The moving average keeps no distribution: a launch whose time depends on its data is predicted
//! to take what it took lately.

use crate::probe;
use crate::units::{mul_div, volume, Blocks, Ns, Sat, TpcNs};
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
    /// Blocks that one TPC holds at the same time; 0 if that is unknown.
    pub per_tpc: u32,
}

impl Kernel {
    /// Creates the identity of the replays of one graph, from a fingerprint of the nodes that its
    /// segment launches.
    pub const fn graph(nodes: u64) -> Self {
        Self {
            program: nodes,
            grid: [0; 3],
            block: [0; 3],
            per_tpc: 0,
        }
    }

    /// Returns whether it stands for a graph.
    pub const fn is_graph(&self) -> bool {
        matches!(
            (self.program, self.grid, self.block),
            (1.., [0, 0, 0], [0, 0, 0])
        )
    }

    /// Returns the number of blocks; 1 for a graph.
    pub fn blocks(&self) -> Blocks {
        match self.is_graph() {
            true => Blocks(1),
            false => Blocks(volume(self.grid).0),
        }
    }

    /// Returns how many waves its blocks are on `tpcs` TPCs; 0 if that is unknown.
    fn waves(&self, tpcs: u64) -> u64 {
        match u64::from(self.per_tpc).saturating_mul(tpcs) {
            _ if self.is_graph() => 1,
            0 => 0,
            wave => self.blocks().pieces_of(Blocks(wave)),
        }
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
    /// Average time of one wave; 0 if that is unknown.
    wave: Ns,
    /// Clock of the table when the entry was last updated.
    used: Wrapping<u32>,
}

/// Slots of the table that a kernel may be in. The least recently updated of them makes room.
const PROBES: usize = 8;

/// The largest error of a prediction that is no miss. Source: LithOS, section 8.4.
const MISS: Ns = Ns(50_000);

/// Weight of a new observation in the average, as a divisor.
const WEIGHT: u64 = 4;

/// History of one tenant's kernels, in slots of the caller.
#[derive(Debug)]
pub struct Predictor<'a> {
    slots: &'a mut [Option<Entry>],
    uses: &'a mut u32,
}

/// Returns the slots of a table of `len` that a kernel may be in.
pub(super) fn places(kernel: &Kernel, len: usize) -> impl Iterator<Item = usize> {
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
    Some((Ns(work) / tpcs).max(entry.wave * kernel.waves(tpcs)))
}

/// Returns whether a prediction was wrong by more than 50 us. The launch has taken from `shortest`
/// to `longest`: it ended between two looks.
pub fn misses(predicted: Ns, shortest: Ns, longest: Ns) -> bool {
    predicted + MISS < shortest || predicted > longest + MISS
}

/// Returns the moving average after an observation; 0 stands for no average.
fn average(known: u64, observed: u64) -> u64 {
    match known {
        0 => observed,
        _ => (Sat(known) - Sat(known / WEIGHT) + Sat(observed / WEIGHT)).0,
    }
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
        // An atom tells of the whole launch.
        let whole = time.scale(kernel.blocks(), Blocks(blocks));
        let waves = Some(kernel.waves(tpcs)).filter(|waves| *waves > 0);
        let wave = waves.map(|waves| whole / waves);
        self.learn(*kernel, work, Blocks(blocks), wave);
        if !kernel.is_graph() {
            self.learn(kernel.any_grid(), work, Blocks(blocks), wave);
        }
    }

    /// Learns `work` for `blocks` blocks, and the time of one wave if it is known.
    fn learn(&mut self, kernel: Kernel, work: TpcNs, blocks: Blocks, wave: Option<Ns>) {
        let now = Wrapping(*self.uses) + Wrapping(1);
        *self.uses = now.0;
        let age = |entry: &Entry| (entry.kernel != kernel).then(|| (now - entry.used).0);
        let places = places(&kernel, self.slots.len());
        let place = probe::place(self.slots, places, age);
        let Some(slot) = place.and_then(|place| self.slots.get_mut(place)) else {
            return;
        };
        let known = slot.filter(|entry| entry.kernel == kernel);
        // The old average, for as many blocks as were seen now.
        let of_blocks =
            known.and_then(|entry| mul_div(entry.work.get(), blocks.get(), entry.blocks.get()));
        let of_wave = known.map_or(0, |entry| entry.wave.get());
        *slot = Some(Entry {
            kernel,
            work: TpcNs(average(of_blocks.unwrap_or(0), work.get())),
            blocks,
            wave: Ns(wave.map_or(of_wave, |wave| average(of_wave, wave.get()))),
            used: now,
        });
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
            per_tpc: 2,
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

    /// Checks that the blocks of a small grid take as long as those of a large one, and that the
    /// last wave is not divided among more TPCs.
    #[test]
    fn a_part_of_a_wave_takes_a_wave() {
        let (mut slots, mut uses) = (vec![None; 64], 0);
        let mut predictor = Predictor::new(&mut slots, &mut uses);
        predictor.observe(&kernel(0x1000, 600), 600, 60, Ns(100_000));
        let predicted = |width, tpcs| predict(predictor.slots, &kernel(0x1000, width), tpcs);
        assert_eq!(predicted(1, 60), Some(Ns(20_000)));
        assert_eq!(predicted(121, 60), Some(Ns(40_000)), "two waves");
        assert_eq!(predicted(600, 300), Some(Ns(20_000)));
        assert_eq!(predicted(600, 1_000), Some(Ns(20_000)));
        assert_eq!(predicted(600, 30), Some(Ns(200_000)));
    }

    /// Checks that an atom teaches the time of a wave by its part of it, since it began before the
    /// one in front of it had ended.
    #[test]
    fn atoms_teach_what_a_wave_takes() {
        let (mut slots, mut uses) = (vec![None; 64], 0);
        let mut predictor = Predictor::new(&mut slots, &mut uses);
        let whole = kernel(0x1000, 120);
        predictor.observe(&whole, 120, 60, Ns(80_000));
        for _ in 0..100 {
            predictor.observe(&whole, 30, 60, Ns(5_000));
        }
        let one = predict(predictor.slots, &kernel(0x1000, 1), 60).unwrap();
        assert!((20_000..20_010).contains(&one.get()), "{one:?}");
    }

    /// Checks that of launches that end between two looks, of which the first one gets all of the
    /// time, the later ones are not predicted by that time.
    #[test]
    fn launches_that_end_together_share_their_time() {
        let (mut slots, mut uses) = (vec![None; 64], 0);
        let mut predictor = Predictor::new(&mut slots, &mut uses);
        let one = kernel(0x1000, 120);
        for at in 0..400 {
            let time = if at % 20 == 0 { 200_000 } else { 0 };
            predictor.observe(&one, 120, 60, Ns(time));
        }
        let predicted = predict(predictor.slots, &one, 60).unwrap();
        assert!(predicted < Ns(1_000), "{predicted:?}");
    }

    #[test]
    fn a_miss_is_an_error_that_no_end_between_two_looks_explains() {
        let misses = |predicted: u64, shortest: u64, longest: u64| {
            let us = |us: u64| Ns(us * 1_000);
            misses(us(predicted), us(shortest), us(longest))
        };
        for hit in [(100, 0, 200), (100, 150, 300), (100, 0, 50), (10, 0, 0)] {
            assert!(!misses(hit.0, hit.1, hit.2), "{hit:?}");
        }
        assert!(misses(100, 151, 300) && misses(100, 0, 49));
    }

    #[test]
    fn an_atom_tells_of_the_whole_launch() {
        let (mut slots, mut uses) = (vec![None; 64], 0);
        let mut predictor = Predictor::new(&mut slots, &mut uses);
        let one = kernel(0x1000, 800);
        predictor.observe(&one, 100, 66, Ns(10_000));
        assert_eq!(predict(predictor.slots, &one, 66), Some(Ns(80_000)));
    }

    /// Checks that a replay is predicted as a whole, never shorter than its graph was seen to take
    /// on as many TPCs or more, and not before it was seen.
    #[test]
    fn a_replay_is_predicted_as_a_whole() {
        let (mut slots, mut uses) = (vec![None; 64], 0);
        let mut predictor = Predictor::new(&mut slots, &mut uses);
        let (graph, other) = (Kernel::graph(0x1000), Kernel::graph(0x2000));
        assert_eq!(predict(predictor.slots, &graph, 60), None);
        predictor.observe(&graph, 1, 60, Ns(900_000));
        for (tpcs, expected) in [(60, 900_000), (66, 900_000), (20, 2_700_000)] {
            assert_eq!(predict(predictor.slots, &graph, tpcs), Some(Ns(expected)));
        }
        assert_eq!(predict(predictor.slots, &other, 60), None);
        assert_eq!(predictor.slots.iter().flatten().count(), 1);
        // One observation is a quarter of the average, not twice that.
        predictor.observe(&graph, 1, 60, Ns(500_000));
        assert_eq!(predict(predictor.slots, &graph, 60), Some(Ns(800_000)));
        // What is not known at all is no graph.
        assert!(!Kernel::graph(0).is_graph() && !kernel(0x1000, 1).is_graph());
    }

    proptest! {
        /// Checks that a launch of waves that last the same is never predicted too short, whatever
        /// grid was seen on however many TPCs.
        #[test]
        fn equal_waves_are_never_predicted_too_short(
            wave in 1_000u64..1 << 30, seen in 1u32..100_000, next in 1u32..100_000,
            before in 1u64..256, now in 1u64..256,
        ) {
            let (mut slots, mut uses) = (vec![None; 16], 0);
            let mut predictor = Predictor::new(&mut slots, &mut uses);
            let takes = |kernel: &Kernel, tpcs: u64| {
                wave * kernel.blocks().get().div_ceil(2 * tpcs)
            };
            let (seen, next) = (kernel(7, seen), kernel(7, next));
            predictor.observe(&seen, seen.blocks().get(), before, Ns(takes(&seen, before)));
            let predicted = predict(predictor.slots, &next, now).unwrap().get();
            prop_assert!(predicted >= takes(&next, now));
            if seen == next && before == now {
                prop_assert_eq!(predicted, takes(&next, now));
            }
        }

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
