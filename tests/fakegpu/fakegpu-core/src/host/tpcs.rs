// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Shares TPCs among the launches of a channel group that run at the same time.
//!
//! A launch asks for a part of each TPC that its mask leaves: for all of it if its blocks fill the
//! SMs of these TPCs. A TPC of which more is asked than there is gives each launch its part.
//!
//! ```text
//! given(tpc)    = 1 / max(1, sum of what the launches on this TPC ask for)
//! speed(launch) = mean of given(tpc) over the TPCs of its mask
//! ```
//!
//! So launches with disjoint masks do not slow each other down, and those that fill the same TPCs
//! take turns on them.

/// The speed of a launch that has its TPCs for itself.
pub(crate) const FULL_SPEED: u64 = 1 << 16;

/// What a launch asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Demand {
    /// The TPCs that its mask leaves, one bit each.
    pub(crate) tpcs: u128,
    /// The part of each that it asks for, of [`FULL_SPEED`].
    pub(crate) part: u64,
}

impl Demand {
    fn uses(&self, tpc: u32) -> bool {
        self.tpcs >> tpc & 1 == 1
    }
}

/// Returns the speed of each launch, from 1 to [`FULL_SPEED`].
pub(crate) fn speeds(demands: &[Demand]) -> Vec<u64> {
    let asked = |tpc: u32| -> u64 {
        let here = demands.iter().filter(|demand| demand.uses(tpc));
        here.map(|demand| demand.part).sum()
    };
    let given: Vec<u64> = (0..u128::BITS)
        .map(|tpc| FULL_SPEED * FULL_SPEED / asked(tpc).max(FULL_SPEED))
        .collect();
    let speed = |demand: &Demand| {
        let here = (0..).zip(&given).filter(|(tpc, _)| demand.uses(*tpc));
        let sum: u64 = here.map(|(_, given)| given).sum();
        let count = u64::from(demand.tpcs.count_ones());
        // A launch without a TPC hangs, whatever its speed.
        sum.checked_div(count).unwrap_or(FULL_SPEED).max(1)
    };
    demands.iter().map(speed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HALF: u64 = FULL_SPEED / 2;

    fn demand(tpcs: u128, part: u64) -> Demand {
        Demand { tpcs, part }
    }

    #[test]
    fn disjoint_masks_do_not_meet() {
        let demands = [demand(0xff, FULL_SPEED), demand(0xff00, FULL_SPEED)];
        assert_eq!(speeds(&demands), [FULL_SPEED; 2]);
    }

    #[test]
    fn launches_on_the_same_tpcs_halve_each_other() {
        let demands = [demand(0xff, FULL_SPEED), demand(0xff, FULL_SPEED)];
        assert_eq!(speeds(&demands), [HALF; 2]);
        // Where only a half of the masks meets, a quarter of the speed is lost.
        let demands = [demand(0xff, FULL_SPEED), demand(0xff0, FULL_SPEED)];
        assert_eq!(speeds(&demands), [FULL_SPEED / 4 * 3; 2]);
    }

    #[test]
    fn few_blocks_leave_room_for_others() {
        let demands = [demand(0xff, HALF), demand(0xff, HALF)];
        assert_eq!(speeds(&demands), [FULL_SPEED; 2]);
        let demands = [demand(0xff, FULL_SPEED), demand(0xff, 0)];
        assert_eq!(speeds(&demands), [FULL_SPEED; 2]);
    }

    proptest! {
        /// No TPC gives more than it has, and no launch stands still.
        #[test]
        fn any_demands(demands in prop::collection::vec((any::<u128>(), 0..=FULL_SPEED), 0..40)) {
            let demands: Vec<_> = demands.into_iter().map(|(tpcs, part)| demand(tpcs, part)).collect();
            for speed in speeds(&demands) {
                prop_assert!((1..=FULL_SPEED).contains(&speed));
            }
        }
    }
}
