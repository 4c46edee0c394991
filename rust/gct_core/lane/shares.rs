// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Measures the time that a tenant has of its GPU, and holds back what is beyond its share.
//!
//! The tenant's time is the time for which any of its lanes had work in flight, divided among the
//! processes that had work in flight on the same TPCs. It is charged in every round, before the
//! lanes are visited.
//!
//! Processes take turns if somebody wrote a weight, and where the GPU switches contexts between
//! them while they release small pieces: each piece of another context would cost a switch.

use super::limits::LaunchLimits;
use crate::gpu_time::{GpuTime, Held, Hold, Holds};
use crate::policy::pace::InFlight;
use crate::policy::patience;
use crate::policy::share::{number, Cycle, Rival, Share, Sign, Turns, Work, WINDOW};
use crate::units::{Ns, Sat};

/// The time of a tenant on its GPU.
#[derive(Debug, Default)]
pub(super) struct Shares {
    turns: Turns,
    /// The duty cycles of the owner and of the process.
    owner: Cycle,
    own: Cycle,
    /// Whether processes take turns.
    takes_turns: bool,
    /// The time until which it is accounted.
    pub(super) since: Ns,
    /// Whether work was in flight at the end of the last round, and among how many processes the
    /// time is divided.
    runs: bool,
    parts: u64,
    /// The TPCs for which the time since the last round was charged, and those of the GPU; 0 if that
    /// is unknown.
    charged: (u64, u64),
    /// Work in flight on all lanes.
    flight: InFlight,
    /// The last end, or the time when the first work was released.
    head: Ns,
    /// The lanes visited in this round.
    visited: Visited,
    holds: Holds,
    /// Whether work is held back because its TPCs are reserved for others, and whether other work is
    /// because of an earlier rank.
    reserved: bool,
    outranked: bool,
    /// Whether a piece is held back that the granted TPCs are too few for, although others may run.
    short: bool,
    pub(super) time: GpuTime,
    /// Launches and atoms in flight, and entries that are held back, at the end of the last round.
    pub(super) pending: u64,
}

/// Sums over the lanes that were visited in one round.
#[derive(Clone, Copy, Debug, Default)]
struct Visited {
    flight: InFlight,
    /// Whether anything has not ended that was in flight before the round.
    still: bool,
    /// When the last of what was found to have ended had ended.
    ended: Option<Ns>,
    held: Sat<u64>,
}

/// Adds the work in flight on a lane to a sum.
fn add(sum: &mut InFlight, lane: &InFlight) {
    sum.count = (Sat(sum.count) + Sat(lane.count)).0;
    sum.late = (Sat(sum.late) + Sat(lane.late)).0;
    sum.tpcs = (Sat(sum.tpcs) + Sat(lane.tpcs)).0;
    sum.predicted += lane.predicted;
}

/// Takes the work in flight on a lane out of a sum.
fn subtract(sum: &mut InFlight, lane: &InFlight) {
    sum.count = (Sat(sum.count) - Sat(lane.count)).0;
    sum.late = (Sat(sum.late) - Sat(lane.late)).0;
    sum.tpcs = (Sat(sum.tpcs) - Sat(lane.tpcs)).0;
    sum.predicted -= lane.predicted;
}

impl Shares {
    /// Records why work is held back.
    pub(super) fn hold(&mut self, held: &Held) {
        self.holds.add(held.reason);
        if held.reason == Hold::Tpcs {
            self.reserved |= held.reserved;
            self.outranked |= !held.reserved;
            self.short |= held.short;
        }
    }

    /// Returns whether nothing but `lane` is in flight, and no other process is on the same TPCs.
    pub(super) fn is_alone_with(&self, lane: &InFlight) -> bool {
        self.flight.count == lane.count && self.parts <= 1
    }

    /// Returns whether a share holds back all that the tenant has.
    pub(super) fn holds_all(&self) -> bool {
        self.flight.count == 0 && (self.is_over() || self.holds.has(Hold::Weight))
    }

    /// Returns whether the duty cycle holds back all that the tenant has.
    pub(super) fn is_over(&self) -> bool {
        self.flight.count == 0 && self.holds.has(Hold::Max)
    }

    /// Returns whether the tenant has nothing in flight, and waits for reserved TPCs alone.
    pub(super) fn is_kept_off(&self) -> bool {
        self.flight.count == 0 && self.reserved && !self.outranked
    }

    /// Returns the predicted rest of the work in flight.
    fn rest(&self, now: Ns) -> Ns {
        let InFlight {
            count, predicted, ..
        } = self.flight;
        match count {
            0 => Ns(0),
            // Only the first piece has begun.
            count => predicted - (now - self.head).min(predicted / u64::from(count)),
        }
    }

    /// Returns how much work in flight a share allows, which may end at any time.
    #[inline]
    pub(super) fn window(&self, share: &Share) -> Option<Ns> {
        let bounded = self.takes_turns || share.owner.max.is_some() || share.own.max.is_some();
        bounded.then_some(WINDOW)
    }

    /// Returns which limit on its time the tenant has used up, if any.
    pub(super) fn used_up(&self, share: &Share, rivals: &[Rival], now: Ns) -> Option<Hold> {
        let rest = self.rest(now);
        if !(self.owner.may_release(rivals, rest) && self.own.may_release(&[], rest)) {
            return Some(Hold::Max);
        }
        let mut turns = self.turns;
        turns.contend(share, rivals);
        let has_turn = !self.takes_turns || turns.may_release(share, rivals, rest);
        (!has_turn).then_some(Hold::Weight)
    }

    /// Records that the tenant has a piece that only its turn may hold back.
    #[inline]
    pub(super) fn contend(&mut self, share: &Share, rivals: &[Rival]) {
        if self.takes_turns {
            self.turns.contend(share, rivals);
        }
    }

    /// Returns when a piece goes although the share is used up: the work in flight has been still
    /// since `moved`, and may wait for it.
    pub(super) fn overdue(&self, moved: Ns) -> Ns {
        match self.flight.count {
            0 => Ns::MAX,
            _ => moved + patience::overdue(self.flight.predicted, self.flight.late),
        }
    }

    /// Begins a round: charges the time since the last one to the tenant, which has `tpcs` of `all`
    /// TPCs, and takes over what its rivals publish. `yields` says whether it releases small pieces
    /// by turns. Returns for how long the goal of another has held it back.
    pub(super) fn begin(
        &mut self,
        limits: &LaunchLimits,
        rivals: &mut [Rival],
        (tpcs, all): (u64, u64),
        yields: bool,
        now: Ns,
    ) -> Option<Ns> {
        let share = &limits.share;
        // Pieces in flight follow each other.
        let granted = match self.flight.count {
            0 => tpcs,
            count => self.flight.tpcs.checked_div(count.into()).unwrap_or(0),
        };
        let beside = rivals.iter().filter(|rival| rival.is_beside());
        self.parts = number(beside).saturating_add(1);
        // The first round has no time before it.
        let since = match self.since {
            Ns(0) => now,
            since => since,
        };
        let time = now - since;
        self.since = now;
        self.time.wait(time, self.holds);
        let held = limits.pressed && self.holds.has(Hold::Tpcs) && !self.runs;
        let waited = core::mem::take(&mut self.short) || held;
        self.holds = Holds::default();
        (self.reserved, self.outranked) = (false, false);
        self.charged = (granted, all);
        if self.runs {
            self.time.use_time(time / self.parts, granted, all);
        }
        let parts = self.runs.then_some(self.parts);
        self.owner
            .pass(share.owner.max, rivals, (since, now), parts);
        self.own.pass(share.own.max, &[], (since, now), parts);
        let weighted = share.weight().is_some() || rivals.iter().any(Rival::is_weighted);
        let apart = yields && !weighted && rivals.iter().any(Rival::competes);
        self.takes_turns = weighted || apart;
        self.turns.set_apart(apart);
        match self.takes_turns {
            true => self.turns.look(share, rivals, now),
            false => self.turns = Turns::default(),
        }
        waited.then_some(time)
    }

    /// Returns whether another process has work in flight on the same TPCs.
    pub(super) fn is_beside(&self) -> bool {
        self.parts > 1
    }

    /// Records that a submission has ended, at `at` at the latest.
    #[inline]
    pub(super) fn record_end(&mut self, at: Ns) {
        let ended = self.visited.ended.map_or(at, |ended| ended.max(at));
        self.visited.ended = Some(ended);
        self.head = ended;
    }

    /// Takes over what is in flight on a lane, of which `known` was told before. `first` is the
    /// beginning of the lane's round. Returns whether other lanes have work in flight.
    #[inline]
    pub(super) fn sync(&mut self, known: &mut InFlight, now: &InFlight, first: bool) -> bool {
        subtract(&mut self.flight, known);
        if self.flight.count == 0 && now.count > known.count {
            self.head = self.since;
        }
        add(&mut self.flight, now);
        *known = *now;
        self.visited.still |= first && now.count > 0;
        self.flight.count > now.count
    }

    /// Ends the visit of a lane with `held` entries that wait.
    #[inline]
    pub(super) fn leave(&mut self, flight: &InFlight, held: u64) {
        add(&mut self.visited.flight, flight);
        self.visited.held += held;
    }

    /// Ends the round of all lanes. Returns what is published of the tenant's turns.
    pub(super) fn end(&mut self, share: &Share) -> Sign {
        let visited = core::mem::take(&mut self.visited);
        if let Some(ended) = visited.ended.filter(|_| self.runs && !visited.still) {
            let over = (self.since - ended) / self.parts.max(1);
            let (granted, all) = self.charged;
            self.time.refund(over, granted, all);
            self.owner.refund(over);
            self.own.refund(over);
            if self.takes_turns {
                self.turns.refund(share, over);
            }
        }
        let runs = visited.flight.count > 0;
        self.flight = visited.flight;
        self.runs = runs;
        self.pending = (visited.held + Sat(u64::from(visited.flight.count))).0;
        if self.takes_turns {
            let work = match runs {
                true => Work::Runs,
                false if self.holds.has(Hold::Weight) => Work::Waits,
                false if self.holds.has(Hold::Tpcs) => Work::Held,
                false => Work::Idle,
            };
            self.turns.end(work);
        }
        Sign {
            at: self.turns.at(),
            contends_until: self.turns.contends_until(),
            runs,
            spent: self.owner.spent(self.rest(self.since)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lane::decide::{Kind, Others, Piece};
    use crate::lane::governor::{Governor, Peers};
    use crate::lane::testing::Heap;
    use crate::mask::TpcMask;
    use crate::policy::slo::allowance::{PERIOD, WAIT_MAX};
    use crate::policy::tpc::{Neighbour, Rank};
    use crate::submit::precedence::Precedence;
    use crate::topology::Topology;
    use crate::units::Priority;
    use std::vec;

    /// A neighbour with work on half of the TPCs, how many TPCs the tenant was shown, and whether the
    /// GPU switches contexts between them.
    struct Service([Neighbour; 1], u32, bool);

    impl Peers for Service {
        fn refresh(&mut self, _: &mut LaunchLimits) -> Option<Topology> {
            None
        }

        fn look_around(&mut self, _: Ns) -> Others<'_> {
            Others {
                neighbours: &self.0,
                by_turns: self.2,
                shown: self.1,
                ..Others::NONE
            }
        }

        fn set_busy(&mut self, _: bool, _: Ns) {}
    }

    /// Checks that a launch that needs all TPCs gets them within a period, also while other lanes
    /// of its tenant keep the rest at work.
    #[test]
    fn a_lane_that_needs_more_tpcs_is_not_starved_by_another_lane() {
        let rank = Rank {
            best_effort: false,
            priority: Priority::DEFAULT,
        };
        let service = Neighbour {
            allowed: TpcMask::first(4),
            rank,
            busy: true,
            ..Neighbour::NONE
        };
        let limits = LaunchLimits {
            pressed: true,
            rank: Rank {
                best_effort: true,
                ..rank
            },
            ..LaunchLimits::NONE
        };
        let (steps, waits) = (STEPS, WAIT_MAX / (PERIOD / STEPS));
        let ran = runs_beside(Service([service], 0, false), limits);
        assert_eq!(ran, [steps, steps - waits]);
    }

    const STEPS: u64 = 100;

    /// Returns how often in a period a launch runs that four TPCs hold, and one that eight hold, of
    /// a tenant with a lane for each.
    fn runs_beside(service: Service, limits: LaunchLimits) -> [u64; 2] {
        let beside = service.1 > 0 && !service.2;
        let mut governor: Governor<Heap, Service> = Governor::new(limits, vec![], vec![], vec![]);
        governor.set_gpu(Topology::together(TpcMask::first(8)));
        governor.set_peers(Some(service));
        let start = PERIOD * 7;
        let mut ran = [0; 2];
        for step in 0..STEPS {
            let now = start + PERIOD / STEPS * step;
            governor.begin(now);
            let in_flight = InFlight::default();
            let mut runs = |resident| {
                let piece = Piece {
                    kind: Kind::Free,
                    holds: Ns(1),
                    resident,
                    in_flight: &in_flight,
                    overdue: Ns::MAX,
                };
                governor.ask(Some(&piece), now).is_ok()
            };
            ran[0] += u64::from(runs(4));
            let runs = runs(8);
            ran[1] += u64::from(runs);
            if runs && beside && governor.tpcs() == 8 {
                assert_eq!(governor.precedence, Some(Precedence::First));
            }
            // What the first lane has released is in flight.
            governor.me.shares.runs = true;
        }
        ran
    }

    /// Checks that a launch which counts on TPCs that a later quota took waits for them, for a part
    /// of each period, and for nothing where its owner has no work during its turn.
    #[test]
    fn what_was_shown_is_waited_for() {
        let owner = Neighbour {
            own: TpcMask::first(4),
            allowed: TpcMask::first(8),
            rank: LaunchLimits::NONE.rank,
            busy: true,
            ..Neighbour::NONE
        };
        let (steps, waits) = (STEPS, WAIT_MAX / (PERIOD / STEPS));
        for (shown, by_turns, often) in [
            (8, false, steps - waits),
            (8, true, steps),
            // It has not asked, or was shown less: a launch of eight is one that is narrowed.
            (0, false, steps),
            (7, false, steps),
        ] {
            let ran = runs_beside(Service([owner], shown, by_turns), LaunchLimits::NONE);
            assert_eq!(ran, [steps, often], "{shown}, by turns {by_turns}");
        }
    }
}
