// SPDX-License-Identifier: GPL-2.0 OR MIT

//! States which versions of the protocol this build speaks.
//!
//! The protocol is the form and meaning of messages, pages, pulses and boards. Daemon and library
//! are upgraded at different times, and a program keeps the library that it has loaded. Therefore
//! each side states a range of versions in `Hello`, and both use the highest common one.
//!
//! Both sides only append. An older side ignores what a newer one appended. A newer side reads 0
//! where an older one wrote nothing, so 0 is the default of each appended field.
//!
//! | change | needs |
//! |---|---|
//! | a field at the end of a message, not of a structure in it | nothing |
//! | a counter or word at the end of a page, a pulse or a board | nothing |
//! | unused bits of a word of limits or of a slot | nothing |
//! | words of limits: a sequence lock at the end of the page, written before the first | nothing |
//! | a message at the end of its enum | a higher `highest`; sent only where both sides have it |
//! | a limit that no process may ignore | a higher `lowest`: older libraries acknowledge it |
//! | another order, size or meaning; a longer page | a higher `lowest` |
//!
//! Version 18 refuses longer messages: the first appended field of a message raises `lowest` to 19.
//! The tests `*_keep_their_form` fail for a change that does not append.
//!
//! No message names its own length, and no page: that of a message is its packet's, and that of a
//! page is [`PAGE_BYTES`](crate::shared::PAGE_BYTES) of sealed memory, of which the reader maps no
//! more and accepts no less.

use core::fmt;
use serde::{Deserialize, Serialize};

/// The versions that this build speaks. 19 is the first that knows ranges.
pub const VERSIONS: Versions = Versions {
    lowest: 18,
    highest: 19,
};

/// A range of versions.
///
/// It is encoded as one number, in every version: `lowest << 16 | highest`, or the version if it is
/// only one, as version 18 has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "u32", into = "u32")]
pub struct Versions {
    lowest: u16,
    highest: u16,
}

impl Versions {
    /// Returns the range of one version.
    pub const fn only(version: u16) -> Self {
        Self {
            lowest: version,
            highest: version,
        }
    }

    /// Returns the highest version that is in both ranges.
    pub fn common(self, other: Self) -> Option<Self> {
        let highest = self.highest.min(other.highest);
        let is_spoken = self.lowest.max(other.lowest) <= highest;
        is_spoken.then_some(Self::only(highest))
    }
}

impl From<u32> for Versions {
    fn from(number: u32) -> Self {
        // CAST: each is one half.
        let (lowest, highest) = ((number >> 16) as u16, number as u16);
        match lowest {
            0 => Self::only(highest),
            _ => Self { lowest, highest },
        }
    }
}

impl From<Versions> for u32 {
    fn from(versions: Versions) -> Self {
        let Versions { lowest, highest } = versions;
        match lowest == highest {
            true => highest.into(),
            false => Self::from(lowest) << 16 | Self::from(highest),
        }
    }
}

impl fmt::Display for Versions {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.lowest == self.highest {
            true => write!(out, "{}", self.highest),
            false => write!(out, "{} to {}", self.lowest, self.highest),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(lowest: u16, highest: u16) -> Versions {
        Versions { lowest, highest }
    }

    #[test]
    fn both_sides_agree_on_the_highest_common_version() {
        for (other, common) in [
            (range(17, 17), None),
            (range(18, 18), Some(18)),
            (range(17, 19), Some(19)),
            (range(19, 21), Some(19)),
            (range(20, 21), None),
            (range(0, u16::MAX), Some(19)),
            (range(u16::MAX, 0), None),
        ] {
            let ours = range(18, 19);
            let common = common.map(Versions::only);
            assert_eq!(ours.common(other), common, "{other}");
            assert_eq!(other.common(ours), common, "{other}");
        }
    }

    #[test]
    fn a_single_version_is_a_number() {
        assert_eq!(u32::from(Versions::only(18)), 18);
        assert_eq!(Versions::from(18), Versions::only(18));
        for versions in [VERSIONS, range(20, 20), range(1, u16::MAX), range(9, 8)] {
            assert_eq!(Versions::from(u32::from(versions)), versions);
        }
    }
}
