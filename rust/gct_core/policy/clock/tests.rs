// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Runs processes with laws at the clocks that the policy chooses.

use super::kernels::{Laws, Work};
use super::*;
use crate::policy::predict::Kernel;
use proptest::prelude::*;
use std::vec;
use std::vec::Vec;

/// Clocks in steps of a 128th; those of an H100 are 15 of 1980 MHz.
fn supported() -> impl Iterator<Item = Clock> {
    (16..=128u64).filter_map(|step| Clock::new(step * WHOLE / 128))
}

fn clock(thousandths: u64) -> Clock {
    Clock::new(thousandths).unwrap()
}

/// Time at a clock, in thousandths of that at the highest.
type LawOf = fn(Clock) -> u64;

fn compute(clock: Clock) -> u64 {
    WHOLE + clock.excess()
}

fn memory(_: Clock) -> u64 {
    WHOLE
}

fn half(clock: Clock) -> u64 {
    WHOLE + clock.excess() / 2
}

/// The time of the memory, until that of the cores is longer.
fn roofline(clock: Clock) -> u64 {
    WHOLE.max(compute(clock) * 7 / 10)
}

/// A process that runs kernels in turn.
struct Process {
    /// Each with its number, its law and its time at the highest clock.
    kernels: Vec<(u64, LawOf, u64)>,
    slip: Percent,
    laws: Vec<Option<super::kernels::Law>>,
    uses: u32,
    sums: Sums,
    demand: Demand,
    /// Whether its times are its own.
    alone: bool,
    /// Thousandths by which its times vary.
    noise: u64,
    chance: u64,
}

impl Process {
    fn new(slip: u8, kernels: &[(u64, LawOf, u64)]) -> Self {
        Self {
            kernels: kernels.to_vec(),
            slip: Percent(slip),
            laws: vec![None; 64],
            uses: 0,
            sums: Sums::ZERO,
            demand: Demand::new(),
            alone: true,
            noise: 0,
            chance: 1,
        }
    }

    fn work(number: u64) -> Work {
        Work {
            kernel: Kernel {
                program: number,
                grid: [100, 1, 1],
                block: [32, 1, 1],
                per_tpc: 4,
            },
            blocks: 100,
            tpcs: 66,
        }
    }

    /// Runs each kernel so often. Returns its time, and what that is at the highest clock.
    fn run(&mut self, clock: Clock, times: u32) -> (u64, u64) {
        let (mut used, mut full) = (0, 0);
        for (number, law, time) in self
            .kernels
            .iter()
            .cycle()
            .take(self.kernels.len() * times as usize)
        {
            self.chance = self
                .chance
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1);
            let noise = (self.chance >> 33) % (2 * self.noise + 1);
            let takes = time * law(clock) / WHOLE;
            (used, full) = (used + takes, full + time);
            let seen = Ns(takes * (WHOLE + noise - self.noise) / WHOLE);
            let own = self.alone.then_some((seen, clock));
            Laws::new(&mut self.laws, &mut self.uses).ended(
                &Self::work(*number),
                own,
                &mut self.sums,
            );
        }
        (used, full)
    }

    /// Works for a look. Returns its slowdown in thousandths.
    fn look(&mut self, clock: Clock, mixed: bool) -> u64 {
        let before = self.sums;
        let (used, full) = self.run(clock, 20);
        let since = Seen {
            used: Ns(used),
            sums: self.sums.since(&before),
            ..Seen::default()
        };
        self.demand.look(&since, mixed);
        used * WHOLE / full - WHOLE
    }

    fn wish(&self, clock: Clock) -> Option<Clock> {
        self.demand.wish(self.slip, clock)
    }
}

/// A GPU with its clock.
struct Gpu {
    clock: Clock,
    controller: Controller,
    changed: bool,
    /// Looks since the clock rose last.
    steady: u32,
}

impl Gpu {
    fn new() -> Self {
        Self {
            clock: Clock::FULL,
            controller: Controller::new(),
            changed: false,
            steady: 0,
        }
    }

    /// Has processes work for a look, and moves the clock. Returns the slowdown of each.
    fn look(&mut self, processes: &mut [&mut Process]) -> Vec<u64> {
        let slow = processes
            .iter_mut()
            .map(|process| process.look(self.clock, self.changed));
        let slow = slow.collect();
        let wishes = processes.iter().map(|process| process.wish(self.clock));
        let wish = of_all(wishes, false);
        let next = self.controller.look(wish, self.clock, supported());
        self.steady = if next > self.clock {
            0
        } else {
            self.steady + 1
        };
        self.changed = next != self.clock;
        self.clock = next;
        slow
    }

    /// Looks so often. Returns the worst slowdowns.
    fn run(&mut self, looks: u32, processes: &mut [&mut Process]) -> Vec<u64> {
        let mut worst = vec![0; processes.len()];
        for _ in 0..looks {
            for (worst, slow) in worst.iter_mut().zip(self.look(processes)) {
                *worst = slow.max(*worst);
            }
        }
        worst
    }
}

const MS: u64 = 1_000_000;

#[test]
fn the_excess_of_a_clock_is_what_it_lacks() {
    assert_eq!(
        [1000, 800, 500].map(|it| clock(it).excess()),
        [0, 250, 1000]
    );
    assert_eq!([0, 1001, 1 << 40].map(Clock::new), [None; 3]);
}

#[test]
fn a_process_has_the_lowest_clock_within_its_slip() {
    let cases: [(LawOf, u8, u64, u64); 7] = [
        (compute, 10, 906, 922),
        (compute, 20, 828, 844),
        (memory, 10, 125, 125),
        (half, 10, 828, 844),
        (half, 3, 937, 954),
        (roofline, 10, 625, 657),
        (compute, 0, 1000, 1000),
    ];
    for (law, slip, least, most) in cases {
        let (mut gpu, mut process) = (Gpu::new(), Process::new(slip, &[(1, law, MS)]));
        let worst = gpu.run(400, &mut [&mut process]);
        let what = (slip, gpu.clock, worst[0]);
        assert!((least..=most).contains(&gpu.clock.get()), "{what:?}");
        assert!(worst[0] <= 10 * u64::from(slip), "{what:?}");
        assert!(gpu.steady > 300, "it never rises: {what:?}");
    }
}

#[test]
fn each_kernel_counts_by_its_share_of_the_time() {
    let of = |compute_ms: u64, memory_ms: u64| {
        let kernels: [(u64, LawOf, u64); 2] =
            [(1, compute, compute_ms * MS), (2, memory, memory_ms * MS)];
        let (mut gpu, mut process) = (Gpu::new(), Process::new(10, &kernels));
        process.noise = 20;
        let worst = gpu.run(400, &mut [&mut process]);
        assert!(worst[0] <= 103, "{worst:?}");
        assert_eq!(process.laws.iter().flatten().count(), 2);
        gpu.clock.get()
    };
    // 1 / (1 + 0.1 / S) for S of 0.75, 0.5 and 0.25.
    assert!((875..=907).contains(&of(3, 1)));
    assert!((828..=860).contains(&of(1, 1)));
    assert!((703..=750).contains(&of(1, 3)));
}

#[test]
fn strangers_keep_the_clock_high() {
    let wishes = || [Some(clock(700)), None, Some(clock(800))].into_iter();
    assert_eq!(of_all(wishes(), false), Some(clock(800)));
    assert_eq!(of_all(wishes(), true), Some(Clock::FULL));
    assert_eq!(of_all([None].into_iter(), false), None);
}

#[test]
fn the_highest_wish_of_those_with_work_counts() {
    let mut gpu = Gpu::new();
    let mut cores = Process::new(10, &[(1, compute, MS)]);
    let mut bytes = Process::new(10, &[(2, memory, MS)]);
    let worst = gpu.run(100, &mut [&mut cores, &mut bytes]);
    assert!(
        (906..=922).contains(&gpu.clock.get()) && worst[0] <= 100,
        "{worst:?}"
    );
    // The memory-bound one alone goes on from there.
    gpu.run(100, &mut [&mut bytes]);
    for _ in 0..IDLE {
        cores.demand.look(&Seen::default(), false);
    }
    assert_eq!(cores.wish(gpu.clock), None);
    gpu.run(300, &mut [&mut bytes]);
    assert_eq!(gpu.clock, clock(125));
    // Who has no slip has the highest clock at once.
    let mut strict = Process::new(0, &[(3, memory, MS)]);
    gpu.look(&mut [&mut bytes, &mut strict]);
    assert_eq!(gpu.clock, Clock::FULL);
}

#[test]
fn launches_without_an_end_are_work() {
    let mut demand = Demand::new();
    assert_eq!(demand.wish(Percent(0), Clock::FULL), None);
    let since = Seen {
        launches: 1,
        ..Seen::default()
    };
    demand.look(&since, false);
    assert_eq!(demand.wish(Percent(0), Clock::FULL), Some(Clock::FULL));
    // They have no time, so a slip neither raises nor lowers the clock for them.
    assert_eq!(demand.wish(Percent(9), clock(900)), Some(clock(900)));
    for _ in 1..IDLE {
        demand.look(&Seen::default(), false);
    }
    assert!(demand.wish(Percent(0), Clock::FULL).is_some());
    demand.look(&Seen::default(), false);
    assert_eq!(demand.wish(Percent(0), Clock::FULL), None);
}

#[test]
fn nobody_s_work_moves_no_clock() {
    let (mut gpu, mut process) = (Gpu::new(), Process::new(10, &[(1, compute, MS)]));
    gpu.run(50, &mut [&mut process]);
    let before = gpu.clock;
    assert_eq!(gpu.controller.look(None, before, supported()), before);
}

#[test]
fn what_is_not_measured_is_taken_for_sensitive() {
    let (mut gpu, mut process) = (Gpu::new(), Process::new(10, &[(1, memory, MS)]));
    process.alone = false;
    gpu.run(100, &mut [&mut process]);
    assert!((906..=922).contains(&gpu.clock.get()), "{:?}", gpu.clock);
    // Half of the time is that of launches that are never seen.
    let seen = |used: u64| {
        let mut demand = Demand::new();
        let sums = Sums {
            base: Ns(100 * MS),
            ..Sums::ZERO
        };
        demand.look(
            &Seen {
                used: Ns(used),
                sums,
                ..Seen::default()
            },
            false,
        );
        demand.sensitivity(Clock::FULL)
    };
    assert_eq!(
        [100, 200, 400].map(|ms| seen(ms * MS)),
        [Some(0), Some(500), Some(750)]
    );
}

#[test]
fn a_new_program_is_measured_at_the_highest_clock() {
    let (mut gpu, mut process) = (Gpu::new(), Process::new(10, &[(1, memory, MS)]));
    gpu.run(200, &mut [&mut process]);
    let low = gpu.clock;
    process.kernels = vec![(2, compute, MS)];
    gpu.look(&mut [&mut process]);
    assert!(low < clock(500) && gpu.clock == Clock::FULL);
    let worst = gpu.run(100, &mut [&mut process]);
    assert!(
        (906..=922).contains(&gpu.clock.get()) && worst[0] <= 100,
        "{worst:?}"
    );
}

#[test]
fn a_kernel_that_becomes_another_goes_back_up() {
    let (mut gpu, mut process) = (Gpu::new(), Process::new(10, &[(1, memory, MS)]));
    gpu.run(200, &mut [&mut process]);
    assert!(gpu.clock < clock(500));
    // The same program on data that fits in the caches.
    process.kernels = vec![(1, compute, MS)];
    gpu.look(&mut [&mut process]);
    gpu.look(&mut [&mut process]);
    let worst = gpu.run(100, &mut [&mut process]);
    assert!(
        (906..=922).contains(&gpu.clock.get()) && worst[0] <= 100,
        "{worst:?}"
    );
}

#[test]
fn three_times_that_no_clock_explains_forget_a_kernel() {
    let process = |times: &[(u64, u64)]| {
        let mut process = Process::new(10, &[]);
        let (mut laws, mut uses, mut sums) = (vec![None; 16], 0, Sums::ZERO);
        let mut ended = |time: u64, at: u64| {
            let own = Some((Ns(time), clock(at)));
            Laws::new(&mut laws, &mut uses).ended(&Process::work(1), own, &mut sums);
        };
        (0..16).for_each(|_| ended(1_000, 1000));
        times.iter().for_each(|(time, at)| ended(*time, *at));
        process.sums = sums;
        sums.fresh
    };
    let learnt = process(&[]);
    assert_eq!(learnt, Ns(15_000), "the last observation is known");
    assert_eq!(process(&[(2_000, 500); 9]), learnt, "the clock explains it");
    let twice = [(9_000, 500), (9_000, 500), (1_500, 500), (9_000, 500)];
    assert_eq!(process(&twice), learnt);
    assert!(process(&[(9_000, 500); 3]) > learnt);
    assert!(
        process(&[(700, 500); 3]) > learnt,
        "no clock makes it faster"
    );
    assert!(process(&[(1_300, 1000); 3]) > learnt);
    let other = [[(1_000, 500); 16], [(2_000, 500); 16]].concat();
    assert!(
        process(&other) > learnt,
        "it depends on the clock otherwise"
    );
}

#[test]
fn times_on_other_tpcs_are_not_compared() {
    let (mut laws, mut uses, mut sums) = (vec![None; 64], 0, Sums::ZERO);
    let mut ended = |work: &Work, own| {
        let before = sums;
        Laws::new(&mut laws, &mut uses).ended(work, own, &mut sums);
        sums.since(&before)
    };
    let work = Process::work(1);
    let full = Some((Ns(1_000), Clock::FULL));
    for _ in 0..16 {
        ended(&work, full);
    }
    assert_eq!(
        ended(&work, None).base,
        Ns(1_000),
        "it is known, whoever works beside it"
    );
    for other in [
        Work { tpcs: 33, ..work },
        Work { blocks: 50, ..work },
        Process::work(2),
    ] {
        assert_eq!(ended(&other, full).fresh, Ns(1_000));
        assert_eq!(ended(&other, None), Sums::ZERO, "that was not its own");
    }
}

#[test]
fn lower_clocks_wait_and_higher_ones_do_not() {
    let (mut controller, low) = (Controller::new(), clock(500));
    let mut looks = |wish: u64, at: u64| {
        let mut looks = 0;
        loop {
            looks += 1;
            let next = controller.look(Some(clock(wish)), clock(at), supported());
            if next != clock(at) {
                return (looks, next);
            }
        }
    };
    assert_eq!(looks(500, 1000), (5, low));
    assert_eq!(looks(500, 1000), (5, low));
    // Each rise doubles the wait.
    assert_eq!(looks(1000, 500), (1, Clock::FULL));
    assert_eq!(
        looks(501, 1000),
        (10, clock(507)),
        "the next one that there is"
    );
    for _ in 0..20 {
        looks(1000, 500);
    }
    assert_eq!(looks(500, 1000).0, 320);
    assert_eq!(looks(500, 1000).0, 160);
}

/// Checks that times which vary by 5 to 18%, as those of launches of few looks do, neither hide a
/// slowdown nor make the clock swing: of 600 looks, a few raise it.
#[test]
fn noise_neither_exceeds_the_slip_nor_moves_the_clock_often() {
    let cases: [(LawOf, u64, u8); 6] = [
        (compute, 50, 10),
        (compute, 180, 10),
        (half, 50, 10),
        (half, 100, 5),
        (memory, 100, 3),
        (roofline, 100, 10),
    ];
    for (law, noise, slip) in cases {
        let kernels = [(1, law, MS), (2, law, 2 * MS), (3, memory as LawOf, MS)];
        let (mut gpu, mut process) = (Gpu::new(), Process::new(slip, &kernels));
        process.noise = noise;
        let (mut rises, mut worst) = (0, 0);
        for _ in 0..600 {
            let before = gpu.clock;
            worst = gpu.look(&mut [&mut process])[0].max(worst);
            rises += u32::from(gpu.clock > before);
        }
        let what = (noise, slip, worst, rises);
        assert!(
            worst <= 10 * u64::from(slip) + noise / 20 && rises <= 20,
            "{what:?}"
        );
    }
}

/// Returns a law between memory and cores: each step of a clock slows it by a part of that step.
fn any_law(parts: &[u64], clock: Clock) -> u64 {
    let (mut time, mut before) = (WHOLE * WHOLE, Clock::FULL);
    for (step, part) in (16..128u64).rev().zip(parts) {
        let next = Clock::new(step * WHOLE / 128).unwrap();
        if next < clock {
            break;
        }
        time += time * (before.get() - next.get()) * part / next.get() / 100;
        before = next;
    }
    time / WHOLE
}

proptest! {
    /// Checks that no law exceeds its slip at any look, whatever its shape.
    #[test]
    fn any_law_stays_within_the_slip(
        parts in proptest::collection::vec(0u64..=100, 112), slip in 1u8..=100,
    ) {
        let (mut gpu, mut demand) = (Gpu::new(), Demand::new());
        let (mut laws, mut uses, mut sums) = (vec![None; 16], 0, Sums::ZERO);
        for _ in 0..200 {
            let before = sums;
            let time = Ns(any_law(&parts, gpu.clock) * 1_000);
            for _ in 0..20 {
                let own = Some((time, gpu.clock));
                Laws::new(&mut laws, &mut uses).ended(&Process::work(1), own, &mut sums);
            }
            let since = Seen {
                used: time * 20,
                sums: sums.since(&before),
                ..Seen::default()
            };
            demand.look(&since, gpu.changed);
            // Two thousandths are those of the integers.
            prop_assert!(time.get() <= MS + MS * u64::from(slip) / 100 + 2_000, "{:?}", time);
            let wish = demand.wish(Percent(slip), gpu.clock);
            let next = gpu.controller.look(wish, gpu.clock, supported());
            gpu.changed = next != gpu.clock;
            gpu.clock = next;
        }
    }

    /// Checks that no report makes a wish of more than the highest clock, nor panics.
    #[test]
    fn any_report_is_survived(
        reports in proptest::collection::vec(any::<[u64; 4]>(), 1..20),
        slip in 0u8..=100, at in 1u64..=1000,
    ) {
        let mut demand = Demand::new();
        for [used, base, sensitive, fresh] in reports {
            let sums = Sums { base: Ns(base), sensitive: Ns(sensitive), fresh: Ns(fresh) };
            demand.look(&Seen { used: Ns(used), sums, ..Seen::default() }, false);
            let wish = demand.wish(Percent(slip), clock(at));
            prop_assert!(wish.is_some_and(|wish| wish <= Clock::FULL));
            // One step down at most.
            let most = at * 100 / (100 + u64::from(slip));
            prop_assert!(wish.is_some_and(|wish| wish.get() >= most));
        }
    }
}
