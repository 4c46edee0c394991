// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Decides which pieces of a process's pageable memory are on the GPU.
//!
//! Terminology
//!   piece    a part of one allocation, the unit of moves
//!   remote   on the host. The GPU uses the piece where it is, across the bus.
//!   backed   host memory was taken for the piece. It stays taken while the piece is on the GPU.
//!   use      a launch with an argument that points into the piece
//!   rate     uses in [`RATE_TIME`], a decaying mean
//!
//! No access needs a move. So a move is made only if it pays:
//!
//! ```text
//! gain(remote r, resident v) = rate(r) - rate(v)
//! r comes to free room while
//!     rate(r) >= USED_MIN
//! r and v change places while
//!     gain >= GAIN_MIN           # the moves cost less than the uses that they save
//!     gain >= rate(v) / 2        # rates are noisy
//! each has rested for REST
//! ```
//!
//! Pieces that are used once a round have equal rates, so none of them moves: as many as fit stay
//! on the GPU, and the rest stays remote. Least recently used would move each of them once a round.
//! What is used once a training step, as the state of an optimizer is, gives way to weights and
//! activations, which are used several times.
//!
//! Only the start of an argument is known. A use therefore counts for the piece of the address and
//! for all pieces behind it up to the next one into which an argument points.

use crate::units::{Bytes, Ns};
use core::num::Wrapping;

/// Time in which a rate counts uses.
pub const RATE_TIME: Ns = Ns(1_000_000_000_000);
/// Shortest time between two calls of [`learn`].
pub const LEARN_INTERVAL: Ns = Ns(1_000_000_000);
/// Share of a new sample in a rate, as a divisor.
const RATE_DECAY: u64 = 4;
/// Least gain of a pair of moves: a use in four seconds. A use of a GiB across the bus takes 20 ms
/// more than on an H100, and moving it out and another one in takes 130 ms, or 800 ms beside work.
/// So the moves pay within 28 to 160 s. A process that waits for the bus has low rates, and they
/// rise as its memory comes: then the moves pay sooner.
const GAIN_MIN: u64 = 250;
/// Least rate of a piece that comes to free room: a use in 50 seconds. The move costs what one or
/// two uses across the bus cost.
const USED_MIN: u64 = 20;
/// Time for which a piece stays where it was moved.
pub const REST: Ns = Ns(10_000_000_000);
/// Time for which a new piece stays where it is, because its rate is unknown.
pub const REST_OF_NEW: Ns = Ns(3_000_000_000);

/// A piece of pageable memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Its size.
    pub bytes: Bytes,
    /// Whether it is on the GPU.
    pub is_resident: bool,
    /// Whether host memory was taken for it.
    pub is_backed: bool,
    /// Uses in [`RATE_TIME`].
    rate: u64,
    /// Until when it stays where it is.
    rests_until: Ns,
}

impl Piece {
    /// Creates a piece of new memory.
    pub const fn new(bytes: Bytes, is_resident: bool, now: Ns) -> Self {
        Self {
            bytes,
            is_resident,
            is_backed: !is_resident,
            rate: 0,
            rests_until: Ns(now.0.saturating_add(REST_OF_NEW.0)),
        }
    }

    /// Records that the piece was moved.
    pub fn moved(&mut self, is_resident: bool, now: Ns) {
        self.is_resident = is_resident;
        self.is_backed |= !is_resident;
        self.rests_until = now + REST;
    }

    fn has_rested(&self, now: Ns) -> bool {
        now >= self.rests_until
    }

    /// Returns the host memory that its eviction takes.
    pub fn takes(&self) -> Bytes {
        match self.is_backed {
            true => Bytes(0),
            false => self.bytes,
        }
    }
}

/// The next moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moves {
    /// The piece to evict first, if the other one needs its room.
    pub evict: Option<usize>,
    /// The piece to move to the GPU.
    pub promote: usize,
}

/// Updates the rates of an allocation's pieces, in the order of their addresses. Each comes with
/// the number of arguments that pointed into it since the last call, `elapsed` ago.
pub fn learn<'a>(pieces: impl Iterator<Item = (&'a mut Piece, u64)>, elapsed: Ns) {
    let mut of_piece = 0;
    for (piece, uses) in pieces {
        if uses > 0 {
            of_piece = uses;
        }
        let sample = (RATE_TIME * of_piece) / elapsed.max(Ns(1));
        let kept = piece.rate.saturating_sub(piece.rate / RATE_DECAY);
        piece.rate = kept.saturating_add(sample / RATE_DECAY);
    }
}

/// Returns the pieces with their indices. `enumerate` checks for an overflow.
fn numbered(pieces: &[Piece]) -> impl Iterator<Item = (usize, &Piece)> {
    pieces.iter().scan(Wrapping(0), |next, piece| {
        let index = *next;
        *next += 1;
        Some((index.0, piece))
    })
}

/// Returns the piece that is to leave the GPU if one must. It takes at most `host` bytes of host
/// memory.
pub fn coldest(pieces: &[Piece], host: Bytes) -> Option<usize> {
    let leaves = |piece: &Piece| piece.is_resident && piece.takes() <= host;
    let found = numbered(pieces).filter(|(_, piece)| leaves(piece));
    let found = found.min_by_key(|(_, piece)| (piece.rate, piece.rests_until));
    found.map(|(index, _)| index)
}

/// Returns the moves that pay most, if any pays. `device` bytes of the GPU are free, and evictions
/// may take `host` bytes of host memory.
pub fn choose(pieces: &[Piece], device: Bytes, host: Bytes, now: Ns) -> Option<Moves> {
    let rested = || numbered(pieces).filter(|(_, piece)| piece.has_rested(now));
    let remote = rested().filter(|(_, piece)| !piece.is_resident);
    let (promote, hot) = remote.max_by_key(|(_, piece)| piece.rate)?;
    if hot.bytes <= device {
        let promote = Moves {
            evict: None,
            promote,
        };
        return (hot.rate >= USED_MIN).then_some(promote);
    }
    let leaves = |piece: &Piece| piece.is_resident && piece.takes() <= host;
    let resident = rested().filter(|(_, piece)| leaves(piece));
    let (evict, cold) = resident.min_by_key(|(_, piece)| piece.rate)?;
    let gain = hot.rate.saturating_sub(cold.rate);
    (gain >= GAIN_MIN && gain >= cold.rate / 2).then_some(Moves {
        evict: Some(evict),
        promote,
    })
}

#[cfg(test)]
mod tests;
