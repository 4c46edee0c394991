// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Keeps the allocations of pageable memory, by address, and their pieces in the same order.

use super::{Memory, Placed, PIECE};
use core::ops::Range;
use gct_core::policy::placement::Piece;

/// An allocation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub(super) base: u64,
    pub(super) bytes: u64,
    /// The driver's number of it, which no other allocation has ever.
    pub(super) number: Option<u64>,
    /// Its first piece.
    pub(super) first: usize,
}

impl Span {
    pub(super) fn pieces(&self) -> Range<usize> {
        // CAST: fewer pieces than bytes that exist.
        self.first..self.first + self.bytes.div_ceil(PIECE) as usize
    }
}

/// An allocation that is being freed, or is not recorded yet.
#[derive(Debug)]
pub(crate) struct Detached {
    base: u64,
    number: Option<u64>,
    placed: Placed,
}

impl Detached {
    pub(super) const fn new(base: u64, number: Option<u64>, placed: Placed) -> Self {
        Self {
            base,
            number,
            placed,
        }
    }

    pub(super) const fn placed(&self) -> &Placed {
        &self.placed
    }

    fn pieces(&self) -> &[Piece] {
        &self.placed.0
    }

    pub(super) fn bytes(&self) -> u64 {
        self.pieces().iter().map(|piece| piece.bytes.get()).sum()
    }
}

impl Memory {
    /// Returns the index of the allocation that contains an address.
    pub(super) fn at(&self, address: u64) -> Option<usize> {
        let behind = self.spans.partition_point(|span| span.base <= address);
        let at = behind.checked_sub(1)?;
        let span = &self.spans[at];
        (address - span.base < span.bytes).then_some(at)
    }

    /// Returns the index of the piece that contains an address.
    pub(super) fn index_of(&self, address: u64) -> Option<usize> {
        let span = &self.spans[self.at(address)?];
        // CAST: an index of a piece that exists.
        Some(span.first + ((address - span.base) / PIECE) as usize)
    }

    /// Returns the address of a piece.
    pub(super) fn address(&self, piece: usize) -> u64 {
        let at = self.spans.partition_point(|span| span.first <= piece);
        let span = &self.spans[at.saturating_sub(1)];
        // CAST: widening.
        span.base + PIECE * (piece - span.first) as u64
    }

    /// Returns the index of the allocation that begins at an address.
    fn beginning_at(&self, address: u64) -> Option<usize> {
        self.at(address)
            .filter(|at| self.spans[*at].base == address)
    }

    /// Returns whether an allocation begins at an address.
    pub(crate) fn begins_at(&self, address: u64) -> bool {
        self.beginning_at(address).is_some()
    }

    /// Forgets an allocation that is about to be freed, and still charges it.
    pub(crate) fn detach(&mut self, base: u64) -> Option<Detached> {
        self.beginning_at(base).map(|at| self.take(at))
    }

    /// Takes the allocation with an index out.
    pub(super) fn take(&mut self, at: usize) -> Detached {
        let span = self.spans.remove(at);
        self.layout += 1;
        self.places += 1;
        let count = span.pieces().len();
        for behind in &mut self.spans[at..] {
            behind.first -= count;
        }
        self.uses.drain(span.pieces());
        let pieces = self.pieces.drain(span.pieces()).collect();
        Detached::new(span.base, span.number, Placed(pieces))
    }

    /// Records an allocation that could not be freed, or is new.
    pub(crate) fn attach(&mut self, detached: Detached) {
        let at = self
            .spans
            .partition_point(|span| span.base <= detached.base);
        let first = match at.checked_sub(1) {
            Some(before) => self.spans[before].pieces().end,
            None => 0,
        };
        let count = detached.pieces().len();
        for behind in &mut self.spans[at..] {
            behind.first += count;
        }
        let span = Span {
            base: detached.base,
            bytes: detached.bytes(),
            number: detached.number,
            first,
        };
        self.spans.insert(at, span);
        self.layout += 1;
        self.places += 1;
        self.uses.splice(first..first, (0..count).map(|_| 0));
        self.pieces.splice(first..first, detached.placed.0);
    }
}
