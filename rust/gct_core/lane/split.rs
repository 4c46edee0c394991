// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Splits a launch into atoms and releases them one by one.
//!
//! ```text
//! frame = slot of the join | slot of atom 0 | slot of atom 1 | .. | the segment that schedules them
//! ```
//!
//! The segment is written when the launch is split. An atom's QMD is written just before the atom
//! is released, so that it gets the mask of that moment.
//!
//! A lane with copies has frames that the GPU may only read, so that no work of the tenant's
//! changes what a slot holds:
//!
//! ```text
//! frame  = slot of atom 0 | slot of atom 1 | ..
//! copies = the segment that schedules them
//! apart  = the atoms' done words, which the GPU writes
//! ```
//!
//! There is no join. The last atom has the launch's effects, and waits for the end of the others.
//! So launches of one wave stay whole: their blocks may wait for each other. The same holds for
//! versions before 4.0, whose frames have no slot of a join.

use super::copies::Copies;
use super::in_flight::{Fence, Reach, Submission};
pub use super::scratch::ATOMS_MAX;
use super::scratch::{Frame, Scratch};
use super::words::{Storage, Words};
use crate::policy::pace::Split;
use crate::submit::gpfifo::{Entry, Segment};
use crate::submit::join::DoneWords;
use crate::submit::limits::{SLOT_BYTES, SLOT_WORDS};
use crate::submit::mask::{self, DisabledTpcs};
use crate::submit::qmd::{v04_00, Version};
use crate::submit::rewrite::{self, Cut, Order, Output, Placement};
use crate::submit::stats::{add, Counters};
use crate::submit::tracker::QmdCall;
use crate::units::{Ns, Sat, Va};
use core::num::Wrapping;

/// Words of one frame: the slots of the most atoms, and 4864 for a segment (19 KiB).
pub const FRAME_WORDS: usize = 32 * 1024;

/// Words of the slots of a join and of the most atoms.
// CAST: a small constant.
pub const SLOTS_WORDS: usize = (ATOMS_MAX as usize + 1) * SLOT_WORDS;

/// Words that a split adds to a segment without a join, at most.
// CAST: a small constant.
pub const ADDED_WORDS: usize = 6 * ATOMS_MAX as usize + 6;

/// Words of a QMD of version 4.0, or of a shorter one.
const QMD_WORDS: usize = v04_00::WORDS;

/// Room for one channel's split launch: the slots' words before they go to the GPU, and the offsets
/// at which the segment is divided.
pub struct AtomRoom<S: Storage> {
    slots: S::Slots<u32>,
    cuts: S::Slots<Cut>,
}

impl<S: Storage> AtomRoom<S> {
    /// Takes the room. `slots` has [`SLOTS_WORDS`] words and `cuts` has [`ATOMS_MAX`] slots. With
    /// less, launches go whole that would need more.
    pub fn new(slots: S::Slots<u32>, cuts: S::Slots<Cut>) -> Self {
        Self { slots, cuts }
    }

    /// Returns the words of the first `count` slots, as far as there is room.
    pub(super) fn slots(&mut self, count: usize) -> &mut [u32] {
        let words = (Wrapping(count) * Wrapping(SLOT_WORDS))
            .0
            .min(self.slots.len());
        self.slots.get_mut(..words).unwrap_or_default()
    }

    /// Returns the words of the QMD in a slot. A shorter one has further words, which nothing reads.
    fn slot(&mut self, slot: u32) -> Option<&mut [u32]> {
        // CAST: widening.
        let at = Wrapping(slot as usize) * Wrapping(SLOT_WORDS);
        self.slots.get_mut(at.0..)?.get_mut(..QMD_WORDS)
    }
}

/// A split launch with atoms that are not yet released.
#[derive(Debug)]
pub struct Atoms<V> {
    frame: Frame<V>,
    /// The segment that replaces the tenant's.
    segment: Segment,
    count: u32,
    next: u32,
    /// The first atoms, which are known to have ended.
    ended: u32,
    done: DoneWords,
    /// The TPCs that hold all of its blocks at once; 0 if no number does.
    pub resident: u32,
    /// The submission that each release is, with the fence of the launch.
    submission: Submission<V>,
    /// The predicted duration of an atom.
    pub predicted: Ns,
    /// The pace at which atoms are released.
    pub split: Split,
    version: Version,
    /// Whether the launch has a join.
    joins: bool,
}

/// The input for splitting one launch of a segment.
pub struct Splitting<'a, V> {
    /// The segment's words.
    pub words: &'a [u32],
    /// Its launches.
    pub found: &'a [QmdCall],
    /// The index of the launch in `found`.
    pub index: usize,
    /// How to split it.
    pub split: Split,
    /// Whether it is split if that was not measured.
    pub tried: bool,
    /// Where the segment is.
    pub segment: Segment,
    /// The whole launch. Its fence is the launch's own release.
    pub launch: Submission<V>,
    /// The TPCs that hold all of its blocks at once; 0 if no number does.
    pub resident: u32,
    /// The segment's last release, if it can be observed.
    pub rest: Option<Fence<V>>,
    /// A number that the done words of a frame did not hold before.
    pub number: u32,
}

/// Buffers and counters for a split.
pub struct Emission<'a> {
    /// A slot for each launch of the segment.
    pub orders: &'a mut [Order<'static>],
    /// Room for the segment that replaces the tenant's.
    pub output: &'a mut [u32],
    /// The core's counters.
    pub counters: &'a mut Counters,
}

impl<V: Copy + 'static> Splitting<'_, V> {
    /// Writes the segment with its launch split, but without the atoms' QMDs: into a frame, or into
    /// `copies` where frames are read-only. Returns `None` if the segment must be published
    /// unchanged.
    pub fn emit<S: Storage, W: Words<View = V>>(
        &self,
        room: &mut AtomRoom<S>,
        scratch: &mut Scratch<S, V>,
        copies: Option<&mut Copies<S, V>>,
        memory: &W,
        to: Emission<'_>,
    ) -> Option<Atoms<V>> {
        let orders = to.orders.get_mut(..self.found.len())?;
        orders.fill(Order::default());
        let order = orders.get_mut(self.index)?;
        (order.atoms, order.tried) = (self.split.atoms, self.tried);
        let version = self.found.get(self.index)?.version?;
        let joins = version.joins() && copies.is_none();
        let nowhere = placement(copies.is_some(), &mut []);
        let need = rewrite::room(self.words, self.found, orders, &nowhere);
        if need.slots < 2 {
            self.count_why_not(orders, nowhere, to.output, to.counters);
            return None;
        }
        let frame = scratch.frame(memory);
        let Some(frame) = frame.filter(|frame| frame.is_read_only() == copies.is_some()) else {
            add(&mut to.counters.sums.crowded, 1);
            return None;
        };
        let done = frame.done_words(self.number);
        let emitted = rewrite::emit(
            self.words,
            self.found,
            orders,
            Output {
                words: to.output,
                slot_va: frame.gpu_va,
                slots: ATOMS_MAX + u32::from(joins),
                placement: placement(copies.is_some(), &mut room.slots),
                cuts: &mut room.cuts,
                done: Some(done),
            },
            to.counters,
        );
        let placed = emitted.ok().and_then(|emitted| {
            // CAST: widening.
            let output = to.output.get(..emitted.words as usize)?;
            let segment = match copies {
                Some(copies) => copies.put(memory, &self.segment, output)?,
                None => self.place(room, &frame, memory, (emitted.slots, joins), output)?,
            };
            Some((segment, emitted.slots))
        });
        let Some((segment, slots)) = placed else {
            add(&mut to.counters.sums.crowded, 1);
            return None;
        };
        let count = slots.checked_sub(u32::from(joins))?;
        let part = u64::from(count.max(1));
        let predicted = self.launch.predicted / part;
        // Without a pace all atoms are one release.
        let submission = match self.split.in_flight {
            0 => self.launch,
            _ => Submission {
                blocks: self.launch.blocks.checked_div(part).unwrap_or(0),
                predicted,
                ..self.launch
            },
        };
        scratch
            .hold(memory, &frame, self.launch.fence, self.rest)
            .then_some(Atoms {
                segment,
                frame,
                count,
                next: 0,
                ended: 0,
                done,
                resident: self.resident,
                submission,
                predicted,
                split: self.split,
                version,
                joins,
            })
    }

    /// Writes the join, if the launch has one, and the segment behind the slots, into a frame.
    /// Returns the segment.
    fn place<S: Storage>(
        &self,
        room: &AtomRoom<S>,
        frame: &Frame<V>,
        memory: &impl Words<View = V>,
        (slots, joins): (u32, bool),
        output: &[u32],
    ) -> Option<Segment> {
        // CAST: widening.
        let words_at = (Wrapping(slots as usize) * Wrapping(SLOT_WORDS)).0;
        let join = room.slots.get(..QMD_WORDS)?;
        let written =
            (!joins || frame.write(memory, 0, join)) && frame.write(memory, words_at, output);
        written.then_some(Segment {
            va: (Va(frame.gpu_va) + u64::from(slots) * SLOT_BYTES).get(),
            // CAST: within the frame.
            words: output.len() as u32,
            ..self.segment
        })
    }

    /// Lets the core count why the launch cannot be split. The output is discarded.
    fn count_why_not(
        &self,
        orders: &[Order<'_>],
        placement: Placement<'_>,
        words: &mut [u32],
        counters: &mut Counters,
    ) {
        let output = Output {
            words,
            slot_va: 0,
            slots: 0,
            placement,
            cuts: &mut [],
            done: None,
        };
        // An error would mean that there was no room, and so that nothing was counted.
        let _ = rewrite::emit(self.words, self.found, orders, output, counters);
    }
}

impl<V: Copy + 'static> Atoms<V> {
    /// Returns whether the atoms are released one by one, instead of all at once.
    pub fn is_paced(&self) -> bool {
        self.split.in_flight > 0
    }

    /// Releases the next atom, or all remaining ones if they are not paced. Writes their QMDs with
    /// `mask`. Returns the entry to publish, its submission, and whether it is the last.
    pub fn release<S: Storage>(
        &mut self,
        room: &mut AtomRoom<S>,
        memory: &impl Words<View = V>,
        mask: Option<&DisabledTpcs>,
        counters: &mut Counters,
    ) -> (u64, Submission<V>, bool) {
        let first = self.next;
        self.next = match self.is_paced() {
            true => (Wrapping(first) + Wrapping(1)).0,
            false => self.count,
        };
        for atom in first..self.next {
            self.write(room, memory, atom, mask, counters);
        }
        let last = self.next >= self.count;
        let cut = |atom: u32| {
            // CAST: widening. The cut before atom `i` is number `i - 1`.
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
            va: (Va(self.segment.va) + 4 * u64::from(from)).get(),
            words: (Sat(to) - Sat(from)).0,
            ..self.segment
        });
        (entry.encode(), self.released(), last)
    }

    /// Returns whether the next atom may be released as far as the launch's effects are concerned:
    /// an atom that has them waits for the others.
    pub fn is_ready(&mut self, memory: &impl Words<View = V>) -> bool {
        if !self.has_effects(self.next) {
            return true;
        }
        while self.ended < self.next {
            if !self.end_of(self.ended).is_reached(memory) {
                return false;
            }
            self.ended = (Wrapping(self.ended) + Wrapping(1)).0;
        }
        true
    }

    /// Returns whether an atom has the effects of the launch: the last one, without a join.
    fn has_effects(&self, atom: u32) -> bool {
        let is_last = (Wrapping(atom) + Wrapping(1)).0 >= self.count;
        is_last && !self.joins
    }

    /// Returns the slot of an atom. A join has the first one.
    fn slot_of(&self, atom: u32) -> u32 {
        (Wrapping(atom) + Wrapping(u32::from(self.joins))).0
    }

    /// Returns the condition under which an atom without effects has ended.
    fn end_of(&self, atom: u32) -> Fence<V> {
        let (view, index) = self.frame.done_word(self.slot_of(atom));
        Fence {
            view,
            index,
            number: self.done.payload,
            reach: Reach::Equal,
        }
    }

    /// Returns the submission of the last release.
    fn released(&self) -> Submission<V> {
        let atom = (Wrapping(self.next) - Wrapping(1)).0;
        let fence = match !self.is_paced() || self.has_effects(atom) {
            true => self.submission.fence,
            false => self.end_of(atom),
        };
        Submission {
            fence,
            ..self.submission
        }
    }

    /// Writes the QMD of one atom to the frame, where the GPU reads it.
    fn write<S: Storage>(
        &self,
        room: &mut AtomRoom<S>,
        memory: &impl Words<View = V>,
        atom: u32,
        mask: Option<&DisabledTpcs>,
        counters: &mut Counters,
    ) {
        let slot = self.slot_of(atom);
        let Some(qmd) = room.slot(slot) else { return };
        if let Some(mask) = mask {
            match mask::apply(qmd, self.version, mask) {
                Ok(_) if atom == 0 => add(&mut counters.sums.rewritten, 1),
                Ok(_) => {}
                Err(reason) => counters.keep(reason),
            }
        }
        // Make the word differ from the payload that the atom will write.
        let (view, index) = self.frame.done_word(slot);
        memory.store(&view, index, !self.done.payload);
        // CAST: widening.
        let at = Wrapping(slot as usize) * Wrapping(SLOT_WORDS);
        self.frame.write(memory, at.0, qmd);
    }
}

/// Returns the placement of slots that are written through a view.
fn placement(is_read_only: bool, view: &mut [u32]) -> Placement<'_> {
    match is_read_only {
        true => Placement::ReadOnly(view),
        false => Placement::Written(view),
    }
}

// The slots leave room for a segment.
const _: () = assert!(SLOTS_WORDS < FRAME_WORDS);
const _: () = assert!(QMD_WORDS < SLOT_WORDS);
