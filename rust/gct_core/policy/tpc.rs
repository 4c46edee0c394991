// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Which TPCs a tenant may use now (LithOS, section 5.3), and whether it must wait (Tally).
//!
//! A quota reserves TPCs, the lowest that its tenant may use and that no tenant before it in the list has reserved. TPCs
//! that nobody reserves belong to all. Reserved ones are lent while their owner is silent, to those who may steal; they are taken
//! back at the borrower's next atom, because each atom is masked when it is let go. An owner that works at intervals is
//! not silent in between: what it waits longer than it usually does, its TPCs are lent.
//!
//! Priority orders those who share TPCs: one waits as long as another of an earlier priority has work on TPCs that
//! it would use too.

use crate::mask::TpcMask;
use crate::units::{Ns, Priority};

/// An owner is never taken for silent before.
pub const LINGER_MIN: Ns = Ns(500_000);
/// An owner that has been idle for so long is silent, however it usually works.
pub const LINGER_MAX: Ns = Ns(20_000_000);

/// A tenant of one GPU, as its limits and its activity are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tenant {
    /// The TPCs outside of which it runs nothing: `tpc.mask`.
    pub allowed: TpcMask,
    /// How many are reserved for it; `None` for `max`, which reserves none: `tpc.quota`.
    pub quota: Option<u16>,
    /// Whether it may use what is reserved for a silent owner: `tpc.steal`.
    pub steal: bool,
    /// `compute.priority`, 0 first.
    pub priority: Priority,
    /// Whether it has work that has not ended.
    pub busy: bool,
    /// For how long it has had none.
    pub idle: Ns,
    /// How long it usually has none between two pieces of work: [`gap`].
    pub gap: Ns,
}

impl Tenant {
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

/// The TPCs that tenant `me` may use now, of those that exist. None at all is an order to wait.
pub fn grant(tenants: &[Tenant], existing: &TpcMask, me: usize) -> TpcMask {
    let Some(mine) = tenants.get(me) else {
        return TpcMask::EMPTY;
    };
    let mut reserved = TpcMask::EMPTY;
    let mut barred = TpcMask::EMPTY;
    let mut index = 0usize;
    for tenant in tenants {
        let free = tenant.allowed.and(existing).without(&reserved);
        let own = free.lowest(u32::from(tenant.quota.unwrap_or(0)));
        reserved = reserved.or(&own);
        if index != me && (tenant.present() || !mine.steal) {
            barred = barred.or(&own);
        }
        index = index.wrapping_add(1);
    }
    mine.allowed.and(existing).without(&barred)
}

/// Whether tenant `me` must wait: another of an earlier priority has work on TPCs that it would use too, or it has been
/// granted none.
pub fn waits(tenants: &[Tenant], existing: &TpcMask, me: usize) -> bool {
    let Some(mine) = tenants.get(me) else {
        return false;
    };
    let granted = grant(tenants, existing, me);
    if granted.is_empty() {
        return true;
    }
    let mut index = 0usize;
    for tenant in tenants {
        if tenant.busy && tenant.priority < mine.priority {
            let theirs = grant(tenants, existing, index);
            if !theirs.and(&granted).is_empty() {
                return true;
            }
        }
        // Not `enumerate`, which counts with the overflow checks of `core`.
        index = index.wrapping_add(1);
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec;
    use std::vec::Vec;

    const LATE: Ns = Ns(1_000_000_000);

    fn tenant(quota: Option<u16>, busy: bool, idle: Ns) -> Tenant {
        Tenant {
            allowed: TpcMask::first(256),
            quota,
            steal: true,
            priority: Priority(8),
            busy,
            idle,
            gap: Ns(0),
        }
    }

    fn list(text: &str) -> TpcMask {
        TpcMask::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn quota_first_and_idle_tpcs_are_lent() {
        let existing = list("0-3,9-16,18-19");
        let critical = tenant(Some(5), true, Ns(0));
        let best_effort = tenant(Some(0), true, Ns(0));
        let both = [best_effort, critical];
        assert_eq!(grant(&both, &existing, 0), list("10-16,18-19"));
        assert_eq!(grant(&both, &existing, 1), existing);
        // Silent: everything is lent. Silent for less than usual, or not stealing: nothing is.
        let silent = tenant(Some(5), false, LATE);
        assert_eq!(grant(&[best_effort, silent], &existing, 0), existing);
        let pausing = Tenant {
            gap: Ns(5_000_000),
            idle: Ns(6_000_000),
            ..silent
        };
        assert_eq!(grant(&[best_effort, pausing], &existing, 0).count(), 9);
        let honest = Tenant {
            steal: false,
            ..best_effort
        };
        assert_eq!(grant(&[honest, silent], &existing, 0).count(), 9);
    }

    #[test]
    fn nothing_left_is_an_order_to_wait() {
        let existing = list("0-7");
        let all = tenant(Some(8), true, Ns(0));
        let pair = [all, tenant(Some(0), true, Ns(0))];
        assert!(grant(&pair, &existing, 1).is_empty());
        assert!(waits(&pair, &existing, 1));
        assert!(!waits(&pair, &existing, 0));
        assert!(grant(&pair, &existing, 2).is_empty() && !waits(&pair, &existing, 2));
    }

    #[test]
    fn a_later_priority_waits_only_where_tpcs_are_shared() {
        let existing = list("0-7");
        let first = Tenant {
            priority: Priority(0),
            ..tenant(None, true, Ns(0))
        };
        let second = tenant(None, true, Ns(0));
        assert!(waits(&[first, second], &existing, 1));
        assert!(!waits(&[first, second], &existing, 0));
        let apart = Tenant {
            allowed: list("0-3"),
            ..first
        };
        let other = Tenant {
            allowed: list("4-7"),
            ..second
        };
        assert!(!waits(&[apart, other], &existing, 1));
        let idle = Tenant {
            busy: false,
            ..first
        };
        assert!(!waits(&[idle, second], &existing, 1));
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

    fn any_tenant() -> impl Strategy<Value = Tenant> {
        (
            any::<[u64; 4]>(),
            prop::option::of(0u16..80),
            any::<bool>(),
            0u8..16,
            any::<bool>(),
            0u64..40_000_000,
            0u64..40_000_000,
        )
            .prop_map(
                |(allowed, quota, steal, priority, busy, idle, gap)| Tenant {
                    allowed: TpcMask::from_words(allowed),
                    quota,
                    steal,
                    priority: Priority(priority),
                    busy,
                    idle: Ns(idle),
                    gap: Ns(gap),
                },
            )
    }

    proptest! {
        #[test]
        fn reservations_are_kept(tenants in prop::collection::vec(any_tenant(), 1..8), existing: [u64; 4]) {
            let existing = TpcMask::from_words(existing);
            let grants: Vec<_> = (0..tenants.len()).map(|me| grant(&tenants, &existing, me)).collect();
            let mut reserved = TpcMask::EMPTY;
            for (me, tenant) in tenants.iter().enumerate() {
                // Nothing beyond the mask and what exists.
                prop_assert!(grants[me].without(&tenant.allowed.and(&existing)).is_empty());
                let own = tenant.allowed.and(&existing).without(&reserved).lowest(u32::from(tenant.quota.unwrap_or(0)));
                reserved = reserved.or(&own);
                // Its own are its own, and nobody else's while it is present.
                prop_assert!(own.without(&grants[me]).is_empty());
                for (other, grant) in grants.iter().enumerate() {
                    prop_assert!(other == me || !tenant.present() || grant.and(&own).is_empty());
                }
            }
        }

        #[test]
        fn not_all_that_have_work_wait(tenants in prop::collection::vec(any_tenant(), 1..8), existing: [u64; 4]) {
            let existing = TpcMask::from_words(existing);
            let working = |me: &usize| tenants[*me].busy && !grant(&tenants, &existing, *me).is_empty();
            let able: Vec<_> = (0..tenants.len()).filter(working).collect();
            let waiting = able.iter().filter(|me| waits(&tenants, &existing, **me)).count();
            prop_assert!(able.is_empty() || waiting < able.len());
        }
    }

    #[test]
    fn one_tenant_alone_has_everything_that_it_may_use() {
        let alone = vec![tenant(Some(3), true, Ns(0))];
        assert_eq!(grant(&alone, &list("0-9"), 0), list("0-9"));
    }
}
