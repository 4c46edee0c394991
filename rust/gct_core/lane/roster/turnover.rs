// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Decides who gives its slot of a roster to a tenant that waits for one, and who is the next.
//!
//! ```text
//! a slot is free, and the owner has fewer than are free:   the tenant gets it
//! else who has waited longest, of those that find one,
//!     gets one of the latest rank, the longest stay first,
//!     its owner has members:                  among these, with a stay of STAY
//!     another owner has more than one:        among those of the owner with most members
//!     each owner has one:                     among those without TPCs of their own, with a stay of STAY
//! ```
//!
//! An owner's first tenant never waits while another owner has two slots. Members with TPCs that
//! are reserved for them alone give none up, nor does the last member of an owner with a quota: a
//! quota is a guarantee. The others share the slots in turn, so with `n` of them each has one again
//! after at most `n / MEMBERS_MAX * STAY` and two rounds for each.
//!
//! Who finds nobody that gives it a slot keeps its place, and delays nobody: one may have to wait
//! for its own siblings.

use super::Member;
use crate::ids::Owner;
use crate::units::{Ns, Sat};
use core::cmp::Reverse;

/// How long a member keeps its slot from others that are as entitled to it. Far longer than a
/// round of the thread, so that turnover costs little, and short beside what users notice.
pub const STAY: Ns = Ns(100_000_000);

/// How long the first of those that wait is waited for. It looks in every round.
const ABSENT_MAX: Ns = Ns(20_000_000);

/// A place among the tenants that wait for a slot. A smaller number is an earlier place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(u64);

/// The tenants that wait for a slot.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Waiters {
    last: Sat<u64>,
    /// The first of them, and when it looked last.
    first: Option<(Ticket, Ns)>,
}

impl Waiters {
    /// Returns the slot that `giver` finds for a tenant, if that is the first of those that find
    /// one. A tenant without a ticket gets one.
    ///
    /// A tenant is the first when a look of it finds nobody with an earlier ticket, and none comes
    /// until its next look.
    pub(super) fn next(
        &mut self,
        ticket: &mut Option<Ticket>,
        now: Ns,
        giver: impl FnOnce() -> Option<usize>,
    ) -> Option<usize> {
        let own = *ticket.get_or_insert_with(|| self.draw());
        let is_here = |(_, seen): &(Ticket, Ns)| now - *seen < ABSENT_MAX;
        let first = self.first.filter(is_here).map(|(first, _)| first);
        if first.is_some_and(|first| first < own) {
            return None;
        }
        let slot = giver();
        if slot.is_some() {
            self.first = Some((own, now));
        } else if first == Some(own) {
            self.first = None;
        }
        slot.filter(|_| first == Some(own))
    }

    /// Records that a tenant waits no longer.
    pub(super) fn leave(&mut self, ticket: &mut Option<Ticket>) {
        let left = ticket.take();
        if self.first.is_some_and(|(first, _)| Some(first) == left) {
            self.first = None;
        }
    }

    fn draw(&mut self) -> Ticket {
        self.last += 1;
        Ticket(self.last.0)
    }
}

/// Returns the slot that the next tenant of an owner gets, if somebody gives one up. `crowd` is the
/// owner with most members, if it has more than one.
pub(super) fn giver(
    slots: &[Option<Member>],
    owner: Owner,
    crowd: Option<Owner>,
    now: Ns,
) -> Option<usize> {
    let has_stayed = |member: &Member| now - member.since >= STAY;
    if number_of(slots, owner) > Sat(0) {
        return first_of(slots, |member| member.owner == owner && has_stayed(member));
    }
    match crowd {
        Some(crowd) => first_of(slots, |member| member.owner == crowd),
        None => first_of(slots, |member| {
            member.standing.own.is_empty() && has_stayed(member)
        }),
    }
}

/// Returns the owner with most members, if it has more than one. O(members^2).
pub(super) fn crowd(slots: &[Option<Member>]) -> Option<Owner> {
    let (mut most, mut number) = (None, Sat(1));
    for member in slots.iter().flatten() {
        let own = number_of(slots, member.owner);
        if own > number {
            (most, number) = (Some(member.owner), own);
        }
    }
    most
}

/// Returns how many members an owner has.
fn number_of(slots: &[Option<Member>], owner: Owner) -> Sat<u32> {
    let mut number = Sat(0);
    for member in slots.iter().flatten() {
        number += u32::from(member.owner == owner);
    }
    number
}

/// Returns the slot of the first member to give way among those that `gives` names: of the latest
/// rank, and with the longest stay.
fn first_of(slots: &[Option<Member>], gives: impl Fn(&Member) -> bool) -> Option<usize> {
    let mut first = None;
    for (at, member) in (0..usize::MAX).zip(slots) {
        let Some(member) = member.filter(|m| m.standing.alone.is_empty() && gives(m)) else {
            continue;
        };
        let order = (Reverse(member.standing.rank), member.since);
        if first.is_none_or(|(_, known)| order < known) {
            first = Some((at, order));
        }
    }
    first.map(|(at, _)| at)
}
