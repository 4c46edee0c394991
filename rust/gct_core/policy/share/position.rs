// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Compares positions in virtual time, which wraps around.

use crate::units::Ns;
use core::num::Wrapping;

/// A point in virtual time, modulo 2^64 nanoseconds. Points that are compared are less than 2^63
/// apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Virtual(Wrapping<u64>);

impl Virtual {
    /// Returns the point as a word.
    pub const fn to_word(self) -> u64 {
        self.0 .0
    }

    /// Returns the point of a word.
    pub const fn from_word(word: u64) -> Self {
        Self(Wrapping(word))
    }

    /// Returns how far this point lies ahead of another; 0 if it does not.
    pub(super) fn ahead_of(self, other: Self) -> Ns {
        let distance = (self.0 - other.0).0;
        // CAST: the sign of the difference modulo 2^64.
        match (distance as i64) < 0 {
            true => Ns(0),
            false => Ns(distance),
        }
    }

    pub(super) fn max(self, other: Self) -> Self {
        match other.ahead_of(self) {
            Ns(0) => self,
            _ => other,
        }
    }

    pub(super) fn min(self, other: Self) -> Self {
        match other.ahead_of(self) {
            Ns(0) => other,
            _ => self,
        }
    }

    pub(super) fn after(self, time: Ns) -> Self {
        Self(self.0 + Wrapping(time.get()))
    }

    pub(super) fn before(self, time: Ns) -> Self {
        Self(self.0 - Wrapping(time.get()))
    }
}
