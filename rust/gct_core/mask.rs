// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Defines sets of TPCs, and their `0-31,40` text.

use crate::error::Error;
use crate::limits::TPCS_MAX;
use crate::units::Sat;
use core::fmt::{self, Write};
use core::num::Wrapping;

const WORD_BITS: usize = 64;
const WORDS: usize = TPCS_MAX / WORD_BITS;

/// A set of TPCs of one GPU, by their numbers in its queue metadata.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TpcMask([u64; WORDS]);

impl TpcMask {
    /// The empty set.
    pub const EMPTY: Self = Self([0; WORDS]);

    /// The set of all TPCs that a GPU can have.
    pub const FULL: Self = Self([u64::MAX; WORDS]);

    /// Creates the set of TPCs `0..count`, of at most [`TPCS_MAX`].
    pub fn first(count: usize) -> Self {
        let mut mask = Self::EMPTY;
        for tpc in 0..count.min(TPCS_MAX) {
            mask.set(tpc);
        }
        mask
    }

    /// Adds a TPC. A number that no GPU has is ignored.
    pub fn set(&mut self, tpc: usize) {
        if let Some(word) = self.0.get_mut(tpc / WORD_BITS) {
            *word |= 1 << (tpc % WORD_BITS);
        }
    }

    /// Returns whether `tpc` is in the set.
    pub fn has(&self, tpc: usize) -> bool {
        self.0
            .get(tpc / WORD_BITS)
            .is_some_and(|word| (word >> (tpc % WORD_BITS)) & 1 == 1)
    }

    /// Returns the number of TPCs.
    pub fn count(&self) -> u32 {
        let words = self.0.iter().map(|word| Wrapping(word.count_ones()));
        words.sum::<Wrapping<u32>>().0
    }

    /// Returns the TPCs of the set in `from..to`.
    #[must_use]
    pub fn between(&self, from: usize, to: usize) -> Self {
        let mut mask = *self;
        for (word, base) in mask.0.iter_mut().zip((0..).step_by(WORD_BITS)) {
            let below = |end: usize| low_bits((Sat(end) - Sat(base)).0);
            *word &= below(to) & !below(from);
        }
        mask
    }

    /// Returns whether the set is empty.
    pub fn is_empty(&self) -> bool {
        *self == Self::EMPTY
    }

    /// Returns the TPCs that are in both sets.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        let mut mask = *self;
        for (word, bits) in mask.0.iter_mut().zip(other.0) {
            *word &= bits;
        }
        mask
    }

    /// Returns the TPCs that are in either set.
    #[must_use]
    pub fn or(&self, other: &Self) -> Self {
        let mut mask = *self;
        for (word, bits) in mask.0.iter_mut().zip(other.0) {
            *word |= bits;
        }
        mask
    }

    /// Returns the TPCs that are in this set and not in the other.
    #[must_use]
    pub fn without(&self, other: &Self) -> Self {
        let mut mask = *self;
        for (word, bits) in mask.0.iter_mut().zip(other.0) {
            *word &= !bits;
        }
        mask
    }

    /// Returns the lowest `count` TPCs of the set, or all if there are fewer.
    #[must_use]
    pub fn lowest(&self, count: u32) -> Self {
        let mut mask = *self;
        let mut left = Sat(count);
        for word in mask.0.iter_mut() {
            let mut kept = 0u64;
            while *word != 0 && left != Sat(0) {
                let lowest = 1 << (word.trailing_zeros() & 63);
                kept |= lowest;
                *word &= !lowest;
                left -= 1;
            }
            *word = kept;
        }
        mask
    }

    /// Creates a set from its [`words`](Self::words).
    pub const fn from_words(words: [u64; TPCS_MAX / 64]) -> Self {
        Self(words)
    }

    /// Returns the set in words, the lowest TPC in the lowest bit of the first.
    pub const fn words(&self) -> &[u64; TPCS_MAX / 64] {
        &self.0
    }

    /// Returns the highest TPC, or `None` for the empty set.
    pub fn last(&self) -> Option<usize> {
        (0..TPCS_MAX).rev().find(|tpc| self.has(*tpc))
    }

    /// Parses `0-31,40`: numbers and ascending ranges, in any order, without blanks.
    ///
    /// # Errors
    ///
    /// [`Error::Syntax`] for any other text, the empty list included; [`Error::Range`] for a TPC
    /// that no GPU has.
    pub fn parse(text: &[u8]) -> Result<Self, Error> {
        let mut mask = Self::EMPTY;
        for item in text.split(|byte| *byte == b',') {
            let mut ends = item.splitn(2, |byte| *byte == b'-');
            let first = index(ends.next().ok_or(Error::Syntax)?)?;
            let last = match ends.next() {
                Some(text) => index(text)?,
                None => first,
            };
            if last < first {
                return Err(Error::Syntax);
            }
            for tpc in first..=last {
                mask.set(tpc);
            }
        }
        Ok(mask)
    }

    /// Writes the shortest ascending list; nothing for the empty set.
    pub fn show(&self, out: &mut dyn Write) -> fmt::Result {
        let mut separator = "";
        let mut start = None;
        for tpc in 0..=TPCS_MAX {
            match (start, self.has(tpc)) {
                (None, true) => start = Some(tpc),
                (Some(first), false) => {
                    let last = (Sat(tpc) - Sat(1)).0;
                    write!(out, "{separator}{first}")?;
                    if last > first {
                        write!(out, "-{last}")?;
                    }
                    separator = ",";
                    start = None;
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Returns the lowest `count` bits of a word, all of them for 64 and more.
const fn low_bits(count: usize) -> u64 {
    match count {
        0..WORD_BITS => !(u64::MAX << count),
        _ => u64::MAX,
    }
}

fn index(text: &[u8]) -> Result<usize, Error> {
    let number = crate::text::number(text)?;
    usize::try_from(number)
        .ok()
        .filter(|tpc| *tpc < TPCS_MAX)
        .ok_or(Error::Range)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::string::String;

    fn text(mask: &TpcMask) -> String {
        let mut out = String::new();
        mask.show(&mut out).unwrap();
        out
    }

    #[test]
    fn lists() {
        let mask = TpcMask::parse(b"40,0-31").unwrap();
        assert_eq!(text(&mask), "0-31,40");
        assert_eq!((mask.count(), mask.last()), (33, Some(40)));
        assert_eq!(text(&TpcMask::parse(b"0-255").unwrap()), "0-255");
        assert_eq!(TpcMask::parse(b"0-255"), Ok(TpcMask::first(999)));
        assert_eq!(text(&TpcMask::parse(b"63,64").unwrap()), "63-64");
        assert_eq!(text(&TpcMask::EMPTY), "");
        assert_eq!(TpcMask::EMPTY.last(), None);
    }

    #[test]
    fn refusals() {
        for bad in [
            "", ",", "1,", ",1", "-", "1-", "-1", "3-1", "1-2-3", "1 ,2", "0x1", "a",
        ] {
            assert_eq!(TpcMask::parse(bad.as_bytes()), Err(Error::Syntax), "{bad}");
        }
        for bad in ["256", "0-256", "99999999999999999999"] {
            assert_eq!(TpcMask::parse(bad.as_bytes()), Err(Error::Range), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn what_is_shown_can_be_read(tpcs in prop::collection::vec(0..TPCS_MAX, 1..40)) {
            let mut mask = TpcMask::EMPTY;
            for tpc in &tpcs {
                mask.set(*tpc);
            }
            prop_assert!(tpcs.iter().all(|tpc| mask.has(*tpc)));
            prop_assert_eq!(TpcMask::parse(text(&mask).as_bytes()), Ok(mask));
        }

        #[test]
        fn sets(a: [u64; WORDS], b: [u64; WORDS], count in 0u32..300) {
            let (a, b) = (TpcMask(a), TpcMask::from_words(b));
            let (both, either, rest, lowest) = (a.and(&b), a.or(&b), a.without(&b), a.lowest(count));
            for tpc in 0..TPCS_MAX {
                prop_assert_eq!(both.has(tpc), a.has(tpc) && b.has(tpc));
                prop_assert_eq!(either.has(tpc), a.has(tpc) || b.has(tpc));
                prop_assert_eq!(rest.has(tpc), a.has(tpc) && !b.has(tpc));
                let below = (0..tpc).filter(|tpc| a.has(*tpc)).count();
                prop_assert_eq!(lowest.has(tpc), a.has(tpc) && below < usize::try_from(count).unwrap());
                let between = (tpc / 2..tpc).filter(|tpc| a.has(*tpc)).count();
                prop_assert_eq!(a.between(tpc / 2, tpc).count(), u32::try_from(between).unwrap());
            }
        }
    }
}
