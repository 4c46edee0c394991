// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests batches with faults of several tenants of whom some have no memory: at their own limit, at
//! that of their group, and while they die. UVM serves a batch with one thread, cancels the fatal
//! faults of one address space at a time, and has all others replayed.

use crate::faults::{events as errors, shown as faulted, MMU_FAULT};
use crate::gmem::{current, events, number, LIMIT};
use crate::gpus::me;
use crate::launch::recorder;
use crate::limits::{path, set};
use crate::managed::{shown, Range, PAGE, ROOT, START};
use crate::process::{Child, Parent};
use crate::programs::Random;
use crate::replayable::{ended, run, toucher};
use crate::tree::{self, eventually, Group};
use gct_ktap::{holds, same, During, Outcome, Stop, Test};
use rm_client::{Access, Toucher};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

pub(crate) const TESTS: &[Test] = &[
    ("fault_shortages_in_mixed_batches", few),
    ("fault_shortage_of_a_group_stays_in_it", of_group),
    ("fault_shortage_of_members_that_die", few_deaths),
];

/// Distance of the words that launches use.
const STRIDE: usize = 16 * PAGE;
/// Maximum number of accesses of a launch, each to words of one root.
const ACCESSES: u64 = 6;

/// A process that uses managed memory with the CPU and by launches.
struct User {
    toucher: Toucher,
    range: Range,
    roots: usize,
    random: Random,
}

impl User {
    fn new(roots: usize, seed: u64) -> Result<Self, Stop> {
        let toucher = toucher()?;
        let range = Range::new(toucher.session(), START, roots * ROOT)?;
        Ok(Self {
            toucher,
            range,
            roots,
            random: Random::new(seed),
        })
    }

    /// Chooses some words of a root.
    fn words(&mut self) -> std::ops::Range<usize> {
        let root = self.random.below(self.roots as u64) as usize;
        let words = (ROOT / STRIDE) as u64;
        let first = self.random.below(words);
        let end = first + 1 + self.random.below(words - first);
        root * ROOT + first as usize * STRIDE..root * ROOT + end as usize * STRIDE
    }

    fn accesses(&mut self, store: Option<u64>) -> Vec<(std::ops::Range<usize>, Access)> {
        let count = 1 + self.random.below(ACCESSES);
        let access = |_| {
            let words = self.words();
            let access = Access {
                va: (START + words.start) as u64,
                bytes: words.len() as u64,
                stride: STRIDE as u64,
                store,
            };
            (words, access)
        };
        (0..count).map(access).collect()
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        self.range.mapping.u64(at)
    }

    fn all(&self) -> impl Iterator<Item = usize> {
        (0..self.roots * ROOT).step_by(STRIDE)
    }

    fn write(&self, seed: u64) {
        for at in self.all() {
            self.word(at).store(seed ^ at as u64, Ordering::Relaxed);
        }
    }

    fn check(&self, seed: u64) -> Outcome {
        self.all().try_for_each(|at| {
            let word = self.word(at).load(Ordering::Relaxed);
            same("content", word, seed ^ at as u64).during(at)
        })
    }

    /// Launches additions of random words, and checks each sum.
    fn add_up(&mut self) -> Outcome {
        let seed = self.random.below(u64::MAX);
        self.write(seed);
        let parts = self.accesses(None);
        let accesses: Vec<_> = parts.iter().map(|(_, access)| *access).collect();
        run(&mut self.toucher, &accesses)?;
        for (index, (words, _)) in parts.iter().enumerate() {
            let words = words.clone().step_by(STRIDE).map(|at| seed ^ at as u64);
            let sum = words.fold(0, u64::wrapping_add);
            same("sum", self.toucher.sum(index), sum).during(index)?;
        }
        Ok(())
    }

    /// Has one launch fault where no memory is. Its channel ends, none of its stores is done, and
    /// another channel takes its place.
    fn run_short(&mut self, before: u32) -> Outcome {
        let seed = self.random.below(u64::MAX);
        self.write(seed);
        let store = (self.random.below(2) == 0).then_some(seed);
        let parts = self.accesses(store);
        let accesses: Vec<_> = parts.iter().map(|(_, access)| *access).collect();
        thread::sleep(Duration::from_micros(self.random.below(3000)));
        self.toucher.start(&accesses);
        let expected = faulted(before + 1, MMU_FAULT);
        eventually("its error", &expected, || errors(&me()))?;
        same("ended", self.toucher.has_ended(), false)?;
        self.check(seed)
    }
}

/// Forks a process that runs launches until it may end.
fn neighbour(seed: u64) -> Result<Child, Stop> {
    let mut child = Child::fork(move |parent: &mut Parent| {
        parent.step()?;
        let mut user = User::new(4, seed)?;
        parent.step()?;
        parent.work(|| user.add_up())?;
        same("errors", errors(&me())?, faulted(0, 0))
    })?;
    child.at_step()?;
    child.next().during("its session")?;
    Ok(child)
}

/// Forks a member of a group. At every second step it has a channel; before the next one it runs
/// short.
fn short(group: &Group, seed: u64) -> Result<Child, Stop> {
    let mut child = Child::fork(move |parent: &mut Parent| {
        parent.step()?;
        let mut user = User::new(2, seed)?;
        for before in 0.. {
            parent.step()?;
            user.run_short(before)?;
            parent.step()?;
            user.toucher.renew()?;
        }
        Ok(())
    })?;
    child.at_step()?;
    group.add(child.pid())?;
    child.next().during("its session")?;
    Ok(child)
}

/// Batches in which a fault was found fatal, by the number of channels with faults in them.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) of_several: u64,
    of_all: u64,
}

impl Seen {
    /// Counts the batches since a mark. UVM takes a batch after each replay. If it finds a fault
    /// fatal, it replays, takes another batch and cancels before the next replay.
    pub(crate) fn count(&mut self, mark: u32, all: u32) -> Outcome {
        let (mut before, mut batch, mut is_first) = (0, 0, true);
        for event in recorder()?.since(mark)? {
            match event.kind.as_str() {
                "replay" => is_first = true,
                "batch" if is_first => {
                    (before, batch, is_first) = (batch, event.channels, false);
                }
                "cancel" if before > 0 => {
                    self.of_several += u64::from(before > 1);
                    self.of_all += u64::from(before >= all);
                    before = 0;
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Two members of a group run short beside a neighbour, until so many batches of several channels
/// had a fatal fault. By turns their own limits leave no room, and that of their group.
pub(crate) fn storm(batches: u64) -> Outcome {
    let group = Group::new("mixed")?;
    let mut beside = neighbour(batches)?;
    let mut shorts = [
        short(&group, 2 * batches + 1)?,
        short(&group, 2 * batches + 2)?,
    ];
    let names = shorts.each_ref().map(|short| short.pid().to_string());
    let own: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut had = BTreeMap::new();
    for owner in own.iter().copied().chain(["mixed"]) {
        had.insert(owner, current(owner)?);
    }
    let mut seen = Seen::default();
    beside.next()?;
    for round in 0.. {
        let owners = [own.as_slice(), &["mixed"]][round % 2];
        for owner in owners {
            // What a channel before this one had may go late, and would be room.
            eventually("as before", &had[owner], || current(owner))?;
            set(owner, LIMIT, &had[owner].to_string())?;
        }
        let mark = recorder()?.mark()?;
        for short in &mut shorts {
            short.go()?;
        }
        for short in &mut shorts {
            short.at_step().during("short")?;
        }
        seen.count(mark, 3)?;
        for owner in owners {
            holds("refused", events(owner, "limit")? > 0)?;
            set(owner, LIMIT, "max")?;
        }
        for short in &mut shorts {
            short.next().during("another channel")?;
        }
        if seen.of_several >= batches && seen.of_all > 0 {
            break;
        }
        holds("mixed batches come up", round as u64 <= 20 * batches)?;
    }
    println!("# {seen:?}");
    beside.go()?;
    beside.finish().during("the neighbour")
}

fn few() -> Outcome {
    storm(8)
}

/// Forks a member of a group that runs launches until it may go on, and then runs short.
fn member(group: &Group, seed: u64) -> Result<Child, Stop> {
    let mut child = Child::fork(move |parent: &mut Parent| {
        parent.step()?;
        let mut user = User::new(4, seed)?;
        parent.step()?;
        parent.work(|| user.add_up())?;
        parent.step()?;
        user.run_short(0)?;
        parent.step()
    })?;
    child.at_step()?;
    group.add(child.pid())?;
    child.next().during("its session")?;
    Ok(child)
}

/// Faults of members stay within the limit of their group: they evict each other, and nobody else.
/// Where it leaves no room, their channels end, and nobody else's.
fn of_group() -> Outcome {
    let group = Group::new("mixed")?;
    let mut beside = neighbour(1)?;
    let mut members = [member(&group, 2)?, member(&group, 3)?];
    let names = members.each_ref().map(|member| member.pid().to_string());
    let alone = current("mixed")?;
    let limit = alone + 5 * ROOT as u64;
    set("mixed", LIMIT, &limit.to_string())?;
    beside.next()?;
    for member in &mut members {
        member.next()?;
    }
    let evicted = |name: &String| events(name, "evicted");
    for name in &names {
        eventually("evictions", &true, || Ok(evicted(name)? > 8))?;
    }
    for member in &mut members {
        member.next().during("at the limit")?;
    }
    same("peak", number("mixed", "gmem.peak")?, limit)?;
    let outside = beside.pid().to_string();
    same("evicted outside", evicted(&outside)?, 0)?;
    same("refused", events("mixed", "limit")?, 0)?;
    set("mixed", LIMIT, &alone.to_string())?;
    same("on the GPU", shown("mixed")?, 0)?;
    for member in &mut members {
        member.next().during("without room")?;
    }
    holds("refused", events("mixed", "limit")? >= 2)?;
    for name in &names {
        same("own limit", events(name, "limit")?, 0)?;
        same("errors", errors(name)?, faulted(1, MMU_FAULT))?;
    }
    beside.go()?;
    beside.finish().during("the neighbour")
}

/// Forks a member of a group whose launches fault without end.
fn endless(group: &Group, seed: u64) -> Result<Child, Stop> {
    let mut child = Child::fork(move |parent: &mut Parent| {
        parent.step()?;
        let mut user = User::new(6, seed)?;
        parent.step()?;
        loop {
            let accesses = user.accesses(Some(seed));
            let accesses: Vec<_> = accesses.into_iter().map(|(_, access)| access).collect();
            user.toucher.start(&accesses);
            ended(&user.toucher)?;
        }
    })?;
    child.at_step()?;
    group.add(child.pid())?;
    child.next().during("its session")?;
    Ok(child)
}

/// Kills so many members of a group while their faults evict each other, or find no room. Nothing
/// of them stays, and their neighbour's sums are right.
pub(crate) fn deaths(count: u64) -> Outcome {
    let group = Group::new("mixed")?;
    let mut beside = neighbour(count)?;
    beside.next()?;
    let mut random = Random::new(count);
    for death in 0..count {
        let pair = [endless(&group, 2 * death)?, endless(&group, 2 * death + 1)?];
        // Without room both end in the middle of being cancelled.
        let roots = [0, 3][usize::from(random.below(3) > 0)];
        let limit = current("mixed")? + roots * ROOT as u64;
        set("mixed", LIMIT, &limit.to_string())?;
        for mut member in pair {
            member.go()?;
            thread::sleep(Duration::from_millis(random.below(80)));
            member.kill();
        }
        holds("within the limit", number("mixed", "gmem.peak")? <= limit)?;
        eventually("current", &0, || current("mixed")).during(death)?;
        eventually("host", &0, || number("mixed", "hmem.current")).during(death)?;
        set("mixed", LIMIT, "max")?;
        tree::write(&path("mixed", "gmem.peak")?, "0")?;
    }
    let outside = beside.pid().to_string();
    same("evicted outside", events(&outside, "evicted")?, 0)?;
    beside.go()?;
    beside.finish().during("the neighbour")
}

fn few_deaths() -> Outcome {
    deaths(6)
}
