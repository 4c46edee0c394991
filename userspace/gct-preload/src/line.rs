// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What of one channel is on the GPU, and what of it has ended.

use core::sync::atomic::{AtomicU32, Ordering};
use gct_core::policy::pace::InFlight;
use gct_core::policy::predict::Kernel;
use gct_core::units::Ns;
use std::collections::VecDeque;

/// Pieces in flight that are followed; those beyond are let go without being counted, as
/// launches are whose end cannot be told.
const PIECES_MAX: usize = 256;

/// How the end of a piece shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// A word that counts up reaches a number: the release of a tenant's launch.
    Reaches { at: usize, number: u32 },
    /// A word becomes a number: the done word of an atom.
    Becomes { at: usize, number: u32 },
}

impl End {
    /// The word's address.
    pub(crate) fn at(&self) -> usize {
        match *self {
            Self::Reaches { at, .. } | Self::Becomes { at, .. } => at,
        }
    }

    /// Whether it has come.
    ///
    /// # Safety
    ///
    /// The word must be mapped.
    pub(crate) unsafe fn has_come(&self) -> bool {
        // SAFETY: mapped by contract, and aligned because whoever made this checked it.
        let word = unsafe { AtomicU32::from_ptr(self.at() as *mut u32) }.load(Ordering::Acquire);
        match *self {
            // CAST: the sign of the difference modulo 2^32.
            Self::Reaches { number, .. } => word.wrapping_sub(number) as i32 >= 0,
            Self::Becomes { number, .. } => word == number,
        }
    }
}

/// A launch or an atom.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    /// How its end shows.
    pub(crate) end: End,
    /// What it is a piece of.
    pub(crate) kernel: Kernel,
    /// How many blocks of that it runs.
    pub(crate) blocks: u64,
    /// On how many TPCs.
    pub(crate) tpcs: u64,
    /// How long it was predicted to take.
    pub(crate) predicted: Ns,
}

/// The pieces of one channel that are on the GPU, in order.
#[derive(Debug)]
pub(crate) struct Line {
    pieces: VecDeque<(Piece, u64)>,
    in_flight: InFlight,
    last_end_ns: u64,
}

impl Line {
    /// Nothing in flight. All room is allocated here: pieces are added in a signal handler.
    pub(crate) fn new() -> Self {
        Self {
            pieces: VecDeque::with_capacity(PIECES_MAX),
            in_flight: InFlight::default(),
            last_end_ns: 0,
        }
    }

    /// What is in flight.
    pub(crate) fn in_flight(&self) -> &InFlight {
        &self.in_flight
    }

    /// A piece was published.
    pub(crate) fn published(&mut self, piece: Piece, now_ns: u64) {
        if self.pieces.len() < PIECES_MAX {
            self.in_flight.add(piece.predicted);
            self.pieces.push_back((piece, now_ns));
        }
    }

    /// Takes out what has ended, and tells for how long each had the channel for itself.
    ///
    /// # Safety
    ///
    /// The words of all pieces must be mapped.
    pub(crate) unsafe fn settle(&mut self, now_ns: u64, mut ended: impl FnMut(&Piece, Ns)) {
        while let Some(&(piece, published_ns)) = self.pieces.front() {
            // SAFETY: by contract.
            if !unsafe { piece.end.has_come() } {
                return;
            }
            self.pieces.pop_front();
            self.in_flight.remove(piece.predicted);
            let began = published_ns.max(self.last_end_ns);
            self.last_end_ns = now_ns;
            ended(&piece, Ns(now_ns.saturating_sub(began)));
        }
    }

    /// Forgets the pieces whose words lie in `[addr, addr + len)`, which is being unmapped.
    pub(crate) fn forget(&mut self, addr: usize, len: usize) {
        let in_flight = &mut self.in_flight;
        self.pieces.retain(|(piece, _)| {
            let gone = piece.end.at().wrapping_sub(addr) < len;
            if gone {
                in_flight.remove(piece.predicted);
            }
            !gone
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(word: &AtomicU32, number: u32, predicted: u64) -> Piece {
        Piece {
            end: End::Reaches {
                at: word.as_ptr() as usize,
                number,
            },
            kernel: Kernel {
                program: 1,
                grid: [7, 1, 1],
                block: [32, 1, 1],
            },
            blocks: 7,
            tpcs: 66,
            predicted: Ns(predicted),
        }
    }

    #[test]
    fn pieces_end_in_order_and_each_is_timed_from_the_end_of_the_last() {
        let word = AtomicU32::new(0);
        let mut line = Line::new();
        line.published(piece(&word, 1, 10), 100);
        line.published(piece(&word, 2, 20), 110);
        assert_eq!(line.in_flight().predicted, Ns(30));
        let mut times = Vec::new();
        // SAFETY: `word` outlives the line.
        unsafe { line.settle(120, |_, time| times.push(time)) };
        word.store(1, Ordering::Release);
        // SAFETY: as above.
        unsafe { line.settle(150, |_, time| times.push(time)) };
        assert_eq!(line.in_flight().count, 1);
        word.store(2, Ordering::Release);
        // SAFETY: as above.
        unsafe { line.settle(190, |_, time| times.push(time)) };
        assert_eq!(times, [Ns(50), Ns(40)]);
        assert_eq!(*line.in_flight(), InFlight::default());
    }

    #[test]
    fn an_atom_ends_with_its_own_number_alone() {
        let word = AtomicU32::new(9);
        let at = word.as_ptr() as usize;
        let becomes = |number| End::Becomes { at, number };
        // SAFETY: `word` outlives this.
        assert!(unsafe { becomes(9).has_come() });
        // SAFETY: as above.
        assert!(!unsafe { becomes(8).has_come() });
        let mut line = Line::new();
        line.published(piece(&word, 99, 5), 0);
        line.forget(at, 4);
        assert_eq!(line.in_flight().count, 0);
    }
}
