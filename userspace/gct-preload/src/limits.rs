// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The limits of this process.

use gct_core::mask::TpcMask;
use gct_core::submit::limits::ATOMS_MAX;
use gct_core::submit::mask::DisabledTpcs;

/// What the tenant may use.
#[derive(Debug)]
pub(crate) struct Limits {
    /// The TPCs that its launches may not use; `None` for no limit.
    pub(crate) mask: Option<DisabledTpcs>,
    /// Into how many atoms every launch is split that can be; 0 and 1 for none.
    pub(crate) atoms: u32,
}

impl Limits {
    /// No limit.
    pub(crate) const NONE: Self = Self {
        mask: None,
        atoms: 0,
    };

    /// `GCTGROUP_TPC_MASK` (`0-31,40`, as `tpc.mask`) of `GCTGROUP_TPCS` TPCs, and
    /// `GCTGROUP_ATOMS`. What cannot be understood is reported, and that limit does not hold.
    pub(crate) fn from_environment() -> Self {
        let read = |name| std::env::var(name).unwrap_or_default();
        let (list, tpcs, atoms) = (
            read("GCTGROUP_TPC_MASK"),
            read("GCTGROUP_TPCS"),
            read("GCTGROUP_ATOMS"),
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
        Self {
            mask,
            atoms: count.unwrap_or(0),
        }
    }

    /// Whether anything of a launch is to change.
    pub(crate) fn any(&self) -> bool {
        self.mask.is_some() || self.atoms > 1
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
