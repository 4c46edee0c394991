// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Plays the order by lengths of requests, as the daemon does, for services and for a liar.
//!
//! The daemon looks twenty times as often, because requests come ten times as often as elsewhere.

use super::channel::Kernel;
use super::gpu::Sharing;
use super::measured::waits;
use super::script::{Pattern, Program};
use super::world::{Threads, World, START};
use gct_core::iface::File;
use gct_core::policy::shortest::{Requests, LONGEST};
use gct_core::policy::slo::histogram::Histogram;
use gct_core::units::{Ns, Us};

/// How often the daemon looks.
const EVERY: u64 = 50_000_000;
const MS: u64 = 1_000_000;
/// How often tenants with work look.
const LOOK: u64 = 20_000;

/// The requests of a group.
#[derive(Debug, Default)]
struct Group {
    requests: Requests,
    ended: Option<Histogram>,
    /// What a hostile process reports for each of its requests.
    tale: Option<Us>,
}

/// The requests of all groups; nothing without groups.
#[derive(Debug, Default)]
pub(crate) struct Lengths {
    next: u64,
    groups: Vec<Group>,
}

impl Lengths {
    /// Looks at so many groups from now on.
    fn of(groups: usize) -> Self {
        Self {
            next: 0,
            groups: (0..groups).map(|_| Group::default()).collect(),
        }
    }

    /// Returns when the daemon looks next.
    pub(crate) fn next(&self) -> Option<u64> {
        (!self.groups.is_empty()).then_some(self.next)
    }

    /// Counts a request of a group.
    pub(crate) fn count(&mut self, group: usize, time: Ns) {
        let group = self
            .groups
            .get_mut(group)
            .filter(|group| group.tale.is_none());
        if let Some(group) = group {
            let ended = group.ended.get_or_insert(Histogram::NEW);
            ended.count_one(Us(time.get() / 1_000));
        }
    }

    /// Looks at all groups. `open` returns the age of a group's oldest request. Returns the length
    /// of each group's requests.
    pub(crate) fn look(&mut self, open: impl Fn(usize) -> Ns, now: u64) -> Vec<Option<Us>> {
        self.next = now + EVERY;
        let look = |(number, group): (usize, &mut Group)| {
            let mut ended = group.ended.take().unwrap_or(Histogram::NEW);
            let open = match group.tale {
                Some(time) => {
                    (0..100).for_each(|_| ended.count_one(time));
                    Ns(0)
                }
                None => open(number),
            };
            group.requests.look(&ended, open)
        };
        self.groups.iter_mut().enumerate().map(look).collect()
    }
}

fn turns() -> Sharing {
    Sharing::Turns {
        slice: 2 * MS,
        switch: 100_000,
    }
}

/// Returns a program of launches of `waves` waves of 200 us on four TPCs.
fn program(waves: u32, pattern: Pattern) -> Program {
    let kernel = Kernel {
        program: 0x100,
        blocks: 16 * waves,
        block_ns: 200_000,
    };
    Program::new(vec![kernel], pattern, START, waves.into())
}

/// Returns a program whose requests of `waves` waves come at random, so far apart on average.
fn service(waves: u32, pause_ns: u64) -> Program {
    program(
        waves,
        Pattern::Requests {
            launches: 1,
            pause_ns,
        },
    )
}

/// Returns a world in which each program has a group of the same priority.
fn world(programs: impl IntoIterator<Item = Program>) -> World {
    let mut world = World::new(4, turns(), Threads::Each(LOOK));
    for program in programs {
        let group = world.group(&[(File::ComputePriority, "0".into())]);
        world.start(group, program);
    }
    world
}

/// Returns the wait of a process that one in a hundred of its launches exceeds.
fn p99(world: &World, at: usize, from: u64) -> u64 {
    let waits = waits(world, at, from);
    waits[waits.len() / 100]
}

/// Checks that the requests of a service wait for short slices of one with long requests, and that
/// the latter's do not take longer for it than the switches between them.
#[test]
fn short_requests_wait_for_short_slices() {
    let measure = |ordered: bool| {
        let mut world = world([service(2, 5 * MS), service(40, 20 * MS)]);
        if ordered {
            world.lengths = Lengths::of(2);
        }
        world.run_until(START + 1_000 * MS);
        let from = world.now;
        world.run_until(from + 2_000 * MS);
        let done = world.processes[1].done.iter();
        let ended = done.filter(|launch| launch.submitted > from).count();
        (p99(&world, 0, from), p99(&world, 1, from), ended)
    };
    let (before, after) = (measure(false), measure(true));
    let what = format!("{before:?} {after:?}");
    // A slice, and a switch each way.
    assert!(
        before.0 > 2 * MS && after.0 <= 500_000 + 2 * 100_000 + 200_000,
        "{what}"
    );
    assert!(
        after.1 <= before.1 + 2 * MS && after.2 * 100 >= before.2 * 95,
        "{what}"
    );
}

/// Checks that who works all the time and reports short requests leaves a fifth of the time to an
/// equal, and to two equals a sixth each.
#[test]
fn who_reports_short_requests_leaves_the_others_a_part() {
    for (others, part) in [(1, 5), (2, 6)] {
        let busy = || program(40, Pattern::Always(4));
        let mut world = world((0..=others).map(|_| busy()));
        world.lengths = Lengths::of(others + 1);
        world.lengths.groups[0].tale = Some(Us(100));
        // The others have not paused by then.
        world.run_until(START + LONGEST.get() * 1_000 + 200 * MS);
        let before = world.gpu.active.clone();
        let time = 500 * MS;
        world.run_until(world.now + time);
        let had: Vec<u64> = (0..=others)
            .map(|at| world.gpu.active[&at] - before[&at])
            .collect();
        let switches = time / 10;
        for other in &had[1..] {
            assert!(*other >= (time - switches) / part, "{had:?}");
        }
        assert!(had[0] > had[1] * 3, "it does gain: {had:?}");
    }
}
