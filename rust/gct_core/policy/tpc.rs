// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Which TPCs a tenant may use now (LithOS, section 5.3), and whether it must wait (Tally).
//!
//! A quota reserves TPCs ([`reserve`]); those that nobody reserves belong to all. Reserved ones are lent, to those who may
//! steal, while their owner is away ([`grant`]): when it has been idle for longer than it usually is between two pieces of
//! work, or when what the borrower wants to run will have ended before the owner usually comes back. They are taken back
//! at the borrower's next atom, because each atom is masked when it is let go. What an owner's habits are, it learns from
//! its own pauses ([`Habit`]).
//!
//! Priority orders those who share TPCs: a tenant waits as long as one of an earlier priority, that has none of its own, has
//! work ([`waits`]).

use crate::mask::TpcMask;
use crate::units::{Ns, Priority};

/// A shorter pause is part of a piece of work: the launches of one request follow each other like that.
pub const PAUSE_MIN: Ns = Ns(50_000);
/// An owner is never taken for silent before.
pub const LINGER_MIN: Ns = Ns(500_000);
/// An owner that has been idle for so long is silent, however it usually works.
pub const LINGER_MAX: Ns = Ns(20_000_000);

/// How long a tenant usually has no work between two pieces of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Habit {
    /// Hardly ever longer.
    pub longest: Ns,
    /// Hardly ever shorter; 0 where nothing is known.
    pub shortest: Ns,
}

impl Habit {
    /// The habit after one more pause. What is out of the ordinary counts at once, what is ordinary little by little. A
    /// pause after which the TPCs are lent in any case says nothing, and one within a piece of work neither.
    #[must_use]
    pub fn after(self, pause: Ns) -> Self {
        if pause < PAUSE_MIN || pause > LINGER_MAX {
            return self;
        }
        let longest = self.longest.get();
        let longest = longest.saturating_sub(longest.div_ceil(16));
        let shortest = match self.shortest.get() {
            0 => pause.get(),
            known if pause.get() < known => pause.get(),
            known => known.saturating_add(pause.get().saturating_sub(known).wrapping_shr(6)),
        };
        Self {
            longest: Ns(pause.get().max(longest)),
            shortest: Ns(shortest),
        }
    }

    /// Both in one word, in microseconds, for neighbours to read at once.
    pub fn to_word(self) -> u64 {
        // CAST: pauses are not longer than `LINGER_MAX`.
        let micros = |time: Ns| time.get().wrapping_div(1_000) & 0xffff_ffff;
        micros(self.longest).wrapping_shl(32) | micros(self.shortest)
    }

    /// What [`to_word`](Self::to_word) made; whatever the word is, it is some habit.
    pub const fn from_word(word: u64) -> Self {
        Self {
            longest: Ns((word >> 32).wrapping_mul(1_000)),
            shortest: Ns((word & 0xffff_ffff).wrapping_mul(1_000)),
        }
    }
}

/// Another tenant of the same GPU, as its limits and its activity are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// The TPCs that are reserved for it.
    pub own: TpcMask,
    /// Whether others may use them while it is away.
    pub lends: bool,
    /// `compute.priority`, 0 first.
    pub priority: Priority,
    /// Whether it has work that has not ended.
    pub busy: bool,
    /// For how long it has had none.
    pub idle: Ns,
    /// How long that usually is.
    pub habit: Habit,
}

impl Neighbour {
    /// Whether its reserved TPCs can be lent for `time`: it is silent, or it will not come back before.
    pub fn away_for(&self, time: Ns) -> bool {
        if self.busy || self.idle < PAUSE_MIN {
            return false;
        }
        let twice = Ns(self.habit.longest.get().saturating_mul(2));
        let linger = twice.max(LINGER_MIN).min(LINGER_MAX);
        let back = self.idle.get().saturating_add(time.get());
        // An eighth is left for what is not quite as usual.
        let shortest = self.habit.shortest.get();
        let early = shortest.saturating_sub(shortest.wrapping_shr(3));
        self.idle >= linger || back <= early
    }
}

/// The TPCs that a quota reserves for a tenant: the lowest that it may use, that exist, and that are not in `reserved` for
/// others. `None` is the quota `max`, which reserves none.
pub fn reserve(
    allowed: &TpcMask,
    existing: &TpcMask,
    reserved: &TpcMask,
    quota: Option<u16>,
) -> TpcMask {
    let free = allowed.and(existing).without(reserved);
    free.lowest(u32::from(quota.unwrap_or(0)))
}

/// The TPCs that a tenant with the mask `allowed` may use now for something that will have ended in `time`. None at all is
/// an order to wait.
pub fn grant(allowed: &TpcMask, steal: bool, time: Ns, neighbours: &[Neighbour]) -> TpcMask {
    let mut granted = *allowed;
    for neighbour in neighbours {
        if !(steal && neighbour.lends && neighbour.away_for(time)) {
            granted = granted.without(&neighbour.own);
        }
    }
    granted
}

/// Whether a tenant must wait: it was granted no TPC, or one of an earlier priority has work on the TPCs that all share.
pub fn waits(granted: &TpcMask, priority: Priority, neighbours: &[Neighbour]) -> bool {
    granted.is_empty()
        || neighbours.iter().any(|neighbour| {
            neighbour.busy && neighbour.own.is_empty() && neighbour.priority < priority
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    const LATE: Ns = Ns(1_000_000_000);

    fn neighbour(own: &str, busy: bool, idle: Ns) -> Neighbour {
        Neighbour {
            own: list(own),
            lends: true,
            priority: Priority(8),
            busy,
            idle,
            habit: Habit::default(),
        }
    }

    fn list(text: &str) -> TpcMask {
        TpcMask::parse(text.as_bytes()).unwrap_or(TpcMask::EMPTY)
    }

    #[test]
    fn a_quota_takes_what_exists_and_is_free() {
        let existing = list("0-3,9-16,18-19");
        let all = TpcMask::first(256);
        let first = reserve(&all, &existing, &TpcMask::EMPTY, Some(5));
        assert_eq!(first, list("0-3,9"));
        let second = reserve(&list("2-30"), &existing, &first, Some(3));
        assert_eq!(second, list("10-12"));
        assert_eq!(
            reserve(&all, &existing, &first, Some(99)),
            existing.without(&first)
        );
        assert!(reserve(&all, &existing, &first, None).is_empty());
    }

    #[test]
    fn quota_first_and_idle_tpcs_are_lent() {
        let all = list("0-19");
        let soon = Ns(1);
        let busy = neighbour("0-4", true, Ns(0));
        assert_eq!(grant(&all, true, soon, &[busy]), list("5-19"));
        let silent = neighbour("0-4", false, LATE);
        assert_eq!(grant(&all, true, soon, &[silent]), all);
        assert_eq!(grant(&all, false, soon, &[silent]), list("5-19"));
        let mean = Neighbour {
            lends: false,
            ..silent
        };
        assert_eq!(grant(&all, true, soon, &[mean]), list("5-19"));
        let none = grant(&list("0-4"), true, soon, &[busy]);
        assert!(waits(&none, Priority(0), &[busy]));
    }

    #[test]
    fn what_ends_before_the_owner_comes_back_may_use_its_tpcs() {
        let ms = |ms: u64| Ns(ms * 1_000_000);
        let habit = Habit::default().after(ms(8));
        let pausing = |idle| Neighbour {
            habit,
            ..neighbour("0-4", false, idle)
        };
        assert!(pausing(ms(1)).away_for(ms(6)));
        assert!(!pausing(ms(2)).away_for(ms(6)), "an eighth is kept");
        // Late, but not so late that it must be silent.
        assert!(!pausing(ms(9)).away_for(Ns(1)));
        assert!(pausing(ms(16)).away_for(LATE));
        // Between two launches of one request.
        assert!(!pausing(Ns(49_999)).away_for(Ns(1)));
        // Nothing known: the shortest time of silence.
        assert!(!neighbour("0", false, Ns(499_999)).away_for(Ns(1)));
        assert!(neighbour("0", false, LINGER_MIN).away_for(Ns(1)));
    }

    #[test]
    fn a_later_priority_waits_where_tpcs_are_shared() {
        let first = Neighbour {
            priority: Priority(0),
            ..neighbour("", true, Ns(0))
        };
        let all = list("0-7");
        assert!(waits(&all, Priority(8), &[first]));
        assert!(!waits(&all, Priority(0), &[first]));
        let idle = Neighbour {
            busy: false,
            ..first
        };
        assert!(!waits(&all, Priority(8), &[idle]));
        let apart = Neighbour {
            own: list("0-3"),
            ..first
        };
        assert!(!waits(&all, Priority(8), &[apart]));
    }

    #[test]
    fn habits_follow_the_extremes_at_once_and_the_rest_slowly() {
        let ms = |ms: u64| Ns(ms * 1_000_000);
        let once = Habit::default().after(ms(2));
        assert_eq!((once.longest, once.shortest), (ms(2), ms(2)));
        // Neither a pause within a request nor the end of all work is a habit.
        assert_eq!(once.after(Ns(3_000)).after(LATE), once);
        let both = once.after(ms(6)).after(ms(1));
        assert_eq!(both.shortest, ms(1));
        assert!(both.longest > ms(5));
        let mut steady = both;
        for _ in 0..1000 {
            steady = steady.after(ms(3));
        }
        assert_eq!(steady.longest, ms(3));
        assert!(steady.shortest > Ns(2_990_000) && steady.shortest <= ms(3));
        assert_eq!(Habit::from_word(once.to_word()), once);
    }

    fn any_mask() -> impl Strategy<Value = TpcMask> {
        any::<[u64; 4]>().prop_map(TpcMask::from_words)
    }

    proptest! {
        /// Whatever the masks and quotas are, reservations are disjoint, and no grant touches one whose owner is there.
        #[test]
        fn reservations_are_kept(
            tenants in prop::collection::vec(
                (any_mask(), prop::option::of(0u16..80), any::<bool>(), any::<bool>(), 0u64..40_000_000, any::<u64>()),
                1..8,
            ),
            existing in any_mask(),
            time in 0u64..10_000_000,
        ) {
            let mut reserved = TpcMask::EMPTY;
            let mut all: Vec<Neighbour> = Vec::new();
            for &(allowed, quota, lends, busy, idle, word) in &tenants {
                let own = reserve(&allowed, &existing, &reserved, quota);
                prop_assert!(own.and(&reserved).is_empty());
                prop_assert!(own.count() <= u32::from(quota.unwrap_or(0)));
                reserved = reserved.or(&own);
                let habit = Habit::from_word(word);
                all.push(Neighbour { own, lends, priority: Priority(8), busy, idle: Ns(idle), habit });
            }
            for (me, &(allowed, _, steal, ..)) in tenants.iter().enumerate() {
                let others: Vec<Neighbour> =
                    all.iter().enumerate().filter(|(i, _)| *i != me).map(|(_, n)| *n).collect();
                let granted = grant(&allowed, steal, Ns(time), &others);
                prop_assert!(granted.without(&allowed).is_empty());
                prop_assert!(all[me].own.without(&granted).is_empty(), "its own are its own");
                for other in &others {
                    let kept = other.busy || !other.away_for(Ns(time)) || !other.lends || !steal;
                    prop_assert!(!kept || granted.and(&other.own).is_empty());
                }
            }
        }
    }
}
