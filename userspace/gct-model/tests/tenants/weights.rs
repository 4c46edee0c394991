// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Measures weights of programs that a service of an earlier rank interrupts, as in LithOS's
//! stacking: requests of 0.9 ms at random that take a third of the GPU.

use super::channel::Kernel;
use super::gpu::Sharing;
use super::measured::{active, MS, SETTLED};
use super::script::{Pattern, Program};
use super::world::{Threads, World, START};
use gct_core::iface::File;

const US: u64 = 1_000;
/// How often the library looks while work is held back.
const LOOK: u64 = 50 * US;
/// How long launches of two programs take. No atom divides them, as those of a graph.
const TIMES: [u64; 2] = [1_350 * US, 3_500 * US];
/// The service's requests.
const REQUESTS: Pattern = Pattern::Requests {
    launches: 1,
    pause_ns: 2_600 * US,
};
const TURNS: Sharing = Sharing::Turns {
    slice: 2 * MS,
    switch: 100 * US,
};

/// Returns a launch of eight waves on four TPCs.
fn kernel(time: u64) -> Kernel {
    Kernel {
        program: 0x100,
        blocks: 16 * 8,
        block_ns: time / 8,
    }
}

/// Returns a launch of one wave, which stands for a graph: nothing divides it.
fn graph(time: u64) -> Kernel {
    Kernel {
        program: 0x100,
        blocks: 16,
        block_ns: time,
    }
}

/// Returns the time of the service and of both programs in a second.
fn measure(weights: [u64; 2], sharing: Sharing, pattern: Pattern) -> Vec<u64> {
    let mut world = World::new(4, sharing, Threads::Each(20 * US));
    let group = world.group(&[(File::ComputePriority, "0".into())]);
    world.start(
        group,
        Program::new(vec![kernel(900 * US)], REQUESTS, START, 7),
    );
    for (weight, time) in weights.into_iter().zip(TIMES) {
        let group = world.group(&[
            (File::ComputePriority, "1".into()),
            (File::ComputeWeight, weight.to_string()),
            (File::AtomDuration, "1000000".into()),
        ]);
        world.start(group, Program::new(vec![kernel(time)], pattern, START, 1));
    }
    world.run_until(SETTLED);
    active(&mut world, SETTLED + 1_000 * MS)
}

/// Checks that programs have the parts that their weights say of what the service leaves, whether
/// they always have a launch waiting or pause behind each one. By turns a launch in flight is
/// charged for the service's time, too, and the longer one more often: within 8%.
#[test]
fn weights_divide_what_an_earlier_rank_leaves() {
    let patterns = [
        Pattern::Always(1),
        Pattern::Closed {
            launches: 1,
            pause_ns: 60 * US,
        },
    ];
    for (weights, sharing, pattern) in [770, 950].into_iter().flat_map(|first| {
        let sharings = [TURNS, Sharing::Beside].into_iter();
        sharings.flat_map(move |sharing| {
            patterns.map(|pattern| ([first, 1_000 - first], sharing, pattern))
        })
    }) {
        let used = measure(weights, sharing, pattern);
        let [service, first, second] = used[..] else {
            panic!("{used:?}");
        };
        let missed = (1_000 * first / (first + second)).abs_diff(weights[0]);
        assert!(
            missed <= 80,
            "{weights:?}, {sharing:?}, {pattern:?}: {used:?}"
        );
        assert!(service + first + second > 840 * MS, "{used:?}");
    }
}

/// Returns the time that two equals have in the quarter of a second behind a service that has held
/// the first of them back for a second, and the second on half of its TPCs.
fn held_back(beside_least: bool) -> [u64; 2] {
    let mut world = World::new(4, Sharing::Beside, Threads::Each(20 * US));
    let mut start = |priority: u32, weight: u32, mask: &str, at: u64| {
        let group = world.group(&[
            (File::ComputePriority, priority.to_string()),
            (File::ComputeWeight, weight.to_string()),
            (File::TpcMask, mask.into()),
        ]);
        let kernels = vec![kernel(1_000 * US)];
        let program = Program::new(kernels, Pattern::Always(3), at, 1);
        world.start(group, program)
    };
    let service = start(0, 100, "0-1", SETTLED);
    let equals = [start(1, 100, "0-1", START), start(1, 100, "0-3", START)];
    if beside_least {
        start(1, 1, "0-3", START);
    }
    world.run_until(SETTLED + 1_000 * MS);
    world.processes[service].program.finish();
    let used = active(&mut world, SETTLED + 1_250 * MS);
    equals.map(|process| used[process])
}

/// Checks that who was held back makes up for no more than a turn of its equals, also where a
/// tenant of the least weight had moved far in one of its turns.
#[test]
fn the_least_weight_lets_nobody_make_up_for_more_than_a_turn() {
    for beside_least in [false, true] {
        let [held, other] = held_back(beside_least);
        assert!(
            held + other > 200 * MS && held < other + 60 * MS,
            "{beside_least}: {held} {other}"
        );
    }
}

/// Returns the time in a second of a program with three quarters of the weights, whose requests
/// take `run` with a pause of `pause` behind each, and of one that launches four steps of two
/// launches at once, as a decoder does. Both may stand behind a service, and be graphs.
fn beside_steps([run, pause]: [u64; 2], sharing: Sharing, served: bool, graphs: bool) -> [u64; 2] {
    let mut world = World::new(4, sharing, Threads::Each(LOOK));
    if served {
        let group = world.group(&[(File::ComputePriority, "0".into())]);
        let kernels = vec![kernel(900 * US)];
        world.start(group, Program::new(kernels, REQUESTS, START, 7));
    }
    let kernel = if graphs { graph } else { kernel };
    let steps = vec![kernel(3_300 * US), kernel(100 * US)];
    let programs = [
        ("750", vec![kernel(run * US)], (1, pause * US)),
        ("250", steps, (8, 300 * US)),
    ];
    for (weight, kernels, (launches, pause_ns)) in programs {
        let mut limits = vec![
            (File::ComputePriority, "1".into()),
            (File::ComputeWeight, weight.into()),
        ];
        let pattern = Pattern::Closed { launches, pause_ns };
        let mut program = Program::new(kernels, pattern, START, 1).in_steps();
        match graphs {
            true => program = program.of_graphs(),
            false => limits.push((File::AtomDuration, "1000000".into())),
        }
        let group = world.group(&limits);
        world.start(group, program);
    }
    world.run_until(SETTLED);
    let used = active(&mut world, SETTLED + 1_000 * MS);
    used[used.len() - 2..].try_into().unwrap()
}

/// Checks that a program keeps its turn in the pause between two requests, also where that is
/// longer than a look: it has its part, or without its pauses at least two thirds of both.
#[test]
fn a_pause_between_requests_does_not_end_a_turn() {
    for sharing in [TURNS, Sharing::Beside] {
        for (served, pause) in [
            (false, 60),
            (false, 150),
            (false, 300),
            (true, 60),
            (true, 150),
        ] {
            let [first, second] = beside_steps([1_350, pause], sharing, served, false);
            let part = 100 * first / (first + second);
            assert!(
                (67..84).contains(&part),
                "{sharing:?}, {served}, {pause}: {first} {second}"
            );
        }
    }
}

/// Checks that nobody waits for a program that pauses for as long as it runs.
#[test]
fn who_pauses_for_as_long_as_it_runs_has_no_turn_meanwhile() {
    for sharing in [TURNS, Sharing::Beside] {
        let [first, second] = beside_steps([300, 300], sharing, false, false);
        assert!(first + second > 900 * MS, "{sharing:?}: {first} {second}");
    }
}

/// Checks that graphs behind a service have their parts, too, although nobody predicts their times.
#[test]
fn weights_divide_the_time_of_graphs() {
    for sharing in [TURNS, Sharing::Beside] {
        for pause in [60, 90, 150] {
            let [first, second] = beside_steps([1_350, pause], sharing, true, true);
            let part = 100 * first / (first + second);
            assert!(
                (70..84).contains(&part),
                "{sharing:?}, {pause}: {first} {second}"
            );
        }
    }
}
