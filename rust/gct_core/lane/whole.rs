// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Holds the QMDs of masked launches that stay whole, in slots that the GPU may only read.
//!
//! ```text
//! slots   slot of launch s % n | ..        the GPU may only read them
//! ends    word of launch s % n | ..        launch s writes s when it has ended
//! ```
//!
//! Launches of a channel follow each other, so slots are used in turn, and freed in order. A tenant
//! that writes the words itself has its slots used again early. They hold nothing but QMDs of
//! version 4.0 with its mask, so a mixture of two has the mask, too. Behind the QMD of a graph's
//! node are the words that schedule it, which are the same in each use of the slot but for what
//! its tenant sees of them.

use super::in_flight::{Fence, Reach};
use super::words::Words;
use crate::submit::limits::{SLOT_BYTES, SLOT_WORDS};
use crate::submit::rewrite::whole::{self, Slot};
use core::num::Wrapping;

/// The most launches of one segment that run from slots. The uploads of more are not remembered.
pub const LAUNCHES_MAX: u32 = 32;

/// Words that these launches add to their segment, at most.
// CAST: a small constant.
pub const ADDED_WORDS: usize = LAUNCHES_MAX as usize * whole::ADDED_WORDS;

/// The slots of one channel.
#[derive(Debug)]
pub struct WholeSlots<V> {
    gpu_va: u64,
    view: V,
    done_va: u64,
    done: V,
    count: u32,
    /// The subchannel of the words behind QMDs.
    subchannel: Option<u8>,
    /// Slots taken and freed since the beginning.
    taken: Wrapping<u32>,
    freed: Wrapping<u32>,
}

impl<V: Copy + 'static> WholeSlots<V> {
    /// Takes `count` slots at `gpu_va`, which are `view`, and as many words that the GPU may write
    /// at `done_va`. Returns `None` if the number is no power of two, or an address is not aligned.
    pub fn new((gpu_va, view): (u64, V), (done_va, done): (u64, V), count: u32) -> Option<Self> {
        let aligned = gpu_va % 256 == 0 && done_va % 4 == 0;
        (aligned && count.is_power_of_two()).then_some(Self {
            gpu_va,
            view,
            done_va,
            done,
            count,
            subchannel: None,
            taken: Wrapping(0),
            freed: Wrapping(0),
        })
    }

    /// Returns whether the launches of a segment find slots. Frees those of launches that have
    /// ended.
    pub(super) fn has_room(&mut self, memory: &impl Words<View = V>) -> bool {
        self.free(memory);
        self.room() >= LAUNCHES_MAX.min(self.count)
    }

    /// Returns whether one launch finds a slot. Frees those of launches that have ended.
    pub(super) fn has_slot(&mut self, memory: &impl Words<View = V>) -> bool {
        self.free(memory);
        self.room() > 0
    }

    /// Returns whether slots may have words for a subchannel behind their QMDs: the first one that
    /// has some keeps them. The GPU may read words while others are written, so none may change.
    pub(super) fn keep_to(&mut self, subchannel: u8) -> bool {
        *self.subchannel.get_or_insert(subchannel) == subchannel
    }

    /// Returns whether all launches in slots have ended.
    pub(super) fn is_free(&mut self, memory: &impl Words<View = V>) -> bool {
        self.free(memory);
        self.freed == self.taken
    }

    /// Frees the slots of launches that have ended.
    fn free(&mut self, memory: &impl Words<View = V>) {
        while self.freed != self.taken {
            if memory.load(&self.done, self.index(self.freed)) != Some(self.freed.0) {
                break;
            }
            self.freed += 1;
        }
    }

    /// Returns how many slots are free.
    pub(super) fn room(&self) -> u32 {
        (Wrapping(self.count) - (self.taken - self.freed)).0
    }

    /// Returns the place of launch `number`.
    fn index(&self, number: Wrapping<u32>) -> usize {
        // CAST: widening. The count is a power of two, so nothing jumps where the number wraps.
        (number.0 & self.count.wrapping_sub(1)) as usize
    }

    /// Returns the slot of the launch `ahead` of the next one.
    pub(super) fn slot(&self, ahead: u32) -> Slot {
        let number = self.taken + Wrapping(ahead);
        // CAST: widening.
        let index = Wrapping(self.index(number) as u64);
        Slot {
            va: (Wrapping(self.gpu_va) + index * Wrapping(SLOT_BYTES)).0,
            done_va: (Wrapping(self.done_va) + (index << 2)).0,
            payload: number.0,
        }
    }

    /// Returns the condition under which the launch in the next slot has ended. It holds from then
    /// on, whoever has the slot.
    pub(super) fn fence(&self) -> Fence<V> {
        Fence {
            view: self.done,
            index: self.index(self.taken),
            number: self.taken.0,
            reach: Reach::AtLeast,
        }
    }

    /// Takes the next slots for the first `WORDS` words of each of `qmds`. What is behind them stays.
    /// Returns whether they were written.
    pub(super) fn take<const WORDS: usize, W: Words<View = V>>(
        &mut self,
        memory: &W,
        qmds: &[u32],
        count: u32,
    ) -> bool {
        let mut qmds = qmds.chunks_exact(SLOT_WORDS);
        let written = (0..count).all(|ahead| {
            let qmd = qmds.next().and_then(|qmd| qmd.first_chunk::<WORDS>());
            qmd.is_some_and(|qmd| self.put(memory, self.taken + Wrapping(ahead), qmd))
        });
        if written {
            self.taken += count;
        }
        written
    }

    /// Writes the slot of launch `number`. Returns whether it was written.
    ///
    /// It is no part of the loop around it, which most segments pass once: the compiler would do
    /// work before the loop for further ones.
    #[inline(never)]
    fn put<const WORDS: usize, W: Words<View = V>>(
        &self,
        memory: &W,
        number: Wrapping<u32>,
        qmd: &[u32; WORDS],
    ) -> bool {
        let at = self.index(number);
        // Make the word less than what the launch will write.
        memory.store(&self.done, at, (number - Wrapping(1)).0);
        memory.write(&self.view, (Wrapping(at) * Wrapping(SLOT_WORDS)).0, qmd)
    }
}
