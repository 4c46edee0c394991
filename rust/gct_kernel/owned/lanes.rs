// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Serves the lanes of all tenants of a GPU, as their turns come.

use super::client::Refused;
use super::lane::{Lane, Need};
use super::limited::{Held, Limited};
use super::nodes;
use super::{refill, room_beside};
use crate::bindings;
use crate::state::Kv;
use gct_core::lane::roster::{Roster, MEMBERS_MAX};
use gct_core::lane::whole;
use gct_core::lane::work::Workspace;
use gct_core::owned::turns::{Step, Sweep, Turns};
use gct_core::owned::worker::{Pauses, Round};
use gct_core::owned::{LAUNCHES_MAX, SEGMENT_WORDS};
use gct_core::policy::tpc::Rank;
use gct_core::submit::rewrite::Order;
use gct_core::units::Ns;
use kernel::prelude::*;
use kernel::sync::Arc;

/// The lanes of a GPU, and what serving them needs.
pub(super) struct Lanes {
    tenants: KVVec<Lot>,
    roster: Roster<Kv>,
    work: Workspace<Kv>,
    /// The lane for which the resource manager was asked last.
    pub(super) asked: u64,
    pub(super) pauses: Pauses,
    sweep: Sweep,
}

/// What a new lane lacks room for: beside so many lanes, or tenants.
pub(super) enum Lacking {
    Lanes(usize),
    Tenants(usize),
    Tenant,
}

/// Room for a lane.
pub(super) enum Room {
    Lanes(KVVec<KBox<Lane>>),
    Tenants(KVVec<Lot>),
    Tenant(Lot),
    None,
}

impl Room {
    /// Allocates what a lane lacks, in the name of its tenant.
    pub(super) fn new(lacking: &Lacking, limited: &Arc<Limited>) -> Result<Self, Refused> {
        Ok(match lacking {
            Lacking::Lanes(count) => Self::Lanes(room_beside(*count)?),
            Lacking::Tenants(count) => Self::Tenants(room_beside(*count)?),
            Lacking::Tenant => Self::Tenant(Lot {
                limited: limited.clone(),
                rank: Rank::LAST,
                lanes: KVVec::with_capacity(1, GFP_KERNEL_ACCOUNT)?,
                turns: Turns::default(),
                is_pending: false,
            }),
        })
    }
}

/// The lanes of one tenant.
pub(super) struct Lot {
    limited: Arc<Limited>,
    rank: Rank,
    lanes: KVVec<KBox<Lane>>,
    turns: Turns,
    /// Whether work is held back or in flight on a lane that was served since the first one was.
    is_pending: bool,
}

/// What a round has found, and what one lane needs of the resource manager: they take turns.
pub(super) struct Found {
    asked: u64,
    pub(super) round: Round,
    pub(super) is_quiet: bool,
    /// Whether all bells were closed during all looks that have found nothing.
    pub(super) are_closed: bool,
    /// How soon the next look must come for the time of work in flight to count.
    pub(super) look: Option<Ns>,
    /// Whether a channel can be handed back to its tenant.
    pub(super) leaves: bool,
    pub(super) first: Option<(u64, Need)>,
    pub(super) next: Option<(u64, Need)>,
}

impl Found {
    /// Records that a tenant has more lanes than its turn had time for, or that there are more
    /// tenants.
    fn leave(&mut self) {
        self.round = Round::Left;
    }

    /// Records that a tenant has its limits locked: the worker comes again.
    fn skip(&mut self) {
        self.round = self.round.max(Round::Watched);
        self.is_quiet = false;
    }

    fn needs(&mut self, number: u64, need: Need) {
        let slot = match number > self.asked {
            true => &mut self.next,
            false => &mut self.first,
        };
        if slot.is_none() {
            *slot = Some((number, need));
        }
    }
}

impl Lanes {
    /// Allocates what all tenants of a GPU share. It is there once, whoever comes first, and is
    /// charged to nobody.
    pub(super) fn new() -> Result<Self, Refused> {
        let added = SEGMENT_WORDS.saturating_add(whole::ADDED_WORDS);
        let work = Workspace::new(
            KVVec::from_elem(0, SEGMENT_WORDS, GFP_KERNEL)?,
            KVVec::from_elem(Order::default(), LAUNCHES_MAX, GFP_KERNEL)?,
            KVVec::from_elem(0, added, GFP_KERNEL)?,
        );
        Ok(Self {
            tenants: KVVec::new(),
            roster: Roster::new(KVVec::from_elem(None, MEMBERS_MAX, GFP_KERNEL)?),
            work,
            asked: 0,
            pauses: Pauses::NEW,
            sweep: Sweep::NEW,
        })
    }

    /// Returns whether the worker hears when any tenant rings.
    pub(super) fn is_heard(&self) -> bool {
        self.tenants.iter().all(Lot::is_heard)
    }

    /// Returns a lane.
    pub(super) fn lane(&mut self, number: u64) -> Option<&mut Lane> {
        let mut all = self.tenants.iter_mut().flat_map(|lot| &mut *lot.lanes);
        let lane = all.find(|lane| lane.number == number)?;
        Some(&mut **lane)
    }

    /// Returns the lanes of a tenant.
    fn lot(&mut self, limited: &Arc<Limited>) -> Option<&mut Lot> {
        let mut lots = self.tenants.iter_mut();
        lots.find(|lot| Arc::ptr_eq(&lot.limited, limited))
    }

    /// Adds a lane of a tenant, if there is room.
    ///
    /// # Errors
    ///
    /// The lane, and what room is needed.
    pub(super) fn add(
        &mut self,
        limited: &Arc<Limited>,
        lane: KBox<Lane>,
    ) -> Result<(), (KBox<Lane>, Lacking)> {
        let (lots, room) = (self.tenants.len(), self.tenants.capacity());
        if let Some(lot) = self.lot(limited) {
            let count = lot.lanes.len();
            let pushed = lot.lanes.push_within_capacity(lane);
            return pushed.map_err(|e| (e.0, Lacking::Lanes(count)));
        }
        match lots < room {
            true => Err((lane, Lacking::Tenant)),
            false => Err((lane, Lacking::Tenants(lots))),
        }
    }

    /// Takes room that was allocated without the lock. Returns what is not used any more.
    pub(super) fn take(&mut self, limited: &Arc<Limited>, room: Room) -> Room {
        match room {
            Room::Lanes(mut room) => {
                if let Some(lot) = self.lot(limited) {
                    refill(&mut lot.lanes, &mut room);
                }
                Room::Lanes(room)
            }
            Room::Tenants(mut room) => {
                refill(&mut self.tenants, &mut room);
                Room::Tenants(room)
            }
            Room::Tenant(lot) if self.lot(limited).is_some() => Room::Tenant(lot),
            Room::Tenant(lot) => match self.tenants.push_within_capacity(lot) {
                Ok(()) => Room::None,
                Err(full) => Room::Tenant(full.0),
            },
            Room::None => Room::None,
        }
    }

    /// Removes a lane, and what is left of a tenant with its last one.
    ///
    /// # Errors
    ///
    /// The limits, which somebody has locked.
    pub(super) fn try_remove(
        &mut self,
        number: u64,
    ) -> Result<(Option<KBox<Lane>>, Option<Lot>), Arc<Limited>> {
        let mut lots = (0..usize::MAX).zip(self.tenants.iter());
        let found = lots.find_map(|(at, lot)| {
            let lane_at = lot.lanes.iter().position(|lane| lane.number == number)?;
            Some((at, lane_at))
        });
        let Some((lot_at, lane_at)) = found else {
            return Ok((None, None));
        };
        let Some(lot) = self.tenants.get_mut(lot_at) else {
            return Ok((None, None));
        };
        let is_last = lot.lanes.len() == 1;
        if is_last {
            let Some(mut held) = lot.limited.try_hold() else {
                return Err(lot.limited.clone());
            };
            held.quit(&mut self.roster);
        }
        let lane = lot.lanes.remove(lane_at).ok();
        lot.turns.removed(lane_at);
        let gone = is_last.then(|| self.tenants.remove(lot_at).ok());
        Ok((lane, gone.flatten()))
    }

    /// Serves the lanes of tenants, those of an earlier rank first, until each has had its turn or
    /// the round has lasted long enough.
    pub(super) fn serve(&mut self, all_closed: bool, now: Ns) -> Found {
        let Self {
            tenants,
            roster,
            work,
            asked,
            sweep,
            ..
        } = self;
        let mut found = Found {
            asked: *asked,
            round: Round::Idle,
            is_quiet: true,
            are_closed: all_closed,
            look: None,
            leaves: false,
            first: None,
            next: None,
        };
        for lot in tenants.iter_mut() {
            if let Some(mut held) = lot.limited.try_hold() {
                lot.rank = held.attend(roster, now);
            }
        }
        sweep.begin(now);
        let mut last = None;
        loop {
            let waiting = tenants.iter().filter(|lot| sweep.awaits(&lot.turns));
            let ranks = waiting.map(|lot| lot.rank);
            let later = ranks.filter(|rank| last.is_none_or(|last| *rank > last));
            let Some(rank) = later.min() else { break };
            for lot in tenants.iter_mut().filter(|lot| lot.rank == rank) {
                if !sweep.awaits(&lot.turns) {
                    continue;
                }
                lot.turn(
                    (&mut *roster, &mut *work, &mut *sweep),
                    &mut found,
                    all_closed,
                );
                if sweep.is_over(clock()) {
                    found.leave();
                    return found;
                }
            }
            last = Some(rank);
        }
        found.are_closed &= sweep.end();
        found
    }
}

/// Returns the time.
fn clock() -> Ns {
    // SAFETY: it has no preconditions.
    Ns(unsafe { bindings::gct_helper_now() })
}

impl Lot {
    /// Returns whether the worker hears when the tenant rings.
    fn is_heard(&self) -> bool {
        self.lanes.iter().all(|lane| lane.is_heard())
    }

    /// Takes the tenant's turn: looks whether a lane has something to do, so that a thousand idle
    /// ones cost little, and serves them all if one has.
    fn turn(
        &mut self,
        (roster, work, sweep): (&mut Roster<Kv>, &mut Workspace<Kv>, &mut Sweep),
        found: &mut Found,
        all_closed: bool,
    ) {
        let Self {
            limited,
            lanes,
            turns,
            is_pending,
            ..
        } = self;
        let mut now = clock();
        let goes_on = turns.begin(sweep, all_closed, now);
        let Some(mut held) = limited.try_hold() else {
            return found.skip();
        };
        if goes_on {
            // Others' limits of now count, also in the middle of its lanes.
            held.see(roster, now);
        } else {
            match look((&mut *lanes, &mut *turns), &held, all_closed) {
                Some(true) => {}
                Some(false) => return sweep.looked(turns),
                None => return found.leave(),
            }
            turns.serve();
            *is_pending = false;
            held.begin(roster, now);
        }
        found.is_quiet = false;
        let mut step = Step::Next;
        while step == Step::Next {
            let count = lanes.len();
            if let Some(lane) = lanes.get_mut(turns.lane()) {
                let served = lane.serve(&mut held, work, now.get());
                *is_pending |= served.is_pending;
                found.round = found.round.max(served.round);
                found.leaves |= served.leaves;
                if let Some(need) = served.need {
                    found.needs(lane.number, need);
                }
            }
            now = clock();
            step = turns.pass(count, now);
        }
        if held.lacks_nodes() {
            nodes::grow_soon(limited);
        }
        if step == Step::Stop {
            return found.leave();
        }
        let look = held.end(roster, *is_pending, now);
        found.look = [found.look, look].into_iter().flatten().min();
    }
}

/// Looks at a tenant's lanes until one has something to do, or goes back to its tenant. Returns
/// whether one does, or `None` where the turn ends before all were looked at.
fn look(
    (lanes, turns): (&mut KVVec<KBox<Lane>>, &mut Turns),
    held: &Held<'_>,
    all_closed: bool,
) -> Option<bool> {
    let mut step = Step::Next;
    while step == Step::Next {
        let count = lanes.len();
        let lane = lanes.get_mut(turns.lane());
        if lane.is_some_and(|lane| !lane.rests(all_closed) || lane.is_leaving(held)) {
            return Some(true);
        }
        step = turns.pass(count, clock());
    }
    (step == Step::Last).then_some(false)
}
