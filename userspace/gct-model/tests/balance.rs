// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Simulates a service whose memory comes and goes beside a training that could use what it
//! leaves, with the policy that divides it.
//!
//! ```text
//! the service   14 GiB, and half a GiB for each of its requests: Poisson arrivals, quiet and busy
//!               minutes in turns, as the keys and values of a language model
//! the training  60 GiB. A step takes 1 + 30 * the part of it on the host: 29 times as long as on
//!               enough memory at 40% of it, as measured on an H100 (gctd.md)
//! moves         10 GB/s to the host, 18 GB/s back: half of what the bus can do
//! looks         once a second, the policy's and a quarter of a second later the library's
//! ```
//!
//! The service is short while both have more than the GPU: then the driver would evict, and a
//! request would wait for that.
#![allow(clippy::float_arithmetic, reason = "a simulation of rates and parts")]

use fastrand::Rng;
use gct_core::policy::balance::{target, Balance, Claim};
use gct_core::policy::tpc::Rank;
use gct_core::units::{Bytes, Priority};

const GIB: f64 = (1u64 << 30) as f64;
const MEMORY: f64 = 80.0;
const FLOOR: f64 = 12.0;
const CEILING: f64 = 60.0;
/// Twenty minutes in steps of a quarter of a second.
const STEPS: u32 = 4 * 60 * 20;
const STEP: f64 = 0.25;
const OUT: f64 = 10.0 * STEP;
const BACK: f64 = 18.0 * STEP;

/// What bounds the training's memory.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Bound {
    /// A `gmem.limit` that stays.
    Fixed(f64),
    /// `gmem.low` and `gmem.limit`.
    Balanced,
    /// The same, each target at once.
    Hasty,
}

#[derive(Clone, Copy, Debug, Default)]
struct Played {
    /// Steps of the training, of those on enough memory.
    speed: f64,
    /// Part of the time in which the service was short, and the most GiB.
    short: f64,
    most: f64,
    /// GiB that were moved in a minute.
    moved: f64,
}

/// The memory of the service in GiB, a step after the other.
struct Service {
    rng: Rng,
    /// When each of its requests ends.
    ends: Vec<f64>,
    busy: bool,
    turns: f64,
}

impl Service {
    fn new(seed: u64) -> Self {
        Self {
            rng: Rng::with_seed(seed),
            ends: Vec::new(),
            busy: false,
            turns: 60.0,
        }
    }

    fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.rng.f64()).ln()
    }

    fn at(&mut self, now: f64) -> f64 {
        if now >= self.turns {
            self.busy = !self.busy;
            self.turns = now + 30.0 + self.exponential(60.0);
        }
        self.ends.retain(|end| *end > now);
        // Requests of 12 s: 3 at once in quiet minutes, 48 in busy ones, and 64 at most.
        let rate = if self.busy { 4.0 } else { 0.25 };
        let mut arrival = self.exponential(1.0 / rate);
        while arrival < STEP {
            let end = now + self.exponential(12.0);
            if self.ends.len() < 64 {
                self.ends.push(end);
            }
            arrival += self.exponential(1.0 / rate);
        }
        14.0 + 0.5 * self.ends.len() as f64
    }
}

fn claim(priority: u8, low: Option<f64>, limit: f64, device: f64, host: f64) -> Claim {
    let bytes = |gib: f64| Bytes((gib * GIB) as u64);
    Claim {
        rank: Rank {
            best_effort: false,
            priority: Priority(priority),
        },
        low: low.map(bytes),
        limit: bytes(limit),
        fixed: bytes(0.5),
        device: bytes(device),
        host: bytes(host),
        rests: false,
    }
}

fn play(seed: u64, bound: Bound) -> Played {
    let mut service = Service::new(seed);
    let mut balance = Balance::default();
    let (mut on_gpu, mut taken, mut allowed, mut told) = (FLOOR, 0.0f64, FLOOR, FLOOR);
    let mut played = Played::default();
    for step in 0..STEPS {
        let now = f64::from(step) * STEP;
        let needs = service.at(now);
        if step % 4 == 0 {
            let own = claim(8, Some(FLOOR), CEILING, on_gpu, taken);
            let all = [claim(0, None, MEMORY, needs, 0.0), own];
            let now = target(Bytes((MEMORY * GIB) as u64), all.into_iter(), &own);
            allowed = match bound {
                Bound::Fixed(limit) => limit,
                Bound::Balanced => balance.allow(now).get() as f64 / GIB,
                Bound::Hasty => now.get() as f64 / GIB,
            };
        }
        if step % 4 == 1 {
            told = allowed;
        }
        let was = on_gpu;
        on_gpu += (told - on_gpu).clamp(-OUT, BACK);
        // Host memory is kept once it was taken.
        taken = taken.max(CEILING - on_gpu);
        let over = needs + on_gpu - MEMORY;
        played.speed += 1.0 / (1.0 + 30.0 * (1.0 - on_gpu / CEILING));
        played.short += f64::from(u8::from(over > 0.0));
        played.most = played.most.max(over);
        played.moved += (on_gpu - was).abs();
    }
    let steps = f64::from(STEPS);
    Played {
        speed: played.speed / steps,
        short: played.short / steps,
        most: played.most,
        moved: played.moved / (steps * STEP / 60.0),
    }
}

/// Plays some seeds. Returns the mean of each number, and the most of `most`.
fn mean(bound: Bound) -> Played {
    const SEEDS: u64 = 20;
    let all = (0..SEEDS).map(|seed| play(seed, bound));
    let sum = all.fold(Played::default(), |sum, one| Played {
        speed: sum.speed + one.speed,
        short: sum.short + one.short,
        most: sum.most.max(one.most),
        moved: sum.moved + one.moved,
    });
    let part = |sum: f64| sum / SEEDS as f64;
    Played {
        speed: part(sum.speed),
        short: part(sum.short),
        most: sum.most,
        moved: part(sum.moved),
    }
}

#[test]
fn the_training_has_what_the_service_leaves_and_the_service_what_it_needs() {
    println!("| the training has | speed | service short | by GiB, at most | GiB moved a minute |");
    println!("|---|---|---|---|---|");
    let line = |name: &str, bound| {
        let played = mean(bound);
        let (short, most) = (100.0 * played.short, played.most.max(0.0));
        let (speed, moved) = (played.speed, played.moved);
        println!("| {name} | {speed:.2} | {short:.2}% | {most:.1} | {moved:.0} |");
        played
    };
    let least = line("`gmem.limit` 12G", Bound::Fixed(FLOOR));
    let safe = line("`gmem.limit` 34G", Bound::Fixed(34.0));
    let most = line("`gmem.limit` 60G", Bound::Fixed(CEILING));
    let hasty = line("`gmem.low` 12G, each target at once", Bound::Hasty);
    let balanced = line("`gmem.low` 12G, `gmem.limit` 60G", Bound::Balanced);
    assert_eq!((least.short, safe.short), (0.0, 0.0));
    assert!(most.short > 0.3, "{most:?}");
    assert!(balanced.short < 0.01 && balanced.most < 6.0, "{balanced:?}");
    assert!(balanced.speed > 2.0 * safe.speed, "{balanced:?} {safe:?}");
    assert!(balanced.speed > 0.4 * most.speed, "{balanced:?} {most:?}");
    assert!(balanced.moved < 0.7 * hasty.moved, "{balanced:?} {hasty:?}");
}
