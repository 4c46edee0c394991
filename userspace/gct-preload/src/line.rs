// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tracks which launches and atoms of one channel are on the GPU, and detects which have ended.

use core::sync::atomic::{AtomicU32, Ordering};
use gct_core::policy::pace::InFlight;
use gct_core::policy::patience::{self, Patience};
use gct_core::policy::predict::Kernel;
use gct_core::units::Ns;
use std::collections::VecDeque;

/// The most submissions that are tracked. More are published without being counted, like launches
/// whose end cannot be observed.
const PIECES_MAX: usize = 256;

/// The condition on a word in memory under which a submission has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fence {
    /// The word counts up and has reached `number`: the release of a tenant's launch.
    AtLeast { at: usize, number: u32 },
    /// The word equals `number`: the done word of an atom.
    Equal { at: usize, number: u32 },
}

impl Fence {
    /// Returns the word's address.
    pub(crate) fn at(&self) -> usize {
        match *self {
            Self::AtLeast { at, .. } | Self::Equal { at, .. } => at,
        }
    }

    /// Returns whether the condition holds.
    ///
    /// # Safety
    ///
    /// The word must be mapped.
    pub(crate) unsafe fn is_reached(&self) -> bool {
        // SAFETY: mapped by contract, and aligned because its creator checked it.
        let word = unsafe { AtomicU32::from_ptr(self.at() as *mut u32) }.load(Ordering::Acquire);
        match *self {
            // CAST: the sign of the difference modulo 2^32.
            Self::AtLeast { number, .. } => word.wrapping_sub(number) as i32 >= 0,
            Self::Equal { number, .. } => word == number,
        }
    }
}

/// A launch or an atom that is published as one unit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    /// The condition under which it has ended.
    pub(crate) fence: Fence,
    /// The kernel that it runs.
    pub(crate) kernel: Kernel,
    /// The blocks of the kernel that it runs.
    pub(crate) blocks: u64,
    /// The TPCs that it runs on.
    pub(crate) tpcs: u64,
    /// The predicted duration.
    pub(crate) predicted: Ns,
}

/// A submission in flight.
#[derive(Clone, Copy, Debug)]
struct Followed {
    piece: Piece,
    published_ns: u64,
    /// Whether it was released because nothing had ended for too long.
    late: bool,
    /// Whether a later submission has ended already.
    overtaken: bool,
}

/// The submissions of one channel that are on the GPU, in order.
#[derive(Debug)]
pub(crate) struct Line {
    pieces: VecDeque<Followed>,
    in_flight: InFlight,
    last_end_ns: u64,
    patience: Patience,
    /// The time at which a late submission was published, until any submission ends after it.
    late_ns: Option<u64>,
    /// The time of the last publication or end.
    moved_ns: u64,
    /// The time at which the submissions behind the first were last checked.
    looked_ns: u64,
    /// Whether the present stall was reported.
    told: bool,
}

impl Line {
    /// Creates an empty queue. It allocates all room here, because a signal handler adds
    /// submissions.
    pub(crate) fn new() -> Self {
        Self {
            pieces: VecDeque::with_capacity(PIECES_MAX),
            in_flight: InFlight::default(),
            last_end_ns: 0,
            patience: Patience::new(),
            late_ns: None,
            moved_ns: 0,
            looked_ns: 0,
            told: false,
        }
    }

    /// Returns the totals of what is in flight.
    pub(crate) fn in_flight(&self) -> &InFlight {
        &self.in_flight
    }

    /// Returns whether the worker must watch for an end. A queue that was reported as stalled is
    /// not watched: work that has not ended for that long may never show its end.
    pub(crate) fn is_followed(&self) -> bool {
        self.in_flight.count > 0 && !self.told
    }

    /// Returns the time of the last publication or end.
    pub(crate) fn moved_ns(&self) -> u64 {
        self.moved_ns
    }

    /// Returns whether held work must be released although nothing has ended.
    pub(crate) fn is_over(&self, now_ns: u64) -> bool {
        self.patience
            .is_over(self.still(now_ns), self.in_flight.late)
    }

    /// Returns the time since the last publication or end.
    fn still(&self, now_ns: u64) -> Ns {
        Ns(now_ns.saturating_sub(self.moved_ns))
    }

    /// Restarts the time within which something should end, because the reason for the pause is
    /// known.
    pub(crate) fn excuse(&mut self, now_ns: u64) {
        self.moved_ns = now_ns;
    }

    /// Returns whether the work in flight has stalled. Reports each stall once.
    pub(crate) fn stalls(&mut self, now_ns: u64) -> bool {
        let stalled = self.in_flight.count > 0
            && patience::is_stalled(self.still(now_ns), self.in_flight.predicted);
        stalled && !core::mem::replace(&mut self.told, true)
    }

    fn moves(&mut self, now_ns: u64) {
        self.moved_ns = now_ns;
        self.told = false;
    }

    /// Records that a submission has ended.
    fn ends(&mut self, now_ns: u64) {
        self.moves(now_ns);
        if let Some(late_ns) = self.late_ns.take() {
            let took = Ns(now_ns.saturating_sub(late_ns));
            self.patience = self.patience.after(took);
        }
    }

    /// Adds a submission that was published, in turn or late.
    pub(crate) fn published(&mut self, piece: Piece, late: bool, now_ns: u64) {
        self.moves(now_ns);
        if late {
            self.late_ns = Some(now_ns);
        }
        if self.pieces.len() < PIECES_MAX {
            self.in_flight.add(piece.predicted, late);
            self.pieces.push_back(Followed {
                piece,
                published_ns: now_ns,
                late,
                overtaken: false,
            });
        }
    }

    /// Removes the submissions that have ended. Calls `ended` for each one that was the first of
    /// the queue, with the time for which it had the channel to itself.
    ///
    /// Launches of other streams may end before the first. These are removed within a millisecond,
    /// and `ended` is not called for them.
    ///
    /// # Safety
    ///
    /// The words of all submissions must be mapped.
    pub(crate) unsafe fn settle(&mut self, now_ns: u64, mut ended: impl FnMut(&Piece, Ns)) {
        while let Some(first) = self.pieces.front().copied() {
            // SAFETY: by contract.
            if !unsafe { first.piece.fence.is_reached() } {
                break;
            }
            self.pieces.pop_front();
            self.in_flight.remove(first.piece.predicted, first.late);
            let began = first.published_ns.max(self.last_end_ns);
            self.last_end_ns = now_ns;
            self.ends(now_ns);
            ended(&first.piece, Ns(now_ns.saturating_sub(began)));
        }
        let looked = Ns(now_ns.saturating_sub(self.looked_ns));
        if !self.pieces.is_empty() && looked >= self.patience.look_every() {
            self.looked_ns = now_ns;
            // SAFETY: by contract.
            unsafe { self.settle_behind(now_ns) };
        }
    }

    /// Removes the submissions that have ended behind the first. Drops older ones in front of these
    /// once patience runs out: if the program has reset the word, the end never shows.
    ///
    /// # Safety
    ///
    /// As [`settle`](Self::settle).
    unsafe fn settle_behind(&mut self, now_ns: u64) {
        for at in (1..self.pieces.len()).rev() {
            let Some(behind) = self.pieces.get(at).copied() else {
                continue;
            };
            // SAFETY: by contract.
            if unsafe { behind.piece.fence.is_reached() } {
                self.pieces.remove(at);
                self.in_flight.remove(behind.piece.predicted, behind.late);
                self.ends(now_ns);
                let before = self.pieces.iter_mut().take(at);
                before.for_each(|before| before.overtaken = true);
            }
        }
        let patience = self.patience;
        self.drop_where(|piece| {
            let age = Ns(now_ns.saturating_sub(piece.published_ns));
            piece.overtaken && patience.gives_up(age)
        });
    }

    /// Removes the submissions whose words lie in `[addr, addr + len)`, which is being unmapped.
    pub(crate) fn forget(&mut self, addr: usize, len: usize) {
        self.drop_where(|piece| piece.piece.fence.at().wrapping_sub(addr) < len);
    }

    fn drop_where(&mut self, gone: impl Fn(&Followed) -> bool) {
        let in_flight = &mut self.in_flight;
        self.pieces.retain(|piece| {
            let gone = gone(piece);
            if gone {
                in_flight.remove(piece.piece.predicted, piece.late);
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
            fence: Fence::AtLeast {
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
        line.published(piece(&word, 1, 10), false, 100);
        line.published(piece(&word, 2, 20), false, 110);
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

    /// Launches of other streams end behind one that waits. One whose word the program has reset
    /// never shows its end.
    #[test]
    fn what_is_overtaken_is_given_up_when_it_is_old() {
        let (reset, word) = (AtomicU32::new(0), AtomicU32::new(0));
        let mut line = Line::new();
        let mut told = 0;
        line.published(piece(&reset, 1, 10), false, 100);
        let (ms, age) = (1_000_000, patience::PATIENCE_MAX.get());
        for number in 1..=3 {
            line.published(piece(&word, number, 20), false, 100);
        }
        word.store(2, Ordering::Release);
        // SAFETY: both words outlive the line.
        unsafe { line.settle(100 + ms, |_, _| told += 1) };
        let both = InFlight {
            count: 2,
            predicted: Ns(30),
            late: 0,
        };
        assert_eq!((*line.in_flight(), told), (both, 0));
        // SAFETY: as above.
        unsafe { line.settle(100 + age - 1, |_, _| told += 1) };
        assert_eq!(line.in_flight().count, 2, "it may still end");
        // SAFETY: as above.
        unsafe { line.settle(100 + age + ms, |_, _| told += 1) };
        assert_eq!(line.in_flight().count, 1);
        word.store(3, Ordering::Release);
        // SAFETY: as above.
        unsafe { line.settle(100 + age + 2 * ms, |_, _| told += 1) };
        assert_eq!((*line.in_flight(), told), (InFlight::default(), 1));
    }

    #[test]
    fn a_line_that_does_not_move_stalls_once_until_it_moves() {
        let word = AtomicU32::new(0);
        let mut line = Line::new();
        let long = patience::STALL_MAX.get();
        assert!(!line.stalls(long), "nothing is in flight");
        line.published(piece(&word, 1, 10), false, 100);
        assert!(!line.stalls(100 + long - 1) && line.is_followed());
        assert!(line.stalls(100 + long) && !line.is_followed());
        assert!(!line.stalls(100 + 2 * long), "told already");
        line.published(piece(&word, 2, long), false, 100 + 2 * long);
        assert!(!line.stalls(100 + 3 * long), "what is foreseen is no stall");
        line.excuse(100 + 6 * long);
        assert!(!line.stalls(100 + 6 * long));
        assert!(line.stalls(100 + 11 * long), "again");
    }

    #[test]
    fn an_atom_ends_only_with_its_own_number() {
        let word = AtomicU32::new(9);
        let at = word.as_ptr() as usize;
        let equals = |number| Fence::Equal { at, number };
        // SAFETY: `word` outlives this.
        assert!(unsafe { equals(9).is_reached() });
        // SAFETY: as above.
        assert!(!unsafe { equals(8).is_reached() });
        let mut line = Line::new();
        line.published(piece(&word, 99, 5), false, 0);
        line.forget(at, 4);
        assert_eq!(line.in_flight().count, 0);
    }
}
