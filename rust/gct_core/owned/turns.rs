// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Decides how long a worker serves one tenant in a row, and all of them in one round.
//!
//! Terminology
//!   turn    the lanes of one tenant that are looked at, or served, one behind the other
//!   round   turns that follow each other while the worker keeps its lock
//!   sweep   the rounds in which each tenant has one turn, those of an earlier rank first
//!
//! ```text
//! turn    goes on with the lane behind that of the last turn, or begins with the first lane
//!         ends behind the last lane, or behind the first lane at which it has lasted BUDGET
//! round   goes on with the tenant behind that of the last round, or begins a sweep
//!         ends with the sweep, or behind the first turn at which it has lasted HOLD
//! ```
//!
//! A turn is longer than BUDGET by one lane at most, and a round longer than HOLD by one turn. So
//! from the end of a tenant's turn to that of its next one pass `tenants * (BUDGET + one lane)` at
//! most, beside the pauses between rounds, while ranks stay. Whoever waits for the worker's lock
//! waits for HOLD, BUDGET and one lane at most. What one lane takes has bounds of its own
//! ([`worker`](super::worker)).
//!
//! A worker sleeps long when all lanes were quiet and all bells were closed before it looked at the
//! first of them: then the next ring wakes it. A look may take several turns and rounds, so what
//! counts is whether the bells were closed at the beginning of each.

use crate::units::Ns;

/// How long one tenant is served in a row: some hundred entries of CUDA (inferred).
pub const BUDGET: Ns = Ns(200_000);

/// How long a worker keeps its lock.
pub const HOLD: Ns = Ns(1_000_000);

/// The rounds of a worker.
#[derive(Clone, Copy, Debug)]
pub struct Sweep {
    number: u64,
    began: Ns,
    /// Whether all bells were closed during all looks of this sweep.
    were_closed: bool,
}

/// The turns of one tenant.
#[derive(Clone, Copy, Debug, Default)]
pub struct Turns {
    /// The last sweep in which it had a turn.
    sweep: u64,
    /// The lane that comes next.
    next: usize,
    /// Whether lanes are served; before, it is looked whether any has something to do.
    serves: bool,
    /// Whether all bells were closed during the look, as far as it has come.
    were_closed: bool,
    began: Ns,
}

/// What follows a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The next lane.
    Next,
    /// The end of the turn, which was behind the last lane.
    Last,
    /// The end of the turn. The next one goes on behind the lane.
    Stop,
}

impl Sweep {
    /// The state of a worker that starts.
    pub const NEW: Self = Self {
        number: 1,
        began: Ns(0),
        were_closed: true,
    };

    /// Begins a round.
    pub fn begin(&mut self, now: Ns) {
        self.began = now;
    }

    /// Returns whether a tenant has yet to have its turn.
    pub const fn awaits(&self, turns: &Turns) -> bool {
        turns.sweep != self.number
    }

    /// Returns whether the round ends behind a turn.
    pub fn is_over(&self, now: Ns) -> bool {
        now - self.began >= HOLD
    }

    /// Takes note of a look at all lanes of a tenant, of which none had anything to do.
    pub fn looked(&mut self, turns: &Turns) {
        self.were_closed &= turns.were_closed;
    }

    /// Ends the sweep: each tenant has had its turn. Returns whether all bells were closed during
    /// all of its looks.
    pub fn end(&mut self) -> bool {
        self.number = self.number.wrapping_add(1);
        core::mem::replace(&mut self.were_closed, true)
    }
}

impl Turns {
    /// Begins a turn. `are_closed` says whether all bells are. Returns whether it goes on with
    /// lanes that are served.
    pub fn begin(&mut self, sweep: &Sweep, are_closed: bool, now: Ns) -> bool {
        self.sweep = sweep.number;
        self.began = now;
        let is_new = self.next == 0 && !self.serves;
        self.were_closed = are_closed && (is_new || self.were_closed);
        self.serves
    }

    /// Returns the number of the lane that comes next.
    pub const fn lane(&self) -> usize {
        self.next
    }

    /// Serves all lanes from the first on: one of them has something to do.
    pub fn serve(&mut self) {
        self.serves = true;
        self.next = 0;
    }

    /// Passes a lane of `count`.
    pub fn pass(&mut self, count: usize, now: Ns) -> Step {
        self.next = self.next.saturating_add(1);
        if self.next >= count {
            self.restart();
            return Step::Last;
        }
        match now - self.began >= BUDGET {
            true => Step::Stop,
            false => Step::Next,
        }
    }

    /// Begins with the first lane in the next turn.
    pub fn restart(&mut self) {
        self.serves = false;
        self.next = 0;
    }

    /// Follows the removal of a lane.
    pub fn removed(&mut self, lane: usize) {
        if lane < self.next {
            self.next = self.next.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec;
    use std::vec::Vec;

    /// The longest that a lane takes here.
    const LANE_MAX: u64 = 700_000;

    #[derive(Clone, Debug)]
    struct Tenant {
        rank: u8,
        /// The time that each of its lanes takes.
        lanes: Vec<u64>,
        turns: Turns,
        /// When each lane was served last, and when the last turn ended.
        served: Vec<u64>,
        ended: u64,
    }

    fn tenant() -> impl Strategy<Value = Tenant> {
        let lane = prop_oneof![3 => 0..3000_u64, 1 => 0..LANE_MAX];
        (0..3_u8, proptest::collection::vec(lane, 1..40)).prop_map(|(rank, lanes)| Tenant {
            rank,
            served: vec![0; lanes.len()],
            lanes,
            turns: Turns::default(),
            ended: 0,
        })
    }

    /// Serves the lanes of a tenant, as the worker does. Returns the time behind them.
    fn turn(tenant: &mut Tenant, sweep: &Sweep, mut now: u64) -> u64 {
        if !tenant.turns.begin(sweep, true, Ns(now)) {
            tenant.turns.serve();
        }
        loop {
            let at = tenant.turns.lane();
            now += tenant.lanes[at];
            tenant.served[at] = now;
            if tenant.turns.pass(tenant.lanes.len(), Ns(now)) != Step::Next {
                tenant.ended = now;
                return now;
            }
        }
    }

    /// Runs a round. Returns the time behind it.
    fn round(tenants: &mut [Tenant], sweep: &mut Sweep, mut now: u64) -> u64 {
        sweep.begin(Ns(now));
        loop {
            let waiting = tenants.iter_mut().filter(|one| sweep.awaits(&one.turns));
            let Some(next) = waiting.min_by_key(|one| one.rank) else {
                sweep.end();
                return now;
            };
            now = turn(next, sweep, now);
            if sweep.is_over(Ns(now)) {
                return now;
            }
        }
    }

    proptest! {
        /// Nobody waits for longer than the others' turns, and nobody keeps the lock for longer
        /// than it may, whatever lanes cost and in what order tenants come.
        #[test]
        fn nobody_waits_for_long(mut tenants in proptest::collection::vec(tenant(), 1..12)) {
            let turn_max = BUDGET.get() + LANE_MAX;
            // A pause of 1 ns follows each round.
            let wait_max = (turn_max + 1) * tenants.len() as u64 + 1;
            let (mut sweep, mut now) = (Sweep::NEW, 1);
            for tenant in &mut tenants {
                tenant.ended = now;
                tenant.served.fill(now);
            }
            for _ in 0..400 {
                let end = round(&mut tenants, &mut sweep, now);
                prop_assert!(end - now < HOLD.get() + turn_max);
                now = end + 1;
                for tenant in &tenants {
                    prop_assert!(now - tenant.ended <= wait_max);
                    // Each turn serves one lane at least.
                    let each = wait_max * (tenant.lanes.len() as u64 + 1);
                    prop_assert!(tenant.served.iter().all(|at| now - at <= each));
                }
            }
        }

        /// A tenant with a thousand channels is served as long as one with a few.
        #[test]
        fn lanes_do_not_count(cost in 20_000..LANE_MAX, few in 12..20_usize) {
            let with = |count| Tenant {
                rank: 0,
                lanes: vec![cost; count],
                turns: Turns::default(),
                served: vec![0; count],
                ended: 0,
            };
            let (mut many, mut few) = (with(1000), with(few));
            let (mut sweep, mut times) = (Sweep::NEW, [0, 0]);
            for _ in 0..few.lanes.len() {
                for (tenant, time) in [&mut many, &mut few].into_iter().zip(&mut times) {
                    *time += turn(tenant, &sweep, 0);
                }
                sweep.end();
            }
            prop_assert!(times[0] <= 2 * times[1], "{times:?}");
        }
    }

    #[test]
    fn a_turn_goes_on_where_the_last_one_has_stopped() {
        let (sweep, mut turns) = (Sweep::NEW, Turns::default());
        assert!(sweep.awaits(&turns) && !turns.begin(&sweep, true, Ns(0)));
        assert!(!sweep.awaits(&turns));
        assert_eq!(turns.pass(4, Ns(1)), Step::Next);
        // The second lane has something to do.
        turns.serve();
        assert_eq!(turns.lane(), 0);
        assert_eq!(turns.pass(4, Ns(2)), Step::Next);
        assert_eq!(turns.pass(4, BUDGET), Step::Stop);
        assert!(turns.begin(&sweep, true, BUDGET) && turns.lane() == 2);
        // Of the two that were served, one goes; then a later one.
        turns.removed(1);
        assert_eq!(turns.lane(), 1);
        turns.removed(1);
        assert_eq!(turns.lane(), 1);
        assert_eq!(turns.pass(2, BUDGET * 9), Step::Last);
        assert!(!turns.begin(&sweep, true, Ns(0)) && turns.lane() == 0);
    }

    /// A bell that was open while a tenant's first lanes were looked at may have been rung.
    #[test]
    fn bells_count_as_closed_for_whole_looks() {
        let (mut sweep, mut turns) = (Sweep::NEW, Turns::default());
        let mut look = |closed: [bool; 2]| {
            for (are_closed, last) in closed.into_iter().zip([Step::Stop, Step::Last]) {
                assert!(!turns.begin(&sweep, are_closed, Ns(0)));
                assert_eq!(turns.pass(2, BUDGET), last);
                if last == Step::Last {
                    sweep.looked(&turns);
                }
            }
            sweep.end()
        };
        assert!(!look([false, true]) && !look([true, false]));
        assert!(look([true, true]) && look([true, true]));
        // Nobody has looked.
        assert!(sweep.end());
    }
}
