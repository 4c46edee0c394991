// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Reads the limits of this process's launches from the environment and from the daemon's page.

use crate::locks::First;
use crate::optional::cannot;
use gct_core::iface::parse;
use gct_core::iface::value::{Format, Value};
use gct_core::mask::TpcMask;
use gct_core::submit::limits::ATOMS_MAX;
use gct_core::topology::Topology;
use gct_core::units::Ns;
use gctd_ipc::driver;
use gctd_ipc::environment::variable;
use gctd_ipc::page::Limits as PageLimits;

pub(crate) use gct_core::lane::limits::LaunchLimits;

/// Returns the limits of the environment. The first call reads them.
pub(crate) fn from_environment() -> LaunchLimits {
    static LIMITS: First<LaunchLimits> = First::new();
    *LIMITS.get_or_init(read_environment)
}

/// Reads `GCTGROUP_TPC_MASK` (`0-31,40`, as `tpc.mask`), `GCTGROUP_ATOMS`,
/// `GCTGROUP_ATOM_DURATION` (as `atom.duration`) and `GCTGROUP_TRY_SPLITS`. An invalid value stops
/// the program, or its limit does not hold ([`cannot`]).
fn read_environment() -> LaunchLimits {
    let read = |name| {
        let value = variable(name).unwrap_or_default();
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
    LaunchLimits {
        tpcs,
        atoms: count.unwrap_or(0),
        atom_ns: match target {
            Ok(Value::UsOrOff(Some(target))) => target.to_ns().map_or(0, Ns::get),
            _ => 0,
        },
        tried: read("GCTGROUP_TRY_SPLITS") == "1",
        ..LaunchLimits::NONE
    }
}

/// Takes over the limits of the daemon. Limits that only the environment has stay.
pub(crate) fn take(limits: &mut LaunchLimits, new: &PageLimits) {
    *limits = LaunchLimits {
        atoms: limits.atoms,
        ..new.launches
    };
}

/// Returns the TPCs of the GPU `/dev/nvidia<minor>`, from the resource manager or else from the
/// list.
pub(crate) fn topology(minor: u32) -> Topology {
    let told = driver::ask(minor).and_then(|facts| facts.topology);
    told.unwrap_or_else(listed)
}

/// Returns the TPCs of the list in `GCTGROUP_TPCS`.
pub(crate) fn listed() -> Topology {
    let list = variable("GCTGROUP_TPCS");
    let list = list.and_then(|list| TpcMask::parse(list.as_encoded_bytes()).ok());
    list.map_or(Topology::UNKNOWN, Topology::apart)
}
