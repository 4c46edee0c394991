// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Defines the limits on the launches of one tenant on one GPU.

use crate::mask::TpcMask;
use crate::policy::clock::Clock;
use crate::policy::share::Share;
use crate::policy::tpc::Rank;
use crate::settings::Settings;
use crate::topology::Topology;
use crate::units::{Ns, Percent, Us};

/// The limits on a tenant's launches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchLimits {
    /// The TPCs that launches may use; `None` for no limit.
    pub tpcs: Option<TpcMask>,
    /// The atoms that every launch is split into if it can be; 0 and 1 for no split.
    pub atoms: u32,
    /// The target duration of an atom, in nanoseconds; 0 for none. Launches that are predicted to
    /// take longer are split, and their atoms are released one by one.
    pub atom_ns: u64,
    /// Whether launches are split on a GPU where that was not measured: `gctctl selftest` tries it,
    /// or has found it exact.
    pub tried: bool,
    /// Whether publishing is stopped.
    pub frozen: bool,
    /// Whether a channel is refused whose launches cannot be bound. Who knows of channels from
    /// before the limits says so.
    pub strict: bool,
    /// Whether launches may use TPCs that are reserved for others while these are away.
    pub steal: bool,
    /// The place in the order of neighbours.
    pub rank: Rank,
    /// Whether it is best effort only for a service's goal, so for a part of the time.
    pub pressed: bool,
    /// Quarters of its TPCs that goals of others take.
    pub taken: u8,
    /// Whether its requests have a goal, so that their ends must be seen in time.
    pub timed: bool,
    /// The slowdown that is tolerated so that launches get fewer TPCs.
    pub slip: Percent,
    /// The slowdown that is tolerated for a lower clock.
    pub slip_power: Percent,
    /// The clock; `None` while it is changed, and where no backend changes it.
    pub clock: Option<Clock>,
    /// The limits on its time.
    pub share: Share,
}

impl LaunchLimits {
    /// No limit.
    pub const NONE: Self = Self {
        tpcs: None,
        atoms: 0,
        atom_ns: 0,
        tried: false,
        frozen: false,
        strict: false,
        steal: true,
        rank: Rank {
            best_effort: false,
            priority: Settings::DEFAULT.priority_in_force(),
        },
        pressed: false,
        taken: 0,
        timed: false,
        slip: Percent(0),
        slip_power: Percent(0),
        clock: None,
        share: Share::NONE,
    };

    /// Returns the limits on launches among all limits of a process. `share` are those on its time.
    pub fn of(settings: &Settings, share: Share) -> Self {
        let atom = settings.atom.and_then(Us::to_ns);
        Self {
            tpcs: settings.tpc_mask,
            atoms: 0,
            atom_ns: atom.map_or(0, Ns::get),
            tried: false,
            frozen: settings.freeze,
            strict: false,
            steal: settings.tpc_steal,
            rank: settings.rank(),
            pressed: settings.pressed,
            taken: settings.taken,
            timed: settings.slo_p99.is_some(),
            slip: settings.slip_in_force(),
            slip_power: settings.power_slip_in_force(),
            clock: None,
            share,
        }
    }

    /// Returns the TPCs of a GPU that the tenant's mask allows. At least one of them exists, because
    /// a launch without any would never start.
    pub fn allowed(&self, gpu: &Topology) -> TpcMask {
        let all = match gpu.is_known() {
            true => *gpu.existing(),
            // Nothing is masked then. The widest supported mask has 128 bits.
            false => TpcMask::first(128),
        };
        let list = self.tpcs.map(|list| list.and(&all));
        list.filter(|list| !list.is_empty()).unwrap_or(all)
    }

    /// Returns whether the limits change anything about a launch.
    pub fn any(&self) -> bool {
        self.tpcs.is_some() || self.atoms > 1 || self.atom_ns > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_keeps_to_what_exists() {
        let list = |text: &str| TpcMask::parse(text.as_bytes()).unwrap();
        let gpu = Topology::apart(list("0-3,65"));
        let allowed = |text: &str| {
            LaunchLimits {
                tpcs: Some(list(text)),
                ..LaunchLimits::NONE
            }
            .allowed(&gpu)
        };
        assert_eq!(allowed("2-66"), list("2-3,65"));
        // An empty mask would stop the program for good.
        assert_eq!(allowed("4-64"), list("0-3,65"));
        assert_eq!(LaunchLimits::NONE.allowed(&gpu), list("0-3,65"));
        assert!(!LaunchLimits::NONE.allowed(&Topology::UNKNOWN).is_empty());
    }
}
