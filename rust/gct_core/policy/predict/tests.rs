// SPDX-License-Identifier: GPL-2.0 OR MIT

use super::*;
use proptest::prelude::*;
use std::vec;
use std::vec::Vec;

pub(super) fn kernel(program: u64, width: u32) -> Kernel {
    Kernel {
        program,
        grid: [width, 1, 1],
        block: [128, 1, 1],
        per_tpc: 2,
    }
}

/// The predictor of a channel.
pub(super) struct Table {
    slots: Vec<Option<Entry>>,
    habits: Habits,
    pub(super) path: Path,
}

impl Table {
    pub(super) fn new(len: usize) -> Self {
        Self {
            slots: vec![None; len],
            habits: Habits::default(),
            path: Path::default(),
        }
    }

    pub(super) fn predict(&self, kernel: &Kernel, tpcs: u64) -> Option<Ns> {
        predict(&self.slots, &self.habits, (kernel, self.path), tpcs)
    }

    pub(super) fn observe(&mut self, kernel: &Kernel, blocks: u64, tpcs: u64, time: Ns) {
        let launch = (kernel, self.path);
        Predictor::new(&mut self.slots, &mut self.habits).observe(launch, blocks, tpcs, time);
    }
}

#[test]
fn a_known_kernel_is_predicted_and_takes_longer_on_fewer_tpcs() {
    let mut table = Table::new(64);
    let one = kernel(0x1000, 600);
    assert_eq!(table.predict(&one, 66), None);
    table.observe(&one, 600, 66, Ns(100_000));
    assert_eq!(table.predict(&one, 66), Some(Ns(100_000)));
    assert_eq!(table.predict(&one, 33), Some(Ns(200_000)));
    assert_eq!(table.predict(&one, 0), None);
    // Another grid of the program is scaled by its blocks; another program is unknown.
    assert_eq!(table.predict(&kernel(0x1000, 1200), 66), Some(Ns(200_000)));
    assert_eq!(table.predict(&kernel(0x2000, 600), 66), None);
}

/// Checks that the blocks of a small grid take as long as those of a large one, and that the
/// last wave is not divided among more TPCs.
#[test]
fn a_part_of_a_wave_takes_a_wave() {
    let mut table = Table::new(64);
    table.observe(&kernel(0x1000, 600), 600, 60, Ns(100_000));
    let predicted = |width, tpcs| table.predict(&kernel(0x1000, width), tpcs);
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
    let mut table = Table::new(64);
    let whole = kernel(0x1000, 120);
    table.observe(&whole, 120, 60, Ns(80_000));
    for _ in 0..100 {
        table.observe(&whole, 30, 60, Ns(5_000));
    }
    let one = table.predict(&kernel(0x1000, 1), 60).unwrap();
    assert!((20_000..20_010).contains(&one.get()), "{one:?}");
}

/// Checks that of launches that end between two looks, of which the first one gets all of the
/// time, the later ones are not predicted by that time.
#[test]
fn launches_that_end_together_share_their_time() {
    let mut table = Table::new(64);
    let one = kernel(0x1000, 120);
    for at in 0..400 {
        let time = if at % 20 == 0 { 200_000 } else { 0 };
        table.observe(&one, 120, 60, Ns(time));
    }
    let predicted = table.predict(&one, 60).unwrap();
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
    let mut table = Table::new(64);
    let one = kernel(0x1000, 800);
    table.observe(&one, 100, 66, Ns(10_000));
    assert_eq!(table.predict(&one, 66), Some(Ns(80_000)));
}

/// Checks that a replay is predicted as a whole, never shorter than its graph was seen to take
/// on as many TPCs or more, and not before it was seen.
#[test]
fn a_replay_is_predicted_as_a_whole() {
    let mut table = Table::new(64);
    let (graph, other) = (Kernel::graph(0x1000), Kernel::graph(0x2000));
    assert_eq!(table.predict(&graph, 60), None);
    table.observe(&graph, 1, 60, Ns(900_000));
    for (tpcs, expected) in [(60, 900_000), (66, 900_000), (20, 2_700_000)] {
        assert_eq!(table.predict(&graph, tpcs), Some(Ns(expected)));
    }
    assert_eq!(table.predict(&other, 60), None);
    assert_eq!(halves(&table.slots).0.iter().flatten().count(), 1);
    // One observation of four is a quarter of the average, not twice that.
    (0..2).for_each(|_| table.observe(&graph, 1, 60, Ns(900_000)));
    table.observe(&graph, 1, 60, Ns(500_000));
    assert_eq!(
        general(halves(&table.slots).0, &graph).unwrap().work,
        TpcNs(800_000 * 60)
    );
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
        let mut table = Table::new(16);
        let takes = |kernel: &Kernel, tpcs: u64| {
            wave * kernel.blocks().get().div_ceil(2 * tpcs)
        };
        let (seen, next) = (kernel(7, seen), kernel(7, next));
        table.observe(&seen, seen.blocks().get(), before, Ns(takes(&seen, before)));
        let predicted = table.predict(&next, now).unwrap().get();
        prop_assert!(predicted >= takes(&next, now));
        if seen == next && before == now {
            prop_assert_eq!(predicted, takes(&next, now));
        }
    }

    #[test]
    fn it_settles_on_a_steady_time(first in 1u64..1 << 40, steady in 1_000u64..1 << 40, tpcs in 1u64..256) {
        let mut table = Table::new(16);
        let one = kernel(7, 50);
        table.observe(&one, 50, tpcs, Ns(first));
        for _ in 0..150 {
            table.observe(&one, 50, tpcs, Ns(steady));
        }
        let seen = table.predict(&one, tpcs).unwrap().get();
        prop_assert!(seen.abs_diff(steady) <= steady / 100, "{seen} is not {steady}");
    }

    #[test]
    fn any_history_leaves_the_last_kernel_known(
        seen in prop::collection::vec((0u64..40, 1u32..9, any::<u64>(), any::<u64>()), 1..200),
        len in 2usize..40,
    ) {
        let mut table = Table::new(len);
        for (program, width, blocks, time) in seen {
            let one = kernel(program, width);
            table.observe(&one, blocks.max(1), 3, Ns(time));
            let same_program = get(halves(&table.slots).0, &one.any_grid()).is_some();
            prop_assert!(same_program, "just learnt and already forgotten");
        }
        let (kernels, places) = halves(&table.slots);
        for half in [kernels, places] {
            let full: Vec<_> = half.iter().flatten().collect();
            for entry in &full {
                let same = full.iter().filter(|other| other.kernel == entry.kernel);
                prop_assert_eq!(same.count(), 1);
            }
        }
    }
}
