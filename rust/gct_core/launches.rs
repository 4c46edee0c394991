// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Sums up what became of an owner's launches, as `compute.stat` shows it.

use crate::features::Feature;
use crate::iface::File;
use crate::mask::TpcMask;
use crate::submit::reason::Reason;
use crate::units::Sat;
use core::num::NonZero;

/// The TPCs that an owner's last launch was granted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EffectiveTpcs {
    /// No launch was seen.
    #[default]
    Unknown,
    /// All TPCs of the GPU.
    All,
    /// These TPCs.
    Mask(TpcMask),
}

/// A counter of launches: its line in the tree, and its metric.
#[derive(Clone, Copy, Debug)]
pub struct Count {
    /// The file that shows it, once in each pool.
    pub file: File,
    /// The key of its line.
    pub key: &'static str,
    /// The feature without which there is no line.
    pub feature: Feature,
    /// The name of its metric without prefix, unit and suffix.
    pub metric: &'static str,
    /// Says in one sentence what it counts.
    pub doc: &'static str,
    /// What the line's number is a multiple of.
    pub divisor: NonZero<u64>,
    /// Returns the counter.
    pub get: fn(&Launches) -> u64,
    /// Sets the counter.
    pub set: fn(&mut Launches, u64),
}

/// Declares the fields of [`Launches`] and all that is said of each elsewhere. A new one is
/// appended: its place here is its place in the page of a process.
macro_rules! counters {
    ($($field:ident $(/ $divisor:literal)?: $file:ident $key:literal $feature:ident $metric:literal
        $doc:literal)*) => {
        /// Sums over all launches since the owner was first seen.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct Launches {
            $(#[doc = $doc] pub $field: u64,)*
            /// Launches, segments and orders passed through unchanged, indexed by [`Reason`].
            pub passed: [u64; Reason::COUNT],
        }

        /// Every counter but those of [`Launches::passed`].
        pub const COUNTS: &[Count] = &[$(Count {
            file: File::$file,
            key: $key,
            feature: Feature::$feature,
            metric: $metric,
            doc: $doc,
            divisor: NonZero::<u64>::MIN $(.saturating_mul(NonZero::new($divisor).unwrap()))?,
            get: |launches| launches.$field,
            set: |launches, count| launches.$field = count,
        },)*];

        impl Launches {
            /// No launches.
            pub const ZERO: Self = Self {
                $($field: 0,)*
                passed: [0; Reason::COUNT],
            };

            fn combine(&self, other: &Self, with: fn(Sat<u64>, Sat<u64>) -> Sat<u64>) -> Self {
                let with = |a, b| with(Sat(a), Sat(b)).0;
                let mut passed = self.passed;
                for (count, more) in passed.iter_mut().zip(other.passed) {
                    *count = with(*count, more);
                }
                Self {
                    $($field: with(self.$field, other.$field),)*
                    passed,
                }
            }
        }
    };
}

counters! {
    launches: ComputeStat "launches" TpcMask "launches"
        "Launches that were found."
    rewritten: ComputeStat "rewritten" TpcMask "launches_rewritten"
        "Launches whose mask was written."
    split: ComputeStat "split" TpcMask "launches_split"
        "Launches that were split."
    atoms: ComputeStat "atoms" TpcMask "launch_atoms"
        "Atoms that split launches became."
    predicted: ComputeStat "predicted" TpcMask "launches_predicted"
        "Launches, atoms and replays of graphs that have ended and whose duration was predicted."
    mispredicted: ComputeStat "mispredicted" TpcMask "launches_mispredicted"
        "Those of them that took over 50 us more or less than predicted. Their waits for others on the GPU count."
    narrowed: ComputeEvents "narrowed" TpcMask "launches_narrowed"
        "Launches whose blocks fit in one wave of the whole GPU, and not in one of their TPCs."
    spared: ComputeEvents "spared" TpcMask "launches_spared"
        "Launches and atoms that had more TPCs than `slo.p99` of another or a later neighbour leaves, because their blocks may wait for each other."
    slip_narrowed: ComputeStat "slip_narrowed" SlipTpc "launches_slip_narrowed"
        "Launches and replays of graphs that had fewer TPCs than granted, because of `slip.tpc`."
    slip_refused: ComputeStat "slip_refused" SlipTpc "launches_slip_refused"
        "Those that had all of them although there is a slip: on fewer they were too slow, or saved no larger part of TPC-time than they cost in time."
    slip_saved / 1_000: ComputeStat "slip_saved_usec" SlipTpc "compute_slip_saved"
        "What the slip has saved of `usage_tpc_usec`: the time on all granted TPCs, as observed before, minus the time on fewer, each times the part of the GPU's TPCs."
    stalled: ComputeEvents "stalled" TpcMask "compute_stalls"
        "Times that nothing of a channel ended for 5 s, nor for four times the predicted time, while a limit was in force."
    crowded: ComputeStat "crowded" TpcMask "launches_crowded"
        "Launches and segments that stayed as they were for lack of room: no frame was free for a split, or there was no memory for what replaces the segment."
    refused: ComputeEvents "refused" ChannelStrict "channels_refused"
        "Channels that were stopped because of `channel.strict`."
}

impl Launches {
    /// Returns how often something was passed through, for any reason.
    pub fn passed_total(&self) -> u64 {
        let counts = self.passed.iter().copied().map(Sat);
        counts.fold(Sat(0), |sum, count| sum + count).0
    }

    /// Returns the sum of both.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        self.combine(other, |a, b| a + b)
    }

    /// Returns the difference to `earlier`. A count that went back, which only a liar reports,
    /// gives 0.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        self.combine(earlier, |a, b| a - b)
    }
}

impl Default for Launches {
    fn default() -> Self {
        Self::ZERO
    }
}
