// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Runs programs at the clocks that the policy chooses, as the daemon does.
//!
//! Energy is a model, and nothing here has seen a GPU's: half of the power at the highest clock
//! goes by the third power of the clock, the other half is always there.

use super::channel::Kernel;
use super::gpu::{Gpu, Sharing};
use super::script::{Action, Pattern, Program};
use super::world::{Life, Process, Threads, World, START};
use gct_core::iface::File;
use gct_core::policy::clock::kernels::Sums;
use gct_core::policy::clock::{Clock, Controller, Demand, Seen};
use gct_core::units::Ns;
use std::collections::BTreeMap;

const MS: u64 = 1_000_000;
/// How often the daemon looks. It does ten times as often as a real one, so that tests are short.
const EVERY: u64 = 100 * MS;
/// How long a change of the clock takes.
const SWITCH: u64 = 50 * MS;
/// How often a tenant with work looks.
const LOOK: u64 = 100_000;
const TPCS: usize = 8;

/// The clock of the model's GPU.
#[derive(Debug)]
pub(crate) struct ModelClock {
    before: Clock,
    now: Clock,
    /// When the last change is complete.
    since: u64,
    /// The thousandths of a program's time that are the cores'.
    parts: BTreeMap<u32, u64>,
}

impl Default for ModelClock {
    fn default() -> Self {
        Self {
            before: Clock::FULL,
            now: Clock::FULL,
            since: 0,
            parts: BTreeMap::new(),
        }
    }
}

impl ModelClock {
    /// Returns the clock that is in force.
    pub(crate) fn at(&self, now: u64) -> Clock {
        if now < self.since {
            self.before
        } else {
            self.now
        }
    }

    /// Returns how long a block of a program takes.
    pub(crate) fn time(&self, program: u32, block_ns: u64, now: u64) -> u64 {
        let part = self.parts.get(&program).copied().unwrap_or(1000);
        let slowed = part * 1000 / self.at(now).get();
        block_ns * (1000 - part + slowed) / 1000
    }

    fn order(&mut self, clock: Clock, now: u64) {
        (self.before, self.now, self.since) = (self.at(now), clock, now + SWITCH);
    }
}

/// The daemon's side of the clock.
#[derive(Debug)]
pub(crate) struct Clocks {
    next: u64,
    controller: Controller,
    demands: Vec<(Demand, Seen)>,
    clock: Clock,
    /// Whether the last look has ordered another clock.
    changes: bool,
    /// A process that says that nothing of its work depends on the clock.
    liar: Option<usize>,
    /// The clocks at each look.
    pub(crate) history: Vec<Clock>,
}

impl Clocks {
    fn new() -> Self {
        Self {
            next: START + EVERY,
            controller: Controller::new(),
            demands: Vec::new(),
            clock: Clock::FULL,
            changes: false,
            liar: None,
            history: Vec::new(),
        }
    }

    /// Returns when the daemon looks next.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// Returns the clock that processes are told.
    pub(crate) fn published(&self) -> Option<Clock> {
        (!self.changes).then_some(self.clock)
    }

    /// Looks at all processes, and moves the clock.
    pub(crate) fn look(&mut self, processes: &[Process], gpu: &mut Gpu, now: u64) {
        self.next = now + EVERY;
        self.demands.resize_with(processes.len(), Default::default);
        let mixed = std::mem::take(&mut self.changes);
        let mut highest = None;
        for (at, (process, (demand, before))) in processes.iter().zip(&mut self.demands).enumerate()
        {
            let governor = &process.tenant.governor;
            let mut seen = Seen {
                used: governor.gpu_time().used,
                launches: governor.counters().sums.launches,
                sums: governor.clock_sums(),
            };
            if self.liar == Some(at) {
                seen.sums = Sums {
                    base: Ns(now),
                    ..Sums::ZERO
                };
            }
            demand.look(&seen.since(before), mixed);
            *before = seen;
            let slip = governor.limits().slip_power;
            highest = highest.max(demand.wish(slip, self.clock));
        }
        // Those of an H100: 345 to 1980 MHz.
        let supported = (23..=132u64).filter_map(|step| Clock::new(step * 1000 / 132));
        let next = self.controller.look(highest, self.clock, supported);
        if next != self.clock {
            gpu.clock.order(next, now);
            (self.clock, self.changes) = (next, true);
        }
        self.history.push(self.clock);
    }
}

/// A program that always has launches of 4 ms, of which `part` thousandths are the cores'.
fn program(world: &mut World, number: u32, part: u64) -> Program {
    world.gpu.clock.parts.insert(number, part);
    let kernel = Kernel {
        program: number,
        blocks: 4 * TPCS as u32 * 4,
        block_ns: MS,
    };
    Program::new(vec![kernel], Pattern::Always(2), START, 1)
}

/// Returns a world in which processes of such slips and parts run.
fn running(processes: &[(u32, u64)]) -> World {
    let mut world = World::new(TPCS, Sharing::Beside, Threads::Each(LOOK));
    world.clocks = Some(Clocks::new());
    for (number, (slip, part)) in (0x100..).zip(processes) {
        let group = world.group(&[(File::SlipPower, slip.to_string())]);
        let program = program(&mut world, number, *part);
        world.start(group, program);
    }
    world
}

/// Runs for so many looks.
fn run(world: &mut World, looks: u64) {
    world.run_until(world.now + looks * EVERY);
}

/// Returns the launches of a process that end within so many looks.
fn ends(world: &mut World, process: usize, looks: u64) -> u64 {
    let before = world.processes[process].done.len();
    run(world, looks);
    (world.processes[process].done.len() - before) as u64
}

fn clock(world: &World) -> u64 {
    world.gpu.clock.at(world.now).get()
}

/// Checks that a program alone ends at the clock that its slip allows, and is never slower than
/// that, whatever part of its time is the cores'.
#[test]
fn a_program_has_the_lowest_clock_within_its_slip() {
    for (part, slip, least, most) in [
        (1000, 10, 909, 924),
        (1000, 20, 833, 849),
        (500, 10, 833, 856),
        (200, 10, 666, 690),
        (0, 20, 174, 174),
    ] {
        let mut world = running(&[(0, part)]);
        let plain = ends(&mut world, 0, 20);
        let mut world = running(&[(slip, part)]);
        let mut worst = u64::MAX;
        for _ in 0..15 {
            worst = worst.min(ends(&mut world, 0, 20));
        }
        let what = (part, slip, clock(&world), plain, worst);
        assert!((least..=most).contains(&clock(&world)), "{what:?}");
        assert!(
            worst * (100 + u64::from(slip)) >= (plain - 6) * 100,
            "{what:?}"
        );
        let history = &world.clocks.as_ref().unwrap().history;
        let rises = history.windows(2).filter(|pair| pair[1] > pair[0]);
        assert_eq!(rises.count(), 0, "{what:?}");
    }
}

/// Checks that of two slips the higher clock counts, and that who has none has the highest clock
/// while it works.
#[test]
fn the_highest_clock_that_anyone_asks_for_counts() {
    let mut world = running(&[(10, 1000), (20, 1000)]);
    run(&mut world, 150);
    // Neither ever had the GPU alone, so nothing was measured.
    for process in &world.processes {
        assert_eq!(process.tenant.governor.clock_sums(), Sums::ZERO);
    }
    assert!((909..=924).contains(&clock(&world)), "{}", clock(&world));
    world.act(Action::Kill(0));
    run(&mut world, 150);
    assert!((833..=849).contains(&clock(&world)), "{}", clock(&world));
    // A neighbour without a slip comes for two seconds.
    let plain = world.group(&[]);
    let strict = program(&mut world, 0x300, 1000);
    let at = world.start(plain, strict);
    run(&mut world, 2);
    assert_eq!(clock(&world), 1000, "two looks");
    run(&mut world, 20);
    assert_eq!(clock(&world), 1000);
    world.act(Action::Kill(at));
    run(&mut world, 100);
    assert!((833..=849).contains(&clock(&world)), "{}", clock(&world));
    // Nobody works.
    let before = clock(&world);
    world.processes[1].program.finish();
    run(&mut world, 50);
    assert_eq!(clock(&world), before);
}

/// Checks that a program whose kernel begins to depend on the clock goes back up, and that a new
/// kernel does.
#[test]
fn a_program_that_changes_goes_back_up() {
    for new in [false, true] {
        let mut world = running(&[(10, 0)]);
        run(&mut world, 200);
        assert!(clock(&world) < 300, "{}", clock(&world));
        if new {
            let other = program(&mut world, 0x200, 1000);
            world.processes[0].program = other;
        } else {
            world.gpu.clock.parts.insert(0x100, 1000);
        }
        run(&mut world, 5);
        assert_eq!(clock(&world), 1000, "new: {new}");
        run(&mut world, 200);
        assert!((909..=924).contains(&clock(&world)), "{}", clock(&world));
    }
}

/// Checks that who reports that nothing of its work depends on the clock lowers it for itself
/// alone.
#[test]
fn a_liar_lowers_the_clock_of_nobody_else() {
    let mut world = running(&[(10, 1000), (100, 1000)]);
    world.clocks.as_mut().unwrap().liar = Some(1);
    run(&mut world, 200);
    assert!((909..=924).contains(&clock(&world)), "{}", clock(&world));
    world.act(Action::Kill(0));
    run(&mut world, 100);
    assert!(clock(&world) < 300, "{}", clock(&world));
}

/// Checks that a stopped process keeps no clock: it has no work on the GPU.
#[test]
fn who_is_stopped_asks_for_no_clock() {
    let mut world = running(&[(20, 1000), (0, 1000)]);
    run(&mut world, 30);
    assert_eq!(clock(&world), 1000);
    world.act(Action::Stop(1));
    assert_eq!(world.processes[1].life, Life::Stopped);
    run(&mut world, 100);
    assert!((833..=849).contains(&clock(&world)), "{}", clock(&world));
}

/// Prints the table of `policy.md`: clock, slowdown and modelled energy of programs alone.
#[test]
fn the_table_of_clocks() {
    println!("| part of the cores | slip | clock | slower | energy of the model |");
    for part in [1000, 500, 200, 0] {
        let plain = {
            let mut world = running(&[(0, part)]);
            ends(&mut world, 0, 50)
        };
        for slip in [3, 10, 20] {
            let mut world = running(&[(slip, part)]);
            run(&mut world, 300);
            let slower = plain * 1000 / ends(&mut world, 0, 50).max(1);
            let clock = clock(&world);
            let power = 500 + 500 * clock.pow(3) / 1_000_000_000;
            let energy = power * slower / 1000;
            println!("| {part} | {slip}% | {clock} | {slower} | {energy} |");
            assert!(
                slower <= 1010 + 10 * u64::from(slip),
                "{part} {slip} {slower}"
            );
            assert!(energy <= 1010, "{part} {slip} {energy}");
        }
    }
}
