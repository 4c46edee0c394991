// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Decides who gives its slot of a roster to a tenant that waits for one, and who is the next.
//!
//! ```text
//! a slot is free, and the owner has fewer than are free:   the tenant gets it
//! else the tenant that has waited longest gets one of the latest rank, the longest stay first,
//!     its owner has members:                  among these, with a stay of STAY
//!     another owner has more than one:        among those of the owner with most members
//!     each owner has one:                     among those without TPCs of their own, with a stay of STAY
//! ```
//!
//! An owner's first tenant never waits while another owner has two slots. Members with TPCs that
//! are reserved for them alone give none up, nor does the last member of an owner with a quota: a
//! quota is a guarantee. The others share the slots in turn, so with `n` of them each has one again
//! after at most `n / MEMBERS_MAX * STAY` and some rounds.
//!
//! If there is nobody to give a slot to the first of those that wait, it waits behind them all: one
//! that has to wait for its own siblings delays nobody else.

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
    /// Returns whether the tenant is the first of those that wait. It becomes the last then: if it
    /// gets no slot now, others are next. A tenant without a ticket gets one.
    ///
    /// A tenant is the first when a look of it finds nobody with an earlier ticket, and none comes
    /// until its next look.
    pub(super) fn is_next(&mut self, ticket: &mut Option<Ticket>, now: Ns) -> bool {
        let own = *ticket.get_or_insert_with(|| self.draw());
        match self.first {
            Some((first, _)) if first == own => {
                *ticket = Some(self.draw());
                self.first = None;
                true
            }
            Some((first, seen)) if first < own && now - seen < ABSENT_MAX => false,
            _ => {
                self.first = Some((own, now));
                false
            }
        }
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

/// Returns the slot that the next tenant of an owner gets, if somebody gives one up.
pub(super) fn giver(slots: &[Option<Member>], owner: Owner, now: Ns) -> Option<usize> {
    let has_stayed = |member: &Member| now - member.since >= STAY;
    if number_of(slots, owner) > Sat(0) {
        return first_of(slots, |member| member.owner == owner && has_stayed(member));
    }
    let (mut most, mut number) = (owner, Sat(0));
    for member in slots.iter().flatten() {
        let own = number_of(slots, member.owner);
        if own > number {
            (most, number) = (member.owner, own);
        }
    }
    match number > Sat(1) {
        true => first_of(slots, |member| member.owner == most),
        false => first_of(slots, |member| {
            member.standing.own.is_empty() && has_stayed(member)
        }),
    }
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
