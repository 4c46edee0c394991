// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests channels that were there before a limit: under `compute.max` their owner pauses, which
//! takes them off the GPU for part of the time.

use crate::gpus::{free_subdevice, me, session, ENGINE};
use crate::limits::{set, FREEZE};
use crate::owned::{count, no_worker};
use crate::owned_time::{launches, Tenant, MILLISECOND, PROGRAM_OF_ONE};
use crate::process::{Child, Parent};
use crate::sent::{named, sent};
use crate::submit::queue;
use crate::timing::undisturbed;
use crate::tree::{eventually, expect_gone, Group};
use fakegpu_record::{Event, Recorder};
use gct_ktap::{failed, same, During, Outcome, Stop, Test};
use rm_client::Queue;
use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

pub(crate) const TESTS: &[Test] = &[
    ("paused_channel_from_before_has_its_share", share),
    ("paused_until_the_limit_goes", lifted),
    ("paused_hostile_enables_its_channel", enabled),
    ("paused_hostile_has_no_subdevice", without_subdevice),
    ("paused_members_of_a_group", members),
    ("paused_crowd_runs_in_turn", crowd),
    ("paused_launches_are_exact", exact),
    ("paused_owners_that_die", dying),
    ("paused_with_channels_of_the_drivers", beside),
    ("paused_storm_of_writes", || writes(30)),
];

const MAX: &str = "compute.max";
/// A fifth of the time.
const LIMIT: &str = "20000 100000";

/// The shortest time without progress that counts as standing: less than half a pause.
const STAND: Duration = Duration::from_millis(30);
/// The longest pause, on a busy host under emulation.
const LATE: Duration = Duration::from_secs(60);

/// A channel that submits one release after the other.
struct Worker {
    queue: Queue,
    payload: u32,
    ran: Duration,
    stands: u32,
    /// How often it looks, and how long it waits for a release.
    poll: Duration,
    late: Duration,
}

impl Worker {
    fn new(queue: Queue) -> Self {
        Self {
            queue,
            payload: 0,
            ran: Duration::ZERO,
            stands: 0,
            poll: Duration::from_micros(50),
            late: LATE,
        }
    }

    /// Submits a release, and waits for it. Runs `meanwhile` again and again.
    fn release(&mut self, mut meanwhile: impl FnMut() -> Outcome) -> Outcome {
        let start = Instant::now();
        self.payload += 1;
        self.queue.submit_release(0, self.payload);
        while self.queue.payload(0) != self.payload {
            if start.elapsed() > self.late {
                return Err(failed(format!("release {} never comes", self.payload)));
            }
            meanwhile()?;
            thread::sleep(self.poll);
        }
        match start.elapsed() {
            time if time < STAND => self.ran += time,
            _ => self.stands += 1,
        }
        Ok(())
    }

    /// Works for some time.
    fn work_for(&mut self, time: Duration) -> Outcome {
        let start = Instant::now();
        while start.elapsed() < time {
            self.release(nothing)?;
        }
        Ok(())
    }

    /// Works until it has stood so often.
    fn stands_for(&mut self, turns: u32, mut meanwhile: impl FnMut() -> Outcome) -> Outcome {
        let start = Instant::now();
        (self.ran, self.stands) = (Duration::ZERO, 0);
        while self.stands < turns {
            if start.elapsed() > self.late {
                return Err(failed(format!("stood {} times of {turns}", self.stands)));
            }
            self.release(&mut meanwhile)?;
        }
        Ok(())
    }

    /// Works under [`LIMIT`] for some turns. Fails if that is not kept.
    fn is_limited(&mut self, mut meanwhile: impl FnMut() -> Outcome) -> Outcome {
        const TURNS: u32 = 10;
        undisturbed(|| {
            // From the end of a pause to the end of another.
            self.stands_for(1, &mut meanwhile)?;
            let start = Instant::now();
            self.stands_for(TURNS, &mut meanwhile)?;
            let percent = self.ran.as_nanos() * 100 / start.elapsed().as_nanos().max(1);
            println!("# {percent}% of {} ms", start.elapsed().as_millis());
            // A pause of the host within a turn looks like the end of one.
            same("within its share", percent <= 24, true).during(format!("{percent}%"))?;
            same("it runs", self.ran > Duration::ZERO, true)
        })
    }

    /// Works until a release is late, and returns while the channel stands.
    fn stands(&mut self) -> Outcome {
        let start = Instant::now();
        while start.elapsed() < LATE {
            self.payload += 1;
            self.queue.submit_release(0, self.payload);
            let submitted = Instant::now();
            while self.queue.payload(0) != self.payload {
                if submitted.elapsed() > STAND {
                    return Ok(());
                }
                thread::sleep(Duration::from_micros(50));
            }
        }
        Err(failed("it never stands"))
    }
}

fn nothing() -> Outcome {
    Ok(())
}

/// Returns how many controls of limits are sent within three periods.
fn controls() -> Result<usize, Stop> {
    let events = sent(|| {
        thread::sleep(Duration::from_millis(300));
        Ok(())
    })?;
    Ok(events.len())
}

/// Fails if a control of a limit is sent.
fn quiet() -> Outcome {
    same("controls", controls()?, 0)
}

fn share() -> Outcome {
    let session = session(0)?;
    let mut worker = Worker::new(queue(&session)?);
    worker.release(nothing)?;
    quiet().during("without a limit")?;
    same("native", count("native")?, 1)?;
    let events = sent(|| {
        set(&me(), MAX, LIMIT)?;
        worker.is_limited(nothing)
    })?;
    // Each control names the channel, and stops it or lets it on, in turn.
    let mut stops = true;
    for event in &events {
        let (stopped, channels) = named(event)?;
        same("turns", (stopped, channels.len()), (stops, 1))?;
        stops = !stops;
    }
    same("owned", count("owned")?, 0)
}

/// A write that takes the limit away returns when the channel runs.
fn lifted() -> Outcome {
    let session = session(0)?;
    let mut worker = Worker::new(queue(&session)?);
    worker.release(nothing)?;
    for _ in 0..3 {
        set(&me(), MAX, LIMIT)?;
        worker.stands()?;
        set(&me(), MAX, "max")?;
        quiet()?;
        worker.release(nothing)?;
    }
    // Frozen, it stays frozen without the limit.
    set(&me(), MAX, LIMIT)?;
    worker.stands()?;
    set(&me(), FREEZE, "1")?;
    set(&me(), MAX, "max")?;
    let payload = worker.queue.payload(0);
    quiet()?;
    same("frozen", worker.queue.payload(0), payload)?;
    set(&me(), FREEZE, "0")?;
    worker.release(nothing)
}

/// A tenant that enables and schedules its channel all the time has its share and no more.
fn enabled() -> Outcome {
    let session = session(0)?;
    let group = session.group(ENGINE)?;
    let queue = session.queue(group, ENGINE)?;
    session.copy_object(queue.channel(), ENGINE)?;
    session.schedule(group, true)?;
    let channel = queue.channel();
    let mut worker = Worker::new(queue);
    worker.release(nothing)?;
    set(&me(), MAX, LIMIT)?;
    let mut refused = 0;
    worker.is_limited(|| {
        refused += u32::from(session.disable(channel, false).is_err());
        session.schedule(group, true)?;
        Ok(())
    })?;
    same("refused", refused > 0, true)?;
    set(&me(), MAX, "max")?;
    session.disable(channel, false)?;
    worker.release(nothing)
}

/// A tenant without a subdevice has its share and no more.
fn without_subdevice() -> Outcome {
    let session = session(0)?;
    let mut worker = Worker::new(queue(&session)?);
    worker.release(nothing)?;
    free_subdevice(&session)?;
    set(&me(), MAX, LIMIT)?;
    worker.is_limited(nothing)?;
    set(&me(), MAX, "max")?;
    quiet()?;
    worker.release(nothing)
}

const NAME: &str = "paused";

/// Starts a process with a channel. It waits for [`Child::go`] before its work.
fn opened(work: impl FnOnce(&mut Worker, &mut Parent) -> Outcome) -> Result<Child, Stop> {
    let mut child = Child::fork(|parent| {
        let session = session(0)?;
        let mut worker = Worker::new(queue(&session)?);
        worker.release(nothing)?;
        parent.step()?;
        work(&mut worker, parent)
    })?;
    child.at_step()?;
    Ok(child)
}

/// Members that come with their channels pause together. A process that is no member does not.
fn members() -> Outcome {
    // The driver announces limits on time when it knows the GPU.
    let _session = session(0)?;
    let group = Group::new(NAME)?;
    set(NAME, MAX, LIMIT)?;
    let member = || opened(|worker, _| worker.is_limited(nothing));
    let mut both = [member()?, member()?];
    let mut other = opened(|worker, _| {
        undisturbed(|| {
            worker.ran = Duration::ZERO;
            let start = Instant::now();
            worker.work_for(Duration::from_secs(1))?;
            same("runs on", worker.ran * 2 > start.elapsed(), true)
        })
    })?;
    for child in &both {
        group.add(child.pid())?;
    }
    for child in both.iter_mut().chain([&mut other]) {
        child.go()?;
    }
    other.finish()?;
    for child in &mut both {
        child.finish()?;
    }
    quiet()
}

/// Sixteen members take long to stop and to go on, and each of them has its part of the turns,
/// however long a turn takes on this host.
fn crowd() -> Outcome {
    const COUNT: usize = 16;
    let _session = session(0)?;
    let group = Group::new(NAME)?;
    set(NAME, MAX, LIMIT)?;
    let mut children = Vec::new();
    for _ in 0..COUNT {
        let child = opened(|worker, parent| {
            // Sixteen that look all the time would leave the driver little of the processors.
            worker.poll = Duration::from_millis(5);
            worker.late = 15 * LATE;
            worker.stands_for(3, nothing)?;
            parent.step()
        })?;
        group.add(child.pid())?;
        children.push(child);
    }
    let events = sent(|| {
        for child in &mut children {
            child.go()?;
        }
        children.iter_mut().try_for_each(Child::at_step)
    })?;
    run_in_turn(&events, COUNT)?;
    for child in &mut children {
        child.go()?;
        child.finish()?;
    }
    quiet()
}

/// Fails unless each of so many channels was let on as often as each other, at any time.
fn run_in_turn(events: &[Event], count: usize) -> Outcome {
    let mut turns = BTreeMap::new();
    for event in events {
        let (stopped, channels) = named(event)?;
        for channel in channels {
            *turns.entry(channel).or_insert(0) += u32::from(!stopped);
        }
        let (most, least) = (turns.values().max(), turns.values().min());
        // The first turn may have begun before.
        let all = most.copied().unwrap_or(0) <= 2 || turns.len() == count;
        let apart = most.zip(least).map_or(0, |(most, least)| most - least);
        same("all have turns", all, true)?;
        same("turns apart", apart <= 2, true)?;
    }
    println!("# turns: {:?}", turns.values().collect::<Vec<_>>());
    same("channels", turns.len(), count)
}

/// Launches of a second are cut by pauses, and each block runs once.
fn exact() -> Outcome {
    const COUNT: usize = 200;
    let index = usize::try_from(crate::tree::index_of(0)?).map_err(failed)?;
    let mut tenant = Tenant::with(session(0)?, PROGRAM_OF_ONE)?;
    let recorder = Recorder::open(index).during("recorder")?;
    let mark = recorder.mark()?;
    set(&me(), MAX, LIMIT)?;
    for _ in 0..COUNT {
        tenant.launch(MILLISECOND);
        tenant.wait(7)?;
    }
    tenant.wait(0)?;
    let found = launches(&recorder, mark, PROGRAM_OF_ONE)?;
    same("launches", found.len(), COUNT)?;
    let whole = |launch: &Event| launch.blocks.len() == 1;
    same("whole", found.iter().all(whole), true)
}

/// Members die, and free their channels, at any moment of their pauses. Nothing is left of them.
fn dying() -> Outcome {
    const ROUNDS: u64 = 12;
    let _session = session(0)?;
    let group = Group::new(NAME)?;
    set(NAME, MAX, LIMIT)?;
    let mut neighbour = opened(|worker, parent| parent.work(|| worker.release(nothing)))?;
    group.add(neighbour.pid())?;
    neighbour.next()?;
    for round in 0..ROUNDS {
        let mut child = Child::fork(|parent| {
            let session = session(0)?;
            let queues = [queue(&session)?, queue(&session)?];
            parent.step()?;
            for queue in &queues {
                session.gpu().client().free(queue.channel())?;
            }
            parent.step()
        })?;
        child.at_step()?;
        let pid = child.pid();
        group.add(pid)?;
        thread::sleep(Duration::from_millis(13 * round));
        if round % 2 == 0 {
            child.next()?;
        }
        child.kill();
        expect_gone(pid)?;
    }
    neighbour.go()?;
    neighbour.finish()?;
    quiet()
}

/// A channel of the driver's pauses beside one of the tenant's, and goes on when that is freed.
fn beside() -> Outcome {
    let session = session(0)?;
    let native = queue(&session)?;
    set(&me(), MAX, LIMIT)?;
    let mut owned = Worker::new(queue(&session)?);
    same("channels", (count("owned")?, count("native")?), (1, 1))?;
    owned.is_limited(nothing)?;
    session.gpu().client().free(native.channel())?;
    same("native", count("native")?, 0)?;
    // A pause that has begun may end.
    eventually("controls", &0, controls)?;
    owned.release(nothing)?;
    drop((native, owned, session));
    no_worker()
}

/// Limits change at random while a channel from before works.
pub(crate) fn writes(count: u64) -> Outcome {
    const VALUES: [&str; 4] = [LIMIT, "max", "1000 2000", "50000 100000"];
    let _session = session(0)?;
    let group = Group::new(NAME)?;
    let mut child = opened(|worker, parent| loop {
        worker.work_for(Duration::from_millis(20))?;
        parent.step()?;
    })?;
    group.add(child.pid())?;
    let mut number = count;
    for _ in 0..count {
        child.go()?;
        for _ in 0..2 {
            number = number.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            // CAST: two bits.
            let which = (number >> 60) as usize;
            match which {
                0 => {
                    set(NAME, FREEZE, "1")?;
                    set(NAME, FREEZE, "0")?;
                }
                which => set(NAME, MAX, VALUES[which % VALUES.len()])?,
            }
        }
        child.at_step().during("the tenant")?;
    }
    child.kill();
    drop(child);
    quiet()
}
