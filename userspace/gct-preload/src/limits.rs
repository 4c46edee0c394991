// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Defines the limits of this process's launches, and reads them from the environment.

use crate::startup::cannot;
use gct_core::iface::parse;
use gct_core::iface::value::{Format, Value};
use gct_core::mask::TpcMask;
use gct_core::policy::tpc::Rank;
use gct_core::settings::Settings;
use gct_core::submit::limits::ATOMS_MAX;
use gct_core::topology::Topology;
use gct_core::units::{Ns, Priority};
use gctd_ipc::driver;
use gctd_ipc::page::Limits as PageLimits;

/// The limits on this process's launches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaunchLimits {
    /// The TPCs that launches may use; `None` for no limit.
    pub(crate) tpcs: Option<TpcMask>,
    /// The atoms that every launch is split into if it can be; 0 and 1 for no split.
    pub(crate) atoms: u32,
    /// The target duration of an atom, in nanoseconds; 0 for none. Launches that are predicted to
    /// take longer are split, and their atoms are released one by one.
    pub(crate) atom_ns: u64,
    /// Whether publishing is stopped.
    pub(crate) frozen: bool,
    /// Whether launches may use TPCs that are reserved for others while these are away.
    pub(crate) steal: bool,
    /// The place in the order of neighbours.
    pub(crate) rank: Rank,
}

impl LaunchLimits {
    /// No limit.
    pub(crate) const NONE: Self = Self {
        tpcs: None,
        atoms: 0,
        atom_ns: 0,
        frozen: false,
        steal: true,
        rank: Rank {
            best_effort: false,
            priority: Settings::DEFAULT.priority_in_force(),
        },
    };

    /// Reads `GCTGROUP_TPC_MASK` (`0-31,40`, as `tpc.mask`), `GCTGROUP_ATOMS` and
    /// `GCTGROUP_ATOM_DURATION` (as `atom.duration`). An invalid value stops the program, or its
    /// limit does not hold ([`cannot`]).
    pub(crate) fn from_environment() -> Self {
        let read = |name| {
            let value = std::env::var_os(name).unwrap_or_default();
            value.to_string_lossy().into_owned()
        };
        let (list, atoms, duration) = (
            read("GCTGROUP_TPC_MASK"),
            read("GCTGROUP_ATOMS"),
            read("GCTGROUP_ATOM_DURATION"),
        );
        let tpcs = TpcMask::parse(list.as_bytes()).ok();
        if tpcs.is_none() && !list.is_empty() {
            cannot(&format!("GCTGROUP_TPC_MASK: '{list}' is no TPC list"));
        }
        let count = atoms.parse().ok().filter(|&n| n <= ATOMS_MAX);
        if count.is_none() && !atoms.is_empty() {
            cannot(&format!(
                "GCTGROUP_ATOMS: '{atoms}' is no number up to {ATOMS_MAX}"
            ));
        }
        let target = parse::value(Format::UsOrOff, duration.as_bytes());
        if target.is_err() && !duration.is_empty() {
            cannot(&format!(
                "GCTGROUP_ATOM_DURATION: '{duration}' is no duration of atoms"
            ));
        }
        Self {
            tpcs,
            atoms: count.unwrap_or(0),
            atom_ns: match target {
                Ok(Value::UsOrOff(Some(target))) => target.to_ns().map_or(0, Ns::get),
                _ => 0,
            },
            ..Self::NONE
        }
    }

    /// Takes over the limits of the daemon. Limits that only the environment has stay.
    pub(crate) fn take(&mut self, new: &PageLimits) {
        self.tpcs = new.tpcs.map(TpcMask::from_words);
        self.atom_ns = new.atom_ns;
        self.frozen = new.frozen;
        self.steal = new.steal;
        self.rank = Rank {
            best_effort: new.quota == Some(0),
            priority: Priority(new.priority),
        };
    }

    /// Returns the TPCs of a GPU that launches may use. At least one of them exists, because a
    /// launch without any would never start.
    pub(crate) fn allowed(&self, gpu: &Topology) -> TpcMask {
        let all = match gpu.is_known() {
            true => *gpu.existing(),
            // Nothing is masked then. The widest supported mask has 128 bits.
            false => TpcMask::first(128),
        };
        let list = self.tpcs.map(|list| list.and(&all));
        list.filter(|list| !list.is_empty()).unwrap_or(all)
    }

    /// Returns whether the limits change anything about a launch.
    pub(crate) fn any(&self) -> bool {
        self.tpcs.is_some() || self.atoms > 1 || self.atom_ns > 0
    }
}

/// Returns the TPCs of the GPU `/dev/nvidia<minor>`, from the resource manager or else from the
/// list.
pub(crate) fn topology(minor: u32) -> Topology {
    let told = driver::ask(minor).and_then(|facts| facts.topology);
    told.unwrap_or_else(listed)
}

/// Returns the TPCs of the list in `GCTGROUP_TPCS`.
pub(crate) fn listed() -> Topology {
    let list = std::env::var("GCTGROUP_TPCS").ok();
    let list = list.and_then(|list| TpcMask::parse(list.as_bytes()).ok());
    list.map_or(Topology::UNKNOWN, Topology::apart)
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
