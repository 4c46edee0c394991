// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Decides how much memory an owner may have on a GPU now, between `gmem.low` and `gmem.limit`
//! (GVM's dynamic policy, GVM-DYN).
//!
//! Terminology
//!   floor    `gmem.low`, and at least what cannot leave the GPU ([`SLACK`] included)
//!   wanted   what the owner has on the GPU and on the host, at most `gmem.limit`
//!   ceiling  `gmem.limit`
//!   elastic  an owner with a `gmem.low`, whose memory can leave; all others are firm
//!   resting  without work for [`REST`] looks
//!
//! ```text
//! room = memory - memory / 32 - sum of wanted (firm) - sum of floors (elastic)
//! of that room, until it is used up, each elastic owner has
//!     1. wanted - floor      who works; earlier ranks first, one rank in proportion
//!     2. wanted - floor      who rests; the same
//!     3. ceiling - wanted    all, in proportion
//! target  = floor + its parts
//! allowed = least target of the last 5 to 10 looks
//! ```
//!
//! So nobody is brought below its floor, and those who are allowed more have no more together than
//! the GPU has room for. What others need is taken at once, and what they leave is given back some
//! looks later: memory that comes and goes moves nothing in between.
//!
//! The part of a 32nd is for what others allocate between two looks, and for the driver itself.

use crate::policy::tpc::Rank;
use crate::units::{Bytes, Ns};

/// The part of the memory that stays free.
const SPARE_PART: u64 = 32;

/// Room for memory that cannot leave beside what exists: twice what the library keeps free.
pub const SLACK: Bytes = Bytes(64 << 20);

/// Looks after which an owner without work rests.
pub const REST: u8 = 10;

/// Looks after which the older of two minima is dropped.
const PERIOD: u8 = 5;

/// What an owner has of a GPU's memory, and what it may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Its place among owners with work.
    pub rank: Rank,
    /// `gmem.low` of an elastic owner; `None` for a firm one.
    pub low: Option<Bytes>,
    /// `gmem.limit`, or all memory of the GPU.
    pub limit: Bytes,
    /// What is on the GPU and cannot leave.
    pub fixed: Bytes,
    /// What is on the GPU.
    pub device: Bytes,
    /// Host memory that holds what has left. It counts until it is freed.
    pub host: Bytes,
    /// Whether it has had no work lately.
    pub rests: bool,
}

/// What a claim amounts to after each pass.
type Steps = [Bytes; 4];

impl Claim {
    fn steps(&self) -> Steps {
        let wanted = (self.device + self.host).min(self.limit);
        let Some(low) = self.low else {
            return [wanted.max(self.device); 4];
        };
        let floor = low.max(self.fixed + SLACK).min(self.limit);
        let wanted = wanted.max(floor);
        let working = if self.rests { floor } else { wanted };
        [floor, working, wanted, self.limit.max(wanted)]
    }

    /// Returns what a pass adds to it.
    fn rise(&self, pass: usize) -> Bytes {
        let steps = self.steps();
        let at = |step: usize| steps.get(step).copied().unwrap_or(Bytes(0));
        at(pass) - at(pass.saturating_sub(1))
    }
}

/// Returns the sum of what a pass adds to the claims that `counts`.
fn sum(claims: impl Iterator<Item = Claim>, pass: usize, counts: impl Fn(&Claim) -> bool) -> Bytes {
    let rises = claims
        .filter(|claim| counts(claim))
        .map(|claim| claim.rise(pass));
    rises.fold(Bytes(0), |sum, rise| sum + rise)
}

/// Returns what an elastic owner may have of `memory`, with the `claims` of all owners of the GPU,
/// its own included.
pub fn target(memory: Bytes, claims: impl Iterator<Item = Claim> + Clone, own: &Claim) -> Bytes {
    let steps = claims.clone().map(|claim| claim.steps());
    let floors = steps.fold(Bytes(0), |sum, [floor, ..]| sum + floor);
    let mut left = memory - memory / SPARE_PART - floors;
    let [mut granted, ..] = own.steps();
    for pass in 1..=3 {
        let all = sum(claims.clone(), pass, |_| true);
        // Nobody is before anybody in the last pass.
        let (ahead, among) = match pass {
            3 => (Bytes(0), all),
            _ => (
                sum(claims.clone(), pass, |claim| claim.rank < own.rank),
                sum(claims.clone(), pass, |claim| claim.rank == own.rank),
            ),
        };
        let rise = own.rise(pass);
        granted += match left - ahead {
            here if here >= among => rise,
            here => here.scale(rise, among),
        };
        left -= all;
    }
    granted
}

/// What an owner may have, and what that rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Balance {
    /// The least target of the current period, and of the one before.
    least: [Bytes; 2],
    looks: u8,
    /// Looks without work.
    idle: u8,
    /// The time on the GPU at the last look.
    used: Ns,
}

impl Default for Balance {
    fn default() -> Self {
        Self {
            least: [Bytes::MAX; 2],
            looks: 0,
            idle: 0,
            used: Ns(0),
        }
    }
}

impl Balance {
    /// Takes over the time that an owner has had of the GPU until now, and whether it has `pending`
    /// work.
    pub fn worked(&mut self, used: Ns, pending: bool) {
        let works = pending || used != self.used;
        self.used = used;
        self.idle = match works {
            true => 0,
            false => self.idle.saturating_add(1).min(REST),
        };
    }

    /// Returns whether it rests.
    pub const fn rests(&self) -> bool {
        self.idle >= REST
    }

    /// Takes over a target. Returns what the owner may have until the next one.
    pub fn allow(&mut self, target: Bytes) -> Bytes {
        let [now, before] = self.least;
        let now = now.min(target);
        self.looks = self.looks.saturating_add(1);
        self.least = match self.looks >= PERIOD {
            true => {
                self.looks = 0;
                [Bytes::MAX, now]
            }
            false => [now, before],
        };
        now.min(before)
    }

    /// Forgets the targets of an owner that is not elastic any more.
    pub fn forget(&mut self) {
        (self.least, self.looks) = ([Bytes::MAX; 2], 0);
    }
}

#[cfg(test)]
mod tests;
