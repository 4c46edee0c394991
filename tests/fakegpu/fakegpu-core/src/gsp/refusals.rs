// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Refuses controls at a test's request.

use crate::abi;
use std::str::FromStr;

/// A rule: refuse one call of a control, or all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The control's C name, or its number.
    control: String,
    /// Which call to refuse, counted from one; all if absent.
    which: Option<u32>,
    /// The status of the refusal.
    status: u32,
    /// Number of calls so far.
    seen: u32,
}

/// Error: the text is no [`Refusal`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotARefusal(String);

impl std::fmt::Display for NotARefusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "'{}' is not CONTROL:WHICH:STATUS", self.0)
    }
}

impl std::error::Error for NotARefusal {}

impl FromStr for Refusal {
    type Err = NotARefusal;

    /// Parses "NVA06C_CTRL_CMD_SET_TIMESLICE:2:0x56". "all" instead of the 2 refuses every call.
    fn from_str(text: &str) -> Result<Self, NotARefusal> {
        let wrong = || NotARefusal(text.to_owned());
        let mut parts = text.split(':');
        let mut part = || parts.next().ok_or_else(wrong);
        let (control, which, status) = (part()?, part()?, part()?);
        let which = match which {
            "all" => None,
            number => Some(number.parse().map_err(|_| wrong())?),
        };
        let digits = status.strip_prefix("0x").ok_or_else(wrong)?;
        match (control, parts.next()) {
            ("", _) | (_, Some(_)) => Err(wrong()),
            _ => Ok(Self {
                control: control.to_owned(),
                which,
                status: u32::from_str_radix(digits, 16).map_err(|_| wrong())?,
                seen: 0,
            }),
        }
    }
}

impl Refusal {
    /// Counts this call. Returns the status if the rule refuses it.
    fn of(&mut self, command: u32) -> Option<u32> {
        let named = abi::control_name(command) == Some(&self.control);
        if !named && format!("{command:#x}") != self.control {
            return None;
        }
        self.seen = self.seen.saturating_add(1);
        self.which
            .is_none_or(|which| which == self.seen)
            .then_some(self.status)
    }
}

/// Returns the status of the first of `refusals` that refuses this call. Each one counts the call.
pub(super) fn refused(refusals: &mut [Refusal], command: u32) -> Option<u32> {
    refusals
        .iter_mut()
        .filter_map(|refusal| refusal.of(command))
        .next_back()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_call_is_refused() {
        let mut refusals = ["0xa06c0103:2:0x56".parse().unwrap()];
        let mut call = |command| refused(&mut refusals, command);
        assert_eq!(call(0xa06c_0103), None);
        assert_eq!(call(0xa06c_0104), None);
        assert_eq!(call(0xa06c_0103), Some(0x56));
        assert_eq!(call(0xa06c_0103), None);
    }

    #[test]
    fn every_refusal_counts() {
        let texts = ["0xa06c0103:all:0x1a", "0xa06c0103:1:0x56"];
        let mut refusals = texts.map(|text| text.parse().unwrap());
        assert_eq!(refused(&mut refusals, 0xa06c_0103), Some(0x56));
        assert_eq!(refused(&mut refusals, 0xa06c_0103), Some(0x1a));
    }

    #[test]
    fn other_texts_are_errors() {
        for text in [
            "",
            "A",
            "A:1",
            "A:1:56",
            "A:x:0x56",
            "A:1:0x56:2",
            ":1:0x56",
        ] {
            assert!(Refusal::from_str(text).is_err(), "{text}");
        }
    }
}
