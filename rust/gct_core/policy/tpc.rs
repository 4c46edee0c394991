// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Which TPCs a tenant may use now (LithOS, section 5.3), and whether it must wait (Tally).
//!
//! A quota reserves TPCs ([`reserve`]); those that nobody reserves belong to all. Reserved ones are lent while their owner is
//! silent, to those who may steal, and are taken back at the borrower's next atom, because each atom is masked when it is
//! let go ([`grant`]). An owner that works at intervals is not silent in between: when it is idle for longer than it
//! usually is, its TPCs are lent.
//!
//! Priority orders those who share TPCs: a tenant waits as long as one of an earlier priority, that has none of its own, has
//! work ([`waits`]).

use crate::mask::TpcMask;
use crate::units::{Ns, Priority};

/// An owner is never taken for silent before.
pub const LINGER_MIN: Ns = Ns(500_000);
/// An owner that has been idle for so long is silent, however it usually works.
pub const LINGER_MAX: Ns = Ns(20_000_000);

/// Another tenant of the same GPU, as its limits and its activity are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// The TPCs that are reserved for it.
    pub own: TpcMask,
    /// Whether others may use them while it is silent.
    pub lends: bool,
    /// `compute.priority`, 0 first.
    pub priority: Priority,
    /// Whether it has work that has not ended.
    pub busy: bool,
    /// For how long it has had none.
    pub idle: Ns,
    /// How long it usually has none between two pieces of work: [`gap`].
    pub gap: Ns,
}

impl Neighbour {
    /// Whether its reserved TPCs are kept free for it.
    pub fn present(&self) -> bool {
        let twice = Ns(self.gap.get().saturating_mul(2));
        self.busy || self.idle < twice.clamp(LINGER_MIN, LINGER_MAX)
    }
}

/// The usual pause of a tenant, after one more `pause`: a longer one counts at once, shorter ones little by little. A
/// pause after which its TPCs are lent in any case says nothing.
pub fn gap(usual: Ns, pause: Ns) -> Ns {
    let usual = usual.get();
    if pause > LINGER_MAX {
        return Ns(usual);
    }
    Ns(pause.get().max(usual.saturating_sub(usual.div_ceil(16))))
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

/// The TPCs that a tenant with the mask `allowed` may use now. None at all is an order to wait.
pub fn grant(allowed: &TpcMask, steal: bool, neighbours: &[Neighbour]) -> TpcMask {
    let mut granted = *allowed;
    for neighbour in neighbours {
        if neighbour.present() || !neighbour.lends || !steal {
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
            gap: Ns(0),
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
        let busy = neighbour("0-4", true, Ns(0));
        assert_eq!(grant(&all, true, &[busy]), list("5-19"));
        let silent = neighbour("0-4", false, LATE);
        assert_eq!(grant(&all, true, &[silent]), all);
        assert_eq!(grant(&all, false, &[silent]), list("5-19"));
        let mean = Neighbour {
            lends: false,
            ..silent
        };
        assert_eq!(grant(&all, true, &[mean]), list("5-19"));
        // Silent for less than it usually is.
        let pausing = Neighbour {
            gap: Ns(5_000_000),
            idle: Ns(6_000_000),
            ..silent
        };
        assert_eq!(grant(&all, true, &[pausing]), list("5-19"));
        assert!(waits(
            &grant(&list("0-4"), true, &[busy]),
            Priority(0),
            &[busy]
        ));
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
    fn the_usual_pause_grows_at_once_and_shrinks_slowly() {
        assert_eq!(gap(Ns(100), Ns(2_000_000)), Ns(2_000_000));
        assert!(gap(Ns(2_000_000), Ns(3)) > Ns(1_800_000));
        assert_eq!(gap(Ns(7), LATE), Ns(7));
        let mut usual = Ns(20_000_000);
        for _ in 0..500 {
            usual = gap(usual, Ns(50_000));
        }
        assert_eq!(usual, Ns(50_000));
    }

    fn any_mask() -> impl Strategy<Value = TpcMask> {
        any::<[u64; 4]>().prop_map(TpcMask::from_words)
    }

    proptest! {
        /// Whatever the masks and quotas are, reservations are disjoint, and no grant touches one whose owner is present.
        #[test]
        fn reservations_are_kept(
            tenants in prop::collection::vec(
                (any_mask(), prop::option::of(0u16..80), any::<bool>(), any::<bool>(), 0u64..40_000_000, 0u64..40_000_000),
                1..8,
            ),
            existing in any_mask(),
        ) {
            let mut reserved = TpcMask::EMPTY;
            let mut all: Vec<Neighbour> = Vec::new();
            for &(allowed, quota, lends, busy, idle, gap) in &tenants {
                let own = reserve(&allowed, &existing, &reserved, quota);
                prop_assert!(own.and(&reserved).is_empty());
                prop_assert!(own.count() <= u32::from(quota.unwrap_or(0)));
                reserved = reserved.or(&own);
                all.push(Neighbour { own, lends, priority: Priority(8), busy, idle: Ns(idle), gap: Ns(gap) });
            }
            for (me, &(allowed, _, steal, ..)) in tenants.iter().enumerate() {
                let others: Vec<Neighbour> =
                    all.iter().enumerate().filter(|(i, _)| *i != me).map(|(_, n)| *n).collect();
                let granted = grant(&allowed, steal, &others);
                prop_assert!(granted.without(&allowed).is_empty());
                prop_assert!(all[me].own.without(&granted).is_empty(), "its own are its own");
                for other in &others {
                    let kept = other.present() || !other.lends || !steal;
                    prop_assert!(!kept || granted.and(&other.own).is_empty());
                }
            }
        }
    }
}
