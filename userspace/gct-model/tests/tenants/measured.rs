// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Measures what tenants get in worlds made for one promise each: shares, waits and turns.
//!
//! Each bound is derived from the constants of the policies, from the length of the launches, and
//! from how often tenants look. Nothing is fitted.

use super::channel::Kernel;
use super::gpu::Sharing;
use super::script::{Action, Pattern, Program};
use super::world::{Lie, Threads, World, START};
use fastrand::Rng;
use gct_core::iface::File;
use gct_core::lane::roster::turnover::STAY;
use gct_core::lane::roster::MEMBERS_MAX;
use gct_core::policy::patience::BEAT_MAX;
use gct_core::policy::share::{HANDOVER, WINDOW};
use gct_core::policy::tpc::SWITCHES;

pub(crate) const MS: u64 = 1_000_000;
/// How often tenants with work look.
pub(crate) const LOOK: u64 = 20_000;
/// By then durations are learnt and turns are regular.
pub(crate) const SETTLED: u64 = START + 100 * MS;

fn turns() -> Sharing {
    Sharing::Turns {
        slice: 2 * MS,
        switch: 100_000,
    }
}

/// Returns a program that always has launches, each of whole waves on all TPCs.
pub(crate) fn busy(tpcs: usize, waves: u32, block_ns: u64) -> Program {
    let kernel = Kernel {
        program: 0x100,
        blocks: 4 * waves * u32::try_from(tpcs).expect("few TPCs"),
        block_ns,
    };
    Program::new(vec![kernel], Pattern::Always(6), START, 1)
}

/// Returns a program whose launches of one wave come at random, so far apart on average.
pub(crate) fn requests(tpcs: usize, block_ns: u64, pause_ns: u64) -> Program {
    requests_of(tpcs, block_ns, pause_ns, 7)
}

/// Returns one with other arrivals.
fn requests_of(tpcs: usize, block_ns: u64, pause_ns: u64, seed: u64) -> Program {
    let kernel = Kernel {
        program: 0x100,
        blocks: 4 * u32::try_from(tpcs).expect("few TPCs"),
        block_ns,
    };
    let pattern = Pattern::Requests {
        launches: 1,
        pause_ns,
    };
    Program::new(vec![kernel], pattern, START, seed)
}

/// Runs until `end`. Returns the time for which each process had blocks on the GPU since now.
pub(crate) fn active(world: &mut World, end: u64) -> Vec<u64> {
    let count = world.processes.len();
    let all = |world: &World| -> Vec<u64> {
        let active = |at| world.gpu.active.get(&at).copied().unwrap_or(0);
        (0..count).map(active).collect()
    };
    let before = all(world);
    world.run_until(end);
    let after = all(world).into_iter();
    after
        .zip(before)
        .map(|(after, before)| after - before)
        .collect()
}

/// A group that always has work, and what it may be ahead of its rivals.
struct Owner {
    weight: u64,
    processes: u64,
    piece_ns: u64,
}

impl Owner {
    /// Returns the GPU time that it may be ahead of the clock: the window, and for each process the
    /// piece that was released last, and one before that had no prediction.
    fn lead(&self) -> u64 {
        WINDOW.get() + 2 * self.processes * self.piece_ns
    }
}

/// Creates groups with random weights.
fn weighted(chance: &mut Rng, sharing: Sharing) -> (World, Vec<Owner>) {
    let tpcs = chance.usize(2..=6);
    let mut world = World::new(tpcs, sharing, Threads::Each(LOOK));
    let owners = (0..chance.usize(2..=5)).map(|_| {
        let (waves, block_ns) = (chance.u32(1..=3), 1_000 * chance.u64(50..=250));
        let owner = Owner {
            weight: chance.u64(50..=400),
            processes: chance.u64(1..=3),
            piece_ns: u64::from(waves) * block_ns,
        };
        let group = world.group(&[(File::ComputeWeight, owner.weight.to_string())]);
        (0..owner.processes).for_each(|_| {
            world.start(group, busy(tpcs, waves, block_ns));
        });
        owner
    });
    let owners = owners.collect();
    (world, owners)
}

/// Checks that owners have their weights' parts of the time, however many processes they are.
///
/// ```text
/// |used - part * all| <= lead + part * (sum of leads) + used * (HANDOVER + 2 LOOK) / WINDOW
/// ```
///
/// The last term is what each turn charges beside the work: until its first launch, and until the
/// end of its last is seen.
#[test]
fn time_is_shared_by_weight() {
    for seed in 0..6 {
        let sharing = if seed % 2 == 0 {
            Sharing::Beside
        } else {
            turns()
        };
        let (mut world, owners) = weighted(&mut Rng::with_seed(seed), sharing);
        world.run_until(SETTLED);
        let time = 600 * MS;
        let used = active(&mut world, SETTLED + time);
        let (all, weights) = (
            used.iter().sum::<u64>(),
            owners.iter().map(|o| o.weight).sum::<u64>(),
        );
        let leads: u64 = owners.iter().map(Owner::lead).sum();
        let mut used = used.into_iter();
        for owner in &owners {
            let used: u64 = used.by_ref().take(owner.processes as usize).sum();
            let part = |of: u64| of * owner.weight / weights;
            let slack =
                owner.lead() + part(leads) + used * (HANDOVER.get() + 2 * LOOK) / WINDOW.get();
            let (fair, missed) = (part(all), used.abs_diff(part(all)));
            assert!(
                missed <= slack,
                "seed {seed}: {used} of {all}, not {fair} +- {slack}"
            );
        }
        // Work is conserved, but for the changes of turns.
        assert!(
            all >= time - time * (HANDOVER.get() + 2 * LOOK + 100_000) / WINDOW.get(),
            "seed {seed}: {all}"
        );
    }
}

/// Checks that a group has its duty cycle and no more, however many processes it is.
///
/// A period may end in a piece of each process beyond it, which later ones pay. One process more
/// than looks at the same time may begin a piece, and each looks LOOK late.
#[test]
fn a_duty_cycle_is_kept_and_can_be_had() {
    let (periods, period, piece) = (10, 40 * MS, 400_000);
    for (processes, percent) in [(1, 20), (3, 50)] {
        let mut world = World::new(4, Sharing::Beside, Threads::Each(LOOK));
        let quota = period * percent / 100;
        let max = format!("{} {}", quota / 1_000, period / 1_000);
        let group = world.group(&[(File::ComputeMax, max)]);
        (0..processes).for_each(|_| {
            world.start(group, busy(4, 4, piece / 4));
        });
        let begin = SETTLED.next_multiple_of(period);
        world.run_until(begin);
        let used: u64 = active(&mut world, begin + periods * period).iter().sum();
        let (fair, beyond) = (periods * quota, 2 * processes * (piece + LOOK));
        assert!(used <= fair + beyond, "{processes}: {used} of {fair}");
        assert!(
            used >= fair - fair * (HANDOVER.get() + 2 * LOOK) / WINDOW.get() - beyond,
            "{processes}: {used} of {fair}"
        );
    }
}

/// Returns how long the launches of a process that began after `from` have waited for their first
/// block, the longest first.
pub(crate) fn waits(world: &World, at: usize, from: u64) -> Vec<u64> {
    let done = world.processes[at].done.iter();
    let waits = done.filter_map(|launch| Some((launch.submitted, launch.began?)));
    let waits = waits.filter(|(submitted, _)| *submitted >= from);
    let mut waits: Vec<u64> = waits.map(|(submitted, began)| began - submitted).collect();
    waits.sort_unstable_by(|a, b| b.cmp(a));
    waits
}

/// Checks that an earlier priority waits for what is in flight of later ones, and no longer.
///
/// Of each later tenant a window is in flight, `max(atom, a wave)`, and as much run-ahead. What it
/// publishes until its next look adds nothing, since it is part of the same window.
#[test]
fn an_earlier_priority_waits_for_atoms_only() {
    for (later, atom_us, block_ns) in [(1, 100, 30_000), (4, 100, 20_000), (3, 200, 150_000)] {
        let mut world = World::new(6, Sharing::Beside, Threads::Each(LOOK));
        let first = world.group(&[(File::ComputePriority, "0".into())]);
        let service = world.start(first, requests(6, 50_000, 3 * MS));
        let limits = [(File::AtomDuration, format!("{atom_us}"))];
        let training = world.group(&limits);
        (0..later).for_each(|_| {
            world.start(training, busy(6, 40, block_ns));
        });
        world.run_until(SETTLED + 300 * MS);
        let waits = waits(&world, service, SETTLED);
        let window = (1_000 * atom_us).max(block_ns);
        // A request that has come before the last one ended waits for its 50 us, too.
        let bound = LOOK + later * 2 * window + 50_000;
        assert!(
            waits.len() > 50 && waits[0] <= bound,
            "{later} later: {:?} of {bound}",
            &waits[..5]
        );
    }
}

/// Checks that tenants which yield to a service by turns do not spend the GPU on switches: they
/// have its time in turns of their own, and as much of it as one of them alone. The parts are
/// equal but for 30%: where the service leaves less than a turn at a time, who has started first
/// has more.
#[test]
fn yielding_tenants_take_turns() {
    let run = |groups: &[usize], (pause_ns, seed): (u64, u64)| {
        let mut world = World::new(4, turns(), Threads::Each(LOOK));
        let first = world.group(&[(File::ComputePriority, "0".into())]);
        world.start(first, requests_of(4, 500_000, pause_ns, seed));
        for processes in groups {
            let group = world.group(&[]);
            (0..*processes).for_each(|_| {
                world.start(group, busy(4, 40, 20_000));
            });
        }
        world.run_until(SETTLED);
        let mut used = active(&mut world, SETTLED + 600 * MS);
        used.remove(0);
        used
    };
    for service in [(MS, 7), (MS, 11), (3 * MS, 7)] {
        let alone = run(&[1], service)[0];
        for groups in [&[1, 1][..], &[2], &[1, 1, 1, 1], &[4]] {
            let used = run(groups, service);
            let all: u64 = used.iter().sum();
            assert!(all * 100 > alone * 75, "{groups:?}: {used:?} of {alone}");
            let least = used.iter().min().copied().unwrap_or(0);
            let fair = all / used.len() as u64;
            assert!(least * 100 > fair * 70, "{groups:?}: {used:?}");
        }
    }
}

/// Checks that a quota is had in full from the first look on, beside any number of others that
/// always have work and may use the TPCs while their owner is away.
#[test]
fn a_quota_is_had_while_there_is_work() {
    for (others, sharing) in [(1, Sharing::Beside), (6, Sharing::Beside)] {
        let mut world = World::new(8, sharing, Threads::Each(LOOK));
        let group = world.group(&[(File::TpcQuota, "3".into())]);
        let owner = world.start(
            group,
            Program::new(
                vec![Kernel {
                    program: 1,
                    blocks: 12 * 4,
                    block_ns: 100_000,
                }],
                Pattern::Always(6),
                START + 50 * MS,
                3,
            ),
        );
        let rest = world.group(&[]);
        let piece_ns = 8 * 80_000;
        (0..others).for_each(|_| {
            world.start(rest, busy(8, 8, 80_000));
        });
        world.run_until(START + 50 * MS);
        let before = world.gpu.used.get(&owner).copied().unwrap_or(0);
        let time = 200 * MS;
        world.run_until(START + 50 * MS + time);
        let used = world.gpu.used[&owner] - before;
        // What was in flight when it came: six launches of each other tenant, which nothing splits.
        let borrowed = others * 6 * piece_ns + LOOK;
        assert!(used >= 3 * (time - borrowed), "{used} beside {others}");
    }
}

/// Checks that steady launches are predicted, and the first launch of a small grid of a known
/// program, too: its blocks take as long as those of the large one. The seed begins with that.
#[test]
fn steady_launches_and_small_grids_are_predicted() {
    let mut world = World::new(4, Sharing::Beside, Threads::Each(LOOK));
    let group = world.group(&[]);
    let kernel = |blocks| Kernel {
        program: 0x100,
        blocks,
        block_ns: 150_000,
    };
    let kernels = vec![kernel(10 * 4 * 4), kernel(1)];
    let at = world.start(group, Program::new(kernels, Pattern::Always(1), START, 2));
    world.run_until(SETTLED);
    let counters = world.processes[at].tenant.governor.counters();
    let (predicted, wrong) = (counters.sums.predicted, counters.sums.mispredicted);
    assert!(predicted > 50 && wrong == 0, "{wrong} of {predicted}");
}

/// Checks that launches of one kernel whose times differ by their places in a step are predicted by
/// these.
#[test]
fn places_in_a_step_are_predicted() {
    let mut world = World::new(4, Sharing::Beside, Threads::Each(LOOK));
    let group = world.group(&[]);
    let step = [
        (0x100, 300),
        (0x200, 150),
        (0x100, 600),
        (0x300, 150),
        (0x100, 900),
    ];
    let kernels = step.map(|(program, us)| Kernel {
        program,
        blocks: 16,
        block_ns: 1_000 * us,
    });
    let program = Program::new(kernels.to_vec(), Pattern::Always(1), START, 2);
    let at = world.start(group, program.in_steps());
    let mut counters = |until| {
        world.run_until(until);
        let counters = world.processes[at].tenant.governor.counters();
        (counters.sums.predicted, counters.sums.mispredicted)
    };
    let before = counters(START + 20 * MS);
    let after = counters(SETTLED);
    assert!(
        after.0 > before.0 + 100 && after.1 == before.1,
        "{before:?}, {after:?}"
    );
}

/// Checks the waits for a neighbour of an earlier priority that is stopped, frozen or killed.
#[test]
fn who_is_gone_is_waited_for_no_longer_than_promised() {
    let stop = BEAT_MAX.get() + 2 * LOOK;
    let frozen = Action::Write(0, File::ComputeFreeze, "1".into());
    let cases = [
        (Action::Stop(0), stop),
        (frozen, 2 * LOOK + SWITCHES.get()),
        (Action::Kill(0), LOOK),
    ];
    for (action, bound) in cases {
        let mut world = World::new(4, Sharing::Beside, Threads::Each(LOOK));
        let first = world.group(&[(File::ComputePriority, "0".into())]);
        world.start(first, busy(4, 2, 100_000));
        let rest = world.group(&[]);
        let later = world.start(rest, busy(4, 2, 100_000));
        let at = SETTLED + 3_000;
        world.script = vec![(at, action.clone())];
        world.run_until(at);
        assert_eq!(
            world.processes[later].tenant.ended, 0,
            "an earlier priority has work"
        );
        // What the first one has in flight ends meanwhile.
        world.run_until(at + bound + 6 * 200_000);
        assert!(world.processes[later].tenant.ended > 0, "{action:?}");
    }
}

/// Checks that a false pulse delays the others for twice its turn at most.
#[test]
fn a_liar_takes_twice_its_weight_at_most() {
    for lie in [Lie::Runs, Lie::Waits] {
        for weight in [50_u64, 200] {
            let mut world = World::new(4, Sharing::Beside, Threads::Each(LOOK));
            let liars = world.group(&[(File::ComputeWeight, weight.to_string())]);
            world.start_liar(liars, lie);
            let honest: Vec<usize> = (0..2)
                .map(|_| {
                    let group = world.group(&[(File::ComputeWeight, "100".into())]);
                    world.start(group, busy(4, 2, 150_000))
                })
                .collect();
            world.run_until(SETTLED);
            let time = 800 * MS;
            let used = active(&mut world, SETTLED + time);
            for at in honest {
                let fair = time * 100 / (200 + 2 * weight);
                let slack = fair * (HANDOVER.get() + 2 * LOOK) / WINDOW.get()
                    + 4 * (WINDOW.get() + 600_000);
                assert!(
                    used[at] >= fair - slack,
                    "{lie:?} {weight}: {} of {fair}",
                    used[at]
                );
            }
        }
    }
}

/// Checks that all tenants run where there are more than seats.
///
/// Without a seat a tenant yields to all that have one and always work. It has a seat again when
/// all others have stayed for STAY, which takes two rounds for each change of a seat:
///
/// ```text
/// wait <= tenants / MEMBERS_MAX * STAY + 2 * tenants * round + launches of MEMBERS_MAX tenants
/// ```
#[test]
fn tenants_beyond_the_seats_run_in_turn() {
    let is_long = std::env::var_os("GCT_LONG").is_some_and(|long| !long.is_empty());
    let tenants: u64 = if is_long { 200 } else { 80 };
    let mut world = World::new(4, Sharing::Beside, Threads::One);
    for _ in 0..tenants {
        let group = world.group(&[]);
        world.start(group, busy(4, 1, 20_000));
    }
    let seats = u64::try_from(MEMBERS_MAX).expect("few");
    let cycle = STAY.get() * tenants.div_ceil(seats);
    // The longest sleep while work is pending, and the rounds of all tenants.
    let round = 200_000 + World::rounds_ns(tenants);
    let bound = cycle + 2 * tenants * round + seats * 6 * 20_000;
    let mut before = vec![0; world.processes.len()];
    for _ in 0..2 {
        let end = world.now + bound;
        world.run_until(end);
        for (at, before) in before.iter_mut().enumerate() {
            let ended = world.processes[at].tenant.ended;
            assert!(ended > *before, "tenant {at} has waited for {bound} ns");
            *before = ended;
        }
    }
}
