// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Measures how much a process's kernels depend on the GPU's clock.
//!
//! A kernel's time at the highest clock is compared with its time at the present one. Only times of
//! the same blocks on the same TPCs are compared, for which it had the GPU to itself; the caller
//! sees to that.
//!
//! ```text
//! sensitivity = (T(clock) / T(highest) - 1) / excess          0 at least, 1 at most
//!               1 until both were observed SAMPLES times
//! sums        + T(highest), T(highest) * sensitivity          for each launch that has ended
//!               its time as fresh work, if T(highest) is unknown
//! ```
//!
//! A clock makes no kernel faster, nor slower than by the excess. Three observations in a row that
//! are a quarter beyond that, or a quarter off the average at the same clock, say that the kernel
//! has changed. What was known of it is forgotten, so it is fresh.

use super::{Clock, WHOLE};
use crate::policy::predict::{self, Kernel};
use crate::probe;
use crate::units::Ns;
use core::num::Wrapping;

/// The most kernels of a process that are known. The least recently used makes room.
pub const LAWS_MAX: usize = 1024;

/// Observations before an average counts, and the most that it remembers.
const SAMPLES: u8 = 16;
const WEIGHT: u8 = 250;

/// How far a time may be beyond what is expected, as a divisor.
const BEYOND: u64 = 4;

/// Observations beyond it in a row after which a kernel is learnt anew.
const STRIKES: u8 = 3;

/// What a launch runs: times of the same work can be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// The kernel, or the graph.
    pub kernel: Kernel,
    /// Its blocks: an atom has fewer than its kernel.
    pub blocks: u64,
    /// The TPCs that it ran on.
    pub tpcs: u64,
}

impl Work {
    /// Returns what its place in a table depends on.
    fn key(&self) -> Kernel {
        // CAST: the lower halves tell them apart.
        let words = [self.blocks as u32, self.tpcs as u32];
        Kernel {
            program: words.into_iter().fold(self.kernel.program, probe::mix),
            ..self.kernel
        }
    }
}

/// Time of launches that have ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// What known kernels take at the highest clock.
    pub base: Ns,
    /// The part of it that depends on the clock.
    pub sensitive: Ns,
    /// What fresh kernels took.
    pub fresh: Ns,
}

impl Sums {
    /// No launches.
    pub const ZERO: Self = Self {
        base: Ns(0),
        sensitive: Ns(0),
        fresh: Ns(0),
    };

    /// Returns what was added since `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            base: self.base - before.base,
            sensitive: self.sensitive - before.sensitive,
            fresh: self.fresh - before.fresh,
        }
    }
}

/// An average time.
#[derive(Clone, Copy, Debug, Default)]
struct Average {
    time: Ns,
    samples: u8,
}

impl Average {
    fn learn(&mut self, time: Ns) {
        self.samples = self.samples.saturating_add(1).min(WEIGHT);
        let part = u64::from(self.samples);
        self.time = self.time + time / part - self.time / part;
    }

    /// Returns the average, if it counts.
    fn get(&self) -> Option<Ns> {
        (self.samples >= SAMPLES).then_some(self.time)
    }
}

/// What is known of one kernel.
#[derive(Clone, Copy, Debug)]
pub struct Law {
    work: Work,
    /// Its time at the highest clock, and at `clock`.
    full: Average,
    low: Average,
    clock: Clock,
    /// What was found at the clock before.
    known: Option<u64>,
    strikes: u8,
    /// The clock of the table when it was last observed.
    used: Wrapping<u32>,
}

impl Law {
    fn new(work: &Work) -> Self {
        Self {
            work: *work,
            full: Average::default(),
            low: Average::default(),
            clock: Clock::FULL,
            known: None,
            strikes: 0,
            used: Wrapping(0),
        }
    }

    /// Returns its sensitivity in thousandths, if it was measured.
    fn sensitivity(&self) -> Option<u64> {
        let times = self.full.get().zip(self.low.get());
        let measured = times.map(|(full, low)| {
            let slower = ((low - full) * WHOLE).scale(WHOLE, full.get().max(1));
            (slower.get() / self.clock.excess().max(1)).min(WHOLE)
        });
        measured.or(self.known)
    }

    /// Returns the least and the most that it is expected to take.
    fn expected(&self, clock: Clock) -> (Ns, Ns) {
        let full = self.full.time;
        match self.low.get() {
            Some(low) if clock == self.clock => (low, low),
            _ if self.full.samples == 0 => (Ns(0), Ns::MAX),
            _ => (full, full.scale(WHOLE, clock.get())),
        }
    }

    fn learn(&mut self, time: Ns, clock: Clock) {
        let (least, most) = self.expected(clock);
        if time < least - least / BEYOND || time > most + most / BEYOND {
            self.strikes = self.strikes.saturating_add(1);
            if self.strikes < STRIKES {
                return;
            }
            let (work, used) = (self.work, self.used);
            *self = Self::new(&work);
            self.used = used;
        }
        self.strikes = 0;
        if clock == Clock::FULL {
            return self.full.learn(time);
        }
        if clock != self.clock {
            self.known = self.sensitivity();
            (self.clock, self.low) = (clock, Average::default());
        }
        self.low.learn(time);
    }
}

/// What is known of one process's kernels, in slots of the caller.
#[derive(Debug)]
pub struct Laws<'a> {
    slots: &'a mut [Option<Law>],
    uses: &'a mut u32,
}

impl<'a> Laws<'a> {
    /// Creates a view of the table in `slots`, all `None` at first, and its clock, 0 at first.
    pub fn new(slots: &'a mut [Option<Law>], uses: &'a mut u32) -> Self {
        Self { slots, uses }
    }

    fn slot(&mut self, work: &Work) -> Option<&mut Option<Law>> {
        let places = predict::places(&work.key(), self.slots.len());
        let now = Wrapping(*self.uses);
        let age = |law: &Law| (law.work != *work).then(|| (now - law.used).0);
        let place = probe::place(self.slots, places, age)?;
        self.slots.get_mut(place)
    }

    /// Adds a launch that has ended to `sums`. Learns from its `time` at `clock`; it is `None` if
    /// it was not the launch's own.
    pub fn ended(&mut self, work: &Work, time: Option<(Ns, Clock)>, sums: &mut Sums) {
        let now = Wrapping(*self.uses) + Wrapping(1);
        *self.uses = now.0;
        let Some(slot) = self.slot(work) else {
            return;
        };
        let known = slot.filter(|law| law.work == *work);
        if known.is_none() && time.is_none() {
            return;
        }
        let mut law = known.unwrap_or_else(|| Law::new(work));
        law.used = now;
        if let Some((time, clock)) = time {
            law.learn(time, clock);
        }
        *slot = Some(law);
        match (law.full.get(), time) {
            (Some(full), _) => {
                let sensitivity = law.sensitivity().unwrap_or(WHOLE);
                sums.base += full;
                sums.sensitive += full.scale(sensitivity, WHOLE);
            }
            (None, Some((time, _))) => sums.fresh += time,
            (None, None) => {}
        }
    }
}
