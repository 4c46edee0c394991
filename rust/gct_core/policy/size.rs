// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Decides how large a GPU a tenant is shown.
//!
//! Some programs size a grid by the device and let its blocks wait for each other. All blocks must
//! be resident at once, so such a program is shown the SMs that it can have at once. A quota is a
//! guarantee and no cap: it takes nothing from what its owner is shown, but from what others are.
//!
//! | limits when the program first asks | TPCs it is shown |
//! |---|---|
//! | none | those of `tpc.mask` that no other owner has reserved |
//! | `tpc.quota` | the same, less those that owners of an earlier rank may use, and its own |
//! | `tpc.quota` and `tpc.steal` 0 | its own |
//!
//! The number stays for the life of the process: a program asks once and keeps it. Who comes later
//! may leave it fewer TPCs. A launch that counts on those that it was shown then waits for them
//! ([`tpc::fit`](super::tpc::fit)).

use crate::mask::TpcMask;
use crate::topology::Topology;
use crate::units::Sat;

/// SMs of a TPC, on each generation whose launches can be masked (Volta and newer).
const SMS_PER_TPC: u32 = 2;

/// The limits that decide what a tenant is shown.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The TPCs that its mask allows.
    pub allowed: TpcMask,
    /// The TPCs that a quota reserves for it; none without a quota.
    pub own: TpcMask,
    /// Whether it may use TPCs that others lend.
    pub steal: bool,
    /// The TPCs that are reserved for other owners.
    pub others: TpcMask,
    /// The TPCs that other owners of an earlier rank may use.
    pub earlier: TpcMask,
}

/// Returns the TPCs that a tenant is shown, of those that exist.
pub fn dependable(limits: &Limits, existing: &TpcMask) -> TpcMask {
    let own = limits.allowed.and(&limits.own);
    let free = limits.allowed.and(existing).without(&limits.others);
    match (own.is_empty(), limits.steal) {
        (true, _) => free,
        (false, true) => free.without(&limits.earlier).or(&own),
        (false, false) => own,
    }
}

/// Returns the SMs of `tpcs` TPCs, on a GPU whose driver reports `device` SMs. The result is at
/// least 1: a program divides by it.
pub fn sms(tpcs: u32, device: u32) -> u32 {
    // Widened, so that nothing overflows.
    let sms = u64::from(tpcs) * u64::from(SMS_PER_TPC);
    u32::try_from(sms).unwrap_or(u32::MAX).min(device).max(1)
}

/// Returns the share of `count` that `shown` of `device` SMs hold: the blocks of one wave.
pub fn share(count: u32, shown: u32, device: u32) -> u32 {
    if device == 0 {
        return 0;
    }
    // Widened, so that nothing overflows.
    let part = u64::from(count) * u64::from(shown.min(device)) / u64::from(device);
    u32::try_from(part).unwrap_or(count)
}

/// Returns how many clusters the TPCs of `left` hold at once. The driver reports `count` for the
/// whole GPU. Returns `None` if the GPU's GPCs are unknown.
///
/// A cluster runs within a GPC. So with `rate` clusters on a TPC
///
/// ```text
/// clusters(TPCs) = sum over the GPCs: floor(TPCs of the GPC * rate)
/// ```
///
/// A TPC that lies in no GPC is a GPC of its own for clusters of one block, and none for others. An
/// H100 of 132 SMs reports exactly that: 132 clusters of one block, and 62 of 4 blocks with 2 on an
/// SM, since 8 SMs lie in no GPC.
///
/// The rate is not known, nor the size of the clusters. The smallest rate that gives `count` is
/// taken, and the lesser answer if both readings of single TPCs give `count`. So never more
/// clusters are reported than fit.
///
/// O(GPCs^2 * log(count)).
pub fn clusters(count: u32, left: &TpcMask, topology: &Topology) -> Option<u32> {
    let within = held(count, left, topology, Singles::Unused)?;
    let anywhere = held(count, left, topology, Singles::Gpcs)?;
    let held = match (within.is_exact, anywhere.is_exact) {
        (true, false) => within.clusters,
        (false, true) => anywhere.clusters,
        _ => within.clusters.min(anywhere.clusters),
    };
    Some(u32::try_from(held).unwrap_or(count).min(count))
}

/// What TPCs are for clusters that lie in no GPC.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Singles {
    Unused,
    Gpcs,
}

/// The clusters that fit by one reading of single TPCs.
struct Held {
    clusters: u64,
    /// Whether this reading gives what the driver reports for the whole GPU.
    is_exact: bool,
}

fn held(count: u32, left: &TpcMask, topology: &Topology, singles: Singles) -> Option<Held> {
    let gpcs = topology.tpcs_of_gpcs(topology.existing());
    let sum = |rate: Rate, mask: &TpcMask| {
        let single = match singles {
            Singles::Unused => Sat(0),
            Singles::Gpcs => rate.of(1) * Sat(u64::from(topology.tpcs_apart(mask))),
        };
        let gpcs = topology.tpcs_of_gpcs(mask).map(|tpcs| rate.of(tpcs));
        gpcs.fold(single, |sum, clusters| sum + clusters).0
    };
    let rates = gpcs.filter(|tpcs| *tpcs > 0).map(|tpcs| Rate {
        clusters: least(count, |clusters| {
            sum(Rate { clusters, tpcs }, topology.existing()) >= u64::from(count)
        }),
        tpcs,
    });
    let rate = rates.reduce(|one, other| match one.exceeds(other) {
        true => other,
        false => one,
    })?;
    Some(Held {
        clusters: sum(rate, left),
        is_exact: sum(rate, topology.existing()) == u64::from(count),
    })
}

/// Clusters on so many TPCs, which are not 0.
#[derive(Clone, Copy)]
struct Rate {
    clusters: u32,
    tpcs: u32,
}

impl Rate {
    /// Returns the clusters that a GPC of so many TPCs holds.
    fn of(self, tpcs: u32) -> Sat<u64> {
        let held = u64::from(tpcs) * u64::from(self.clusters);
        Sat(held.checked_div(u64::from(self.tpcs)).unwrap_or(0))
    }

    fn exceeds(self, other: Self) -> bool {
        let cross = |a: Self, b: Self| u64::from(a.clusters) * u64::from(b.tpcs);
        cross(self, other) > cross(other, self)
    }
}

/// Returns the least number up to `end` for which `holds`, which stays true once it is.
fn least(end: u32, holds: impl Fn(u32) -> bool) -> u32 {
    let (mut from, mut to) = (0, end);
    while from < to {
        let middle = u32::midpoint(from, to);
        match holds(middle) {
            true => to = middle,
            false => from = middle.saturating_add(1),
        }
    }
    to
}

/// Returns whether `shown` SMs hold a whole grid at once, with `blocks_per_sm` blocks on each.
pub fn holds(shown: u32, blocks_per_sm: u32, blocks: u64) -> bool {
    blocks <= u64::from(shown) * u64::from(blocks_per_sm)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::{Chip, Sm};
    use proptest::prelude::*;

    fn list(text: &str) -> TpcMask {
        TpcMask::parse(text.as_bytes()).unwrap_or(TpcMask::EMPTY)
    }

    const NONE: Limits = Limits {
        allowed: TpcMask::FULL,
        own: TpcMask::EMPTY,
        steal: true,
        others: TpcMask::EMPTY,
        earlier: TpcMask::EMPTY,
    };

    fn shown(limits: &Limits) -> u32 {
        dependable(limits, &list("0-9,12-67")).count()
    }

    #[test]
    fn a_mask_counts_the_tpcs_that_exist() {
        let masked = |allowed| Limits {
            allowed: list(allowed),
            ..NONE
        };
        let beside = Limits {
            others: list("0-3,40"),
            ..masked("0-31")
        };
        assert_eq!((shown(&NONE), shown(&masked("0-31"))), (66, 30));
        assert_eq!(shown(&beside), 26, "others have reserved some");
        assert_eq!(shown(&masked("10-11")), 0);
    }

    #[test]
    fn a_quota_is_no_cap_unless_it_may_not_steal() {
        let quota = Limits {
            own: list("0-7"),
            ..NONE
        };
        let beside = Limits {
            others: list("8-9,12-57"),
            ..quota
        };
        let behind = |earlier| Limits {
            earlier: list(earlier),
            ..quota
        };
        let masked = Limits {
            allowed: list("0-3,20-21"),
            ..quota
        };
        assert_eq!((shown(&quota), shown(&beside)), (66, 18));
        assert_eq!((shown(&behind("0-67")), shown(&behind("0-19"))), (8, 56));
        assert_eq!(shown(&masked), 6);
        for limits in [quota, beside, behind("0-67")] {
            let capped = Limits {
                steal: false,
                ..limits
            };
            assert_eq!(shown(&capped), 8);
        }
    }

    #[test]
    fn no_program_divides_by_zero() {
        assert_eq!((sms(32, 132), sms(128, 132), sms(0, 132)), (64, 132, 1));
        assert_eq!(sms(u32::MAX, u32::MAX), u32::MAX);
    }

    #[test]
    fn a_wave_shrinks_with_the_device() {
        // What an H100 reports for 2 blocks on an SM.
        assert_eq!(share(264, 64, 132), 128);
        assert_eq!((share(264, 132, 132), share(264, 200, 132)), (264, 264));
        assert_eq!(share(5, 1, 0), 0);
    }

    /// Returns an H100 whose 66 TPCs were measured: 8 GPCs, and 4 TPCs outside of them.
    fn h100() -> Topology {
        let tpcs = list("0-3,9-16,18-25,27-34,36-43,45-52,54-71,75,78,81,83");
        let sm = |bit: u16| match bit {
            0..72 => (bit / 9, bit % 9),
            single => (8 + single - 72, 0),
        };
        let chip = Chip {
            architecture: 0x180,
            gpcs: 8,
            tpcs_per_gpc: 9,
        };
        let sms = (0..128).filter(|bit| tpcs.has(usize::from(*bit)));
        let sms = sms.map(sm).map(|(virtual_gpc, migratable_tpc)| Sm {
            virtual_gpc,
            migratable_tpc,
        });
        Topology::from_sm_order(chip, sms).unwrap()
    }

    #[test]
    fn clusters_are_counted_in_each_gpc() {
        let h100 = h100();
        let held = |count, left: &str| clusters(count, &list(left), &h100);
        // Clusters of 4 blocks, 2 on an SM: what the driver reports, and half of a GPU.
        assert_eq!(held(62, "0-127"), Some(62));
        assert_eq!(held(62, "0-31"), Some(4 + 8 + 8 + 5));
        assert_eq!(held(62, "0-3,75,78,81,83"), Some(4), "a share would be 7");
        // Clusters of one block, one on an SM. They run on single TPCs, too.
        assert_eq!(held(132, "0-127"), Some(132));
        assert_eq!(
            (held(132, "0-3,9-36"), held(132, "75,78")),
            (Some(58), Some(4))
        );
        // Clusters of 8 blocks, one on an SM.
        assert_eq!(held(15, "0-127"), Some(15));
        assert_eq!((held(15, "0-3"), held(15, "0,9,18,27")), (Some(1), Some(0)));
        assert_eq!((held(0, "0-127"), held(1, "9-16")), (Some(0), Some(0)));
        assert_eq!(
            clusters(62, &list("0-3"), &Topology::apart(list("0-65"))),
            None
        );
    }

    #[test]
    fn a_cooperative_grid_fits_or_does_not() {
        assert!(holds(64, 2, 128) && !holds(64, 2, 129));
        assert!(!holds(64, 0, 1), "a block that no SM can hold");
        assert!(holds(u32::MAX, u32::MAX, u64::from(u32::MAX)));
    }

    proptest! {
        /// Checks that no more clusters are reported than fit, and all of them on the whole GPU.
        #[test]
        fn no_more_clusters_are_reported_than_fit(
            left: [u64; 4], blocks in 1u64..=16, per_sm in 1u64..=32,
        ) {
            let (h100, left) = (h100(), TpcMask::from_words(left));
            let fit = |mask: &TpcMask| -> u64 {
                let sms = h100.tpcs_of_gpcs(mask).map(|tpcs| 2 * u64::from(tpcs));
                let within = sms.map(|sms| sms * per_sm / blocks).sum::<u64>();
                let single = u64::from(h100.tpcs_apart(mask)) * 2 * per_sm;
                within + if blocks == 1 { single } else { 0 }
            };
            let count = u32::try_from(fit(h100.existing())).unwrap();
            let held = clusters(count, &left, &h100).unwrap();
            prop_assert!(u64::from(held) <= fit(&left));
            prop_assert_eq!(clusters(count, h100.existing(), &h100), Some(count));
        }

        /// Checks that a share is at most the whole, and the whole on the whole device.
        #[test]
        fn a_share_is_never_more_than_the_whole(count: u32, shown: u32, device: u32) {
            let part = share(count, shown, device);
            prop_assert!(part <= count);
            prop_assert!(shown < device || device == 0 || part == count);
        }

        /// Checks that what is shown may be used, is not reserved for others, and has all that is
        /// reserved for the tenant.
        #[test]
        fn shown_tpcs_can_be_used(
            masks: [[u64; 4]; 5], steal: bool,
        ) {
            let [allowed, existing, others, own, earlier] = masks.map(TpcMask::from_words);
            let own = own.and(&existing).without(&others);
            let limits = Limits { allowed, own, steal, others, earlier };
            let shown = dependable(&limits, &existing);
            prop_assert!(shown.without(&allowed.and(&existing)).is_empty());
            prop_assert!(shown.and(&others).is_empty());
            prop_assert!(own.and(&allowed).without(&shown).is_empty());
        }
    }
}
