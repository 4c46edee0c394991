// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Checks what tenants that one thread serves see of each other.

use super::turnover::STAY;
use super::*;
use crate::ids::ProcKey;
use crate::lane::testing::Heap;
use crate::policy::patience::BEAT_MAX;
use crate::policy::tpc::{grant, Tenant};
use crate::units::{Priority, Weight};
use std::vec;
use std::vec::Vec;

const MS: u64 = 1_000_000;

fn roster() -> Roster<Heap> {
    Roster::new(vec![None; MEMBERS_MAX])
}

fn owner(number: u32) -> Owner {
    Owner::Proc(ProcKey {
        tgid: number,
        start_time_ns: 1,
    })
}

fn list(text: &str) -> TpcMask {
    TpcMask::parse(text.as_bytes()).unwrap_or(TpcMask::EMPTY)
}

/// Returns the limits of a tenant with reserved TPCs and a priority, on a GPU of ten TPCs.
fn standing(own: &str, priority: u8) -> Standing {
    Standing {
        own: list(own),
        alone: TpcMask::EMPTY,
        allowed: list("0-9"),
        lends: true,
        confined: false,
        rank: Rank {
            best_effort: false,
            priority: Priority(priority),
        },
        weight: None,
    }
}

fn company(of: Owner, standing: Standing) -> Company<Heap> {
    let seats = Seats {
        neighbours: vec![Neighbour::NONE; MEMBERS_MAX],
        slots: vec![0; MEMBERS_MAX],
        rivals: vec![Rival::default(); MEMBERS_MAX],
        numbers: vec![0; MEMBERS_MAX],
    };
    Company::new(of, standing, seats)
}

/// Returns the company of a tenant that has joined.
fn member(roster: &mut Roster<Heap>, number: u32, standing: Standing) -> Company<Heap> {
    let mut company = company(owner(number), standing);
    company.attend(roster, Ns(0));
    company
}

fn slot(company: &Company<Heap>) -> Option<usize> {
    company.seat.map(|seat| seat.slot)
}

/// Shows the others whether a tenant has work.
fn show(roster: &mut Roster<Heap>, company: &mut Company<Heap>, busy: bool, now: Ns) {
    company.set_busy(busy, now);
    roster.publish(company);
}

/// Returns the TPCs that a tenant is granted for work of 100 us.
fn granted(roster: &Roster<Heap>, company: &mut Company<Heap>, now: Ns) -> TpcMask {
    company.see(roster, now);
    let (rank, standing) = (company.rank(), company.standing);
    let around = company.look_around(now);
    let tenant = Tenant {
        allowed: standing.allowed,
        own: around.own,
        steal: true,
        rank,
        by_turns: around.by_turns,
    };
    grant(&tenant, Ns(100_000), around.neighbours)
}

/// A quota is lent while its owner is silent, and comes back with its work.
#[test]
fn reserved_tpcs_are_lent_to_others_while_their_owner_is_silent() {
    let mut roster = roster();
    let mut service = member(&mut roster, 1, standing("0-3", 8));
    let mut batch = member(&mut roster, 2, standing("", 8));
    let mut now = Ns(1000 * MS);
    assert_eq!(granted(&roster, &mut batch, now), list("0-9"));
    show(&mut roster, &mut service, true, now);
    assert_eq!(granted(&roster, &mut batch, now), list("4-9"));
    assert_eq!(granted(&roster, &mut service, now), list("0-9"));
    now += Ns(MS);
    show(&mut roster, &mut service, false, now);
    assert_eq!(granted(&roster, &mut batch, now), list("4-9"), "just now");
    now += Ns(100 * MS);
    assert_eq!(granted(&roster, &mut batch, now), list("0-9"));
    show(&mut roster, &mut service, true, now);
    assert_eq!(granted(&roster, &mut batch, now), list("4-9"), "it is back");
    service.quit(&mut roster);
    assert_eq!(granted(&roster, &mut batch, now), list("0-9"), "it is gone");
}

/// A tenant of a later rank waits for one that has work and shows signs of life.
#[test]
fn later_ranks_wait_for_earlier_ones() {
    let mut roster = roster();
    let mut service = member(&mut roster, 1, standing("", 0));
    let mut batch = member(&mut roster, 2, standing("", 8));
    let now = Ns(1000 * MS);
    show(&mut roster, &mut batch, true, now);
    assert_eq!(granted(&roster, &mut service, now), list("0-9"));
    show(&mut roster, &mut service, true, now);
    assert!(granted(&roster, &mut batch, now).is_empty());
    let silent = now + BEAT_MAX;
    assert_eq!(granted(&roster, &mut batch, silent), list("0-9"));
    batch.set_standing(owner(2), standing("", 0));
    batch.attend(&mut roster, now);
    assert_eq!(granted(&roster, &mut batch, now), list("0-9"));
}

/// Processes without number of one owner leave room for others. Those that are not seen yield.
#[test]
fn a_crowd_does_not_hide_a_neighbour() {
    let mut roster = roster();
    let mut crowd: Vec<_> = (0..1000)
        .map(|_| member(&mut roster, 1, standing("", 0)))
        .collect();
    let seen = crowd.iter().filter(|one| one.seat.is_some()).count();
    assert_eq!(seen, MEMBERS_MAX / 2);
    let mut service = member(&mut roster, 2, standing("0-3", 8));
    assert_eq!(service.rank().priority, Priority(8));
    let now = Ns(1000 * MS);
    for one in &mut crowd {
        show(&mut roster, one, true, now);
    }
    assert_eq!(granted(&roster, &mut service, now), list("0-3"));
    show(&mut roster, &mut service, true, now);
    let hidden = crowd.last_mut().unwrap();
    assert_eq!(hidden.rank(), Rank::LAST);
    assert!(granted(&roster, hidden, now).is_empty());
    // One of them takes the slot of one that ends.
    crowd[0].quit(&mut roster);
    let last = crowd.last_mut().unwrap();
    last.attend(&mut roster, now);
    assert_eq!(last.rank().priority, Priority(0));
}

/// A rival keeps what is known of it while others come and go, and another one in its slot is new.
#[test]
fn rivals_stay_with_their_slots() {
    let mut roster = roster();
    let weighted = |weight| Standing {
        weight: Some(Weight(weight)),
        ..standing("", 8)
    };
    let mut me = member(&mut roster, 1, weighted(100));
    let mut other = member(&mut roster, 2, weighted(300));
    let now = Ns(1000 * MS);
    let sign = Sign {
        contends_until: Ns::MAX,
        runs: true,
        ..Sign::default()
    };
    other.publish_sign(sign);
    show(&mut roster, &mut other, true, now);
    me.see(&roster, now);
    let beside = |me: &mut Company<Heap>| {
        let rivals = me.rivals(now).iter();
        let weighted = rivals.clone().filter(|rival| rival.is_weighted()).count();
        (weighted, rivals.filter(|rival| rival.is_beside()).count())
    };
    assert_eq!(beside(&mut me), (1, 1));
    let sibling = member(&mut roster, 1, weighted(100));
    me.see(&roster, now);
    assert_eq!(beside(&mut me), (2, 1));
    other.quit(&mut roster);
    let stranger = member(&mut roster, 3, standing("", 8));
    assert_eq!(slot(&stranger), Some(1));
    me.see(&roster, now);
    assert_eq!(beside(&mut me), (1, 0));
    assert_eq!(me.seats.numbers[..4], [0, 4, 3, 0]);
    assert_eq!(slot(&sibling), Some(2));
}

#[test]
fn a_tenant_that_moves_to_another_owner_joins_again() {
    let mut roster = roster();
    let mut one = member(&mut roster, 1, standing("0-3", 8));
    one.set_standing(owner(2), standing("", 8));
    one.attend(&mut roster, Ns(MS));
    let mut other = member(&mut roster, 2, standing("", 8));
    other.see(&roster, Ns(MS));
    // Siblings of the same rank without TPCs of their own are not neighbours.
    assert_eq!(other.look_around(Ns(MS)).neighbours, []);
    one.set_standing(owner(1), standing("0-3", 8));
    one.attend(&mut roster, Ns(MS));
    other.see(&roster, Ns(MS));
    assert_eq!(other.look_around(Ns(MS)).neighbours[0].own, list("0-3"));
}

/// Has all tenants look once, in their order.
fn attend(roster: &mut Roster<Heap>, all: &mut [Company<Heap>], now: Ns) {
    for one in all {
        one.attend(roster, now);
    }
}

/// Crowds of seven owners fill the roster. The first process of an eighth one gets a slot at once,
/// and so does that of a quota.
#[test]
fn crowds_of_some_owners_make_room_for_another() {
    let mut roster = roster();
    let mut all: Vec<_> = (0..7 * MEMBERS_MAX)
        .map(|at| member(&mut roster, 1 + at as u32 / 64, standing("", 0)))
        .collect();
    assert!(roster.slots.iter().all(Option::is_some), "nothing is free");
    for newcomer in [8, 9] {
        all.push(company(owner(newcomer), standing("0-3", 8)));
        let mut now = Ns(1);
        while all.last().unwrap().seat.is_none() {
            now += Ns(1);
            attend(&mut roster, &mut all, now);
            assert!(now < Ns(1000), "{newcomer} waits");
        }
    }
    assert!(all[448].seat.is_some(), "the one before keeps its slot");
}

/// Two hundred owners share the slots: each has one again and again. One with a quota keeps its.
#[test]
fn owners_without_number_have_slots_in_turn() {
    let mut roster = roster();
    let mut all: Vec<_> = (0..200)
        .map(|at| {
            member(
                &mut roster,
                at,
                standing(if at == 7 { "0-3" } else { "" }, 8),
            )
        })
        .collect();
    let round = Ns(MS);
    let mut now = Ns(0);
    let mut had = vec![Ns(0); all.len()];
    while now < STAY * 20 {
        now += round;
        attend(&mut roster, &mut all, now);
        assert!(all[7].seat.is_some(), "a quota is kept");
        for (one, had) in all.iter().zip(&mut had) {
            *had += if one.seat.is_some() { round } else { Ns(0) };
        }
    }
    had.remove(7);
    // 63 slots for 199 tenants.
    let (least, most) = (had.iter().min().unwrap(), had.iter().max().unwrap());
    assert!(
        *least > now / 6 && *most < now / 2,
        "{least:?} to {most:?} of {now:?}"
    );
}

/// Checks that nobody waits longer than its turn, however short the rounds are beside STAY. Each
/// change of a slot takes two rounds.
#[test]
fn nobody_waits_longer_for_a_slot_than_its_turn() {
    for round in [Ns(100_000), Ns(302_000), Ns(333_333), Ns(500_000), Ns(MS)] {
        let mut roster = roster();
        let mut all: Vec<_> = (0..200)
            .map(|at| member(&mut roster, at, standing("", 8)))
            .collect();
        let bound = STAY * 4 + round * 2 * 200;
        let (mut now, mut had) = (Ns(0), vec![Ns(0); all.len()]);
        while now < STAY * 12 {
            now += round;
            attend(&mut roster, &mut all, now);
            for (at, had) in had.iter_mut().enumerate() {
                *had = if all[at].seat.is_some() { now } else { *had };
                assert!(now - *had <= bound, "{at} waits, rounds of {round:?}");
            }
        }
    }
}

/// More processes of one owner than it may show have its slots in turn. Nobody else's change.
#[test]
fn siblings_take_turns_with_the_slots_of_their_owner() {
    let mut roster = roster();
    let mut other = member(&mut roster, 2, standing("", 8));
    let mut all: Vec<_> = (0..40)
        .map(|_| member(&mut roster, 1, standing("", 8)))
        .collect();
    let seat = other.seat;
    let mut never = all.iter().map(|one| one.seat.is_none()).collect::<Vec<_>>();
    assert_eq!(never.iter().filter(|never| **never).count(), 8);
    let mut now = Ns(0);
    while now < STAY * 3 {
        now += Ns(MS);
        attend(&mut roster, &mut all, now);
        other.attend(&mut roster, now);
        for (one, never) in all.iter().zip(&mut never) {
            *never &= one.seat.is_none();
        }
    }
    assert_eq!(other.seat, seat);
    assert!(!never.contains(&true), "{never:?}");
}

/// A process without a slot yields to the processes of its owner that have one.
#[test]
fn who_is_not_seen_yields_to_its_siblings() {
    let mut roster = roster();
    let mut all: Vec<_> = (0..=MEMBERS_MAX / 2)
        .map(|_| member(&mut roster, 1, standing("0-3", 8)))
        .collect();
    let now = Ns(1000 * MS);
    let mut hidden = all.pop().unwrap();
    assert_eq!(hidden.seat, None);
    assert_eq!(granted(&roster, &mut hidden, now), list("0-9"));
    show(&mut roster, &mut all[0], true, now);
    assert!(granted(&roster, &mut hidden, now).is_empty());
    assert_eq!(granted(&roster, &mut all[1], now), list("0-9"));
}

/// One that waits first and dies does not keep the others waiting.
#[test]
fn who_waits_first_and_is_gone_is_not_waited_for() {
    let mut roster = roster();
    let mut crowd: Vec<_> = (0..2 * MEMBERS_MAX)
        .map(|at| member(&mut roster, at as u32 / 64, standing("", 8)))
        .collect();
    for at in 3..9 {
        crowd.push(member(&mut roster, at, standing("", 8)));
    }
    let full = |roster: &Roster<Heap>| roster.slots.iter().all(Option::is_some);
    let mut more = 10;
    while !full(&roster) {
        crowd.push(member(&mut roster, more, standing("", 8)));
        more += 1;
    }
    let mut dying = company(owner(1000), standing("", 8));
    let mut next = company(owner(1001), standing("", 8));
    dying.attend(&mut roster, Ns(MS));
    next.attend(&mut roster, Ns(MS));
    drop(dying);
    next.attend(&mut roster, Ns(2 * MS));
    assert_eq!(next.seat, None);
    for ms in [100, 101] {
        next.attend(&mut roster, Ns(ms * MS));
    }
    assert!(next.seat.is_some());
}

/// Who has lost its slot in this very pass yields to the one that has it, and to all others.
#[test]
fn who_has_lost_its_slot_sees_who_has_it() {
    let mut roster = roster();
    let mut all: Vec<_> = (0..7 * MEMBERS_MAX)
        .map(|at| member(&mut roster, 1 + at as u32 / 64, standing("", 8)))
        .collect();
    let mut now = Ns(1000 * MS);
    let mut service = company(owner(100), standing("", 0));
    while service.seat.is_none() {
        now += Ns(MS);
        attend(&mut roster, &mut all, now);
        service.attend(&mut roster, now);
        assert!(now < Ns(2000 * MS), "it waits");
    }
    let taken = slot(&service);
    show(&mut roster, &mut service, true, now);
    let loser = all.iter_mut().find(|one| slot(one) == taken);
    let loser = loser.expect("it has not looked since");
    assert!(granted(&roster, loser, now).is_empty());
    assert_eq!((loser.seat, loser.rank()), (None, Rank::LAST));
}
