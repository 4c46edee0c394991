// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Lets the tenants of a GPU see each other where one thread serves them all.
//!
//! Terminology
//!   roster   the tenants that others see, each with its limits and its activity
//!   company  the roster as one tenant sees it: its neighbours and its rivals
//!
//! ```text
//! for each tenant, those of an earlier rank first:
//!     company.see(roster)
//!     Governor::begin, Lane::publish of its channels, Governor::end
//!     roster.publish(company)          # so a tenant of a later rank sees what was just submitted
//! ```
//!
//! A roster has few slots. The thread writes it, so no tenant can lie in it. A tenant without a slot
//! is not seen. It yields to all that are, as if it had the last rank and no TPCs of its own, and
//! takes part in no turns. So slots change hands ([`turnover`]): every tenant has one again and again.

pub mod turnover;

use super::decide::Others;
use super::governor::Peers;
use super::limits::LaunchLimits;
use super::standing::{Activity, Standing};
use super::words::Storage;
use crate::ids::Owner;
use crate::mask::TpcMask;
use crate::policy::share::{Relation, Rival, Sign};
use crate::policy::tpc::{Neighbour, Rank};
use crate::topology::Topology;
use crate::units::{Ns, Sat};
use turnover::{Ticket, Waiters};

/// The most tenants of a GPU that others see: as many as MPS has clients, and some more.
pub const MEMBERS_MAX: usize = 64;

/// A tenant that others see.
#[derive(Clone, Copy, Debug)]
pub struct Member {
    owner: Owner,
    /// A number of the owner, and one that no other member ever had.
    owner_number: u32,
    number: u32,
    standing: Standing,
    activity: Activity,
    sign: Sign,
    /// When it got its slot.
    since: Ns,
}

/// The tenants of a GPU that others see.
pub struct Roster<S: Storage> {
    slots: S::Slots<Option<Member>>,
    /// Changes with each member and each member's limits.
    generation: u64,
    last_number: u32,
    waiters: Waiters,
    /// The owner with most members, if it has more than one, and the generation when it was found.
    crowd: (u64, Option<Owner>),
}

/// A tenant's place in a roster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seat {
    slot: usize,
    /// The number of the member. Another one may have the slot later.
    number: u32,
}

impl<S: Storage> Roster<S> {
    /// Creates an empty roster. `slots` has [`MEMBERS_MAX`] slots.
    pub fn new(slots: S::Slots<Option<Member>>) -> Self {
        Self {
            slots,
            generation: 1,
            last_number: 0,
            waiters: Waiters::default(),
            crowd: (0, None),
        }
    }

    fn change(&mut self) {
        self.generation = self.generation.wrapping_add(1);
    }

    /// Returns the number of an owner, if it has a member.
    fn number_of(&self, owner: Owner) -> Option<u32> {
        let mut members = self.slots.iter().flatten();
        let known = members.find(|member| member.owner == owner);
        known.map(|member| member.owner_number)
    }

    /// Adds a tenant, if its owner leaves as many slots for others as it has, or in place of
    /// another member if it is the tenant's turn. `ticket` is its place among those that wait.
    pub fn join(
        &mut self,
        owner: Owner,
        standing: Standing,
        ticket: &mut Option<Ticket>,
        now: Ns,
    ) -> Option<Seat> {
        let (mut free, mut own) = (Sat(0usize), Sat(0usize));
        for slot in self.slots.iter() {
            match slot {
                None => free += 1,
                Some(member) => own += usize::from(member.owner == owner),
            }
        }
        let slot = match own < free {
            true => self.slots.iter().position(Option::is_none),
            false => {
                if self.crowd.0 != self.generation {
                    self.crowd = (self.generation, turnover::crowd(&self.slots));
                }
                let (_, crowd) = self.crowd;
                let giver = || turnover::giver(&self.slots, owner, crowd, now);
                self.waiters.next(ticket, now, giver)
            }
        };
        let slot = slot?;
        self.waiters.leave(ticket);
        let number = self.last_number.checked_add(1).unwrap_or(1);
        let owner_number = self.number_of(owner).unwrap_or(number);
        *self.slots.get_mut(slot)? = Some(Member {
            owner,
            owner_number,
            number,
            standing,
            activity: Activity::default(),
            sign: Sign::default(),
            since: now,
        });
        self.last_number = number;
        self.change();
        Some(Seat { slot, number })
    }

    /// Returns the member of a seat, unless another one has its slot now.
    fn member_of(&self, seat: Seat) -> Option<&Member> {
        let member = self.slots.get(seat.slot)?.as_ref();
        member.filter(|member| member.number == seat.number)
    }

    /// Returns the same member for changes.
    fn member(&mut self, seat: Seat) -> Option<&mut Member> {
        let member = self.slots.get_mut(seat.slot)?.as_mut();
        member.filter(|member| member.number == seat.number)
    }

    /// Removes the tenant of a seat.
    pub fn leave(&mut self, seat: Seat) {
        if self.member(seat).is_some() {
            if let Some(slot) = self.slots.get_mut(seat.slot) {
                *slot = None;
            }
            self.change();
        }
    }

    /// Takes over the limits of the tenant of a seat. Returns `false` if it has the seat no longer,
    /// or must leave it because the tenant has another owner now.
    pub fn stand(&mut self, seat: Seat, owner: Owner, standing: &Standing) -> bool {
        let Some(member) = self.member(seat).filter(|member| member.owner == owner) else {
            return false;
        };
        if member.standing != *standing {
            member.standing = *standing;
            self.change();
        }
        true
    }

    /// Shows the others what a tenant has done.
    pub fn publish(&mut self, company: &Company<S>) {
        if let Some(member) = company.seat.and_then(|seat| self.member(seat)) {
            member.activity = company.activity;
            member.sign = company.sign;
        }
    }
}

/// Storage for the company of a tenant, [`MEMBERS_MAX`] slots each.
pub struct Seats<S: Storage> {
    /// Filled with [`Neighbour::NONE`].
    pub neighbours: S::Slots<Neighbour>,
    /// Filled with 0.
    pub slots: S::Slots<usize>,
    /// Filled with the default.
    pub rivals: S::Slots<Rival>,
    /// Filled with 0.
    pub numbers: S::Slots<u32>,
}

/// The other tenants of a GPU, as one of them sees them.
pub struct Company<S: Storage> {
    seat: Option<Seat>,
    /// Its place among those that wait for a slot.
    ticket: Option<Ticket>,
    owner: Owner,
    standing: Standing,
    seats: Seats<S>,
    /// Number of neighbours.
    count: usize,
    /// The roster's generation that was seen.
    seen: u64,
    activity: Activity,
    sign: Sign,
    /// Whether it has channels in another process's channel group, as a client of MPS has.
    shares_group: bool,
}

impl<S: Storage> Company<S> {
    /// Creates the company of a tenant that has seen nobody.
    pub fn new(owner: Owner, standing: Standing, seats: Seats<S>) -> Self {
        Self {
            seat: None,
            ticket: None,
            owner,
            standing,
            seats,
            count: 0,
            seen: 0,
            activity: Activity::default(),
            sign: Sign::default(),
            shares_group: false,
        }
    }

    /// Records that the tenant has a channel in another process's channel group: the GPU runs it
    /// beside that process, without a switch of contexts.
    pub fn share_group(&mut self) {
        self.shares_group = true;
    }

    /// Sets the tenant's limits. The roster takes them over in [`attend`](Self::attend).
    pub fn set_standing(&mut self, owner: Owner, standing: Standing) {
        (self.owner, self.standing) = (owner, standing);
        self.seen = 0;
    }

    /// Returns the tenant's rank. A tenant that is not seen yields to all others.
    pub fn rank(&self) -> Rank {
        match self.seat {
            Some(_) => self.standing.rank,
            None => Rank::LAST,
        }
    }

    /// Has the roster show the tenant with its limits of now, if it has room or can make some.
    pub fn attend(&mut self, roster: &mut Roster<S>, now: Ns) {
        if let Some(seat) = self.seat {
            if roster.stand(seat, self.owner, &self.standing) {
                return;
            }
            self.quit(roster);
        }
        self.seat = roster.join(self.owner, self.standing, &mut self.ticket, now);
        if self.seat.is_some() {
            self.seen = 0;
        }
    }

    /// Leaves the roster.
    pub fn quit(&mut self, roster: &mut Roster<S>) {
        roster.waiters.leave(&mut self.ticket);
        if let Some(seat) = self.seat.take() {
            roster.leave(seat);
            self.seen = 0;
        }
    }

    /// Looks at the others before a round.
    pub fn see(&mut self, roster: &Roster<S>, now: Ns) {
        if self.seen != roster.generation {
            self.seen = roster.generation;
            self.meet(roster);
        }
        let Seats {
            neighbours,
            slots,
            rivals,
            numbers,
        } = &mut self.seats;
        for (neighbour, slot) in neighbours.iter_mut().zip(slots.iter()).take(self.count) {
            if let Some(Some(member)) = roster.slots.get(*slot) {
                let signs = member.activity.signs;
                neighbour.busy = signs.is_busy(now);
                neighbour.idle = signs.idle(now);
                neighbour.arrivals = member.activity.arrivals;
                neighbour.ebb = member.activity.ebb;
            }
        }
        let others = rivals.iter_mut().zip(numbers.iter());
        for ((rival, number), member) in others.zip(roster.slots.iter()) {
            // The tenant's own slot has no number.
            if let Some(member) = member.as_ref().filter(|_| *number != 0) {
                rival.see(member.sign, member.activity.signs.is_busy(now), now);
            }
        }
    }

    /// Takes over who is there, with what limits. A tenant whose slot another has got since
    /// [`attend`](Self::attend) is not seen any more, and sees that one.
    fn meet(&mut self, roster: &Roster<S>) {
        let mine = self.seat.and_then(|seat| roster.member_of(seat));
        let mine = mine.map(|me| me.standing.place(me.owner_number, me.number));
        self.seat = self.seat.filter(|_| mine.is_some());
        let slot = self.seat.map(|seat| seat.slot);
        self.count = 0;
        for (at, member) in (0..usize::MAX).zip(roster.slots.iter()) {
            let member = member.as_ref().filter(|_| slot != Some(at));
            let relation = member.zip(mine).map(|(member, mine)| {
                let place = member.standing.place(member.owner_number, member.number);
                (member.number, mine.relation(&place))
            });
            self.relate(at, relation);
            if let Some(member) = member {
                self.add_neighbour(at, member);
            }
        }
    }

    fn add_neighbour(&mut self, at: usize, member: &Member) {
        let is_sibling = member.owner == self.owner;
        let Some(standing) = member.standing.beside(self.rank(), is_sibling) else {
            return;
        };
        let slot = self.seats.slots.get_mut(self.count);
        let seat = self.seats.neighbours.get_mut(self.count).zip(slot);
        if let Some((neighbour, slot)) = seat {
            let activity = &member.activity;
            // The time does not matter: `see` follows.
            *neighbour =
                standing.neighbour(&activity.signs, activity.arrivals, activity.ebb, Ns(0));
            *slot = at;
            self.count = self.count.saturating_add(1);
        }
    }

    /// Sets the relation to the member in a slot. One that was there before keeps what is known of
    /// it.
    fn relate(&mut self, at: usize, relation: Option<(u32, Relation)>) {
        let Seats {
            rivals, numbers, ..
        } = &mut self.seats;
        let Some((rival, known)) = rivals.get_mut(at).zip(numbers.get_mut(at)) else {
            return;
        };
        match relation {
            Some((number, relation)) if *known == number => rival.set_relation(relation),
            Some((number, relation)) => (*known, *rival) = (number, Rival::new(relation)),
            None => (*known, *rival) = (0, Rival::default()),
        }
    }
}

impl<S: Storage> Peers for Company<S> {
    fn refresh(&mut self, limits: &mut LaunchLimits) -> Option<Topology> {
        limits.rank = self.rank();
        None
    }

    fn look_around(&mut self, _: Ns) -> Others<'_> {
        Others {
            own: match self.seat {
                Some(_) => self.standing.own,
                None => TpcMask::EMPTY,
            },
            neighbours: self.seats.neighbours.get(..self.count).unwrap_or_default(),
            rivals: &self.seats.rivals,
            by_turns: !self.shares_group,
            shown: 0,
        }
    }

    fn set_busy(&mut self, busy: bool, now: Ns) {
        self.activity.set_busy(busy, now);
    }

    fn rivals(&mut self, _: Ns) -> &mut [Rival] {
        &mut self.seats.rivals
    }

    fn publish_sign(&mut self, sign: Sign) {
        self.sign = sign;
    }

    fn publish_ebb(&mut self, ebb: &TpcMask) {
        self.activity.ebb = *ebb;
    }
}

impl<S: Storage> core::fmt::Debug for Company<S> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let mut fields = f.debug_struct("Company");
        fields.field("seat", &self.seat).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
