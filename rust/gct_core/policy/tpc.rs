// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Decides which TPCs a tenant may use now (LithOS, section 5.3), and whether it must wait (Tally).
//!
//! Terminology
//!   own     the TPCs that a quota reserves for a tenant ([`reserve`])
//!   shared  all other TPCs that it may use: unreserved or lent ones
//!   rank    order in which tenants with work get shared TPCs: first by `compute.priority`, best
//!           effort (quota 0) after all others
//!   lend    an owner's TPCs are used by others while it is idle
//!   steal   a tenant uses TPCs that are lent
//!
//! ```text
//! granted  = allowed
//! for each neighbour:
//!     if not lent to the tenant:           granted -= the neighbour's own
//!     if present and of an earlier rank:   granted -= what is usable by the neighbour
//!     (side by side, less its ebb of these, if it lends that: policy::tide)
//! granted += own
//! usable   = allowed, less what is reserved for others if it may not steal
//! present  = busy, or idle for less than
//!            side by side: clamp(time, PAUSE_MIN, PRESENT_MAX)
//!            by turns:     max(clamp(time, PAUSE_MIN, PRESENT_MAX), SWITCHES)
//! ```
//!
//! `time` is how long the work would hold the TPCs. So a tenant of a later rank waits behind a
//! neighbour's request for about as long as its own work could delay the next one. A service with
//! a queue of requests then keeps the GPU between them. Tenants that take turns on the GPU also pay
//! for two switches of contexts if the next request comes: the later tenant waits for as long as
//! these take, so waiting never costs more than twice the better choice. With `n` requests a second
//! the wait costs the later tenant at most `n * SWITCHES`.
//!
//! An empty grant orders the tenant to wait. A launch never gets a mask without a TPC.
//!
//! An owner lends its TPCs for a time ([`Neighbour::can_lend_for`]) when one of these holds:
//!
//! - it has been idle for longer than its idle timeout;
//! - it usually comes back only after that time;
//! - the time is short beside its requests, so that waiting costs it little.
//!
//! The owner takes them back at the borrower's next atom, because each atom is masked when it is
//! released. Each owner's arrival pattern is learned from its own history ([`ArrivalStats`]).

mod slot;

pub use slot::has_slot;

use super::arrivals::{ArrivalStats, PAUSE_MIN};
use super::tide;
use crate::mask::TpcMask;
use crate::topology::Topology;
use crate::units::{Ns, Priority};

/// The longest time for which a tenant waits behind the work of an earlier rank.
pub const PRESENT_MAX: Ns = Ns(200_000);

/// Time of two switches of contexts, to another process and back. One H100: a request that finds a
/// training at work waits 0.15 to 0.22 ms longer than alone, and as long again for the switch back.
pub const SWITCHES: Ns = Ns(300_000);

/// Order in which tenants with work get unreserved TPCs, first to last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank {
    /// Whether the quota is 0: the tenant yields to all others.
    pub best_effort: bool,
    /// `compute.priority`, 0 first.
    pub priority: Priority,
}

impl Rank {
    /// The first rank.
    pub const FIRST: Self = Self {
        best_effort: false,
        priority: Priority::FIRST,
    };

    /// The last rank.
    pub const LAST: Self = Self {
        best_effort: true,
        priority: Priority::LAST,
    };
}

/// A tenant that wants to release work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tenant {
    /// The existing TPCs that its mask allows.
    pub allowed: TpcMask,
    /// The TPCs that are reserved for it.
    pub own: TpcMask,
    /// Whether it may use TPCs that others lend.
    pub steal: bool,
    /// Its rank.
    pub rank: Rank,
    /// Whether the GPU switches contexts between it and its neighbours.
    pub by_turns: bool,
}

/// Limits and activity of another tenant of the same GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// The TPCs that are reserved for it.
    pub own: TpcMask,
    /// The TPCs that its mask allows.
    pub allowed: TpcMask,
    /// Whether it lends its reserved TPCs while it is idle.
    pub lends: bool,
    /// Whether it may not use TPCs that others lend.
    pub confined: bool,
    /// Its rank.
    pub rank: Rank,
    /// Whether it has work that has not ended.
    pub busy: bool,
    /// How long it has been idle.
    pub idle: Ns,
    /// Its arrival statistics.
    pub arrivals: ArrivalStats,
    /// The TPCs that none of its last pieces had ([`tide`]).
    pub ebb: TpcMask,
}

impl Neighbour {
    /// A neighbour that nobody waits for.
    pub const NONE: Self = Self {
        own: TpcMask::EMPTY,
        allowed: TpcMask::EMPTY,
        lends: true,
        confined: false,
        rank: Rank::LAST,
        busy: false,
        idle: Ns::MAX,
        arrivals: ArrivalStats {
            longest: Ns(0),
            shortest: Ns(0),
            request: Ns(0),
        },
        ebb: TpcMask::EMPTY,
    };

    /// Returns whether a tenant of a later rank waits for it with work that would hold the TPCs for
    /// `time`: it has work, or had some until just now.
    fn is_present_for(&self, time: Ns, by_turns: bool) -> bool {
        let wait = time.clamp(PAUSE_MIN, PRESENT_MAX);
        let wait = if by_turns { wait.max(SWITCHES) } else { wait };
        self.busy || self.idle < wait
    }

    /// Returns the TPCs that it may use once all others are away. `reserved` are those of all
    /// owners.
    fn usable(&self, reserved: &TpcMask) -> TpcMask {
        match self.confined {
            true => self.allowed.without(&reserved.without(&self.own)),
            false => self.allowed,
        }
    }

    /// Returns whether its reserved TPCs can be lent for `time`.
    pub fn can_lend_for(&self, time: Ns) -> bool {
        if self.busy || self.idle < PAUSE_MIN {
            return false;
        }
        let back = self.idle + time;
        self.idle >= self.arrivals.idle_timeout()
            || back <= self.arrivals.earliest_return()
            || (self.arrivals.request > Ns(0) && time <= self.arrivals.tolerance())
    }
}

/// Returns the TPCs that a quota reserves for a tenant, of those that it may use and that are not
/// in `reserved` for others. `None` is the quota `max`, which reserves none.
pub fn reserve(
    allowed: &TpcMask,
    topology: &Topology,
    reserved: &TpcMask,
    quota: Option<u16>,
) -> TpcMask {
    topology.pack(&allowed.without(reserved), u32::from(quota.unwrap_or(0)))
}

/// Returns the TPCs of `allowed` that are left when `taken` quarters of them are taken: one at
/// least. Those are taken that a quota of as many under the same mask reserves first, so what is
/// left holds as many clusters as it can.
pub fn kept(allowed: &TpcMask, topology: &Topology, taken: u8) -> TpcMask {
    if taken == 0 {
        return *allowed;
    }
    let quarters = u32::from(4u8.saturating_sub(taken));
    let all = allowed.count();
    let left = (all.saturating_mul(quarters) / 4).max(1);
    allowed.without(&topology.pack(allowed, all.saturating_sub(left)))
}

/// Returns the TPCs that a tenant may use now for work that will have ended in `time`. An empty set
/// orders it to wait.
pub fn grant(tenant: &Tenant, time: Ns, neighbours: &[Neighbour]) -> TpcMask {
    grant_beside(tenant, time, neighbours, !tenant.by_turns)
}

/// Returns what [`grant`] does, for a piece that `resident` TPCs hold at once. Its blocks may wait
/// for each other, so the ebb of a neighbour counts only if that makes enough TPCs.
pub fn grant_at_once(
    tenant: &Tenant,
    time: Ns,
    resident: u32,
    neighbours: &[Neighbour],
) -> TpcMask {
    let ebb = !tenant.by_turns && neighbours.iter().any(|other| !other.ebb.is_empty());
    let granted = grant_beside(tenant, time, neighbours, ebb);
    match ebb && resident > granted.count() {
        true => grant_beside(tenant, time, neighbours, false),
        false => granted,
    }
}

/// Returns the TPCs that are reserved for any neighbour. Empty if that decides nothing: each
/// neighbour of an earlier rank may steal.
fn reserved_beside(tenant: &Tenant, neighbours: &[Neighbour]) -> TpcMask {
    let matters = |neighbour: &Neighbour| neighbour.confined && neighbour.rank < tenant.rank;
    if !neighbours.iter().any(matters) {
        return TpcMask::EMPTY;
    }
    let own = neighbours.iter().map(|neighbour| neighbour.own);
    own.fold(TpcMask::EMPTY, |all, own| all.or(&own))
}

/// Returns the grant with what neighbours lend while they work, or without it.
fn grant_beside(tenant: &Tenant, time: Ns, neighbours: &[Neighbour], ebb: bool) -> TpcMask {
    let own = tenant.own.and(&tenant.allowed);
    let mut granted = tenant.allowed;
    let reserved = reserved_beside(tenant, neighbours);
    for neighbour in neighbours {
        let lends = tenant.steal && neighbour.lends;
        let kept = |tpcs: &TpcMask| match lends && ebb && time <= tide::HOLD_MAX {
            true => tpcs.without(&neighbour.ebb),
            false => *tpcs,
        };
        if !(lends && neighbour.can_lend_for(time)) {
            granted = granted.without(&kept(&neighbour.own));
        }
        if neighbour.rank < tenant.rank && neighbour.is_present_for(time, tenant.by_turns) {
            granted = granted.without(&kept(&neighbour.usable(&reserved)));
        }
    }
    granted.or(&own)
}

/// A piece whose blocks may wait for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Together {
    /// The TPCs that hold all blocks of each of its launches at once; 0 if that does not matter.
    pub resident: u32,
    /// The TPCs that its program was shown ([`size`](super::size)); 0 if it has not asked.
    pub shown: u32,
    /// Whether its tenant yields only for the goal of another.
    pub pressed: bool,
    /// Whether its tenant has waited for as long as it must ([`allowance`](super::slo::allowance)),
    /// or has its slot ([`has_slot`]).
    pub waited: bool,
}

/// The TPCs for a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// These; none orders it to wait.
    Policy(TpcMask),
    /// These, although the policy leaves fewer: it has waited, or nobody else runs in its turn.
    Reach(TpcMask),
}

impl Fit {
    /// Returns the TPCs.
    pub const fn tpcs(&self) -> &TpcMask {
        match self {
            Self::Policy(tpcs) | Self::Reach(tpcs) => tpcs,
        }
    }
}

/// Returns the TPCs for a piece that the policy has `granted` fewer than hold it.
///
/// Its blocks may wait for each other, and their program counts on the TPCs that were written, and
/// on those that it was shown.
///
/// ```text
/// granted                                   if they hold it
/// grant(written)                            else if these do
/// wait                                      else if none is granted; or if its tenant is pressed
///                                           and its allowance will give it enough
/// reach                                     else if its program was shown as many, reach holds
///                                           it, and the GPU switches contexts or it has waited
/// wait                                      else if all but the last holds
/// granted                                   else: no TPC that it may ever use will do
/// reach = written, without what is reserved for others if it may not steal
/// ```
pub fn fit(
    written: &Tenant,
    granted: TpcMask,
    piece: &Together,
    time: Ns,
    neighbours: &[Neighbour],
) -> Fit {
    let resident = piece.resident;
    if resident <= granted.count() {
        return Fit::Policy(granted);
    }
    let wide = grant(written, time, neighbours);
    if resident <= wide.count() {
        return Fit::Policy(wide);
    }
    let allowance = Rank {
        best_effort: false,
        ..written.rank
    };
    if piece.pressed && resident <= dependable(written, allowance, neighbours) {
        return Fit::Policy(TpcMask::EMPTY);
    }
    let reach = reach(written, neighbours);
    if granted.is_empty() || resident > piece.shown || resident > reach.count() {
        return Fit::Policy(granted);
    }
    match written.by_turns || piece.waited {
        true => Fit::Reach(reach),
        false => Fit::Policy(TpcMask::EMPTY),
    }
}

/// Returns the TPCs that a tenant may ever use.
fn reach(tenant: &Tenant, neighbours: &[Neighbour]) -> TpcMask {
    if tenant.steal {
        return tenant.allowed;
    }
    let others = neighbours.iter().map(|neighbour| neighbour.own);
    let others = others.fold(TpcMask::EMPTY, |all, own| all.or(&own));
    tenant.allowed.without(&others.without(&tenant.own))
}

/// Returns the TPCs that a tenant may use at the place `rank` of the order.
fn grant_at(tenant: &Tenant, rank: Rank, time: Ns, neighbours: &[Neighbour]) -> TpcMask {
    grant(&Tenant { rank, ..*tenant }, time, neighbours)
}

/// Returns how many TPCs a tenant may use at the place `rank` of the order, for work of any
/// duration.
pub fn dependable(tenant: &Tenant, rank: Rank, neighbours: &[Neighbour]) -> u32 {
    grant_at(tenant, rank, Ns::MAX, neighbours).count()
}

/// Returns whether reservations alone keep a tenant from work of this duration: the first of all
/// ranks would wait, too.
pub fn is_reserved_for_others(tenant: &Tenant, time: Ns, neighbours: &[Neighbour]) -> bool {
    grant_at(tenant, Rank::FIRST, time, neighbours).is_empty()
}

/// Returns whether a tenant yields to a neighbour: one of an earlier rank is there, with work or
/// without.
pub fn yields(rank: Rank, neighbours: &[Neighbour]) -> bool {
    neighbours.iter().any(|neighbour| neighbour.rank < rank)
}

/// Returns whether no neighbour is expected within `time` on the TPCs that a tenant shares: each is
/// idle, or has TPCs of its own and no earlier rank.
pub fn nobody_expected(rank: Rank, time: Ns, neighbours: &[Neighbour]) -> bool {
    let elsewhere = |n: &Neighbour| !n.own.is_empty() && n.rank >= rank;
    neighbours
        .iter()
        .all(|n| elsewhere(n) || n.can_lend_for(time))
}

#[cfg(test)]
mod tests;
