// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Does the work that is left for the release of a segment: masks its launches and the graphs that
//! it replays.

use super::governor::{Governor, Peers};
use super::split::AtomRoom;
use super::whole::LAUNCHES_MAX;
use super::words::{Storage, Words};
use super::work::{visited, Place, Round, Seal, Stream, Workspace};
use crate::submit::gpfifo::{Entry, Segment};
use crate::submit::graph;
use crate::submit::launch::Kind;
use crate::submit::mask::{self, DisabledTpcs};
use crate::submit::occupancy;
use crate::submit::qmd::v04_00;
use crate::submit::reason::Reason;
use crate::submit::rewrite::whole;
use crate::submit::stats::add;
use crate::submit::tracker::{QmdCall, Source};
use core::num::Wrapping;

/// The use of CUDA graphs by a segment.
pub(super) struct Graphs {
    /// It stores nodes.
    pub(super) stored: bool,
    /// It replays a graph, or launches a QMD that is not known.
    pub(super) replayed: bool,
}

impl<S: Storage, P: Peers> Governor<S, P> {
    /// Applies the work left for the release of a segment. Returns the entry to publish in place of
    /// the tenant's, if there is one.
    pub(super) fn seal<W: Words>(
        &mut self,
        seal: &Seal<W::View>,
        stream: &mut Stream<S, W::View>,
        round: &mut Round<'_, S, W>,
    ) -> Option<u64> {
        let unchecked = seal.strict.is_some() && !seal.checked;
        if self.mask.is_none() && !(seal.stores || seal.replays || unchecked) {
            if let Place::Copy { written: false } = seal.at {
                self.write_copy(&seal.segment, round);
            }
            return None;
        }
        let at = match (seal.read, seal.round) == (round.work.reads, round.work.rounds) {
            true => seal.at,
            // The segment has waited, so its words are read again.
            false => match (self.read(&seal.segment, round)?, seal.at) {
                (at, Place::Tenant(_)) => Place::Tenant(at),
                (_, copy) => copy,
            },
        };
        self.marked |= (self.mask.is_some() || self.sizes()) && (seal.stores || seal.replays);
        let found = stream.found.get(..seal.found).unwrap_or_default();
        let words = round.work.of(&seal.segment);
        let are_masked = self.mask_all(words, found, seal.resident);
        let patched = match seal.replays {
            true => self.patch(seal, found, stream, round),
            false => None,
        };
        if seal.stores {
            self.note_masks(round.work.of(&seal.segment), found);
        }
        let placed = self.place(seal, found, patched.is_some(), &mut stream.room, round);
        if let Some(launches) = seal.strict {
            let placed = placed.map_or(0, |(_, count)| count);
            let words = round.work.of(&seal.segment);
            let unbound = match self.narrows() {
                // The reasons were counted.
                true => !(are_masked && placed == launches),
                false if seal.checked => false,
                false => match whole::check(words, found) {
                    Ok(()) => false,
                    Err(reason) => {
                        self.counters.keep(reason);
                        true
                    }
                },
            };
            if unbound {
                self.refuse();
            }
        }
        if let Some((entry, _)) = placed {
            return Some(entry);
        }
        match at {
            // A launch without a grid was not masked.
            Place::Tenant(at) => store(round, &at, &seal.segment, found, |kind| {
                kind != Some(Kind::Null)
            }),
            Place::Copy { .. } if patched.is_some() => {}
            Place::Copy { .. } => self.write_copy(&seal.segment, round),
        }
        patched
    }

    /// Has the masked launches of a segment run from slots, by words that replace those of its copy.
    /// Returns its entry and the number of these launches, or `None` if the segment stays as it is,
    /// as one that `is_replaced` does. The words of its copy are to be written then.
    fn place<W: Words>(
        &mut self,
        seal: &Seal<W::View>,
        found: &[QmdCall],
        is_replaced: bool,
        room: &mut AtomRoom<S>,
        round: &mut Round<'_, S, W>,
    ) -> Option<(u64, u32)> {
        let acts = |mask: &&DisabledTpcs| mask.disabled() > 0 || mask.precedence().is_some();
        let mask = self.mask.as_ref().filter(acts)?;
        let (slots, copies) = (round.slots.as_deref_mut()?, round.copies.as_deref_mut()?);
        // CAST: checked when the segment was read.
        let words = round.work.words.get(..seal.segment.words as usize)?;
        // If one has no mask of those that must, nothing of the segment is published.
        let is_masked = |call: &QmdCall| {
            let qmd = call.qmd(words).zip(call.version);
            let is_applied = |(qmd, version)| mask::is_applied(qmd, version, mask);
            seal.strict.is_some() || qmd.is_some_and(is_applied)
        };
        if is_replaced {
            let masked = found
                .iter()
                .filter(|call| call.is_launch() && is_masked(call));
            masked.for_each(|_| self.counters.keep(Reason::Replay));
            return None;
        }
        // CAST: widening.
        let most = LAUNCHES_MAX.min(slots.room()) as usize;
        let qmds = room.slots(most);
        // CAST: widening.
        let added = found.len().min(LAUNCHES_MAX as usize);
        let most = Wrapping(added) * Wrapping(whole::ADDED_WORDS) + Wrapping(words.len());
        let (mut copies, mut to) = (Some(copies), None);
        let push = |words: &[u32]| {
            if let Some(copies) = copies.take() {
                to = copies.replace(round.memory, most.0);
            }
            to.as_mut()?.push(words)
        };
        let at = |ahead| slots.slot(ahead);
        let counters = &mut self.counters;
        let placed = whole::place(words, found, is_masked, at, qmds, push, counters);
        match (placed, to) {
            (Some(count), Some(to))
                if slots.take::<{ v04_00::WORDS }, _>(round.memory, qmds, count) =>
            {
                let copy = to.finish(&seal.segment);
                Some((Entry::Segment(copy).encode(), count))
            }
            (placed, to) => {
                add(&mut counters.sums.crowded, u64::from(placed != Some(0)));
                if let Some(to) = to {
                    to.cancel();
                }
                None
            }
        }
    }

    /// Writes the copy of a segment that waits for its release, before the workspace has others.
    pub(super) fn settle<W: Words>(
        &mut self,
        seal: &mut Seal<W::View>,
        round: &mut Round<'_, S, W>,
    ) {
        if let Place::Copy { written } = &mut seal.at {
            if !core::mem::replace(written, true) {
                self.write_copy(&seal.segment, round);
            }
        }
    }

    /// Returns whether a replay's nodes hold masks other than the present one, so that it will
    /// write them.
    #[cold]
    #[inline(never)]
    pub(super) fn changes<V>(&mut self, seal: &Seal<V>, stream: &Stream<S, V>) -> bool {
        let found = stream.found.get(..seal.found).unwrap_or_default();
        let masks = self.sizing.masks(self.mask.as_ref(), &self.granted);
        let mut graphs = self.nodes.memory();
        graphs.hold_others(found, masks)
    }

    /// Remembers the graph nodes that a segment stores. `arms` says that they will be armed.
    pub(super) fn learn_graphs(&mut self, words: &[u32], found: &[QmdCall], arms: bool) -> Graphs {
        let (mut replayed, mut stores, mut keeps) = (false, false, false);
        let mut nulls = 0;
        for call in found {
            let is_null = call.is_null();
            add(&mut nulls, u64::from(is_null));
            match call.source {
                Source::Upload => stores |= graph::may_store(call, is_null, words),
                Source::Stored => keeps = true,
                Source::Elsewhere => replayed = true,
                Source::Touch | Source::Inline => {}
            }
        }
        add(&mut self.counters.nulls, nulls);
        if !(stores || keeps) {
            return Graphs {
                stored: false,
                replayed,
            };
        }
        let stored = self.learn_nodes(words, found, arms);
        self.knows_nodes |= stored || keeps;
        Graphs { stored, replayed }
    }

    /// Returns whether a segment stores nodes, and remembers them.
    #[cold]
    #[inline(never)]
    fn learn_nodes(&mut self, words: &[u32], found: &[QmdCall], arms: bool) -> bool {
        let mut graphs = self.nodes.memory();
        graphs.learn(words, found, arms, &mut self.counters) > 0
    }

    /// Records the masks with which nodes are stored.
    #[cold]
    #[inline(never)]
    pub(super) fn note_masks(&mut self, words: &[u32], found: &[QmdCall]) {
        self.nodes.memory().note_masks(words, found);
    }

    /// Forgets all QMDs, because a segment that was not read may have stored any.
    #[cold]
    #[inline(never)]
    pub(super) fn forget_graphs(&mut self) {
        if core::mem::replace(&mut self.knows_nodes, self.silences) {
            self.nodes_resident = 0;
            self.nodes.memory().forget_unseen();
        }
    }

    /// Forgets the QMDs whose masks were not written as it is recorded.
    #[cold]
    #[inline(never)]
    fn forget_masks(&mut self) {
        self.knows_nodes = self.silences;
        self.nodes_resident = 0;
        self.nodes.memory().forget_scheduled();
    }

    /// Writes a segment with masks for the graphs that it replays into a frame. Returns the entry
    /// for it, or `None` if the tenant's is to be published.
    #[cold]
    #[inline(never)]
    fn patch<W: Words>(
        &mut self,
        seal: &Seal<W::View>,
        found: &[QmdCall],
        stream: &Stream<S, W::View>,
        round: &mut Round<'_, S, W>,
    ) -> Option<u64> {
        let (segment, fence) = (seal.segment, stream.replay.release);
        let scratch = round.scratch.as_deref_mut();
        let reachable = fence.is_some() && stream.fetch.base() == 0;
        let copies = round.copies.as_deref_mut();
        let room = scratch.filter(|_| reachable && copies.is_none());
        let room = room.and_then(|scratch| Some((scratch.frame(round.memory)?, scratch)));
        let Workspace { words, output, .. } = &mut *round.work;
        let most = match copies {
            Some(_) => output.len(),
            None => room.as_ref().map_or(0, |(frame, _)| frame.words()),
        };
        let out = output.get_mut(..most).unwrap_or_default();
        // CAST: checked when the segment was read.
        let words = words.get(..segment.words as usize)?;
        let masks = self.sizing.masks(self.mask.as_ref(), &self.granted);
        let mut graphs = self.nodes.memory();
        let patched = graphs.patch_replays(words, found, masks, out, &mut self.counters);
        visited(patched.visits, &mut round.words);
        self.sizing.replay(&patched);
        let out = out.get(..patched.words).filter(|out| !out.is_empty())?;
        if let Some(copies) = copies {
            let copy = copies.put(round.memory, &segment, out);
            if copy.is_none() {
                add(&mut self.counters.sums.crowded, 1);
                self.forget_masks();
            }
            return copy.map(|copy| Entry::Segment(copy).encode());
        }
        let (frame, scratch) = room?;
        let written = frame.write(round.memory, 0, out);
        if !written || !scratch.hold(round.memory, &frame, fence?, None) {
            // The nodes do not hold the masks recorded for them.
            self.forget_masks();
            return None;
        }
        let segment = Segment {
            va: frame.gpu_va,
            // CAST: within the frame.
            words: patched.words as u32,
            ..segment
        };
        Some(Entry::Segment(segment).encode())
    }

    /// Applies the mask to the launches of a segment, in the copy. `resident` TPCs hold all blocks of
    /// each of them at once, if any number does. Returns whether all have it, if there is one.
    fn mask_all(&mut self, words: &mut [u32], found: &[QmdCall], resident: u32) -> bool {
        let Some(mask) = &self.mask else {
            return true;
        };
        let mut all = true;
        let may_narrow = resident > self.granted_count;
        for call in found.iter().filter(|call| call.is_launch()) {
            // A launch without a grid has nothing to mask.
            let version = call.version.filter(|_| call.kind() != Some(Kind::Null));
            let Some((version, qmd)) = version.zip(call.at_qmd_mut(words)) else {
                continue;
            };
            let masked = mask::apply(qmd, version, mask);
            self.counters.mask(masked);
            all &= masked.is_ok();
            let narrowed = may_narrow && self.is_narrowed(call, words);
            add(&mut self.counters.sums.narrowed, u64::from(narrowed));
        }
        all
    }

    /// Returns how many TPCs hold all blocks of each launch at once; 0 if no number does.
    pub(super) fn resident(&self, found: &[QmdCall], words: &[u32]) -> u32 {
        let most = self.me.gpu_count;
        let of = |call: &QmdCall| {
            let qmd = call.qmd(words).zip(call.version);
            qmd.map_or(0, |(qmd, version)| occupancy::resident(qmd, version, most))
        };
        let grids = found.iter().filter(|call| call.kind() != Some(Kind::Null));
        grids.map(of).max().unwrap_or(0)
    }

    /// Returns whether a launch may never end on its granted TPCs although it would on all.
    pub(super) fn is_narrowed(&self, call: &QmdCall, words: &[u32]) -> bool {
        let (Some(qmd), Some(version)) = (call.qmd(words), call.version) else {
            return false;
        };
        let (granted, whole) = (self.granted_count, self.me.gpu_count);
        // CAST: a mask has 256 TPCs at most.
        occupancy::is_narrowed(qmd, version, granted as u16, whole as u16)
    }
}

/// Stores the changed words of QMDs of some kinds into the tenant's segment.
pub(super) fn store<S: Storage, W: Words>(
    round: &mut Round<'_, S, W>,
    at: &W::View,
    segment: &Segment,
    found: &[QmdCall],
    kinds: impl Fn(Option<Kind>) -> bool,
) {
    let words = round.work.of(segment);
    for call in found {
        let Some(qmd) = call.qmd(words).filter(|_| kinds(call.kind())) else {
            continue;
        };
        for (offset, word) in (0..usize::MAX).zip(qmd) {
            // CAST: widening.
            let index = (Wrapping(call.at as usize) + Wrapping(offset)).0;
            if round.memory.load(at, index) != Some(*word) {
                round.memory.store(at, index, *word);
            }
        }
    }
}
