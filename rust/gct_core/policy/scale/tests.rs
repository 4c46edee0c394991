// SPDX-License-Identifier: GPL-2.0 OR MIT

use super::*;
use proptest::prelude::*;
use std::vec;
use std::vec::Vec;

const MOST: u32 = 66;

fn kernel(program: u64) -> Kernel {
    Kernel {
        program,
        grid: [1000, 1, 1],
        block: [128, 1, 1],
        per_tpc: 4,
    }
}

/// A tenant's kernels, whose times are functions of TPCs.
struct World {
    slots: Vec<Option<Law>>,
    uses: u32,
    slip: Percent,
    least: u32,
}

/// What launches have cost.
#[derive(Debug, Default)]
struct Cost {
    time: u64,
    tpc_time: u64,
    explored: u64,
    narrowed: u64,
    refused: u64,
}

impl World {
    fn new(slip: u8) -> Self {
        Self {
            slots: vec![None; 64],
            uses: 0,
            slip: Percent(slip),
            least: 1,
        }
    }

    /// Launches a kernel so often, on `most` TPCs at most.
    fn run(&mut self, program: u64, launches: u64, most: u32, time: impl Fn(u32) -> u64) -> Cost {
        let kernel = kernel(program);
        let bounds = Bounds {
            least: self.least,
            most,
        };
        let mut cost = Cost::default();
        for _ in 0..launches {
            let size = size(&self.slots, &kernel, bounds, self.slip, true);
            assert!(size.tpcs <= most && size.tpcs >= self.least.min(most).max(1));
            let mut laws = Laws::new(&mut self.slots, &mut self.uses);
            laws.launch(&kernel, &size, self.slip);
            let took = time(size.tpcs);
            laws.observe(&kernel, size.tpcs, Ns(took));
            cost.time += took;
            cost.tpc_time += took * u64::from(size.tpcs);
            cost.explored += u64::from(size.tpcs < size.settled);
            cost.narrowed += u64::from(size.settled < most);
            cost.refused += u64::from(size.verdict == Verdict::Refused);
        }
        cost
    }
}

/// Returns Amdahl's law.
fn amdahl(parallel: u64, serial: u64) -> impl Fn(u32) -> u64 {
    move |tpcs| parallel / u64::from(tpcs) + serial
}

/// Checks the size against the law for BERT on an H100: 20.5 ms of one TPC and 1.25 ms.
#[test]
fn a_known_law_gives_the_least_tpcs() {
    for (slip, least) in [(3, 60), (10, 45), (20, 33)] {
        let time = amdahl(20_539_000, 1_254_000);
        let mut world = World::new(slip);
        world.run(1, 5_000, MOST, &time);
        let settled = size(
            &world.slots,
            &kernel(1),
            Bounds {
                least: 1,
                most: MOST,
            },
            Percent(slip),
            false,
        );
        assert_eq!(settled.verdict, Verdict::Known);
        let allowed = time(MOST) * u64::from(100 + slip) / 100;
        assert!(time(settled.tpcs) <= allowed, "{settled:?}");
        assert!(settled.tpcs <= least, "{settled:?}");
    }
}

/// Checks that a kernel whose times jump with TPCs keeps them all.
#[test]
fn a_kernel_that_follows_no_law_keeps_its_tpcs() {
    // Half as fast on anything but all TPCs or half of them.
    let time = |tpcs: u32| match tpcs {
        MOST | 33 => 1_000_000,
        _ => 2_000_000,
    };
    let mut world = World::new(10);
    world.run(1, 5_000, MOST, time);
    let cost = world.run(1, 5_000, MOST, time);
    assert_eq!(cost.narrowed, 0, "{cost:?}");
    assert!(cost.refused > 4_000, "{cost:?}");
}

/// Checks that a kernel that scales worse than before has its TPCs again, and one that scales
/// better has fewer.
#[test]
fn a_kernel_that_changes_is_learnt_anew() {
    let (serial, parallel) = (amdahl(0, 1_000_000), amdahl(200_000_000, 0));
    let mut world = World::new(10);
    assert!(world.run(1, 5_000, MOST, &serial).narrowed > 4_000);
    world.run(1, 5_000, MOST, &parallel);
    let cost = world.run(1, 5_000, MOST, &parallel);
    assert!(cost.time <= 5_000 * parallel(MOST) * 112 / 100, "{cost:?}");
    world.run(1, 5_000, MOST, &serial);
    let cost = world.run(1, 1_000, MOST, &serial);
    assert!(
        cost.tpc_time < 1_000 * serial(MOST) * u64::from(MOST) / 2,
        "{cost:?}"
    );
}

/// Checks that a grid of one wave keeps the TPCs that hold it, also while it explores.
#[test]
fn the_least_is_kept() {
    let mut world = World::new(50);
    world.least = 40;
    let cost = world.run(1, 5_000, MOST, amdahl(0, 1_000_000));
    assert!(cost.narrowed > 4_000, "{cost:?}");
}

/// Checks that nothing is tried where its time would not be seen.
#[test]
fn who_is_not_observed_does_not_explore() {
    let mut world = World::new(10);
    world.run(1, 100, MOST, amdahl(0, 1_000_000));
    let bounds = Bounds {
        least: 1,
        most: MOST,
    };
    for _ in 0..1_000 {
        let size = size(&world.slots, &kernel(1), bounds, Percent(10), false);
        assert_eq!(size.tpcs, size.settled);
        Laws::new(&mut world.slots, &mut world.uses).launch(&kernel(1), &size, Percent(10));
    }
}

proptest! {
    /// Checks that a tenant whose times are whatever it likes gets a size between the bounds, and
    /// explores no more than others.
    #[test]
    fn a_liar_gets_a_size_and_explores_no_more(
        times in prop::collection::vec(0u64..1 << 40, 1..50), most in 1u32..=128, least in 0u32..=128,
        slip in 1u8..=100,
    ) {
        let mut world = World::new(slip);
        world.least = least;
        let at = core::cell::Cell::new(0);
        let time = |tpcs: u32| {
            at.set(at.get() + 1);
            times[(at.get() / 7 + tpcs as usize) % times.len()]
        };
        let cost = world.run(1, 2_000, most, time);
        prop_assert!(cost.explored * 400 <= 2_000 * u64::from(slip) + 1_600, "{cost:?}");
    }

    /// Checks that any law keeps its slip with what exploring costs, and that TPC-time falls.
    #[test]
    fn a_law_stays_within_the_slip(
        parallel in 0u64..1 << 32, serial in 10_000u64..1 << 28, most in 2u32..=128, slip in 1u8..=50,
    ) {
        let time = amdahl(parallel, serial);
        let mut world = World::new(slip);
        world.run(1, 20_000, most, &time);
        let cost = world.run(1, 5_000, most, &time);
        let whole = 5_000 * time(most);
        // A launch of the size that is being left, and what integers round.
        prop_assert!(cost.time * 100 <= whole * (100 + u64::from(slip)) + whole * u64::from(slip) / 4);
        prop_assert!(cost.tpc_time <= whole * u64::from(most) * 101 / 100);
        prop_assert!(cost.explored * 400 <= 5_000 * u64::from(slip) + 1_600, "{cost:?}");
    }
}
