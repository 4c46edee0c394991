// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Holds the copies of a channel's segments, which the GPU executes in place of the tenant's words.
//!
//! Terminology
//!   copy      one segment as it was scanned; the tenant cannot write it
//!   batch     the entries that one round of publishing adds to the real ring
//!   progress  a word to which the channel writes the batch's number when it has fetched the batch
//!   mark      the end of a batch: how many words were taken and how many entries pushed before it
//!
//! Copies lie in a circular buffer, in the order of their entries:
//!
//! ```text
//! take(count)    the next `count` consecutive words; None while they are in use
//! close()        the entry that ends a batch: it releases the batch's number to the progress word
//! free()         words of batches whose number was released, and whose entries GP_GET has passed
//! ```
//!
//! GP_GET alone would be early: it may count entries whose words are still to be fetched. The
//! progress word alone could be forged: it lies in the tenant's address space.

use super::words::{Storage, Words};
use crate::submit::gpfifo::{Entry, Segment};
use crate::submit::method::incr;
use crate::submit::methods;
use core::num::Wrapping;

/// Words that end a batch: a semaphore release, and what the registers held before.
const PROGRESS_WORDS: usize = 11;

/// `NVC86F_SEM_EXECUTE_OPERATION_RELEASE` of 32 bits. It waits for no engine.
const RELEASE: u32 = 1;

/// The end of a batch that the GPU may be executing.
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    taken: Wrapping<u32>,
    pushed: Wrapping<u32>,
}

impl Mark {
    /// A mark that is not in use.
    pub const NONE: Self = Self {
        taken: Wrapping(0),
        pushed: Wrapping(0),
    };
}

/// Memory for the copies of one channel.
pub struct Copies<S: Storage, V: 'static> {
    gpu_va: u64,
    view: V,
    /// Words for copies. Those that end batches lie behind them, one place for each mark.
    words: u32,
    /// Offset of the next word.
    head: u32,
    /// Words taken and freed since the beginning, with those skipped at the end of the buffer.
    taken: Wrapping<u32>,
    freed: Wrapping<u32>,
    /// `head` and `taken` before the last copy.
    before: (u32, Wrapping<u32>),
    progress_va: u64,
    progress: V,
    marks: S::Slots<Mark>,
    /// Number of the oldest batch that is not free, and of the next one.
    oldest: Wrapping<u32>,
    next: Wrapping<u32>,
    /// Whether words were taken since the last batch was closed.
    open: bool,
}

impl<S: Storage, V: Copy + 'static> Copies<S, V> {
    /// Divides `words` words at `gpu_va`, which are `view`, into copies. `progress` is one word at
    /// `progress_va`, which holds 0. One batch less is in flight than there are `marks`.
    ///
    /// Returns `None` for memory above 2^40, which entries cannot address, and for too little.
    pub fn new(
        (gpu_va, view, words): (u64, V, u32),
        (progress_va, progress): (u64, V),
        marks: S::Slots<Mark>,
    ) -> Option<Self> {
        let end = gpu_va.checked_add(u64::from(words) << 2)?;
        (end <= 1 << 40 && gpu_va % 4 == 0 && marks.len() > 1).then_some(())?;
        let ends = u32::try_from(marks.len().checked_mul(PROGRESS_WORDS)?).ok()?;
        Some(Self {
            gpu_va,
            view,
            words: words.checked_sub(ends).filter(|words| *words > 0)?,
            head: 0,
            taken: Wrapping(0),
            freed: Wrapping(0),
            before: (0, Wrapping(0)),
            progress_va,
            progress,
            marks,
            oldest: Wrapping(1),
            next: Wrapping(1),
            open: false,
        })
    }

    /// Returns the words of the largest segment that can be copied while nothing is in use.
    pub fn most(&self) -> usize {
        // CAST: widening.
        self.words as usize
    }

    /// Returns whether `count` words can be copied now, and their batch closed.
    pub fn has_room(&self, count: usize) -> bool {
        // CAST: widening.
        let batches = (self.next - self.oldest).0 as usize;
        // The place of the last batch's end may still be read.
        let can_close = batches.saturating_add(1) < self.marks.len();
        can_close && self.place(count).is_some()
    }

    /// Returns where the next `count` words begin, and the words in use with them.
    fn place(&self, count: usize) -> Option<(u32, u32)> {
        let (count, used) = (u32::try_from(count).ok()?, (self.taken - self.freed).0);
        let (at, skipped) = match self.head.checked_add(count)? {
            _ if used == 0 => (0, 0),
            end if end <= self.words => (self.head, 0),
            _ => (0, self.words.checked_sub(self.head)?),
        };
        let used = used.checked_add(skipped)?.checked_add(count)?;
        (used <= self.words).then_some((at, used))
    }

    /// Takes words for the copy of a segment, which are written later. Returns the copy, or `None`
    /// without room.
    pub fn take(&mut self, segment: &Segment) -> Option<Segment> {
        // CAST: widening.
        let (at, used) = self.place(segment.words as usize)?;
        self.before = (self.head, self.taken);
        self.head = at.checked_add(segment.words)?;
        self.taken = self.freed + Wrapping(used);
        self.open = true;
        Some(Segment {
            va: self.va(at),
            ..*segment
        })
    }

    /// Writes the words of a copy. Returns whether they were written.
    pub fn write_copy<W: Words<View = V>>(
        &self,
        memory: &W,
        copy: &Segment,
        words: &[u32],
    ) -> bool {
        let offset = (Wrapping(copy.va) - Wrapping(self.gpu_va)).0 >> 2;
        let at = u32::try_from(offset).ok();
        at.is_some_and(|at| self.write(memory, at, words).is_some())
    }

    /// Copies a segment's words. Returns the copy, or `None` without room.
    pub fn put<W: Words<View = V>>(
        &mut self,
        memory: &W,
        segment: &Segment,
        words: &[u32],
    ) -> Option<Segment> {
        let copy = self.take(&Segment {
            words: u32::try_from(words.len()).ok()?,
            ..*segment
        })?;
        self.write_copy(memory, &copy, words).then_some(copy)
    }

    /// Begins other words in place of the last copy, whose entry is not published: `most` words at
    /// most. Returns `None` without room; then the last copy stays.
    pub fn replace<'a, W: Words<View = V>>(
        &'a mut self,
        memory: &'a W,
        most: usize,
    ) -> Option<Replacement<'a, S, V, W>> {
        let last = (self.head, self.taken, self.before);
        (self.head, self.taken) = self.before;
        let place = self.place(most);
        if place.is_none() {
            (self.head, self.taken, self.before) = last;
        }
        let (at, used) = place?;
        Some(Replacement {
            at,
            words: 0,
            most: u32::try_from(most).ok()?,
            used,
            last,
            copies: self,
            memory,
        })
    }

    fn write<W: Words<View = V>>(&self, memory: &W, at: u32, words: &[u32]) -> Option<()> {
        // CAST: widening.
        memory.write(&self.view, at as usize, words).then_some(())
    }

    fn va(&self, at: u32) -> u64 {
        (Wrapping(self.gpu_va) + (Wrapping(u64::from(at)) << 2)).0
    }

    /// Closes the batch. Returns the entry that ends it, if there are copies in it. `pushed` counts
    /// the entries before that one. `registers` are the channel's semaphore registers: address
    /// and payload, low halves first.
    pub fn close<W: Words<View = V>>(
        &mut self,
        memory: &W,
        pushed: Wrapping<u32>,
        registers: [u32; 4],
    ) -> Option<u64> {
        self.open.then_some(())?;
        let [low, high, payload, payload_high] = registers;
        let words: [u32; PROGRESS_WORDS] = [
            incr(0, methods::SEM_ADDR_LO, 5),
            // CAST: the two halves.
            self.progress_va as u32,
            (self.progress_va >> 32) as u32,
            self.next.0,
            0,
            RELEASE,
            incr(0, methods::SEM_ADDR_LO, 4),
            low,
            high,
            payload,
            payload_high,
        ];
        let slot = self.slot(self.next)?;
        // CAST: `new` has checked the last one.
        let at = Wrapping(self.words) + Wrapping(slot as u32) * Wrapping(PROGRESS_WORDS as u32);
        self.write(memory, at.0, &words)?;
        *self.marks.get_mut(slot)? = Mark {
            taken: self.taken,
            pushed,
        };
        self.next += 1;
        self.open = false;
        let segment = Segment {
            va: self.va(at.0),
            // CAST: 11.
            words: PROGRESS_WORDS as u32,
            subroutine: false,
            wait: false,
            conditional: false,
        };
        Some(Entry::Segment(segment).encode())
    }

    fn slot(&self, number: Wrapping<u32>) -> Option<usize> {
        // CAST: widening.
        (number.0 as usize).checked_rem(self.marks.len())
    }

    /// Returns whether the GPU reads no copy any more. `fetched` counts the entries that GP_GET has
    /// passed.
    pub fn is_free<W: Words<View = V>>(&mut self, memory: &W, fetched: Wrapping<u32>) -> bool {
        self.free(memory, fetched);
        self.oldest == self.next && !self.open
    }

    /// Frees the batches that the GPU has fetched. `fetched` counts the entries that GP_GET has
    /// passed.
    pub fn free<W: Words<View = V>>(&mut self, memory: &W, fetched: Wrapping<u32>) {
        let Some(progress) = memory.load(&self.progress, 0) else {
            return;
        };
        // CAST: the sign of the difference modulo 2^32.
        let reached = |from: u32, to: Wrapping<u32>| from.wrapping_sub(to.0) as i32 >= 0;
        while self.oldest != self.next {
            let mark = self.slot(self.oldest).and_then(|slot| self.marks.get(slot));
            let Some(mark) = mark else { return };
            if !reached(progress, self.oldest) || !reached(fetched.0, mark.pushed) {
                return;
            }
            self.freed = mark.taken;
            self.oldest += 1;
        }
    }
}

/// Words that are being written in place of the last copy, which is gone once one was written.
pub struct Replacement<'a, S: Storage, V: 'static, W> {
    copies: &'a mut Copies<S, V>,
    memory: &'a W,
    at: u32,
    words: u32,
    most: u32,
    /// The words in use with `most` of this.
    used: u32,
    /// `head`, `taken` and `before` with the last copy.
    last: (u32, Wrapping<u32>, (u32, Wrapping<u32>)),
}

impl<S: Storage, V: Copy + 'static, W: Words<View = V>> Replacement<'_, S, V, W> {
    /// Writes the next words. Returns `None` without room.
    pub fn push(&mut self, words: &[u32]) -> Option<()> {
        let end = self.words.checked_add(u32::try_from(words.len()).ok()?)?;
        (end <= self.most).then_some(())?;
        let at = (Wrapping(self.at) + Wrapping(self.words)).0;
        self.copies.write(self.memory, at, words)?;
        self.words = end;
        Some(())
    }

    /// Ends the copy of a segment with the words that were written. Returns it.
    pub fn finish(self, segment: &Segment) -> Segment {
        let Self { copies, at, .. } = self;
        let unused = Wrapping(self.most) - Wrapping(self.words);
        copies.head = (Wrapping(at) + Wrapping(self.words)).0;
        copies.taken = copies.freed + Wrapping(self.used) - unused;
        Segment {
            va: copies.va(at),
            words: self.words,
            ..*segment
        }
    }

    /// Keeps the room of the last copy. Its words may be others by now.
    pub fn cancel(self) {
        let copies = self.copies;
        (copies.head, copies.taken, copies.before) = self.last;
    }
}

impl<S: Storage, V: 'static> core::fmt::Debug for Copies<S, V> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let mut fields = f.debug_struct("Copies");
        fields.field("gpu_va", &self.gpu_va);
        fields
            .field("oldest", &self.oldest)
            .field("next", &self.next);
        fields.finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lane::testing::{Heap, Ram, View};
    use proptest::prelude::*;
    use std::collections::VecDeque;
    use std::vec;
    use std::vec::Vec;

    const MARKS: usize = 4;
    /// Words for copies. The ends of batches and the progress word follow.
    const WORDS: usize = 64;
    const PROGRESS: usize = WORDS + MARKS * PROGRESS_WORDS;

    fn ram() -> Ram {
        Ram::new(PROGRESS + 1)
    }

    /// Returns copies from GPU address 0 on.
    fn copies() -> Copies<Heap, View> {
        // CAST: small constants.
        let memory = (0, (0, PROGRESS), PROGRESS as u32);
        let progress = (4 * PROGRESS as u64, (PROGRESS, 1));
        Copies::new(memory, progress, vec![Mark::NONE; MARKS]).unwrap()
    }

    fn segment(words: usize) -> Segment {
        Segment {
            va: 0x1000_0000,
            // CAST: small.
            words: words as u32,
            subroutine: true,
            wait: false,
            conditional: false,
        }
    }

    /// Puts `words` in place of the last copy, in two parts, where there is room for `most`.
    fn replace(
        copies: &mut Copies<Heap, View>,
        ram: &Ram,
        words: &[u32],
        most: usize,
    ) -> Option<Segment> {
        let mut replacement = copies.replace(ram, most)?;
        let (first, second) = words.split_at(words.len() / 3);
        let written = replacement.push(first).and(replacement.push(second));
        match written {
            Some(()) => Some(replacement.finish(&segment(1))),
            None => {
                replacement.cancel();
                None
            }
        }
    }

    #[test]
    fn a_batch_ends_with_its_number() {
        let (ram, mut copies) = (ram(), copies());
        assert_eq!(copies.close(&ram, Wrapping(0), [0; 4]), None, "no copies");
        let copy = copies.put(&ram, &segment(3), &[7, 8, 9]).unwrap();
        assert_eq!((copy.va, copy.words, copy.subroutine), (0, 3, true));
        assert_eq!([0, 1, 2].map(|at| ram.get(at)), [7, 8, 9]);
        let entry = copies.close(&ram, Wrapping(1), [1, 2, 3, 4]).unwrap();
        let end = Entry::Segment(Segment {
            va: 4 * (WORDS + PROGRESS_WORDS) as u64,
            subroutine: false,
            ..segment(PROGRESS_WORDS)
        });
        assert_eq!(entry, end.encode());
        let words: Vec<u32> = (0..PROGRESS_WORDS)
            .map(|at| ram.get(WORDS + PROGRESS_WORDS + at))
            .collect();
        let progress = 4 * PROGRESS as u32;
        let (five, four) = (incr(0, 0x5c, 5), incr(0, 0x5c, 4));
        assert_eq!(words, [five, progress, 0, 1, 0, 1, four, 1, 2, 3, 4]);
        assert_eq!(copies.close(&ram, Wrapping(2), [0; 4]), None, "closed");
    }

    /// A tenant that releases the progress word itself frees nothing that GP_GET has not passed.
    #[test]
    fn words_are_free_when_both_the_number_and_get_say_so() {
        let (ram, mut copies) = (ram(), copies());
        copies.put(&ram, &segment(WORDS), &[1; WORDS]).unwrap();
        copies.close(&ram, Wrapping(1), [0; 4]).unwrap();
        assert!(!copies.has_room(1));
        for (number, fetched, is_free) in
            [(0, 2, false), (1, 0, false), (9, 0, false), (1, 1, true)]
        {
            ram.set(PROGRESS, number);
            copies.free(&ram, Wrapping(fetched));
            assert_eq!(copies.has_room(WORDS), is_free, "{number} {fetched}");
        }
        assert!(!copies.has_room(WORDS + 1));
        assert_eq!(copies.most(), WORDS);
    }

    #[test]
    fn memory_that_entries_cannot_address_is_refused() {
        let new = |va, words| {
            let marks = vec![Mark::NONE; MARKS];
            Copies::<Heap, View>::new((va, (0, 1), words), (0, (0, 1)), marks).is_some()
        };
        assert!(new((1 << 40) - 4 * 100, 100));
        assert!(!new((1 << 40) - 4 * 99, 100) && !new(2, 100) && !new(0, 44));
    }

    proptest! {
        /// No copy overlaps one that the GPU has not fetched, whatever the progress word says.
        #[test]
        fn copies_in_use_stay(
            steps in prop::collection::vec((0usize..5, 1usize..40, 0u32..3, any::<u32>()), 1..200),
        ) {
            let (ram, mut copies) = (ram(), copies());
            // Of each entry: first word, number of words, and content.
            let mut entries: VecDeque<(usize, usize, u32)> = VecDeque::new();
            let (mut pushed, mut fetched) = (Wrapping(0), Wrapping(0));
            for (step, (kind, words, fetches, progress)) in (1u32..).zip(steps) {
                if kind == 0 {
                    if let Some(entry) = copies.close(&ram, pushed, [0; 4]) {
                        let at = ((entry & 0xffff_fffc) / 4) as usize;
                        entries.push_back((at, PROGRESS_WORDS, ram.get(at)));
                        pushed += 1;
                    }
                } else if copies.has_room(words) {
                    let data = vec![step; words];
                    let copy = copies.put(&ram, &segment(words), &data).unwrap();
                    // Some are replaced by fewer words, by more, or by too many.
                    let other = vec![!step; (words * 2 / kind).max(1)];
                    let most = other.len() + kind - 2;
                    let (step, copy, words) = match kind {
                        4 => (step, copy, words),
                        _ => match replace(&mut copies, &ram, &other, most) {
                            Some(other) => (!step, other, other.words as usize),
                            None => {
                                // The words of the last copy are to be written again.
                                prop_assert!(copies.write_copy(&ram, &copy, &data));
                                (step, copy, words)
                            }
                        },
                    };
                    entries.push_back(((copy.va / 4) as usize, words, step));
                    pushed += 1;
                }
                for _ in 0..fetches {
                    if let Some((at, words, content)) = entries.pop_front() {
                        prop_assert_eq!(ram.get(at), content);
                        if at < WORDS {
                            prop_assert!((at..at + words).all(|at| ram.get(at) == content));
                        }
                        fetched += 1;
                    }
                }
                // A liar's number.
                ram.set(PROGRESS, progress);
                copies.free(&ram, fetched);
            }
        }
    }
}
