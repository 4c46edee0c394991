// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Implements a sequence lock over words. Neither the writer nor a reader waits for the other.

use core::sync::atomic::{fence, AtomicU64, Ordering};

/// Attempts of a reader before it gives up. A writer that was stopped within a write, or a hostile
/// one, must not block readers.
const TRIES_MAX: u32 = 1000;

/// Words that change together. All zero means unlocked and never written.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Seqlock<const N: usize> {
    sequence: AtomicU64,
    words: [AtomicU64; N],
}

impl<const N: usize> Seqlock<N> {
    /// Returns how often the words were written. One load.
    pub(crate) fn generation(&self) -> u64 {
        self.sequence.load(Ordering::Acquire) / 2
    }

    /// Writes all words. `generation` is one more than at the last call. The only writer counts
    /// itself, so that it trusts no word of the shared page.
    pub(crate) fn write(&self, generation: u64, words: &[u64; N]) {
        let even = generation.wrapping_mul(2);
        self.sequence.store(even.wrapping_sub(1), Ordering::Relaxed);
        fence(Ordering::Release);
        for (to, from) in self.words.iter().zip(words) {
            to.store(*from, Ordering::Relaxed);
        }
        self.sequence.store(even, Ordering::Release);
    }

    /// Returns a consistent copy of the words with its generation; `None` if a writer interferes
    /// with every attempt.
    pub(crate) fn read(&self) -> Option<(u64, [u64; N])> {
        for _ in 0..TRIES_MAX {
            let before = self.sequence.load(Ordering::Acquire);
            if before % 2 == 0 {
                let words = core::array::from_fn(|i| {
                    self.words.get(i).map_or(0, |w| w.load(Ordering::Relaxed))
                });
                fence(Ordering::Acquire);
                if self.sequence.load(Ordering::Relaxed) == before {
                    return Some((before / 2, words));
                }
            }
            core::hint::spin_loop();
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn empty<const N: usize>() -> Seqlock<N> {
        Seqlock {
            sequence: AtomicU64::new(0),
            words: [const { AtomicU64::new(0) }; N],
        }
    }

    #[test]
    fn readers_never_see_a_partial_write() {
        let lock = Arc::new(empty::<8>());
        let writer = {
            let lock = lock.clone();
            std::thread::spawn(move || (1..200_000).for_each(|n| lock.write(n, &[n; 8])))
        };
        let mut last = 0;
        while last < 199_999 {
            if let Some((generation, words)) = lock.read() {
                assert_eq!(words, [generation; 8]);
                assert!(generation >= last);
                last = generation;
            }
        }
        writer.join().unwrap();
    }

    #[test]
    fn an_interrupted_write_does_not_block_readers() {
        let lock = empty::<2>();
        lock.sequence.store(1, Ordering::Relaxed);
        assert_eq!(lock.read(), None);
        lock.write(1, &[4, 5]);
        assert_eq!(lock.read(), Some((1, [4, 5])));
    }
}
