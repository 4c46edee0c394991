// SPDX-License-Identifier: GPL-2.0 OR MIT

//! States what the policies promise, from what tenants really have and have shown, and checks it
//! whenever a tenant publishes or holds back.
//!
//! Terminology
//!   piece     a launch or an atom
//!   seated    has a place in the roster, so that others see it
//!   claims    is seated, its last round showed work, it was alive within BEAT_MAX, and it may not
//!             rest
//!   in flight what the GPU has to run; not the rest of a split launch
//!   may rest  has a duty cycle; or has work, none in flight, and no TPC but reserved ones
//!   LEAST, MOST  how long a tenant waits behind an earlier rank that has shown no work any more:
//!             SWITCHES by turns, PAUSE_MIN to PRESENT_MAX side by side
//!   written   the TPCs of the tenant's mask; it is allowed fewer while it is pressed
//!   single    a launch that fits into one wave of the written TPCs that nobody else reserves, and
//!             that no earlier rank may use
//!   away for  has shown no work for that time, or no sign of life for BEAT_MAX
//!
//! ```text
//! usable(T)    = allowed(T)
//!              - TPCs reserved for another owner, if T may not steal
//!              + own(T)
//! forbidden(T) = TPCs reserved for another owner that claims, or for any if T may not steal
//!              + TPCs usable by a tenant of an earlier rank that claims, or did so LEAST ago
//!              - those of them, side by side, that the other has shown to be none of its last
//!                pieces', if it lends and T may steal
//!              - own(T)
//! due(T)       = allowed(T)
//!              - TPCs reserved for another owner, unless it is away for IDLE_TIMEOUT_MAX and T
//!                may steal
//!              - TPCs usable by an earlier rank, unless it is away for MOST
//!              + own(T)
//! ```
//!
//! A single launch of a tenant that is pressed for a goal has TPCs that hold it at once, within
//! written(T), and may wait for them: its blocks may wait for each other. Earlier ranks are then
//! those that T has with its allowance.
//!
//! A launch of a tenant with a slip has any number of the TPCs that it may use, but as many as hold
//! it at once if those that are due do.
//!
//! Side by side, a piece on TPCs of its own comes first of those that wait on the GPU, and one that
//! has borrowed any last. Of all others the earliest ranks come first, and the latest last.
//!
//! Every other piece has a mask within allowed(T), without forbidden(T), and with all of due(T).
//! A tenant that holds work, has none in flight, and may use a TPC of due(T), publishes in this
//! very round, unless its own limits or another's turn are in the way. Another has a turn only if a
//! weight was written, or T takes turns on the GPU and releases small pieces; and if they compete,
//! and the other has work or had some until just now. No slack is needed: the only delays are the
//! rounds themselves.

use super::channel::UNPLACED;
use super::gpu::TPC_BLOCKS;
use gct_core::lane::standing::Standing;
use gct_core::mask::TpcMask;
use gct_core::policy::arrivals::{IDLE_TIMEOUT_MAX, PAUSE_MIN};
use gct_core::policy::patience::{BEAT_EVERY, BEAT_MAX};
use gct_core::policy::share::{HANDOVER, LINGER_MAX};
use gct_core::policy::tpc::{Rank, PRESENT_MAX, SWITCHES};

/// What the law says of a piece at the moment of its release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) allowed: u64,
    pub(crate) written: u64,
    pub(crate) forbidden: u64,
    pub(crate) due: u64,
    /// The TPCs that are due if nobody has an earlier rank.
    pub(crate) unreserved: u64,
    /// Whether the tenant has a slip, so that fewer TPCs may do.
    slips: bool,
    /// The TPCs that hold a single launch, while the tenant is pressed.
    single: Option<u64>,
    /// What orders it among pieces that wait on the GPU; `None` where nothing does.
    order: Option<Order>,
}

/// What orders a piece among those of others that wait on the GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Order {
    /// The TPCs that are reserved for its owner, and for others.
    own: u64,
    others: u64,
    /// Whether anybody is of an earlier or a later rank.
    yields: bool,
    leads: bool,
}

/// The groups of pieces that come first, between, and last: where the launches of programs have
/// the first group of each.
const GROUPS: [u32; 3] = [2, 40, 58];

impl Piece {
    /// Returns whether a launch of so many blocks may have these TPCs.
    pub(crate) fn holds(&self, tpcs: u64, blocks: u64) -> bool {
        let fits = |tpcs: u64| blocks <= TPC_BLOCKS * u64::from(tpcs.count_ones());
        let within = if fits(self.written) {
            self.written
        } else {
            self.allowed
        };
        let is_single = self.single.is_some_and(fits);
        tpcs != 0 && tpcs & !within == 0 && (!is_single || fits(tpcs))
    }

    /// Returns whether a launch of so many blocks that has these TPCs has all that are due to it.
    pub(crate) fn has_due(&self, tpcs: u64, blocks: u64) -> bool {
        let fits = |tpcs: u64| blocks <= TPC_BLOCKS * u64::from(tpcs.count_ones());
        match self.slips {
            true => fits(tpcs) || !fits(self.due),
            false => self.due & !tpcs == 0,
        }
    }

    /// Returns whether a piece on these TPCs has its place among those that wait on the GPU.
    pub(crate) fn is_placed(&self, tpcs: u64, group: u32) -> bool {
        self.place_of(tpcs) == group
    }

    fn place_of(&self, tpcs: u64) -> u32 {
        let [first, middle, last] = GROUPS;
        match self.order {
            None => UNPLACED,
            Some(order) if tpcs & !order.own == 0 => first,
            Some(order) if tpcs & order.others & !order.own != 0 => last,
            Some(order) => match (order.yields, order.leads) {
                (false, true) => first,
                (true, false) => last,
                (true, true) => middle,
                (false, false) if order.own | order.others != 0 => middle,
                (false, false) => UNPLACED,
            },
        }
    }

    /// Returns whether a launch of so many blocks may have to wait for more TPCs than are due.
    pub(crate) fn may_wait(&self, blocks: u64) -> bool {
        let fits = blocks <= TPC_BLOCKS * u64::from(self.due.count_ones());
        self.due == 0 || (self.single.is_some() && !fits)
    }
}

/// What one tenant has shown the others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    pub(crate) owner: usize,
    pub(crate) standing: Standing,
    pub(crate) steal: bool,
    /// The TPCs that were written, whether it yields only for a goal of another, and whether it has
    /// a slip.
    pub(crate) written: u64,
    pub(crate) pressed: bool,
    pub(crate) slips: bool,
    /// The TPCs that it has shown as those of its last pieces.
    tide: u64,
    /// Whether it has a seat, as far as it knows, and whether nobody can have taken it since.
    pub(crate) seated: bool,
    pub(crate) is_sure: bool,
    /// Whether its last round showed work.
    shows_work: bool,
    /// Since when it shows none; `None` if it never showed any.
    idle_since: Option<u64>,
    /// The same, seen or not. Its next round shows it.
    works: bool,
    stopped: Option<u64>,
    /// When its last round ended.
    pub(crate) looked: u64,
    /// Whether a duty cycle may have held back all that it had, so that it showed no work.
    may_rest: bool,
}

pub(crate) fn tpcs(mask: &TpcMask) -> u64 {
    mask.words()[0]
}

impl Facts {
    pub(crate) fn new(owner: usize, standing: Standing) -> Self {
        Self {
            owner,
            standing,
            steal: true,
            written: 0,
            pressed: false,
            slips: false,
            tide: u64::MAX,
            seated: false,
            is_sure: false,
            shows_work: false,
            idle_since: None,
            works: false,
            stopped: None,
            looked: 0,
            may_rest: false,
        }
    }

    /// Records that a round has ended, which showed whether the tenant has work, and the TPCs of
    /// its last pieces. One that may rest may have shown no work.
    pub(crate) fn show(&mut self, work: bool, tide: u64, may_rest: bool, now: u64) {
        self.tide = tide;
        match self.works && !work {
            true => self.stopped = Some(now),
            false => self.may_rest = may_rest,
        }
        self.works = work;
        (self.shows_work, self.idle_since) = (work, self.stopped);
        self.looked = now;
    }

    /// Records that the tenant has got a seat, in which it has shown nothing yet.
    pub(crate) fn take_seat(&mut self) {
        (self.shows_work, self.idle_since) = (false, None);
        self.tide = u64::MAX;
    }

    fn rank(&self) -> Rank {
        match self.seated {
            true => self.standing.rank,
            false => Rank::LAST,
        }
    }

    /// Returns the earliest rank that it has while it is pressed for a goal.
    fn rank_with_allowance(&self) -> Rank {
        Rank {
            best_effort: self.standing.rank.best_effort && !self.pressed,
            ..self.standing.rank
        }
    }

    fn own(&self) -> u64 {
        match self.seated {
            true => tpcs(&self.standing.own) & self.allowed(),
            false => 0,
        }
    }

    fn allowed(&self) -> u64 {
        tpcs(&self.standing.allowed)
    }

    /// Returns the TPCs that it may use once all others are away.
    fn usable(&self, reserved: u64) -> u64 {
        match self.standing.confined {
            true => self.allowed() & !reserved | self.own(),
            false => self.allowed(),
        }
    }

    /// Returns whether it takes turns with another, once there is a reason to.
    fn competes(&self, other: &Self) -> bool {
        let reserve = |facts: &Self| tpcs(&facts.standing.own) != 0;
        self.seated
            && other.seated
            && self.standing.rank == other.standing.rank
            && !(reserve(self) || reserve(other))
            && self.allowed() & other.allowed() != 0
    }

    /// Returns whether all must regard it as one with work.
    fn claims(&self, now: u64) -> bool {
        // The last sign of life may be older than its last round.
        let alive = now - self.looked + BEAT_EVERY.get() < BEAT_MAX.get();
        self.shows_work && self.is_sure && !self.may_rest && alive
    }

    /// Returns whether it has shown no work for less than `time`.
    fn has_just_stopped(&self, time: u64, now: u64) -> bool {
        let shown = !self.shows_work && self.is_sure && !self.may_rest;
        let idle = self.idle_since.filter(|_| shown);
        idle.is_some_and(|since| now - since < time)
    }

    /// Returns whether all must regard it as one that has been away for `time`.
    fn is_away_for(&self, time: u64, now: u64) -> bool {
        match self.shows_work {
            true => now - self.looked >= BEAT_MAX.get(),
            false => self.idle_since.is_none_or(|since| now - since >= time),
        }
    }
}

/// Returns what the law says of what tenant `me` publishes now.
pub(crate) fn piece(all: &[Facts], me: usize, by_turns: bool, now: u64) -> Piece {
    let (least, most) = match by_turns {
        true => (SWITCHES, SWITCHES),
        false => (PAUSE_MIN, PRESENT_MAX),
    };
    let mine = &all[me];
    let seated = || all.iter().filter(|other| other.seated);
    let reserved = seated().fold(0, |all, other| all | other.own());
    // Who has lost its seat, and does not know yet, may not be seen any more. A sibling may have a
    // quota that was taken away since it looked.
    let surely = seated().filter(|other| other.is_sure && other.owner != mine.owner);
    let surely = surely.fold(0, |all, other| all | other.own());
    let (mut forbidden, mut unreserved, mut single) = (0, mine.allowed(), mine.written);
    let mut outranked = 0;
    let mut order = None;
    for (at, other) in (0..).zip(all).filter(|(_, other)| other.seated) {
        let is_sibling = other.owner == mine.owner;
        // Their ranks differ until each has looked, and while one has no seat.
        if is_sibling && other.standing.rank == mine.rank() {
            continue;
        }
        let own = match is_sibling {
            true => 0,
            false => tpcs(&other.standing.own),
        };
        if at != me && !by_turns {
            let order: &mut Order = order.get_or_insert_default();
            order.yields |= other.rank() < mine.rank();
            order.leads |= other.rank() > mine.rank();
            order.others |= own;
        }
        single &= !own;
        if other.rank_with_allowance() < mine.rank_with_allowance() {
            single &= !other.usable(surely);
        }
        let kept = match mine.steal && other.standing.lends && !by_turns {
            true => other.tide,
            false => u64::MAX,
        };
        if !mine.steal || other.claims(now) {
            forbidden |= own & kept;
        }
        if !mine.steal || !other.is_away_for(IDLE_TIMEOUT_MAX.get(), now) {
            unreserved &= !own;
        }
        if other.rank() < mine.rank() {
            if other.claims(now) || other.has_just_stopped(least.get(), now) {
                forbidden |= other.usable(reserved) & kept;
            }
            if !other.is_away_for(most.get(), now) {
                outranked |= other.usable(surely);
            }
        }
    }
    Piece {
        allowed: mine.allowed(),
        written: mine.written,
        forbidden: forbidden & !mine.own(),
        due: (unreserved & !outranked) | mine.own(),
        unreserved: unreserved | mine.own(),
        slips: mine.slips,
        single: mine.pressed.then_some(single | mine.own()),
        order: order.map(|order| Order {
            own: mine.own(),
            ..order
        }),
    }
}

/// Returns whether tenant `me` may have to wait for the turn of another, of its owner or not.
/// `small_by_turns` says whether it releases small pieces, and the GPU switches contexts for them.
pub(crate) fn may_be_anothers_turn(
    all: &[Facts],
    me: usize,
    small_by_turns: bool,
    now: u64,
) -> bool {
    const LATE: u64 = LINGER_MAX.get() + HANDOVER.get();
    let mine = &all[me];
    let others = || {
        let others = (0..).zip(all).filter(|(at, _)| *at != me);
        others
            .map(|(_, other)| other)
            .filter(|other| mine.competes(other))
    };
    let weighted = |facts: &Facts| facts.standing.weight.is_some();
    let is_around = |other: &Facts| !other.is_away_for(LATE, now);
    (small_by_turns || weighted(mine) || others().any(weighted)) && others().any(is_around)
}
