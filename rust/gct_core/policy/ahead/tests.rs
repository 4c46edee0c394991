// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Plays the roots of one process below a limit, with threads that evict for themselves and an
//! evictor that is as fast as the sequence of a test says.

use super::*;
use proptest::prelude::*;
use std::collections::VecDeque;

#[test]
fn marks_are_whole_roots_below_the_limit() {
    let marks = |limit| (full(limit), low(limit), credit(limit));
    assert_eq!(marks(Bytes(0)), (Bytes(0), Bytes(0), 0));
    assert_eq!(marks(Bytes(ROOT.get() * 16 - 1)), (Bytes(0), Bytes(0), 0));
    assert_eq!(marks(ROOT * 16), (ROOT, ROOT, 8));
    assert_eq!(marks(ROOT * 48), (ROOT * 3, ROOT * 2, 24));
    assert_eq!(marks(Bytes(80 << 30)), (ROOT * 32, ROOT * 16, 256));
    assert_eq!(marks(Bytes::MAX), (ROOT * 32, ROOT * 16, 256));
}

/// The memory of a process: roots on the GPU, the one that was used longest ago first.
struct Played {
    limit: u64,
    on_gpu: VecDeque<u64>,
    credit: u64,
    is_awake: bool,
    moved: u64,
    /// Roots that were evicted by the thread that needed the room, and ahead.
    evicted: [u64; 2],
}

impl Played {
    fn new(limit: u64) -> Self {
        Self {
            limit,
            on_gpu: VecDeque::new(),
            credit: 0,
            is_awake: false,
            moved: 0,
            evicted: [0; 2],
        }
    }

    fn room(&self) -> u64 {
        self.limit - self.on_gpu.len() as u64
    }

    /// Uses a root, which comes to the GPU if it is not there.
    fn touch(&mut self, root: u64) {
        let limit = ROOT * self.limit;
        if let Some(at) = self.on_gpu.iter().position(|other| *other == root) {
            self.on_gpu.remove(at);
        } else {
            self.moved += 1;
            if self.room() == 0 {
                self.credit = self.credit.max(credit(limit).into());
                self.is_awake |= self.credit > 0;
                self.evict(0);
            }
            self.is_awake |= self.credit > 0 && ROOT * (self.room() - 1) < low(limit);
        }
        self.on_gpu.push_back(root);
    }

    fn evict(&mut self, by: usize) {
        self.on_gpu.pop_front();
        self.evicted[by] += 1;
    }

    /// Lets the evictor evict a root, if it has to.
    fn evictor(&mut self) {
        let lacks = ROOT * self.room() < full(ROOT * self.limit);
        self.is_awake &= lacks && self.credit > 0;
        if self.is_awake {
            self.credit -= 1;
            self.evict(1);
        }
    }
}

/// Memory beyond the limit that is used in turn finds room at 8 of 9 roots, and at more below
/// higher limits.
#[test]
fn memory_that_does_not_fit_finds_room() {
    for (limit, most) in [(16, 9), (64, 33), (4096, 257)] {
        let mut played = Played::new(limit);
        for use_ in 0..16 * limit {
            played.touch(use_ % (2 * limit));
            for _ in 0..2 {
                played.evictor();
            }
        }
        let [waited, ahead] = played.evicted;
        assert!(
            waited <= (waited + ahead) / most + 1,
            "{limit}: {waited} of {ahead}"
        );
        assert_eq!(played.moved, 16 * limit, "nothing moves twice");
    }
}

/// Memory that fits within the limit stays, whatever came before.
#[test]
fn memory_that_fits_comes_to_rest() {
    for limit in [16, 64, 512] {
        let mut played = Played::new(limit);
        for use_ in 0..4 * limit {
            played.touch(use_);
            played.evictor();
        }
        for use_ in 0..16 * limit {
            played.touch(use_ % limit);
            played.evictor();
        }
        let before = (played.moved, played.evicted);
        for use_ in 0..4 * limit {
            played.touch(use_ % limit);
            played.evictor();
        }
        assert_eq!((played.moved, played.evicted), before, "limit {limit}");
    }
}

proptest! {
    /// What leaves ahead is bounded by credit, and the evictor never makes more room than `full`.
    #[test]
    fn no_more_leaves_ahead_than_credit_allows(
        limit in 1u64..80,
        uses in prop::collection::vec((0u64..120, 0usize..4), 0..600),
    ) {
        let mut played = Played::new(limit);
        for (root, steps) in uses {
            played.touch(root);
            let room = played.room();
            for _ in 0..steps {
                played.evictor();
            }
            prop_assert!(ROOT * played.room() <= full(ROOT * limit).max(ROOT * room));
            let [waited, ahead] = played.evicted;
            prop_assert!(ahead <= waited * u64::from(credit(ROOT * limit)));
            prop_assert_eq!(played.evicted.iter().sum::<u64>() + played.on_gpu.len() as u64, played.moved);
        }
    }
}
