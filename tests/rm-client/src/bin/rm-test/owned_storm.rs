// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests owned channels at random: launches, states of rings, deaths, and switches of limits.
//!
//! `rm-test all` runs a few. `make test-long` runs as many as `rm-test storm-NAME COUNT` says.

use crate::gpus::{session, ENGINE};
use crate::launch::recorder;
use crate::limits::set;
use crate::owned::{join, no_worker, OWNED};
use crate::owned_launch::MASK;
use crate::owned_time::{groups, tenant, Tenant, ONE, OTHER};
use crate::process::{Child, Parent};
use crate::submit::{queue, release};
use crate::tree::{eventually, Group};
use fakegpu_record::Event;
use gct_ktap::{failed, same, During, Outcome, Stop, Test};
use rm_client::Session;
use std::fs;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

pub(crate) const TESTS: &[Test] = &[
    ("owned_storm_of_launches", || launches(100)),
    ("owned_storm_of_states", || states(2000)),
    ("owned_storm_of_deaths", || deaths(10)),
    ("owned_storm_of_switches", || switches(20)),
];

/// Returns a storm of any length.
pub(crate) fn named(name: &str) -> Option<fn(u64) -> Outcome> {
    match name {
        "storm-launches" => Some(launches),
        "storm-states" => Some(states),
        "storm-deaths" => Some(deaths),
        "storm-switches" => Some(switches),
        "storm-pauses" => Some(crate::paused::writes),
        "storm-shadows" => Some(crate::shadowed_back::switches),
        _ => None,
    }
}

const ATOM: &str = "atom.duration";

/// The longest time that a neighbour's release may take, on a busy host under emulation.
pub(crate) const LATE: Duration = Duration::from_secs(20);

/// Random numbers (xorshift64).
pub(crate) struct Random(u64);

impl Random {
    /// Returns a generator whose seed is printed.
    pub(crate) fn new() -> Self {
        let time = SystemTime::now().duration_since(UNIX_EPOCH);
        // CAST: any bits will do.
        let seed = time.map_or(1, |time| time.as_nanos() as u64) | 1;
        println!("# seed {seed:#x}");
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Returns a number below `end`.
    pub(crate) fn below(&mut self, end: u32) -> u32 {
        // CAST: below 2^32.
        (self.next() % u64::from(end)) as u32
    }

    pub(crate) fn word(&mut self) -> u32 {
        // CAST: the low half.
        self.next() as u32
    }

    /// Returns the size of a grid: some are short, some take four milliseconds.
    fn size(&mut self) -> [u32; 3] {
        let most = [200, 2000, 20_000, 50_000][self.below(4) as usize];
        let blocks = 1 + self.below(most);
        let (height, depth) = (1 + self.below(4), 1 + self.below(4));
        [blocks.div_ceil(height * depth), height, depth]
    }
}

/// Two tenants launch grids of random sizes under `atom.duration`, one of them also under a mask.
/// Each block runs once, and each launch has its effect once.
fn launches(count: u64) -> Outcome {
    let [one, other] = groups()?;
    for name in [ONE, OTHER] {
        set(name, ATOM, "100")?;
    }
    set(OTHER, MASK, "0-31")?;
    let start = |group: &Group, program| {
        tenant(group, program, move |tenant, _| {
            let mut random = Random::new();
            launch_all(tenant, &mut random, program, count / 2)
        })
    };
    let mut both = [start(&one, 0x10_0000)?, start(&other, 0x20_0000)?];
    for child in &mut both {
        child.go()?;
    }
    for child in &mut both {
        child.finish()?;
    }
    no_worker()
}

/// Offset of the word that launches count in.
const COUNTER: u64 = 0x9000;
/// Kernels of one batch. Each is launched twice, so that the driver knows its duration once.
const KERNELS: u32 = 10;
/// Distance between the programs of two kernels.
const STEP: u32 = 0x100;

fn launch_all(tenant: &mut Tenant, random: &mut Random, first: u32, count: u64) -> Outcome {
    let recorder = recorder()?;
    let counter = tenant.address + COUNTER;
    // CAST: an offset.
    let counted = |tenant: &Tenant| tenant.words.u32(COUNTER as usize).load(Ordering::Acquire);
    let before = counted(tenant);
    let batches = count.div_ceil(2 * u64::from(KERNELS));
    let mut atoms = 0;
    for batch in 0..batches {
        let mark = recorder.mark()?;
        let kernels: Vec<(u32, [u32; 3])> = (0..KERNELS)
            .map(|number| (first + STEP * number, random.size()))
            .collect();
        for (program, size) in &kernels {
            tenant.launch_of(*program, *size, counter);
            tenant.launch_of(*program, *size, counter);
        }
        tenant.wait(0)?;
        let found = recorder.launches_since(mark)?;
        for (program, size) in &kernels {
            atoms += judge(&found, *program, *size).during(format!("batch {batch}"))?;
        }
    }
    let launched = batches * 2 * u64::from(KERNELS);
    let effects = counted(tenant) - before;
    same("effects", u64::from(effects), launched)?;
    println!("# {launched} launches in {atoms} atoms");
    Ok(())
}

/// Fails unless each block of a kernel ran twice. Returns in how many atoms.
fn judge(launches: &[Event], program: u32, size: [u32; 3]) -> Result<usize, Stop> {
    let [width, height, depth] = size.map(|size| size as usize);
    let mut ran = vec![0_u8; width * height * depth];
    let mut atoms = 0;
    for launch in launches {
        if launch.program != u64::from(program) {
            continue;
        }
        atoms += 1;
        for [xs, ys, zs] in boxes(launch)? {
            for (z, y) in zs.flat_map(|z| ys.clone().map(move |y| (z, y))) {
                for x in xs.clone() {
                    let at = (z * height + y) * width + x;
                    let times = ran.get_mut(at).filter(|_| x < width && y < height);
                    *times.ok_or_else(|| failed(format!("{size:?}: block {x} {y} {z}")))? += 1;
                }
            }
        }
    }
    let wrong = ran.iter().filter(|times| **times != 2).count();
    same(&format!("wrong blocks of {size:?}"), wrong, 0)?;
    Ok(atoms)
}

type Ranges = [std::ops::Range<usize>; 3];

/// Returns the blocks that a launch ran.
fn boxes(launch: &Event) -> Result<Vec<Ranges>, Stop> {
    let mut all = Vec::new();
    for text in &launch.blocks {
        let numbers = text.split(|c: char| !c.is_ascii_digit());
        let numbers: Vec<usize> = numbers.filter_map(|number| number.parse().ok()).collect();
        let [a, b, c, d, e, f] = numbers[..] else {
            return Err(failed(format!("blocks {text}")));
        };
        all.push([a..b, c..d, e..f]);
    }
    Ok(all)
}

/// A member whose work nobody may hold up.
pub(crate) struct Witness(pub(crate) Child);

impl Witness {
    pub(crate) fn new(group: &Group) -> Result<Self, Stop> {
        let mut child = join(group, |parent| {
            let session = session(0)?;
            let mut queue = queue(&session)?;
            for number in 1.. {
                let start = Instant::now();
                release(&mut queue, 0, number)?;
                let took = start.elapsed();
                same(&format!("{took:?} is in time"), took < LATE, true)?;
                if number % 4 == 0 {
                    parent.step()?;
                }
            }
            Ok(())
        })?;
        child.next()?;
        Ok(Self(child))
    }
}

/// States of one channel of the hostile tenant. Most channels fault before.
const STATES: u64 = 500;
/// Channels of one session, which keeps the mappings of all until its files are closed.
const CHANNELS: u64 = 100;

/// A tenant writes random numbers to its rings, its segments, GP_PUT and its doorbell.
fn states(count: u64) -> Outcome {
    let group = Group::new(ONE)?;
    set(ONE, OWNED, "1")?;
    let mut witness = Witness::new(&group)?;
    let mut hostile = join(&group, |parent| {
        let mut random = Random::new();
        let mut opened = session(0)?;
        for number in 1..=count.div_ceil(STATES) {
            channel_of_states(&opened, &mut random)?;
            parent.step()?;
            if number % CHANNELS == 0 {
                opened = session(0)?;
            }
        }
        Ok(())
    })?;
    for _ in 0..count.div_ceil(STATES) {
        hostile.go()?;
        witness.0.next().during("the neighbour")?;
        hostile.at_step()?;
    }
    hostile.go()?;
    hostile.finish()?;
    witness.0.kill();
    no_worker()
}

fn channel_of_states(session: &Session, random: &mut Random) -> Outcome {
    let client = session.gpu().client();
    let group = session.group(ENGINE)?;
    let mut queue = session.queue(group, ENGINE)?;
    session.copy_object(queue.channel(), ENGINE)?;
    session.schedule(group, true)?;
    for _ in 0..STATES {
        match random.below(8) {
            0 => queue.write_positions(random.word(), random.word()),
            1 => queue.write_positions(random.below(600), random.below(600)),
            2 => queue.write_ring(random.word(), random.next()),
            3 => {
                // A segment somewhere in the tenant's memory, most of which is no segment.
                let at = queue.ring_address() + u64::from(random.below(0x4000)) * 4;
                let words = u64::from(random.below(64));
                queue.write_ring(random.word(), at | words << 42);
            }
            4 => queue.write_push(random.word(), random.word()),
            5 => queue.submit_release(random.below(64), random.word()),
            6 => queue.write_put(),
            _ => queue.ring(),
        }
    }
    client.free(group)?;
    Ok(client.free(queue.memory())?)
}

/// Members are killed at a random time of their lives. No memory of theirs stays.
fn deaths(count: u64) -> Outcome {
    let group = Group::new(ONE)?;
    set(ONE, OWNED, "1")?;
    let mut random = Random::new();
    let mut witness = Witness::new(&group)?;
    let mut before = None;
    for number in 0..count {
        let mut child = join(&group, live)?;
        child.go()?;
        thread::sleep(Duration::from_micros(random.below(60_000).into()));
        child.kill();
        witness.0.next().during("the neighbour")?;
        // The first ones fill caches.
        if number == count / 10 {
            before = Some(kernel_memory()?);
        }
    }
    witness.0.kill();
    no_worker()?;
    let before = before.ok_or_else(|| failed("nobody died"))?;
    println!(
        "# {before} KiB of the kernel, then {} KiB",
        kernel_memory()?
    );
    // The kernel frees some of it when it finds the time.
    eventually("memory stays", &false, || {
        Ok(kernel_memory()? >= before + 8192)
    })
}

/// Opens the GPU, and submits releases until death.
fn live(_: &mut Parent) -> Outcome {
    let session = session(0)?;
    let mut queue = queue(&session)?;
    for number in 1.. {
        release(&mut queue, 0, number)?;
    }
    Ok(())
}

/// Returns the KiB that the kernel uses for itself and cannot drop.
fn kernel_memory() -> Result<u64, Stop> {
    let text = fs::read_to_string("/proc/meminfo")?;
    let value = |key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key));
        let number = line.and_then(|line| line.trim().strip_suffix(" kB"));
        let number = number.and_then(|number| number.trim().parse::<u64>().ok());
        number.ok_or_else(|| failed(format!("no {key} in meminfo")))
    };
    Ok(value("SUnreclaim:")? + value("VmallocUsed:")? + value("KernelStack:")?)
}

/// Limits come and go while a tenant launches. Each block runs once.
fn switches(count: u64) -> Outcome {
    const LIMITS: [(&str, [&str; 2]); 4] = [
        (MASK, ["0-31", "all"]),
        (ATOM, ["100", "off"]),
        ("compute.weight", ["50", "100"]),
        (OWNED, ["0", "1"]),
    ];
    let [one, _other] = groups()?;
    let mut random = Random::new();
    let mut child = tenant(&one, 0x10_0000, |tenant, parent| {
        let mut random = Random::new();
        loop {
            launch_all(tenant, &mut random, 0x10_0000, 1)?;
            parent.step()?;
        }
    })?;
    for _ in 0..count.div_ceil(2) {
        child.go()?;
        for _ in 0..2 {
            // CAST: an index.
            let (file, values) = LIMITS[random.below(4) as usize];
            set(ONE, file, values[random.below(2) as usize])?;
        }
        child.at_step().during("the tenant")?;
    }
    child.kill();
    no_worker()
}
