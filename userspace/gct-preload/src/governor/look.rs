// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What becomes of one segment of the tenant's: it is read once, and may be edited or replaced.

use super::{unknown_is_long, Governor, Next};
use crate::channel::{Around, Stream};
use crate::line::{End, Piece};
use crate::neighbours::Place;
use crate::split::{Atoms, Splitting, ATOMS_MAX};
use crate::stats::STATS;
use core::sync::atomic::{AtomicU32, Ordering};
use gct_core::policy::pace::{self, Split, Work};
use gct_core::policy::predict::{self, Kernel};
use gct_core::submit::gpfifo::{Entry, Segment};
use gct_core::submit::graph::Memory;
use gct_core::submit::launch::Launch;
use gct_core::submit::occupancy;
use gct_core::submit::rewrite::{self, Order};
use gct_core::submit::stats::Reason;
use gct_core::units::Ns;

impl Governor {
    /// Looks at the segment of one ring entry, and may edit or replace it.
    pub(crate) fn look(
        &mut self,
        stream: &mut Stream,
        entry: u64,
        around: &mut Around<'_>,
    ) -> Next {
        let as_it_is = Next::Whole { entry, piece: None };
        let Entry::Segment(segment) = stream.fetch.decode(entry) else {
            return as_it_is;
        };
        // CAST: a segment has fewer than 2^21 words.
        let count = segment.words as usize;
        let Some(words) = self.words.get_mut(..count) else {
            self.counters.keep(Reason::SegmentTooLong);
            return as_it_is;
        };
        let Some(at) = (around.find)(segment.va, count * 4) else {
            STATS.unreadable.fetch_add(1, Ordering::Relaxed);
            return as_it_is;
        };
        // The tenant's other threads may write here, whatever that does to them: it is read
        // once, through atomics, and what the core decides on is the copy.
        // SAFETY: `find` vouches for `count` words of mapped memory, aligned as every
        // segment is, for as long as the session is locked.
        let shared = unsafe { core::slice::from_raw_parts(at as *const AtomicU32, count) };
        for (copy, word) in words.iter_mut().zip(shared) {
            *copy = word.load(Ordering::Relaxed);
        }
        let scan = stream
            .tracker
            .scan(words, &mut self.found, &mut self.counters);
        if scan.found == 0 {
            return as_it_is;
        }
        let found = self.found.get(..scan.found).unwrap_or(&[]);
        let mut graphs = Memory::new(&mut self.nodes, &mut self.replays);
        graphs.learn(words, found, &mut self.counters);
        graphs.count_replays(found, &mut self.counters);
        if !(self.acts() || self.follows()) {
            return as_it_is;
        }
        let piece = match self.last_launch(count, scan.found, around) {
            Some((index, launch, piece)) => {
                if let Some(atoms) =
                    self.split(index, scan.found, &launch, piece, segment, stream, around)
                {
                    return Next::Atoms(atoms);
                }
                Some(piece)
            }
            None => self.replay(stream, around),
        };
        let predicted = piece.map_or(Ns(0), |piece| piece.predicted);
        // It may start as soon as what is before it has ended.
        self.may_run_for(unknown_is_long(predicted), around.now_ns);
        self.mask_in_place(shared, scan.found);
        Next::Whole {
            entry,
            piece: piece.filter(|_| self.follows()),
        }
    }

    /// The segment's last launch whose end can be told by a plain word of its own.
    fn last_launch(
        &self,
        count: usize,
        found: usize,
        around: &Around<'_>,
    ) -> Option<(usize, Launch, Piece)> {
        if !self.follows() && self.limits.atoms <= 1 {
            return None;
        }
        let words = self.words.get(..count)?;
        let (index, launch) = self
            .found
            .get(..found)?
            .iter()
            .enumerate()
            .rev()
            .filter(|(_, found)| found.is_launch())
            .find_map(|(index, found)| {
                let launch = found.launch(words)?;
                (launch.blocks() > 0).then_some((index, launch))
            })?;
        let mut releases = launch.effects.releases.iter().flatten();
        let release = releases.find(|r| r.words == 1 && r.reduction.is_none())?;
        // CAST: a release of one word carries 32 bits.
        let end = reaches(around, release.va, release.payload as u32)?;
        let kernel = Kernel {
            program: launch.program,
            grid: launch.grid_in_blocks(),
            block: launch.block,
        };
        let tpcs = self.tpcs();
        let piece = Piece {
            end,
            kernel,
            blocks: launch.blocks(),
            tpcs,
            predicted: self.predict(&kernel, tpcs).unwrap_or(Ns(0)),
        };
        Some((index, launch, piece))
    }

    /// A segment that launches what cannot be seen, as a graph's replay does: it has ended when the
    /// last release in it has come.
    fn replay(&self, stream: &Stream, around: &Around<'_>) -> Option<Piece> {
        let release = stream.tracker.last_release()?;
        // CAST: as wide as the word that it is compared with.
        let end = reaches(around, release.va, release.payload as u32)?;
        let kernel = Kernel {
            program: 0,
            grid: [0; 3],
            block: [0; 3],
        };
        Some(Piece {
            end,
            kernel,
            blocks: 0,
            tpcs: 0,
            predicted: Ns(0),
        })
    }

    fn predict(&self, kernel: &Kernel, tpcs: u64) -> Option<Ns> {
        predict::predict(&self.kernels, kernel, tpcs)
    }

    /// Splits a launch, if its limits ask for it.
    #[allow(
        clippy::too_many_arguments,
        reason = "disjoint parts of one borrowed state"
    )]
    fn split(
        &mut self,
        index: usize,
        found: usize,
        launch: &Launch,
        piece: Piece,
        segment: Segment,
        stream: &mut Stream,
        around: &mut Around<'_>,
    ) -> Option<Atoms> {
        let work = Work {
            blocks: piece.blocks,
            wave: occupancy::wave(launch, piece.tpcs),
            predicted: self.predict(&piece.kernel, piece.tpcs),
        };
        let split = match self.limits.atom_ns {
            0 => Split {
                atoms: self.limits.atoms.min(ATOMS_MAX),
                in_flight: 0,
            },
            target => {
                let apart = self.place.as_ref().is_some_and(Place::is_apart);
                pace::split(&work, Ns(target), apart, ATOMS_MAX)
            }
        };
        if split.atoms <= 1 || stream.fetch.base() != 0 {
            return None;
        }
        self.splits = self.splits.wrapping_add(1);
        let rest = stream.tracker.last_release();
        // CAST: as wide as the word that it is compared with.
        let rest = rest.and_then(|rest| reaches(around, rest.va, rest.payload as u32));
        let splitting = Splitting {
            // CAST: checked by the caller.
            words: self.words.get(..segment.words as usize)?,
            found: self.found.get(..found)?,
            index,
            split,
            segment,
            launch: piece,
            rest,
            number: self.splits,
        };
        splitting.emit(
            &mut stream.room,
            &mut self.orders,
            &mut self.output,
            around,
            &mut self.counters,
        )
    }

    /// Carries out the mask on the launches of a segment, in the copy and in the tenant's words.
    fn mask_in_place(&mut self, shared: &[AtomicU32], found: usize) {
        let order = Order {
            mask: self.mask.as_ref(),
            atoms: 0,
        };
        if order.mask.is_none() {
            return;
        }
        let words = self.words.get_mut(..shared.len()).unwrap_or_default();
        for found in self.found.get(..found).unwrap_or(&[]) {
            let Some(count) = found.qmd(words).map(<[u32]>::len) else {
                continue;
            };
            let one = core::slice::from_ref(found);
            rewrite::in_place(words, one, &[order], &mut self.counters);
            // CAST: an index of the segment.
            let from = found.at as usize;
            for (word, target) in words.iter().zip(shared).skip(from).take(count) {
                if target.load(Ordering::Relaxed) != *word {
                    target.store(*word, Ordering::Relaxed);
                }
            }
        }
    }
}

/// That a word of the tenant's counts up to `number`, if it is one that this process maps and
/// that has not got there yet.
fn reaches(around: &Around<'_>, va: u64, number: u32) -> Option<End> {
    let at = (around.find)(va, 4).filter(|at| at % 4 == 0)?;
    let end = End::Reaches { at, number };
    // SAFETY: `find` vouches for the word.
    (!unsafe { end.has_come() }).then_some(end)
}
