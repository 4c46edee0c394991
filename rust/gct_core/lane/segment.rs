// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Processes one entry of the tenant: reads its segment once, and may edit or replace it.

use super::governor::{Governor, Peers};
use super::in_flight::{Fence, Submission};
use super::next::Next;
use super::seal::store;
use super::sizing;
use super::split::{Atoms, Emission, Splitting, ATOMS_MAX};
use super::words::{Storage, Words};
use super::work::{Place, Replay, Round, Seal, Stream, Workspace};
use super::work::{SLOW_WORD, SLOW_WORDS_MAX};
use crate::policy::pace::{self, Split, Work};
use crate::policy::predict::{Kernel, Path};
use crate::submit::gpfifo::{Control, Entry, Segment};
use crate::submit::graph;
use crate::submit::occupancy;
use crate::submit::reason::Reason;
use crate::submit::rewrite::{detached, fills, whole};
use crate::submit::stats::add;
use crate::submit::tracker::{QmdCall, Source};
use crate::units::{Blocks, Ns, Sat, Va};

/// How many pairs of calls are compared in the time in which a word is read (inferred).
const PAIRS: u32 = 2;

/// A segment with its entry, its base, and the words that the GPU executes for it.
type Located<V> = (u64, Option<u32>, Segment, Place<V>);

/// The last launch of a segment with a grid, if its end can be observed.
struct LastLaunch<V> {
    /// Its index among the segment's launches.
    index: usize,
    submission: Submission<V>,
    /// How many of its blocks a TPC may hold, where its version does not tell whether all must be
    /// resident at once.
    resident: Option<u32>,
}

impl<S: Storage, P: Peers> Governor<S, P> {
    /// Processes one ring entry. What is not understood is published as it is.
    ///
    /// It is no part of its caller, so that its result is copied as a whole: a lane would move each
    /// field by itself, with 150 instructions more for a launch.
    #[inline(never)]
    pub fn process<W: Words>(
        &mut self,
        stream: &mut Stream<S, W::View>,
        entry: u64,
        round: &mut Round<'_, S, W>,
    ) -> Next<W::View> {
        stream.acquire = None;
        let segment = match stream.fetch.decode(entry) {
            Entry::Segment(segment) => segment,
            // The lane sets the base of each entry by itself.
            Entry::Control(Control::ExtendedBase(_)) if round.copies.is_some() => {
                return Next::plain(Entry::Control(Control::Nop).encode(), None);
            }
            Entry::Control(_) => return Next::plain(entry, None),
            Entry::Unknown(_) => {
                self.counters.keep(Reason::Unreadable);
                self.unread(stream);
                return Next::plain(entry, Some(stream.fetch.base()));
            }
        };
        let base = Some(stream.fetch.base());
        let (read, segment) = match round.is_long(segment.words) {
            false => (self.read(&segment, round), segment),
            true => self.read_piece(&segment, stream, round),
        };
        let segment = Self::filled(segment, stream, round);
        let located = read.and_then(|at| self.copied((entry, base, segment, at), round));
        let Some(located) = located else {
            self.unread(stream);
            return Next::plain(entry, base);
        };
        let segment = located.2;
        let next = self.decide(stream, located, round);
        // What is left for its release, and what replaces it, is written then.
        if !matches!(next, Next::Whole { seal: Some(_), .. } | Next::Atoms(_)) {
            self.write_copy(&segment, round);
        }
        next
    }

    /// Returns whether words ran since the last time that nobody saw: unread ones, or a macro's, or
    /// such as make later addresses relative.
    pub fn take_unseen(&mut self) -> bool {
        core::mem::take(&mut self.ran_unseen)
    }

    /// Decides about an entry whose words were not read. The GPU may execute some all the same: for
    /// it, bits of an entry that are reserved mean nothing.
    #[cold]
    fn unread<V>(&mut self, stream: &mut Stream<S, V>) {
        stream.rest = None;
        // What is refused stores nothing.
        match self.limits().strict {
            true => self.refuse(),
            false => {
                self.ran_unseen = true;
                self.forget_graphs();
            }
        }
    }

    /// Decides what is published for a segment that was read.
    fn decide<W: Words>(
        &mut self,
        stream: &mut Stream<S, W::View>,
        (entry, base, segment, at): Located<W::View>,
        round: &mut Round<'_, S, W>,
    ) -> Next<W::View> {
        let as_it_is = || Next::plain(entry, base);
        let strict = self.limits().strict && round.copies.is_some();
        let unseen = self.counters.unseen();
        let words = round.work.of(&segment);
        let scan = stream
            .tracker
            .scan(words, &mut stream.found, &mut self.counters);
        compared(scan.found, &mut round.words);
        let is_read = scan.refused.is_none() && scan.missed == 0;
        if !(is_read || strict) {
            self.forget_graphs();
        }
        stream.acquire = self.acquire(stream.tracker.first_acquire(), round.memory, round.now);
        if !(is_read && self.counters.unseen() == unseen) {
            if strict {
                self.refuse();
                return as_it_is();
            }
            self.ran_unseen = true;
        }
        if scan.found == 0 {
            let transfers = self.transfers((entry, base, segment), stream, round);
            return transfers.map_or_else(as_it_is, Next::Transfers);
        }
        let found = stream.found.get(..scan.found).unwrap_or_default();
        let graphs = self.learn_graphs(words, found, !stream.published);
        if strict && graphs.replayed || self.knows_nodes && (strict || self.silences) {
            match self.list(stream, &segment, scan.found, round) {
                Ok(None) => {}
                Ok(Some(list)) => return Next::List(list),
                Err(reason) => {
                    self.counters.keep(reason);
                    self.refuse();
                    return as_it_is();
                }
            }
        }
        if graphs.stored && !stream.published {
            let found = stream.found.get(..scan.found).unwrap_or_default();
            // So that their masks can be changed later.
            graph::arm(round.work.of(&segment), found);
            if let Place::Tenant(at) = &at {
                store(round, at, &segment, found, |_| true);
            }
        }
        // Under a mask they are checked when they get their slots.
        let checked = strict && !self.narrows();
        let launches = match strict {
            true => match detach(stream, &segment, scan.found, checked, round) {
                Ok(launches) => Some(launches),
                Err(reason) => {
                    self.refuse_launches(reason, &stream.found, scan.found);
                    return as_it_is();
                }
            },
            false => None,
        };
        let found = stream.found.get(..scan.found).unwrap_or_default();
        if !(self.acts() || self.tracks_ends() || graphs.replayed) {
            return as_it_is();
        }
        let resident = match self.acts_on_masks() {
            true => self.resident(found, round.work.of(&segment)),
            false => 0,
        };
        if graphs.stored {
            self.nodes_resident = self.nodes_resident.max(resident);
        }
        let seal = Seal {
            segment,
            resident,
            found: scan.found,
            read: round.work.reads,
            round: round.work.rounds,
            at,
            since: round.now,
            holds: pace::unknown_is_long(Ns(0)),
            sizable: false,
            strict: launches,
            checked,
            stores: graphs.stored,
            replays: graphs.replayed,
        };
        if graphs.replayed {
            return self.replay(entry, base, seal, stream, round);
        }
        let Some(last) = self.last_launch(&segment, (found, stream.path), round) else {
            let release = stream.tracker.last_release();
            let release = release.filter(|_| self.tracks_ends());
            let fence = release.and_then(|it| Fence::at(round.memory, it.va, it.payload));
            return Next::Whole {
                entry,
                base,
                submission: fence.map(Submission::opaque),
                seal: Some(seal),
            };
        };
        stream.path = stream.path.then(&last.submission.kernel);
        if let Some(atoms) = self.split(&last, &seal, stream, round) {
            return Next::Atoms(atoms);
        }
        let found = stream.found.get(..seal.found).unwrap_or_default();
        let predicted = last.submission.predicted;
        Next::Whole {
            entry,
            base,
            submission: Some(last.submission),
            seal: Some(Seal {
                // It may start as soon as the work before it has ended.
                holds: pace::unknown_is_long(predicted),
                sizable: self.sizes()
                    && !seal.stores
                    && sizing::fit_anywhere(found, round.work.of(&segment)),
                ..seal
            }),
        }
    }

    /// Processes a segment that replays a graph, or launches a QMD that is not known. Its release
    /// frees the frame with the masks of its nodes. Its ends show that its nodes have ended; for a
    /// QMD that is not known the release is all there is.
    #[cold]
    #[inline(never)]
    fn replay<W: Words>(
        &mut self,
        entry: u64,
        base: Option<u32>,
        seal: Seal<W::View>,
        stream: &mut Stream<S, W::View>,
        round: &mut Round<'_, S, W>,
    ) -> Next<W::View> {
        let found = stream.found.get(..seal.found).unwrap_or_default();
        let words: &[u32] = round.work.of(&seal.segment);
        let mut graphs = self.nodes.memory();
        let ends = graphs.ends(found, |va| stream.tracker.uploaded_word(va, words));
        let fence = |va, number| Fence::at(round.memory, va, number);
        let mut ends = ends.map(|end| end.and_then(|end| fence(end.va, end.number.into())));
        let release = stream.tracker.last_release();
        let release = release.and_then(|release| fence(release.va, release.payload));
        let end = ends.iter_mut().find_map(Option::take);
        let sizable = !seal.stores && end.is_some() && ends.iter().all(Option::is_none);
        let submission = end.or(release).map(|fence| match sizable {
            true => Submission {
                kernel: sizing::graph(found),
                ..Submission::opaque(fence)
            },
            false => Submission::opaque(fence),
        });
        stream.replay = Replay { release, ends };
        Next::Whole {
            entry,
            base,
            submission,
            seal: Some(Seal {
                resident: seal.resident.max(self.nodes_resident),
                sizable,
                ..seal
            }),
        }
    }

    /// Refuses a segment, of which the first `count` calls are `found`, because of a launch.
    #[cold]
    fn refuse_launches(&mut self, reason: Reason, found: &[QmdCall], count: usize) {
        let mut found = found.get(..count).unwrap_or(found).iter();
        // The scan has counted its own reasons.
        if found.all(|call| call.reason.is_none()) {
            self.counters.keep(reason);
        }
        self.refuse();
    }

    /// Copies a segment's words. Returns `None` if they cannot be read.
    ///
    /// The words are the tenant's, and others may write there. So they are read once, and the core
    /// decides on the copy.
    pub(super) fn read<W: Words>(
        &mut self,
        segment: &Segment,
        round: &mut Round<'_, S, W>,
    ) -> Option<W::View> {
        // CAST: a segment has fewer than 2^21 words.
        let count = segment.words as usize;
        let Some(words) = round.work.words.get_mut(..count) else {
            self.counters.keep(Reason::SegmentTooLong);
            return None;
        };
        round.work.reads += 1;
        let at = round.memory.find(segment.va, count);
        let is_slow = at.is_some_and(|at| round.memory.is_slow(&at));
        if is_slow && count > SLOW_WORDS_MAX {
            self.counters.keep(Reason::SegmentTooSlow);
            return None;
        }
        let each = if is_slow { SLOW_WORD } else { 1 };
        let cost = segment.words.saturating_mul(each);
        round.words = round.words.saturating_sub(cost);
        let at = at.filter(|at| round.memory.read(at, words));
        if at.is_none() {
            self.counters.keep(Reason::Unreadable);
        }
        at
    }

    /// Reads the first piece of a long segment. Returns it with where it was read. If it cannot be
    /// read, all of the segment is the piece.
    #[cold]
    #[inline(never)]
    pub(super) fn read_piece<W: Words>(
        &mut self,
        segment: &Segment,
        stream: &mut Stream<S, W::View>,
        round: &mut Round<'_, S, W>,
    ) -> (Option<W::View>, Segment) {
        let window = Segment {
            words: round.work.at_once(segment.words),
            ..*segment
        };
        let Some(at) = self.read(&window, round) else {
            return (None, *segment);
        };
        // CAST: checked when it was read.
        let words = round.work.words.get(..window.words as usize);
        let piece = stream
            .tracker
            .piece(words.unwrap_or_default(), stream.found.len());
        stream.rest = (!piece.ends).then(|| Segment {
            va: (Va(segment.va) + 4 * u64::from(piece.words)).get(),
            words: (Sat(segment.words) - Sat(piece.words)).0,
            ..*segment
        });
        let words = piece.words;
        (Some(at), Segment { words, ..window })
    }

    /// Writes out the fills by a macro of a segment that was read: nobody would see what the macro
    /// does. Returns the segment with its words.
    fn filled<W: Words>(
        segment: Segment,
        stream: &Stream<S, W::View>,
        round: &mut Round<'_, S, W>,
    ) -> Segment {
        // CAST: widening.
        let count = segment.words as usize;
        if !fills::are_looked_for(count)
            || round.copies.is_none()
            || !stream.tracker.is_between_bursts()
        {
            return segment;
        }
        let longer = fills::expand(&mut round.work.words, count);
        let words = u32::try_from(longer).unwrap_or(segment.words);
        round.words = round
            .words
            .saturating_sub(words.saturating_sub(segment.words));
        Segment { words, ..segment }
    }

    /// Takes room for a copy of the words that were read, if the lane has memory for copies. Returns
    /// entry, base, segment and place of the words to execute, or `None` if the copy does not fit.
    fn copied<W: Words>(
        &mut self,
        (entry, base, segment, at): (u64, Option<u32>, Segment, W::View),
        round: &mut Round<'_, S, W>,
    ) -> Option<Located<W::View>> {
        let Some(copies) = round.copies.as_deref_mut() else {
            return Some((entry, base, segment, Place::Tenant(at)));
        };
        let copy = copies.take(&segment);
        add(&mut self.counters.sums.crowded, u64::from(copy.is_none()));
        let copy = copy?;
        let place = Place::Copy { written: false };
        Some((Entry::Segment(copy).encode(), Some(0), copy, place))
    }

    /// Writes the words of the segment that was read last to its copy, if the lane has copies. An
    /// entry whose copy cannot be written is refused.
    pub(super) fn write_copy<W: Words>(&mut self, segment: &Segment, round: &mut Round<'_, S, W>) {
        if let Some(copies) = round.copies.as_deref() {
            if !copies.write_copy(round.memory, segment, round.work.of(segment)) {
                self.refuse();
            }
        }
    }

    /// Returns the last launch with a grid, if it releases a word that can be observed. `path` is
    /// that of the launches before the segment.
    fn last_launch<W: Words>(
        &self,
        segment: &Segment,
        (found, path): (&[QmdCall], Path),
        round: &mut Round<'_, S, W>,
    ) -> Option<LastLaunch<W::View>> {
        if !self.tracks_ends() && self.limits().atoms <= 1 {
            return None;
        }
        let words = round.work.of(segment);
        let (index, launch) = (0..found.len()).rev().find_map(|index| {
            let call = found.get(index).filter(|call| call.is_launch())?;
            let launch = call.launch(words)?;
            (launch.blocks() > 0).then_some((index, launch))
        })?;
        let mut releases = launch.effects.releases.iter().flatten();
        let release = releases.find(|r| r.words == 1 && r.reduction.is_none())?;
        let fence = Fence::at(round.memory, release.va, release.payload)?;
        let kernel = Kernel::of(&launch);
        let tpcs = self.tpcs();
        let submission = Submission {
            fence,
            kernel,
            path,
            blocks: launch.blocks(),
            tpcs,
            predicted: self.predict((&kernel, path), tpcs).unwrap_or(Ns(0)),
            replay: Ns(0),
            bytes: 0,
            sized: None,
        };
        let resident = (!launch.version.joins()).then(|| occupancy::most_per_tpc(&launch));
        Some(LastLaunch {
            index,
            submission,
            resident,
        })
    }

    /// Splits a launch if the limits ask for it.
    fn split<W: Words>(
        &mut self,
        last: &LastLaunch<W::View>,
        seal: &Seal<W::View>,
        stream: &mut Stream<S, W::View>,
        round: &mut Round<'_, S, W>,
    ) -> Option<Atoms<W::View>> {
        let (submission, segment) = (&last.submission, seal.segment);
        let tpcs = self.tpcs_for(seal.resident);
        let split = self.pace(last, tpcs, round.copies.is_some());
        if split.atoms <= 1
            || stream.published
            || (stream.fetch.base() != 0 && round.copies.is_none())
        {
            return None;
        }
        let found = stream.found.get(..seal.found)?;
        let Workspace {
            words,
            orders,
            output,
            ..
        } = &mut *round.work;
        // CAST: checked when the segment was read.
        let words = words.get(..segment.words as usize)?;
        // Other launches of the segment get their mask when the whole segment is released.
        // A companion whose call was taken out is none.
        let is_grid = |call: &&QmdCall| {
            let is_here = call.version.is_some() && call.source != Source::Touch;
            is_here && !call.is_null()
        };
        let mut grids = found.iter().filter(is_grid);
        if self.acts_on_masks() && grids.nth(1).is_some() {
            return None;
        }
        if seal.strict.is_some() && !seal.checked && whole::check(words, found).is_err() {
            return None;
        }
        let narrowed = self.is_narrowed(found.get(last.index)?, words);
        self.splits = self.splits.wrapping_add(1);
        let rest = stream.tracker.last_release();
        let splitting = Splitting {
            words,
            found,
            index: last.index,
            split,
            tried: self.limits().tried && round.copies.is_none(),
            segment,
            launch: *submission,
            resident: seal.resident,
            rest: rest.and_then(|rest| Fence::at(round.memory, rest.va, rest.payload)),
            number: self.splits,
        };
        let to = Emission {
            orders,
            output,
            counters: &mut self.counters,
        };
        let scratch = round.scratch.as_deref_mut()?;
        let copies = round.copies.as_deref_mut();
        let atoms = splitting.emit(&mut stream.room, scratch, copies, round.memory, to);
        if let (Some(call), true) = (found.get(last.index), atoms.is_some()) {
            // A head of a graph stays as its tenant wrote it, or is masked with the first atom.
            self.nodes.memory().forget_mask(call.qmd_va);
        }
        let narrowed = narrowed && atoms.is_some();
        add(&mut self.counters.sums.narrowed, u64::from(narrowed));
        atoms
    }

    /// Returns how the limits split a launch that will have `tpcs` TPCs. Where its last atom waits
    /// for the others (`last_waits`, and versions without a join), a launch of one wave stays whole:
    /// its blocks may wait for each other. Where it may be a cooperative launch, that is a wave of the
    /// whole GPU.
    fn pace<V>(&self, last: &LastLaunch<V>, tpcs: u64, last_waits: bool) -> Split {
        let submission = &last.submission;
        let work = Work {
            blocks: Blocks(submission.blocks),
            wave: Blocks(u64::from(submission.kernel.per_tpc)) * tpcs,
            predicted: Some(submission.predicted).filter(|time| *time > Ns(0)),
        };
        let whole = match (last.resident, self.me.gpu_count) {
            (None, _) => work.wave,
            (Some(_), 0) => work.blocks,
            (Some(each), tpcs) => Blocks(u64::from(each)) * u64::from(tpcs),
        };
        let last_waits = last_waits || last.resident.is_some();
        match self.target() {
            Ns(0) if last_waits => Split::NONE,
            _ if last_waits && work.blocks <= whole => Split::NONE,
            Ns(0) => Split {
                atoms: self.limits().atoms.min(ATOMS_MAX),
                in_flight: 0,
                run_ahead: 0,
            },
            target => pace::split(&work, target, ATOMS_MAX),
        }
    }
}

/// Detaches the launches of a copied segment from descriptors in the tenant's memory. Returns how
/// many there are.
///
/// # Errors
///
/// The [`Reason`] why one cannot be detached, or, if `checks`, could not run from a slot.
fn detach<S: Storage, W: Words>(
    stream: &mut Stream<S, W::View>,
    segment: &Segment,
    found: usize,
    checks: bool,
    round: &mut Round<'_, S, W>,
) -> Result<u32, Reason> {
    let found = stream.found.get_mut(..found).unwrap_or_default();
    let words = round.work.of(segment);
    let launches = detached::detach(words, found)?;
    if checks {
        whole::check(words, found)?;
    }
    Ok(launches)
}

/// Has a turn that has `left` words pay for calls that may all be compared with each other.
fn compared(calls: usize, left: &mut u32) {
    // CAST: some thousand.
    let calls = calls as u32;
    *left = left.saturating_sub(calls.saturating_mul(calls) / PAIRS);
}

#[cfg(test)]
mod tests;
