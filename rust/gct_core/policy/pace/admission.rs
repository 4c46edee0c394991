// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Decides whether the next piece of a channel joins the work in flight.
//!
//! ```text
//! whole launch   pieces in flight < WHOLE_IN_FLIGHT, or all together end within the target;
//!                a piece without a prediction counts as long
//! atom           pieces in flight < in_flight, or < in_flight + run_ahead and no neighbour is near
//! alone          nothing in flight, or waited for DRAIN_MAX
//! ```

use super::Split;
use crate::policy::arrivals::IDLE_TIMEOUT_MAX;
use crate::units::{Ns, Sat};

/// Unsplit launches allowed in flight regardless of duration.
const WHOLE_IN_FLIGHT: u32 = 2;

/// How long a piece that must run alone waits for the channel to drain. A release word that the
/// program also uses for other things may never show the end of a piece.
pub const DRAIN_MAX: Ns = Ns(50_000_000);

/// Work in flight on one channel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InFlight {
    /// Launches and atoms.
    pub count: u32,
    /// Predicted duration of all of them.
    pub predicted: Ns,
    /// The TPCs that each was granted, added up.
    pub tpcs: u64,
    /// Pieces that were released because nothing ended ([`patience`](super::super::patience)).
    pub late: u32,
}

impl InFlight {
    /// Adds a released piece on so many TPCs.
    pub fn add(&mut self, predicted: Ns, tpcs: u64, late: bool) {
        self.tpcs = (Sat(self.tpcs) + Sat(tpcs)).0;
        self.count = (Sat(self.count) + Sat(1)).0;
        self.late = (Sat(self.late) + Sat(u32::from(late))).0;
        self.predicted += predicted;
    }

    /// Removes a piece that has ended or is not followed any more.
    pub fn remove(&mut self, predicted: Ns, tpcs: u64, late: bool) {
        self.tpcs = (Sat(self.tpcs) - Sat(tpcs)).0;
        self.count = (Sat(self.count) - Sat(1)).0;
        self.late = (Sat(self.late) - Sat(u32::from(late))).0;
        self.predicted = match self.count {
            0 => Ns(0),
            _ => self.predicted - predicted,
        };
    }
}

/// Returns whether a whole launch that is predicted to take `next` may join the work in flight. It
/// is 0 if that is unknown, as of a graph's replay.
pub fn admits_whole(in_flight: &InFlight, next: Ns, target: Ns) -> bool {
    let ends = || in_flight.predicted + unknown_is_long(next) <= target;
    in_flight.count < WHOLE_IN_FLIGHT || ends()
}

/// Returns whether an atom may join the work in flight. `alone` says whether no neighbour is
/// expected on the same TPCs until the work in flight and the atom have ended; it is asked only if
/// it matters.
pub fn admits_atom(in_flight: &InFlight, split: &Split, alone: impl FnOnce() -> bool) -> bool {
    let most = u64::from(split.in_flight.max(1));
    let count = u64::from(in_flight.count);
    count < most || (count < most + u64::from(split.run_ahead) && alone())
}

/// Returns the prediction, or the longest idle timeout for a prediction of 0, which is unknown. For
/// whoever decides how long TPCs will be held.
pub fn unknown_is_long(predicted: Ns) -> Ns {
    match predicted {
        Ns(0) => IDLE_TIMEOUT_MAX,
        known => known,
    }
}

/// Returns how long the next atom may hold its TPCs: until all pieces that may be in flight beside
/// it, with run-ahead, have ended. Each atom is predicted to take `atom`; 0 is unknown.
pub fn atom_holds(in_flight: &InFlight, split: &Split, atom: Ns) -> Ns {
    let atom = unknown_is_long(atom);
    let most = u64::from(split.in_flight) + u64::from(split.run_ahead);
    (atom * most).max(in_flight.predicted + atom)
}

/// Returns when a piece is released that must run alone, and has waited since `since`.
#[inline]
pub fn drained(in_flight: &InFlight, since: Ns) -> Ns {
    match in_flight.count {
        0 => Ns(0),
        _ => since + DRAIN_MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_launches_queue_up_to_the_target_and_two_always_go() {
        let mut in_flight = InFlight::default();
        assert!(admits_whole(&in_flight, Ns(u64::MAX), Ns(10)));
        in_flight.add(Ns(6), 1, false);
        assert!(admits_whole(&in_flight, Ns(500), Ns(10)));
        in_flight.add(Ns(3), 1, false);
        assert!(admits_whole(&in_flight, Ns(1), Ns(10)));
        assert!(!admits_whole(&in_flight, Ns(2), Ns(10)));
        in_flight.remove(Ns(6), 1, false);
        in_flight.remove(Ns(3), 1, false);
        assert_eq!(in_flight, InFlight::default());
    }

    /// Checks that replays of graphs do not queue, which nobody predicts.
    #[test]
    fn two_launches_without_a_prediction_are_in_flight_at_most() {
        let (mut in_flight, target) = (InFlight::default(), Ns(50_000));
        for admitted in [true, true, false] {
            assert_eq!(admits_whole(&in_flight, Ns(0), target), admitted);
            in_flight.add(Ns(0), 1, false);
        }
    }

    #[test]
    fn a_spare_atom_goes_where_nobody_is_expected() {
        let split = Split {
            atoms: 9,
            in_flight: 2,
            run_ahead: 1,
        };
        let mut in_flight = InFlight::default();
        let admits = |in_flight: &InFlight, split: &Split| {
            [false, true].map(|alone| admits_atom(in_flight, split, || alone))
        };
        for expected in [[true; 2], [true; 2], [false, true], [false; 2]] {
            assert_eq!(admits(&in_flight, &split), expected);
            in_flight.add(Ns(1), 1, false);
        }
        let none = Split {
            in_flight: 0,
            run_ahead: 0,
            ..split
        };
        assert_eq!(admits(&InFlight::default(), &none), [true; 2]);
    }

    #[test]
    fn an_atom_holds_its_tpcs_until_its_window_has_ended() {
        let split = Split {
            atoms: 9,
            in_flight: 4,
            run_ahead: 1,
        };
        let none = InFlight::default();
        assert_eq!(atom_holds(&none, &split, Ns(10)), Ns(50));
        // The work in flight may belong to another launch and last longer.
        let mut in_flight = none;
        in_flight.add(Ns(70), 1, false);
        assert_eq!(atom_holds(&in_flight, &split, Ns(10)), Ns(80));
        // No prediction, and not paced.
        let whole = Split {
            in_flight: 0,
            run_ahead: 0,
            ..split
        };
        assert_eq!(unknown_is_long(Ns(0)), IDLE_TIMEOUT_MAX);
        assert_eq!(unknown_is_long(Ns(1)), Ns(1));
        assert_eq!(atom_holds(&none, &whole, Ns(0)), IDLE_TIMEOUT_MAX);
        let most = Split {
            in_flight: u32::MAX,
            run_ahead: u32::MAX,
            ..split
        };
        assert_eq!(atom_holds(&in_flight, &most, Ns(u64::MAX)), Ns(u64::MAX));
    }

    #[test]
    fn a_piece_that_runs_alone_does_not_wait_for_ever() {
        let mut in_flight = InFlight::default();
        assert_eq!(drained(&in_flight, Ns(7)), Ns(0));
        in_flight.add(Ns(1), 1, false);
        assert_eq!(drained(&in_flight, Ns(7)), DRAIN_MAX + Ns(7));
    }
}
