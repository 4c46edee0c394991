// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Plays the controllers of goals, as the daemon does, in worlds with arrivals and with liars.
//!
//! Services have 1000 requests a second, ten times as many as a window needs in [`LOOK_EVERY`], so
//! the daemon looks twenty times as often.

use super::channel::Kernel;
use super::gpu::Sharing;
use super::law::Facts;
use super::script::{Action, Pattern, Program};
use super::world::{Lie, Process, Threads, World, START};
use gct_core::iface::File;
use gct_core::policy::slo::histogram::Histogram;
use gct_core::policy::slo::press::LEVELS;
use gct_core::policy::slo::{Controller, Verdict};
use gct_core::units::{Ns, Us};

/// How often the daemon looks.
const EVERY: u64 = 50_000_000;
const MS: u64 = 1_000_000;
/// How often tenants with work look.
const LOOK: u64 = 20_000;

/// What a hostile process reports: so many us for each request, at this level.
pub(crate) type Tale = fn(u8) -> u64;

/// The goal of a group.
#[derive(Debug)]
pub(crate) struct Goal {
    group: usize,
    controller: Controller,
    ended: Histogram,
    tale: Option<Tale>,
    pub(crate) verdicts: Vec<Verdict>,
}

/// The goals of all groups.
#[derive(Debug, Default)]
pub(crate) struct Goals {
    next: u64,
    pub(crate) list: Vec<Goal>,
}

impl Goals {
    /// Returns when the daemon looks next.
    pub(crate) fn next(&self) -> Option<u64> {
        (!self.list.is_empty()).then_some(self.next)
    }

    /// Takes over what was written; `None` removes the goal.
    pub(crate) fn set(&mut self, group: usize, goal: Option<Us>, now: u64) {
        let known = self.list.iter().position(|known| known.group == group);
        match (known, goal) {
            (Some(at), Some(goal)) => self.list[at].controller.set_goal(goal, Ns(now)),
            (Some(at), None) => drop(self.list.remove(at)),
            (None, Some(goal)) => self.list.push(Goal {
                group,
                controller: Controller::new(goal, Ns(now)),
                ended: Histogram::NEW,
                tale: None,
                verdicts: Vec::new(),
            }),
            (None, None) => {}
        }
    }

    /// Counts a request of a group.
    pub(crate) fn count(&mut self, group: usize, time: Ns) {
        let goal = self.list.iter_mut().find(|goal| goal.group == group);
        if let Some(goal) = goal.filter(|goal| goal.tale.is_none()) {
            goal.ended.count_one(Us(time.get() / 1_000));
        }
    }

    /// Looks at all goals. `open` returns the age of a group's oldest request. Returns what was
    /// found for each group.
    pub(crate) fn look(&mut self, open: impl Fn(usize) -> Ns, now: u64) -> Vec<(usize, Verdict)> {
        self.next = now + EVERY;
        let look = |goal: &mut Goal| {
            let level = goal.verdicts.last().map_or(0, |last| last.level);
            for _ in 0..goal.tale.map_or(0, |_| 300) {
                goal.ended
                    .count_one(Us(goal.tale.map_or(0, |tale| tale(level))));
            }
            let ended = std::mem::replace(&mut goal.ended, Histogram::NEW);
            let open = if goal.tale.is_some() {
                Ns(0)
            } else {
                open(goal.group)
            };
            let verdict = goal.controller.look(&ended, open, Ns(now));
            goal.verdicts.push(verdict);
            (goal.group, verdict)
        };
        self.list.iter_mut().map(look).collect()
    }
}

/// Returns the age of a group's first request that has not ended.
pub(crate) fn open_requests<'a>(
    processes: &'a [Process],
    facts: &'a [Facts],
    now: u64,
) -> impl Fn(usize) -> Ns + 'a {
    move |group| {
        let of = processes.iter().zip(facts);
        let mut of = of.filter(|(_, facts)| facts.owner == group);
        let first = of.find_map(|(process, _)| process.tenant.governor.open_request());
        first.map_or(Ns(0), |since| Ns(now) - since)
    }
}

/// A program that always has launches, each of `waves` on four TPCs.
fn training(waves: u32, block_ns: u64) -> Program {
    let kernel = Kernel {
        program: 0x100,
        blocks: 16 * waves,
        block_ns,
    };
    Program::new(vec![kernel], Pattern::Always(4), START, 1)
}

/// A program whose requests of one launch come at random.
fn service(blocks: u32, block_ns: u64) -> Program {
    let kernel = Kernel {
        program: 0x200,
        blocks,
        block_ns,
    };
    let pattern = Pattern::Requests {
        launches: 1,
        pause_ns: MS,
    };
    Program::new(vec![kernel], pattern, START, 7)
}

fn turns() -> Sharing {
    Sharing::Turns {
        slice: 2 * MS,
        switch: 100_000,
    }
}

/// Returns a world with a service, its process 0, and so many trainings.
fn world(sharing: Sharing, goal: &str, service: Program, trainings: usize) -> World {
    let mut world = World::new(4, sharing, Threads::Each(LOOK));
    let first = world.group(&[(File::SloP99, goal.into())]);
    world.start(first, service);
    for _ in 0..trainings {
        let group = world.group(&[]);
        world.start(group, training(40, 25_000));
    }
    world
}

/// Runs for so long. Returns the time of each process on TPCs, and what was found meanwhile.
fn run(world: &mut World, time: u64) -> (Vec<u64>, Vec<Verdict>) {
    let used = |world: &World| -> Vec<u64> {
        let used = |at| world.gpu.used.get(&at).copied().unwrap_or(0);
        (0..world.processes.len()).map(used).collect()
    };
    let (before, seen) = (
        used(world),
        world
            .goals
            .list
            .first()
            .map_or(0, |goal| goal.verdicts.len()),
    );
    let end = world.now + time;
    world.run_until(end);
    let used = used(world).into_iter().zip(before);
    let used = used.map(|(after, before)| after - before).collect();
    let found = world
        .goals
        .list
        .first()
        .map(|goal| goal.verdicts[seen..].to_vec());
    (used, found.unwrap_or_default())
}

fn changes(found: &[Verdict]) -> usize {
    found
        .windows(2)
        .filter(|two| two[0].level != two[1].level)
        .count()
}

fn part(found: &[Verdict], what: impl Fn(&Verdict) -> bool) -> usize {
    100 * found.iter().filter(|verdict| what(verdict)).count() / found.len()
}

/// Checks that a goal is kept, by turns and side by side, by the level that does it: the order
/// alone, or TPCs that nobody else has. Nobody is pressed harder for long, and a level that is not
/// enough is tried less and less often.
#[test]
fn a_goal_is_kept_by_the_least_pressure_that_does_it() {
    for (sharing, goal, blocks, level) in [
        (turns(), "1500", 16, 1),
        (Sharing::Beside, "150", 4, 2),
        (Sharing::Beside, "400", 16, 1),
    ] {
        let mut world = world(sharing, goal, service(blocks, 100_000), 2);
        let (_, found) = run(&mut world, 3_000 * MS);
        assert!(found.iter().any(|verdict| !verdict.met), "it was missed");
        let (used, found) = run(&mut world, 3_000 * MS);
        let what = format!("{sharing:?} {goal}: {used:?} {:?}", found.last());
        assert!(part(&found, |verdict| verdict.met) >= 80, "{what}");
        assert!(
            part(&found, |verdict| verdict.level == level) >= 75,
            "{what}"
        );
        assert!(found.iter().all(|verdict| !verdict.cannot), "{what}");
        assert!(changes(&found) <= 8, "{what}");
    }
}

/// Checks that others have what they had when the goal is kept with room, and when it is gone.
#[test]
fn what_was_taken_is_given_back() {
    let mut free = world(turns(), "max", service(16, 100_000), 2);
    run(&mut free, 500 * MS);
    let (had, _) = run(&mut free, 1_000 * MS);
    for later in ["900000", "max"] {
        let mut world = world(turns(), "1500", service(16, 100_000), 2);
        let (_, found) = run(&mut world, 1_500 * MS);
        assert!(found.iter().any(|verdict| verdict.level > 0));
        let write = Action::Write(0, File::SloP99, later.into());
        world.script = vec![(world.now, write)];
        // A window takes three quarters of a second while the service waits for its turns.
        run(&mut world, 3_000 * MS);
        let (has, found) = run(&mut world, 1_000 * MS);
        assert!(
            found.iter().all(|verdict| verdict.level == 0),
            "{later}: {found:?}"
        );
        for (has, had) in has.iter().zip(&had) {
            assert!(has.abs_diff(*had) * 20 < *had, "{later}: {has} of {had}");
        }
    }
}

/// Checks that a goal below what a request takes alone is said to be out of reach. The pressure
/// that helps most stays, since requests wait less by it.
#[test]
fn a_goal_out_of_reach_is_said_to_be() {
    let mut world = world(turns(), "100", service(16, 300_000), 2);
    run(&mut world, 3_000 * MS);
    let (_, found) = run(&mut world, 3_000 * MS);
    assert!(part(&found, |verdict| verdict.cannot && !verdict.met) == 100);
    assert!(
        part(&found, |verdict| verdict.level == 1) >= 50,
        "{found:?}"
    );
}

/// A world in which a process pretends to work always and reports false requests.
fn lied_to(sharing: Sharing, tale: Tale) -> World {
    let mut world = World::new(4, sharing, Threads::Each(LOOK));
    let liars = world.group(&[(File::SloP99, "1000".into())]);
    world.goals.list[0].tale = Some(tale);
    world.start_liar(liars, Lie::Runs);
    for _ in 0..2 {
        let group = world.group(&[]);
        world.start(group, training(40, 25_000));
    }
    world
}

/// Checks that reports which nothing improves gain little: they press others in four windows of
/// each try, and tries become rare. Who is pressed still has a fifth of the time, on a quarter of
/// the TPCs.
#[test]
fn who_reports_that_nothing_helps_gains_little() {
    for sharing in [turns(), Sharing::Beside] {
        let mut world = lied_to(sharing, |_| 50_000);
        let (used, found) = run(&mut world, 10_000 * MS);
        let pressed = part(&found, |verdict| verdict.level > 0);
        assert!(pressed <= 30, "{pressed}");
        assert!(found.last().is_some_and(|verdict| verdict.cannot));
        let all: u64 = used.iter().sum();
        let percent = all * 100 / (4 * 10_000 * MS);
        let least = 100 - pressed as u64 - 10;
        assert!(percent >= least, "{percent} of {least}: {used:?}");
    }
}

/// Checks that who pretends to work always, and reports that pressing helps and never suffices,
/// leaves the others a fifth of the time on a quarter of the TPCs.
#[test]
fn who_reports_that_more_would_help_leaves_a_floor() {
    for sharing in [turns(), Sharing::Beside] {
        let mut world = lied_to(sharing, |level| 60_000 / (1 << level));
        run(&mut world, 1_000 * MS);
        let time = 3_000 * MS;
        let (used, found) = run(&mut world, time);
        assert!(part(&found, |verdict| verdict.level == LEVELS) >= 50);
        let all: u64 = used.iter().sum();
        let floor = time / 5;
        assert!(all * 100 >= floor * 85, "{sharing:?}: {used:?} of {floor}");
    }
}

/// Checks that a launch that fits into one wave of the TPCs that were written runs on as many,
/// under every level: a barrier across its blocks would never end on fewer. Longer launches are
/// narrowed. The law checks each launch; here both kinds have run, and the first one's TPCs are
/// used.
#[test]
fn a_launch_of_one_wave_is_not_narrowed_for_a_goal() {
    let used = |blocks: u32| {
        let mut world = World::new(4, Sharing::Beside, Threads::Each(LOOK));
        let liars = world.group(&[(File::SloP99, "1000".into())]);
        world.goals.list[0].tale = Some(|level| 60_000 / (1 << level));
        world.start_liar(liars, Lie::Runs);
        let group = world.group(&[]);
        let kernel = Kernel {
            program: 0x100,
            blocks,
            block_ns: 25_000,
        };
        world.start(
            group,
            Program::new(vec![kernel], Pattern::Always(4), START, 1),
        );
        run(&mut world, 1_000 * MS);
        let (used, found) = run(&mut world, 1_000 * MS);
        assert!(part(&found, |verdict| verdict.level == LEVELS) >= 50);
        let spared = world.processes[1].tenant.governor.counters().sums.spared;
        (used[1], spared)
    };
    let ((single, spared), (long, narrowed)) = (used(16), used(160));
    assert!(spared > 1_000 && narrowed == 0, "{spared} {narrowed}");
    assert!(single > 2 * long, "{single} {long}");
}

/// Checks that a launch that waits for the TPCs that were written waits for a goal only: behind an
/// earlier priority, which has no allowance, it runs on what is left, as without the goal.
#[test]
fn a_launch_of_one_wave_does_not_wait_behind_an_earlier_priority_for_ever() {
    let ended = |priority: &str| {
        let mut world = World::new(4, Sharing::Beside, Threads::Each(LOOK));
        let liars = world.group(&[
            (File::SloP99, "1000".into()),
            (File::ComputePriority, priority.into()),
            (File::TpcMask, "0-1".into()),
        ]);
        world.goals.list[0].tale = Some(|level| 60_000 / (1 << level));
        world.start_liar(liars, Lie::Runs);
        let group = world.group(&[]);
        let kernel = Kernel {
            program: 0x100,
            blocks: 16,
            block_ns: 25_000,
        };
        let program = Program::new(vec![kernel], Pattern::Always(4), START, 1);
        world.start(group, program);
        run(&mut world, 1_000 * MS);
        let before = world.processes[1].done.len();
        let (_, found) = run(&mut world, 1_000 * MS);
        assert!(part(&found, |verdict| verdict.level > 0) >= 50);
        world.processes[1].done.len() - before
    };
    let (same, earlier) = (ended("8"), ended("0"));
    assert!(same > 1_000 && earlier > 1_000, "{same} {earlier}");
}

/// Checks that a program without pauses, which has no requests, presses nobody for long.
#[test]
fn a_program_without_requests_presses_nobody() {
    let mut world = world(turns(), "1000", training(40, 25_000), 2);
    run(&mut world, 5_000 * MS);
    let (_, found) = run(&mut world, 5_000 * MS);
    assert!(part(&found, |verdict| verdict.cannot) == 100);
    assert!(part(&found, |verdict| verdict.level > 0) <= 40);
}
