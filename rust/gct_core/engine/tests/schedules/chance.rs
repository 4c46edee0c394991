// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Provides a schedule's choices: random ones from a seed, or all of them in turn.

use crate::table::mix;
use std::vec::Vec;

/// The choices of one schedule.
pub(super) enum Chance {
    /// Random choices, the same for the same seed.
    Seed(u64),
    /// Given choices, then the first each time. Each is recorded with the number of alternatives.
    Path(Vec<(usize, usize)>, usize),
}

impl Chance {
    pub(super) fn below(&mut self, count: usize) -> usize {
        match self {
            _ if count <= 1 => 0,
            Self::Seed(seed) => {
                *seed = mix(*seed, 1);
                usize::try_from(*seed >> 33).unwrap() % count
            }
            Self::Path(path, at) => {
                if *at == path.len() {
                    path.push((0, count));
                }
                let (choice, known) = path[*at];
                assert_eq!(known, count, "a schedule repeats itself");
                *at += 1;
                choice
            }
        }
    }

    /// Returns true at random, and never on a path, where it would add too many branches.
    pub(super) fn one_in(&mut self, count: usize) -> bool {
        matches!(self, Self::Seed(_)) && self.below(count) == 0
    }

    /// Returns the next path, or `None` after the last.
    pub(super) fn next_path(self) -> Option<Self> {
        let Self::Path(mut path, _) = self else {
            return None;
        };
        while let Some((choice, count)) = path.pop() {
            if choice + 1 < count {
                path.push((choice + 1, count));
                return Some(Self::Path(path, 0));
            }
        }
        None
    }
}
