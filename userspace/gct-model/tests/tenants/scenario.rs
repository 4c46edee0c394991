// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Makes a world of a seed.

use super::channel::Kernel;
use super::gpu::Sharing;
use super::script::{Action, Pattern, Program};
use super::world::{Threads, World, START};
use fastrand::Rng;
use gct_core::iface::File;
use gct_core::policy::slo::press::LEVELS;

/// A limit, as it is written.
type Limit = (File, String);

fn one_in(chance: &mut Rng, parts: u32) -> bool {
    chance.u32(..parts) == 0
}

/// Returns a value of a limit on launches.
fn limit(chance: &mut Rng, tpcs: usize) -> Limit {
    let most = u16::try_from(tpcs).expect("few TPCs");
    match chance.u32(..8) {
        0 => (File::ComputePriority, chance.u32(..12).to_string()),
        1 => (File::TpcSteal, chance.u32(..2).to_string()),
        2 => (File::AtomDuration, chance.u32(10..400).to_string()),
        3 => {
            let first = chance.u16(..most);
            (
                File::TpcMask,
                format!("{first}-{}", chance.u16(first..most)),
            )
        }
        4 => (File::TpcQuota, chance.u16(..=most / 2).to_string()),
        5 => (File::TpcQuota, "none".into()),
        6 => (File::ComputeWeight, chance.u32(20..500).to_string()),
        _ => {
            let period = chance.u64(1_000..20_000);
            (
                File::ComputeMax,
                format!("{} {period}", chance.u64(period / 4..=period)),
            )
        }
    }
}

fn kernel(chance: &mut Rng, program: u32, tpcs: usize) -> Kernel {
    let wave = 4 * u32::try_from(tpcs).expect("few TPCs");
    Kernel {
        program,
        blocks: match chance.u32(..3) {
            0 => chance.u32(1..=wave),
            _ => chance.u32(1..=6 * wave),
        },
        block_ns: 1_000 * chance.u64(2..=150),
    }
}

fn program(chance: &mut Rng, tpcs: usize) -> Program {
    let count = chance.u32(1..4);
    let kernels = (1..=count)
        .map(|number| kernel(chance, 0x100 * number, tpcs))
        .collect();
    let pattern = match chance.u32(..2) {
        0 => Pattern::Always(chance.u32(1..12)),
        _ => Pattern::Requests {
            launches: chance.u32(1..6),
            pause_ns: 1_000 * chance.u64(20..4_000),
        },
    };
    let start = START + 1_000 * chance.u64(..3_000);
    Program::new(kernels, pattern, start, chance.u64(..))
}

/// Returns something that happens to one of the tenants or groups.
fn action(chance: &mut Rng, tenants: usize, groups: usize, tpcs: usize) -> Action {
    let (at, group) = (chance.usize(..tenants), chance.usize(..groups));
    match chance.u32(..10) {
        0 => Action::Kill(at),
        1 => Action::Stop(at),
        2..4 => Action::Continue(at),
        4 => Action::Write(group, File::ComputeFreeze, "1".into()),
        5..7 => Action::Write(group, File::ComputeFreeze, "0".into()),
        _ => {
            let (file, text) = limit(chance, tpcs);
            Action::Write(group, file, text)
        }
    }
}

/// How large worlds are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    pub(crate) tenants: usize,
    pub(crate) time_ns: u64,
}

/// Creates the world of a seed.
pub(crate) fn world(seed: u64, size: Size) -> World {
    let chance = &mut Rng::with_seed(seed);
    let tpcs = chance.usize(2..=16);
    let sharing = match chance.u32(..2) {
        0 => Sharing::Beside,
        _ => Sharing::Turns {
            slice: 1_000 * chance.u64(50..3_000),
            switch: 1_000 * chance.u64(..200),
        },
    };
    let threads = match chance.u32(..2) {
        0 => Threads::One,
        _ => Threads::Each(1_000 * chance.u64(5..=50)),
    };
    let mut world = World::new(tpcs, sharing, threads);
    let tenants = chance.usize(2..=size.tenants);
    let mut groups = 0;
    for _ in 0..tenants {
        if groups == 0 || !one_in(chance, 4) {
            let count = chance.usize(..4);
            let limits: Vec<Limit> = (0..count).map(|_| limit(chance, tpcs)).collect();
            world.group(&limits);
            groups += 1;
        }
        let group = chance.usize(..groups);
        let program = program(chance, tpcs);
        world.start(group, program);
    }
    let mut script: Vec<(u64, Action)> = (0..chance.usize(..3 * tenants))
        .map(|_| {
            (
                START + chance.u64(..size.time_ns),
                action(chance, tenants, groups, tpcs),
            )
        })
        .collect();
    // Drawn last, so that a seed without goals or slips keeps its world.
    if one_in(chance, 3) {
        script.extend((0..chance.usize(1..4)).map(|_| {
            let press = Action::Press(chance.usize(..groups), chance.u8(..=LEVELS));
            (START + chance.u64(..size.time_ns), press)
        }));
    }
    if one_in(chance, 3) {
        script.extend((0..groups).map(|group| {
            let slip = chance.u32(0..=100).to_string();
            (START, Action::Write(group, File::SlipTpc, slip))
        }));
    }
    script.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
    world.script = script;
    world
}
