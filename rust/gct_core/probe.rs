// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Decides which slots of a small table a key may be in: linear probing from a hash.

use core::num::{NonZeroUsize, Wrapping};

/// 2^64 divided by the golden ratio (Knuth, volume 3, section 6.4: Fibonacci hashing).
const GOLDEN: Wrapping<u64> = Wrapping(0x9e37_79b9_7f4a_7c15);

/// Returns `hash` with one more word of the key mixed into it.
pub(crate) fn mix(hash: u64, word: u32) -> u64 {
    (Wrapping(hash ^ u64::from(word)) * GOLDEN)
        .0
        .rotate_left(29)
}

/// Returns the hash of a sequence with one more hash in it. Each counts until 16 more have
/// followed, the last ones with more bits.
pub(crate) fn follow(sequence: u64, hash: u64) -> u64 {
    (Wrapping(sequence) * (GOLDEN << 4) + Wrapping(hash)).0
}

/// Returns the slots of a table of `len` where the key with this hash may be, the first one first.
pub(crate) fn slots(hash: u64, len: usize, probes: usize) -> impl Iterator<Item = usize> {
    // CAST: the upper half of the product is mixed best.
    let first = Wrapping(((Wrapping(hash) * GOLDEN).0 >> 32) as usize);
    let count = probes.min(len);
    let len = NonZeroUsize::new(len).unwrap_or(NonZeroUsize::MIN);
    (0..count).map(move |probe| (first + Wrapping(probe)).0 % len)
}

/// Returns which of `places` an entry is written to: the slot that has it already, else a free one,
/// else the oldest. `age` is `None` for the entry itself.
pub(crate) fn place<T>(
    slots: &[Option<T>],
    places: impl Iterator<Item = usize>,
    age: impl Fn(&T) -> Option<u32>,
) -> Option<usize> {
    let order = |place: &usize| match slots.get(*place) {
        Some(Some(entry)) => age(entry).map_or((2, 0), |age| (0, age)),
        Some(None) => (1, 0),
        None => (0, 0),
    };
    places.max_by_key(order)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    proptest! {
        #[test]
        fn slots_are_distinct_and_in_the_table(hash: u64, len in 0usize..40, probes in 0usize..20) {
            let mut all: Vec<usize> = slots(hash, len, probes).collect();
            prop_assert_eq!(all.len(), probes.min(len));
            all.sort_unstable();
            all.dedup();
            prop_assert_eq!(all.len(), probes.min(len));
            prop_assert!(all.iter().all(|slot| *slot < len));
        }
    }
}
