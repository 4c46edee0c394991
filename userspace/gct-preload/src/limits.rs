// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The limits of this process.

use gct_core::mask::TpcMask as List;
use gct_core::submit::mask::TpcMask;

/// What the tenant may use.
#[derive(Debug)]
pub(crate) struct Limits {
    /// The TPCs that its launches may not use; `None` for no limit.
    pub(crate) mask: Option<TpcMask>,
}

impl Limits {
    /// No limit.
    pub(crate) const NONE: Self = Self { mask: None };

    /// `GCTGROUP_TPC_MASK` (`0-31,40`, as `tpc.mask`) of `GCTGROUP_TPCS` TPCs. What cannot
    /// be understood is reported, and no limit holds.
    pub(crate) fn from_environment() -> Self {
        let Ok(text) = std::env::var("GCTGROUP_TPC_MASK") else {
            return Self::NONE;
        };
        let tpcs = std::env::var("GCTGROUP_TPCS").unwrap_or_default();
        let mask = disabled_by(&text, &tpcs);
        if mask.is_none() {
            eprintln!("gctgroup: '{text}' of '{tpcs}' TPCs is no TPC list; no mask is set");
        }
        Self { mask }
    }
}

/// What a list of TPCs that may be used disables on a GPU with so many.
fn disabled_by(list: &str, tpcs: &str) -> Option<TpcMask> {
    let tpcs: u16 = tpcs.parse().ok()?;
    let list = List::parse(list.as_bytes()).ok()?;
    let kept = (0..tpcs).filter(|&tpc| list.has(usize::from(tpc)));
    let mask = TpcMask::keep_only(tpcs, kept).ok()?;
    let fits = list.last().is_some_and(|last| last < usize::from(tpcs));
    fits.then_some(mask)
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
