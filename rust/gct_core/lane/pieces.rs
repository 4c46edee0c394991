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
use super::next::Next;
use super::words::{Rings, Storage, Words};
use super::work::{Round, Stream};
use crate::submit::gpfifo::{Control, Entry, Segment};

impl<S: Storage, P: Peers> Governor<S, P> {
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
