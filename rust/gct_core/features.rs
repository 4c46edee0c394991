// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Names the features of a backend.
//!
//! A backend announces a [`FeatureSet`] with each GPU. A limit without its feature can be neither
//! read nor written. A counter without its feature is not shown. So no file looks as if it worked.

use core::fmt::{self, Write};

macro_rules! features {
    ($($(#[$doc:meta])* $name:ident = $bit:literal, $word:literal, $sees:ident;)*) => {
        /// A limit that a backend enforces, or a value that it measures.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Feature {
            $($(#[$doc])* $name = $bit,)*
        }

        impl Feature {
            /// Every feature, in the order of the files `features`.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// Returns the word in a file `features`.
            pub const fn word(self) -> &'static str {
                match self {
                    $(Self::$name => $word,)*
                }
            }

            /// Returns what a backend must see for the feature.
            pub const fn sees(self) -> Sees {
                match self {
                    $(Self::$name => Sees::$sees,)*
                }
            }

            const fn bit(self) -> u32 {
                match self {
                    $(Self::$name => 1 << $bit,)*
                }
            }
        }
    };
}

features! {
    /// Device memory is charged to its owner.
    GmemCharge = 0, "gmem.current", Memory;
    /// Charges beyond a limit are refused, or evict the owner's pages.
    GmemLimit = 1, "gmem.limit", Memory;
    /// Host memory that holds evicted pages is charged to its owner.
    HmemCharge = 2, "hmem.current", Memory;
    /// That host memory is limited.
    HmemLimit = 3, "hmem.limit", Memory;
    /// Time slices are set.
    Timeslice = 4, "compute.timeslice", Channels;
    /// Owners preempt each other by priority.
    Priority = 5, "compute.priority", Launches;
    /// GPU time is shared by weight.
    Weight = 6, "compute.weight", Launches;
    /// Duty cycles are bounded.
    Bandwidth = 7, "compute.max", Launches;
    /// Owners are preempted and stay off the GPU.
    Freeze = 8, "compute.freeze", Channels;
    /// GPU time is measured.
    Usage = 9, "compute.stat", Launches;
    /// TPCs are guaranteed.
    TpcQuota = 10, "tpc.quota", Launches;
    /// Launches are kept to a set of TPCs.
    TpcMask = 11, "tpc.mask", Launches;
    /// Idle TPCs are lent.
    TpcSteal = 12, "tpc.steal", Launches;
    /// Launches are split.
    AtomDuration = 13, "atom.duration", Launches;
    /// TPCs are right-sized.
    SlipTpc = 14, "slip.tpc", Launches;
    /// The clock is right-sized.
    SlipPower = 15, "slip.power", Launches;
    /// Errors of the GPU are counted for their owner.
    Faults = 16, "compute.events", Channels;
    /// Rings of channels are the driver's.
    ChannelOwned = 17, "channel.owned", Launches;
    /// Managed memory is charged, too.
    GmemUvm = 18, "gmem.uvm", Memory;
    /// Managed memory over a limit is evicted.
    GmemEvict = 19, "gmem.evict", Memory;
    /// Channels whose launches cannot be bound are stopped.
    ChannelStrict = 20, "channel.strict", Launches;
    /// Ordinary device memory can be moved to the host.
    GmemPageable = 21, "gmem.pageable", Memory;
    /// Others are pressed for a service's goal.
    SloP99 = 22, "slo.p99", Launches;
    /// Memory beyond a part that is kept gives way to others. Memory of those who rest gives way
    /// first: they have no work.
    GmemLow = 23, "gmem.low", Launches;
    /// Page tables are charged, too.
    GmemTables = 24, "gmem.page_tables", Memory;
    /// The driver itself limits the memory of cgroups, and the backend has it do so.
    GmemCgroup = 25, "gmem.cgroup", Memory;
}

/// A set of features.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FeatureSet(u32);

/// What a backend must see of a process for a feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sees {
    /// Its allocations of memory.
    Memory,
    /// Its channels and channel groups, to which it sends controls, and their errors.
    Channels,
    /// Its launches and copies: a backend must come between the program and its rings.
    Launches,
}

impl FeatureSet {
    /// The empty set: objects are observed only.
    pub const NONE: Self = Self(0);

    /// Returns the set with `feature` added.
    #[must_use]
    pub const fn with(self, feature: Feature) -> Self {
        Self(self.0 | feature.bit())
    }

    /// Returns the set with those of another.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns the set without `feature`.
    #[must_use]
    pub const fn without(self, feature: Feature) -> Self {
        Self(self.0 & !feature.bit())
    }

    /// Returns the set without the features that need to know the GPU's TPCs: masks and quotas, and
    /// atoms, which are sized by them.
    #[must_use]
    pub const fn without_tpcs(self) -> Self {
        let tpcs = Self::NONE
            .with(Feature::TpcQuota)
            .with(Feature::TpcMask)
            .with(Feature::TpcSteal)
            .with(Feature::AtomDuration)
            .with(Feature::SlipTpc);
        Self(self.0 & !tpcs.0)
    }

    /// Returns the set without the features that need launches to be seen.
    #[must_use]
    pub fn without_launches(self) -> Self {
        let launches = |feature: &&Feature| feature.sees() == Sees::Launches;
        let launches = Feature::ALL.iter().filter(launches);
        launches.fold(self, |set, feature| set.without(*feature))
    }

    /// Returns the set of every feature.
    pub fn all() -> Self {
        Feature::ALL
            .iter()
            .fold(Self::NONE, |set, feature| set.with(*feature))
    }

    /// Returns whether `feature` is in the set.
    pub const fn has(self, feature: Feature) -> bool {
        self.0 & feature.bit() != 0
    }

    /// Writes the features' words, one per line.
    pub fn show(self, out: &mut dyn Write) -> fmt::Result {
        for feature in Feature::ALL {
            if self.has(*feature) {
                writeln!(out, "{}", feature.word())?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_launches_memory_and_controls_stay() {
        let left = FeatureSet::all().without_launches();
        for feature in Feature::ALL {
            let stays = feature.sees() != Sees::Launches;
            assert_eq!(left.has(*feature), stays, "{}", feature.word());
        }
        for feature in [Feature::GmemLimit, Feature::Timeslice, Feature::Freeze] {
            assert!(left.has(feature), "{}", feature.word());
        }
        for feature in [Feature::TpcMask, Feature::Weight, Feature::Usage] {
            assert!(!left.has(feature), "{}", feature.word());
        }
    }

    #[test]
    fn each_feature_has_a_bit_of_its_own() {
        for feature in Feature::ALL {
            let one = FeatureSet::NONE.with(*feature);
            let held = Feature::ALL.iter().filter(|other| one.has(**other));
            assert_eq!(held.count(), 1, "{}", feature.word());
            let others = FeatureSet::all().without(*feature);
            assert!(!others.has(*feature) && others.and(one) == FeatureSet::all());
        }
    }
}
