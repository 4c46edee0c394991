// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests that limits hold under every interleaving of threads.
//!
//! Threads of tenants, an administrator, RM and the work item take steps in an order that a seed
//! chooses, or in every order. Whenever no ioctl and no write is running, each channel runs or is
//! stopped as the limits say, and each channel group has its time slice. A failure prints the seed:
//! `GCT_SEED=number cargo test schedules_at_random` replays it. `GCT_SCHEDULES` sets the number of
//! random schedules.

mod actors;
mod chance;
mod rm;

use super::*;
use crate::plan::Run;
use crate::rmapi::Class;
use actors::{client, Actor, Op, Schedule};
use chance::Chance;
use std::env;
use std::vec;

const FREEZE: File = File::ComputeFreeze;
const SLICE: File = File::ComputeTimeslice;
const MAX: File = File::ComputeMax;

fn key(proc: usize) -> ProcKey {
    ProcKey {
        tgid: 100 + u32::try_from(proc).unwrap(),
        start_time_ns: 1,
    }
}

/// Adds three processes, each with a channel group (11) of two channels (21, 22). The first two are
/// in a group.
fn start(actors: Vec<Actor>, chance: Chance) -> Schedule {
    let mut world = World::new(FeatureSet::all());
    let group = world.group("web");
    let procs: Vec<_> = (0..3).map(|n| (key(n), world.open(key(n), ""))).collect();
    for n in 0..2 {
        let moved = world.store.state().member_moved(key(n), Some(group));
        assert_eq!(moved, Ok(()));
    }
    let mut all = Schedule::new((world.store, world.gpu, group), procs, actors, chance);
    for n in 0..3 {
        let top = client(n);
        for (handle, parent, class) in [
            (top, 0, 0x41),
            (top + 1, top, 0x80),
            (top + 2, top + 1, 0x2080),
            (top + 11, top + 1, 0xa06c),
            (top + 21, top + 11, 0xc86f),
            (top + 22, top + 11, 0xc86f),
        ] {
            let of = if class == 0x41 { 0 } else { top };
            let set = [(0, of), (4, parent), (8, handle), (12, class)];
            let set = set.map(|(at, word)| (at, u64::from(word)));
            let file = all.procs[n].1;
            let answer = (class == 0x80).then_some(1);
            all.store
                .ioctl(file, escape::ALLOC, &words(32, &set), answer);
            all.rm.add((top, handle), parent, class);
        }
    }
    all
}

impl Schedule {
    /// Checks that RM has what the limits want.
    fn holds(&mut self) {
        let mut leads = 0;
        let fails = self.rm.failed > 0;
        let mut shared = vec![];
        let state = self.store.state();
        for (key, object) in state
            .objects
            .iter()
            .filter(|(_, object)| object.acked.primary)
        {
            let name = (object.client, key.handle);
            let Some(thing) = self.rm.names.get(&name) else {
                // RM has lost it, or it was freed before its own ioctl was done.
                continue;
            };
            if self.lost.contains(&name) || object.acked.given_up && (fails || self.shares) {
                continue;
            }
            let proc = state.files.get(&object.file).unwrap().proc;
            let limits = state.effective(proc, self.gpu);
            match object.class {
                Class::Channel => {
                    leads += 1;
                    let pauses = state.pauses(*key, object, proc, self.gpu);
                    if self.shares && pauses != (object.acked.run == Run::Frozen) {
                        // A guest came or went, and the owner's next turn follows that.
                        continue;
                    }
                    let stands = limits.freeze || pauses;
                    let stopped = self.rm.stopped[&thing.number];
                    assert_eq!(stopped, stands, "{name:?} {object:?}");
                    let acked = object.acked.run;
                    assert_eq!(acked, Run::after(stands), "{name:?}");
                }
                Class::ChannelGroup => {
                    if state.group_of(proc) == Some(self.group) {
                        shared.push(self.rm.slices[&thing.number]);
                    }
                    if let Some(slice) = state.slice_of(proc, self.gpu, object) {
                        assert_eq!(self.rm.slices[&thing.number], slice.get(), "{name:?}");
                    }
                }
                _ => {}
            }
        }
        let settings = state.settings(Owner::Group(self.group), self.gpu);
        if let Some(whole) = settings.and_then(|settings| settings.timeslice) {
            assert!(shared.iter().sum::<u64>() <= whole.get(), "{shared:?}");
        }
        let channels = self.rm.names.values().filter(|thing| thing.class == 0xc86f);
        // Two threads that create and free one handle at the same time hide it from the core.
        if self.lost.is_empty() && matches!(self.chance, Chance::Path(..)) {
            assert_eq!(leads, channels.count(), "each channel is followed");
        }
    }

    /// Runs the schedule to its end.
    fn play(&mut self) {
        for step in 0.. {
            assert!(step < 100_000, "it does not end");
            if !self.step() {
                break;
            }
            if self.is_quiet() {
                self.holds();
            }
        }
        self.store.check();
        self.holds();
        assert!(!self.store.state().can_send(), "something is left");
        if self.rm.failed == 0 {
            // A process without channel groups has no limit.
            let taken = |outcome: &_| match outcome {
                Err(Error::Unsupported) => self.shares,
                outcome => matches!(outcome, Ok(()) | Err(Error::Gone)),
            };
            assert!(self.written.iter().all(taken), "{:?}", self.written);
        }
    }
}

/// Runs all schedules of two actors with two interruptions, of more actors with one, or with
/// `GCT_SWITCHES`.
fn every(scripts: &[&[Op]]) -> usize {
    let (mut chance, mut count) = (Chance::Path(vec![], 0), 0);
    loop {
        let actors = scripts.iter().map(|script| Actor::new(script)).collect();
        let mut schedule = start(actors, chance);
        schedule.switches = if scripts.len() > 2 { 1 } else { 2 };
        if let Some(switches) = number("GCT_SWITCHES") {
            schedule.switches = usize::try_from(switches).unwrap();
        }
        schedule.play();
        count += 1;
        match schedule.chance.next_path() {
            Some(next) => chance = next,
            None => return count,
        }
    }
}

/// Handles of the first process, the second, and the process outside the group.
const A: u32 = client(0);
const B: u32 = client(1);
const FROZEN: [Op; 1] = [Op::Write(None, FREEZE, "1")];

#[test]
fn a_freeze_holds_beside_each_action_of_a_tenant() {
    let tries: [&[Op]; 12] = [
        &[Op::Schedule(0, A + 11)],
        &[Op::Schedule(0, A + 21)],
        &[Op::Enable(0, 0, A + 21)],
        // By a member of its group, and by a process without a group or limit.
        &[Op::Enable(1, 0, A + 21)],
        &[Op::Enable(2, 0, A + 21)],
        &[Op::Enable(2, 2, client(2) + 21), Op::Enable(2, 1, B + 21)],
        &[Op::Alloc(0, A + 23, A + 11, 0xc86f)],
        &[Op::Free(0, A + 21)],
        &[Op::Free(0, A + 11)],
        &[Op::Lose(0, A + 21)],
        &[Op::Replace(0, A + 11)],
        &[Op::Close(1)],
    ];
    for script in tries {
        assert!(every(&[&FROZEN, script]) > 5, "{script:?}");
    }
}

#[test]
fn a_channel_made_and_scheduled_at_once_is_frozen() {
    let alloc = [Op::Alloc(0, A + 23, A + 11, 0xc86f)];
    every(&[
        &[Op::Write(Some(0), FREEZE, "1")],
        &alloc,
        &[Op::Schedule(0, A + 11)],
    ]);
}

#[test]
fn no_member_starts_channels_through_an_alias() {
    let mate = [Op::Dup(1, B + 12, 0, A + 11), Op::Schedule(1, B + 12)];
    assert!(every(&[&[Op::Write(Some(0), FREEZE, "1")], &mate]) > 100);
    let stranger = client(2);
    let mate = [
        Op::Dup(2, stranger + 12, 0, A + 11),
        Op::Schedule(2, stranger + 12),
    ];
    assert!(every(&[&FROZEN, &mate]) > 100);
}

#[test]
fn a_time_slice_holds_beside_the_tenants_own() {
    let limited = [Op::Write(None, SLICE, "300")];
    assert!(every(&[&limited, &[Op::Slice(0, A + 11, 9000)]]) > 100);
    assert!(every(&[&limited, &[Op::Replace(0, A + 11)]]) > 5);
    assert!(every(&[&limited, &[Op::Alloc(0, A + 12, A + 1, 0xa06c)]]) > 5);
}

#[test]
fn a_time_slice_is_shared_by_processes_that_come_and_go() {
    let limited = [Op::Write(None, SLICE, "300")];
    for script in [
        &[Op::Close(1)][..],
        &[Op::Free(0, A + 11)],
        &[Op::Join(2, true)],
        &[Op::Join(0, false), Op::Join(0, true)],
        &[Op::Dup(1, B + 12, 0, A + 11), Op::Free(0, A + 11)],
    ] {
        assert!(every(&[&limited, script]) > 5, "{script:?}");
    }
}

#[test]
fn limits_hold_after_a_suspension() {
    let limits = [Op::Write(None, FREEZE, "1"), Op::Write(None, SLICE, "300")];
    assert!(every(&[&limits, &[Op::Resume]]) > 5);
    let scripts: [&[Op]; 3] = [&limits, &[Op::Resume], &[Op::Schedule(0, A + 11)]];
    assert!(every(&scripts) > 5);
}

#[test]
fn a_freeze_and_a_thaw_beside_a_move() {
    let writes = [Op::Write(None, FREEZE, "1"), Op::Write(None, FREEZE, "0")];
    every(&[&writes, &[Op::Join(2, true)]]);
    every(&[&FROZEN, &[Op::Join(0, false), Op::Schedule(0, A + 11)]]);
}

/// The writes and the time by which an owner pauses.
const PAUSED: [Op; 3] = [
    Op::Write(None, MAX, "20ms 100ms"),
    Op::Pass(0),
    Op::Pass(20),
];

#[test]
fn a_pause_holds_beside_each_action_of_a_tenant() {
    let tries: [&[Op]; 10] = [
        &[Op::Schedule(0, A + 11)],
        &[Op::Enable(0, 0, A + 21)],
        &[Op::Enable(1, 0, A + 21)],
        &[Op::Alloc(0, A + 23, A + 11, 0xc86f)],
        &[Op::Free(0, A + 21)],
        &[Op::Free(0, A + 11)],
        &[Op::Lose(0, A + 21)],
        &[Op::Replace(0, A + 11)],
        &[Op::Close(1)],
        &[Op::Resume],
    ];
    for script in tries {
        assert!(every(&[&PAUSED, script]) > 5, "{script:?}");
    }
}

#[test]
fn a_pause_and_its_end_beside_a_move_and_a_write() {
    let turn = [PAUSED.as_slice(), &[Op::Pass(1), Op::Pass(1000)]].concat();
    for script in [
        &[Op::Join(2, true)][..],
        &[Op::Join(0, false), Op::Schedule(0, A + 11)],
        &[Op::Write(None, MAX, "max")],
        &[Op::Write(None, FREEZE, "1"), Op::Write(None, FREEZE, "0")],
        &[
            Op::Write(Some(0), MAX, "30ms 100ms"),
            Op::Pass(0),
            Op::Pass(30),
        ],
        &[Op::Close(0)],
    ] {
        assert!(every(&[&turn, script]) > 5, "{script:?}");
    }
}

/// Returns a random script.
fn random_script(chance: &mut Chance, length: usize) -> Vec<Op> {
    let mut script = vec![];
    for _ in 0..length {
        let proc = chance.below(3);
        let other = chance.below(3);
        let c = client(proc);
        let handle = |chance: &mut Chance| u32::try_from(chance.below(4)).unwrap();
        let group = c + 11 + handle(chance) % 3;
        let channel = c + 21 + handle(chance);
        let whose = [Some(proc), None, None][chance.below(3)];
        script.push(match chance.below(25) {
            0..=2 => Op::Schedule(proc, group),
            3 => Op::Schedule(proc, channel),
            4 => Op::Enable(other, proc, channel),
            5 => Op::Alloc(proc, channel, group, 0xc86f),
            6 => Op::Alloc(proc, group, c + 1, 0xa06c),
            7 => Op::Free(proc, channel),
            8 => Op::Free(proc, group),
            9 => Op::Dup(proc, group, other, client(other) + 11 + handle(chance) % 3),
            10 => Op::Dup(proc, channel, other, client(other) + 21 + handle(chance)),
            11 => Op::Slice(proc, group, 2000),
            12 => Op::Join(proc, chance.below(2) == 0),
            13 => Op::Lose(proc, [group, channel][chance.below(2)]),
            14 => Op::Replace(proc, [group, channel][chance.below(2)]),
            15 => Op::Write(whose, SLICE, ["300", "700", "default"][chance.below(3)]),
            16 => Op::Write(whose, FREEZE, "0"),
            17 => Op::Resume,
            18..=19 => Op::Pass([0, 20, 100, 1000][chance.below(4)]),
            20 => Op::Write(whose, MAX, "max"),
            21 => Op::Write(whose, MAX, "20ms 100ms"),
            _ => Op::Write(whose, FREEZE, "1"),
        });
    }
    script
}

fn play_seed(seed: u64) {
    let mut chance = Chance::Seed(seed);
    let count = 2 + chance.below(3);
    let mut actors: Vec<_> = (0..count)
        .map(|_| {
            let length = 1 + chance.below(6);
            Actor::new(&random_script(&mut chance, length))
        })
        .collect();
    if chance.below(8) == 0 {
        actors.push(Actor::new(&[Op::Close(2)]));
    }
    let fails = chance.below(3) == 0;
    let mut schedule = start(actors, chance);
    schedule.rm.fails = fails;
    schedule.play();
}

fn number(name: &str) -> Option<u64> {
    env::var(name).ok()?.parse().ok()
}

#[test]
fn schedules_at_random() {
    let first = number("GCT_SEED");
    let seeds = first.map_or(0..number("GCT_SCHEDULES").unwrap_or(150), |seed| {
        seed..seed + 1
    });
    for seed in seeds {
        let played = std::panic::catch_unwind(|| play_seed(seed));
        assert!(played.is_ok(), "GCT_SEED={seed}");
    }
}
