// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Gives the lanes of this process their memory: mappings of this process, by address.

use core::sync::atomic::{AtomicU32, Ordering};
use gct_core::lane::words::{Storage, Words};

/// Storage on the heap. It is allocated when a channel or a GPU is prepared, because a signal
/// handler uses it.
#[derive(Debug)]
pub(crate) struct Heap;

impl Storage for Heap {
    type Slots<T: 'static> = Vec<T>;
    type Table<T: 'static> = Vec<T>;
}

/// Mapped words of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    at: usize,
    words: usize,
}

impl Run {
    /// Takes the `words` words at `at`.
    ///
    /// # Safety
    ///
    /// They are mapped for reading and writing, and aligned. They stay so until the lanes have
    /// forgotten them.
    pub(crate) unsafe fn new(at: usize, words: usize) -> Self {
        Self { at, words }
    }

    /// Returns whether the word at `index` lies in `[addr, addr + len)`.
    pub(crate) fn is_in(&self, index: usize, addr: usize, len: usize) -> bool {
        (self.at + 4 * index).wrapping_sub(addr) < len
    }

    /// Borrows `count` words from `index` on, if they are inside.
    fn words(&self, index: usize, count: usize) -> Option<&[AtomicU32]> {
        if index > self.words || count > self.words - index {
            return None;
        }
        // SAFETY: inside the run, which is mapped and aligned by the contract of `new`. The tenant
        // and the GPU may change the words, which atomics allow.
        Some(unsafe {
            core::slice::from_raw_parts((self.at as *const AtomicU32).add(index), count)
        })
    }
}

/// The memory of this process as its GPU addresses it.
pub(crate) struct Mapped<F> {
    find: F,
}

impl<F: Fn(u64, usize) -> Option<usize>> Mapped<F> {
    /// Takes a function that returns the address of `len` bytes at a GPU address.
    ///
    /// # Safety
    ///
    /// What it returns is mapped for reading and writing until the lanes have forgotten it.
    pub(crate) unsafe fn new(find: F) -> Self {
        Self { find }
    }
}

impl<F: Fn(u64, usize) -> Option<usize>> Words for Mapped<F> {
    type View = Run;

    #[inline]
    fn find(&self, va: u64, count: usize) -> Option<Run> {
        let at = (self.find)(va, count.checked_mul(4)?).filter(|at| at % 4 == 0)?;
        // SAFETY: `new`'s caller vouches for it, and it is aligned.
        Some(unsafe { Run::new(at, count) })
    }

    #[inline]
    fn load(&self, view: &Run, index: usize) -> Option<u32> {
        let word = view.words(index, 1)?.first()?;
        Some(word.load(Ordering::Acquire))
    }

    #[inline]
    fn store(&self, view: &Run, index: usize, word: u32) -> bool {
        self.write(view, index, &[word])
    }

    #[inline]
    fn read(&self, view: &Run, to: &mut [u32]) -> bool {
        let from = view.words(0, to.len());
        from.is_some_and(|from| {
            copy(from, to);
            true
        })
    }

    #[inline]
    fn write(&self, view: &Run, index: usize, words: &[u32]) -> bool {
        let to = view.words(index, words.len());
        to.is_some_and(|to| {
            let stores = to.iter().zip(words);
            stores.for_each(|(to, word)| to.store(*word, Ordering::Relaxed));
            true
        })
    }
}

/// Copies the tenant's words while its threads may write them. Both have the same length.
#[cfg(target_arch = "x86_64")]
fn copy(from: &[AtomicU32], to: &mut [u32]) {
    let count = from.len().min(to.len());
    // SAFETY: `count` words are readable at `from`, and writable at `to` by this thread alone. If
    // another thread writes a byte meanwhile, the instruction reads some value of it, as from a
    // device.
    unsafe {
        core::arch::asm!(
            "rep movsb",
            inout("rsi") from.as_ptr() => _,
            inout("rdi") to.as_mut_ptr() => _,
            inout("rcx") count * 4 => _,
            options(nostack, preserves_flags),
        );
    }
}

/// Copies the tenant's words one by one.
#[cfg(not(target_arch = "x86_64"))]
fn copy(from: &[AtomicU32], to: &mut [u32]) {
    for (word, copy) in from.iter().zip(to) {
        *copy = word.load(Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_found_by_the_gpus_address_and_only_inside() {
        let room = [const { AtomicU32::new(0) }; 8];
        let at = room.as_ptr() as usize;
        // SAFETY: `room` outlives it.
        let memory = unsafe { Mapped::new(|va, len| (len <= 32).then_some(at + va as usize)) };
        assert!(memory.find(0, 9).is_none() && memory.find(2, 1).is_none());
        let view = memory.find(8, 4).unwrap();
        assert!(memory.write(&view, 1, &[7, 8, 9]) && !memory.write(&view, 2, &[1, 2, 3]));
        assert_eq!(
            (memory.load(&view, 3), memory.load(&view, 4)),
            (Some(9), None)
        );
        assert!(memory.store(&view, 0, 6) && !memory.store(&view, usize::MAX, 6));
        let mut copied = [0; 4];
        assert!(memory.read(&view, &mut copied) && !memory.read(&view, &mut [0; 5]));
        assert_eq!(copied, [6, 7, 8, 9]);
        assert_eq!(room[6].load(Ordering::Relaxed), 0);
        assert!(view.is_in(1, at + 12, 4) && !view.is_in(1, at + 8, 4));
    }
}
