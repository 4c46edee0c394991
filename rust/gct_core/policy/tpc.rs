// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Decides which TPCs a tenant may use now (LithOS, section 5.3), and whether it must wait (Tally).
//!
//! Terminology
//!   own     the TPCs that a quota reserves for a tenant ([`reserve`])
//!   shared  all others that it may use: nobody's, or lent
//!   rank    order in which tenants with work get shared TPCs: best effort (quota 0) last, else by `compute.priority`
//!
//! ```text
//! granted = allowed - own of others, unless lent - what a busy neighbour of an earlier rank may use + own
//! ```
//!
//! An empty grant is an order to wait, so a launch never gets a mask without a TPC.
//!
//! Own TPCs are lent, to those who may steal, while their owner is away ([`Neighbour::can_lend_for`]): when it has been idle for
//! longer than it usually is between two requests, when what the borrower wants to run will have ended before the owner
//! usually comes back, or when that is short beside what the owner does, so that to wait for it costs the owner little. They
//! are taken back at the borrower's next atom, because each atom is masked when it is released. Each owner's arrival
//! pattern is learned from its own history ([`ArrivalStats`]).

use super::arrivals::{ArrivalStats, PAUSE_MIN};
use crate::mask::TpcMask;
use crate::units::{Ns, Priority};

/// Order in which tenants with work get TPCs that are reserved for none of them, first to last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank {
    /// A quota of 0: it yields to everybody else.
    pub best_effort: bool,
    /// `compute.priority`, 0 first.
    pub priority: Priority,
}

/// A tenant that wants to run something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tenant {
    /// The TPCs that exist and that its mask allows.
    pub allowed: TpcMask,
    /// The TPCs that are reserved for it.
    pub own: TpcMask,
    /// Whether it may take TPCs of others that are away.
    pub steal: bool,
    /// Its place in the order.
    pub rank: Rank,
}

/// Another tenant of the same GPU, as its limits and its activity are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// The TPCs that are reserved for it.
    pub own: TpcMask,
    /// The TPCs that its mask allows.
    pub allowed: TpcMask,
    /// Whether others may use what is reserved while it is away.
    pub lends: bool,
    /// Its place in the order.
    pub rank: Rank,
    /// Whether it has work that has not ended.
    pub busy: bool,
    /// For how long it has had none.
    pub idle: Ns,
    /// Its arrival statistics.
    pub arrivals: ArrivalStats,
}

impl Neighbour {
    /// Whether its reserved TPCs can be lent for `time`: it is silent, will not come back before, or hardly notices.
    pub fn can_lend_for(&self, time: Ns) -> bool {
        if self.busy || self.idle < PAUSE_MIN {
            return false;
        }
        let back = self.idle + time;
        self.idle >= self.arrivals.idle_timeout()
            || back <= self.arrivals.early()
            || (self.arrivals.request > Ns(0) && time <= self.arrivals.tolerance())
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

/// The TPCs that a tenant may use now for something that will have ended in `time`. None at all is an order to wait.
pub fn grant(tenant: &Tenant, time: Ns, neighbours: &[Neighbour]) -> TpcMask {
    let own = tenant.own.and(&tenant.allowed);
    let mut granted = tenant.allowed;
    for neighbour in neighbours {
        if !(tenant.steal && neighbour.lends && neighbour.can_lend_for(time)) {
            granted = granted.without(&neighbour.own);
        }
        if neighbour.busy && neighbour.rank < tenant.rank {
            granted = granted.without(&neighbour.allowed);
        }
    }
    granted.or(&own)
}

/// Whether nobody is expected for `time` on the TPCs that a tenant shares: each neighbour is away, or has some of its own
/// and comes no earlier.
pub fn nobody_expected(rank: Rank, time: Ns, neighbours: &[Neighbour]) -> bool {
    let elsewhere = |n: &Neighbour| !n.own.is_empty() && n.rank >= rank;
    neighbours
        .iter()
        .all(|n| elsewhere(n) || n.can_lend_for(time))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::arrivals::IDLE_TIMEOUT_MIN;
    use crate::testing::random_pauses;
    use proptest::prelude::*;
    use std::vec::Vec;

    const LATE: Ns = Ns(1_000_000_000);

    fn rank(priority: u8) -> Rank {
        Rank {
            best_effort: false,
            priority: Priority(priority),
        }
    }

    fn neighbour(own: &str, busy: bool, idle: Ns) -> Neighbour {
        Neighbour {
            own: list(own),
            allowed: TpcMask::first(128),
            lends: true,
            rank: rank(8),
            busy,
            idle,
            arrivals: ArrivalStats::default(),
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

    /// A tenant without a quota, of priority 8.
    fn tenant(allowed: &str) -> Tenant {
        Tenant {
            allowed: list(allowed),
            own: TpcMask::EMPTY,
            steal: true,
            rank: rank(8),
        }
    }

    #[test]
    fn quota_first_and_idle_tpcs_are_lent() {
        let me = tenant("0-19");
        let soon = Ns(1);
        let busy = neighbour("0-4", true, Ns(0));
        assert_eq!(grant(&me, soon, &[busy]), list("5-19"));
        let silent = neighbour("0-4", false, LATE);
        assert_eq!(grant(&me, soon, &[silent]), list("0-19"));
        let honest = Tenant { steal: false, ..me };
        assert_eq!(grant(&honest, soon, &[silent]), list("5-19"));
        let mean = Neighbour {
            lends: false,
            ..silent
        };
        assert_eq!(grant(&me, soon, &[mean]), list("5-19"));
        assert!(grant(&tenant("0-4"), soon, &[busy]).is_empty(), "it waits");
    }

    /// Measured on an H200 with 128 bits for 66 TPCs: a third tenant was granted bits that have none.
    #[test]
    fn where_all_is_reserved_a_third_waits_until_somebody_is_away() {
        let me = tenant("0-3,9-16");
        let (one, two) = (
            neighbour("0-3,9-10", true, Ns(0)),
            neighbour("11-16", true, Ns(0)),
        );
        assert!(grant(&me, Ns(1), &[one, two]).is_empty());
        let away = neighbour("11-16", false, LATE);
        assert_eq!(grant(&me, Ns(1), &[one, away]), list("11-16"));
    }

    #[test]
    fn what_ends_before_the_owner_comes_back_may_use_its_tpcs() {
        let ms = |ms: u64| Ns(ms * 1_000_000);
        let arrivals = ArrivalStats::default().after(Ns(100_000), ms(8));
        let pausing = |idle| Neighbour {
            arrivals,
            ..neighbour("0-4", false, idle)
        };
        assert!(pausing(ms(1)).can_lend_for(ms(6)));
        assert!(!pausing(ms(2)).can_lend_for(ms(6)), "an eighth is kept");
        // Late, but not so late that it must be silent.
        assert!(!pausing(Ns(8_999_999)).can_lend_for(ms(1)));
        assert!(
            pausing(ms(9)).can_lend_for(LATE),
            "an eighth late is silent"
        );
        // Between two launches of one request.
        assert!(!pausing(Ns(49_999)).can_lend_for(Ns(1)));
        // Nothing known: the shortest time of silence.
        assert!(!neighbour("0", false, Ns(499_999)).can_lend_for(Ns(1)));
        assert!(neighbour("0", false, IDLE_TIMEOUT_MIN).can_lend_for(Ns(1)));
    }

    /// An earlier one comes first on whatever is not reserved, whether it has a quota or not.
    #[test]
    fn an_earlier_priority_with_work_comes_first() {
        let me = tenant("0-7");
        let early = |own: &str, busy| Neighbour {
            rank: rank(0),
            ..neighbour(own, busy, Ns(0))
        };
        for own in ["", "0-3"] {
            assert!(grant(&me, Ns(1), &[early(own, true)]).is_empty(), "{own}");
            let first = Tenant {
                rank: rank(0),
                ..me
            };
            let rest = list("0-7").without(&list(own));
            assert_eq!(grant(&first, Ns(1), &[early(own, true)]), rest);
            assert_eq!(grant(&me, Ns(1), &[early(own, false)]), rest);
        }
        // What is reserved for the later one stays its own, and what the earlier one may not use is free.
        let mine = Tenant {
            own: list("6-7"),
            ..me
        };
        assert_eq!(grant(&mine, Ns(1), &[early("", true)]), list("6-7"));
        let masked = Neighbour {
            allowed: list("0-2"),
            ..early("", true)
        };
        assert_eq!(grant(&me, Ns(1), &[masked]), list("3-7"));
    }

    #[test]
    fn best_effort_yields_to_everybody_with_work() {
        let least = Rank {
            best_effort: true,
            priority: Priority(0),
        };
        let me = Tenant {
            rank: least,
            ..tenant("0-7")
        };
        let late = Neighbour {
            rank: rank(15),
            ..neighbour("", true, Ns(0))
        };
        assert!(grant(&me, Ns(1), &[late]).is_empty());
        let idle = Neighbour {
            busy: false,
            ..late
        };
        assert_eq!(grant(&me, Ns(1), &[idle]), list("0-7"));
        // Nobody else yields to it, but those that are best effort too and come later.
        let other = Neighbour {
            rank: least,
            ..late
        };
        assert_eq!(grant(&tenant("0-7"), Ns(1), &[other]), list("0-7"));
        let later = Tenant {
            rank: Rank {
                priority: Priority(1),
                ..least
            },
            ..me
        };
        assert!(grant(&later, Ns(1), &[other]).is_empty());
    }

    #[test]
    fn who_has_tpcs_of_its_own_or_is_away_is_not_expected() {
        let soon = Ns(1);
        let (own, away) = (neighbour("0-4", true, Ns(0)), neighbour("", false, LATE));
        let expected = |neighbours: &[Neighbour]| !nobody_expected(rank(8), soon, neighbours);
        assert!(!expected(&[]));
        assert!(!expected(&[own, away]));
        let here = neighbour("", false, Ns(499_999));
        assert!(expected(&[own, here]));
        assert!(expected(&[neighbour("", true, Ns(0))]));
        // One that comes first wants what is shared, too.
        let first = Neighbour {
            rank: rank(7),
            ..own
        };
        assert!(expected(&[first]));
    }

    #[test]
    fn what_is_short_beside_a_request_may_use_its_tpcs() {
        let arrivals = ArrivalStats::default()
            .after(Ns(1_600_000), Ns(60_000))
            .after(Ns(2_000_000), Ns(19_000_000));
        let pausing = |idle| Neighbour {
            arrivals,
            ..neighbour("0-4", false, idle)
        };
        let random = pausing(Ns(9_000_000));
        assert!(random.can_lend_for(Ns(100_000)), "a sixteenth of 1.6 ms");
        assert!(!random.can_lend_for(Ns(120_000)));
        assert!(!pausing(Ns(49_999)).can_lend_for(Ns(1)), "within a request");
        // Nothing known: not even for no time.
        let new = neighbour("0-4", false, PAUSE_MIN);
        assert!(!new.can_lend_for(Ns(0)));
    }

    /// How many of so many random pauses, `mean` nanoseconds on average, are such that their end finds the TPCs lent to atoms of
    /// 100 us.
    fn surprises(mean: f64, pauses: usize) -> usize {
        const ATOM: Ns = Ns(100_000);
        let (mut arrivals, mut surprised) = (ArrivalStats::default(), 0);
        for pause in random_pauses(mean).take(pauses) {
            // When the last atom was let go that the end of the pause may meet.
            let before = pause - ATOM / 2;
            let owner = Neighbour {
                arrivals,
                ..neighbour("0-4", false, before)
            };
            surprised += usize::from(owner.can_lend_for(ATOM));
            arrivals = arrivals.after(Ns(25_000), pause);
        }
        surprised
    }

    #[test]
    fn few_random_arrivals_find_their_tpcs_lent() {
        const PAUSES: usize = 20_000;
        for mean in [250_000.0, 1_000_000.0, 2_500_000.0] {
            let surprised = surprises(mean, PAUSES);
            assert!(
                surprised < PAUSES / 200,
                "{surprised} of {PAUSES} at {mean}"
            );
        }
    }

    fn any_mask() -> impl Strategy<Value = TpcMask> {
        any::<[u64; 4]>().prop_map(TpcMask::from_words)
    }

    fn any_rank() -> impl Strategy<Value = Rank> {
        (any::<bool>(), 0u8..16).prop_map(|(best_effort, priority)| Rank {
            best_effort,
            priority: Priority(priority),
        })
    }

    proptest! {
        /// Whatever the masks, quotas and holes are: reservations are disjoint, no grant touches one whose owner is there, each
        /// has its own whoever works, nobody runs where an earlier one with work may, and what is granted exists.
        #[test]
        fn reservations_are_kept(
            tenants in prop::collection::vec(
                (
                    any_mask(), prop::option::of(0u16..80), any::<bool>(), any::<bool>(), any::<bool>(),
                    0u64..40_000_000, any::<u64>(), any_rank(),
                ),
                1..8,
            ),
            existing in any_mask(),
            time in 0u64..10_000_000,
        ) {
            let mut reserved = TpcMask::EMPTY;
            let mut all: Vec<(Tenant, Neighbour)> = Vec::new();
            for &(allowed, quota, steal, lends, busy, idle, word, rank) in &tenants {
                let allowed = allowed.and(&existing);
                let own = reserve(&allowed, &existing, &reserved, quota);
                prop_assert!(own.and(&reserved).is_empty());
                let free = allowed.without(&reserved).count();
                prop_assert_eq!(own.count(), free.min(u32::from(quota.unwrap_or(0))), "no promise is missed");
                reserved = reserved.or(&own);
                let arrivals = ArrivalStats::from_word(word);
                let neighbour = Neighbour { own, allowed, lends, rank, busy, idle: Ns(idle), arrivals };
                all.push((Tenant { allowed, own, steal, rank }, neighbour));
            }
            for (number, (me, _)) in all.iter().enumerate() {
                let others = all.iter().enumerate().filter(|(other, _)| *other != number);
                let others: Vec<Neighbour> = others.map(|(_, (_, neighbour))| *neighbour).collect();
                let granted = grant(me, Ns(time), &others);
                prop_assert!(granted.without(&existing).is_empty(), "it exists");
                prop_assert!(granted.without(&me.allowed).is_empty());
                prop_assert!(me.own.without(&granted).is_empty(), "its own are its own");
                for other in &others {
                    let kept = other.busy || !other.can_lend_for(Ns(time)) || !other.lends || !me.steal;
                    prop_assert!(!kept || granted.and(&other.own).is_empty());
                    let first = other.busy && other.rank < me.rank;
                    prop_assert!(!first || granted.without(&me.own).and(&other.allowed).is_empty());
                }
                let hindered = others.iter().any(|other| other.busy && other.rank < me.rank);
                let left = me.allowed.without(&reserved);
                prop_assert!(hindered || left.without(&granted).is_empty(), "what nobody reserved is there for all");
            }
        }
    }
}
