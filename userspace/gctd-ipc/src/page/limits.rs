// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Packs the effective limits of a process into words, and back.

use super::{MaskWords, MASK_WORDS};
use gct_core::lane::limits::LaunchLimits;
use gct_core::mask::TpcMask;
use gct_core::policy::clock::Clock;
use gct_core::policy::native::Native;
use gct_core::policy::share::{DutyCycle, Level, Share};
use gct_core::policy::tpc::Rank;
use gct_core::settings::Settings;
use gct_core::topology::Topology;
use gct_core::units::{Ns, Percent, Priority, Us, Weight};

/// Words of packed [`Limits`].
pub(super) const LIMIT_WORDS: usize = 22;

/// The effective limits of a process on a GPU: its own combined with those of its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Those on its launches.
    pub launches: LaunchLimits,
    /// The time slice of its channel groups in microseconds; 0 for the driver's default.
    pub timeslice_us: u32,
    /// Whether the time slice is short only for shorter requests of others. Nobody wrote it, so a
    /// process that it cannot bind has refused nothing.
    pub yields: bool,
    /// The limit of device memory in bytes; `u64::MAX` for none. The daemon enforces it. The
    /// library reports it to programs that ask how much memory there is.
    pub gmem_limit: u64,
    /// The TPCs that are reserved for the process or its group. One that has a slot on the board
    /// finds them there.
    pub own: MaskWords,
    /// The TPCs of the GPU.
    pub topology: Topology,
    /// Why channels that the process makes from now on stay native; `None` if the library manages
    /// them.
    pub native: Option<Native>,
    /// Whether a limit binds its launches.
    pub binds_launches: bool,
    /// Whether the process is in no group.
    pub is_stray: bool,
}

impl Limits {
    /// No limits.
    pub const NONE: Self = Self {
        launches: LaunchLimits::NONE,
        timeslice_us: 0,
        yields: false,
        gmem_limit: u64::MAX,
        own: [0; MASK_WORDS],
        topology: Topology::UNKNOWN,
        native: None,
        binds_launches: false,
        is_stray: false,
    };

    /// Converts the core's settings for a GPU. `own` is reserved there for the process or its
    /// group. Who has no slip needs no clock.
    pub fn new(
        settings: &Settings,
        own: &TpcMask,
        topology: &Topology,
        share: &Share,
        clock: Option<Clock>,
    ) -> Self {
        let launches = LaunchLimits::of(settings, *share);
        Self {
            launches: LaunchLimits {
                clock: clock.filter(|_| launches.slip_power > Percent(0)),
                ..launches
            },
            timeslice_us: settings
                .timeslice
                .map_or(0, |us| u32::try_from(us.get()).unwrap_or(u32::MAX)),
            yields: settings.yields,
            gmem_limit: settings.gmem_limit.map_or(u64::MAX, |bytes| bytes.get()),
            own: *own.words(),
            topology: *topology,
            native: None,
            binds_launches: settings.needs_launches(),
            is_stray: false,
        }
    }

    /// Returns what a process carries out by controls, and a write waits for: the written time
    /// slice in microseconds, and whether it is frozen.
    pub fn controlled(&self) -> (u32, bool) {
        let slice = if self.yields { 0 } else { self.timeslice_us };
        (slice, self.launches.frozen)
    }

    pub(super) fn words(&self) -> [u64; LIMIT_WORDS] {
        let of = &self.launches;
        let [a, b, c, d] = of.tpcs.map_or([0; MASK_WORDS], |mask| *mask.words());
        let flags = u64::from(of.tpcs.is_some())
            | u64::from(of.rank.best_effort) << 1
            | u64::from(of.steal) << 2
            | u64::from(of.frozen) << 3
            | u64::from(of.pressed) << 4
            | u64::from(of.taken & 3) << 5
            | u64::from(self.yields) << 7
            | u64::from(of.slip.get()) << 8
            | u64::from(of.slip_power.get()) << 16
            // Readers take all further bits as the clock's, so none is unused.
            | of.clock.map_or(0, Clock::get) << 24;
        let slice = u64::from(self.timeslice_us);
        let priority = u64::from(of.rank.priority.get())
            | u64::from(of.timed) << 8
            | native_bits(self.native) << 9
            | u64::from(self.binds_launches) << 11
            | u64::from(self.is_stray) << 12
            | u64::from(of.tried) << 13;
        let [e, f, g, h, gpcs] = self.topology.to_words();
        let [i, j, k, l] = self.own;
        [
            flags,
            a,
            b,
            c,
            d,
            // Once a quota, of which readers ask whether it is 0.
            0,
            of.atom_ns,
            slice,
            priority,
            self.gmem_limit,
            e,
            f,
            g,
            h,
            gpcs,
            weight_bits(of.share.owner) | weight_bits(of.share.own) << 16,
            cycle_word(of.share.owner),
            cycle_word(of.share.own),
            i,
            j,
            k,
            l,
        ]
    }

    pub(super) fn from_words(words: &[u64; LIMIT_WORDS]) -> Self {
        let [flags, a, b, c, d, quota, atom_ns, slice, priority, gmem_limit, e, f, g, h, gpcs, weights, owner, own, i, j, k, l] =
            *words;
        let flag = |bit: u32| flags >> bit & 1 == 1;
        let launches = LaunchLimits {
            tpcs: flag(0).then_some(TpcMask::from_words([a, b, c, d])),
            atom_ns,
            tried: priority >> 13 & 1 == 1,
            frozen: flag(3),
            steal: flag(2),
            rank: Rank {
                best_effort: flag(1) && quota == 0,
                // CAST: 8 bits were stored.
                priority: Priority(priority as u8),
            },
            pressed: flag(4),
            // CAST: two bits.
            taken: (flags >> 5 & 3) as u8,
            timed: priority >> 8 & 1 == 1,
            // CAST: 8 bits were stored.
            slip: Percent((flags >> 8) as u8),
            // CAST: as above.
            slip_power: Percent((flags >> 16) as u8),
            clock: Clock::new(flags >> 24),
            share: Share {
                owner: level(weights, owner),
                own: level(weights >> 16, own),
            },
            // The page has neither.
            atoms: 0,
            strict: false,
        };
        Self {
            launches,
            // CAST: 32 bits were stored.
            timeslice_us: slice as u32,
            yields: flag(7),
            gmem_limit,
            own: [i, j, k, l],
            topology: Topology::from_words([e, f, g, h, gpcs]),
            native: native(priority >> 9),
            binds_launches: priority >> 11 & 1 == 1,
            is_stray: priority >> 12 & 1 == 1,
        }
    }
}

/// Returns why channels stay native in two bits; 0 if they do not.
fn native_bits(native: Option<Native>) -> u64 {
    match native {
        None => 0,
        Some(Native::MemoryOnly) => 1,
        Some(Native::Untested) => 2,
    }
}

/// Returns the reason of [`native_bits`].
fn native(bits: u64) -> Option<Native> {
    match bits & 3 {
        1 => Some(Native::MemoryOnly),
        2 => Some(Native::Untested),
        _ => None,
    }
}

/// Returns a weight in 16 bits; 0 if nobody wrote one.
fn weight_bits(level: Level) -> u64 {
    u64::from(level.weight.map_or(0, Weight::get))
}

/// Returns a duty cycle's quota and period in microseconds, 32 bits each; 0 without one.
fn cycle_word(level: Level) -> u64 {
    let us = |time: Ns| (time.get() / 1000).min(u64::from(u32::MAX));
    level
        .max
        .map_or(0, |max| us(max.quota) << 32 | us(max.period))
}

/// Returns the limits of [`weight_bits`] and [`cycle_word`].
fn level(weight: u64, cycle: u64) -> Level {
    let ns = |us: u64| Us(us).to_ns().unwrap_or(Ns::MAX);
    let max = DutyCycle {
        quota: ns(cycle >> 32),
        period: ns(cycle & u64::from(u32::MAX)),
    };
    Level {
        // CAST: 16 bits were stored.
        weight: Some(Weight(weight as u16)).filter(|weight| weight.get() > 0),
        max: Some(max).filter(|max| max.quota > Ns(0) && max.period > Ns(0)),
    }
}
