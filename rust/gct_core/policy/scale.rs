// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Decides how many TPCs a launch needs to stay within a slip (LithOS, section 5.5).
//!
//! Terminology
//!   slip      the slowdown that `slip.tpc` tolerates, in percent
//!   most      the TPCs granted to the launch without a slip
//!   least     the TPCs that it must have: those that hold a grid of one wave at once
//!   point     the average time of a kernel on a number of TPCs
//!   explore   to run on fewer TPCs than the known law allows, for one more observation
//!
//! The time of a kernel falls with its TPCs as in Amdahl's law. A line through the points, by least
//! squares over 1 / k, gives both parts:
//!
//! ```text
//! T(k) = parallel / k + serial
//! size = the least k with T(k) <= (100% + slip) * T(most), in steps of most / STEPS
//! ```
//!
//! The size is never below a point that was observed, and never at one that took longer than the
//! slip allows. There is none, and the launch gets `most`, before three points are known, and while
//! one of them is further from the line than the slip.
//!
//! ```text
//! base     = most / 2^n, the least that is not below the size
//! explored = base / 2, 3/4 * base, most, in turn, for RUN launches
//! pause    = RUN * 400 / slip launches, and RUN * PAUSE_MIN once there are three points
//! ```
//!
//! No kernel takes more than twice as long on half of its TPCs. So exploring costs a quarter of the
//! slip at most. PAUSE_MIN keeps it out of the 99th percentile. The first launch of a run is seldom
//! observed: a graph has its masks written then.
//!
//! An observation that is far from its point is ignored. The third one in a row says that the
//! kernel has changed, and its points are forgotten. It explores no sooner for that, so a kernel
//! without habits costs no more than others.

use super::predict::{self, Kernel};
use crate::probe;
use crate::units::{div_ceil, mul_div, Ns, Percent, Sat};
use core::cmp::Reverse;
use core::num::Wrapping;

/// The most kernels and graphs of a tenant whose law is known. The least recently used makes room.
pub const LAWS_MAX: usize = 1024;

/// Points of a kernel: the granted TPCs, its size, two that are explored, and two that were.
const POINTS: usize = 6;

/// The last of the three points that determine a line and tell whether it is one.
const LAST_OF_FIT: usize = 2;

/// Observations of a point before it counts, and the weight of its past in its average.
const SAMPLES: u8 = 3;
const WEIGHT: u8 = 7;

/// Observations of a kernel after which a point counts no more that is not observed again.
const STALE: u32 = 8192;

/// Observations in a row, far from their points, after which a kernel is learnt anew.
const STRIKES: u8 = 3;

/// Sizes are multiples of the granted TPCs divided by this, so that they are steady.
const STEPS: u32 = 32;

/// TPCs below which there is nothing to explore: three points must differ.
const MOST_MIN: u32 = 4;

/// Launches that explore the same size, one after another.
const RUN: u32 = 4;

/// Launches for each one that explores, once three points are known.
const PAUSE_MIN: u32 = 150;

/// Units of 1 / k, and of time: products of sums over all points fit 63 bits.
const WHOLE: u64 = 1 << 16;
const TICK: u64 = 16;
const TICKS_MAX: u64 = 1 << 30;

/// The average time of a kernel on some TPCs. No observation, no point.
#[derive(Clone, Copy, Debug, Default)]
struct Point {
    tpcs: u32,
    time: Ns,
    samples: u8,
    /// Observations in a row that were far from the average.
    strikes: u8,
    /// The number of the kernel's last observation here.
    seen: Wrapping<u32>,
}

impl Point {
    fn of(tpcs: u32, time: Ns, seen: Wrapping<u32>) -> Self {
        Self {
            tpcs,
            time,
            samples: 1,
            strikes: 0,
            seen,
        }
    }

    /// Learns a time. Returns whether the kernel has changed.
    fn learn(&mut self, time: Ns, now: Wrapping<u32>) -> bool {
        let far = (time - self.time).max(self.time - time) > self.time / 4;
        self.strikes = match far {
            true => self.strikes.saturating_add(1),
            false => 0,
        };
        if !far {
            let part = u64::from(self.samples).saturating_add(1);
            self.time = self.time + time / part - self.time / part;
            self.samples = self.samples.saturating_add(1).min(WEIGHT);
            self.seen = now;
        }
        self.strikes >= STRIKES
    }
}

/// What is known of one kernel, or of one graph.
#[derive(Clone, Copy, Debug)]
pub struct Law {
    kernel: Kernel,
    points: [Point; POINTS],
    /// Observations so far.
    seen: Wrapping<u32>,
    /// Launches until the next run that explores, those that are left of this one, and what it
    /// explores.
    pause: u32,
    run: u32,
    turn: u8,
    /// Clock of the table when it was last launched.
    used: Wrapping<u32>,
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
    /// What the kernel's law says.
    pub verdict: Verdict,
    /// Whether it is the turn of a launch that explores.
    pub explores: bool,
}

/// What the law of a kernel says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Too little is known.
    Unknown,
    /// The kernel does not scale as the law says.
    Refused,
    /// It is known.
    Known,
}

impl Law {
    fn new(kernel: Kernel) -> Self {
        Self {
            kernel,
            points: [Point::default(); POINTS],
            seen: Wrapping(0),
            pause: 0,
            run: RUN,
            turn: 0,
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

    /// Returns the time on `tpcs` TPCs, if it was observed.
    fn time(&self, tpcs: u32) -> Option<Ns> {
        let mut points = self.fresh();
        points
            .find(|point| point.tpcs == tpcs)
            .map(|point| point.time)
    }

    /// Returns the least TPCs within the slip.
    fn least(&self, most: u32, slip: Percent) -> Result<u32, Verdict> {
        let whole = self.time(most).ok_or(Verdict::Unknown)?;
        if self.fresh().nth(LAST_OF_FIT).is_none() {
            return Err(Verdict::Unknown);
        }
        let slipped = |time: Ns| time.scale(u64::from(slip.get()).saturating_add(100), 100);
        let line = Line::through(self.fresh()).ok_or(Verdict::Unknown)?;
        let fits = |point: &Point| {
            let (seen, fitted) = (point.time, line.at(point.tpcs));
            seen <= slipped(fitted) && fitted <= slipped(seen)
        };
        if !self.fresh().all(fits) {
            return Err(Verdict::Refused);
        }
        let allowed = slipped(whole);
        let size = line.reaches(most, allowed);
        let step = most.div_ceil(STEPS).max(1);
        let size = match size.checked_rem(step) {
            Some(0) | None => size,
            Some(over) => (Sat(size) - Sat(over) + Sat(step)).0,
        };
        let seen = self.fresh().map(|point| point.tpcs).min();
        let slow = self.fresh().filter(|point| point.time > allowed);
        let slow = slow.map(|point| point.tpcs.saturating_add(step)).max();
        let size = size.max(seen.unwrap_or(most)).max(slow.unwrap_or(1));
        Ok(size.min(most))
    }

    /// Returns how many TPCs a launch gets. It explores only where that can be observed.
    fn size(&self, bounds: Bounds, slip: Percent, observed: bool) -> Size {
        let most = bounds.most;
        let bound = |tpcs: u32| tpcs.max(bounds.least).max(1).min(most);
        let least = self.least(most, slip);
        let tpcs = bound(least.unwrap_or(most));
        let explores = observed && self.pause == 0 && most >= MOST_MIN;
        let explores = explores && self.time(most).is_some();
        let base = |base: &u32| Some(base / 2).filter(|half| tpcs <= *half);
        let base = core::iter::successors(Some(most), base).last();
        let base = base.unwrap_or(most);
        let explored = match self.turn {
            0 => base / 2,
            1 => base.div_ceil(4).saturating_mul(3),
            _ => most,
        };
        Size {
            tpcs: if explores { bound(explored) } else { tpcs },
            settled: tpcs,
            verdict: least.err().unwrap_or(Verdict::Known),
            explores,
        }
    }

    /// Records a launch of this size.
    fn launch(&mut self, size: &Size, slip: Percent) {
        self.pause = self.pause.saturating_sub(1);
        if !size.explores {
            return;
        }
        // A turn in which nothing differs costs nothing.
        let idle = size.tpcs == size.settled;
        self.run = self.run.saturating_sub(1);
        if self.run > 0 && !idle {
            return;
        }
        self.run = RUN;
        self.turn = match self.turn {
            0 => 1,
            1 => 2,
            _ => 0,
        };
        let pause = 400u32.div_ceil(u32::from(slip.get().max(1)));
        self.pause = match size.verdict {
            _ if idle => 0,
            Verdict::Unknown => pause.saturating_mul(RUN),
            _ => pause.max(PAUSE_MIN).saturating_mul(RUN),
        };
    }

    /// Learns a time on `tpcs` TPCs.
    fn learn(&mut self, tpcs: u32, time: Ns) {
        self.seen += 1;
        let now = self.seen;
        let known = |point: &&mut Point| point.samples > 0 && point.tpcs == tpcs;
        if let Some(point) = self.points.iter_mut().find(known) {
            if point.learn(time, now) {
                self.points = [Point::default(); POINTS];
                self.learn_new(tpcs, time);
            }
            return;
        }
        self.learn_new(tpcs, time);
    }

    /// Takes a free point, else the one that was not observed for longest. The widest is kept: the
    /// slip is measured against it.
    fn learn_new(&mut self, tpcs: u32, time: Ns) {
        let now = self.seen;
        let widest = self.points.iter().map(|point| point.tpcs).max();
        let others = self.points.iter_mut();
        let others = others.filter(|point| point.samples == 0 || Some(point.tpcs) != widest);
        let oldest =
            others.max_by_key(|point| (Reverse(point.samples.min(1)), (now - point.seen).0));
        if let Some(point) = oldest {
            *point = Point::of(tpcs, time, now);
        }
    }
}

/// The line of least squares through points, over x = WHOLE / k and y = time / TICK. With `n`
/// points:
///
/// ```text
/// y(x) = (sum y + slope * (n * x - sum x)) / n
/// ```
struct Line {
    points: u64,
    x: u64,
    y: u64,
    /// The slope as a fraction. It is not negative: no kernel is slower on more TPCs.
    rise: u64,
    run: u64,
}

impl Line {
    fn through<'a>(points: impl Iterator<Item = &'a Point> + Clone) -> Option<Self> {
        // At most 6 points, x <= 2^16 and y <= 2^30, so no sum of products leaves 63 bits.
        let sum = |of: fn(u64, u64) -> u64| {
            let each = points
                .clone()
                .map(|point| of(x_of(point.tpcs), y_of(point.time)));
            each.map(Wrapping).sum::<Wrapping<u64>>()
        };
        let n = sum(|_, _| 1);
        let (x, y) = (sum(|x, _| x), sum(|_, y| y));
        let products = sum(|x, y| x.wrapping_mul(y));
        let run = n * sum(|x, _| x.wrapping_mul(x)) - x * x;
        let rise = Sat((n * products).0) - Sat((x * y).0);
        (run.0 > 0).then_some(Self {
            points: n.0,
            x: x.0,
            y: y.0,
            rise: rise.0,
            run: run.0,
        })
    }

    /// Returns the time on `tpcs` TPCs.
    fn at(&self, tpcs: u32) -> Ns {
        let at = (Wrapping(self.points) * Wrapping(x_of(tpcs))).0;
        let rise = |by: u64| Sat(mul_div(self.rise, by, self.run).unwrap_or(u64::MAX));
        let sum = match at >= self.x {
            true => Sat(self.y) + rise((Sat(at) - Sat(self.x)).0),
            false => Sat(self.y) - rise((Sat(self.x) - Sat(at)).0),
        };
        Ns(sum.0.checked_div(self.points).unwrap_or(0)) * TICK
    }

    /// Returns the least TPCs that take `allowed` at most, among those up to `most`.
    fn reaches(&self, most: u32, allowed: Ns) -> u32 {
        let Some(room) = allowed.checked_sub(self.at(most)) else {
            return most;
        };
        // A line without a slope reaches it everywhere.
        let by = mul_div(y_of(room), self.run, self.rise).unwrap_or(WHOLE);
        let x = (Sat(x_of(most)) + Sat(by)).0;
        let least = div_ceil(WHOLE, x);
        u32::try_from(least).map_or(most, |least| least.min(most))
    }
}

fn x_of(tpcs: u32) -> u64 {
    WHOLE.checked_div(u64::from(tpcs)).unwrap_or(WHOLE)
}

fn y_of(time: Ns) -> u64 {
    (time.get() / TICK).min(TICKS_MAX)
}

/// The laws of one tenant's kernels, in slots of the caller.
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
    pub fn launch(&mut self, kernel: &Kernel, size: &Size, slip: Percent) {
        let now = Wrapping(*self.uses) + Wrapping(1);
        *self.uses = now.0;
        let places = predict::places(kernel, self.slots.len());
        let age = |law: &Law| (law.kernel != *kernel).then(|| (now - law.used).0);
        let place = probe::place(self.slots, places, age);
        if let Some(slot) = place.and_then(|place| self.slots.get_mut(place)) {
            let known = slot.filter(|law| law.kernel == *kernel);
            let mut law = known.unwrap_or_else(|| Law::new(*kernel));
            law.used = now;
            law.launch(size, slip);
            *slot = Some(law);
        }
    }

    /// Learns that `kernel` took `time` on `tpcs` TPCs, with these to itself.
    pub fn observe(&mut self, kernel: &Kernel, tpcs: u32, time: Ns) {
        let place = find(self.slots, kernel);
        let law = place.and_then(|place| self.slots.get_mut(place)?.as_mut());
        if let Some(law) = law.filter(|_| tpcs > 0) {
            law.learn(tpcs, time);
        }
    }

    /// Returns how long `kernel` takes on `tpcs` TPCs, if that was observed.
    pub fn time(&self, kernel: &Kernel, tpcs: u32) -> Option<Ns> {
        let law = self.slots.get(find(self.slots, kernel)?)?.as_ref();
        law?.time(tpcs)
    }
}

#[cfg(test)]
mod tests;
