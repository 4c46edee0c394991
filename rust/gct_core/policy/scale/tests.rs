// SPDX-License-Identifier: GPL-2.0 OR MIT

use super::*;
use core::cell::Cell;
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
        self.replay(program, launches, most, time, u64::from)
    }

    /// Launches a graph so often, whose nodes have the mean of `used` TPCs.
    fn replay(
        &mut self,
        program: u64,
        launches: u64,
        most: u32,
        time: impl Fn(u32) -> u64,
        used: impl Fn(u32) -> u64,
    ) -> Cost {
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
            laws.launch(&kernel, &size);
            let took = time(size.tpcs);
            let used = used(size.tpcs);
            let observation = Observation {
                tpcs: size.tpcs,
                used,
                time: Ns(took),
            };
            laws.observe(&kernel, observation);
            cost.time += took;
            cost.tpc_time += took * used;
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

/// Checks that a size needs no law: one that is as fast as all TPCs is taken, although those around
/// it are not.
#[test]
fn a_good_point_needs_no_law() {
    let time = |tpcs: u32| match tpcs {
        MOST | 33 => 1_000_000,
        _ => 2_000_000,
    };
    let mut world = World::new(10);
    world.run(1, 5_000, MOST, time);
    let cost = world.run(1, 5_000, MOST, time);
    assert_eq!(cost.narrowed, 5_000, "{cost:?}");
    assert!(cost.time <= 5_000 * 1_025_000, "{cost:?}");
}

/// Checks that a size which saves less TPC-time than a larger one is not taken: the smaller it is,
/// the more nodes of a graph need all TPCs. BERT on an H100: size, TPCs of its nodes in the mean,
/// and us of a replay.
#[test]
fn a_graph_whose_nodes_need_more_has_the_size_that_saves_most() {
    const BERT: [(u32, u64, u64); 10] = [
        (9, 56, 1606),
        (15, 52, 1677),
        (18, 47, 1619),
        (24, 38, 1652),
        (27, 40, 1621),
        (33, 44, 1563),
        (51, 51, 1574),
        (60, 60, 1529),
        (63, 63, 1514),
        (66, 66, 1477),
    ];
    let point = |tpcs| BERT.iter().find(|point| point.0 >= tpcs).unwrap();
    for (slip, saved) in [(10, 32), (20, 35)] {
        let mut world = World::new(slip);
        let mut run = |launches| {
            let time = |tpcs| point(tpcs).2;
            world.replay(1, launches, MOST, time, |tpcs| point(tpcs).1)
        };
        run(5_000);
        let cost = run(5_000);
        let whole = 5_000 * 1477;
        assert!(cost.time <= whole * u64::from(100 + slip) / 100, "{cost:?}");
        assert!(
            cost.tpc_time <= whole * u64::from(MOST) * (100 - saved) / 100,
            "{cost:?}"
        );
    }
}

/// Checks that a kernel keeps its TPCs if that saves no TPC-time, however much slower it may be.
#[test]
fn a_purely_parallel_kernel_keeps_its_tpcs() {
    let time = amdahl(66_000_000, 0);
    let mut world = World::new(50);
    world.run(1, 5_000, MOST, &time);
    let cost = world.run(1, 5_000, MOST, &time);
    assert_eq!(cost.narrowed, 0, "{cost:?}");
    assert!(cost.refused > 4_900, "{cost:?}");
}

/// TPCs of the masks of the samples `scaling-h100`.
const MASKS: [u32; 8] = [7, 16, 24, 33, 40, 49, 57, 66];

/// A service: us a request on each of these; how much longer p99 is than p50 on all TPCs, in
/// thousandths (samples `rightsize-h100`); and what its sizes save at least of the TPC-time
/// under a slip of 3, 10 and 20%, in thousandths.
struct Service(&'static str, [u64; 8], u64, [i64; 3]);

#[rustfmt::skip]
const SERVICES: [Service; 6] = [
    Service("resnet50", [2517, 1612, 1361, 1204, 1164, 1145, 1082, 1075], 57, [120, 330, 440]),
    Service("bert", [4362, 2518, 2011, 1789, 1719, 1666, 1583, 1575], 325, [80, 200, 400]),
    Service("detector", [10570, 5980, 4818, 4064, 3860, 3791, 3439, 3400], 242, [80, 110, 250]),
    Service("whisper", [11770, 5940, 4361, 3591, 3256, 2951, 2795, 2471], 201, [0, 0, 0]),
    Service("prefill", [21630, 10980, 8442, 6634, 6354, 6115, 5916, 4613], 127, [0, 0, 0]),
    Service("decode", [44550, 25970, 21320, 18570, 17140, 16740, 16310, 15470], 18, [0, 190, 330]),
];

impl Service {
    /// Returns the time on `tpcs` TPCs, between two masks by their distance in 1 / k.
    fn time(&self, tpcs: u32) -> u64 {
        let at = MASKS.partition_point(|mask| *mask < tpcs).clamp(1, 7);
        let x = |tpcs: u32| (1 << 20) / u64::from(tpcs);
        let (left, right) = (x(MASKS[at - 1]), x(MASKS[at]));
        let (part, whole) = (left - x(tpcs), left - right);
        1_000 * (self.1[at - 1] * (whole - part) + self.1[at] * part) / whole
    }

    /// Returns a function that adds noise to times. It is exponential: `-ln(u) = ln 2 * (zeros of
    /// u + 2 - 2 * m)` or so for a random `u = m / 2^zeros`, and p99 is ln 50 means above p50.
    fn noise(&self) -> impl Fn(u64) -> u64 {
        let state = Cell::new(88_172_645_463_325_252u64);
        let mean = self.2 * 1_000 / 3_912;
        move |time| {
            let mut bits = state.get();
            bits ^= bits << 13;
            bits ^= bits >> 7;
            bits ^= bits << 17;
            state.set(bits);
            let zeros = u64::from(bits.leading_zeros());
            let m = (((bits << zeros) >> 32) * 1_000) >> 32;
            let means = 693 * (1_000 * zeros + 2_000 - 2 * m) / 1_000;
            time + time * mean / 1_000 * means / 1_000
        }
    }
}

/// Checks the sizes of six services of an H100, with the noise of their requests. Each saves what
/// its table says can be saved, within the slip. Whisper and prefill would be slower by more than
/// they save.
#[test]
fn services_are_sized_within_their_slips_whatever_their_noise() {
    for service in &SERVICES {
        for (slip, least) in [3, 10, 20].into_iter().zip(service.3) {
            let (mut world, noise) = (World::new(slip), service.noise());
            let time = |tpcs: u32| noise(service.time(tpcs));
            world.run(1, 6_000, MOST, time);
            let seen = Cell::new((0, 0));
            world.run(1, 2_000, MOST, |tpcs| {
                let (took, of) = (service.time(tpcs), seen.get());
                seen.set((of.0 + took, of.1 + took * u64::from(tpcs)));
                time(tpcs)
            });
            let whole = 2_000 * service.time(MOST);
            let part = |time: u64, of: u64| (time * 1_000 / of) as i64;
            let slower = part(seen.get().0, whole) - 1_000;
            let saved = 1_000 - part(seen.get().1, whole * u64::from(MOST));
            let what = (service.0, slip, slower, saved);
            assert!(slower <= 10 * i64::from(slip) + 10, "{what:?}");
            assert!(saved >= least.max(slower) - 10, "{what:?}");
        }
    }
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
        Laws::new(&mut world.slots, &mut world.uses).launch(&kernel(1), &size);
    }
}

proptest! {
    /// Checks that a tenant whose times are whatever it likes gets a size between the bounds, and
    /// explores in one of so many launches at most.
    #[test]
    fn a_liar_gets_a_size_and_explores_no_more(
        times in prop::collection::vec(0u64..1 << 40, 1..50), most in 1u32..=128, least in 0u32..=128,
        slip in 1u8..=100,
    ) {
        let mut world = World::new(slip);
        world.least = least;
        let at = Cell::new(0);
        let time = |tpcs: u32| {
            at.set(at.get() + 1);
            times[(at.get() / 7 + tpcs as usize) % times.len()]
        };
        let cost = world.run(1, 2_000, most, time);
        let run = u64::from(RUN);
        prop_assert!(cost.explored <= run + run * (2_000 / (run * PAUSE_MIN)), "{cost:?}");
    }

    /// Checks that any law keeps its slip from the first launch on, with what exploring costs
    /// beyond the first run, and that TPC-time falls.
    #[test]
    fn a_law_stays_within_the_slip(
        parallel in 0u64..1 << 32, serial in 10_000u64..1 << 28, most in 2u32..=128, slip in 1u8..=50,
    ) {
        let time = amdahl(parallel, serial);
        let mut world = World::new(slip);
        let whole = time(most);
        let within = |cost: &Cost, launches: u64, runs: u64| {
            let slipped = whole * launches * u64::from(slip);
            cost.time * 100 <= whole * (launches + runs * u64::from(RUN)) * 100 + slipped + slipped / 4
        };
        let cost = world.run(1, 20_000, most, &time);
        prop_assert!(within(&cost, 20_000, 1), "{cost:?}");
        let cost = world.run(1, 5_000, most, &time);
        prop_assert!(within(&cost, 5_000, 0), "{cost:?}");
        prop_assert!(cost.tpc_time <= 5_000 * whole * u64::from(most) * 101 / 100);
    }
}
