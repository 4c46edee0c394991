// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests that host memory which evictions take is charged until it is freed, and stays within
//! `hmem.limit`. Memory that the CPU wrote first has its host memory already, so most tests here
//! populate ranges on the GPU.

use crate::charged::Cgroup;
use crate::gmem::{current, is_refused, number, LIMIT};
use crate::gpus::me;
use crate::limits::{path, set};
use crate::managed::{in_threads, session, shown, uvm, Range, PAGE, ROOT, START};
use crate::process::{Child, Parent};
use crate::tree::{self, eventually, Group};
use gct_ktap::{holds, same, During, Outcome, Stop, Test};
use rm_client::Session;
use std::sync::atomic::Ordering;
use std::sync::Barrier;

pub(crate) const TESTS: &[Test] = &[
    ("host_memory_of_evictions_is_charged", charged),
    ("host_memory_that_was_there_is_not_charged", was_there),
    ("host_memory_beyond_its_limit_is_refused", refused),
    ("host_memory_of_a_group_is_limited", of_group),
    ("host_memory_of_threads_at_the_limit", threads),
    (
        "host_memory_of_threads_whose_evictions_fail",
        failing_evictions,
    ),
    ("host_memory_after_a_kill_at_each_step", killed),
    ("host_memory_stays_charged_without_the_gpu", without_gpu),
    ("host_memory_of_evictions_is_its_owners_cgroups", cgroups),
    (
        "host_memory_that_a_cgroup_lacks_hurts_no_other",
        full_cgroup,
    ),
];

const HOST_LIMIT: &str = "hmem.limit";

fn host(owner: &str) -> Result<u64, Stop> {
    number(owner, "hmem.current")
}

/// Limits an owner's device memory to so many roots beside what it has now.
fn room(owner: &str, roots: usize) -> Outcome {
    let limit = current(owner)? + (roots * ROOT) as u64;
    set(owner, LIMIT, &limit.to_string())
}

/// Makes a range of one root and populates it on the GPU.
fn on_gpu(session: &Session, number: usize) -> Result<Range, Stop> {
    let range = Range::new(session, START + 2 * number * ROOT, ROOT)?;
    range.migrate(session)?;
    Ok(range)
}

/// Checks that a range reads as zeros, as memory that nobody wrote does.
fn zeros(range: &Range) -> Outcome {
    let word = |at: &usize| range.mapping.u64(*at).load(Ordering::Relaxed);
    let found = (0..ROOT).step_by(PAGE).find(|at| word(at) != 0);
    same("a word that is not zero", found, None)
}

/// Returns the error with which a limit is refused.
fn errno_of(owner: &str, file: &str, limit: u64) -> Result<Option<i32>, Stop> {
    let written = tree::write(&path(owner, file)?, &limit.to_string());
    Ok(written.err().and_then(|error| error.raw_os_error()))
}

/// An eviction is charged with what it takes of the host, until the range is unmapped.
fn charged() -> Outcome {
    let session = session()?;
    room(&me(), 1)?;
    let first = on_gpu(&session, 0)?;
    same("nothing was evicted", host(&me())?, 0)?;
    let second = on_gpu(&session, 1)?;
    same("the first", host(&me())?, ROOT as u64)?;
    same("on the GPU", shown(&me())?, ROOT)?;
    // Its host memory stays when it is on the GPU again.
    first.migrate(&session)?;
    same("the second, too", host(&me())?, 2 * ROOT as u64)?;
    second.migrate(&session)?;
    same("nothing more", host(&me())?, 2 * ROOT as u64)?;
    let below = errno_of(&me(), HOST_LIMIT, ROOT as u64)?;
    same("below what is charged", below, Some(libc::EBUSY))?;
    same(
        "limit",
        tree::read(&path(&me(), HOST_LIMIT)?)?.as_str(),
        "max\n",
    )?;
    zeros(&first)?;
    drop(first);
    same("unmapped", host(&me())?, ROOT as u64)?;
    drop(second);
    same("all unmapped", host(&me())?, 0)
}

/// What the CPU wrote first has its host memory already: it leaves the GPU under any limit.
fn was_there() -> Outcome {
    let session = session()?;
    room(&me(), 1)?;
    set(&me(), HOST_LIMIT, "0")?;
    let range = Range::new(&session, START, 3 * ROOT)?;
    range.write(1);
    range.migrate(&session)?;
    same("on the GPU", shown(&me())?, ROOT)?;
    same("charged", host(&me())?, 0)?;
    range.check(1)
}

/// An eviction beyond the limit fails. Its owner is out of memory, and loses nothing.
fn refused() -> Outcome {
    let session = session()?;
    room(&me(), 1)?;
    let limit = (ROOT / 2) as u64;
    set(&me(), HOST_LIMIT, &limit.to_string())?;
    let first = on_gpu(&session, 0)?;
    let second = Range::new(&session, START + 2 * ROOT, ROOT)?;
    let migrate = || {
        uvm(&session)?
            .migrate(START + 2 * ROOT, ROOT)
            .map_err(Stop::from)
    };
    let outcome = uvm(&session)?.migrate(START + 2 * ROOT, ROOT);
    holds("refused", is_refused(outcome)?)?;
    holds("within the limit", host(&me())? <= limit)?;
    same("on the GPU", shown(&me())?, ROOT)?;
    // A lower limit has to evict, too.
    let (file, old) = (path(&me(), LIMIT)?, number(&me(), LIMIT)?);
    let lower = old - ROOT as u64;
    same("errno", errno_of(&me(), LIMIT, lower)?, Some(libc::EBUSY))?;
    same("limit", tree::read(&file)?, format!("{old}\n"))?;
    set(&me(), HOST_LIMIT, &(ROOT as u64).to_string())?;
    migrate().during("with room on the host")?;
    same("exactly", host(&me())?, ROOT as u64)?;
    zeros(&first)?;
    zeros(&second)?;
    drop((first, second));
    same("unmapped", host(&me())?, 0)
}

/// Forks a process that populates a range on the GPU at each step.
fn member(steps: usize) -> Result<Child, Stop> {
    let mut child = Child::fork(|parent: &mut Parent| populate(parent, steps))?;
    child.at_step()?;
    Ok(child)
}

fn populate(parent: &mut Parent, steps: usize) -> Outcome {
    parent.step()?;
    let session = session()?;
    parent.step()?;
    let mut all = Vec::new();
    for step in 0..steps {
        all.push(on_gpu(&session, step)?);
        parent.step()?;
    }
    all.iter().try_for_each(zeros)?;
    parent.step()
}

/// Forks a member of a group and of a memory cgroup.
fn member_of(group: &Group, cgroup: &'static str, steps: usize) -> Result<(Cgroup, Child), Stop> {
    let made = Cgroup::new(cgroup)?;
    let mut child = Child::fork(|parent: &mut Parent| {
        made.enter()?;
        populate(parent, steps)
    })?;
    child.at_step()?;
    group.add(child.pid())?;
    child.next().during("session")?;
    Ok((made, child))
}

/// Whoever makes an eviction necessary, its owner's memory cgroup is charged for the host memory:
/// a mate's migration, the administrator's lower limit.
fn cgroups() -> Outcome {
    let group = Group::new("host")?;
    let (own, mut owner) = member_of(&group, "gct-owner", 2)?;
    let (other, mut mate) = member_of(&group, "gct-mate", 1)?;
    room("host", 2)?;
    owner.next()?;
    owner.next()?;
    let name = owner.pid().to_string();
    let grows = |what: &str, evict: &mut dyn FnMut() -> Outcome| -> Outcome {
        let before = [own.current()?, other.current()?, host(&name)?];
        evict()?;
        let [of_owner, of_mate, charged] = before;
        same(what, host(&name)? - charged, ROOT as u64)?;
        holds(what, own.current()? >= of_owner + ROOT as u64)?;
        holds(
            "the mate's cgroup",
            other.current()? < of_mate + ROOT as u64 / 2,
        )
    };
    grows("a mate's migration", &mut || mate.next())?;
    mate.kill();
    eventually("the mate's root", &ROOT, || shown("host"))?;
    let lower = current("host")? - ROOT as u64;
    grows("a lower limit", &mut || {
        set("host", LIMIT, &lower.to_string())
    })?;
    owner.next().during("its content")?;
    owner.go()?;
    owner.finish()?;
    eventually("at the end", &0, || host("host"))
}

/// The kernel kills an owner whose memory cgroup has no room for an eviction, and nobody else. Its
/// mate gets what it had.
fn full_cgroup() -> Outcome {
    let group = Group::new("host")?;
    let (own, mut owner) = member_of(&group, "gct-owner", 1)?;
    let (other, mut mate) = member_of(&group, "gct-mate", 1)?;
    let mut outside = member(1)?;
    outside.next()?;
    outside.next()?;
    room("host", 1)?;
    owner.next()?;
    own.stop_growth()?;
    mate.next().during("the owner's cgroup is full")?;
    same("killed", [own.killed()?, other.killed()?], [1, 0])?;
    same("the mate's", shown(&mate.pid().to_string())?, ROOT)?;
    same("outside", shown(&outside.pid().to_string())?, ROOT)?;
    owner.kill();
    for child in [&mut mate, &mut outside] {
        child.next().during("content")?;
        child.go()?;
        child.finish()?;
    }
    eventually("at the end", &0, || host("host"))
}

/// A group's limit bounds the sum of its members', and nobody outside of it.
fn of_group() -> Outcome {
    let group = Group::new("host")?;
    let (mut first, mut second, mut outside) = (member(2)?, member(1)?, member(1)?);
    group.add(first.pid())?;
    group.add(second.pid())?;
    for child in [&mut first, &mut second, &mut outside] {
        child.next().during("session")?;
    }
    room("host", 1)?;
    set("host", HOST_LIMIT, &(2 * ROOT).to_string())?;
    outside.next().during("outside")?;
    first.next()?;
    first.next().during("evicts its own")?;
    same("of the group", host("host")?, ROOT as u64)?;
    second.next().during("evicts the first one's")?;
    let names = [&first, &second, &outside].map(|child| child.pid().to_string());
    same("of the first", host(&names[0])?, 2 * ROOT as u64)?;
    same("of the group", host("host")?, 2 * ROOT as u64)?;
    let others = [host(&names[1])?, host(&names[2])?];
    same("of the others", others, [0, 0])?;
    same("outside", shown(&names[2])?, ROOT)?;
    first.kill();
    eventually("of the group", &0, || host("host"))?;
    for child in [&mut second, &mut outside] {
        child.next().during("content")?;
        child.go()?;
        child.finish()?;
    }
    eventually("at the end", &0, || host("host"))
}

/// Threads evict each other's ranges at the limit, and are refused. What is charged never exceeds
/// the limit, and goes with the ranges.
fn threads() -> Outcome {
    const THREADS: usize = 4;
    let session = session()?;
    room(&me(), 2)?;
    let limit = (3 * ROOT) as u64;
    set(&me(), HOST_LIMIT, &limit.to_string())?;
    let work = |thread: usize| -> Outcome {
        for round in 0..4 {
            let start = START + 64 * thread * ROOT;
            let range = Range::new(&session, start, ROOT + 5 * PAGE)?;
            if round % 2 == 1 {
                range.write(round);
            }
            let outcome = uvm(&session)?.migrate(start, ROOT + 5 * PAGE);
            is_refused(outcome)?;
            holds("within the limit", host(&me())? <= limit)?;
            match round % 2 {
                1 => range.check(round)?,
                _ => zeros(&range)?,
            }
        }
        Ok(())
    };
    in_threads(THREADS, work)?;
    same("uvm", shown(&me())?, 0)?;
    same("host", host(&me())?, 0)
}

/// A thread asks for a root that its process cannot have: evictions fail half-way, as the host has
/// no room. What they had taken is free again, and others keep what they take of it meanwhile.
fn failing_evictions() -> Outcome {
    const THREADS: usize = 4;
    const SMALL: usize = 8 * PAGE;
    let session = session()?;
    let alone = current(&me())?;
    room(&me(), 1)?;
    set(&me(), HOST_LIMIT, &SMALL.to_string())?;
    let ranges = |first: usize, count: usize, length: usize| -> Result<Vec<Range>, Stop> {
        let starts = (first..first + count).map(|at| START + at * ROOT);
        starts.map(|at| Range::new(&session, at, length)).collect()
    };
    // Every second one stays, so that the root has free memory in many pieces.
    let small = ranges(0, 16, SMALL)?;
    small.iter().try_for_each(|range| range.migrate(&session))?;
    same("one root", shown(&me())?, ROOT)?;
    let odd = |(at, range)| (at % 2 == 1).then_some(range);
    let kept: Vec<Range> = small.into_iter().enumerate().filter_map(odd).collect();
    let (large, short) = (ranges(512, 1, ROOT)?, ranges(1024, 30, SMALL / 2)?);
    // A migration holds the mm's lock, which starting a thread needs. So all threads start first.
    let started = Barrier::new(THREADS);
    in_threads(THREADS, |thread| {
        started.wait();
        let asks = |at: usize, length: usize| {
            is_refused(uvm(&session)?.migrate(START + at * ROOT, length))
        };
        if thread == 0 {
            return holds("refused", asks(512, ROOT)?);
        }
        // Free memory that an eviction has in its hands is refused.
        let mut own = (1024..1024 + short.len())
            .skip(thread - 1)
            .step_by(THREADS - 1);
        own.try_for_each(|at| asks(at, SMALL / 2).map(|_| ()))
    })?;
    same("still one root", shown(&me())?, ROOT)?;
    drop((kept, large, short));
    same("current", current(&me())?, alone)?;
    same("host", host(&me())?, 0)
}

/// Nothing stays charged to a group when a member dies, whatever it was doing.
fn killed() -> Outcome {
    let group = Group::new("host")?;
    for steps in 0..4 {
        let mut child = member(3)?;
        group.add(child.pid())?;
        for step in 0..steps {
            child.next().during(format!("step {step}"))?;
            if step == 0 {
                room("host", 1)?;
            }
        }
        if steps == 3 {
            same("evicted", host("host")?, ROOT as u64)?;
            // It dies in the middle of the next one.
            child.go()?;
        }
        child.kill();
        eventually("host", &0, || host("host")).during(format!("{steps} steps"))?;
        eventually("current", &0, || current("host"))?;
        set("host", LIMIT, "max")?;
    }
    Ok(())
}

/// Who takes its address space off the GPU keeps the charge for host memory, until it is unmapped.
fn without_gpu() -> Outcome {
    let session = session()?;
    room(&me(), 1)?;
    let (first, second) = (on_gpu(&session, 0)?, on_gpu(&session, 1)?);
    same("evicted", host(&me())?, ROOT as u64)?;
    uvm(&session)?.unregister_gpu()?;
    same("uvm", shown(&me())?, 0)?;
    same("without the GPU", host(&me())?, ROOT as u64)?;
    zeros(&first)?;
    drop(first);
    same("unmapped", host(&me())?, 0)?;
    zeros(&second)
}
