// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Decides which processes take turns.

use crate::mask::TpcMask;
use crate::policy::tpc::Rank;
use crate::units::Weight;

/// What a process and a rival have to do with each other, by their limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Relation {
    /// Whether they have the same owner.
    pub sibling: bool,
    /// Whether they take turns: they have the same rank, no TPCs of their own, and a TPC in common.
    pub competes: bool,
    /// Whether they use the same TPCs when both run.
    pub overlaps: bool,
    /// Whether the rival is the first of two at the same position.
    pub first: bool,
    /// The rival's weight; `None` if nobody wrote one.
    pub weight: Option<Weight>,
}

/// The limits of a process that decide with whom it takes turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// A number of its owner.
    pub owner: u32,
    /// A number that no other process has.
    pub number: u32,
    /// Its rank.
    pub rank: Rank,
    /// The TPCs that are reserved for it.
    pub own: TpcMask,
    /// The TPCs that its mask allows.
    pub allowed: TpcMask,
    /// Its weight; `None` if nobody wrote one.
    pub weight: Option<Weight>,
}

impl Place {
    /// Returns the relation of this process to a rival.
    pub fn relation(&self, rival: &Self) -> Relation {
        let sibling = self.owner == rival.owner;
        let reserve = !self.own.is_empty() || !rival.own.is_empty();
        let common = !self.allowed.and(&rival.allowed).is_empty();
        Relation {
            sibling,
            competes: self.rank == rival.rank && !reserve && common,
            overlaps: !self.beside(rival).and(&rival.beside(self)).is_empty(),
            first: rival.number < self.number,
            weight: rival.weight,
        }
    }

    /// Returns the TPCs that it may use while `other` has work.
    fn beside(&self, other: &Self) -> TpcMask {
        let theirs = match self.owner == other.owner {
            true => TpcMask::EMPTY,
            false => other.own,
        };
        self.allowed.without(&theirs).or(&self.own)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Priority;

    fn place(number: u32, own: &str, allowed: &str) -> Place {
        let list = |text: &str| TpcMask::parse(text.as_bytes()).unwrap_or(TpcMask::EMPTY);
        Place {
            owner: number,
            number,
            rank: Rank {
                best_effort: false,
                priority: Priority(8),
            },
            own: list(own),
            allowed: list(allowed),
            weight: None,
        }
    }

    #[test]
    fn equals_without_tpcs_of_their_own_take_turns_on_common_ones() {
        let me = place(2, "", "0-9");
        let with = |other: &Place| {
            let relation = me.relation(other);
            (relation.competes, relation.overlaps, relation.first)
        };
        assert_eq!(with(&place(1, "", "9-20")), (true, true, true));
        assert_eq!(with(&place(3, "", "10-20")), (false, false, false));
        assert_eq!(with(&place(3, "0-9", "0-9")), (false, false, false));
        assert_eq!(with(&place(3, "0-4", "0-9")), (false, true, false));
        let earlier = Place {
            rank: Rank {
                best_effort: false,
                priority: Priority(0),
            },
            ..place(1, "", "0-9")
        };
        assert_eq!(with(&earlier), (false, true, true));
        let sibling = Place {
            owner: 2,
            ..place(3, "0-9", "0-9")
        };
        assert!(me.relation(&sibling).sibling && me.relation(&sibling).overlaps);
    }
}
