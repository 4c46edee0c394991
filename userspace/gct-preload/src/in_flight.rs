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
const SUBMISSIONS_MAX: usize = 256;

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
pub(crate) struct Submission {
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
struct Tracked {
    submission: Submission,
    published_ns: u64,
    /// Whether it was released because nothing had ended for too long.
    late: bool,
    /// Whether a later submission has ended already.
    overtaken: bool,
}

/// The submissions of one channel that are on the GPU, in order.
#[derive(Debug)]
pub(crate) struct InFlightQueue {
    submissions: VecDeque<Tracked>,
    in_flight: InFlight,
    last_end_ns: u64,
    patience: Patience,
    /// The time at which a late submission was published, until any submission ends after it.
    late_ns: Option<u64>,
    /// The time of the last publication or end.
    moved_ns: u64,
    /// The time at which the submissions behind the first were last checked.
    checked_ns: u64,
    /// Whether the present stall was reported.
    reported: bool,
}

impl InFlightQueue {
    /// Creates an empty queue. It allocates all room here, because a signal handler adds
    /// submissions.
    pub(crate) fn new() -> Self {
        Self {
            submissions: VecDeque::with_capacity(SUBMISSIONS_MAX),
            in_flight: InFlight::default(),
            last_end_ns: 0,
            patience: Patience::new(),
            late_ns: None,
            moved_ns: 0,
            checked_ns: 0,
            reported: false,
        }
    }

    /// Returns the totals of what is in flight.
    pub(crate) fn totals(&self) -> &InFlight {
        &self.in_flight
    }

    /// Returns whether the worker must watch for an end. A queue that was reported as stalled is
    /// not watched: work that has not ended for that long may never show its end.
    pub(crate) fn is_watched(&self) -> bool {
        self.in_flight.count > 0 && !self.reported
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
        stalled && !core::mem::replace(&mut self.reported, true)
    }

    fn record_move(&mut self, now_ns: u64) {
        self.moved_ns = now_ns;
        self.reported = false;
    }

    /// Records that a submission has ended.
    fn record_end(&mut self, now_ns: u64) {
        self.record_move(now_ns);
        if let Some(late_ns) = self.late_ns.take() {
            let took = Ns(now_ns.saturating_sub(late_ns));
            self.patience = self.patience.after(took);
        }
    }

    /// Adds a submission that was published, in turn or late.
    pub(crate) fn published(&mut self, submission: Submission, late: bool, now_ns: u64) {
        self.record_move(now_ns);
        if late {
            self.late_ns = Some(now_ns);
        }
        if self.submissions.len() < SUBMISSIONS_MAX {
            self.in_flight.add(submission.predicted, late);
            self.submissions.push_back(Tracked {
                submission,
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
    pub(crate) unsafe fn remove_ended(
        &mut self,
        now_ns: u64,
        mut ended: impl FnMut(&Submission, Ns),
    ) {
        while let Some(first) = self.submissions.front().copied() {
            // SAFETY: by contract.
            if !unsafe { first.submission.fence.is_reached() } {
                break;
            }
            self.submissions.pop_front();
            self.in_flight
                .remove(first.submission.predicted, first.late);
            let began = first.published_ns.max(self.last_end_ns);
            self.last_end_ns = now_ns;
            self.record_end(now_ns);
            ended(&first.submission, Ns(now_ns.saturating_sub(began)));
        }
        let since = Ns(now_ns.saturating_sub(self.checked_ns));
        if !self.submissions.is_empty() && since >= self.patience.look_every() {
            self.checked_ns = now_ns;
            // SAFETY: by contract.
            unsafe { self.remove_ended_behind(now_ns) };
        }
    }

    /// Removes the submissions that have ended behind the first. Drops older ones in front of these
    /// once patience runs out: if the program has reset the word, the end never shows.
    ///
    /// # Safety
    ///
    /// As [`remove_ended`](Self::remove_ended).
    unsafe fn remove_ended_behind(&mut self, now_ns: u64) {
        for at in (1..self.submissions.len()).rev() {
            let Some(behind) = self.submissions.get(at).copied() else {
                continue;
            };
            // SAFETY: by contract.
            if unsafe { behind.submission.fence.is_reached() } {
                self.submissions.remove(at);
                self.in_flight
                    .remove(behind.submission.predicted, behind.late);
                self.record_end(now_ns);
                let before = self.submissions.iter_mut().take(at);
                before.for_each(|before| before.overtaken = true);
            }
        }
        let patience = self.patience;
        self.drop_where(|tracked| {
            let age = Ns(now_ns.saturating_sub(tracked.published_ns));
            tracked.overtaken && patience.gives_up(age)
        });
    }

    /// Removes the submissions whose words lie in `[addr, addr + len)`, which is being unmapped.
    pub(crate) fn forget(&mut self, addr: usize, len: usize) {
        self.drop_where(|tracked| tracked.submission.fence.at().wrapping_sub(addr) < len);
    }

    fn drop_where(&mut self, gone: impl Fn(&Tracked) -> bool) {
        let in_flight = &mut self.in_flight;
        self.submissions.retain(|tracked| {
            let gone = gone(tracked);
            if gone {
                in_flight.remove(tracked.submission.predicted, tracked.late);
            }
            !gone
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn submission(word: &AtomicU32, number: u32, predicted: u64) -> Submission {
        Submission {
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
    fn submissions_end_in_order_and_each_is_timed_from_the_end_of_the_last() {
        let word = AtomicU32::new(0);
        let mut queue = InFlightQueue::new();
        queue.published(submission(&word, 1, 10), false, 100);
        queue.published(submission(&word, 2, 20), false, 110);
        assert_eq!(queue.totals().predicted, Ns(30));
        let mut times = Vec::new();
        // SAFETY: `word` outlives the queue.
        unsafe { queue.remove_ended(120, |_, time| times.push(time)) };
        word.store(1, Ordering::Release);
        // SAFETY: as above.
        unsafe { queue.remove_ended(150, |_, time| times.push(time)) };
        assert_eq!(queue.totals().count, 1);
        word.store(2, Ordering::Release);
        // SAFETY: as above.
        unsafe { queue.remove_ended(190, |_, time| times.push(time)) };
        assert_eq!(times, [Ns(50), Ns(40)]);
        assert_eq!(*queue.totals(), InFlight::default());
    }

    /// Launches of other streams end behind one that waits. One whose word the program has reset
    /// never shows its end.
    #[test]
    fn what_is_overtaken_is_given_up_when_it_is_old() {
        let (reset, word) = (AtomicU32::new(0), AtomicU32::new(0));
        let mut queue = InFlightQueue::new();
        let mut told = 0;
        queue.published(submission(&reset, 1, 10), false, 100);
        let (ms, age) = (1_000_000, patience::PATIENCE_MAX.get());
        for number in 1..=3 {
            queue.published(submission(&word, number, 20), false, 100);
        }
        word.store(2, Ordering::Release);
        // SAFETY: both words outlive the queue.
        unsafe { queue.remove_ended(100 + ms, |_, _| told += 1) };
        let both = InFlight {
            count: 2,
            predicted: Ns(30),
            late: 0,
        };
        assert_eq!((*queue.totals(), told), (both, 0));
        // SAFETY: as above.
        unsafe { queue.remove_ended(100 + age - 1, |_, _| told += 1) };
        assert_eq!(queue.totals().count, 2, "it may still end");
        // SAFETY: as above.
        unsafe { queue.remove_ended(100 + age + ms, |_, _| told += 1) };
        assert_eq!(queue.totals().count, 1);
        word.store(3, Ordering::Release);
        // SAFETY: as above.
        unsafe { queue.remove_ended(100 + age + 2 * ms, |_, _| told += 1) };
        assert_eq!((*queue.totals(), told), (InFlight::default(), 1));
    }

    #[test]
    fn a_queue_that_does_not_move_stalls_once_until_it_moves() {
        let word = AtomicU32::new(0);
        let mut queue = InFlightQueue::new();
        let long = patience::STALL_MAX.get();
        assert!(!queue.stalls(long), "nothing is in flight");
        queue.published(submission(&word, 1, 10), false, 100);
        assert!(!queue.stalls(100 + long - 1) && queue.is_watched());
        assert!(queue.stalls(100 + long) && !queue.is_watched());
        assert!(!queue.stalls(100 + 2 * long), "reported already");
        queue.published(submission(&word, 2, long), false, 100 + 2 * long);
        assert!(
            !queue.stalls(100 + 3 * long),
            "what is foreseen is no stall"
        );
        queue.excuse(100 + 6 * long);
        assert!(!queue.stalls(100 + 6 * long));
        assert!(queue.stalls(100 + 11 * long), "again");
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
        let mut queue = InFlightQueue::new();
        queue.published(submission(&word, 99, 5), false, 0);
        queue.forget(at, 4);
        assert_eq!(queue.totals().count, 0);
    }
}
