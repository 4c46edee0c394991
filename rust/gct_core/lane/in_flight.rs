// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tracks which launches and atoms of one channel are on the GPU, and detects which have ended.

use super::queue::Queue;
use super::words::{Storage, Words};
use crate::policy::pace::InFlight;
use crate::policy::patience::{self, Patience};
use crate::policy::predict::{self, Kernel, Path};
use crate::units::{Ns, Sat};

/// The most submissions that need to be tracked. More are published without being counted, like
/// launches whose end cannot be observed.
pub const SUBMISSIONS_MAX: usize = 256;

/// When a word fulfils its fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// The word counts up modulo 2^32 and has reached the number: the release of a tenant's launch.
    AtLeast,
    /// The word equals the number: the done word of an atom.
    Equal,
}

/// The condition on a word in memory under which a submission has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fence<V> {
    /// The view that holds the word.
    pub view: V,
    /// The word's index in its view.
    pub index: usize,
    /// The number that the word is compared with.
    pub number: u32,
    /// How it is compared.
    pub reach: Reach,
}

impl<V> Fence<V> {
    /// Returns the fence that a word of the tenant reaches `payload`. Returns `None` if the word
    /// cannot be observed, or is there already.
    pub(super) fn at<W: Words<View = V>>(memory: &W, va: u64, payload: u64) -> Option<Self> {
        let fence = Self {
            view: memory.find(va, 1)?,
            index: 0,
            // CAST: as wide as the word that it is compared with.
            number: payload as u32,
            reach: Reach::AtLeast,
        };
        memory.load(&fence.view, 0)?;
        (!fence.is_reached(memory)).then_some(fence)
    }

    /// Returns whether the condition holds. It does not for a word that cannot be loaded.
    pub fn is_reached(&self, words: &impl Words<View = V>) -> bool {
        let reached = |word: u32| match self.reach {
            // CAST: the sign of the difference modulo 2^32.
            Reach::AtLeast => word.wrapping_sub(self.number) as i32 >= 0,
            Reach::Equal => word == self.number,
        };
        words.load(&self.view, self.index).is_some_and(reached)
    }
}

/// A launch, an atom or a copy that is published as one unit.
#[derive(Clone, Copy, Debug)]
pub struct Submission<V> {
    /// The condition under which it has ended.
    pub fence: Fence<V>,
    /// The kernel that it runs.
    pub kernel: Kernel,
    /// The launches of its channel before it; none for what is no launch with a grid.
    pub path: Path,
    /// The blocks of the kernel that it runs.
    pub blocks: u64,
    /// The TPCs that it runs on; the mean over its nodes if it is a replay.
    pub tpcs: u64,
    /// The predicted duration.
    pub predicted: Ns,
    /// The predicted duration of a replay. It is compared with the real one, and tells when the
    /// replay has ended between two looks. No release depends on it.
    pub replay: Ns,
    /// The bytes that it copies; 0 if it is a launch.
    pub bytes: u64,
    /// Its size, if it has one.
    pub sized: Option<Allotment>,
}

/// How long the GPU may take to begin what it was not given before. One H100: a launch and the wait
/// for its end take 9 us.
const START: Ns = Ns(8_000);

impl<V> Submission<V> {
    /// Returns the submission for a segment of which no launch is known.
    pub(super) fn opaque(fence: Fence<V>) -> Self {
        Self {
            fence,
            kernel: Kernel::graph(0),
            path: Path::default(),
            blocks: 0,
            tpcs: 0,
            predicted: Ns(0),
            replay: Ns(0),
            bytes: 0,
            sized: None,
        }
    }

    /// Returns whether its time tells of the launch: its beginning and end were seen to a part of
    /// it, and no masks of its nodes were written with it.
    pub fn is_timed(&self, end: &End, parts: u64) -> bool {
        let error = end.error + if end.queued { Ns(0) } else { START };
        self.sized.is_none_or(|sized| sized.observed) && error * parts <= end.time
    }

    /// Returns 1 if its duration was not predicted.
    fn unknown(&self) -> Sat<u32> {
        Sat(u32::from(!self.is_predicted()))
    }

    /// Returns whether its duration, that of a replay included, was predicted.
    pub fn is_predicted(&self) -> bool {
        self.predicted.max(self.replay) > Ns(0)
    }
}

/// The size of a submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allotment {
    /// The TPCs that it needs.
    pub tpcs: u32,
    /// The TPCs that it was granted without a size.
    pub most: u32,
    /// Whether its time tells of its size.
    pub observed: bool,
}

/// How a submission has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// The time for which it had the channel to itself.
    pub time: Ns,
    /// When it has ended. That is between two looks. If its prediction is, too, it is taken for the
    /// end.
    pub at: Ns,
    /// Whether it was released before the one in front of it had ended.
    pub queued: bool,
    /// How far the time may be off, because its beginning and end are between two looks.
    pub error: Ns,
    /// Whether its prediction, that of a replay included, was wrong ([`predict::misses`]).
    pub missed: bool,
}

/// A submission in flight.
#[derive(Clone, Copy, Debug)]
pub struct Tracked<V> {
    submission: Submission<V>,
    published: Ns,
    /// Whether it was released because nothing had ended for too long.
    late: bool,
    /// Whether a later submission has ended already.
    overtaken: bool,
    /// Whether it has ended.
    ended: bool,
}

/// The submissions of one channel that are on the GPU, in order.
pub struct InFlightQueue<S: Storage, V: 'static> {
    submissions: Queue<S::Slots<Option<Tracked<V>>>>,
    in_flight: InFlight,
    /// The TPCs of each entry among them that nobody has read.
    unread_tpcs: u64,
    /// How many of them were not predicted.
    unknown: Sat<u32>,
    last_end: Ns,
    /// When the last one is taken to have ended ([`End::at`]).
    last_at: Ns,
    /// The time between the two looks before the last end.
    last_gap: Ns,
    patience: Patience,
    /// The time at which a late submission was published, until any submission ends after it.
    late: Option<Ns>,
    /// The time of the last publication or end.
    moved: Ns,
    /// The time at which the first submission was last checked.
    looked: Ns,
    /// The time at which the submissions behind the first were last checked.
    checked: Ns,
    /// Whether the present stall was reported.
    reported: bool,
}

impl<S: Storage, V: Copy + 'static> InFlightQueue<S, V> {
    /// Creates an empty queue. `slots` has [`SUBMISSIONS_MAX`] slots, or fewer to track fewer
    /// submissions.
    pub fn new(slots: S::Slots<Option<Tracked<V>>>) -> Self {
        Self {
            submissions: Queue::new(slots),
            in_flight: InFlight::default(),
            unread_tpcs: 0,
            unknown: Sat(0),
            last_end: Ns(0),
            last_at: Ns(0),
            last_gap: Ns(0),
            patience: Patience::new(),
            late: None,
            moved: Ns(0),
            looked: Ns(0),
            checked: Ns(0),
            reported: false,
        }
    }

    /// Returns the totals of what is in flight.
    pub fn totals(&self) -> &InFlight {
        &self.in_flight
    }

    /// Returns whether the backend must watch for an end. A queue that was reported as stalled is
    /// not watched: work that has not ended for that long may never show its end.
    pub fn is_watched(&self) -> bool {
        self.in_flight.count > 0 && !self.reported
    }

    /// Returns whether the duration of any of them is unknown.
    pub fn has_unknown(&self) -> bool {
        self.unknown > Sat(0)
    }

    /// Returns the time of the last publication or end.
    pub fn moved(&self) -> Ns {
        self.moved
    }

    /// Returns when held work must be released although nothing has ended.
    pub fn overdue(&self) -> Ns {
        self.moved + self.patience.wait(self.in_flight.late)
    }

    /// Restarts the time within which something should end, because the reason for the pause is
    /// known.
    pub fn excuse(&mut self, now: Ns) {
        self.moved = now;
    }

    /// Returns whether the work in flight has stalled. Reports each stall once.
    pub fn stalls(&mut self, now: Ns) -> bool {
        let stalled = self.in_flight.count > 0
            && patience::is_stalled(now - self.moved, self.in_flight.predicted);
        stalled && !core::mem::replace(&mut self.reported, true)
    }

    /// Counts an entry that was published before anybody read it. All that are not read have so many
    /// TPCs.
    pub(super) fn pass(&mut self, tpcs: u64, now: Ns) {
        self.record_move(now);
        self.unread_tpcs = tpcs;
        self.in_flight.add(Ns(0), tpcs, false);
    }

    /// Counts it no more: it is read.
    pub(super) fn read(&mut self) {
        self.in_flight.remove(Ns(0), self.unread_tpcs, false);
    }

    fn record_move(&mut self, now: Ns) {
        self.moved = now;
        self.reported = false;
    }

    /// Records that a submission has ended.
    fn record_end(&mut self, now: Ns) {
        self.record_move(now);
        if let Some(late) = self.late.take() {
            self.patience = self.patience.after(now - late);
        }
    }

    /// Adds a submission that was published, in turn or late.
    pub fn published(&mut self, submission: Submission<V>, late: bool, now: Ns) {
        self.record_move(now);
        if late {
            self.late = Some(now);
        }
        let tracked = self.submissions.push(Tracked {
            submission,
            published: now,
            late,
            overtaken: false,
            ended: false,
        });
        if tracked {
            self.in_flight
                .add(submission.predicted, submission.tpcs, late);
            self.unknown += submission.unknown();
        }
    }

    /// Removes the submissions that have ended. Calls `ended` for each one that was the first of
    /// the queue.
    ///
    /// Launches of other streams may end before the first. These are removed within a millisecond,
    /// and `ended` is not called for them.
    pub fn remove_ended(
        &mut self,
        words: &impl Words<View = V>,
        now: Ns,
        mut ended: impl FnMut(&Submission<V>, End),
    ) {
        let is_reached = |first: &Tracked<V>| first.submission.fence.is_reached(words);
        while self.submissions.get(0).is_some_and(is_reached) {
            let Some(first) = self.submissions.pop() else {
                break;
            };
            let Submission {
                predicted, tpcs, ..
            } = first.submission;
            self.in_flight.remove(predicted, tpcs, first.late);
            self.unknown -= first.submission.unknown();
            let began = first.published.max(self.last_end);
            let gap = now - self.looked;
            let queued = first.published < self.last_end;
            let before = if queued { self.last_gap } else { Ns(0) };
            // One look may find several ends.
            let began_at = match self.last_end == now {
                true => first.published.max(self.last_at),
                false => began,
            };
            (self.last_end, self.last_gap) = (now, gap);
            self.record_end(now);
            let looked = self.looked;
            let at = match predicted.max(first.submission.replay) {
                Ns(0) => now,
                predicted => (began_at + predicted).max(looked).min(now),
            };
            self.last_at = at;
            let end = End {
                time: now - began,
                queued,
                error: gap + before,
                at,
                missed: first.submission.is_predicted() && {
                    // If another one has ended since the last look, this one began before now.
                    let longest = now - began.min(first.published.max(looked));
                    let predicted = predicted.max(first.submission.replay);
                    predict::misses(predicted, looked - began, longest)
                },
            };
            ended(&first.submission, end);
        }
        self.looked = now;
        if self.submissions.len() > 0 && now - self.checked >= self.patience.look_every() {
            self.checked = now;
            self.remove_ended_behind(words, now);
        }
    }

    /// Removes the submissions that have ended behind the first. Drops older ones in front of these
    /// once patience runs out: if the program has reset the word, the end never shows.
    fn remove_ended_behind(&mut self, words: &impl Words<View = V>, now: Ns) {
        let mut any = false;
        for at in (0..self.submissions.len()).rev() {
            let Some(tracked) = self.submissions.get_mut(at) else {
                continue;
            };
            if at > 0 && tracked.submission.fence.is_reached(words) {
                tracked.ended = true;
                any = true;
            } else {
                tracked.overtaken |= any;
            }
        }
        if any {
            self.record_end(now);
        }
        let patience = self.patience;
        self.drop_where(|tracked| {
            let age = now - tracked.published;
            tracked.ended || (tracked.overtaken && patience.gives_up(age))
        });
    }

    /// Removes the submissions whose fences are `gone`, because their memory goes.
    pub fn forget(&mut self, gone: impl Fn(&Fence<V>) -> bool) {
        self.drop_where(|tracked| gone(&tracked.submission.fence));
    }

    fn drop_where(&mut self, gone: impl Fn(&Tracked<V>) -> bool) {
        let (in_flight, unknown) = (&mut self.in_flight, &mut self.unknown);
        self.submissions.retain(|tracked| {
            let gone = gone(tracked);
            if gone {
                let Submission {
                    predicted, tpcs, ..
                } = tracked.submission;
                in_flight.remove(predicted, tpcs, tracked.late);
                *unknown -= tracked.submission.unknown();
            }
            !gone
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lane::testing::{self, Heap, Ram, View};
    use std::vec;
    use std::vec::Vec;

    type Queue = InFlightQueue<Heap, View>;

    fn queue() -> Queue {
        Queue::new(vec![None; SUBMISSIONS_MAX])
    }

    fn fence(at: usize, number: u32, reach: Reach) -> Fence<View> {
        Fence {
            view: (0, 4),
            index: at,
            number,
            reach,
        }
    }

    fn submission(at: usize, number: u32, predicted: u64) -> Submission<View> {
        let kernel = Kernel {
            program: 1,
            grid: [7, 1, 1],
            block: [32, 1, 1],
            per_tpc: 4,
        };
        Submission {
            fence: fence(at, number, Reach::AtLeast),
            predicted: Ns(predicted),
            ..testing::submission(kernel, 7, 66)
        }
    }

    #[test]
    fn submissions_end_in_order_and_each_is_timed_from_the_end_of_the_last() {
        let (ram, mut queue) = (Ram::new(4), queue());
        queue.published(submission(0, 1, 10), false, Ns(100));
        queue.published(submission(0, 2, 20), false, Ns(110));
        assert_eq!(queue.totals().predicted, Ns(30));
        let mut times = Vec::new();
        queue.remove_ended(&ram, Ns(120), |_, end| times.push((end.time, end.at)));
        ram.set(0, 1);
        queue.remove_ended(&ram, Ns(150), |_, end| times.push((end.time, end.at)));
        assert_eq!(queue.totals().count, 1);
        ram.set(0, 2);
        queue.remove_ended(&ram, Ns(190), |_, end| times.push((end.time, end.at)));
        assert_eq!(times, [(Ns(50), Ns(120)), (Ns(40), Ns(170))]);
        assert_eq!(*queue.totals(), InFlight::default());
    }

    /// Checks that a prediction counts as wrong only where no end since the last look explains it.
    #[test]
    fn a_wrong_prediction_is_found_between_looks() {
        let us = |us: u64| Ns(us * 1_000);
        let (ram, mut queue) = (Ram::new(4), queue());
        let mut missed = Vec::new();
        // Two end in one look, as predicted. Then one that is too early, and one too late.
        for (number, predicted) in [(1, 60), (2, 60), (3, 400), (4, 60), (5, 0)] {
            queue.published(submission(0, number, predicted * 1_000), false, us(100));
        }
        let looks = [(0, 100), (2, 220), (2, 300), (3, 320), (3, 500), (4, 520)];
        for (ended, at) in looks.into_iter().chain([(5, 900)]) {
            ram.set(0, ended);
            queue.remove_ended(&ram, us(at), |_, end| missed.push(end.missed));
        }
        assert_eq!(missed, [false, false, true, true, false]);
    }

    /// Checks that the prediction of a replay is compared, and counts for nothing else.
    #[test]
    fn a_replay_may_miss_and_counts_as_unknown() {
        let (ram, mut queue) = (Ram::new(4), queue());
        for number in 1..=2 {
            let replay = Submission {
                replay: Ns(400_000),
                ..submission(0, number, 0)
            };
            assert!(replay.is_predicted());
            queue.published(replay, false, Ns(100));
        }
        assert_eq!(queue.totals().predicted, Ns(0));
        let mut seen = Vec::new();
        for (ended, at) in [(0, 390_000), (1, 400_000), (1, 880_000), (2, 890_000)] {
            ram.set(0, ended);
            queue.remove_ended(&ram, Ns(at), |_, end| seen.push((end.missed, end.at)));
        }
        // It has ended between the last two looks, so long after its prediction.
        assert_eq!(seen, [(false, Ns(400_000)), (true, Ns(880_000))]);
    }

    /// Launches of other streams end behind one that waits. One whose word the program has reset
    /// never shows its end.
    #[test]
    fn what_is_overtaken_is_given_up_when_it_is_old() {
        let (reset, word) = (0, 1);
        let (ram, mut queue) = (Ram::new(4), queue());
        let mut told = 0;
        queue.published(submission(reset, 1, 10), false, Ns(100));
        let (ms, age) = (1_000_000, patience::PATIENCE_MAX.get());
        for number in 1..=3 {
            queue.published(submission(word, number, 20), false, Ns(100));
        }
        ram.set(word, 2);
        queue.remove_ended(&ram, Ns(100 + ms), |_, _| told += 1);
        let both = InFlight {
            count: 2,
            predicted: Ns(30),
            tpcs: 2 * 66,
            late: 0,
        };
        assert_eq!((*queue.totals(), told), (both, 0));
        queue.remove_ended(&ram, Ns(100 + age - 1), |_, _| told += 1);
        assert_eq!(queue.totals().count, 2, "it may still end");
        queue.remove_ended(&ram, Ns(100 + age + ms), |_, _| told += 1);
        assert_eq!(queue.totals().count, 1);
        ram.set(word, 3);
        queue.remove_ended(&ram, Ns(100 + age + 2 * ms), |_, _| told += 1);
        assert_eq!((*queue.totals(), told), (InFlight::default(), 1));
    }

    #[test]
    fn a_queue_that_does_not_move_stalls_once_until_it_moves() {
        let mut queue = queue();
        let long = patience::STALL_MAX.get();
        assert!(!queue.stalls(Ns(long)), "nothing is in flight");
        queue.published(submission(0, 1, 10), false, Ns(100));
        assert!(!queue.stalls(Ns(100 + long - 1)) && queue.is_watched());
        assert!(queue.stalls(Ns(100 + long)) && !queue.is_watched());
        assert!(!queue.stalls(Ns(100 + 2 * long)), "reported already");
        queue.published(submission(0, 2, long), false, Ns(100 + 2 * long));
        assert!(
            !queue.stalls(Ns(100 + 3 * long)),
            "what is foreseen is no stall"
        );
        queue.excuse(Ns(100 + 6 * long));
        assert!(!queue.stalls(Ns(100 + 6 * long)));
        assert!(queue.stalls(Ns(100 + 11 * long)), "again");
    }

    #[test]
    fn an_atom_ends_only_with_its_own_number() {
        let ram = Ram::new(4);
        ram.set(0, 9);
        assert!(fence(0, 9, Reach::Equal).is_reached(&ram));
        assert!(!fence(0, 8, Reach::Equal).is_reached(&ram));
        assert!(fence(0, 8, Reach::AtLeast).is_reached(&ram));
        assert!(!fence(4, 0, Reach::Equal).is_reached(&ram), "no such word");
    }

    #[test]
    fn what_is_not_tracked_or_forgotten_is_not_counted() {
        let mut queue = Queue::new(vec![None; 2]);
        for at in 0..3 {
            queue.published(submission(at, 99, 5), false, Ns(0));
        }
        assert_eq!(queue.totals().count, 2);
        queue.forget(|fence| fence.index == 0);
        assert_eq!((queue.totals().count, queue.totals().predicted), (1, Ns(5)));
    }

    #[test]
    fn ends_that_one_look_finds_are_taken_to_follow_each_other() {
        let (ram, mut queue) = (Ram::new(4), queue());
        for number in 1..=3 {
            queue.published(submission(0, number, 20_000), false, Ns(100_000));
        }
        ram.set(0, 3);
        let mut ends = Vec::new();
        queue.remove_ended(&ram, Ns(1_000_000), |_, end| ends.push(end.at));
        assert_eq!(ends, [120_000, 140_000, 160_000].map(Ns));
    }

    #[test]
    fn a_queue_knows_whether_all_durations_are_known() {
        let (ram, mut queue) = (Ram::new(4), queue());
        let replay = Submission {
            replay: Ns(9),
            ..submission(1, 1, 0)
        };
        for known in [submission(0, 1, 5), replay] {
            queue.published(known, false, Ns(0));
            assert!(!queue.has_unknown());
        }
        queue.published(submission(2, 1, 0), false, Ns(0));
        queue.published(submission(3, 1, 0), false, Ns(0));
        assert!(queue.has_unknown());
        queue.forget(|fence| fence.index == 3);
        assert!(queue.has_unknown(), "the other one");
        for at in 0..3 {
            ram.set(at, 1);
        }
        queue.remove_ended(&ram, Ns(100), |_, _| ());
        assert!(!queue.has_unknown());
    }
}
