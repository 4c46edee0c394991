// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Measures launches under `slip.tpc` in worlds made for one promise each.

use super::channel::Kernel;
use super::gpu::Sharing;
use super::script::{Pattern, Program};
use super::world::{Threads, World, START};
use gct_core::iface::File;
use gct_core::submit::stats::Counters;

const MS: u64 = 1_000_000;
/// How often a tenant with work looks, as a poll does.
const LOOK: u64 = 5_000;
const TPCS: usize = 16;

/// Blocks that a TPC holds at once.
const WAVE: u32 = 4;
/// Blocks of two waves on all TPCs, of which the second is nearly empty. Nine TPCs are as fast.
const TAIL: u32 = WAVE * 18;

/// Returns a program whose launches of so many blocks come one after another.
fn launches(blocks: u32, block_ns: u64) -> Program {
    let kernel = Kernel {
        program: 0x100,
        blocks,
        block_ns,
    };
    Program::new(vec![kernel], Pattern::Always(1), START, 1)
}

/// Runs one program alone under a slip. Returns its launches in the second half of the time, and
/// what was counted.
fn alone(slip: u32, program: Program, time: u64) -> (usize, Counters) {
    alone_on(Threads::Each(LOOK), slip, program, time)
}

/// The same, with these threads.
fn alone_on(threads: Threads, slip: u32, program: Program, time: u64) -> (usize, Counters) {
    let mut world = World::new(TPCS, Sharing::Beside, threads);
    let group = world.group(&[(File::SlipTpc, slip.to_string())]);
    world.start(group, program);
    world.run_until(START + time / 2);
    let before = world.processes[0].done.len();
    world.run_until(START + time);
    let process = &world.processes[0];
    (
        process.done.len() - before,
        *process.tenant.governor.counters(),
    )
}

/// Checks that launches get fewer TPCs within the slip, as few as are as fast.
#[test]
fn launches_are_narrowed_within_the_slip() {
    let (plain, none) = alone(0, launches(TAIL, 500_000), 2_000 * MS);
    assert_eq!((none.sums.slip_narrowed, none.sums.slip_saved), (0, 0));
    for slip in [10, 20] {
        let (sized, counters) = alone(slip, launches(TAIL, 500_000), 2_000 * MS);
        assert!(
            counters.sums.slip_narrowed as usize > sized / 2,
            "{slip}% {counters:?}"
        );
        let least = plain * 100 / (100 + slip as usize / 4 + 1);
        assert!(sized >= least, "{slip}%: {sized} launches of {plain}");
        // 7 of 16 TPCs, in half of all launches.
        let saved = counters.sums.slip_saved * 100 / (2_000 * MS);
        assert!(saved > 100 * 7 / 16 / 2, "{slip}%: {saved}% saved");
    }
}

/// Checks that the driver's worker, which looks more seldom, sees the times of launches of a
/// millisecond well enough, and takes those of 40 us for unknown.
#[test]
fn the_driver_learns_the_times_of_longer_launches() {
    for (block_ns, learns) in [(500_000, true), (20_000, false)] {
        let program = launches(TAIL, block_ns);
        let (sized, counters) = alone_on(Threads::One, 10, program, 2_000 * MS);
        let narrowed = counters.sums.slip_narrowed as usize;
        assert!(sized > 100, "{sized} launches");
        assert_eq!(narrowed > sized / 2, learns, "{narrowed} of {sized}");
    }
}

/// Checks that launches of many waves keep their TPCs: fewer would save no TPC-time.
#[test]
fn purely_parallel_launches_are_not_narrowed() {
    let (sized, counters) = alone(20, launches(20 * WAVE * TPCS as u32, 50_000), 2_000 * MS);
    assert!(sized > 500 && counters.sums.slip_refused as usize > sized);
    assert!(
        (counters.sums.slip_narrowed as usize) < sized / 20,
        "{counters:?}"
    );
}

/// Checks that times count only while nobody else works on the same TPCs. A neighbour that always
/// works there leaves nothing to learn. One that works now and then changes nothing of what was
/// learnt, although launches beside it take up to twice as long.
#[test]
fn a_time_beside_another_on_the_same_tpcs_tells_nothing() {
    let beside = |theirs: &str, pattern: Pattern| {
        let mut world = World::new(TPCS, Sharing::Beside, Threads::Each(LOOK));
        let slip = (File::SlipTpc, "20".into());
        let sized = world.group(&[slip, (File::TpcMask, "0-7".into())]);
        let plain = world.group(&[(File::TpcMask, theirs.into())]);
        world.start(sized, launches(WAVE * 10, 500_000));
        let kernel = Kernel {
            program: 0x100,
            blocks: 640,
            block_ns: 50_000,
        };
        world.start(plain, Program::new(vec![kernel], pattern, START, 1));
        world.run_until(START + 4_000 * MS);
        *world.processes[0].tenant.governor.counters()
    };
    let always = Pattern::Always(1);
    let at_times = Pattern::Requests {
        launches: 1,
        pause_ns: 12 * MS,
    };
    let (apart, together) = (beside("8-15", always), beside("0-7", always));
    assert!(apart.sums.slip_narrowed > 100, "{apart:?}");
    assert_eq!(together.sums.slip_narrowed, 0);
    let sometimes = beside("0-7", at_times);
    assert!(sometimes.sums.slip_narrowed > 100, "{sometimes:?}");
    assert!(sometimes.sums.slip_refused < sometimes.sums.slip_narrowed);
}

/// Checks that a grid of one wave keeps all TPCs that hold it: its blocks may wait for each other.
#[test]
fn a_launch_of_one_wave_is_not_narrowed() {
    let (_, counters) = alone(50, launches(WAVE * TPCS as u32, 1_000_000), 500 * MS);
    assert_eq!(counters.sums.slip_narrowed, 0);
}

/// Launches of a service and of its neighbour in one second.
type Done = (usize, usize);

/// Runs a service beside a neighbour that always works, with short atoms. Both may use all TPCs.
/// `limits` are the service's. Its requests are launches of each of `blocks` in turn by chance, and
/// take four fifths of the time. It learns alone.
fn beside(limits: &[(File, &str)], slip: u32, blocks: &[u32]) -> Done {
    let mut world = World::new(TPCS, Sharing::Beside, Threads::Each(LOOK));
    let slip = (File::SlipTpc, slip.to_string());
    let limits = limits.iter().map(|(file, value)| (*file, (*value).into()));
    let owner = world.group(&limits.chain([slip]).collect::<Vec<_>>());
    let others = world.group(&[(File::AtomDuration, "50us".into())]);
    let kernel = |(program, blocks): (u32, &u32)| Kernel {
        program,
        blocks: *blocks,
        // A launch takes 1 ms on all TPCs.
        block_ns: MS / u64::from(blocks.div_ceil(WAVE * TPCS as u32)),
    };
    let requests = Pattern::Requests {
        launches: 8,
        pause_ns: 10 * MS,
    };
    let kernels = (0x100..).zip(blocks).map(kernel).collect();
    world.start(owner, Program::new(kernels, requests, START, 1));
    world.run_until(START + 2_000 * MS);
    let kernel = Kernel {
        program: 0x200,
        blocks: WAVE * TPCS as u32 * 10,
        block_ns: 20_000,
    };
    world.start(
        others,
        Program::new(vec![kernel], Pattern::Always(1), START, 2),
    );
    world.run_until(START + 2_500 * MS);
    let done = |world: &World, at: usize| world.processes[at].done.len();
    let before = [0, 1].map(|at| done(&world, at));
    world.run_until(START + 3_500 * MS);
    (done(&world, 0) - before[0], done(&world, 1) - before[1])
}

const QUOTA: &[(File, &str)] = &[(File::TpcQuota, "12")];
const PRIORITY: &[(File, &str)] = &[(File::ComputePriority, "0")];

/// Checks that TPCs which a size frees are lent while their owner works, as tidal masking does: the
/// neighbour of a quota of 12 of 16 TPCs has 7 instead of 4 then, and that of an earlier priority
/// has 7 instead of none. The service does as much as before.
#[test]
fn what_a_size_frees_is_lent_while_the_owner_works() {
    for (limits, gain) in [(QUOTA, 160), (PRIORITY, 200)] {
        let plain = beside(limits, 0, &[TAIL]);
        let sized = beside(limits, 20, &[TAIL]);
        let what = format!("{limits:?}: {plain:?} without a slip, {sized:?} with one");
        println!("{what}");
        assert!(sized.0 * 100 >= plain.0 * 99, "{what}");
        assert!(plain.1 > 100 && sized.1 * 100 > plain.1 * gain, "{what}");
    }
}

/// Checks that a service which needs all TPCs now and then lends none.
#[test]
fn who_needs_all_tpcs_at_times_lends_none() {
    let all = WAVE * TPCS as u32 * 10;
    let plain = beside(PRIORITY, 0, &[TAIL, TAIL, TAIL, all]);
    let sized = beside(PRIORITY, 20, &[TAIL, TAIL, TAIL, all]);
    let what = format!("{plain:?} without a slip, {sized:?} with one");
    println!("{what}");
    assert!(plain.1 > 100 && sized.0 * 100 >= plain.0 * 99, "{what}");
    assert!(sized.1 * 100 <= plain.1 * 102, "{what}");
}
