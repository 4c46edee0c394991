// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Decides whether a piece goes to the GPU now, on which TPCs, and if not, why and until when.
//!
//! ```text
//! decide(me, others, piece, now):                            # the first line that holds counts
//!     its tenant is frozen                        freeze     until that ends
//!     enough of its channel is in flight (pace)   atoms      late: when nothing ended for patience
//!     no TPC that it may use is left (tpc)        tpcs       until one is; of enough, for a launch
//!                                                            whose blocks may wait for each other
//!     spent + in flight >= quota of a period      max    }   late: when its tenant's work in flight
//!     others have their turn, or are behind       weight }   may wait for it (patience)
//!     else it goes, on these TPCs
//! admits(piece) = decide(..), then its size (sizing), and at last
//!     a replay whose nodes need another mask      graph      until nothing of its channel is in
//!                                                            flight, DRAIN_MAX at most
//! ```
//!
//! The order is that of the rules: a quota comes before a priority, a priority before a weight, and
//! a weight divides only what is left to equals.

use super::limits::LaunchLimits;
use super::shares::Shares;
use crate::gpu_time::{Held, Hold};
use crate::mask::TpcMask;
use crate::policy::pace::{self, InFlight, Split};
use crate::policy::precedence;
use crate::policy::share::Rival;
use crate::policy::slo::allowance::Allowance;
use crate::policy::tpc::{self, Fit, Neighbour, Rank, Tenant, Together};
use crate::submit::precedence::Precedence;
use crate::units::Ns;

/// A tenant on one GPU, as far as decisions depend on it.
pub(super) struct Me {
    pub(super) limits: LaunchLimits,
    /// The TPCs that its mask allows, and those of them that goals of others leave.
    pub(super) written: TpcMask,
    pub(super) allowed: TpcMask,
    /// How many TPCs the GPU has: without an instruction for it, counting takes fifty.
    pub(super) gpu_count: u32,
    /// How long it has waited for the goal of another.
    pub(super) allowance: Allowance,
    /// Its time on the GPU, and its share of it.
    pub(super) shares: Shares,
    /// The time of the last publication or end.
    pub(super) moved: Ns,
}

impl Me {
    pub(super) fn new(limits: LaunchLimits) -> Self {
        Self {
            limits,
            written: TpcMask::EMPTY,
            allowed: TpcMask::EMPTY,
            gpu_count: 0,
            allowance: Allowance::default(),
            shares: Shares::default(),
            moved: Ns(0),
        }
    }

    /// Returns the place in the order of neighbours at this moment.
    #[inline]
    pub(super) fn rank(&self, now: Ns) -> Rank {
        let rank = self.limits.rank;
        let waits = !(self.limits.pressed && self.allowance.is_over(now));
        Rank {
            best_effort: rank.best_effort && waits,
            ..rank
        }
    }

    /// Returns the tenant as the policies see it.
    pub(super) fn beside(&self, others: &Others<'_>, now: Ns) -> Tenant {
        Tenant {
            allowed: self.allowed,
            own: others.own,
            steal: self.limits.steal,
            rank: self.rank(now),
            by_turns: others.by_turns,
        }
    }
}

/// The other tenants of a GPU, as a tenant sees them.
#[derive(Debug)]
pub struct Others<'a> {
    /// The TPCs that are reserved for the tenant.
    pub own: TpcMask,
    /// The others.
    pub neighbours: &'a [Neighbour],
    /// The other processes, with what they have published of their turns.
    pub rivals: &'a [Rival],
    /// Whether the GPU switches contexts between the tenant and the others.
    pub by_turns: bool,
    /// How many TPCs the tenant was shown; 0 if it has not asked, or cannot be answered.
    pub shown: u32,
}

impl Others<'_> {
    /// Nobody.
    pub const NONE: Self = Self {
        own: TpcMask::EMPTY,
        neighbours: &[],
        rivals: &[],
        by_turns: false,
        shown: 0,
    };
}

/// What is to go.
pub(super) struct Piece<'a> {
    pub(super) kind: Kind<'a>,
    /// How long it may hold its TPCs.
    pub(super) holds: Ns,
    /// The TPCs that hold all blocks of its launches at once; 0 if that does not matter.
    pub(super) resident: u32,
    /// The work in flight of its channel, and when patience with that is over.
    pub(super) in_flight: &'a InFlight,
    pub(super) overdue: Ns,
}

/// What bounds the work in flight beside a piece.
pub(super) enum Kind<'a> {
    /// Nothing.
    Free,
    /// Its predicted duration, 0 if that is unknown, and the target.
    Whole(Ns, Ns),
    /// The pace of its launch.
    Atom(&'a Split),
}

/// A piece that goes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Release {
    /// Its TPCs; `None` for those of the limits, where no others are known.
    pub(super) grant: Option<Grant>,
    /// Whether it goes only because work in flight may wait for it.
    pub(super) late: bool,
    /// Whether that depended on its tenant's time.
    pub(super) timed: bool,
}

/// The TPCs of a piece.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Grant {
    pub(super) tpcs: TpcMask,
    /// Its place among the pieces of others that wait on the GPU.
    pub(super) order: Option<Precedence>,
    /// Whether these are more than the policy allows, for blocks that may wait for each other.
    pub(super) spares: bool,
    /// How many TPCs such a launch gets at last.
    pub(super) dependable: u32,
}

/// Decides about a piece, or, before one is read, whether any may go.
///
/// Inlined, what a backend without peers or limits never asks costs nothing.
#[inline]
pub(super) fn decide(
    me: &Me,
    others: Option<&Others<'_>>,
    piece: Option<&Piece<'_>>,
    now: Ns,
) -> Result<Release, Held> {
    if me.limits.frozen {
        return Err(Held::until(Hold::Freeze, Ns::MAX));
    }
    let mut late = match piece {
        Some(piece) if !joins(me, others, piece) => {
            Held::until(Hold::Atoms, piece.overdue).is_late(now)?
        }
        _ => false,
    };
    let grant = match others {
        Some(others) => Some(grant(me, others, piece, now)?),
        None => None,
    };
    let share = &me.limits.share;
    let timed = piece.is_some() && me.shares.window(share).is_some();
    if timed {
        let rivals = others.map_or(&[][..], |others| others.rivals);
        if let Some(reason) = me.shares.used_up(share, rivals, now) {
            late |= Held::until(reason, me.shares.overdue(me.moved)).is_late(now)?;
        }
    }
    Ok(Release { grant, late, timed })
}

/// Returns whether a piece may join the work in flight of its channel.
#[inline]
fn joins(me: &Me, others: Option<&Others<'_>>, piece: &Piece<'_>) -> bool {
    match piece.kind {
        Kind::Free => true,
        Kind::Whole(predicted, target) => pace::admits_whole(piece.in_flight, predicted, target),
        Kind::Atom(split) => {
            let rank = me.limits.rank;
            let alone =
                |others: &Others<'_>| tpc::nobody_expected(rank, piece.holds, others.neighbours);
            // Without peers the neighbours are unknown.
            pace::admits_atom(piece.in_flight, split, || others.is_some_and(alone))
        }
    }
}

/// Returns the TPCs of a piece.
fn grant(me: &Me, others: &Others<'_>, piece: Option<&Piece<'_>>, now: Ns) -> Result<Grant, Held> {
    let (time, resident) = piece.map_or((Ns(0), 0), |piece| (piece.holds, piece.resident));
    let (neighbours, shown) = (others.neighbours, others.shown);
    let tenant = me.beside(others, now);
    let granted = tpc::grant_at_once(&tenant, time, resident, neighbours);
    let (mut fit, mut dependable) = (Fit::Policy(granted), granted.count());
    let pressed = me.limits.pressed;
    let narrowed = pressed || me.written != me.allowed;
    if narrowed || resident > dependable {
        let written = Tenant {
            allowed: me.written,
            ..tenant
        };
        let waited = match pressed || tenant.own.is_empty() {
            true => me.allowance.is_over(now),
            false => tpc::has_slot(&written, neighbours, me.gpu_count, now),
        };
        let piece = Together {
            resident,
            shown,
            pressed,
            waited,
        };
        fit = tpc::fit(&written, granted, &piece, time, neighbours);
        if narrowed {
            dependable = tpc::dependable(&written, Rank::FIRST, neighbours);
        }
    }
    let tpcs = *fit.tpcs();
    if tpcs.is_empty() {
        return Err(Held {
            reserved: tpc::is_reserved_for_others(&tenant, time, neighbours),
            short: !granted.is_empty(),
            ..Held::until(Hold::Tpcs, Ns::MAX)
        });
    }
    Ok(Grant {
        tpcs,
        order: match fit {
            Fit::Policy(_) => precedence::decide(&tenant, &tpcs, neighbours),
            // Blocks that wait for each other must not wait for all that others launch meanwhile.
            Fit::Reach(_) => (!tenant.by_turns).then_some(Precedence::First),
        },
        spares: tpcs != granted,
        // Who may not steal was shown its own TPCs.
        dependable: dependable.max(shown.min(me.gpu_count)),
    })
}

#[cfg(test)]
mod tests;
