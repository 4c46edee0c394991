// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Decides at which clock a GPU runs, so that no process becomes slower than its `slip.power`
//! (LithOS, section 5.6).
//!
//! Terminology
//!   clock        the GPU's clock as a part of its highest one, in thousandths
//!   excess       by how much the highest clock exceeds it: `1000 / clock - 1`
//!   sensitivity  how much slower a kernel becomes, as a part of the excess: 1 if its time is that
//!                of the cores, 0 if it is that of the memory
//!   felt         the sensitivity of a process's work, each kernel's by its share of the time
//!   slow         how much slower the work is than at the highest clock: `felt * excess`
//!   fresh        of a kernel whose time at the highest clock is not known
//!   wish         the lowest clock that a process tolerates
//!   look         once a second; the daemon moves the clock then
//!
//! ```text
//! wish = highest                                    without a slip, or if a quarter is fresh work
//!        max(1 / (1 + slip / felt),                 the model
//!            clock * (1 + slow) / (1 + slip))       the step
//! ```
//!
//! What was not measured counts as fully sensitive, and no kernel can be more so. Hence the step:
//! from a clock at which the work is `slow`, it cannot exceed the slip at the next one, whatever
//! law its time follows. It is LithOS's first clock, `highest / (1 + slip)`, applied again.
//!
//! One clock holds for the whole GPU: the highest wish of those with recent work.
//!
//! ```text
//! wish > clock:  at once; `hold` doubles, up to HOLD_MAX
//! wish < clock:  `hold` looks after the last change; `hold` halves, down to HOLD_MIN
//! ```
//!
//! A change takes some 50 ms, and starts the measurement anew. Nobody's work: the clock stays.

pub mod kernels;

use crate::units::{div_ceil, Ns, Percent, Sat};
use kernels::Sums;

/// The highest clock in thousandths, and any other whole.
const WHOLE: u64 = 1000;

/// Looks without work after which a process has no wish.
const IDLE: u32 = 10;

/// The part of the time that may be fresh work, as a divisor.
const FRESH: u64 = 4;

/// The part that each look forgets of what the looks before it have seen, as a divisor.
const FORGET: u64 = 2;

/// The time of launches below which a look tells nothing of their mixture.
const LITTLE: Ns = Ns(1_000_000);

/// Looks between a change and the next lower clock, at first and at most.
const HOLD_MIN: u32 = 5;
const HOLD_MAX: u32 = 320;

/// A part of the highest clock, in thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Clock(u16);

impl Clock {
    /// The highest one.
    pub const FULL: Self = Self(WHOLE as u16);

    /// Returns the clock of so many thousandths; `None` for none and for more than all.
    pub fn new(thousandths: u64) -> Option<Self> {
        let thousandths = u16::try_from(thousandths).ok()?;
        (1..=Self::FULL.0)
            .contains(&thousandths)
            .then_some(Self(thousandths))
    }

    /// Returns the thousandths.
    pub fn get(self) -> u64 {
        u64::from(self.0)
    }

    /// Returns by how much the highest clock exceeds this one, in thousandths of this one.
    pub fn excess(self) -> u64 {
        let whole = Sat(WHOLE) * Sat(WHOLE);
        div_ceil(whole.0, self.get()).saturating_sub(WHOLE)
    }
}

/// What a process's launches did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Its time on the GPU.
    pub used: Ns,
    /// Its launches, also those whose ends cannot be seen.
    pub launches: u64,
    /// What of it was measured.
    pub sums: Sums,
}

impl Seen {
    /// Returns what was added since `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            used: self.used - before.used,
            launches: self.launches.saturating_sub(before.launches),
            sums: self.sums.since(&before.sums),
        }
    }

    /// Returns half of it, and all of `more`.
    fn and(&self, more: &Self) -> Self {
        let sum = |old: Ns, new: Ns| old - old / FORGET + new;
        Self {
            used: sum(self.used, more.used),
            launches: more.launches,
            sums: Sums {
                base: sum(self.sums.base, more.sums.base),
                sensitive: sum(self.sums.sensitive, more.sums.sensitive),
                fresh: sum(self.sums.fresh, more.sums.fresh),
            },
        }
    }
}

/// What is known about one process on one GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    seen: Seen,
    /// Looks without work.
    idle: u32,
}

impl Demand {
    /// Creates that of a process without work.
    pub const fn new() -> Self {
        let nothing = Seen {
            used: Ns(0),
            launches: 0,
            sums: Sums::ZERO,
        };
        Self {
            seen: nothing,
            idle: IDLE,
        }
    }

    /// Takes over what its launches did since the last look. `mixed` says that the clock was
    /// changed meanwhile, so that their times tell nothing.
    pub fn look(&mut self, since: &Seen, mixed: bool) {
        self.idle = match since.used > Ns(0) || since.launches > 0 {
            true => 0,
            false => self.idle.saturating_add(1),
        };
        self.seen = match mixed {
            true => Seen::default(),
            false => self.seen.and(since),
        };
    }

    /// Returns the sensitivity of its work at a clock in thousandths, and the part of it that is
    /// fresh; `None` before there was enough.
    fn felt(&self, clock: Clock) -> Option<(u64, u64)> {
        let Seen { used, sums, .. } = self.seen;
        let Sums {
            base,
            sensitive,
            fresh,
        } = sums;
        let measured = base + sensitive.scale(clock.excess(), WHOLE) + fresh;
        let unmeasured = used - measured;
        let all = base + fresh + unmeasured;
        let part = |time: Ns| div_ceil((time * WHOLE).get(), all.get()).min(WHOLE);
        (all >= LITTLE).then(|| (part(sensitive + fresh + unmeasured), part(fresh)))
    }

    /// Returns the sensitivity of its work, in thousandths, if there was enough of it.
    pub fn sensitivity(&self, clock: Clock) -> Option<u64> {
        self.felt(clock).map(|(felt, _)| felt)
    }

    /// Returns the lowest clock that it tolerates at a slip; `None` if it has had no work lately.
    /// The GPU runs at `clock`.
    pub fn wish(&self, slip: Percent, clock: Clock) -> Option<Clock> {
        if self.idle >= IDLE {
            return None;
        }
        let slip = u64::from(slip.get()).saturating_mul(WHOLE / 100);
        let Some((felt, fresh)) = self.felt(clock).filter(|_| slip > 0) else {
            // Until a slip's work is known, the clock need not rise for it.
            return Some(if slip > 0 { clock } else { Clock::FULL });
        };
        if fresh.saturating_mul(FRESH) > WHOLE {
            return Some(Clock::FULL);
        }
        let of = |part: Sat<u64>, whole: Sat<u64>| div_ceil(part.0, whole.0);
        let model = of(Sat(felt) * Sat(WHOLE), Sat(felt) + Sat(slip));
        let slow = Sat((Sat(felt) * Sat(clock.excess())).0 / WHOLE);
        let step = of(
            Sat(clock.get()) * (Sat(WHOLE) + slow),
            Sat(WHOLE) + Sat(slip),
        );
        Some(Clock::new(model.max(step)).unwrap_or(Clock::FULL))
    }
}

impl Default for Demand {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns the wish of a whole GPU, for those of the processes that are known. With `strangers`
/// there are others, who may tolerate nothing.
pub fn of_all(wishes: impl Iterator<Item = Option<Clock>>, strangers: bool) -> Option<Clock> {
    match strangers {
        true => Some(Clock::FULL),
        false => wishes.flatten().max(),
    }
}

/// Moves the clock of one GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Controller {
    /// Looks since the last change.
    since: u32,
    /// Looks that a lower clock waits for.
    hold: u32,
}

impl Controller {
    /// Creates one for a GPU at its highest clock.
    pub const fn new() -> Self {
        Self {
            since: 0,
            hold: HOLD_MIN,
        }
    }

    /// Returns the clock from now on, for the highest wish. `clock` is the present one. `supported`
    /// are those that the GPU has.
    pub fn look(
        &mut self,
        wish: Option<Clock>,
        clock: Clock,
        supported: impl Iterator<Item = Clock>,
    ) -> Clock {
        self.since = self.since.saturating_add(1);
        let wish = wish.unwrap_or(clock);
        let wish = supported.filter(|it| *it >= wish).min();
        let wish = wish.unwrap_or(Clock::FULL);
        if wish > clock {
            self.hold = self.hold.saturating_mul(2).min(HOLD_MAX);
        } else if wish < clock && self.since >= self.hold {
            self.hold = (self.hold / 2).max(HOLD_MIN);
        } else {
            return clock;
        }
        self.since = 0;
        wish
    }
}

impl Default for Controller {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests;
