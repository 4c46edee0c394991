// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Decides how many TPCs a launch needs to stay within a slip (LithOS, section 5.5).
//!
//! Terminology
//!   slip      the slowdown that `slip.tpc` tolerates, in percent
//!   most      the TPCs granted to the launch without a slip
//!   least     the TPCs that it must have: those that hold a grid of one wave at once
//!   point     the average time T(k) of a kernel of size k, as observed, and the TPCs u(k) that it
//!             used: k for a launch, the mean of the nodes for a graph
//!   law       the points of a kernel
//!   good      within the slip, and worth it: it saves a larger part of the TPC-time than it costs
//!             in time
//!   explore   to run on other TPCs than the size, to observe a point
//!
//! ```text
//! slower    = T(k) / T(most) - 1
//! saved     = 1 - u(k) * T(k) / (most * T(most))
//! good      = slower <= slip and slower <= saved
//!           = T(k) <= limit(k) = min(100% + slip, 2 * most / (most + u(k))) * T(most)
//! size      = the observed good point of the least TPC-time u(k) * T(k), else most
//! ```
//!
//! No formula is assumed. A kernel whose time is `parallel / k + serial` is worth narrowing down to
//! `parallel / serial` TPCs. One without a serial part never is: it would only be slower.
//!
//! The size is found by bisection. A smaller one is worse if it is too slow, or if it costs more
//! TPC-time. The noise of its observations decides when a point is known to be too slow:
//!
//! ```text
//! error     = 2 * mean deviation / sqrt(observations)
//! slow      = T(k) - error > limit(k), or T(k) > limit(k) after WEIGHT observations
//! worse     = slow, or u(k) * T(k) more than that of the size
//! explored  = halfway between the size and the next worse point below it, in steps of most / STEPS
//!             most, once nothing is left between these
//! pause     = RUN * 4 * slower / slip launches for RUN that explore, RUN * PAUSE_MIN at least
//!             RUN * PAUSE_WHOLE for most
//! ```
//!
//! So exploring costs a quarter of the slip at most, beyond the first run. A point that was not
//! observed is at most as much slower as the next one below it, and as `most / k`. Nothing is
//! explored before `most` was observed WEIGHT times, because all others are compared with it.
//!
//! The first launch of a run is seldom observed: a graph has its masks written then.
//!
//! An observation that is far from its point is ignored. The third one in a row says that the
//! kernel has changed, and its points are forgotten. It explores no sooner for that, so a kernel
//! without habits costs no more than others.

use super::predict::{self, Kernel};
use crate::probe;
use crate::units::{div_ceil, Ns, Percent};
use core::cmp::Reverse;
use core::num::Wrapping;

/// The most kernels and graphs of a tenant that are known. The least recently used makes room.
pub const LAWS_MAX: usize = 1024;

/// Points of a kernel: the granted TPCs, its size, those next to it, and some of the bisection.
const POINTS: usize = 6;

/// Observations of a point before it counts, and the most that its average remembers.
const SAMPLES: u8 = 3;
const WEIGHT: u8 = 64;

/// Observations of a kernel after which a point counts no more that is not observed again.
const STALE: u32 = 8192;

/// Observations in a row, far from their points, after which a kernel is learnt anew.
const STRIKES: u8 = 3;

/// Sizes are multiples of the granted TPCs divided by this, so that they are steady.
const STEPS: u64 = 32;

/// TPCs below which there is nothing to explore.
const MOST_MIN: u32 = 4;

/// Launches that explore the same size, one after another.
const RUN: u32 = 8;

/// Launches for each one that explores, at least. The masks of a graph are written twice in a run.
const PAUSE_MIN: u64 = 32;

/// Launches for each one that has all TPCs again. It keeps these few.
const PAUSE_WHOLE: u64 = 150;

/// The average time of a kernel on some TPCs. No observation, no point.
#[derive(Clone, Copy, Debug, Default)]
struct Point {
    tpcs: u32,
    /// The TPCs that the last observation used in the mean.
    used: u64,
    time: Ns,
    /// The average distance of an observation from the average.
    deviation: Ns,
    samples: u8,
    /// Observations in a row that were far from the average.
    strikes: u8,
    /// The number of the kernel's last observation here.
    seen: Wrapping<u32>,
}

impl Point {
    fn of(observation: Observation, seen: Wrapping<u32>) -> Self {
        let Observation { tpcs, used, time } = observation;
        Self {
            tpcs,
            used,
            time,
            deviation: Ns(0),
            samples: 1,
            strikes: 0,
            seen,
        }
    }

    /// Learns a time. Returns whether the kernel has changed.
    fn learn(&mut self, Observation { used, time, .. }: Observation, now: Wrapping<u32>) -> bool {
        let distance = (time - self.time).max(self.time - time);
        let far = distance > self.time / 4;
        self.strikes = match far {
            true => self.strikes.saturating_add(1),
            false => 0,
        };
        if !far {
            let part = u64::from(self.samples).saturating_add(1);
            self.time = self.time + time / part - self.time / part;
            self.deviation = self.deviation + distance / part - self.deviation / part;
            self.samples = self.samples.saturating_add(1).min(WEIGHT);
            (self.used, self.seen) = (used, now);
        }
        self.strikes >= STRIKES
    }

    /// Returns how far the average may be off: twice its deviation, divided by about the square
    /// root of the observations.
    fn error(&self) -> Ns {
        let halvings = self.samples.checked_ilog2().unwrap_or(0) / 2;
        self.deviation * 2 / (1u64 << halvings.min(8))
    }

    /// Returns the TPC-time.
    fn cost(&self) -> Ns {
        self.time * self.used
    }

    /// Returns whether it is known to take longer than `limit`.
    fn is_slow(&self, limit: Ns) -> bool {
        self.time > limit && (self.samples >= WEIGHT || self.time - self.error() > limit)
    }
}

/// What is known of one kernel, or of one graph.
#[derive(Clone, Copy, Debug)]
pub struct Law {
    kernel: Kernel,
    points: [Point; POINTS],
    /// Observations so far.
    seen: Wrapping<u32>,
    /// Launches since the last one that explored, those that are left of its run, and what these
    /// explore.
    since: u32,
    run: u32,
    explored: u32,
    /// Clock of the table when it was last launched.
    used: Wrapping<u32>,
}

/// How long a kernel took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observation {
    /// Its size.
    pub tpcs: u32,
    /// The TPCs that it used in the mean: of a graph's nodes, some need more than its size, and
    /// some cannot use as many.
    pub used: u64,
    /// The time, with these TPCs to itself.
    pub time: Ns,
}

/// The TPCs between which a size may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// What the launch must have.
    pub least: u32,
    /// What it is granted.
    pub most: u32,
}

/// How many TPCs a launch gets, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// The TPCs.
    pub tpcs: u32,
    /// The TPCs that it would get if it explored nothing.
    pub settled: u32,
    /// What is known of the kernel.
    pub verdict: Verdict,
    /// Whether it is the turn of a launch that explores.
    pub explores: bool,
}

/// What is known of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Too little.
    Unknown,
    /// Nothing less than all TPCs was found to be good.
    Refused,
    /// It does with fewer.
    Known,
}

/// What a kernel's points are compared with.
#[derive(Clone, Copy, Debug)]
struct Goal {
    most: u32,
    slip: Percent,
    /// The time on all TPCs.
    whole: Ns,
}

impl Goal {
    /// Returns the longest good time that uses so many TPCs.
    fn limit(&self, used: u64) -> Ns {
        let most = u64::from(self.most);
        let slipped = u64::from(self.slip.get()).saturating_add(100);
        let worth = self
            .whole
            .scale((most << 1).max(1), most.saturating_add(used).max(1));
        self.whole.scale(slipped, 100).min(worth)
    }

    /// Returns the launches for each one that takes `time`.
    fn pause(&self, time: Ns) -> u64 {
        let slower = (time - self.whole).scale(400, self.whole.get().max(1));
        let slip = u64::from(self.slip.get().max(1));
        div_ceil(slower.get(), slip).max(PAUSE_MIN)
    }

    /// Returns the TPCs halfway between a size and the worse one below it, if any are.
    fn between(&self, worse: u32, size: u32) -> Option<u32> {
        let step = div_ceil(self.most.into(), STEPS).max(1);
        let half = u64::from(worse).saturating_add(size.into()) >> 1;
        let half = div_ceil(half, step).saturating_mul(step);
        let half = u32::try_from(half).ok()?;
        (worse < half && half < size).then_some(half)
    }
}

impl Law {
    fn new(kernel: Kernel) -> Self {
        Self {
            kernel,
            points: [Point::default(); POINTS],
            seen: Wrapping(0),
            since: u32::MAX,
            run: 0,
            explored: 0,
            used: Wrapping(0),
        }
    }

    /// Returns the points that count.
    fn fresh(&self) -> impl Iterator<Item = &Point> + Clone {
        let is_fresh = |point: &&Point| {
            point.samples >= SAMPLES && (self.seen - point.seen).0 < STALE && point.time > Ns(0)
        };
        self.points.iter().filter(is_fresh)
    }

    /// Returns the point of `tpcs` TPCs, if it counts.
    fn point(&self, tpcs: u32) -> Option<&Point> {
        self.fresh().find(|point| point.tpcs == tpcs)
    }

    /// Returns the good TPCs of the least TPC-time.
    fn cheapest(&self, goal: &Goal) -> u32 {
        let good = |point: &&Point| point.tpcs <= goal.most && point.time <= goal.limit(point.used);
        let good = self.fresh().filter(good);
        let good = good.min_by_key(|point| (point.cost(), point.tpcs));
        good.map_or(goal.most, |point| point.tpcs)
    }

    /// Returns what is worth exploring below or above a size, and after how many launches for each
    /// one.
    fn next(&self, goal: &Goal, least: u32, size: u32) -> Option<(u32, u64)> {
        let below = self.fresh().filter(|point| point.tpcs < size);
        let cost = self.point(size).map_or(Ns(u64::MAX), Point::cost);
        let worse =
            below.filter(|point| point.is_slow(goal.limit(point.used)) || point.cost() > cost);
        let worse = worse.map(|point| point.tpcs).max().unwrap_or(0);
        let worse = worse.max(least.saturating_sub(1));
        let Some(tpcs) = goal.between(worse, size) else {
            return (size < goal.most).then_some((goal.most, PAUSE_WHOLE));
        };
        let worst = goal.whole.scale(u64::from(goal.most), u64::from(tpcs));
        let known = self.fresh().filter(|point| point.tpcs <= tpcs);
        let known = known.max_by_key(|point| point.tpcs).map(|point| point.time);
        Some((tpcs, goal.pause(known.unwrap_or(worst).min(worst))))
    }

    /// Returns how many TPCs a launch gets. It explores only where that can be observed.
    fn size(&self, bounds: Bounds, slip: Percent, observed: bool) -> Size {
        let most = bounds.most;
        let bound = |tpcs: u32| tpcs.max(bounds.least).max(1).min(most);
        let whole = self.point(most);
        let goal = whole.map(|whole| Goal {
            most,
            slip,
            whole: whole.time,
        });
        let settled = bound(goal.map_or(most, |goal| self.cheapest(&goal)));
        let verdict = match goal {
            Some(_) if settled < most => Verdict::Known,
            Some(_) if self.fresh().any(|point| point.tpcs < most) => Verdict::Refused,
            _ => Verdict::Unknown,
        };
        let next = || {
            let (tpcs, pause) = self.next(goal.as_ref()?, bounds.least, settled)?;
            let due = u64::from(self.since) >= pause.saturating_mul(u64::from(RUN));
            due.then_some(tpcs)
        };
        let going = Some(self.explored).filter(|_| self.run > 0);
        let explored = going.or_else(next).map(bound);
        let known = whole.is_some_and(|whole| whole.samples >= WEIGHT);
        let explored = explored.filter(|_| observed && known && most >= MOST_MIN);
        Size {
            tpcs: explored.unwrap_or(settled),
            settled,
            verdict,
            explores: explored.is_some(),
        }
    }

    /// Records a launch of this size.
    fn launch(&mut self, size: &Size) {
        if !size.explores {
            self.since = self.since.saturating_add(1);
            return;
        }
        if self.run == 0 {
            (self.run, self.explored) = (RUN, size.tpcs);
        }
        self.run = self.run.saturating_sub(1);
        self.since = 0;
    }

    /// Learns a time.
    fn learn(&mut self, observation: Observation) {
        self.seen += 1;
        let now = self.seen;
        let known = |point: &&mut Point| point.samples > 0 && point.tpcs == observation.tpcs;
        if let Some(point) = self.points.iter_mut().find(known) {
            if point.learn(observation, now) {
                self.points = [Point::default(); POINTS];
                self.learn_new(observation);
            }
            return;
        }
        self.learn_new(observation);
    }

    /// Takes a free point, else the one that was not observed for longest. The widest is kept: the
    /// slip is measured against it.
    fn learn_new(&mut self, observation: Observation) {
        let now = self.seen;
        let widest = self.points.iter().map(|point| point.tpcs).max();
        let others = self.points.iter_mut();
        let others = others.filter(|point| point.samples == 0 || Some(point.tpcs) != widest);
        let oldest =
            others.max_by_key(|point| (Reverse(point.samples.min(1)), (now - point.seen).0));
        if let Some(point) = oldest {
            *point = Point::of(observation, now);
        }
    }
}

/// What is known of one tenant's kernels, in slots of the caller.
#[derive(Debug)]
pub struct Laws<'a> {
    slots: &'a mut [Option<Law>],
    uses: &'a mut u32,
}

/// Returns how many TPCs a launch of `kernel` gets, from the `slots` of [`Laws`]. `observed` says
/// whether its time can be observed, so that it may explore.
pub fn size(
    slots: &[Option<Law>],
    kernel: &Kernel,
    bounds: Bounds,
    slip: Percent,
    observed: bool,
) -> Size {
    let law = find(slots, kernel).and_then(|place| slots.get(place)?.as_ref());
    let unknown = Law::new(*kernel);
    law.unwrap_or(&unknown).size(bounds, slip, observed)
}

fn find(slots: &[Option<Law>], kernel: &Kernel) -> Option<usize> {
    predict::places(kernel, slots.len()).find(|place| {
        let law = slots.get(*place).and_then(Option::as_ref);
        law.is_some_and(|law| law.kernel == *kernel)
    })
}

impl<'a> Laws<'a> {
    /// Creates a view of the table in `slots`, all `None` at first, and its clock, 0 at first.
    pub fn new(slots: &'a mut [Option<Law>], uses: &'a mut u32) -> Self {
        Self { slots, uses }
    }

    /// Records that a launch of `kernel` has been released with this size.
    pub fn launch(&mut self, kernel: &Kernel, size: &Size) {
        let now = Wrapping(*self.uses) + Wrapping(1);
        *self.uses = now.0;
        let places = predict::places(kernel, self.slots.len());
        let age = |law: &Law| (law.kernel != *kernel).then(|| (now - law.used).0);
        let place = probe::place(self.slots, places, age);
        if let Some(slot) = place.and_then(|place| self.slots.get_mut(place)) {
            let known = slot.filter(|law| law.kernel == *kernel);
            let mut law = known.unwrap_or_else(|| Law::new(*kernel));
            law.used = now;
            law.launch(size);
            *slot = Some(law);
        }
    }

    /// Learns how long `kernel` took.
    pub fn observe(&mut self, kernel: &Kernel, observation: Observation) {
        let place = find(self.slots, kernel);
        let law = place.and_then(|place| self.slots.get_mut(place)?.as_mut());
        if let Some(law) = law.filter(|_| observation.tpcs > 0) {
            law.learn(observation);
        }
    }

    /// Returns how long `kernel` takes on `tpcs` TPCs, if that was observed.
    pub fn time(&self, kernel: &Kernel, tpcs: u32) -> Option<Ns> {
        let law = self.slots.get(find(self.slots, kernel)?)?.as_ref();
        Some(law?.point(tpcs)?.time)
    }
}

#[cfg(test)]
mod tests;
