// SPDX-License-Identifier: GPL-2.0 OR MIT

//! States what a level of pressure does to an owner.
//!
//! | level | the owner |
//! |---|---|
//! | 0 | has what was written |
//! | 1 | is best effort, but for the [`allowance`](super::allowance) |
//! | 2, 3, 4 | also has three, two and one quarters of its TPCs, one at least ([`kept`]) |
//!
//! Who is best effort has atoms of 50 us, and waits behind others' last work. That is what helps by
//! turns, where TPCs of others do not matter. Side by side, TPCs that nobody else has are free at
//! once, without an atom that has to end.
//!
//! A launch that fits into one wave of the TPCs that were written, and not of those that are left,
//! keeps the former: its program counts on them, and its blocks may wait for each other
//! ([`fit`](crate::policy::tpc::fit)).
//!
//! Time slices are left alone: behind an earlier rank an H100 showed little gain by them.
//!
//! [`kept`]: crate::policy::tpc::kept

use crate::settings::Settings;
use crate::units::Tpcs;

/// The highest level.
pub const LEVELS: u8 = 4;

/// Returns the limits of an owner under pressure. `masks` says whether launches can be kept to some
/// TPCs.
pub fn press(settings: &Settings, level: u8, masks: bool) -> Settings {
    if level == 0 {
        return *settings;
    }
    Settings {
        // Who was to yield anyway has no allowance.
        pressed: settings.tpc_quota != Some(Tpcs(0)),
        taken: if masks { level.saturating_sub(1) } else { 0 },
        ..*settings
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mask::TpcMask;
    use crate::topology::Topology;

    #[test]
    fn each_level_takes_a_quarter_of_the_tpcs_and_leaves_one() {
        let gpu = Topology::together(TpcMask::first(8));
        let list = |text: &str| TpcMask::parse(text.as_bytes()).unwrap();
        let masked = |text: &str| Settings {
            tpc_mask: Some(list(text)),
            ..Settings::DEFAULT
        };
        let left = |settings: &Settings, level| press(settings, level, true).allowed(&gpu);
        let plain = Settings::DEFAULT;
        assert_eq!(press(&plain, 0, true), plain);
        let all = (0..=LEVELS).map(|level| left(&plain, level));
        let all: std::vec::Vec<_> = all.collect();
        assert_eq!(all, ["0-7", "0-7", "2-7", "4-7", "6-7"].map(list));
        assert_eq!(left(&masked("1-2"), 3), list("2"));
        // GPCs of 4 TPCs each: a cluster of 8 blocks fits into what is left.
        let gpcs = Topology::from_words([0xffff, 0, 0, 0, 4 << 16 | 4]);
        assert_eq!(press(&plain, LEVELS, true).allowed(&gpcs), list("12-15"));
        assert_eq!(press(&plain, 3, true).allowed(&gpcs), list("8-15"));
        assert_eq!(left(&masked("3"), LEVELS), list("3"));
        let pressed = press(&masked("0-3"), LEVELS, false);
        assert!(pressed.rank().best_effort && pressed.pressed);
        assert_eq!(pressed.allowed(&gpu), list("0-3"));
        assert_eq!(press(&masked("0-3"), 3, true).tpc_mask, Some(list("0-3")));
    }
}
