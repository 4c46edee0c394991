// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Decides whether the channels of a process stay native on a GPU of the user-space mode.
//!
//! Terminology
//!   native   a channel whose ring, USERD and doorbell are what the program has mapped
//!   managed  a channel whose launches the library sees, since it came between
//!
//! Limits on memory need no launches, so a process that has these alone takes no part in the risk
//! and the cost of managed channels. A neighbour's limit on launches binds everybody on the GPU: a
//! reservation and a turn hold only beside processes that respect them.
//!
//! ```text
//! no feature of the GPU needs launches                        -> native: untested
//! the process has a limit on memory, and
//! no owner on the GPU has a limit that needs launches         -> native: memory only
//! else                                                        -> managed
//! ```
//!
//! A process without any limit is managed, so that a limit that comes later binds it. It is the
//! same with an owner of a limit on memory who writes a default, such as `compute.weight` 100.

use crate::features::{Feature, FeatureSet, Sees};
use crate::settings::Settings;

/// Why the channels of a process stay native.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Native {
    /// The GPU has no limit on launches: its self-test failed, or nobody knows it.
    Untested,
    /// The process has limits on memory, and nobody on the GPU has limits on launches.
    MemoryOnly,
}

/// Returns why the channels of a process stay native, or `None` if they are managed. `own` are the
/// limits in force on it, `limits_launches` says whether an owner on the GPU has one that needs
/// launches.
pub fn native(features: FeatureSet, own: &Settings, limits_launches: bool) -> Option<Native> {
    let sees = |feature: &Feature| features.has(*feature) && feature.sees() == Sees::Launches;
    if !Feature::ALL.iter().any(sees) {
        return Some(Native::Untested);
    }
    let alone = own.limits_memory() && !limits_launches;
    alone.then_some(Native::MemoryOnly)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::{Bytes, Us, Weight};

    const MEMORY: Settings = Settings {
        gmem_limit: Some(Bytes(1 << 30)),
        ..Settings::DEFAULT
    };
    const WEIGHT: Settings = Settings {
        weight: Some(Weight::DEFAULT),
        ..Settings::DEFAULT
    };

    fn decide(own: &Settings, others: &[Settings]) -> Option<Native> {
        let limits_launches = others.iter().chain([own]).any(Settings::needs_launches);
        native(FeatureSet::all(), own, limits_launches)
    }

    #[test]
    fn memory_alone_stays_native() {
        assert_eq!(decide(&MEMORY, &[]), Some(Native::MemoryOnly));
        let slices = Settings {
            timeslice: Some(Us(500)),
            freeze: true,
            ..MEMORY
        };
        let others = [MEMORY, Settings::DEFAULT, slices];
        assert_eq!(decide(&MEMORY, &others), Some(Native::MemoryOnly));
        assert_eq!(decide(&slices, &others), Some(Native::MemoryOnly));
    }

    #[test]
    fn a_limit_on_launches_of_anybody_is_for_all() {
        let both = Settings {
            weight: Some(Weight(7)),
            ..MEMORY
        };
        assert_eq!(decide(&both, &[]), None);
        assert_eq!(decide(&MEMORY, &[WEIGHT]), None);
        assert_eq!(decide(&WEIGHT, &[MEMORY]), None);
    }

    #[test]
    fn who_has_no_limit_is_managed() {
        assert_eq!(decide(&Settings::DEFAULT, &[MEMORY]), None);
    }

    #[test]
    fn an_untested_gpu_has_native_channels_whatever_the_limits() {
        let features = FeatureSet::all().without_launches();
        for own in [Settings::DEFAULT, MEMORY, WEIGHT] {
            let found = native(features, &own, own.needs_launches());
            assert_eq!(found, Some(Native::Untested));
        }
    }
}
