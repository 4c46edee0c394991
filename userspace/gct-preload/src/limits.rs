// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The limits of this process.

use gct_core::iface::parse;
use gct_core::iface::value::{Format, Value};
use gct_core::mask::TpcMask;
use gct_core::settings::Settings;
use gct_core::submit::limits::ATOMS_MAX;
use gct_core::submit::mask::DisabledTpcs;
use gct_core::units::{Ns, Priority};
use gct_share::page::Limits as Page;

/// Bits of the mask that a GPU may use: Hopper's, the only GPU whose launches are split. The
/// other generations' masks are narrower, and nothing is lost if a bit does not exist.
pub(crate) const BITS: u16 = 128;

/// What the tenant may use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// The TPCs that its launches may not use; `None` for no limit.
    pub(crate) mask: Option<DisabledTpcs>,
    /// Into how many atoms every launch is split that can be; 0 and 1 for none.
    pub(crate) atoms: u32,
    /// Launches that are predicted to run longer are split, and their atoms released one by
    /// one, in nanoseconds; 0 for none.
    pub(crate) atom_ns: u64,
    /// Nothing is published while set.
    pub(crate) frozen: bool,
    /// Whether TPCs of others may be used while these are away.
    pub(crate) steal: bool,
    /// Order among neighbours.
    pub(crate) priority: Priority,
}

impl Limits {
    /// No limit.
    pub(crate) const NONE: Self = Self {
        mask: None,
        atoms: 0,
        atom_ns: 0,
        frozen: false,
        steal: true,
        priority: Settings::DEFAULT.priority,
    };

    /// `GCTGROUP_TPC_MASK` (`0-31,40`, as `tpc.mask`) of `GCTGROUP_TPCS` TPCs, and
    /// `GCTGROUP_ATOMS`, `GCTGROUP_ATOM_DURATION` (as `atom.duration`). What cannot be
    /// understood is reported, and that limit does not hold.
    pub(crate) fn from_environment() -> Self {
        let read = |name| std::env::var(name).unwrap_or_default();
        let (list, tpcs, atoms, duration) = (
            read("GCTGROUP_TPC_MASK"),
            read("GCTGROUP_TPCS"),
            read("GCTGROUP_ATOMS"),
            read("GCTGROUP_ATOM_DURATION"),
        );
        let mask = disabled_by(&list, &tpcs);
        if mask.is_none() && !list.is_empty() {
            eprintln!("gctgroup: '{list}' of '{tpcs}' TPCs is no TPC list; no mask is set");
        }
        let count = atoms.parse().ok().filter(|&n| n <= ATOMS_MAX);
        if count.is_none() && !atoms.is_empty() {
            eprintln!(
                "gctgroup: '{atoms}' is no number of atoms up to {ATOMS_MAX}; nothing is split"
            );
        }
        let target = parse::value(Format::UsOrOff, duration.as_bytes());
        if target.is_err() && !duration.is_empty() {
            eprintln!("gctgroup: '{duration}' is no duration of atoms; nothing is paced");
        }
        Self {
            mask,
            atoms: count.unwrap_or(0),
            atom_ns: match target {
                Ok(Value::UsOrOff(Some(target))) => target.to_ns().map_or(0, Ns::get),
                _ => 0,
            },
            ..Self::NONE
        }
    }

    /// Takes over what the daemon says. What only the environment can say stays.
    pub(crate) fn take(&mut self, new: &Page) {
        self.set_mask(new.tpcs.map(TpcMask::from_words).as_ref());
        self.atom_ns = new.atom_ns;
        self.frozen = new.frozen;
        self.steal = new.steal;
        self.priority = Priority(new.priority);
    }

    /// Keeps launches to `list`; a list without any TPC that can be is no limit.
    pub(crate) fn set_mask(&mut self, list: Option<&TpcMask>) {
        let all = TpcMask::first(usize::from(BITS));
        self.mask = list.and_then(|list| DisabledTpcs::outside(BITS, &list.and(&all)).ok());
    }

    /// The TPCs that may be used.
    pub(crate) fn allowed(&self) -> TpcMask {
        let mut allowed = TpcMask::EMPTY;
        for tpc in 0..BITS {
            if self.mask.is_none_or(|mask| !mask.is_disabled(tpc)) {
                allowed.set(usize::from(tpc));
            }
        }
        allowed
    }

    /// Whether anything of a launch is to change.
    pub(crate) fn any(&self) -> bool {
        self.mask.is_some() || self.atoms > 1 || self.atom_ns > 0
    }
}

/// What a list of TPCs that may be used disables on a GPU with so many.
fn disabled_by(list: &str, tpcs: &str) -> Option<DisabledTpcs> {
    let tpcs: u16 = tpcs.parse().ok()?;
    let allowed = TpcMask::parse(list.as_bytes()).ok()?;
    DisabledTpcs::outside(tpcs, &allowed).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_says_what_is_kept() {
        let mask = disabled_by("0-3,65", "66").unwrap();
        assert_eq!(mask.enabled(), 5);
        assert!(!mask.is_disabled(65) && mask.is_disabled(4));
        assert_eq!(disabled_by("0-66", "66"), None);
        assert_eq!(disabled_by("all", "66"), None);
        assert_eq!(disabled_by("0", ""), None);
    }
}
