// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Decides whose work is released next, so that each owner gets its share of a GPU's time
//! (`compute.weight`), and none more than its duty cycle (`compute.max`).
//!
//! Terminology
//!   cost          GPU time of a piece, times the part of the TPCs that it was granted
//!   account       what one node (the settings of an owner on one GPU) was charged
//!   virtual time  cost divided by weight; at weight 100 it is the cost
//!   clock         the smallest virtual time of the accounts with work; it never goes back
//!   window        the cost that an account may be ahead of the clock
//!   debt          cost charged beyond the quota, which later periods pay
//!
//! ```text
//! release:  virtual += cost(predicted) * 100 / weight   spent += cost(predicted)
//! overrun:  the same with the time beyond the prediction, while the piece runs
//! end:      the same with the time that it took, less what was charged
//! waits:    virtual - clock > WINDOW * 100 / weight     until the clock has moved
//!           spent + cost > quota, and spent > 0         until the next period
//! wake:     virtual = max(virtual, clock)               idle time is not banked
//! period:   spent -= quota, at least 0                  nor are idle periods
//! ```
//!
//! Predictions are charged at release, because several pieces are in flight before the first one
//! ends. An end corrects them, so a wrong prediction delays and gains nothing in the long run. A
//! piece that was predicted to cost too much gets the difference back only in its own period.
//!
//! The account that is furthest behind always may release. If it has nothing to release, it has
//! work in flight, and is charged while that runs. So the GPU does not idle while anybody may run.
//!
//! An account of a node counts all processes of that node. More processes, channels or
//! channel groups do not make a share larger.
//!
//! Two accounts that always have work stay apart by no more virtual time than the window and the
//! pieces in flight of the one that is ahead. In one period an account exceeds its quota by at most
//! the pieces in flight at its beginning, and what they were predicted too short.

use crate::units::{Ns, Weight};
use core::num::Wrapping;

/// The cost that an account may be ahead of the clock. Two pieces of a millisecond can be in flight
/// without a pause, and over a second it is 0.2% of the GPU.
pub const WINDOW: Ns = Ns(2_000_000);

/// The weight at which virtual time is cost.
const UNIT: u64 = 100;

/// Returns the cost of `time` on `granted` TPCs of a GPU that has `tpcs`.
pub fn cost(time: Ns, granted: u64, tpcs: u64) -> Ns {
    match tpcs {
        0 => time,
        tpcs => time.scale(granted.min(tpcs), tpcs),
    }
}

/// A point in virtual time, modulo 2^64 nanoseconds. Points that are compared are less than 2^63
/// apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Virtual(Wrapping<u64>);

impl Virtual {
    /// Returns how far this point lies ahead of another; 0 if it does not.
    fn ahead_of(self, other: Self) -> Ns {
        let distance = (self.0 - other.0).0;
        // CAST: the sign of the difference modulo 2^64.
        match (distance as i64) < 0 {
            true => Ns(0),
            false => Ns(distance),
        }
    }

    fn max(self, other: Self) -> Self {
        match other.ahead_of(self) {
            Ns(0) => self,
            _ => other,
        }
    }

    fn min(self, other: Self) -> Self {
        match other.ahead_of(self) {
            Ns(0) => other,
            _ => self,
        }
    }

    fn after(self, time: Ns) -> Self {
        Self(self.0 + Wrapping(time.get()))
    }

    fn before(self, time: Ns) -> Self {
        Self(self.0 - Wrapping(time.get()))
    }
}

/// The virtual time of one GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Clock(Virtual);

impl Clock {
    /// Moves to the smallest virtual time of the accounts with work: in flight, or held back by
    /// nothing but the weight. Stays without any.
    pub fn advance<'a>(&mut self, with_work: impl IntoIterator<Item = &'a Account>) {
        let points = with_work.into_iter().map(|account| account.at);
        if let Some(smallest) = points.reduce(Virtual::min) {
            self.0 = self.0.max(smallest);
        }
    }
}

/// A duty cycle: at most `quota` of cost in each `period`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DutyCycle {
    /// Cost of one period; more than 0.
    pub quota: Ns,
    /// Length of a period; more than 0.
    pub period: Ns,
}

/// The limits of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// `compute.weight`.
    pub weight: Weight,
    /// `compute.max`; `None` for no limit.
    pub max: Option<DutyCycle>,
}

impl Share {
    /// Returns the virtual time of `cost`.
    fn virtual_time(&self, cost: Ns) -> Ns {
        cost.scale(UNIT, u64::from(self.weight.get().max(1)))
    }
}

/// What one node was charged on one GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    at: Virtual,
    /// Cost charged in this period, and the debt of earlier ones.
    spent: Ns,
    /// The beginning of this period.
    period: Ns,
}

/// What was charged for a piece in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charge {
    cost: Ns,
    /// The beginning of the period in which it was charged.
    period: Ns,
}

impl Account {
    /// Records that the node gets work after it had none, neither held nor in flight.
    pub fn wake(&mut self, clock: &Clock) {
        self.at = self.at.max(clock.0);
    }

    /// Returns whether the next piece may be released as far as the weight is concerned.
    /// [`Clock::advance`] comes first.
    pub fn has_turn(&self, share: &Share, clock: &Clock) -> bool {
        self.at.ahead_of(clock.0) <= share.virtual_time(WINDOW)
    }

    /// Returns the time from which a piece of predicted `cost` may be released as far as the duty
    /// cycle is concerned; `now` at the earliest. A piece that is longer than the quota goes when
    /// nothing else is charged.
    pub fn ready_at(&mut self, share: &Share, cost: Ns, now: Ns) -> Ns {
        let Some(max) = &share.max else {
            return now;
        };
        self.refill(max, now);
        if self.spent == Ns(0) || self.spent + cost <= max.quota {
            return now;
        }
        let paid = (self.spent + cost - max.quota).pieces_of(max.quota);
        let periods = paid.min(self.spent.pieces_of(max.quota));
        self.period + max.period * periods
    }

    /// Begins the period that `now` is in.
    fn refill(&mut self, max: &DutyCycle, now: Ns) {
        let passed = (now - self.period) / max.period.max(Ns(1));
        if passed > 0 {
            self.spent -= max.quota * passed;
            self.period += max.period * passed;
        }
    }

    /// Charges the predicted `cost` of a piece that is released.
    pub fn charge(&mut self, share: &Share, cost: Ns, now: Ns) -> Charge {
        self.at = self.at.after(share.virtual_time(cost));
        if let Some(max) = &share.max {
            self.refill(max, now);
            self.spent += cost;
        }
        Charge {
            cost,
            period: self.period,
        }
    }

    /// Charges a piece in flight that has cost `so_far` already, if that is more than was charged
    /// for it.
    pub fn overrun(&mut self, share: &Share, charge: &mut Charge, so_far: Ns, now: Ns) {
        let more = so_far - charge.cost;
        charge.cost += more;
        self.at = self.at.after(share.virtual_time(more));
        if let Some(max) = &share.max {
            self.refill(max, now);
            self.spent += more;
        }
    }

    /// Corrects a charge: the piece has ended, and its cost was `cost`. A piece whose end is not
    /// observed is not corrected.
    pub fn correct(&mut self, share: &Share, mut charge: Charge, cost: Ns, now: Ns) {
        self.overrun(share, &mut charge, cost, now);
        let less = charge.cost - cost;
        self.at = self.at.before(share.virtual_time(less));
        if charge.period == self.period {
            self.spent -= less;
        }
    }
}

#[cfg(test)]
mod tests;
