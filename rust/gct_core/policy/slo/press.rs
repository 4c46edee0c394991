// SPDX-License-Identifier: GPL-2.0 OR MIT

//! States what a level of pressure does to an owner.
//!
//! | level | the owner |
//! |---|---|
//! | 0 | has what was written |
//! | 1 | is best effort, but for the [`allowance`](super::allowance) |
//! | 2, 3, 4 | also has three, two and one quarters of its TPCs, one at least |
//!
//! Who is best effort has atoms of 50 us, and waits behind others' last work. That is what helps by
//! turns, where TPCs of others do not matter. Side by side, TPCs that nobody else has are free at
//! once, without an atom that has to end.
//!
//! Time slices are left alone: behind an earlier rank an H100 showed little gain by them.

use crate::mask::TpcMask;
use crate::settings::Settings;
use crate::units::Tpcs;

/// The highest level.
pub const LEVELS: u8 = 4;

/// Returns the limits of an owner under pressure. `existing` are the TPCs of the GPU, if launches
/// can be kept to some.
pub fn press(settings: &Settings, level: u8, existing: Option<&TpcMask>) -> Settings {
    if level == 0 {
        return *settings;
    }
    let quarters = u32::from(4u8.saturating_sub(level.saturating_sub(1)));
    let mask = existing.map(|existing| {
        let allowed = settings.tpc_mask.unwrap_or(*existing).and(existing);
        let all = allowed.count();
        let kept = (all.saturating_mul(quarters) / 4).max(1);
        // Quotas reserve the lowest ones.
        allowed.without(&allowed.lowest(all.saturating_sub(kept)))
    });
    Settings {
        tpc_quota: Some(Tpcs(0)),
        tpc_mask: mask.filter(|_| level > 1).or(settings.tpc_mask),
        // Who was to yield anyway has no allowance.
        pressed: settings.tpc_quota != Some(Tpcs(0)),
        ..*settings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_level_takes_a_quarter_of_the_tpcs_and_leaves_one() {
        let gpu = TpcMask::first(8);
        let masked = |text: &str| Settings {
            tpc_mask: TpcMask::parse(text.as_bytes()).ok(),
            ..Settings::DEFAULT
        };
        let kept = |settings: &Settings, level| press(settings, level, Some(&gpu)).tpc_mask;
        let list = |text: &str| TpcMask::parse(text.as_bytes()).ok();
        let plain = Settings::DEFAULT;
        assert_eq!(press(&plain, 0, Some(&gpu)), plain);
        let all = (0..=LEVELS).map(|level| kept(&plain, level));
        let all: std::vec::Vec<_> = all.collect();
        assert_eq!(all, [None, None, list("2-7"), list("4-7"), list("6-7")]);
        assert_eq!(kept(&masked("1-2,12"), 3), list("2"));
        assert_eq!(kept(&masked("3"), LEVELS), list("3"));
        let pressed = press(&masked("0-3"), 1, None);
        assert!(pressed.rank().best_effort && pressed.pressed);
        assert_eq!(pressed.tpc_mask, list("0-3"));
    }
}
