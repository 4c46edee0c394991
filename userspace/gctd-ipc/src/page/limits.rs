// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Packs the effective limits of a process into words, and back.

use super::{MaskWords, MASK_WORDS};
use gct_core::mask::TpcMask;
use gct_core::policy::clock::Clock;
use gct_core::policy::native::Native;
use gct_core::policy::share::{DutyCycle, Level, Share};
use gct_core::settings::Settings;
use gct_core::topology::Topology;
use gct_core::units::{Ns, Percent, Us, Weight};

/// Words of packed [`Limits`].
pub(super) const LIMIT_WORDS: usize = 22;

/// The effective limits of a process on a GPU: its own combined with those of its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The TPCs that the process may use; `None` for all.
    pub tpcs: Option<MaskWords>,
    /// The number of TPCs that are reserved for the process; `None` without a quota.
    pub quota: Option<u16>,
    /// Whether the process may borrow idle TPCs.
    pub steal: bool,
    /// Duration of an atom in nanoseconds. Launches predicted to run longer are split; 0 for never.
    pub atom_ns: u64,
    /// Whether the process must publish no work.
    pub frozen: bool,
    /// The time slice of its channel groups in microseconds; 0 for the driver's default.
    pub timeslice_us: u32,
    /// Whether the time slice is short only for shorter requests of others. Nobody wrote it, so a
    /// process that it cannot bind has refused nothing.
    pub yields: bool,
    /// The priority among neighbours; 0 is the highest.
    pub priority: u8,
    /// The limit of device memory in bytes; `u64::MAX` for none. The daemon enforces it. The
    /// library reports it to programs that ask how much memory there is.
    pub gmem_limit: u64,
    /// Whether the quota of 0 is due to the goal of another.
    pub pressed: bool,
    /// Quarters of its TPCs that goals of others take: 3 at most.
    pub taken: u8,
    /// Whether its requests have a goal (`slo.p99`).
    pub timed: bool,
    /// The slowdown that is tolerated so that launches get fewer TPCs.
    pub slip: Percent,
    /// The slowdown that is tolerated for a lower clock.
    pub slip_power: Percent,
    /// The clock that its launches are measured at; `None` while it is changed, or nobody does.
    pub clock: Option<Clock>,
    /// The TPCs that are reserved for the process or its group. One that has a slot on the board
    /// finds them there.
    pub own: MaskWords,
    /// The TPCs of the GPU.
    pub topology: Topology,
    /// The limits on its time, its own beside its group's.
    pub share: Share,
    /// Why channels that the process makes from now on stay native; `None` if the library manages
    /// them.
    pub native: Option<Native>,
    /// Whether a limit binds its launches.
    pub binds_launches: bool,
}

impl Limits {
    /// No limits.
    pub const NONE: Self = Self {
        tpcs: None,
        quota: None,
        steal: true,
        atom_ns: 0,
        frozen: false,
        timeslice_us: 0,
        yields: false,
        priority: Settings::DEFAULT.priority_in_force().0,
        gmem_limit: u64::MAX,
        pressed: false,
        taken: 0,
        timed: false,
        slip: Percent(0),
        slip_power: Percent(0),
        clock: None,
        own: [0; MASK_WORDS],
        topology: Topology::UNKNOWN,
        share: Share::NONE,
        native: None,
        binds_launches: false,
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
        let slip_power = settings.power_slip_in_force();
        let ns = |us: u64| us.saturating_mul(1000);
        Self {
            tpcs: settings.tpc_mask.map(|mask| *mask.words()),
            quota: settings.tpc_quota.map(|tpcs| tpcs.get()),
            steal: settings.tpc_steal,
            atom_ns: settings.atom.map_or(0, |us| ns(us.get())),
            frozen: settings.freeze,
            timeslice_us: settings
                .timeslice
                .map_or(0, |us| u32::try_from(us.get()).unwrap_or(u32::MAX)),
            yields: settings.yields,
            priority: settings.priority_in_force().0,
            gmem_limit: settings.gmem_limit.map_or(u64::MAX, |bytes| bytes.get()),
            pressed: settings.pressed,
            taken: settings.taken,
            timed: settings.slo_p99.is_some(),
            slip: settings.slip_in_force(),
            slip_power,
            clock: clock.filter(|_| slip_power > Percent(0)),
            own: *own.words(),
            topology: *topology,
            share: *share,
            native: None,
            binds_launches: settings.needs_launches(),
        }
    }

    /// Returns what a process carries out by controls, and a write waits for: the written time
    /// slice in microseconds, and whether it is frozen.
    pub fn controlled(&self) -> (u32, bool) {
        (if self.yields { 0 } else { self.timeslice_us }, self.frozen)
    }

    pub(super) fn words(&self) -> [u64; LIMIT_WORDS] {
        let [a, b, c, d] = self.tpcs.unwrap_or_default();
        let flags = u64::from(self.tpcs.is_some())
            | u64::from(self.quota.is_some()) << 1
            | u64::from(self.steal) << 2
            | u64::from(self.frozen) << 3
            | u64::from(self.pressed) << 4
            | u64::from(self.taken & 3) << 5
            | u64::from(self.yields) << 7
            | u64::from(self.slip.get()) << 8
            | u64::from(self.slip_power.get()) << 16
            // Readers take all further bits as the clock's, so none is unused.
            | self.clock.map_or(0, Clock::get) << 24;
        let quota = u64::from(self.quota.unwrap_or(0));
        let slice = u64::from(self.timeslice_us);
        let priority = u64::from(self.priority)
            | u64::from(self.timed) << 8
            | native_bits(self.native) << 9
            | u64::from(self.binds_launches) << 11;
        let [e, f, g, h, gpcs] = self.topology.to_words();
        let [i, j, k, l] = self.own;
        [
            flags,
            a,
            b,
            c,
            d,
            quota,
            self.atom_ns,
            slice,
            priority,
            self.gmem_limit,
            e,
            f,
            g,
            h,
            gpcs,
            weight_bits(self.share.owner) | weight_bits(self.share.own) << 16,
            cycle_word(self.share.owner),
            cycle_word(self.share.own),
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
        Self {
            tpcs: flag(0).then_some([a, b, c, d]),
            // CAST: 16 bits were stored.
            quota: flag(1).then_some(quota as u16),
            steal: flag(2),
            atom_ns,
            frozen: flag(3),
            // CAST: 32 bits were stored.
            timeslice_us: slice as u32,
            yields: flag(7),
            // CAST: 8 bits were stored.
            priority: priority as u8,
            gmem_limit,
            pressed: flag(4),
            // CAST: two bits.
            taken: (flags >> 5 & 3) as u8,
            timed: priority >> 8 & 1 == 1,
            // CAST: 8 bits were stored.
            slip: Percent((flags >> 8) as u8),
            // CAST: as above.
            slip_power: Percent((flags >> 16) as u8),
            clock: Clock::new(flags >> 24),
            own: [i, j, k, l],
            topology: Topology::from_words([e, f, g, h, gpcs]),
            share: Share {
                owner: level(weights, owner),
                own: level(weights >> 16, own),
            },
            native: native(priority >> 9),
            binds_launches: priority >> 11 & 1 == 1,
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
