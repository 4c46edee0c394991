// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Asks the core what the GPU should get instead of what the tenant wrote.

use crate::channel::{Around, Gate, Stream};
use crate::limits::Limits;
use crate::stats::STATS;
use core::fmt::Write;
use core::sync::atomic::{AtomicU32, Ordering};
use gct_core::submit::gpfifo::{Entry, Segment};
use gct_core::submit::launch::Release;
use gct_core::submit::limits::SLOT_BYTES;
use gct_core::submit::rewrite::{self, Order, Output, Placement};
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
    output: Vec<u32>,
    counters: Counters,
}

impl Governor {
    /// Without limits and without room; nothing is looked at before [`prepare`](Self::prepare).
    pub(crate) const fn new() -> Self {
        Self {
            limits: Limits::NONE,
            words: Vec::new(),
            found: Vec::new(),
            output: Vec::new(),
            counters: Counters::new(),
        }
    }

    /// Reads the limits and allocates, once; never called in a signal handler.
    pub(crate) fn prepare(&mut self) {
        if self.words.is_empty() {
            self.limits = Limits::from_environment();
            self.words = vec![0; WORDS_MAX];
            self.found = vec![Found::default(); LAUNCHES_MAX];
            self.output = vec![0; WORDS_MAX];
        }
    }

    /// The core's counters as `KEY VALUE` lines: what was done, and what was passed and why.
    pub(crate) fn text(&self) -> String {
        let c = &self.counters;
        let mut text = format!(
            "launches {}\nrewritten {}\nsplit {}\natoms {}\npassed {}\n",
            c.launches,
            c.masked,
            c.split,
            c.atoms,
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

    fn pass(&mut self, stream: &mut Stream, entry: u64, around: &mut Around<'_>) -> u64 {
        let Entry::Segment(segment) = stream.fetch.decode(entry) else {
            return entry;
        };
        // CAST: a segment has fewer than 2^21 words.
        let count = segment.words as usize;
        let Some(words) = self.words.get_mut(..count) else {
            self.counters.keep(Reason::SegmentTooLong);
            return entry;
        };
        let Some(at) = (around.find)(segment.va, count * 4) else {
            STATS.unreadable.fetch_add(1, Ordering::Relaxed);
            return entry;
        };
        // The tenant's other threads may write here, whatever that does to them: it is read
        // once, through atomics, and what the core decides on is the copy.
        // SAFETY: `find` vouches for `count` words of mapped memory, aligned as every
        // segment is, for as long as the session is locked.
        let shared = unsafe { core::slice::from_raw_parts(at as *const AtomicU32, count) };
        for (copy, word) in words.iter_mut().zip(shared) {
            *copy = word.load(Ordering::Relaxed);
        }
        let Self {
            limits,
            found,
            output,
            counters,
            ..
        } = self;
        let scan = stream.tracker.scan(words, found, counters);
        let found = found.get(..scan.found).unwrap_or(&[]);
        if !limits.any() || found.is_empty() {
            return entry;
        }
        let order = Order {
            mask: limits.mask.as_ref(),
            atoms: limits.atoms,
        };
        if order.atoms > 1 {
            if let Some(replacement) = split(
                words, found, &order, output, segment, stream, around, counters,
            ) {
                return replacement;
            }
        }
        for found in found {
            mask_in_place(words, shared, found, &order, counters);
        }
        entry
    }
}

/// Carries out the order's mask on one launch, in the copy and in the tenant's words.
fn mask_in_place(
    words: &mut [u32],
    shared: &[AtomicU32],
    found: &Found,
    order: &Order<'_>,
    counters: &mut Counters,
) {
    let Some(count) = found.qmd(words).map(<[u32]>::len) else {
        return;
    };
    rewrite::in_place(words, core::slice::from_ref(found), &[*order], counters);
    // CAST: an index of the segment.
    let from = found.at as usize;
    for (word, target) in words.iter().zip(shared).skip(from).take(count) {
        if target.load(Ordering::Relaxed) != *word {
            target.store(*word, Ordering::Relaxed);
        }
    }
}

/// Writes the segment with its launch split into a frame of scratch; the entry that
/// publishes it instead, or `None` when the segment must go as it is.
#[allow(
    clippy::too_many_arguments,
    reason = "disjoint parts of one borrowed state"
)]
fn split(
    words: &[u32],
    found: &[Found],
    order: &Order<'_>,
    output: &mut [u32],
    segment: Segment,
    stream: &Stream,
    around: &mut Around<'_>,
    counters: &mut Counters,
) -> Option<u64> {
    let scratch = around.scratch.as_deref_mut()?;
    if stream.fetch.base() != 0 {
        return None;
    }
    let orders = [*order; LAUNCHES_MAX];
    let room = rewrite::room(words, found, &orders, &Placement::Upload);
    if room.slots == 0 {
        return None;
    }
    let release = last_release(words, found)?;
    let release_at = (around.find)(release.va, 4).filter(|at| at % 4 == 0)?;
    let frame = scratch.frame()?;
    let slot_bytes = usize::try_from(room.slots.checked_mul(SLOT_BYTES)?).ok()?;
    let emitted = rewrite::emit(
        words,
        found,
        &orders,
        Output {
            words: output,
            slot_va: frame.gpu_va,
            slots: u32::try_from(room.slots).ok()?,
            placement: Placement::Upload,
            cuts: &mut [],
            done: None,
        },
        counters,
    )
    .ok()?;
    // CAST: an index of the output.
    let written = frame.write(slot_bytes, output.get(..emitted.words as usize)?);
    // SAFETY: the tenant's word, in memory that it maps as long as its channels use it.
    let held = written
        // CAST: a release of one word carries 32 bits.
        && unsafe { scratch.hold(&frame, release_at, release.payload as u32) };
    held.then(|| {
        let replacement = Segment {
            // CAST: widening.
            va: frame.gpu_va + slot_bytes as u64,
            words: emitted.words,
            ..segment
        };
        Entry::Segment(replacement).encode()
    })
}

/// The release that tells when the segment's last launch has ended: one plain word.
fn last_release(words: &[u32], found: &[Found]) -> Option<Release> {
    let last = found.iter().rev().find_map(|f| {
        let launch = f.launch(words)?;
        launch.blocks().gt(&0).then_some(launch)
    })?;
    last.effects
        .releases
        .iter()
        .flatten()
        .find(|r| r.words == 1 && r.reduction.is_none())
        .copied()
}
