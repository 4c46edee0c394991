// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Decides whether a program still repeats a step, and when that is looked at, for
//! [`super::prefetch`].
//!
//! Terminology
//!   step     the launches that a program repeats, each with a name
//!   doubt    how far the last launches differ from the step
//!   mark     a point between launches whose time on the GPU becomes known
//!   price    time that an exchange of two pieces takes
//!
//! ```text
//! expected launch   doubt - 1
//! any other         doubt + UNEXPECTED                    # a fifth may differ
//! forgotten         doubt > launches of the step + PATIENCE
//! searched          SEARCH_MIN launches later, or a quarter of those that are kept
//! marked            every launch while the step uses a remote piece, else every SELDOM
//! moves decided     before launches that use a remote piece, and once a step
//! ```
//!
//! A step that differs now and then, as one that prints a loss, finds its place again by the last
//! launches. When too many differ, the step is forgotten, and looked for anew.

use super::prefetch::PERIOD_MAX;
use crate::units::{Ns, Sat};

/// The launches that are kept: twice the longest period.
pub const LOG_MAX: usize = 2 * PERIOD_MAX;
/// Launches by which a place is found again.
pub const KNOWN: usize = 3;
/// Launches between two searches for a step, at least.
const SEARCH_MIN: u64 = 64;
/// What an unexpected launch counts; an expected one takes away 1.
const UNEXPECTED: u64 = 4;
/// Doubt beyond a period at which the step is forgotten.
const PATIENCE: u64 = 64;
/// The most launches between two marks that say how long each takes.
const APART_MAX: u64 = 4;
/// Launches between two marks while all that the step uses is on the GPU.
const SELDOM: u64 = 16;
/// Time of an exchange before one was made.
const PRICE: Ns = Ns(2_000_000);
/// Share of a new sample in it, as a divisor.
const PRICE_DECAY: u64 = 16;
/// Time without a launch after which rates decide again.
const LATELY: Ns = Ns(2_000_000_000);
/// Time for which nothing moves before launches after memory that cannot move has got room.
const REST: Ns = Ns(2_000_000_000);

/// How far the last launches differ from the step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Doubt(u64);

impl Doubt {
    /// Returns the doubt after a launch.
    #[must_use]
    pub fn after(self, is_expected: bool) -> Self {
        match is_expected {
            true => Self(self.0.saturating_sub(1)),
            false => Self(self.0.saturating_add(UNEXPECTED)),
        }
    }

    /// Returns whether a step of `period` launches is forgotten.
    pub fn is_lost(self, period: usize) -> bool {
        // CAST: widening.
        self.0 > (Sat(period as u64) + Sat(PATIENCE)).0
    }
}

/// Returns the launches until a step is looked for again, if `kept` were looked at now. The search
/// takes time in proportion to them.
pub fn search_after(kept: usize) -> u64 {
    // CAST: widening.
    (kept as u64 / 4).max(SEARCH_MIN)
}

/// Returns which launch of the step was the last one, by the names of the `last` ones, newest
/// first. Of several it is the first one from the `expected` one on.
pub fn place(step: &[u64], expected: usize, last: &[u64]) -> Option<usize> {
    let end = step.len().checked_sub(1)?;
    let was_last = |place: &usize| {
        let mut at = *place;
        last.iter().all(|name| {
            let is_same = step.get(at) == Some(name);
            at = at.checked_sub(1).unwrap_or(end);
            is_same
        })
    };
    let expected = expected.min(end);
    (expected..step.len()).chain(0..expected).find(was_last)
}

/// Returns the launches between two marks that are of use to a program that repeats a step.
pub fn marks_every(uses_remote: bool) -> u64 {
    match uses_remote {
        true => 1,
        false => SELDOM,
    }
}

/// Returns whether a launch looks for moves: if it uses a remote piece, or if its number has
/// reached `again`. To look takes longer than to launch.
pub fn decides(uses_remote: bool, number: u64, again: u64) -> bool {
    uses_remote || number >= again
}

/// Returns the number at which launches look again, if the launch with this one found no move: a
/// step later.
pub fn again_after(number: u64, period: usize) -> u64 {
    // CAST: widening.
    (Sat(number) + Sat(period as u64)).0
}

/// Returns whether the time between two marks that are so many launches apart says how long each
/// takes.
pub fn tells(apart: u64) -> bool {
    apart <= APART_MAX
}

/// Returns whether launches could wait for moves lately, if one did so last at `asked`.
pub fn is_recent(asked: Ns, now: Ns) -> bool {
    now - asked <= LATELY
}

/// Returns until when nothing moves before launches: the driver has refused a move now, or there is
/// room for memory that cannot move.
pub fn rests_until(now: Ns) -> Ns {
    now + REST
}

/// What an exchange takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Price(Ns);

impl Price {
    /// Returns the time.
    pub const fn get(self) -> Ns {
        self.0
    }

    /// Returns the price after so many exchanges in a row took `took`.
    #[must_use]
    pub fn after(self, moves: u64, took: Ns) -> Self {
        match moves {
            0 => self,
            _ => Self(self.0 - self.0 / PRICE_DECAY + took / moves / PRICE_DECAY),
        }
    }
}

impl Default for Price {
    fn default() -> Self {
        Self(PRICE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    /// Returns after how many launches a step is forgotten if each `other`th is not expected.
    fn forgotten_after(other: usize, period: usize) -> Option<usize> {
        let mut doubt = Doubt::default();
        (1..10_000).find(|number| {
            doubt = doubt.after(number % other != 0);
            doubt.is_lost(period)
        })
    }

    #[test]
    fn a_step_of_which_a_fifth_differs_is_not_forgotten() {
        assert_eq!(forgotten_after(5, 1), None);
        assert!(forgotten_after(4, 1).is_some());
    }

    #[test]
    fn a_program_that_does_something_else_forgets_its_step_within_it() {
        for period in [1, 100, PERIOD_MAX] {
            let after = forgotten_after(1, period).unwrap();
            assert!(after <= period / 4 + 17, "{period}: {after}");
        }
    }

    #[test]
    fn a_place_is_found_by_the_last_launches() {
        let step = [1, 2, 3, 1, 2, 4];
        // Newest first, over the end of the step, too.
        assert_eq!(place(&step, 0, &[3, 2, 1]), Some(2));
        assert_eq!(place(&step, 0, &[1, 4, 2]), Some(0));
        // Of two, the first from the expected one on.
        assert_eq!(place(&step, 2, &[2, 1]), Some(4));
        assert_eq!(place(&step, 5, &[2, 1]), Some(1));
        assert_eq!(place(&step, 0, &[4, 3]), None);
        assert_eq!(place(&[], 3, &[1]), None);
        // More launches than the step has, and a place that it has not.
        assert_eq!(place(&[7], 9, &[7, 7, 7]), Some(0));
    }

    #[test]
    fn a_long_log_is_searched_less_often() {
        let after: Vec<u64> = [0, 100, 1_000, LOG_MAX].map(search_after).into();
        assert_eq!(after, [64, 64, 250, 4_096]);
    }

    #[test]
    fn moves_are_decided_once_a_step_where_all_is_on_the_gpu() {
        let (mut again, mut decided) = (0, Vec::new());
        for number in 7..40 {
            if decides(number == 20, number, again) {
                again = again_after(number, 10);
                decided.push(number);
            }
        }
        assert_eq!(decided, [7, 17, 20, 30]);
    }

    #[test]
    fn a_price_follows_what_exchanges_take() {
        let mut price = Price::default();
        assert_eq!(price.after(0, Ns(1)), price);
        for _ in 0..200 {
            price = price.after(4, Ns(40_000_000));
        }
        assert!(price.get() > Ns(9_900_000) && price.get() <= Ns(10_000_000));
    }
}
