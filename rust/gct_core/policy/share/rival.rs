// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tracks what one process knows of its rivals' turns.

use super::cycle::Spent;
use super::place::Relation;
use super::{Virtual, HANDOVER, LINGER_MAX, UNIT};
use crate::units::{Ns, Sat, Weight};

/// What a process publishes of its turns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sign {
    /// Its position.
    pub at: Virtual,
    /// The time until which it contends; 0 if it does not, [`Ns::MAX`] while it has work,
    /// [`KEEPS`](Self::KEEPS) while others than its rivals hold it back.
    pub contends_until: Ns,
    /// Whether it has work in flight.
    pub runs: bool,
    /// What it has used of its owner's duty cycle.
    pub spent: Spent,
}

impl Sign {
    /// The value of `contends_until` of a process that keeps its position and does not contend.
    pub const KEEPS: Ns = Ns(u64::MAX - 1);
}

/// A rival as one process sees it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rival {
    pub(super) relation: Relation,
    pub(super) sign: Sign,
    /// Its position in the view of this process.
    pub(super) at: Virtual,
    pub(super) contends: bool,
    /// Whether it will contend again at its position.
    pub(super) keeps: bool,
    /// Since when it keeps its position.
    pub(super) kept_since: Ns,
    /// Whether this process has looked at it.
    pub(super) known: bool,
    /// What it had used at the end of its last period.
    pub(super) before: Spent,
}

impl Rival {
    /// Creates a rival that was not seen yet.
    pub fn new(relation: Relation) -> Self {
        Self {
            relation,
            ..Self::default()
        }
    }

    /// Takes over a relation that may have changed.
    pub fn set_relation(&mut self, relation: Relation) {
        self.relation = relation;
    }

    /// Takes over what the rival publishes. `busy` says whether it has work and signs of life.
    pub fn see(&mut self, sign: Sign, busy: bool, now: Ns) {
        if sign.spent.period != self.sign.spent.period {
            self.before = self.sign.spent;
        }
        self.sign = sign;
        self.sign.runs &= busy;
        // The sign may be younger than `now`, by a round at most.
        if !busy && sign.contends_until - now > LINGER_MAX + HANDOVER {
            self.sign.contends_until = Ns(0);
        }
    }

    /// Returns whether it runs on TPCs of this process.
    pub fn is_beside(&self) -> bool {
        self.relation.overlaps && self.sign.runs
    }

    /// Returns whether it runs, on any TPCs.
    pub fn is_at_work(&self) -> bool {
        self.sign.runs
    }

    /// Returns whether the two take turns if either has a reason to.
    pub fn competes(&self) -> bool {
        self.relation.competes
    }

    /// Returns whether somebody wrote a weight that it has.
    pub fn is_weighted(&self) -> bool {
        self.competes() && self.relation.weight.is_some()
    }

    pub(super) fn runs(&self) -> bool {
        self.contends && self.sign.runs
    }

    pub(super) fn virtual_time(&self, time: Ns) -> Ns {
        let weight = self.relation.weight.unwrap_or(Weight::DEFAULT).get();
        time.scale(UNIT, u64::from(weight.max(1)))
    }

    /// Moves the rival's position to where it must be at least: the clock, or `least` for one that
    /// was held back.
    pub(super) fn follow(&mut self, clock: Virtual, least: Virtual, now: Ns) {
        let keeps = self.sign.contends_until == Sign::KEEPS;
        let contends = self.relation.competes && self.sign.contends_until > now && !keeps;
        let woke = contends && !self.contends;
        let known = match woke {
            true if self.keeps => self.at.max(least),
            true => clock,
            false => self.at,
        };
        if keeps && !self.keeps {
            self.kept_since = now;
        }
        self.keeps = self.relation.competes && keeps;
        self.at = known.max(self.sign.at);
        self.contends = contends;
        self.known = true;
    }

    /// Returns whether it comes before a contender at `at`.
    pub(super) fn is_before(&self, at: Virtual) -> bool {
        at.ahead_of(self.at) > Ns(0) || (at == self.at && self.relation.first)
    }
}

/// Counts rivals, without the overflow check of [`Iterator::count`].
pub(crate) fn number<'a>(rivals: impl Iterator<Item = &'a Rival>) -> u64 {
    rivals.fold(Sat(0u64), |count, _| count + Sat(1)).0
}
