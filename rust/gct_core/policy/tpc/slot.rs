// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Divides time among owners of TPCs whose programs count on more than these.
//!
//! A launch whose blocks may wait for each other, and that its owner's TPCs are too few for, takes
//! TPCs of other owners or waits ([`fit`](super::fit)). So two such programs beside each other have
//! the TPCs of both by turns, and each has as much of the time as it has of the TPCs:
//!
//! ```text
//! the reserved TPCs of all owners, in the order of their last ones:   A A A B B . . .
//! slot of A in each PERIOD of so many parts as the GPU has TPCs:      0 1 2
//! slot of B:                                                                3 4
//! ```
//!
//! Slots of two owners never overlap, and nobody has to tell another of them: all see the same
//! reservations and the same clock.

use super::{Neighbour, Tenant};
use crate::mask::TpcMask;
use crate::units::{mul_div, Ns};

/// How often each owner has its slot. It is long beside most launches, and short beside what the
/// user of a service notices.
const PERIOD: Ns = Ns(10_000_000);

/// Returns whether a tenant has its slot, on a GPU of `all` TPCs. A tenant without TPCs of its own
/// has none.
pub fn has_slot(tenant: &Tenant, neighbours: &[Neighbour], all: u32, now: Ns) -> bool {
    let Some(last) = tenant.own.last() else {
        return false;
    };
    let earlier = |own: &TpcMask| own.last().is_some_and(|other| other < last);
    let before = neighbours.iter().map(|neighbour| neighbour.own);
    let before = before
        .filter(earlier)
        .fold(TpcMask::EMPTY, |sum, own| sum.or(&own));
    let from = u64::from(before.without(&tenant.own).count());
    let within = now - PERIOD * (now / PERIOD);
    let part = mul_div(within.get(), u64::from(all), PERIOD.get()).unwrap_or(0);
    let parts = u64::from(tenant.own.count());
    part >= from && part.saturating_sub(from) < parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::tpc::Rank;
    use proptest::prelude::*;
    use std::vec::Vec;

    const ALL: u32 = 66;

    proptest! {
        /// Checks that each owner has its part of the time, to a TPC, and that no two have a slot
        /// at the same time.
        #[test]
        fn each_owner_has_its_part_of_the_time(
            owners in prop::collection::vec(prop::option::of(0usize..5), ALL as usize), begin: u32,
        ) {
            let own = |owner: usize| {
                let mut own = TpcMask::EMPTY;
                let is_its = |(_, it): &(usize, &Option<usize>)| **it == Some(owner);
                owners.iter().enumerate().filter(is_its).for_each(|(tpc, _)| own.set(tpc));
                own
            };
            let own: Vec<_> = (0..5).map(own).collect();
            let mut slots = [0; 5];
            for part in 0..ALL {
                let now = Ns(u64::from(begin)) * PERIOD.get() + (PERIOD * u64::from(part) + PERIOD / 2) / u64::from(ALL);
                let mut any = false;
                for (owner, slots) in slots.iter_mut().enumerate() {
                    let tenant = Tenant {
                        allowed: TpcMask::first(ALL as usize),
                        own: own[owner],
                        steal: true,
                        rank: Rank::FIRST,
                        by_turns: false,
                    };
                    let others: Vec<_> = (0..5)
                        .filter(|other| *other != owner)
                        .map(|other| Neighbour { own: own[other], ..Neighbour::NONE })
                        .collect();
                    let has = has_slot(&tenant, &others, ALL, now);
                    prop_assert!(!(has && any), "two at {part}");
                    any |= has;
                    *slots += u32::from(has);
                }
            }
            for (slots, own) in slots.iter().zip(&own) {
                prop_assert_eq!(*slots, own.count());
            }
        }
    }

    /// Checks that processes of one owner, which see each other's TPCs as their own, share a slot.
    #[test]
    fn siblings_share_a_slot() {
        let own = TpcMask::first(33);
        let tenant = Tenant {
            allowed: TpcMask::first(66),
            own,
            steal: true,
            rank: Rank::FIRST,
            by_turns: false,
        };
        let sibling = Neighbour {
            own,
            ..Neighbour::NONE
        };
        assert!(has_slot(&tenant, &[sibling], ALL, Ns(0)));
        assert!(!has_slot(&tenant, &[sibling], ALL, PERIOD / 2 + Ns(1)));
    }
}
