// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Reads and writes bit fields of 32-bit and 64-bit words.

/// The bits `high:low` of a word, both included, as register manuals write
/// them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bits {
    high: u32,
    low: u32,
}

impl Bits {
    /// Creates the field `high:low`. It requires `low <= high < 64`; a constant that breaks this
    /// does not compile.
    pub const fn new(high: u32, low: u32) -> Self {
        assert!(high >= low && high < 64);
        Self { high, low }
    }

    /// Returns the largest value that fits.
    pub const fn max(self) -> u64 {
        u64::MAX >> (63 - (self.high - self.low))
    }

    /// Extracts the field from `word`.
    pub const fn of(self, word: u64) -> u64 {
        (word >> self.low) & self.max()
    }

    /// Returns `word` with the low bits of `value` in the field. Bits that do not fit are cut off,
    /// as in hardware.
    pub const fn put(self, word: u64, value: u64) -> u64 {
        (word & !(self.max() << self.low)) | ((value & self.max()) << self.low)
    }
}

/// Returns the low half of a 64-bit word.
pub const fn low_u32(word: u64) -> u32 {
    // CAST: the mask makes the truncation explicit.
    (word & 0xffff_ffff) as u32
}

/// Returns the high half of a 64-bit word.
pub const fn high_u32(word: u64) -> u32 {
    low_u32(word >> 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_cover_their_edges() {
        let whole = Bits::new(63, 0);
        assert_eq!(whole.max(), u64::MAX);
        assert_eq!(whole.of(u64::MAX), u64::MAX);
        let one = Bits::new(63, 63);
        assert_eq!(one.put(0, 1), 1 << 63);
        assert_eq!(one.put(u64::MAX, 2), u64::MAX >> 1);
        let middle = Bits::new(11, 8);
        assert_eq!(middle.put(0xffff, 0x35), 0xf5ff);
        assert_eq!(middle.of(0xa5ff), 0x5);
    }

    #[test]
    fn halves_make_the_word() {
        let word = 0x1234_5678_9abc_def0;
        assert_eq!(low_u32(word), 0x9abc_def0);
        assert_eq!(high_u32(word), 0x1234_5678);
    }
}
