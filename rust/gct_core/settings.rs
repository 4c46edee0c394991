// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The limits of one owner on one GPU.

use crate::error::Error;
use crate::features::Sees;
use crate::iface::files::FILES;
use crate::iface::value::{Bandwidth, Value};
use crate::iface::File;
use crate::mask::TpcMask;
use crate::policy::tpc::{self, Rank};
use crate::topology::Topology;
use crate::units::{Bytes, Percent, Priority, Tpcs, Us, Weight};

/// Declares [`Settings`]: of each setting its field, its default, its file with the form of its
/// value, and how a process's own combines with its group's.
///
/// A field that is `None` before the first write names, behind the form, what reads its default.
macro_rules! settings {
    (
        $($(#[$doc:meta])* $field:ident: $type:ty = $default:expr,
            $file:ident $form:ident $($in_force:ident)?, $combine:path;)*
        ; without a file:
        $($(#[$more_doc:meta])* $more:ident: $more_type:ty = $more_default:expr,
            $more_combine:path;)*
    ) => {
        /// The limits of one owner on one GPU: one field for each settable file of
        /// [`Place::Pool`](crate::iface::Place), and what goals of others add. `None` is the file's
        /// word: `max`, `all`, `off` or `default`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct Settings {
            $($(#[$doc])* pub $field: $type,)*
            $($(#[$more_doc])* pub $more: $more_type,)*
        }

        impl Settings {
            /// The defaults.
            pub const DEFAULT: Self = Self {
                $($field: $default,)*
                $($more: $more_default,)*
            };

            /// Returns the value of a file; `None` if the file is no setting.
            pub const fn get(&self, file: File) -> Option<Value> {
                Some(match file {
                    $(File::$file => Value::$form(settings!(@read self $field $($in_force)?)),)*
                    _ => return None,
                })
            }

            /// Stores the value of a file.
            ///
            /// # Errors
            ///
            /// [`Error::Access`] if the file is no setting or the value does not have its type.
            pub fn set(&mut self, file: File, value: Value) -> Result<(), Error> {
                match (file, value) {
                    $((File::$file, Value::$form(value)) => {
                        self.$field = settings!(@store value $($in_force)?);
                    })*
                    _ => return Err(Error::Access),
                }
                Ok(())
            }

            /// Combines a process's own settings with its group's: of each pair the tighter one.
            ///
            /// If two masks have no common TPC, the group's counts: a launch must run somewhere,
            /// and the group binds all of its members. A process without its own priority or weight
            /// has its group's, which may be earlier, or more, than the default.
            #[must_use]
            pub fn within(&self, group: &Self) -> Self {
                Self {
                    $($field: $combine(self.$field, group.$field),)*
                    $($more: $more_combine(self.$more, group.$more),)*
                }
            }
        }
    };
    (@read $self:ident $field:ident) => { $self.$field };
    (@read $self:ident $field:ident $in_force:ident) => { $self.$in_force() };
    (@store $value:ident) => { $value };
    (@store $value:ident $in_force:ident) => { Some($value) };
}

settings! {
    /// `gmem.limit`.
    gmem_limit: Option<Bytes> = None, GmemLimit BytesOrMax, least;
    /// `gmem.low`.
    gmem_low: Option<Bytes> = None, GmemLow BytesOrMax, least;
    /// `gmem.pageable`.
    pageable: bool = false, GmemPageable Switch, either;
    /// `hmem.limit`.
    hmem_limit: Option<Bytes> = None, HmemLimit BytesOrMax, least;
    /// `compute.timeslice`.
    timeslice: Option<Us> = None, ComputeTimeslice Timeslice, least;
    /// `compute.priority`.
    priority: Option<Priority> = None, ComputePriority Priority priority_in_force, Ord::max;
    /// `compute.weight`.
    weight: Option<Weight> = None, ComputeWeight Weight weight_in_force, least;
    /// `compute.max`.
    bandwidth: Option<Bandwidth> = None, ComputeMax Bandwidth, smaller;
    /// `compute.freeze`.
    freeze: bool = false, ComputeFreeze Switch, either;
    /// `channel.owned`.
    owned: bool = false, ChannelOwned Switch, either;
    /// `channel.strict`.
    strict: Option<bool> = None, ChannelStrict SwitchOrDefault, stricter;
    /// `tpc.quota`.
    tpc_quota: Option<Tpcs> = None, TpcQuota TpcsOrNone, least;
    /// `tpc.mask`.
    tpc_mask: Option<TpcMask> = None, TpcMask TpcList, common;
    /// `tpc.steal`.
    tpc_steal: bool = true, TpcSteal Switch, both;
    /// `atom.duration`.
    atom: Option<Us> = None, AtomDuration UsOrOff, least;
    /// `slip.tpc`.
    slip_tpc: Option<Percent> = None, SlipTpc Percent slip_in_force, least;
    /// `slip.power`.
    slip_power: Option<Percent> = None, SlipPower Percent power_slip_in_force, least;
    /// `slo.p99`.
    slo_p99: Option<Us> = None, SloP99 UsOrMax, least;

    ; without a file:
    /// Whether the owner is best effort only for the goal of another
    /// ([`press`](crate::policy::slo::press)).
    pressed: bool = false, either;
    /// Quarters of its TPCs that goals of others take ([`tpc::kept`]).
    taken: u8 = 0, Ord::max;
    /// Whether the time slice is short only for shorter requests of others
    /// ([`shortest`](crate::policy::shortest)).
    yields: bool = false, either;
}

impl Settings {
    /// Returns the priority, the default if none was written.
    pub const fn priority_in_force(&self) -> Priority {
        match self.priority {
            Some(priority) => priority,
            None => Priority::DEFAULT,
        }
    }

    /// Returns the weight, the default if none was written.
    pub const fn weight_in_force(&self) -> Weight {
        match self.weight {
            Some(weight) => weight,
            None => Weight::DEFAULT,
        }
    }

    /// Returns the slip of TPCs, none if none was written.
    pub const fn slip_in_force(&self) -> Percent {
        match self.slip_tpc {
            Some(percent) => percent,
            None => Percent(0),
        }
    }

    /// Returns the slip of the clock, none if none was written.
    pub const fn power_slip_in_force(&self) -> Percent {
        match self.slip_power {
            Some(percent) => percent,
            None => Percent(0),
        }
    }

    /// Returns the place in the order of owners with work.
    pub const fn rank(&self) -> Rank {
        Rank {
            best_effort: self.pressed || matches!(self.tpc_quota, Some(Tpcs(0))),
            priority: self.priority_in_force(),
        }
    }

    /// Returns the TPCs of a GPU that its launches may use, but those that need more of the mask.
    pub fn allowed(&self, topology: &Topology) -> TpcMask {
        let written = self.tpc_mask.unwrap_or(*topology.existing());
        tpc::kept(&written, topology, self.taken)
    }

    /// Returns the settings with the mask reduced to the GPU's TPCs. A mask without any of them was
    /// written before the TPCs were known.
    #[must_use]
    pub fn on(&self, topology: &Topology) -> Self {
        let existing = topology.existing();
        let on = |mask: TpcMask| match mask.and(existing) {
            _ if !topology.is_known() => mask,
            TpcMask::EMPTY => *existing,
            there => there,
        };
        Self {
            tpc_mask: self.tpc_mask.map(on),
            ..*self
        }
    }

    /// Returns whether a limit, or the owner of the tree, asks for channels with rings of the
    /// driver's.
    pub const fn wants_owned(&self) -> bool {
        self.owned || self.binds_launches() || self.sizes()
    }

    /// Returns whether launches have sizes. No channel is refused for that: where the driver does
    /// not see the launches, they have all TPCs.
    pub const fn sizes(&self) -> bool {
        self.slip_in_force().get() > 0
    }

    /// Returns whether a limit binds the launches of the owner, so that in the kernel only channels
    /// with rings of the driver's obey it.
    pub const fn binds_launches(&self) -> bool {
        let of_time = self.priority.is_some() || self.weight.is_some() || self.bandwidth.is_some();
        let of_tpcs = self.tpc_quota.is_some() || self.tpc_mask.is_some() || !self.tpc_steal;
        of_time || of_tpcs || self.pressed || self.atom.is_some() || self.asks_strict()
    }

    /// Returns whether channels whose launches cannot be bound are to be stopped, whatever was
    /// there before.
    pub const fn asks_strict(&self) -> bool {
        matches!(self.strict, Some(true))
    }

    /// Returns whether a limit was written that holds only where launches and copies are seen. A
    /// default counts if it was written: whoever wrote it may change it while programs run. So does
    /// what goals of others add.
    pub fn needs_launches(&self) -> bool {
        let written = Self {
            yields: false,
            ..*self
        };
        written.without(Sees::Memory).without(Sees::Channels) != Self::DEFAULT
    }

    /// Returns whether a limit on memory is set.
    pub fn limits_memory(&self) -> bool {
        self.without(Sees::Memory) != *self
    }

    /// Returns the settings with the default of each file for which a backend must see `what`.
    fn without(mut self, what: Sees) -> Self {
        for entry in FILES {
            let sees_it = entry.feature.is_some_and(|feature| feature.sees() == what);
            if let Some(default) = Self::DEFAULT.get(entry.file).filter(|_| sees_it) {
                // Cannot fail: a default has its file's type.
                let _ = self.set(entry.file, default);
            }
        }
        self
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Returns whether one of two switches is on.
fn either(a: bool, b: bool) -> bool {
    a || b
}

/// Returns whether both switches are on.
fn both(a: bool, b: bool) -> bool {
    a && b
}

/// Returns the stricter of two switches that were written. `None` was not.
fn stricter(a: Option<bool>, b: Option<bool>) -> Option<bool> {
    a.max(b)
}

/// Returns the smaller of two limits; `None` is no limit.
fn least<T: Ord>(a: Option<T>, b: Option<T>) -> Option<T> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (one, None) | (None, one) => one,
    }
}

/// Returns the duty cycle with the smaller share of time.
fn smaller(a: Option<Bandwidth>, b: Option<Bandwidth>) -> Option<Bandwidth> {
    let (Some(first), Some(second)) = (a, b) else {
        return a.or(b);
    };
    // first.quota / first.period <= second.quota / second.period, without rounding. The products do
    // not saturate: all factors are at most a million.
    let left = first.quota * second.period.get();
    let right = second.quota * first.period.get();
    Some(if left <= right { first } else { second })
}

/// Returns the TPCs that both allow; the group's if there is none.
fn common(own: Option<TpcMask>, group: Option<TpcMask>) -> Option<TpcMask> {
    let (Some(mask), Some(of_group)) = (own, group) else {
        return own.or(group);
    };
    let both = mask.and(&of_group);
    Some(if both.is_empty() { of_group } else { both })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::iface::files::{self, Mode, Place};
    use crate::iface::parse;

    #[test]
    fn defaults_are_those_of_the_table() {
        let mut settable = 0;
        for entry in files::of(Place::Pool).filter(|entry| entry.mode == Mode::ReadWrite) {
            let default = parse::value(entry.format, entry.default.as_bytes()).unwrap();
            match Settings::DEFAULT.get(entry.file) {
                Some(value) => {
                    assert_eq!(value, default, "{}", entry.name);
                    let mut settings = Settings::DEFAULT;
                    assert_eq!(settings.set(entry.file, default), Ok(()));
                    settable += 1;
                }
                None => assert_eq!(entry.file, File::GmemPeak, "{}", entry.name),
            }
        }
        assert_eq!(settable, 18);
    }

    /// Checks each file of the table, set to something else than its default.
    #[test]
    fn only_limits_on_launches_need_launches() {
        let values = [
            "1", "0", "5", "2ms", "20 1000", "3-4", "1000000", "100000", "max", "50us",
        ];
        let mut found = [0; 3];
        for entry in files::of(Place::Pool) {
            let Some(default) = Settings::DEFAULT.get(entry.file) else {
                continue;
            };
            let parsed = values.iter().filter_map(|text| {
                let value = parse::value(entry.format, text.as_bytes());
                value.ok().filter(|value| *value != default)
            });
            let mut parsed = parsed.peekable();
            assert!(parsed.peek().is_some(), "{}", entry.name);
            let sees = entry.feature.unwrap().sees();
            found[sees as usize] += 1;
            for value in parsed {
                let mut settings = Settings::DEFAULT;
                settings.set(entry.file, value).unwrap();
                let name = entry.name;
                assert_eq!(settings.needs_launches(), sees == Sees::Launches, "{name}");
                assert_eq!(settings.limits_memory(), sees == Sees::Memory, "{name}");
            }
        }
        assert_eq!(found, [3, 2, 13], "memory, channels, launches");
        assert!(!Settings::DEFAULT.needs_launches() && !Settings::DEFAULT.limits_memory());
    }

    #[test]
    fn a_default_that_was_written_needs_launches() {
        let mut settings = Settings::DEFAULT;
        settings
            .set(File::ComputeWeight, Value::Weight(Weight::DEFAULT))
            .unwrap();
        assert!(settings.needs_launches() && !settings.limits_memory());
        let pressed = Settings {
            pressed: true,
            ..Settings::DEFAULT
        };
        let yields = Settings {
            yields: true,
            timeslice: Some(Us(100)),
            ..Settings::DEFAULT
        };
        assert!(pressed.needs_launches() && !yields.needs_launches());
    }

    #[test]
    fn a_value_of_another_type_is_refused() {
        let mut settings = Settings::DEFAULT;
        let wrong = Value::Switch(true);
        assert_eq!(settings.set(File::ComputeWeight, wrong), Err(Error::Access));
        assert_eq!(settings.set(File::Version, wrong), Err(Error::Access));
        assert_eq!(settings, Settings::DEFAULT);
        assert_eq!(settings.get(File::Version), None);
    }

    /// Checks that two masks whose common bits have no TPC leave the group's.
    #[test]
    fn masks_meet_where_tpcs_exist() {
        let list = |text: &[u8]| TpcMask::parse(text).ok();
        let with = |text: &[u8]| Settings {
            tpc_mask: list(text),
            ..Settings::DEFAULT
        };
        let gpu = Topology::apart(list(b"0-3,9").unwrap());
        let bind = |own: &[u8], group: &[u8]| with(own).on(&gpu).within(&with(group).on(&gpu));
        assert_eq!(bind(b"2-5", b"4-9").tpc_mask, list(b"9"));
        assert_eq!(bind(b"2-9", b"3-8").tpc_mask, list(b"3"));
        assert_eq!(with(b"4-8").on(&gpu).tpc_mask, list(b"0-3,9"));
        assert_eq!(with(b"4-8").on(&Topology::UNKNOWN), with(b"4-8"));
        assert_eq!(Settings::DEFAULT.on(&gpu), Settings::DEFAULT);
    }

    /// Checks that a default that was never written does not bind.
    #[test]
    fn a_group_may_come_earlier_than_the_default() {
        let with = |priority| Settings {
            priority,
            ..Settings::DEFAULT
        };
        let bind = |own: Option<u8>, group: Option<u8>| {
            let (own, group) = (with(own.map(Priority)), with(group.map(Priority)));
            own.within(&group).priority_in_force().get()
        };
        assert_eq!(bind(None, Some(0)), 0);
        assert_eq!(bind(Some(8), Some(0)), 8);
        assert_eq!(bind(Some(3), Some(5)), 5);
        assert_eq!(bind(Some(3), None), 3);
        assert_eq!(bind(None, None), 8);
    }

    #[test]
    fn a_group_may_weigh_more_than_the_default() {
        let with = |weight| Settings {
            weight,
            ..Settings::DEFAULT
        };
        let bind = |own: Option<u16>, group: Option<u16>| {
            let (own, group) = (with(own.map(Weight)), with(group.map(Weight)));
            own.within(&group).weight_in_force().get()
        };
        assert_eq!(bind(None, Some(300)), 300);
        assert_eq!(bind(Some(100), Some(300)), 100);
        assert_eq!(bind(Some(500), Some(300)), 300);
        assert_eq!(bind(Some(500), None), 500);
        assert_eq!(bind(None, None), 100);
    }

    #[test]
    fn the_tighter_binds() {
        let cycle = |quota, period| {
            Some(Bandwidth {
                quota: Us(quota),
                period: Us(period),
            })
        };
        let own = Settings {
            gmem_limit: Some(Bytes(10)),
            timeslice: None,
            priority: Some(Priority(3)),
            weight: Some(Weight(500)),
            bandwidth: cycle(500, 1_000),
            tpc_mask: Some(TpcMask::first(4)),
            ..Settings::DEFAULT
        };
        let group = Settings {
            gmem_limit: Some(Bytes(20)),
            timeslice: Some(Us(100)),
            bandwidth: cycle(4_000, 10_000),
            freeze: true,
            tpc_mask: TpcMask::parse(b"2-9").ok(),
            tpc_steal: false,
            ..Settings::DEFAULT
        };
        let both = own.within(&group);
        assert_eq!(both.gmem_limit, Some(Bytes(10)));
        assert_eq!(both.timeslice, Some(Us(100)));
        assert_eq!(
            (both.priority, both.weight),
            (Some(Priority(3)), Some(Weight(500)))
        );
        assert_eq!(both.bandwidth, cycle(4_000, 10_000));
        assert!(both.freeze && !both.tpc_steal);
        assert_eq!(both.tpc_mask, TpcMask::parse(b"2-3").ok());
        assert_eq!(own.within(&Settings::DEFAULT).within(&group), both);
        let apart = Settings {
            tpc_mask: TpcMask::parse(b"20").ok(),
            ..Settings::DEFAULT
        };
        assert_eq!(apart.within(&group).tpc_mask, group.tpc_mask);
    }
}
