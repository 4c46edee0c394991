// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Holds the memory of one tenant, which the lane and the model of the launch hardware share.

use gct_core::lane::words::{Storage, Words};
use gct_model::{Fault, GuestMemory};
use std::cell::Cell;
use std::rc::Rc;

/// The GPU's address of the first word.
pub(crate) const BASE: u64 = 0x4000_0000;

/// Storage on the heap.
#[derive(Debug)]
pub(crate) struct Heap;

impl Storage for Heap {
    type Slots<T: 'static> = Vec<T>;
    type Table<T: 'static> = Vec<T>;
}

/// Words at consecutive addresses. Clones are the same memory.
#[derive(Clone, Debug)]
pub(crate) struct Ram(Rc<[Cell<u32>]>);

/// The index of a run's first word, and its length.
pub(crate) type View = (usize, usize);

impl Ram {
    pub(crate) fn new(words: usize) -> Self {
        Self(vec![Cell::new(0); words].into())
    }

    /// Returns the GPU's address of a word.
    pub(crate) fn va(word: usize) -> u64 {
        BASE + 4 * u64::try_from(word).expect("a word of the memory")
    }

    pub(crate) fn get(&self, word: usize) -> u32 {
        self.0[word].get()
    }

    fn run(&self, view: &View, index: usize, count: usize) -> Option<&[Cell<u32>]> {
        let run = self.0.get(view.0..view.0 + view.1)?;
        run.get(index..index.checked_add(count)?)
    }

    /// Returns the words of a range of bytes, which are aligned in all that the model does here.
    fn bytes(&self, address: u64, len: usize) -> Result<&[Cell<u32>], Fault> {
        let view = self.find(address, len.div_ceil(4)).filter(|_| len % 4 == 0);
        let run = view.and_then(|view| self.run(&view, 0, view.1));
        run.ok_or(Fault { address })
    }
}

impl Words for Ram {
    type View = View;

    fn find(&self, va: u64, count: usize) -> Option<View> {
        let offset = va.checked_sub(BASE).filter(|offset| offset % 4 == 0)?;
        let view = (usize::try_from(offset / 4).ok()?, count);
        self.run(&view, 0, count).map(|_| view)
    }

    fn load(&self, view: &View, index: usize) -> Option<u32> {
        Some(self.run(view, index, 1)?[0].get())
    }

    fn store(&self, view: &View, index: usize, word: u32) -> bool {
        self.write(view, index, &[word])
    }

    fn read(&self, view: &View, to: &mut [u32]) -> bool {
        let run = self.run(view, 0, to.len());
        run.is_some_and(|run| {
            let words = to.iter_mut().zip(run);
            words.for_each(|(to, from)| *to = from.get());
            true
        })
    }

    fn write(&self, view: &View, index: usize, words: &[u32]) -> bool {
        let run = self.run(view, index, words.len());
        run.is_some_and(|run| {
            run.iter().zip(words).for_each(|(to, from)| to.set(*from));
            true
        })
    }
}

impl GuestMemory for Ram {
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), Fault> {
        let words = self.bytes(address, into.len())?.iter();
        for (to, word) in into.chunks_exact_mut(4).zip(words) {
            to.copy_from_slice(&word.get().to_le_bytes());
        }
        Ok(())
    }

    fn write(&mut self, address: u64, from: &[u8]) -> Result<(), Fault> {
        let words = self.bytes(address, from.len())?.iter();
        for (bytes, word) in from.chunks_exact(4).zip(words) {
            word.set(u32::from_le_bytes(bytes.try_into().expect("four bytes")));
        }
        Ok(())
    }
}
