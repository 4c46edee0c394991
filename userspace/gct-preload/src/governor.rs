// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Asks the core what the GPU should get instead of what the tenant wrote.

use crate::channel::{Find, Gate, Stream};
use crate::limits::Limits;
use crate::stats::STATS;
use core::fmt::Write;
use core::sync::atomic::{AtomicU32, Ordering};
use gct_core::submit::gpfifo::Entry;
use gct_core::submit::rewrite::{self, Order};
use gct_core::submit::stats::{Counters, Reason};
use gct_core::submit::tracker::Found;

/// Launches of one segment that are looked at; the core counts those beyond.
const LAUNCHES_MAX: usize = 64;
/// The longest segment that is looked at. CUDA's have hundreds of words, an upload of a
/// graph's nodes some ten thousand.
const WORDS_MAX: usize = 1 << 16;

/// This process's limits, and room to work on its segments without allocating.
#[derive(Debug)]
pub(crate) struct Governor {
    limits: Limits,
    words: Vec<u32>,
    found: Vec<Found>,
    counters: Counters,
}

impl Governor {
    /// Without limits and without room; nothing is looked at before [`prepare`](Self::prepare).
    pub(crate) const fn new() -> Self {
        Self {
            limits: Limits::NONE,
            words: Vec::new(),
            found: Vec::new(),
            counters: Counters::new(),
        }
    }

    /// Reads the limits and allocates, once; never called in a signal handler.
    pub(crate) fn prepare(&mut self) {
        if self.words.is_empty() {
            self.limits = Limits::from_environment();
            self.words = vec![0; WORDS_MAX];
            self.found = vec![Found::default(); LAUNCHES_MAX];
        }
    }

    /// The core's counters as `KEY VALUE` lines: what was done, and what was passed and why.
    pub(crate) fn text(&self) -> String {
        let c = &self.counters;
        let mut text = format!(
            "launches {}\nrewritten {}\npassed {}\n",
            c.launches,
            c.masked,
            c.kept_total()
        );
        for &reason in Reason::ALL {
            if c.kept(reason) > 0 {
                // Writing to a `String` cannot fail.
                let _ = writeln!(text, "passed.{} {}", reason.name(), c.kept(reason));
            }
        }
        text
    }
}

impl Gate for Governor {
    fn open(&self) -> bool {
        true
    }

    fn pass(&mut self, stream: &mut Stream, entry: u64, find: &Find<'_>) {
        let Entry::Segment(segment) = stream.fetch.decode(entry) else {
            return;
        };
        // CAST: a segment has fewer than 2^21 words.
        let count = segment.words as usize;
        let Some(words) = self.words.get_mut(..count) else {
            self.counters.keep(Reason::SegmentTooLong);
            return;
        };
        let Some(at) = find(segment.va, count * 4) else {
            STATS.unreadable.fetch_add(1, Ordering::Relaxed);
            return;
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
        let Some(mask) = &self.limits.mask else {
            return;
        };
        let order = Order {
            mask: Some(mask),
            atoms: 0,
        };
        for found in self.found.iter().take(scan.found) {
            let Some(before) = found.qmd(words).map(<[u32]>::len) else {
                continue;
            };
            rewrite::in_place(
                words,
                core::slice::from_ref(found),
                &[order],
                &mut self.counters,
            );
            // CAST: an index of the segment.
            let from = found.at as usize;
            let edited = words.iter().zip(shared).skip(from).take(before);
            for (word, target) in edited {
                if target.load(Ordering::Relaxed) != *word {
                    target.store(*word, Ordering::Relaxed);
                }
            }
        }
    }
}
