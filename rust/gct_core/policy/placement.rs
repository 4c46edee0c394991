// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Decides which pieces of a process's pageable memory are on the GPU.
//!
//! Terminology
//!   piece    a part of one allocation, the unit of moves
//!   remote   on the host. The GPU uses the piece where it is, across the bus.
//!   backed   host memory was taken for the piece. It stays taken while the piece is on the GPU.
//!   use      a launch with an argument that points into the piece
//!   rate     uses in [`RATE_TIME`], a decaying mean
//!   room     the memory of the GPU that the limits leave free
//!   look     a question for the room, one each [`LEARN_INTERVAL`]
//!
//! No access needs a move. So a move is made only if it pays:
//!
//! ```text
//! remote r returns while it fits into the least room of the last
//!     2 looks     if rate(r) >= USED_MIN
//!     5 looks     otherwise: nobody sees what graphs and copies use
//! remote r and resident v change places while r has no room, and
//!     gain = rate(r) - rate(v)
//!     gain >= GAIN_MIN           # the moves cost less than the uses that they save
//!     gain >= rate(v) / 2        # rates are noisy
//! each has rested for REST
//! ```
//!
//! Room may be wanted again by whoever has freed it: by an allocation that pieces have just left
//! for, by a process of the same group, or by a program that allocates and frees in turns. So only
//! room that lasts is used. What has left for memory that cannot move returns after REST.
//!
//! Pieces that are used once a round have equal rates, so none of them changes places: as many as
//! fit stay on the GPU, and the rest stays remote. Least recently used would move each of them once
//! a round. What is used once a training step, as the state of an optimizer is, gives way to
//! weights and activations, which are used several times.
//!
//! Only the start of an argument is known. A use therefore counts for the piece of the address and
//! for all pieces behind it up to the next one into which an argument points.

use crate::units::{Bytes, Ns};
use core::num::Wrapping;

/// Time in which a rate counts uses.
pub const RATE_TIME: Ns = Ns(1_000_000_000_000);
/// Shortest time between two calls of [`learn`] and of [`Room::look`].
pub const LEARN_INTERVAL: Ns = Ns(1_000_000_000);
/// Share of a new sample in a rate, as a divisor.
const RATE_DECAY: u64 = 4;
/// Least gain of a pair of moves: a use in four seconds. A use of a GiB across the bus takes 20 ms
/// more than on an H100, and moving it out and another one in takes 130 ms, or 800 ms beside work.
/// So the moves pay within 28 to 160 s. A process that waits for the bus has low rates, and they
/// rise as its memory comes: then the moves pay sooner.
const GAIN_MIN: u64 = 250;
/// Least rate of a piece that is known to be used: a use in 50 seconds.
const USED_MIN: u64 = 20;
/// Number of looks at which there must have been room for what is not known to be used.
const LOOKS: usize = 5;
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

    pub(super) fn has_rested(&self, now: Ns) -> bool {
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

/// The next move. Pieces are named by their indices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Move {
    /// Evicts a piece, because a limit is exceeded.
    Evict(usize),
    /// Moves a piece to the GPU, which has room for it.
    Return(usize),
    /// Evicts a piece, and moves another one to the GPU if it fits then.
    Exchange {
        /// The piece that leaves.
        evict: usize,
        /// The piece that comes.
        promote: usize,
    },
}

/// Shortest pause after a move: a thread of the program that waits to allocate or free does so.
const PAUSE_MIN: Ns = Ns(1_000_000);
/// Longest pause after a move: limits may change meanwhile.
const PAUSE_MAX: Ns = Ns(1_000_000_000);

impl Move {
    /// Returns for how long the process moves nothing after a move that has taken `took`.
    ///
    /// A limit has to hold soon. Returns take half of the bus at most, and no more than once the
    /// room that is free: 80 GiB keep half of a bus of 48 GB/s for 3.6 s. Exchanges may go on for
    /// as long as uses change, and take a fifth.
    pub fn pause(self, took: Ns) -> Ns {
        let pause = match self {
            Self::Evict(_) => Ns(0),
            Self::Return(_) => took,
            Self::Exchange { .. } => took * 4,
        };
        pause.clamp(PAUSE_MIN, PAUSE_MAX)
    }
}

/// The room at the last looks, the newest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room([Bytes; LOOKS]);

impl Room {
    /// Records how much is free now.
    pub fn look(&mut self, free: Bytes) {
        let [a, b, c, d, _] = self.0;
        self.0 = [free, a, b, c, d];
    }

    /// Records that a piece has taken some of it.
    pub fn take(&mut self, bytes: Bytes) {
        self.0.iter_mut().for_each(|room| *room -= bytes);
    }

    /// Returns the room at the last two looks.
    pub fn steady(&self) -> Bytes {
        let [newest, before, ..] = self.0;
        newest.min(before)
    }

    /// Returns the room that has lasted long enough for a piece.
    fn for_piece(&self, piece: &Piece) -> Bytes {
        match piece.rate >= USED_MIN {
            true => self.steady(),
            false => self
                .0
                .iter()
                .fold(Bytes::MAX, |least, room| least.min(*room)),
        }
    }
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

/// Returns the move that pays most, if any pays. `device` bytes of the GPU are free now, and
/// evictions may take `host` bytes of host memory. Only pieces for which `changes` holds change
/// places: of others it is known better what comes.
pub fn choose(
    pieces: &[Piece],
    room: &Room,
    (device, host): (Bytes, Bytes),
    changes: impl Fn(usize) -> bool,
    now: Ns,
) -> Option<Move> {
    let rested = || numbered(pieces).filter(|(_, piece)| piece.has_rested(now));
    let remote = || rested().filter(|(_, piece)| !piece.is_resident);
    let returns = remote().filter(|(_, p)| p.bytes <= device.min(room.for_piece(p)));
    if let Some((index, _)) = returns.max_by_key(|(_, piece)| piece.rate) {
        return Some(Move::Return(index));
    }
    let hot = remote().filter(|(index, _)| changes(*index));
    let (promote, hot) = hot.max_by_key(|(_, piece)| piece.rate)?;
    let leaves = |piece: &Piece| piece.is_resident && piece.takes() <= host;
    let resident = rested().filter(|(index, piece)| changes(*index) && leaves(piece));
    let (evict, cold) = resident.min_by_key(|(_, piece)| piece.rate)?;
    let gain = hot.rate.saturating_sub(cold.rate);
    let pays = gain >= GAIN_MIN && gain >= cold.rate / 2 && hot.bytes > device;
    pays.then_some(Move::Exchange { evict, promote })
}

#[cfg(test)]
mod tests;
