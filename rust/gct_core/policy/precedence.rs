// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Decides which of the launches that wait on the GPU comes first, where its hardware orders the
//! launches of several tenants ([`submit::precedence`](crate::submit::precedence)).
//!
//! ```text
//! first     all granted TPCs are its own
//! last      some are reserved for a neighbour: it borrows them
//! first     neighbours yield to it, and it to none
//! last      it yields to a neighbour, and none to it
//! middle    both; or neither, where TPCs are reserved, so that it comes before who borrows them
//! none      otherwise: launches keep what their program wrote
//! ```
//!
//! The first line that holds counts. So a launch of an earlier rank waits for blocks that run,
//! and not for launches that wait, even where these could not be cut. An owner that comes back to
//! TPCs that it lent does, too.
//!
//! Tenants that take turns on the GPU have none: the hardware knows the launches of one alone.

use super::tpc::{Neighbour, Tenant};
use crate::mask::TpcMask;
use crate::submit::precedence::Precedence;

/// Returns the precedence of a launch on the `granted` TPCs.
pub fn decide(tenant: &Tenant, granted: &TpcMask, neighbours: &[Neighbour]) -> Option<Precedence> {
    if tenant.by_turns || neighbours.is_empty() {
        return None;
    }
    if granted.without(&tenant.own).is_empty() {
        return Some(Precedence::First);
    }
    let (mut yields, mut leads, mut reserved) = (false, false, !tenant.own.is_empty());
    for neighbour in neighbours {
        if !neighbour.own.is_empty() {
            reserved = true;
            let lent = granted.and(&neighbour.own).without(&tenant.own);
            if !lent.is_empty() {
                return Some(Precedence::Last);
            }
        }
        yields |= neighbour.rank < tenant.rank;
        leads |= neighbour.rank > tenant.rank;
    }
    match (yields, leads) {
        (false, true) => Some(Precedence::First),
        (true, false) => Some(Precedence::Last),
        (true, true) => Some(Precedence::Middle),
        (false, false) => reserved.then_some(Precedence::Middle),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::tpc::Rank;
    use crate::units::Priority;
    use std::vec::Vec;

    fn rank(priority: u8) -> Rank {
        Rank {
            best_effort: false,
            priority: Priority(priority),
        }
    }

    fn tenant(priority: u8, own: &[u8]) -> Tenant {
        Tenant {
            allowed: TpcMask::first(8),
            own: TpcMask::parse(own).unwrap_or(TpcMask::EMPTY),
            steal: true,
            rank: rank(priority),
            by_turns: false,
        }
    }

    fn neighbour(priority: u8, own: &[u8]) -> Neighbour {
        let Tenant {
            allowed, own, rank, ..
        } = tenant(priority, own);
        Neighbour {
            allowed,
            own,
            rank,
            ..Neighbour::NONE
        }
    }

    fn decide_beside(priority: u8, others: &[u8]) -> Option<Precedence> {
        let others: Vec<_> = others.iter().map(|other| neighbour(*other, b"")).collect();
        decide(&tenant(priority, b""), &TpcMask::first(8), &others)
    }

    #[test]
    fn ranks_decide() {
        assert_eq!(decide_beside(0, &[8]), Some(Precedence::First));
        assert_eq!(decide_beside(8, &[0]), Some(Precedence::Last));
        assert_eq!(decide_beside(8, &[15, 0]), Some(Precedence::Middle));
        assert_eq!(decide_beside(8, &[8, 8]), None);
        assert_eq!(decide_beside(8, &[]), None);
    }

    #[test]
    fn tenants_that_take_turns_have_none() {
        let alone = Tenant {
            by_turns: true,
            ..tenant(0, b"")
        };
        assert_eq!(
            decide(&alone, &TpcMask::first(8), &[neighbour(8, b"")]),
            None
        );
    }

    #[test]
    fn who_borrows_comes_last_and_an_owner_before() {
        let owner = [neighbour(8, b"0-3")];
        let (all, rest) = (TpcMask::first(8), TpcMask::parse(b"4-7").unwrap());
        assert_eq!(
            decide(&tenant(8, b""), &all, &owner),
            Some(Precedence::Last)
        );
        assert_eq!(
            decide(&tenant(0, b""), &all, &owner),
            Some(Precedence::Last)
        );
        assert_eq!(
            decide(&tenant(8, b""), &rest, &owner),
            Some(Precedence::Middle)
        );
        assert_eq!(
            decide(&tenant(0, b""), &rest, &owner),
            Some(Precedence::First)
        );
        let other = [neighbour(8, b"")];
        assert_eq!(
            decide(&tenant(8, b"0-3"), &all, &other),
            Some(Precedence::Middle)
        );
        let own = TpcMask::parse(b"0-3").unwrap();
        assert_eq!(
            decide(&tenant(8, b"0-3"), &own, &[neighbour(0, b"")]),
            Some(Precedence::First)
        );
        assert_eq!(decide(&tenant(8, b"0-3"), &own, &[]), None);
    }
}
