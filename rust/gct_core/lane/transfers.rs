// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Releases the copies of a segment: whole, or cut into pieces one by one.
//!
//! ```text
//! entries = the tenant's words up to a copy | piece 0 | piece 1 | .. | its words up to the next copy
//!           | .. | the words behind the last copy
//! frame   = words of piece 0 | words of piece 1 | .. | words of the last piece
//!           piece i is in slot i % SLOTS, the last one in a slot of its own
//! ```
//!
//! The words of a piece are written when it is released, so its length follows the rate of that
//! moment. A piece writes the done word of its slot when it has ended; a slot is used again after
//! that. The tenant's words stay where they are.
//!
//! Slots hold QMDs of atoms, too. A tenant may have a frame used again too early, by words that it
//! writes itself. So pieces lie behind the QMDs, and never change one that the GPU may read. In a
//! lane with copies a piece is also written only over words that the GPU has fetched.
//!
//! A segment is cut if its copies are predicted to take longer than the target, or have no release
//! behind them that shows their end. The end of the last piece frees the frame.

use super::governor::{Governor, Peers};
use super::in_flight::{Fence, Reach, Submission};
use super::scratch::Frame;
use super::split::ATOMS_MAX;
use super::words::{Storage, Words};
use super::work::{Round, Stream};
use crate::submit::gpfifo::{Entry, Segment};
use crate::submit::join::{DoneWords, DONE_WORD};
use crate::submit::limits::{SLOT_BYTES, SLOT_WORDS};
use crate::submit::stats::add;
use crate::submit::tracker::Tracker;
use crate::submit::transfer::{Progress, PIECE_WORDS_MAX};
use crate::units::{Ns, Sat, Va};
use core::num::Wrapping;

/// The slots of a frame that pieces use in turn. The last piece has the one behind them.
const SLOTS: u32 = ATOMS_MAX - 1;

/// What the words between two pieces are predicted to take: next to nothing. 0 would be unknown.
const WORDS: Ns = Ns(1);

/// The word of a slot at which a piece begins: behind the QMD and its done word.
const PIECE_AT: usize = DONE_WORD + 1;
// CAST: widening.
const PIECE_BYTES: u64 = 4 * PIECE_AT as u64;

/// A segment with copies and without launches.
#[derive(Debug)]
pub struct Transfers<V> {
    /// The tenant's entry, or that of its copy.
    entry: u64,
    /// Bits 56:40 of the addresses of its segment, if it has one.
    pub(super) base: Option<u32>,
    /// All of it, if its end can be observed.
    submission: Option<Submission<V>>,
    cut: Option<Cut<V>>,
}

/// The progress of a segment that is cut.
#[derive(Debug)]
struct Cut<V> {
    segment: Segment,
    frame: Frame<V>,
    done: DoneWords,
    /// The words before were released.
    at: u32,
    /// The present transfer, and how much of it was released.
    transfer: usize,
    progress: Progress,
    /// The number of pieces released.
    pieces: Wrapping<u32>,
}

/// What an entry of a cut segment executes.
enum Part {
    /// Words of the tenant, up to a position.
    Words(u32),
    /// A piece of the present transfer.
    Piece,
}

impl<V: Copy + 'static> Cut<V> {
    /// Returns what is released next.
    fn next(&self, tracker: &Tracker) -> Part {
        match tracker.transfers().get(self.transfer) {
            Some(Some(transfer)) if transfer.at > self.at => Part::Words(transfer.at),
            Some(Some(_)) => Part::Piece,
            _ => Part::Words(self.segment.words),
        }
    }

    /// Returns the slot that the next piece has unless it is the last one.
    fn slot(&self) -> u32 {
        self.pieces.0.checked_rem(SLOTS).unwrap_or(0)
    }

    fn end_of(&self, slot: u32) -> Fence<V> {
        let (view, index) = self.frame.done_word(slot);
        Fence {
            view,
            index,
            number: self.done.payload,
            reach: Reach::Equal,
        }
    }

    /// Returns whether the slot of the next piece is free.
    fn is_ready(&self, memory: &impl Words<View = V>) -> bool {
        self.pieces.0 < SLOTS || self.end_of(self.slot()).is_reached(memory)
    }

    /// Releases the tenant's words up to `to`.
    fn release_words(&mut self, to: u32) -> u64 {
        let entry = Entry::Segment(Segment {
            va: (Va(self.segment.va) + 4 * u64::from(self.at)).get(),
            words: (Sat(to) - Sat(self.at)).0,
            ..self.segment
        });
        self.at = to;
        entry.encode()
    }

    /// Releases the next piece, `most` bytes at most. Returns its entry, its bytes and its end.
    fn release_piece(
        &mut self,
        tracker: &Tracker,
        most: u64,
        memory: &impl Words<View = V>,
    ) -> Option<(u64, u64, Fence<V>)> {
        let (transfer, behind) = tracker.transfers().get(self.transfer..)?.split_first()?;
        let transfer = transfer.as_ref()?;
        let piece = transfer.piece(self.progress, most);
        let slot = match piece.next.is_none() && behind.is_empty() {
            true => SLOTS,
            false => self.slot(),
        };
        let mut words = [0; PIECE_WORDS_MAX];
        let done = (self.done.va_of(slot), self.done.payload);
        let count = transfer.write(&piece, done, &mut words)?;
        let (view, index) = self.frame.done_word(slot);
        // Make the word differ from the payload that the piece will write.
        memory.store(&view, index, !self.done.payload);
        // CAST: widening.
        let at = Wrapping(slot as usize) * Wrapping(SLOT_WORDS) + Wrapping(PIECE_AT);
        self.frame.write(memory, at.0, words.get(..count)?);
        match piece.next {
            Some(progress) => self.progress = progress,
            None => {
                self.progress = Progress::default();
                self.transfer = self.transfer.wrapping_add(1);
                self.at = transfer.end;
            }
        }
        self.pieces += 1;
        let entry = Entry::Segment(Segment {
            va: (Va(self.frame.gpu_va) + u64::from(slot) * SLOT_BYTES + PIECE_BYTES).get(),
            // CAST: some words.
            words: count as u32,
            ..self.segment
        });
        Some((entry.encode(), piece.bytes(), self.end_of(slot)))
    }
}

impl<V: Copy + 'static> Transfers<V> {
    /// Returns all of it as one submission, if its end can be observed.
    pub(super) fn submission(&self) -> Option<Submission<V>> {
        self.submission
    }

    /// Returns whether the copies are released in pieces.
    pub(super) fn is_cut(&self) -> bool {
        self.cut.is_some()
    }

    /// Returns whether the next entry may be written.
    pub(super) fn is_ready(&self, memory: &impl Words<View = V>) -> bool {
        self.cut.as_ref().is_none_or(|cut| cut.is_ready(memory))
    }

    /// Returns how many entries of the real ring may not be fetched yet when the next one is
    /// written: none before the first piece but the words in front of it. `None` for any number.
    pub(super) fn unfetched_most(&self) -> Option<u32> {
        self.cut.as_ref().map(|cut| match cut.pieces {
            Wrapping(0) => u32::from(cut.at > 0),
            _ => SLOTS - 1,
        })
    }

    /// Returns how long the next entry is predicted to take: 0 if that is unknown, `None` if its
    /// end is.
    pub(super) fn predicted<S: Storage>(&self, stream: &Stream<S, V>, target: Ns) -> Option<Ns> {
        match &self.cut {
            None => self.submission.map(|whole| whole.predicted),
            Some(cut) => Some(match cut.next(&stream.tracker) {
                Part::Words(_) => WORDS,
                Part::Piece => stream.rate.time(stream.rate.piece(target)),
            }),
        }
    }

    /// Releases the next entry. Returns it, its submission, and whether it is the last.
    pub(super) fn release<S: Storage>(
        &mut self,
        stream: &Stream<S, V>,
        target: Ns,
        memory: &impl Words<View = V>,
    ) -> (u64, Option<Submission<V>>, bool) {
        let Some(cut) = &mut self.cut else {
            return (self.entry, self.submission, true);
        };
        let piece = match cut.next(&stream.tracker) {
            Part::Piece => cut.release_piece(&stream.tracker, stream.rate.piece(target), memory),
            Part::Words(_) => None,
        };
        if let Some((entry, bytes, end)) = piece {
            let submission = Submission {
                bytes,
                predicted: stream.rate.time(bytes),
                ..Submission::opaque(end)
            };
            return (entry, Some(submission), cut.at >= cut.segment.words);
        }
        let to = match cut.next(&stream.tracker) {
            Part::Words(to) => to,
            Part::Piece => cut.segment.words,
        };
        let last = to >= cut.segment.words;
        let rest = self.submission.map(|whole| Submission::opaque(whole.fence));
        (cut.release_words(to), rest.filter(|_| last), last)
    }
}

impl<S: Storage, P: Peers> Governor<S, P> {
    /// Processes a segment with copies and without launches. Returns `None` if nothing is to be
    /// decided about it.
    pub(super) fn transfers<W: Words>(
        &mut self,
        (entry, base, segment): (u64, Option<u32>, Segment),
        stream: &Stream<S, W::View>,
        round: &mut Round<'_, S, W>,
    ) -> Option<Transfers<W::View>> {
        let bytes = stream.tracker.transfer_bytes();
        if bytes == 0 || !self.tracks_ends() {
            return None;
        }
        let release = stream.tracker.transfer_release();
        let fence = release.and_then(|it| Fence::at(round.memory, it.va, it.payload));
        let cuts = stream.rate.cuts(bytes, self.target(), fence.is_some());
        let cut = if cuts && !stream.published {
            self.cut(segment, stream, round)
        } else {
            None
        };
        Some(Transfers {
            entry,
            base,
            submission: fence.map(|fence| Submission {
                bytes,
                predicted: stream.rate.time(bytes),
                ..Submission::opaque(fence)
            }),
            cut,
        })
    }

    /// Takes a frame for the pieces of a segment's copies, if they can be cut.
    fn cut<W: Words>(
        &mut self,
        segment: Segment,
        stream: &Stream<S, W::View>,
        round: &mut Round<'_, S, W>,
    ) -> Option<Cut<W::View>> {
        let low = stream.fetch.base() == 0 || round.copies.is_some();
        if stream.tracker.transfers().is_empty() || !low || segment.conditional {
            return None;
        }
        let scratch = round.scratch.as_deref_mut()?;
        let frame = scratch.frame(round.memory);
        let frame = frame.filter(|frame| frame.is_read_only() == round.copies.is_some());
        add(&mut self.counters.sums.crowded, u64::from(frame.is_none()));
        let frame = frame?;
        self.splits = self.splits.wrapping_add(1);
        let cut = Cut {
            segment,
            frame,
            done: frame.done_words(self.splits),
            at: 0,
            transfer: 0,
            progress: Progress::default(),
            pieces: Wrapping(0),
        };
        let last = cut.end_of(SLOTS);
        // Make the word differ from the payload that the last piece will write.
        round.memory.store(&last.view, last.index, !last.number);
        scratch.hold(round.memory, &frame, last, None).then(|| {
            add(&mut self.counters.cut, 1);
            cut
        })
    }
}

const _: () = assert!(PIECE_AT + PIECE_WORDS_MAX <= SLOT_WORDS);
