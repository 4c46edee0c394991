// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Splits a launch into atoms and releases them one by one.

use crate::channel::SubmitCtx;
use crate::in_flight::{Fence, Submission};
use crate::scratch::Frame;
use crate::stats::STATS;
use core::sync::atomic::Ordering;
use gct_core::policy::pace::Split;
use gct_core::submit::gpfifo::{Entry, Segment};
use gct_core::submit::join::DoneWords;
use gct_core::submit::limits::{SLOT_BYTES, SLOT_WORDS};
use gct_core::submit::mask::{self, DisabledTpcs};
use gct_core::submit::qmd::Version;
use gct_core::submit::rewrite::{self, Cut, Order, Output, Placement};
use gct_core::submit::stats::Counters;
use gct_core::submit::tracker::QmdCall;
use gct_core::units::Ns;

/// The most atoms of one launch. They and their join must fit into a frame of scratch.
pub(crate) const ATOMS_MAX: u32 = 216;

/// Bytes of one frame of scratch: the slots of the most atoms, and 19 KiB for a segment.
pub(crate) const FRAME_BYTES: usize = 128 * 1024;

/// Words of a QMD of the only version that is split.
const QMD_WORDS: usize = 96;

/// Room for one channel's split launch: the slots' words before they go to the GPU, and the offsets
/// at which the segment is divided. It is allocated once, because a signal handler fills it.
#[derive(Debug)]
pub(crate) struct AtomRoom {
    slots: Vec<u32>,
    cuts: Vec<Cut>,
}

impl AtomRoom {
    pub(crate) fn new() -> Self {
        // CAST: small constants.
        let atoms = ATOMS_MAX as usize;
        Self {
            slots: vec![0; (atoms + 1) * SLOT_WORDS],
            cuts: vec![Cut::NONE; atoms],
        }
    }

    /// Returns the words of atom `index`'s QMD, followed by its done word.
    fn atom(&mut self, index: u32) -> Option<&mut [u32]> {
        // CAST: an index below `ATOMS_MAX`; slot 0 is the join's.
        let at = (index as usize + 1) * SLOT_WORDS;
        self.slots.get_mut(at..at + QMD_WORDS + 1)
    }
}

/// A split launch with atoms that are not yet released.
#[derive(Debug)]
pub(crate) struct Atoms {
    frame: Frame,
    /// The segment that replaces the tenant's.
    segment: Segment,
    count: u32,
    next: u32,
    done: DoneWords,
    launch: Submission,
    /// The submission that each atom is.
    pub(crate) submission: Submission,
    /// The pace at which atoms are released.
    pub(crate) split: Split,
}

/// The input for splitting one launch of a segment.
pub(crate) struct Splitting<'a> {
    pub(crate) words: &'a [u32],
    pub(crate) found: &'a [QmdCall],
    /// The index of the launch in `found`.
    pub(crate) index: usize,
    pub(crate) split: Split,
    pub(crate) segment: Segment,
    /// The whole launch. Its fence is the launch's own release.
    pub(crate) launch: Submission,
    /// The segment's last release, if it can be observed.
    pub(crate) rest: Option<Fence>,
    /// A number that the done words of a frame did not hold before.
    pub(crate) number: u32,
}

impl Splitting<'_> {
    /// Writes the segment with its launch split, but without the atoms' QMDs, into a frame of
    /// scratch. Returns `None` if the segment must be published unchanged.
    pub(crate) fn emit(
        &self,
        room: &mut AtomRoom,
        orders: &mut [Order<'static>],
        output: &mut [u32],
        ctx: &mut SubmitCtx<'_>,
        counters: &mut Counters,
    ) -> Option<Atoms> {
        let scratch = ctx.scratch.as_deref_mut()?;
        let orders = orders.get_mut(..self.found.len())?;
        orders.fill(Order::default());
        orders.get_mut(self.index)?.atoms = self.split.atoms;
        let need = rewrite::room(self.words, self.found, orders, &Placement::Written(&mut []));
        if need.slots < 2 {
            self.count_why_not(orders, output, counters);
            return None;
        }
        let Some(frame) = scratch.frame() else {
            STATS.crowded.fetch_add(1, Ordering::Relaxed);
            return None;
        };
        let done = DoneWords::in_slots(frame.gpu_va, self.number);
        let emitted = rewrite::emit(
            self.words,
            self.found,
            orders,
            Output {
                words: output,
                slot_va: frame.gpu_va,
                slots: ATOMS_MAX + 1,
                placement: Placement::Written(&mut room.slots),
                cuts: &mut room.cuts,
                done: Some(done),
            },
            counters,
        )
        .ok()?;
        let words_at = usize::try_from(u64::from(emitted.slots) * SLOT_BYTES).ok()?;
        let join = room.slots.get(..QMD_WORDS)?;
        // CAST: an index of the output.
        let output = output.get(..emitted.words as usize)?;
        let written = frame.write(0, join) && frame.write(words_at, output);
        // SAFETY: the tenant's words; the session calls `forget` before they are unmapped.
        let held = written && unsafe { scratch.hold(&frame, self.launch.fence, self.rest) };
        let count = emitted.slots.checked_sub(1)?;
        let part = u64::from(count.max(1));
        held.then(|| Atoms {
            // CAST: widening.
            segment: Segment {
                va: frame.gpu_va + words_at as u64,
                words: emitted.words,
                ..self.segment
            },
            frame,
            count,
            next: 0,
            done,
            launch: self.launch,
            submission: Submission {
                blocks: self.launch.blocks / part,
                predicted: Ns(self.launch.predicted.get() / part),
                ..self.launch
            },
            split: self.split,
        })
    }

    /// Lets the core count why the launch cannot be split. The output is discarded.
    fn count_why_not(&self, orders: &[Order<'_>], words: &mut [u32], counters: &mut Counters) {
        let output = Output {
            words,
            slot_va: 0,
            slots: 0,
            placement: Placement::Upload,
            cuts: &mut [],
            done: None,
        };
        // An error would mean that there was no room, and so that nothing was counted.
        let _ = rewrite::emit(self.words, self.found, orders, output, counters);
    }
}

impl Atoms {
    /// Returns whether the atoms are released one by one, instead of all at once.
    pub(crate) fn is_paced(&self) -> bool {
        self.split.in_flight > 0
    }

    /// Releases the next atom, or all remaining ones if they are not paced. Writes their QMDs with
    /// `mask`. Returns the entry to publish, its submission, and whether it is the last.
    pub(crate) fn release(
        &mut self,
        room: &mut AtomRoom,
        mask: Option<&DisabledTpcs>,
        counters: &mut Counters,
    ) -> (u64, Submission, bool) {
        let first = self.next;
        self.next = if self.is_paced() {
            first + 1
        } else {
            self.count
        };
        for atom in first..self.next {
            self.write(room, atom, mask, counters);
        }
        let last = self.next >= self.count;
        let cut = |atom: u32| {
            // CAST: an index of the cuts: the one before atom `i` is number `i - 1`.
            let cut = room.cuts.get((atom as usize).wrapping_sub(1));
            cut.map_or(0, |cut| cut.at)
        };
        let from = cut(first);
        let to = if last {
            self.segment.words
        } else {
            cut(self.next)
        };
        let entry = Entry::Segment(Segment {
            va: self.segment.va + 4 * u64::from(from),
            words: to.saturating_sub(from),
            ..self.segment
        });
        (entry.encode(), self.released(), last)
    }

    /// Returns the submission of the last release.
    fn released(&self) -> Submission {
        if !self.is_paced() {
            return self.launch;
        }
        // CAST: within the frame.
        let offset = (self.done.va_of(self.next) - self.frame.gpu_va) as usize;
        Submission {
            fence: Fence::Equal {
                at: self.frame.real + offset,
                number: self.done.payload,
            },
            ..self.submission
        }
    }

    /// Writes the QMD of one atom to the frame, where the GPU reads it.
    fn write(
        &self,
        room: &mut AtomRoom,
        atom: u32,
        mask: Option<&DisabledTpcs>,
        counters: &mut Counters,
    ) {
        let Some(qmd) = room.atom(atom) else { return };
        if let Some(done) = qmd.last_mut() {
            // Make the word differ from the payload that the atom will write.
            *done = !self.done.payload;
        }
        if let Some(mask) = mask {
            match mask::apply(qmd, Version::V04_00, mask) {
                Ok(_) if atom == 0 => counters.masked += 1,
                Ok(_) => {}
                Err(reason) => counters.keep(reason),
            }
        }
        // CAST: small numbers.
        self.frame
            .write((atom as usize + 1) * SLOT_BYTES as usize, qmd);
    }
}
