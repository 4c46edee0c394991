// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests that memory is divided within the room, in order of rank, and without haste.

use super::*;
use crate::units::Priority;
use proptest::prelude::*;
use std::vec::Vec;

const GIB: u64 = 1 << 30;
/// 64 GiB, of which 2 stay free.
const MEMORY: Bytes = Bytes(64 * GIB);

fn rank(priority: u8) -> Rank {
    Rank {
        best_effort: false,
        priority: Priority(priority),
    }
}

/// An elastic owner with `low` and `limit` in GiB, all of whose memory can leave.
fn elastic(priority: u8, low: u64, limit: u64, device: u64, host: u64) -> Claim {
    Claim {
        rank: rank(priority),
        low: Some(Bytes(low * GIB)),
        limit: Bytes(limit * GIB),
        fixed: Bytes(0),
        device: Bytes(device * GIB),
        host: Bytes(host * GIB),
        rests: false,
    }
}

fn firm(device: u64) -> Claim {
    Claim {
        low: None,
        fixed: Bytes(device * GIB),
        ..elastic(0, 0, 64, device, 0)
    }
}

/// Returns the targets of all claims, in bytes.
fn targets(claims: &[Claim]) -> Vec<u64> {
    let all = || claims.iter().copied();
    all().map(|own| target(MEMORY, all(), &own).get()).collect()
}

fn in_gib(claims: &[Claim]) -> Vec<u64> {
    targets(claims).iter().map(|bytes| bytes / GIB).collect()
}

#[test]
fn the_lesser_has_what_a_firm_owner_leaves() {
    for (firm_now, expected) in [(0, 40), (20, 40), (22, 40), (30, 32), (57, 5), (64, 5)] {
        let claims = [firm(firm_now), elastic(8, 5, 40, 40, 0)];
        assert_eq!(in_gib(&claims)[1], expected, "{firm_now}");
    }
}

/// Checks that of two owners who want more than there is the earlier one has all that it wants.
#[test]
fn earlier_ranks_are_served_first() {
    let first = elastic(0, 10, 50, 30, 10);
    let second = elastic(8, 5, 40, 20, 20);
    assert_eq!(in_gib(&[first, second]), [40, 22]);
    assert_eq!(in_gib(&[second, first]), [22, 40]);
    // Two of one rank divide what is there in proportion to what they want beyond their floors.
    let equal = Claim {
        rank: rank(8),
        ..first
    };
    assert_eq!(in_gib(&[equal, second]), [31, 30]);
}

/// Checks that memory of who rests is had by who wants it, and stays where nobody does.
#[test]
fn who_rests_gives_way_to_who_works() {
    let rests = Claim {
        rests: true,
        ..elastic(0, 10, 50, 40, 0)
    };
    assert_eq!(in_gib(&[rests, elastic(8, 5, 60, 20, 0)])[0], 40);
    assert_eq!(in_gib(&[rests, elastic(8, 5, 60, 20, 20)]), [22, 40]);
    let works = Claim {
        rests: false,
        ..rests
    };
    assert_eq!(in_gib(&[works, elastic(8, 5, 60, 20, 20)]), [40, 22]);
}

#[test]
fn what_cannot_leave_is_never_asked_for() {
    let pinned = Claim {
        fixed: Bytes(8 * GIB),
        ..elastic(8, 2, 40, 20, 0)
    };
    let [_, allowed] = targets(&[firm(63), pinned])[..] else {
        panic!()
    };
    assert_eq!(allowed, 8 * GIB + SLACK.get());
}

/// Checks that less is in force at once, and more only after it was so for some looks.
#[test]
fn less_is_at_once_and_more_is_later() {
    let mut balance = Balance::default();
    let mut looks = |target: u64, count: usize| {
        let all = (0..count).map(|_| balance.allow(Bytes(target)).get());
        all.collect::<Vec<_>>()
    };
    assert_eq!(looks(30, 3), [30; 3]);
    assert_eq!(looks(10, 1), [10]);
    let later = looks(30, 12);
    let at = later.iter().position(|allowed| *allowed == 30);
    assert!((5..=10).contains(&at.unwrap()), "{later:?}");
    // What comes and goes within five looks moves nothing.
    let mut seen = looks(10, 1);
    for _ in 0..20 {
        seen.extend(looks(30, 4));
        seen.extend(looks(10, 1));
    }
    assert!(seen.iter().all(|allowed| *allowed == 10), "{seen:?}");
    balance.forget();
    assert_eq!(balance.allow(Bytes(50)), Bytes(50));
}

#[test]
fn an_owner_rests_after_ten_looks_without_work() {
    let mut balance = Balance::default();
    balance.worked(Ns(7), false);
    for look in 1..=20 {
        balance.worked(Ns(7), false);
        assert_eq!(balance.rests(), look >= 10, "{look}");
    }
    balance.worked(Ns(7), true);
    assert!(!balance.rests());
    for _ in 0..20 {
        balance.worked(Ns(7), false);
    }
    balance.worked(Ns(8), false);
    assert!(!balance.rests());
}

prop_compose! {
    fn any_claim()(
        low in prop::option::of(0..70u64), priority in 0..3u8, best_effort: bool, limit in 0..70u64,
        fixed in 0..20u64, more in 0..40u64, host in 0..40u64, rests: bool,
    ) -> Claim {
        Claim {
            rank: Rank { best_effort, priority: Priority(priority) },
            low: low.map(|low| Bytes(low * GIB)),
            limit: Bytes(limit * GIB),
            fixed: Bytes(fixed * GIB),
            device: Bytes((fixed + more) * GIB),
            host: Bytes(host * GIB),
            rests,
        }
    }
}

proptest! {
    /// Checks that a target lies between floor and ceiling, that targets exceed the room only by
    /// floors, and that who is served has left nobody of an earlier rank short.
    #[test]
    fn targets_keep_the_room_and_the_order(claims in prop::collection::vec(any_claim(), 1..9)) {
        let targets = targets(&claims);
        let owners: Vec<_> = claims.iter().zip(&targets).collect();
        let room = MEMORY.get() - MEMORY.get() / SPARE_PART;
        let floors: u64 = claims.iter().map(|claim| claim.steps()[0].get()).sum();
        prop_assert!(targets.iter().sum::<u64>() <= room.max(floors));
        for (claim, target) in &owners {
            let [floor, _, wanted, ceiling] = claim.steps();
            prop_assert!((floor.get()..=ceiling.get()).contains(*target));
            if claim.low.is_none() {
                prop_assert_eq!(**target, wanted.get());
            }
        }
        let works = |claim: &&(&Claim, &u64)| claim.0.low.is_some() && !claim.0.rests;
        for (claim, target) in owners.iter().filter(works) {
            let [floor, _, wanted, _] = claim.steps();
            for (other, of_other) in owners.iter().filter(works) {
                let is_short = **of_other < other.steps()[2].get();
                if other.rank < claim.rank && is_short {
                    prop_assert!(**target <= floor.get(), "{:?} {:?}", other, claim);
                }
            }
            prop_assert!(**target >= floor.get().min(wanted.get()));
        }
    }

    /// Checks that no memory is left over while an elastic owner may have more, however many owners
    /// there are. Each target is rounded down.
    #[test]
    fn memory_is_left_over_for_nobody(
        claims in prop::collection::vec(any_claim(), 1..200), memory in 1..6_000u64,
    ) {
        let memory = Bytes(memory * GIB);
        let of = |claim: &Claim| target(memory, claims.iter().copied(), claim).get();
        let had: u64 = claims.iter().map(of).sum();
        let room = (memory - memory / SPARE_PART).get();
        let may_have_more = |claim: &&Claim| of(claim) + 1 < claim.steps()[3].get();
        if let Some(short) = claims.iter().find(may_have_more) {
            // CAST: at most 200.
            prop_assert!(had + claims.len() as u64 >= room, "{had} of {room}: {short:?}");
        }
    }

    /// Checks that more memory of a firm owner never leaves an elastic one more.
    #[test]
    fn a_firm_owner_that_grows_takes(
        claims in prop::collection::vec(any_claim(), 1..6), own in any_claim(), less in 0..64u64, more in 0..64u64,
    ) {
        let own = Claim { low: Some(own.low.unwrap_or(Bytes(0))), ..own };
        let with = |device| {
            let all = claims.iter().copied().chain([own, firm(device)]);
            target(MEMORY, all, &own)
        };
        prop_assert!(with(less + more) <= with(less));
    }

    /// Checks that what is allowed is a target of one of the last ten looks, and no more than any
    /// of the last five.
    #[test]
    fn what_is_allowed_is_a_late_minimum(seen in prop::collection::vec(0u64..100, 1..60)) {
        let mut balance = Balance::default();
        for (at, target) in seen.iter().enumerate() {
            let allowed = balance.allow(Bytes(*target)).get();
            let last = |count: usize| &seen[(at + 1).saturating_sub(count)..=at];
            prop_assert!(last(10).contains(&allowed));
            prop_assert!(last(5).iter().all(|target| allowed <= *target));
        }
    }
}
