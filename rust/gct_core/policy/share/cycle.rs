// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Decides when an owner has used its duty cycle (`compute.max`).
//!
//! ```text
//! period number = now / period                       # the same for all processes
//! runs:    spent += time
//! waits:   spent + siblings' spent + work in flight of all >= quota
//! period:  spent -= quota * spent / (spent + siblings' spent)     # at least 0
//! ```
//!
//! A piece that begins within the quota may end beyond it. The time beyond is a debt that later
//! periods pay. Unused time is not saved.

use super::Rival;
use crate::units::Ns;

/// A duty cycle: at most `quota` of GPU time in each `period`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DutyCycle {
    /// GPU time of one period; more than 0.
    pub quota: Ns,
    /// Length of a period; more than 0.
    pub period: Ns,
}

impl DutyCycle {
    /// Returns the number of the period of a time.
    fn number(&self, now: Ns) -> u64 {
        now / self.period.max(Ns(1))
    }
}

/// The unit in which [`Spent`] is published.
const GRAIN: u64 = 64;

/// What one process has used in a period, and its debt from earlier ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// The period's number, modulo 2^32.
    pub period: u32,
    /// The time.
    pub time: Ns,
}

impl Spent {
    /// Returns both as a word. Times above 275 s are cut.
    pub fn to_word(self) -> u64 {
        let time = (self.time / GRAIN).min(Ns(u64::from(u32::MAX))).get();
        u64::from(self.period) << 32 | time
    }

    /// Returns what a word says.
    pub fn from_word(word: u64) -> Self {
        Self {
            // CAST: 32 bits are left.
            period: (word >> 32) as u32,
            time: Ns(word & u64::from(u32::MAX)) * GRAIN,
        }
    }

    /// Returns what is left of it in a later period, if its owner had nothing else to pay.
    fn rest(self, number: u64, quota: Ns) -> Ns {
        // CAST: numbers are compared modulo 2^32.
        let passed = (number as u32).wrapping_sub(self.period);
        // A number of the future is a lie, or of another period's length.
        match passed < u32::MAX / 2 {
            true => self.time - quota * u64::from(passed),
            false => Ns(0),
        }
    }
}

/// What a process has used of a duty cycle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cycle {
    number: u64,
    spent: Ns,
    limit: Option<DutyCycle>,
}

impl Cycle {
    /// Returns what the process publishes: what it has spent, and will spend on the work in flight.
    pub fn spent(&self, in_flight: Ns) -> Spent {
        Spent {
            // CAST: published modulo 2^32.
            period: self.number as u32,
            time: self.spent + in_flight,
        }
    }

    /// Passes the time from `from` to `to`, of which the process is charged one of `parts` if it
    /// has run. A limit that has changed begins without a debt.
    pub fn pass(
        &mut self,
        limit: Option<DutyCycle>,
        rivals: &[Rival],
        (from, to): (Ns, Ns),
        parts: Option<u64>,
    ) {
        if limit != self.limit {
            *self = Self {
                number: limit.map_or(0, |limit| limit.number(to)),
                spent: Ns(0),
                limit,
            };
        }
        let Some(limit) = limit else {
            return;
        };
        let number = limit.number(to);
        let begin = (limit.period * number).max(from);
        let charge = |time: Ns| parts.map_or(Ns(0), |parts| time / parts);
        self.spent += charge(begin - from);
        if number > self.number {
            let passed = number.saturating_sub(self.number);
            let all = self.spent + siblings(rivals, self.number, limit.quota);
            let paid = (limit.quota * passed).min(all);
            self.spent -= paid.scale(self.spent, all.max(Ns(1)));
            self.number = number;
        }
        self.spent += charge(to - begin);
    }

    /// Takes back a charge.
    pub fn refund(&mut self, time: Ns) {
        self.spent -= time;
    }

    /// Returns whether a piece may be released, with work predicted to take `in_flight` in flight.
    pub fn may_release(&self, rivals: &[Rival], in_flight: Ns) -> bool {
        let Some(limit) = self.limit else {
            return true;
        };
        self.spent + siblings(rivals, self.number, limit.quota) + in_flight < limit.quota
    }
}

/// Returns what the siblings have spent in a period.
fn siblings(rivals: &[Rival], number: u64, quota: Ns) -> Ns {
    let siblings = rivals.iter().filter(|rival| rival.relation.sibling);
    siblings.fold(Ns(0), |sum, rival| {
        let now = rival.sign.spent;
        // CAST: numbers are compared modulo 2^32.
        let ahead = now.period.wrapping_sub(number as u32);
        let meant = if ahead == 1 { rival.before } else { now };
        sum + meant.rest(number, quota)
    })
}
