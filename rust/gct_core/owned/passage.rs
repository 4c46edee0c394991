// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Counts the entries on their way from a mailbox to the real ring.
//!
//! ```text
//! tenant's GP_PUT -> next() -> copy one entry -> moved() -> publish put()
//! real GP_GET     -> fetched() -> tenant's GP_GET
//! ```

use crate::lane::ring::{next_index, RealRing};
use core::ops::DerefMut;

/// Most entries of one channel that are copied in one turn, so that channels take turns.
pub const TURN_MAX: u32 = 16;

/// The indices of one owned channel.
#[derive(Debug)]
pub struct Passage<S> {
    /// Entries of the tenant's ring.
    entries: u32,
    /// The tenant's entry to copy next.
    taken: u32,
    /// The GP_GET that the tenant reads.
    shown: u32,
    real: RealRing<S>,
}

impl<S: DerefMut<Target = [u32]>> Passage<S> {
    /// Creates the passage of a channel without work. `slots` has one slot for each entry of the
    /// real ring, filled with 0.
    pub fn new(entries: u32, slots: S) -> Self {
        Self {
            entries,
            taken: 0,
            shown: 0,
            real: RealRing::new(slots),
        }
    }

    /// Returns the index of the tenant's entry to copy next. `put` is the tenant's GP_PUT, which
    /// may be any number. `None` if there is nothing to copy, or the real ring is full.
    pub fn next(&self, put: u32) -> Option<u32> {
        let has_work = put < self.entries && put != self.taken;
        (has_work && !self.real.is_full()).then_some(self.taken)
    }

    /// Returns the index of the real ring at which the next entry is written; after all are, the
    /// GP_PUT to publish.
    pub fn put(&self) -> u32 {
        self.real.put()
    }

    /// Records that the entry of [`next`](Self::next) was written at [`put`](Self::put).
    pub fn moved(&mut self) {
        self.taken = next_index(self.taken, self.entries);
        self.real.pushed(self.taken);
    }

    /// Returns whether the hardware has not fetched all entries.
    pub fn is_in_flight(&self) -> bool {
        self.shown != self.taken
    }

    /// Records the real GP_GET. Returns the GP_GET to show to the tenant if it has changed.
    pub fn fetched(&mut self, get: u32) -> Option<u32> {
        let shown = self.real.read_up_to(get)?;
        let changed = shown != self.shown;
        self.shown = shown;
        changed.then_some(shown)
    }
}

/// The shortest sleep of a worker.
const SLEEP_NS_MIN: u64 = 50_000;

/// The longest sleep of an idle worker. A tenant's first submission after a pause waits for it.
pub const SLEEP_NS_MAX: u64 = 2_000_000;

/// Returns how long a worker sleeps after a round, in nanoseconds; 0 is not at all. `last` is how
/// long it slept before the round.
///
/// ```text
/// entries are left to copy         0
/// entries were copied or fetched   SLEEP_NS_MIN
/// otherwise                        twice as long as before, at most SLEEP_NS_MAX
/// ```
///
/// A channel that stands still does not keep the worker busy, whatever is in flight there.
pub const fn sleep_after(round: Round, last: u64) -> u64 {
    match round {
        Round::Left => 0,
        Round::Busy => SLEEP_NS_MIN,
        Round::Idle => match last.saturating_mul(2) {
            0 => SLEEP_NS_MIN,
            SLEEP_NS_MAX.. => SLEEP_NS_MAX,
            twice => twice,
        },
    }
}

/// What a round over all channels of a GPU found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Round {
    /// Nothing.
    Idle,
    /// Entries that were copied, or that the hardware has fetched.
    Busy,
    /// More work than one turn may copy.
    Left,
}

/// When a refused question is asked again: doubled each time, from a millisecond to a second. A
/// tenant that submits to a channel without an engine must not make the worker ask all the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    at_ns: u64,
    wait_ns: u64,
}

impl Retry {
    /// At once.
    pub const NOW: Self = Self {
        at_ns: 0,
        wait_ns: 1_000_000,
    };

    /// Returns whether the time has come.
    pub const fn is_due(&self, now_ns: u64) -> bool {
        now_ns >= self.at_ns
    }

    /// Returns the time after a refusal.
    #[must_use]
    pub const fn refused(self, now_ns: u64) -> Self {
        const LONGEST_NS: u64 = 1_000_000_000;
        let twice = self.wait_ns.saturating_mul(2);
        Self {
            at_ns: now_ns.saturating_add(self.wait_ns),
            wait_ns: if twice < LONGEST_NS {
                twice
            } else {
                LONGEST_NS
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec;
    use std::vec::Vec;

    fn new(entries: u32, real: usize) -> Passage<Vec<u32>> {
        Passage::new(entries, vec![0; real])
    }

    #[test]
    fn entries_pass_in_order_until_the_real_ring_is_full() {
        let mut passage = new(8, 4);
        let mut copied = Vec::new();
        while let Some(index) = passage.next(6) {
            copied.push((index, passage.put()));
            passage.moved();
        }
        assert_eq!(copied, [(0, 0), (1, 1), (2, 2)]);
        assert_eq!((passage.put(), passage.is_in_flight()), (3, true));
        assert_eq!(passage.fetched(2), Some(2));
        assert_eq!(passage.fetched(2), None);
        assert_eq!(passage.next(6), Some(3));
    }

    #[test]
    fn any_number_of_the_tenants_is_harmless() {
        let passage = new(8, 4);
        for put in [8, 9, u32::MAX] {
            assert_eq!(passage.next(put), None);
        }
        let mut passage = new(8, 4);
        assert_eq!(passage.fetched(4), None);
        assert_eq!(passage.fetched(u32::MAX), None);
    }

    #[test]
    fn an_idle_worker_sleeps_longer_each_time() {
        let mut slept = Vec::new();
        let mut last = sleep_after(Round::Left, 77);
        for _ in 0..8 {
            last = sleep_after(Round::Idle, last);
            slept.push(last / 1000);
        }
        assert_eq!(slept, [50, 100, 200, 400, 800, 1600, 2000, 2000]);
        assert_eq!(sleep_after(Round::Busy, last), SLEEP_NS_MIN);
        assert_eq!(sleep_after(Round::Idle, u64::MAX), SLEEP_NS_MAX);
    }

    #[test]
    fn a_refused_question_is_asked_ever_more_seldom() {
        let mut retry = Retry::NOW;
        assert!(retry.is_due(0));
        let mut now = 0;
        for _ in 0..30 {
            retry = retry.refused(now);
            assert!(!retry.is_due(now));
            now = retry.at_ns;
        }
        assert_eq!(retry.wait_ns, 1_000_000_000);
        assert!(now > 15_000_000_000);
    }

    proptest! {
        /// Checks that each entry of a tenant that never fills its ring reaches the real ring once
        /// and in order, whatever the lengths and however turns interleave.
        #[test]
        fn each_entry_passes_once(
            entries in 2u32..40,
            real in 2usize..40,
            steps in prop::collection::vec((0u32..5, 0u32..5, 0u32..5), 1..200),
        ) {
            let mut passage = new(entries, real);
            let (mut written, mut copied, mut fetched) = (0u32, 0u32, 0u32);
            let (mut tenant_get, mut ring) = (0u32, vec![0u32; real]);
            for (more, copies, fetches) in steps {
                for _ in 0..more {
                    if (written + 1) % entries != tenant_get {
                        written = (written + 1) % entries;
                    }
                }
                for _ in 0..copies {
                    let Some(index) = passage.next(written) else { break };
                    prop_assert_eq!(index, copied % entries);
                    ring[passage.put() as usize] = copied;
                    passage.moved();
                    copied += 1;
                }
                for _ in 0..fetches {
                    if fetched == copied { break }
                    prop_assert_eq!(ring[fetched as usize % real], fetched);
                    fetched += 1;
                }
                if let Some(get) = passage.fetched((fetched as usize % real) as u32) {
                    tenant_get = get;
                }
                prop_assert_eq!(tenant_get, fetched % entries);
                prop_assert_eq!(passage.is_in_flight(), fetched % entries != copied % entries);
            }
        }
    }
}
