// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Decides whether doorbells fault while no processor is spare to poll on.
//!
//! Terminology
//!   call    a function of the driver's library that rings and then returns; the backend interposes
//!           it and can publish when it returns
//!   open    doorbells do not fault: calls publish, and a look each [`LOOK`] finds other rings
//!   missed  found by a look while no call was in progress
//!
//! A fault costs 1 to 2 us, a publication behind a call a tenth of that. But a missed ring waits
//! for a look. So doorbells open after `needed` rings in a row from calls. The first miss arms them
//! again, and doubles `needed`:
//!
//! ```text
//! cost of misses, for each ring <= LOOK / needed      # 16 us at first, 16 ns in the end
//! ```
//!
//! A program that often rings in other ways, as in a copy that waits for its own end, soon keeps
//! its faults.

use crate::units::{Ns, Sat};

/// Time between two looks while doorbells are open.
pub const LOOK: Ns = Ns(1_000_000);
/// Time without a call after which doorbells are armed, so that an idle program costs nothing. A
/// service of 100 requests a second is not idle between most of them.
pub const IDLE: Ns = Ns(20_000_000);
/// Rings in a row from calls that open doorbells at first.
pub const NEEDED_MIN: u32 = 64;
/// Rings in a row that open them after many misses.
pub const NEEDED_MAX: u32 = 1 << 16;

/// Statistics of a program's rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Doorbells {
    /// Rings in a row that came from calls.
    row: u32,
    needed: u32,
}

impl Doorbells {
    /// Creates the statistics of a program without a history.
    pub const fn new() -> Self {
        Self {
            row: 0,
            needed: NEEDED_MIN,
        }
    }

    /// Learns of a ring that faulted.
    #[must_use]
    pub fn rang(self, by_call: bool) -> Self {
        let row = match by_call {
            true => (Sat(self.row) + Sat(1)).0,
            false => 0,
        };
        Self { row, ..self }
    }

    /// Returns whether doorbells may be open.
    pub const fn may_open(&self) -> bool {
        self.row >= self.needed
    }

    /// Learns that a look has found a missed ring.
    #[must_use]
    pub fn missed(self) -> Self {
        Self {
            row: 0,
            needed: (Sat(self.needed) * Sat(2)).0.min(NEEDED_MAX),
        }
    }

    /// Learns that the program is idle.
    #[must_use]
    pub const fn silent(self) -> Self {
        Self { row: 0, ..self }
    }
}

impl Default for Doorbells {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn after(doorbells: Doorbells, calls: u32) -> Doorbells {
        (0..calls).fold(doorbells, |doorbells, _| doorbells.rang(true))
    }

    #[test]
    fn calls_in_a_row_open_doorbells() {
        let doorbells = after(Doorbells::new(), NEEDED_MIN - 1);
        assert!(!doorbells.may_open() && after(doorbells, 1).may_open());
        let broken = after(doorbells.rang(false), NEEDED_MIN - 1);
        assert!(!broken.may_open());
        assert!(!after(Doorbells::new(), NEEDED_MIN).silent().may_open());
    }

    /// Runs of rings from calls, each followed by one that is missed if doorbells are open by then.
    #[test]
    fn misses_cost_less_and_less() {
        for run in [1, NEEDED_MIN, 1_000, 1 << 15] {
            let (mut doorbells, mut misses) = (Doorbells::new(), 0);
            for _ in 0..1_000 {
                doorbells = after(doorbells, run);
                doorbells = match doorbells.may_open() {
                    true => doorbells.missed(),
                    false => doorbells.rang(false),
                };
                misses += u32::from(doorbells.row == 0 && doorbells.needed > NEEDED_MIN);
                if doorbells.needed > run {
                    break;
                }
            }
            assert!(doorbells.needed > run, "runs of {run} keep their faults");
            assert!(misses <= 11, "{misses} misses in runs of {run}");
        }
    }

    proptest! {
        /// Checks that after any events `needed` is within its bounds, so doorbells can open again.
        #[test]
        fn doorbells_can_open_again(events in prop::collection::vec(0..4, 0..200)) {
            let mut doorbells = Doorbells::new();
            for event in events {
                doorbells = match event {
                    0 => doorbells.rang(true),
                    1 => doorbells.rang(false),
                    2 => doorbells.missed(),
                    _ => doorbells.silent(),
                };
            }
            prop_assert!(after(doorbells, NEEDED_MAX).may_open());
            prop_assert!(!after(doorbells.silent(), NEEDED_MIN - 1).may_open());
        }
    }
}
