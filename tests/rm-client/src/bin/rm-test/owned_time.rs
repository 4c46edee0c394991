// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests limits of owned channels that concern neighbours and time: priority, quotas, weights and
//! duty cycles.

use crate::gpus::session;
use crate::launch::{finish, recorder};
use crate::limits::set;
use crate::owned::{count, join, no_worker};
use crate::owned_launch::disabled;
use crate::process::{Child, Parent};
use crate::timing::undisturbed;
use crate::tree::{self, eventually, Group};
use fakegpu_record::{Event, Recorder};
use gct_core::submit::method::incr;
use gct_core::submit::methods::SEM_ADDR_LO;
use gct_ktap::{failed, same, During, Outcome, Stop, Test};
use rm_client::{Engine, Grid, Handle, Launcher, Mapping, Memory, Session};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

pub(crate) const TESTS: &[Test] = &[
    ("owned_time_priority_holds_the_later", priority),
    ("owned_time_quota_is_lent_and_comes_back", quota),
    ("owned_time_is_shared_by_weight", || {
        undisturbed(|| weights(1))
    }),
    ("owned_time_is_shared_by_groups_not_by_processes", || {
        undisturbed(|| weights(4))
    }),
    ("owned_time_duty_cycle_holds", || undisturbed(duty_cycle)),
    ("owned_time_no_wait_for_a_word_is_billed", waits),
];

/// The groups of these tests, and the programs of their members.
pub(crate) const ONE: &str = "one";
pub(crate) const OTHER: &str = "other";
pub(crate) const PROGRAM_OF_ONE: u32 = 0x5000;
pub(crate) const PROGRAM_OF_OTHER: u32 = 0x6000;

pub(crate) const PRIORITY: &str = "compute.priority";
pub(crate) const QUOTA: &str = "tpc.quota";

/// Blocks of a launch that takes about a millisecond on all 132 SMs.
pub(crate) const MILLISECOND: u32 = 13_200;

/// Launches by which the driver learns where a program releases.
pub(crate) const PREPARED: u32 = 5;

/// Bytes of memory for descriptors, and the offset of the word that launches release.
const BYTES: u64 = 0x1_0000;
const RELEASE: u64 = 0x8000;
/// Offset of the word that a launch behind an acquire waits for.
const GATE: u64 = 0x9000;

/// A process that launches, on one channel.
pub(crate) struct Tenant {
    pub(crate) session: Session,
    pub(crate) launcher: Launcher,
    grid: Grid,
    pub(crate) words: Mapping,
    pub(crate) address: u64,
    launched: u32,
}

impl Tenant {
    /// Opens the GPU, and launches until the driver follows the ends of launches.
    pub(crate) fn new(program: u32) -> Result<Self, Stop> {
        Self::with(session(0)?, program)
    }

    /// The same, in a session.
    pub(crate) fn with(session: Session, program: u32) -> Result<Self, Stop> {
        let group = session.group(Engine::Compute)?;
        Self::below(session, group, program)
    }

    /// The same, with a context share of its own below a group.
    pub(crate) fn below(session: Session, group: Handle, program: u32) -> Result<Self, Stop> {
        let share = session.context_share(group)?;
        let mut launcher = session.launcher(group, share)?;
        session.schedule_queue(launcher.queue())?;
        finish(&mut launcher)?;
        let memory = session.gpu().alloc_memory(Memory::Host, BYTES)?;
        let address = session.map_on_gpu(memory, BYTES)?;
        // CAST: 64 KiB.
        let words = session
            .gpu()
            .map_memory(Memory::Host, memory, BYTES as usize)?;
        let mut tenant = Self {
            session,
            launcher,
            grid: Grid {
                descriptor: address,
                program,
                size: [1, 1, 1],
                disabled: 0,
                release: None,
            },
            words,
            address,
            launched: 0,
        };
        for _ in 0..PREPARED {
            tenant.launch(1);
            tenant.wait(0)?;
        }
        Ok(tenant)
    }

    /// Submits a launch.
    pub(crate) fn launch(&mut self, blocks: u32) {
        let words = self.next(blocks).words();
        self.launcher.submit(&words);
    }

    /// The same, for a launch as CUDA makes it. The driver takes others for heads of graphs.
    pub(crate) fn launch_as_cuda(&mut self, blocks: u32) {
        let words = self.next(blocks).words_beside_companion();
        self.launcher.submit(&words);
    }

    /// Submits a launch that waits until [`open_gate`](Self::open_gate).
    fn launch_behind_gate(&mut self, blocks: u32) {
        /// SEM_EXECUTE waits for a word that counts up.
        const ACQ_CIRC_GEQ: u32 = 3;
        let gate = self.address + GATE;
        // CAST: the halves of an address.
        let [low, high] = [gate as u32, (gate >> 32) as u32];
        let acquire = [incr(0, SEM_ADDR_LO, 5), low, high, 1, 0, ACQ_CIRC_GEQ];
        let launch = self.next(blocks).words();
        self.launcher.submit(&[&acquire[..], &launch].concat());
    }

    fn open_gate(&self) {
        // CAST: an offset.
        self.words.u32(GATE as usize).store(1, Ordering::Release);
    }

    fn next(&mut self, blocks: u32) -> &Grid {
        self.launched += 1;
        self.grid.size[0] = blocks;
        self.grid.release = Some((self.address + RELEASE, self.launched));
        &self.grid
    }

    /// The same, of any program and size. It adds 1 to the word at `counter` when it ends.
    pub(crate) fn launch_of(&mut self, program: u32, size: [u32; 3], counter: u64) {
        self.launched += 1;
        let grid = Grid {
            program,
            size,
            release: Some((self.address + RELEASE, self.launched)),
            ..self.grid
        };
        self.launcher.submit(&grid.words_adding(Some(counter)));
    }

    /// Writes what the last launch releases, as if all had ended.
    pub(crate) fn forge_ends(&self) {
        // CAST: an offset.
        let word = self.words.u32(RELEASE as usize);
        word.store(self.launched, Ordering::Release);
    }

    /// Returns how many launches have ended.
    pub(crate) fn ended(&self) -> u32 {
        // CAST: an offset.
        self.words.u32(RELEASE as usize).load(Ordering::Acquire)
    }

    /// Waits until so many launches or fewer have not ended.
    pub(crate) fn wait(&self, left: u32) -> Outcome {
        const STANDS: Duration = Duration::from_secs(60);
        let (mut last, mut since) = (self.ended(), Instant::now());
        while self.launched - self.ended() > left {
            if self.ended() != last {
                (last, since) = (self.ended(), Instant::now());
            }
            if since.elapsed() > STANDS {
                return Err(failed(format!("{} of {}", self.ended(), self.launched)));
            }
            thread::sleep(Duration::from_micros(100));
        }
        Ok(())
    }

    /// Launches for some time, with a few launches in flight.
    pub(crate) fn work_for(&mut self, time: Duration, blocks: u32) -> Outcome {
        let end = Instant::now() + time;
        while Instant::now() < end {
            self.launch(blocks);
            self.wait(7)?;
        }
        self.wait(0)
    }
}

/// Starts a tenant in a group. It waits for [`Child::go`] before its work.
pub(crate) fn tenant(
    group: &Group,
    program: u32,
    work: impl FnOnce(&mut Tenant, &mut Parent) -> Outcome,
) -> Result<Child, Stop> {
    tenant_as(Tenant::new, group, program, work)
}

/// The same, for a tenant that opens the GPU in its own way.
pub(crate) fn tenant_as(
    open: impl FnOnce(u32) -> Result<Tenant, Stop>,
    group: &Group,
    program: u32,
    work: impl FnOnce(&mut Tenant, &mut Parent) -> Outcome,
) -> Result<Child, Stop> {
    let mut child = join(group, |parent| {
        let mut tenant = open(program)?;
        parent.step()?;
        work(&mut tenant, parent)?;
        same(
            "its session",
            tenant.session.gpu().client().handle() != 0,
            true,
        )
    })?;
    child.next()?;
    Ok(child)
}

/// Makes both groups, with owned channels.
pub(crate) fn groups() -> Result<[Group; 2], Stop> {
    // The driver learns the GPU's TPCs from its first client.
    drop(session(0)?);
    let groups = [Group::new(ONE)?, Group::new(OTHER)?];
    for name in [ONE, OTHER] {
        set(name, "channel.owned", "1")?;
    }
    Ok(groups)
}

/// Returns the launches of a program since a mark, without short ones.
pub(crate) fn launches(recorder: &Recorder, mark: u32, program: u32) -> Result<Vec<Event>, Stop> {
    let mut launches = recorder.launches_since(mark)?;
    launches.retain(|launch| launch.program == u64::from(program) && launch.grid[0] > 1);
    Ok(launches)
}

/// Returns a count of a group's `compute.stat`.
pub(crate) fn stat(group: &str, key: &str) -> Result<u64, Stop> {
    let text = tree::read(&crate::limits::path(group, "compute.stat")?)?;
    Ok(tree::value(&text, key).unwrap_or(0))
}

/// An owner of an earlier priority has work for half a second, again and again. Work of the other
/// that comes meanwhile runs after it.
fn priority() -> Outcome {
    priority_holds(Tenant::new, [0, 0])
}

/// The same, for tenants that open the GPU in their own way. Their launches have `places` in the
/// GPU's order. The tenants write 0.
pub(crate) fn priority_holds(open: fn(u32) -> Result<Tenant, Stop>, places: [u32; 2]) -> Outcome {
    let [one, other] = groups()?;
    set(ONE, PRIORITY, "0")?;
    let recorder = recorder()?;
    let mut first = tenant_as(open, &one, PROGRAM_OF_ONE, works_at_steps)?;
    let mut second = tenant_as(open, &other, PROGRAM_OF_OTHER, |tenant, parent| loop {
        tenant.launch(MILLISECOND);
        eventually("pending", &true, || Ok(count("pending")? > 0))?;
        parent.step()?;
        tenant.wait(0)?;
        parent.step()?;
    })?;
    for _ in 0..ROUNDS_MAX {
        let mark = recorder.mark()?;
        first.next()?;
        second.next()?;
        // Two launches take a while, so the other waits.
        let came_meanwhile = stat(ONE, "pending")? >= 2;
        first.next()?;
        second.next()?;
        if !came_meanwhile {
            continue;
        }
        let early = launches(&recorder, mark, PROGRAM_OF_ONE)?;
        let late = launches(&recorder, mark, PROGRAM_OF_OTHER)?;
        same("launches", early.len(), 10)?;
        for (launches, place) in [&early, &late].into_iter().zip(places) {
            let elsewhere = launches.iter().find(|launch| launch.group != place);
            same("elsewhere", elsewhere.map(|launch| launch.group), None)?;
        }
        let end = early.iter().map(|launch| launch.ns).max().unwrap_or(0);
        let waits = late.iter().all(|atom| atom.began >= end);
        same("it waits", waits, true)?;
        same("held", stat(OTHER, "held_usec.tpcs")? > 10_000, true)?;
        same("the first is not held", stat(ONE, "held_usec.tpcs")?, 0)?;
        // Without an `atom.duration`: who yields has atoms, when it is known how long it works.
        if late.len() == 1 {
            continue;
        }
        first.kill();
        second.kill();
        return no_worker();
    }
    Err(failed("it never came meanwhile, in atoms"))
}

/// Rounds of which one must find both tenants at work, however slow the host is.
const ROUNDS_MAX: u32 = 20;

/// Has half a second of work at each second step, and none at the others.
fn works_at_steps(tenant: &mut Tenant, parent: &mut Parent) -> Outcome {
    loop {
        for _ in 0..10 {
            tenant.launch(50 * MILLISECOND);
        }
        eventually("pending", &true, || Ok(count("pending")? > 0))?;
        parent.step()?;
        tenant.wait(0)?;
        parent.step()?;
    }
}

/// The TPCs of a quota are used by others while its owner is silent, and not while it has work.
fn quota() -> Outcome {
    quota_is_lent(Tenant::new)
}

/// The same, for tenants that open the GPU in their own way.
pub(crate) fn quota_is_lent(open: fn(u32) -> Result<Tenant, Stop>) -> Outcome {
    let [one, other] = groups()?;
    set(ONE, QUOTA, "20")?;
    let reserved = reserved(ONE)?;
    let recorder = recorder()?;
    let mut borrower = tenant_as(open, &other, PROGRAM_OF_OTHER, |tenant, parent| loop {
        for _ in 0..10 {
            tenant.launch(MILLISECOND);
            tenant.wait(0)?;
        }
        parent.step()?;
    })?;
    let mut owner = tenant_as(open, &one, PROGRAM_OF_ONE, works_at_steps)?;
    let mut borrowed = || {
        let mark = recorder.mark()?;
        borrower.next()?;
        let launches = launches(&recorder, mark, PROGRAM_OF_OTHER)?;
        same("launches", launches.len(), 10)?;
        Ok::<_, Stop>(launches.iter().map(Event::mask_words).collect::<Vec<_>>())
    };
    is_lent(&mut borrowed)?;
    let mut kept = None;
    for _ in 0..ROUNDS_MAX {
        owner.next()?;
        let masks = borrowed()?;
        let worked_all_the_time = stat(ONE, "pending")? > 0;
        owner.next()?;
        if worked_all_the_time {
            kept = Some(masks);
            break;
        }
    }
    same("kept", kept, Some(vec![reserved.to_vec(); 10]))?;
    is_lent(&mut borrowed).during("again")?;
    borrower.kill();
    owner.kill();
    no_worker()
}

/// Fails unless ten launches may use all TPCs when their owner was silent for a while.
fn is_lent(mut borrowed: impl FnMut() -> Result<Vec<Vec<u32>>, Stop>) -> Outcome {
    undisturbed(|| {
        // Longer than the longest time for which an idle owner is waited for.
        thread::sleep(Duration::from_millis(200));
        same("lent", borrowed()?, vec![vec![0; 8]; 10])
    })
}

/// Returns the words that disable the TPCs that are reserved for a group.
pub(crate) fn reserved(group: &str) -> Result<[u32; 8], Stop> {
    let list = tree::read(&crate::limits::path(group, "tpc.reserved")?)?;
    // There is no TPC 255.
    let (mut words, others) = (disabled("255")?, disabled(list.trim())?);
    for (word, others) in words.iter_mut().zip(others) {
        *word &= !others;
    }
    Ok(words)
}

/// Two owners with work have the GPU 1:3, however many processes the first one has.
fn weights(processes: usize) -> Outcome {
    let [one, other] = groups()?;
    set(ONE, "compute.weight", "100")?;
    set(OTHER, "compute.weight", "300")?;
    let recorder = recorder()?;
    let work =
        |tenant: &mut Tenant, _: &mut Parent| tenant.work_for(Duration::from_secs(2), MILLISECOND);
    let firsts = (0..processes).map(|_| tenant(&one, PROGRAM_OF_ONE, work));
    let mut children = firsts.collect::<Result<Vec<_>, _>>()?;
    children.push(tenant(&other, PROGRAM_OF_OTHER, work)?);
    let mark = recorder.mark()?;
    children.iter_mut().try_for_each(Child::go)?;
    children.iter_mut().try_for_each(Child::finish)?;
    // Read once: each of some thousand events comes through the device's registers.
    let mut all = recorder.launches_since(mark)?;
    all.retain(|launch| launch.grid[0] > 1);
    let is_of_one = |launch: &Event| launch.program == u64::from(PROGRAM_OF_ONE);
    let (ones, others): (Vec<_>, Vec<_>) = all.into_iter().partition(is_of_one);
    // The beginning, and the end when one of them works alone, do not count.
    let time = |all: &[Event]| (all.first().map(|e| e.ns), all.last().map(|e| e.ns));
    let ((Some(a), Some(b)), (Some(c), Some(d))) = (time(&ones), time(&others)) else {
        return Err(failed("no launches"));
    };
    let during = |all: &[Event]| {
        let inside = |e: &&Event| (a.max(c)..=b.min(d)).contains(&e.ns);
        all.iter().filter(inside).count()
    };
    let (few, many) = (during(&ones), during(&others));
    println!("# {few} launches and {many}");
    let percent = 100 * few / (few + many).max(1);
    // On a busy host either may have nothing ready at its turn, which then is the other's. Without
    // weights it is half, and 57% for the first if each of its four processes had a share.
    same(
        &format!("{percent}% of the time"),
        (10..=40).contains(&percent),
        true,
    )?;
    no_worker()
}

/// An owner with work all the time has the GPU for a fifth of it.
fn duty_cycle() -> Outcome {
    let [one, _other] = groups()?;
    set(ONE, "compute.max", "20000 100000")?;
    let recorder = recorder()?;
    let mut child = tenant(&one, PROGRAM_OF_ONE, |tenant, _| {
        tenant.work_for(Duration::from_secs(3), MILLISECOND)
    })?;
    let mark = recorder.mark()?;
    child.go()?;
    child.finish()?;
    let launches = launches(&recorder, mark, PROGRAM_OF_ONE)?;
    let (Some(first), Some(last)) = (launches.first(), launches.last()) else {
        return Err(failed("no launches"));
    };
    let (time, count) = (last.ns - first.began, launches.len() as u64);
    // Each takes a millisecond and two microseconds. The worker sees an end late on a busy host,
    // and bills the time until then.
    let percent = count * 1_002_000 * 100 / time.max(1);
    println!("# {count} launches in {} us", time / 1000);
    same(&format!("{percent}%"), (2..=22).contains(&percent), true)?;
    let held = stat(ONE, "held_usec.max")?;
    same("held", held > 100_000, true)?;
    same("waited", stat(ONE, "waited_usec")? >= held, true)?;
    no_worker()
}

/// Work under a duty cycle that waits for a word is held back until the word is there. On the GPU
/// its wait would be time that its owner has used.
fn waits() -> Outcome {
    const WAIT: Duration = Duration::from_millis(600);
    let [one, _other] = groups()?;
    set(ONE, "compute.max", "50000 100000")?;
    let mut child = tenant(&one, PROGRAM_OF_ONE, |tenant, parent| {
        parent.step()?;
        tenant.launch_behind_gate(MILLISECOND);
        thread::sleep(WAIT);
        tenant.wait(1)?;
        tenant.open_gate();
        tenant.wait(0)?;
        parent.step()
    })?;
    child.next()?;
    let before = stat(ONE, "usage_usec")?;
    child.next()?;
    let used = Duration::from_micros(stat(ONE, "usage_usec")? - before);
    println!("# {used:?} of {WAIT:?}");
    same("the wait is billed", used > WAIT / 2, false)?;
    child.go()?;
    child.finish()?;
    no_worker()
}
