// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Gives tests words in place of a backend's.

use super::in_flight::{Fence, Reach, Submission};
use super::words::{Storage, Words};
use crate::policy::predict::Kernel;
use core::cell::Cell;
use std::vec;
use std::vec::Vec;

/// Storage on the heap.
#[derive(Debug)]
pub(crate) struct Heap;

impl Storage for Heap {
    type Slots<T: 'static> = Vec<T>;
    type Table<T: 'static> = Vec<T>;
}

/// Memory from GPU address 0 on. A view is the index of its first word, and the number of words.
#[derive(Debug)]
pub(crate) struct Ram(Vec<Cell<u32>>);

pub(crate) type View = (usize, usize);

/// Returns a submission of so many blocks on so many TPCs, of which nothing was predicted. It ends
/// when the first word of [`Ram`] reaches 1.
pub(crate) fn submission(kernel: Kernel, blocks: u64, tpcs: u64) -> Submission<View> {
    let fence = Fence {
        view: (0, 4),
        index: 0,
        number: 1,
        reach: Reach::AtLeast,
    };
    Submission {
        kernel,
        blocks,
        tpcs,
        ..Submission::opaque(fence)
    }
}

impl Ram {
    pub(crate) fn new(words: usize) -> Self {
        Self(vec![Cell::new(0); words])
    }

    pub(crate) fn set(&self, at: usize, word: u32) {
        self.0[at].set(word);
    }

    pub(crate) fn get(&self, at: usize) -> u32 {
        self.0[at].get()
    }

    fn run(&self, view: &View, index: usize, count: usize) -> Option<&[Cell<u32>]> {
        let run = self.0.get(view.0..view.0 + view.1)?;
        run.get(index..index.checked_add(count)?)
    }
}

impl Words for Ram {
    type View = View;

    fn find(&self, va: u64, count: usize) -> Option<View> {
        let first = usize::try_from(va / 4).ok()?;
        let view = (va % 4 == 0).then_some((first, count))?;
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
            to.iter_mut()
                .zip(run)
                .for_each(|(to, from)| *to = from.get());
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
