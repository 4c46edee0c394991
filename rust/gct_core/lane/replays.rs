// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Releases the launches of a segment one by one, from slots that the GPU may only read, where a
//! CUDA graph may not start its nodes itself.
//!
//! ```text
//! entries = the tenant's words up to the end of a call | launch 0 of it | launch 1 | ..
//!           | its words up to the end of the next call | .. | the words behind the last call
//! slot    = QMD of a launch | the words that schedule it
//! ```
//!
//! The tenant's words are a copy in which the calls do nothing. A launch takes a slot as any other
//! that stays whole, and gets the mask of the moment at which it is released.

use super::governor::{Governor, Peers};
use super::in_flight::Submission;
use super::segment::words_of;
use super::whole::WholeSlots;
use super::words::{Storage, Words};
use super::work::{Next, Round, Stream};
use crate::policy::pace;
use crate::policy::share::Share;
use crate::submit::gpfifo::{Entry, Segment};
use crate::submit::graph::{Memory, Step};
use crate::submit::limits::{SLOT_WORDS, STEPS};
use crate::submit::mask;
use crate::submit::qmd::Version;
use crate::submit::rewrite::{detached, whole};
use crate::submit::stats::Reason;
use crate::submit::tracker::{QmdCall, Source};
use crate::units::{Ns, Sat, Va};
use core::num::Wrapping;

/// The most launches of one segment that are listed.
pub const STEPS_MAX: usize = STEPS;

/// How many words of a segment are read in the time in which a node is visited (inferred).
const VISIT_WORDS: u32 = 16;

/// A segment whose launches are listed.
#[derive(Debug)]
pub struct Replays<V> {
    /// The copy, without its calls.
    segment: Segment,
    /// The number of steps in the stream, and of those that were released.
    steps: usize,
    next: usize,
    /// The words before were released.
    at: u32,
    /// All of it, if its end can be observed.
    pub(super) submission: Option<Submission<V>>,
    /// The TPCs that hold all blocks of each node at once; 0 if no number does.
    pub(super) resident: u32,
}

/// What the next entry executes.
enum Part {
    /// Words of the tenant, up to a position.
    Words(u32),
    /// A step.
    Step(Step),
}

impl<V: Copy> Replays<V> {
    fn part<S: Storage>(&self, stream: &Stream<S, V>) -> Part {
        let steps = stream.steps.as_deref().unwrap_or_default();
        let steps = steps.get(..self.steps).unwrap_or_default();
        let Some(step) = steps.get(self.next) else {
            return Part::Words(self.segment.words);
        };
        let call = stream.found.get(usize::from(step.call));
        match call.map_or(self.segment.words, |call| call.call_end) {
            end if end > self.at => Part::Words(end),
            _ => Part::Step(*step),
        }
    }

    /// Returns for how long the next entry may hold its TPCs, if it has launches.
    pub(super) fn holds(&self) -> Option<Ns> {
        (self.steps > 0).then_some(pace::unknown_is_long(Ns(0)))
    }

    /// Returns whether further entries follow the next one.
    pub(super) fn is_listed(&self) -> bool {
        self.steps > self.next
    }

    /// Returns whether the next entry finds a slot if it needs one.
    pub(super) fn is_ready<S: Storage>(
        &self,
        stream: &Stream<S, V>,
        slots: Option<&mut WholeSlots<V>>,
        memory: &impl Words<View = V>,
    ) -> bool
    where
        V: 'static,
    {
        match self.part(stream) {
            Part::Words(_) => true,
            Part::Step(_) => slots.is_some_and(|slots| slots.has_slot(memory)),
        }
    }
}

impl<S: Storage, P: Peers> Governor<S, P> {
    /// Lists the launches of a copied segment that uses CUDA graphs, and takes its calls out.
    /// Returns `None` if it uses none. Without a strict limit only graphs count whose nodes the
    /// scheduler does not have.
    ///
    /// # Errors
    ///
    /// The [`Reason`] why its launches cannot be listed. The segment is to be refused then: part of it
    /// may be changed.
    pub(super) fn list<W: Words>(
        &mut self,
        stream: &mut Stream<S, W::View>,
        segment: &Segment,
        found: usize,
        round: &mut Round<'_, S, W>,
    ) -> Result<Option<Next<W::View>>, Reason> {
        let strict = self.limits().strict;
        let is_shared = self.limits().share != Share::NONE;
        let words = words_of(round.work, segment);
        let calls = stream.found.get(..found).unwrap_or_default();
        let qmds = self.descriptors.as_deref_mut().unwrap_or_default();
        let mut graphs = Memory::new(&mut self.nodes, &mut self.replays).keeping(qmds);
        let uses = match strict {
            true => graphs.concerns(words, calls),
            false => graphs.runs_silenced(calls),
        };
        if strict && self.knows_nodes || self.silences {
            graphs.forget_overwritten(words, calls);
        }
        if !uses {
            return Ok(None);
        }
        self.knows_nodes = true;
        // Nodes are known by address: those of another address space are others.
        if *self.space.get_or_insert(stream.space) != stream.space {
            return Err(Reason::Ambiguous);
        }
        graphs.keep_launches(words, calls, &mut self.counters);
        // A QMD that a later upload of the segment replaces is not on the list.
        graphs.forget_overwritten(words, calls);
        let steps = stream.steps.as_deref_mut().unwrap_or_default();
        let (steps, visits) = graphs.unroll(calls, steps)?;
        // The last launch alone tells that time is used. All of a list that fits is released at once.
        let slots = round.slots.as_deref().map_or(0, WholeSlots::count);
        // CAST: widening.
        if is_shared && steps > slots as usize {
            return Err(Reason::TableFull);
        }
        // CAST: a few thousand.
        round.words = round
            .words
            .saturating_sub(VISIT_WORDS.saturating_mul(visits as u32));
        let replays = calls.iter().filter(|call| call.source == Source::Elsewhere);
        replays.for_each(|_| self.counters.replay(true));
        self.silences = true;
        graphs.silence(calls);
        let resident = match self.acts_on_masks() {
            true => self.resident(calls, words),
            false => 0,
        };
        self.nodes_resident = self.nodes_resident.max(resident);
        let submission = self.watch(stream, segment, found, round);
        let calls = stream.found.get_mut(..found).unwrap_or_default();
        detached::take_out(words_of(round.work, segment), calls)?;
        Ok(Some(Next::Replays(Replays {
            segment: *segment,
            steps,
            next: 0,
            at: 0,
            submission: submission.map(|it| it.0),
            resident: self.nodes_resident,
        })))
    }

    /// Releases the next entry of a segment whose launches are listed. Returns it, its submission,
    /// and whether it is the last.
    pub(super) fn release_listed<W: Words>(
        &mut self,
        stream: &Stream<S, W::View>,
        replays: &mut Replays<W::View>,
        round: &mut Round<'_, S, W>,
    ) -> (u64, Option<Submission<W::View>>, bool) {
        let segment = match replays.part(stream) {
            Part::Words(to) => {
                let from = core::mem::replace(&mut replays.at, to);
                Segment {
                    va: (Va(replays.segment.va) + 4 * u64::from(from)).get(),
                    words: (Sat(to) - Sat(from)).0,
                    ..replays.segment
                }
            }
            Part::Step(step) => {
                replays.next = (Wrapping(replays.next) + Wrapping(1)).0;
                // CAST: a small constant.
                round.words = round.words.saturating_sub(SLOT_WORDS as u32);
                let call = stream.found.get(usize::from(step.call));
                let words = call.and_then(|call| self.launch(&step, call, round));
                let Some((va, words)) = words else {
                    self.refuse();
                    return (0, None, true);
                };
                Segment {
                    va,
                    words,
                    ..replays.segment
                }
            }
        };
        let last = !replays.is_listed() && replays.at >= replays.segment.words;
        let submission = replays.submission.filter(|_| last && self.tracks_ends());
        let tpcs = self.tpcs();
        let submission = submission.map(|submission| Submission { tpcs, ..submission });
        (Entry::Segment(segment).encode(), submission, last)
    }

    /// Writes a launch to the next slot. Returns address and number of the words that schedule it,
    /// or `None` if it cannot be bound.
    fn launch<W: Words>(
        &mut self,
        step: &Step,
        call: &QmdCall,
        round: &mut Round<'_, S, W>,
    ) -> Option<(u64, u32)> {
        let qmds = self.descriptors.as_deref_mut().unwrap_or_default();
        let graphs = Memory::new(&mut self.nodes, &mut self.replays).keeping(qmds);
        let mut qmd = match graphs.step(step) {
            Ok(qmd) => qmd,
            Err(reason) => {
                self.counters.keep(reason);
                return None;
            }
        };
        if let Some(mask) = &self.mask {
            let masked = mask::apply(&mut qmd, Version::V04_00, mask);
            let is_bound = masked.is_ok() || !self.narrows();
            self.counters.mask(masked);
            is_bound.then_some(())?;
        }
        let mut words = [0; SLOT_WORDS];
        let slots = round.slots.as_deref_mut()?;
        if !slots.keep_to(call.subchannel) {
            self.counters.keep(Reason::Registers);
            return None;
        }
        let slot = slots.slot(0);
        let (at, count) = whole::fill(&qmd, &slot, call, step.waits, &mut words);
        let taken = slots.take(round.memory, &words, 1, SLOT_WORDS);
        taken.then(|| ((Va(slot.va) + 4 * u64::from(at)).get(), count))
    }
}
