// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Follows the launches of a program that repeats a step, for [`gct_core::policy::prefetch`].
//!
//! Launches have numbers. A launch is named by its function and the first piece into which its
//! arguments point; or by its function alone, where no step is found so. What it uses may differ
//! from step to step: an allocator gives other memory, and behind a list of addresses in an
//! argument lies what was there before.
//!
//! ```text
//! log     the last launches
//! step    the launches that repeat: number - anchor, modulo the period, says which one it is
//! ```
//!
//! A step whose launches use other pieces than before is renewed at its end. [`repeats`] decides
//! when a step is looked for, and forgotten.

use super::Memory;
use core::ops::Range;
use gct_core::policy::placement::Move;
use gct_core::policy::prefetch::{self, Next, Use};
use gct_core::policy::repeats::{self, Doubt, Price, KNOWN, LOG_MAX};
use gct_core::units::{Bytes, Ns};
use std::collections::{BTreeSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

/// The most pieces of a launch that are kept.
const PIECES_MAX: usize = 256;

/// A launch, and the addresses of the pieces into which its arguments point.
#[derive(Clone, Debug)]
struct Launch {
    /// With the first piece, and without.
    names: [u64; 2],
    pieces: Vec<u64>,
}

impl Launch {
    fn new(function: u64, pieces: Vec<u64>) -> Self {
        let mut hasher = DefaultHasher::new();
        (function, pieces.first()).hash(&mut hasher);
        Self {
            names: [hasher.finish(), function],
            pieces,
        }
    }
}

/// The launches that repeat.
#[derive(Debug, Default)]
struct Step {
    names: Vec<u64>,
    /// Which names of launches these are.
    by: usize,
    /// The pieces into which the arguments of each launch point, and whether some do not any more.
    direct: Vec<Vec<u64>>,
    has_changed: bool,
    /// The first use of each launch, and the number of all uses.
    starts: Vec<usize>,
    /// The address of the piece of each use.
    addresses: Vec<u64>,
    uses: Vec<Use>,
    /// The number of a launch that was the first of the step.
    anchor: u64,
    doubt: Doubt,
    /// The number of the launch from which on pieces may change places for good again.
    again: u64,
    /// The allocations whose pieces the uses name.
    layout: u64,
}

impl Step {
    /// Returns which launch of the step has a number.
    fn index(&self, number: u64) -> usize {
        // CAST: less than the period.
        (number.wrapping_sub(self.anchor) % self.names.len() as u64) as usize
    }

    fn uses_of(&self, number: u64) -> Range<usize> {
        let index = self.index(number);
        self.starts[index]..self.starts[index + 1]
    }

    /// Returns the step after another one of the same launches: what was learned of uses stays.
    fn after(mut self, old: &Self) -> Self {
        let launches = self.starts.windows(2).zip(old.starts.windows(2));
        for (of, was) in launches {
            for at in of[0]..of[1] {
                let same = |before: &usize| old.addresses[*before] == self.addresses[at];
                let known = (was[0]..was[1]).find(same);
                if let Some(known) = known {
                    let is_repeated = self.uses[at].is_repeated;
                    self.uses[at] = old.uses[known];
                    self.uses[at].is_repeated = is_repeated;
                }
            }
        }
        self.doubt = old.doubt;
        self
    }

    /// Finds the place again at which the last launches were.
    fn find(&mut self, number: u64, last: &[u64]) {
        if let Some(place) = repeats::place(&self.names, self.index(number), last) {
            // CAST: widening.
            self.anchor = number.wrapping_sub(place as u64);
        }
    }
}

/// What the program repeats.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    log: VecDeque<Launch>,
    /// The number of the next launch, and the one after which a step is looked for again.
    number: u64,
    search: u64,
    step: Option<Step>,
    /// Whether the step uses a remote piece, and [`Memory::places`] then. To find that out takes
    /// longer than to launch.
    has_remote: Option<(u64, bool)>,
    price: Price,
    rests_until: Ns,
    /// When a launch asked last what it should wait for.
    asked: Ns,
    next: Vec<Next>,
    /// How often all uses of the step were looked at for moves.
    #[cfg(test)]
    pub(super) decisions: u64,
}

impl Ahead {
    /// Records a launch.
    fn push(&mut self, launch: Launch) {
        if let Some(step) = &mut self.step {
            let index = step.index(self.number);
            let is_expected = step.names[index] == launch.names[step.by];
            let before = &step.direct[index];
            // Launches of one function are not a step, whatever they use.
            step.doubt = (step.doubt).after(is_expected && before.first() == launch.pieces.first());
            step.has_changed |= is_expected && *before != launch.pieces;
            if !is_expected {
                let last = core::iter::once(&launch).chain(self.log.iter().rev());
                let last = last.take(KNOWN).map(|launch| launch.names[step.by]);
                step.find(self.number, &last.collect::<Vec<_>>());
            }
            if step.doubt.is_lost(step.names.len()) {
                self.set_step(None);
            }
        }
        if self.log.len() == LOG_MAX {
            self.log.pop_front();
        }
        self.log.push_back(launch);
        self.number += 1;
    }

    /// Returns the launches of a step, if the last ones repeat, and by which of their names.
    fn period(&mut self) -> Option<(usize, usize)> {
        if self.step.is_some() || self.number < self.search {
            return None;
        }
        self.search = self.number + repeats::search_after(self.log.len());
        let mut scratch = vec![0; self.log.len()];
        (0..2).find_map(|by| {
            let names: Vec<u64> = self.log.iter().map(|launch| launch.names[by]).collect();
            Some((prefetch::period(&names, &mut scratch)?, by))
        })
    }

    /// Returns the same of a step that has ended just now, if it has to be renewed.
    fn has_to_renew(&mut self) -> Option<(usize, usize)> {
        let step = self.step.as_mut()?;
        let period = step.names.len();
        let ends = step.index(self.number) == 0 && self.log.len() >= period;
        (ends && core::mem::take(&mut step.has_changed)).then_some((period, step.by))
    }

    /// Forgets all launches: some were not seen.
    fn forget(&mut self) {
        self.log.clear();
        self.set_step(None);
    }

    fn set_step(&mut self, step: Option<Step>) {
        (self.step, self.has_remote) = (step, None);
    }
}

impl Memory {
    /// Learns what the next launches use, of which each comes with its function and the words of
    /// its arguments.
    pub(crate) fn launched<'a>(&mut self, launches: impl Iterator<Item = &'a [u64]>) {
        for words in launches {
            let Some((function, words)) = words.split_first() else {
                continue;
            };
            let mut pieces = Vec::new();
            for word in words {
                self.used(*word);
                let piece = self.piece_at(*word).filter(|_| pieces.len() < PIECES_MAX);
                pieces.extend(piece.filter(|piece| !pieces.contains(piece)));
            }
            self.ahead.push(Launch::new(*function, pieces));
            if let Some((period, by)) = self.ahead.has_to_renew() {
                let renewed = self.step(period, by);
                let renewed = self.ahead.step.take().map(|old| renewed.after(&old));
                self.ahead.set_step(renewed);
            }
        }
        if let Some((period, by)) = self.ahead.period() {
            let step = self.step(period, by);
            self.ahead.set_step(Some(step));
        }
    }

    /// Forgets the step, because launches were not seen. The next one has this number.
    pub(crate) fn lost(&mut self, number: u64) {
        self.ahead.forget();
        self.ahead.number = number;
        self.ahead.search = number;
    }

    /// Learns that some launches and moves before them, or between them, took so long.
    pub(crate) fn reached(&mut self, launches: Range<u64>, moves: u64, took: Ns) {
        let apart = launches.end.saturating_sub(launches.start);
        if apart == 0 {
            self.ahead.price = self.ahead.price.after(moves, took);
        }
        let step = self.ahead.step.as_mut();
        let Some(step) = step.filter(|_| moves == 0 && repeats::tells(apart)) else {
            return;
        };
        for launch in launches {
            let uses = step.uses_of(launch);
            prefetch::learn(&mut step.uses[uses], took / apart.max(1));
        }
    }

    /// Returns the address of the piece that contains an address.
    fn piece_at(&self, address: u64) -> Option<u64> {
        let span = &self.spans[self.at(address)?];
        Some(address - (address - span.base) % super::PIECE)
    }

    /// Makes a step of the last launches.
    ///
    /// Only the start of an argument is known: a use is one of the pieces behind it, too, up to the
    /// next one into which an argument points.
    fn step(&self, period: usize, by: usize) -> Step {
        let log = &self.ahead.log;
        let begins = log.len() - period;
        let launches = || log.iter().skip(begins);
        let starts: BTreeSet<u64> = launches()
            .flat_map(|launch| launch.pieces.iter().copied())
            .collect();
        let mut step = Step {
            // CAST: widening.
            anchor: self.ahead.number.wrapping_sub(period as u64),
            by,
            starts: vec![0],
            layout: self.layout.wrapping_sub(1),
            ..Step::default()
        };
        for (at, launch) in launches().enumerate() {
            step.names.push(launch.names[by]);
            step.direct.push(launch.pieces.clone());
            let before = (begins + at).checked_sub(period).map(|at| &log[at].pieces);
            for piece in &launch.pieces {
                let end = self
                    .at(*piece)
                    .map_or(0, |at| self.spans[at].base + self.spans[at].bytes);
                let behind = (*piece..end).step_by(super::PIECE as usize).skip(1);
                let behind = behind.take_while(|piece| !starts.contains(piece));
                step.addresses
                    .extend(core::iter::once(*piece).chain(behind));
                let mut of = Use::new(usize::MAX);
                of.is_repeated = before.is_some_and(|pieces| pieces.contains(piece));
                step.uses.resize(step.addresses.len(), of);
            }
            step.starts.push(step.addresses.len());
        }
        step
    }

    /// Names the pieces of the step by their indices, which change with the allocations.
    fn relocate(&mut self) {
        let Some(mut step) = self.ahead.step.take() else {
            return;
        };
        if step.layout != self.layout {
            for (at, address) in step.uses.iter_mut().zip(&step.addresses) {
                at.piece = self.index_of(*address).unwrap_or(usize::MAX);
            }
            step.layout = self.layout;
            self.ahead.has_remote = None;
        }
        self.ahead.step = Some(step);
    }

    /// Returns which pieces the step uses, if the program is followed: what it wants of them is
    /// known better than by rates.
    pub(super) fn followed(&mut self, now: Ns) -> Vec<bool> {
        if !self.is_followed(now) {
            return Vec::new();
        }
        self.relocate();
        let mut used = vec![false; self.pieces.len()];
        for of in self.ahead.step.iter().flat_map(|step| &step.uses) {
            if let Some(used) = used.get_mut(of.piece) {
                *used = true;
            }
        }
        used
    }

    /// Returns whether the program repeats a step, and launches could wait for moves lately.
    pub(super) fn is_followed(&self, now: Ns) -> bool {
        self.ahead.step.is_some() && repeats::is_recent(self.ahead.asked, now)
    }

    /// Returns the launches between two marks that are of use.
    pub(crate) fn marks_every(&mut self) -> u64 {
        match &self.ahead.step {
            None => 0,
            Some(_) => repeats::marks_every(self.has_remote_ahead()),
        }
    }

    /// Returns whether the step uses a remote piece each time.
    fn has_remote_ahead(&mut self) -> bool {
        if let Some((_, known)) = self.ahead.has_remote.filter(|(at, _)| *at == self.places) {
            return known;
        }
        let mut uses = self.ahead.step.iter().flat_map(|step| &step.uses);
        let has_remote = uses.any(|of| self.is_remote(of));
        self.ahead.has_remote = Some((self.places, has_remote));
        has_remote
    }

    fn is_remote(&self, of: &Use) -> bool {
        let piece = self.pieces.get(of.piece);
        of.is_repeated && piece.is_some_and(|piece| !piece.is_resident)
    }

    /// Returns whether the last launch, which has these uses, looks for moves.
    fn decides(&self, launch: &Range<usize>) -> bool {
        let number = self.ahead.number.wrapping_sub(1);
        self.ahead.step.as_ref().is_some_and(|step| {
            let mut its = step.uses[launch.clone()].iter();
            let uses_remote = its.any(|of| self.is_remote(of));
            repeats::decides(uses_remote, number, step.again)
        })
    }

    /// Returns the least and the largest address.
    pub(crate) fn bounds(&self) -> Option<(u64, u64)> {
        let (first, last) = (self.spans.first()?, self.spans.last()?);
        Some((first.base, last.base + last.bytes))
    }

    /// Returns the uses of the last launch, if it is one that the step expects.
    fn expected(&self) -> Option<Range<usize>> {
        let (step, last) = (self.ahead.step.as_ref()?, self.ahead.log.back()?);
        let number = self.ahead.number.checked_sub(1)?;
        let is_expected = step.names[step.index(number)] == last.names[step.by];
        is_expected.then(|| step.uses_of(number))
    }

    /// Returns the next move that the last launch, which is not made yet, should wait for.
    pub(crate) fn before_launch(&mut self, now: Ns) -> Option<Move> {
        self.ahead.asked = now;
        if self.is_over() || now < self.ahead.rests_until {
            return None;
        }
        self.relocate();
        if !self.has_remote_ahead() {
            return None;
        }
        let launch = self.expected().filter(|launch| self.decides(launch))?;
        let step = self.ahead.step.as_mut()?;
        let next = &mut self.ahead.next;
        next.resize(self.pieces.len(), Next::default());
        let free = super::minus(self.room, self.charged);
        // Room that has just become free may be wanted again.
        let device = Bytes(free.device).min(self.free.steady());
        #[cfg(test)]
        {
            self.ahead.decisions += 1;
        }
        let times = (self.ahead.price.get(), now);
        let made = prefetch::before(
            launch,
            &self.pieces,
            &step.uses,
            next,
            (device, Bytes(free.host)),
            times,
        );
        if made.is_none() {
            let number = self.ahead.number.wrapping_sub(1);
            step.again = repeats::again_after(number, step.names.len());
        }
        made
    }

    /// Records that the last launch is made now.
    pub(crate) fn launches(&mut self) {
        self.relocate();
        let (Some(launch), Some(step)) = (self.expected(), &mut self.ahead.step) else {
            return;
        };
        for at in &mut step.uses[launch] {
            let piece = self.pieces.get(at.piece);
            at.was_remote = piece.is_some_and(|piece| !piece.is_resident);
        }
    }

    /// Moves nothing before launches for a while.
    pub(crate) fn rest(&mut self, now: Ns) {
        self.ahead.rests_until = repeats::rests_until(now);
    }
}
