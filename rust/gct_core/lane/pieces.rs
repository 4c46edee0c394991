// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Reads a long segment in pieces, each of which is processed as a segment of its own. So a channel
//! needs no memory for the longest segment, and a turn ends behind each piece.
//!
//! ```text
//! longest  = what the workspace holds
//! piece    = the first words of what is left, half the longest at most, up to the end of a call
//! GP_GET   = the tenant's entry counts as read once its last piece is
//! ```
//!
//! The second of two pieces ends behind all words that were read for the first, unless it has as
//! many calls as a channel has room for. So a segment of launches is read twice at most. Whatever
//! is read, its turn pays for.

use super::channel::Lane;
use super::governor::{Governor, Peers};
use super::words::{Rings, Storage, Words};
use super::work::{Next, Round, Stream, Workspace};
use crate::submit::gpfifo::{Control, Entry, Segment};
use crate::units::{Sat, Va};

/// Returns whether a segment of `words` words is read in pieces. It is not in a lane without copies,
/// whose GPU executes the tenant's words.
#[inline]
pub(super) fn is_long<S: Storage, W: Words>(words: u32, round: &Round<'_, S, W>) -> bool {
    // CAST: widening.
    words as usize > round.work.words.len() && round.copies.is_some()
}

/// Returns how many of a segment's words are read at once.
#[inline]
pub(super) fn at_once<S: Storage>(words: u32, work: &Workspace<S>) -> u32 {
    match work.words.len() {
        // CAST: widening, then less than `words`.
        longest if words as usize > longest => (longest >> 1) as u32,
        _ => words,
    }
}

impl<S: Storage, P: Peers> Governor<S, P> {
    /// Reads the first piece of a long segment. Returns it with where it was read. If it cannot be
    /// read, all of the segment is the piece.
    #[cold]
    #[inline(never)]
    pub(super) fn read_piece<W: Words>(
        &mut self,
        segment: &Segment,
        stream: &mut Stream<S, W::View>,
        round: &mut Round<'_, S, W>,
    ) -> (Option<W::View>, Segment) {
        let window = Segment {
            words: at_once(segment.words, round.work),
            ..*segment
        };
        let Some(at) = self.read(&window, round) else {
            return (None, *segment);
        };
        // CAST: checked when it was read.
        let words = round.work.words.get(..window.words as usize);
        let piece = stream
            .tracker
            .piece(words.unwrap_or_default(), stream.found.len());
        stream.rest = (!piece.ends).then(|| Segment {
            va: (Va(segment.va) + 4 * u64::from(piece.words)).get(),
            words: (Sat(segment.words) - Sat(piece.words)).0,
            ..*segment
        });
        let words = piece.words;
        (Some(at), Segment { words, ..window })
    }

    /// Processes the next piece of what is left of a segment.
    fn process_rest<W: Words>(
        &mut self,
        rest: &Segment,
        stream: &mut Stream<S, W::View>,
        round: &mut Round<'_, S, W>,
    ) -> Next<W::View> {
        let fetch = stream.fetch;
        // CAST: bits 56:40 of the address.
        let base = Entry::Control(Control::ExtendedBase((rest.va >> 40) as u32));
        stream.fetch.decode(base.encode());
        let next = self.process(stream, Entry::Segment(*rest).encode(), round);
        stream.fetch = fetch;
        next
    }
}

impl<S: Storage, V: Copy + 'static> Lane<S, V> {
    /// Processes the next piece of a long segment. Returns whether something waits to be published.
    #[cold]
    #[inline(never)]
    pub(super) fn read_on<W: Words<View = V>, P: Peers>(
        &mut self,
        rings: &impl Rings,
        governor: &mut Governor<S, P>,
        round: &mut Round<'_, S, W>,
    ) -> bool {
        let Some(rest) = self.stream.rest else {
            return false;
        };
        if !self.can_read(rings, &rest, governor, round) {
            return false;
        }
        self.stream.rest = None;
        let next = governor.process_rest(&rest, &mut self.stream, round);
        self.take_next(next, governor)
    }
}
