// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A sequence lock over words: one writer, many readers, neither ever waits for the other.

use core::sync::atomic::{fence, AtomicU64, Ordering};

/// How often a reader tries before it gives up: a writer that was stopped in the middle, or
/// a sequence that somebody scribbles on, must not hold its readers.
const TRIES_MAX: u32 = 1000;

/// Words that change together. All zero is unlocked and never written.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Seqlock<const N: usize> {
    sequence: AtomicU64,
    words: [AtomicU64; N],
}

impl<const N: usize> Seqlock<N> {
    /// How often the words were written; one load.
    pub(crate) fn generation(&self) -> u64 {
        self.sequence.load(Ordering::Acquire) / 2
    }

    /// Writes all words; `generation` is one more than at the last call. The caller is the
    /// only writer and counts for itself: nothing is read back.
    pub(crate) fn write(&self, generation: u64, words: &[u64; N]) {
        let even = generation.wrapping_mul(2);
        self.sequence.store(even.wrapping_sub(1), Ordering::Relaxed);
        fence(Ordering::Release);
        for (to, from) in self.words.iter().zip(words) {
            to.store(*from, Ordering::Relaxed);
        }
        self.sequence.store(even, Ordering::Release);
    }

    /// A consistent copy of the words with its generation; `None` when the writer is always
    /// in between.
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
    fn readers_never_see_half_a_write() {
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
    fn a_writer_that_died_in_the_middle_holds_nobody() {
        let lock = empty::<2>();
        lock.sequence.store(1, Ordering::Relaxed);
        assert_eq!(lock.read(), None);
        lock.write(1, &[4, 5]);
        assert_eq!(lock.read(), Some((1, [4, 5])));
    }
}
