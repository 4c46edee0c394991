// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Decides how large a GPU a tenant is shown.
//!
//! Some programs size a grid by the device and let its blocks wait for each other. All blocks must
//! be resident at once, so such a program is shown the SMs that its limits leave, as on a smaller
//! GPU:
//!
//! | limits when the program first asks | TPCs it is shown |
//! |---|---|
//! | `tpc.quota` N | N: its own, whatever its neighbours do |
//! | none | those of `tpc.mask` that no other owner has reserved |
//!
//! The number stays for the life of the process: a program asks once and keeps it.

use crate::mask::TpcMask;

/// SMs of a TPC, on each generation whose launches can be masked (Volta and newer).
const SMS_PER_TPC: u32 = 2;

/// Returns the TPCs that a tenant can count on: those of `allowed` that are reserved for it, if any
/// are, else those that exist and that others have not reserved.
pub fn dependable(
    allowed: &TpcMask,
    existing: &TpcMask,
    others: &TpcMask,
    own: Option<&TpcMask>,
) -> TpcMask {
    match own {
        None => allowed.and(existing).without(others),
        Some(own) => allowed.and(own),
    }
}

/// Returns the SMs of `tpcs` TPCs, on a GPU whose driver reports `device` SMs. The result is at
/// least 1: a program divides by it.
pub fn sms(tpcs: u32, device: u32) -> u32 {
    // Widened, so that nothing overflows.
    let sms = u64::from(tpcs) * u64::from(SMS_PER_TPC);
    u32::try_from(sms).unwrap_or(u32::MAX).min(device).max(1)
}

/// Returns the share of `count` that `shown` of `device` SMs hold: blocks of one wave, or clusters.
pub fn share(count: u32, shown: u32, device: u32) -> u32 {
    if device == 0 {
        return 0;
    }
    // Widened, so that nothing overflows.
    let part = u64::from(count) * u64::from(shown.min(device)) / u64::from(device);
    u32::try_from(part).unwrap_or(count)
}

/// Returns whether `shown` SMs hold a whole grid at once, with `blocks_per_sm` blocks on each.
pub fn holds(shown: u32, blocks_per_sm: u32, blocks: u64) -> bool {
    blocks <= u64::from(shown) * u64::from(blocks_per_sm)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn list(text: &str) -> TpcMask {
        TpcMask::parse(text.as_bytes()).unwrap_or(TpcMask::EMPTY)
    }

    #[test]
    fn a_mask_counts_the_tpcs_that_exist() {
        let existing = list("0-9,12-67");
        let shown = |allowed: &str, others: &str, own: Option<&str>| {
            let own = own.map(list);
            dependable(&list(allowed), &existing, &list(others), own.as_ref()).count()
        };
        assert_eq!(shown("0-31", "", None), 30);
        assert_eq!(
            shown("0-31", "0-3,40", None),
            26,
            "others have reserved some"
        );
        assert_eq!(shown("0-31", "", Some("0-7")), 8);
        assert_eq!(shown("0-3", "", Some("0-7")), 4, "a mask of its own");
        assert_eq!(shown("10-11", "", None), 0);
    }

    #[test]
    fn no_program_divides_by_zero() {
        assert_eq!((sms(32, 132), sms(128, 132), sms(0, 132)), (64, 132, 1));
        assert_eq!(sms(u32::MAX, u32::MAX), u32::MAX);
    }

    #[test]
    fn a_wave_shrinks_with_the_device() {
        // What an H100 reports for 2 blocks on an SM, and for clusters of 4.
        assert_eq!((share(264, 64, 132), share(62, 64, 132)), (128, 30));
        assert_eq!((share(264, 132, 132), share(264, 200, 132)), (264, 264));
        assert_eq!(share(5, 1, 0), 0);
    }

    #[test]
    fn a_cooperative_grid_fits_or_does_not() {
        assert!(holds(64, 2, 128) && !holds(64, 2, 129));
        assert!(!holds(64, 0, 1), "a block that no SM can hold");
        assert!(holds(u32::MAX, u32::MAX, u64::from(u32::MAX)));
    }

    proptest! {
        /// A share is at most the whole, and the whole on the whole device.
        #[test]
        fn a_share_is_never_more_than_the_whole(count: u32, shown: u32, device: u32) {
            let part = share(count, shown, device);
            prop_assert!(part <= count);
            prop_assert!(shown < device || device == 0 || part == count);
        }

        #[test]
        fn shown_tpcs_can_be_used(
            allowed: [u64; 4], existing: [u64; 4], others: [u64; 4], own: Option<[u64; 4]>,
        ) {
            let [allowed, existing, others] = [allowed, existing, others].map(TpcMask::from_words);
            let own = own.map(|own| TpcMask::from_words(own).and(&existing).without(&others));
            let shown = dependable(&allowed, &existing, &others, own.as_ref());
            prop_assert!(shown.without(&allowed).is_empty());
            prop_assert!(shown.without(&existing).is_empty());
            prop_assert!(shown.and(&others).is_empty());
        }
    }
}
