// SPDX-License-Identifier: GPL-2.0 OR MIT

//! States what the tenants of a GPU know of each other: their limits and their activity.

use crate::mask::TpcMask;
use crate::policy::arrivals::{ArrivalStats, PAUSE_MIN};
use crate::policy::patience::{Signs, BEAT_EVERY};
use crate::policy::share::Place;
use crate::policy::tpc::{Neighbour, Rank};
use crate::units::{Ns, Weight};

/// The limits of a tenant that concern its neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The TPCs that are reserved for its owner or for itself.
    pub own: TpcMask,
    /// The subset that is reserved for itself alone.
    pub alone: TpcMask,
    /// The TPCs that its mask allows.
    pub allowed: TpcMask,
    /// Whether others may borrow the reserved TPCs while it is idle.
    pub lends: bool,
    /// Whether it may not use TPCs that others lend.
    pub confined: bool,
    /// Its rank.
    pub rank: Rank,
    /// Its weight; `None` if nobody wrote one.
    pub weight: Option<Weight>,
}

impl Standing {
    /// Returns the limits as another tenant, of this rank, must regard them. Tenants of the same
    /// owner share its reserved TPCs, so only TPCs reserved for one of them alone and their ranks
    /// count. Returns `None` if neither differs.
    pub fn beside(&self, rank: Rank, is_sibling: bool) -> Option<Self> {
        if !is_sibling {
            return Some(*self);
        }
        let differs = !self.alone.is_empty() || self.rank != rank;
        let own = self.alone;
        differs.then_some(Self { own, ..*self })
    }

    /// Returns what decides with whom the tenant takes turns. `owner` is a number of its owner, and
    /// `number` one that no other tenant has.
    pub fn place(&self, owner: u32, number: u32) -> Place {
        Place {
            owner,
            number,
            rank: self.rank,
            own: self.own.or(&self.alone),
            allowed: self.allowed,
            weight: self.weight,
        }
    }

    /// Returns the tenant as a neighbour with these signs of life and this [`ebb`](Activity::ebb).
    pub fn neighbour(
        &self,
        signs: &Signs,
        arrivals: ArrivalStats,
        ebb: TpcMask,
        now: Ns,
    ) -> Neighbour {
        Neighbour {
            own: self.own,
            allowed: self.allowed,
            lends: self.lends,
            confined: self.confined,
            rank: self.rank,
            busy: signs.is_busy(now),
            idle: signs.idle(now),
            arrivals,
            ebb,
        }
    }
}

/// The activity of a tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Activity {
    /// What it shows its neighbours.
    pub signs: Signs,
    /// Its arrival statistics.
    pub arrivals: ArrivalStats,
    /// The TPCs that none of its last pieces had ([`tide`](crate::policy::tide)).
    pub ebb: TpcMask,
    /// The start of the present request, or of the last one.
    request_since: Ns,
}

impl Default for Activity {
    fn default() -> Self {
        Self {
            signs: Signs::default(),
            arrivals: ArrivalStats::default(),
            ebb: TpcMask::EMPTY,
            request_since: Ns(0),
        }
    }
}

impl Activity {
    /// Records whether the tenant has work that progresses.
    pub fn set_busy(&mut self, busy: bool, now: Ns) {
        let was_busy = core::mem::replace(&mut self.signs.claims, busy);
        match (was_busy, busy) {
            (false, true) => {
                self.signs.beat = now;
                self.resume(now);
            }
            (true, true) if now - self.signs.beat >= BEAT_EVERY => self.signs.beat = now,
            (true, false) => self.signs.idle_since = now,
            _ => {}
        }
    }

    /// Starts another request, unless the pause was one within the same request.
    fn resume(&mut self, now: Ns) {
        let idle_since = self.signs.idle_since;
        if idle_since != Ns(0) {
            let pause = now - idle_since;
            if pause < PAUSE_MIN {
                return;
            }
            let request = idle_since - self.request_since;
            self.arrivals = self.arrivals.after(request, pause);
        }
        self.request_since = now;
    }
}
