// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Decides when the next piece of a lane is released, and releases it.

use super::decide::{Kind, Piece};
use super::governor::{Governor, Peers};
use super::in_flight::{InFlightQueue, Submission};
use super::next::Next;
use super::sizing;
use super::words::{Storage, Words};
use super::work::{Round, Stream};
use crate::gpu_time::{Held, Hold};
use crate::policy::pace::{self, InFlight};
use crate::submit::stats::add;
use crate::units::Ns;

impl<S: Storage, P: Peers> Governor<S, P> {
    /// Decides whether the next entry of `next` goes now, and on which TPCs. Returns whether it goes
    /// late.
    pub(super) fn admits<V: Copy + 'static>(
        &mut self,
        queue: &InFlightQueue<S, V>,
        stream: &Stream<S, V>,
        next: &Next<V>,
        now: Ns,
    ) -> Result<bool, Held> {
        let in_flight = queue.totals();
        let (kind, holds, resident) = match next {
            Next::Whole {
                submission,
                seal: Some(seal),
                ..
            } => {
                let predicted = submission.as_ref().map(|submission| submission.predicted);
                (self.whole(predicted), seal.holds, seal.resident)
            }
            // Nothing of it runs on a TPC, or can be followed.
            Next::Whole { seal: None, .. } => return Ok(false),
            Next::List(list) => match self.look_ahead(list, stream) {
                Some((predicted, resident)) => {
                    let tracked = Some(predicted).filter(|_| self.tracks_ends());
                    (
                        self.whole(tracked),
                        pace::unknown_is_long(predicted),
                        resident,
                    )
                }
                None => return Ok(false),
            },
            // A copy uses no TPC, so it goes wherever a short launch would.
            Next::Transfers(copies) => {
                let predicted = copies.predicted(stream, self.target());
                (self.whole(predicted), Ns(0), 0)
            }
            Next::Atoms(atoms) if atoms.is_paced() => {
                let time = pace::atom_holds(in_flight, &atoms.split, atoms.predicted);
                (Kind::Atom(&atoms.split), time, atoms.resident)
            }
            Next::Atoms(atoms) => {
                let time = pace::unknown_is_long(atoms.predicted);
                (Kind::Free, time, atoms.resident)
            }
        };
        let piece = Piece {
            kind,
            holds,
            resident,
            in_flight,
            overdue: queue.overdue(),
        };
        let late = self.ask(Some(&piece), now)?;
        self.fit_size(next, in_flight, now);
        match self.drains(in_flight, stream, next, now) {
            Some(held) => Err(self.hold(held)),
            None => Ok(late),
        }
    }

    /// Returns what bounds the work in flight beside a piece that is predicted to take so long: 0 if
    /// its time is unknown, `None` if its end is.
    fn whole(&self, predicted: Option<Ns>) -> Kind<'static> {
        let target = |predicted| match self.target() {
            Ns(0) => Some((predicted, self.bounds_flight()?)),
            target => Some((predicted, target)),
        };
        match predicted.and_then(target) {
            Some((predicted, target)) => Kind::Whole(predicted, target),
            None => Kind::Free,
        }
    }

    /// Narrows the next release to the TPCs that its size needs. `flight` is the work in flight of
    /// its lane, which runs before it. All nodes of a replay have the place of the granted TPCs.
    pub(super) fn fit_size<V>(&mut self, next: &Next<V>, flight: &InFlight, now: Ns) {
        self.sizing.clear();
        if !self.sizes() {
            return;
        }
        let Next::Whole {
            submission: Some(submission),
            seal: Some(seal),
            ..
        } = next
        else {
            return;
        };
        if !seal.sizable {
            return;
        }
        let most = self.granted_count;
        let observed = self.me.shares.is_alone_with(flight);
        let bounds = (most, self.me.limits.slip);
        let size = self.sizing.fit(submission, seal, bounds, observed);
        let granted = (self.granted, self.own, self.precedence);
        if seal.replays {
            self.sizing.update_widths(&self.gpu, granted, self.mask);
        }
        if size < most {
            let chosen = sizing::choose(&self.gpu, &granted, size);
            if !seal.replays {
                self.precedence = self.place_of(&chosen, now);
            }
            self.use_mask(chosen);
        }
    }

    /// Records which TPCs the present release has. `bound` says whether its mask could be written.
    pub(super) fn record_tide(&mut self, bound: bool) {
        self.sizing.record_tide(&self.gpu, &self.granted, bound);
    }

    /// Returns whether a replay waits for the work in flight of its lane. A replay of the same graph
    /// may be reading the masks that this one changes.
    fn drains<V>(
        &mut self,
        in_flight: &InFlight,
        stream: &Stream<S, V>,
        next: &Next<V>,
        now: Ns,
    ) -> Option<Held> {
        let Next::Whole {
            seal: Some(seal), ..
        } = next
        else {
            return None;
        };
        let until = pace::drained(in_flight, seal.since);
        let waits = seal.replays && now < until && self.changes(seal, stream);
        waits.then(|| Held::until(Hold::Graph, until))
    }

    /// Releases the next entry of `next`, which [`admits`](Self::admits) has just admitted. Returns
    /// the entry, its submission, and whether it is the last.
    pub fn release<W: Words>(
        &mut self,
        stream: &mut Stream<S, W::View>,
        next: &mut Next<W::View>,
        round: &mut Round<'_, S, W>,
    ) -> (u64, Option<Submission<W::View>>, bool) {
        // A segment without a launch was not asked about its TPCs.
        let spared =
            self.spares && !matches!(next, Next::Whole { seal: None, .. } | Next::Transfers(_));
        add(&mut self.counters.sums.spared, u64::from(spared));
        match next {
            Next::Whole {
                entry,
                submission,
                seal,
                ..
            } => {
                let tpcs = self.tpcs();
                let mut submission = submission.map(|submission| Submission { tpcs, ..submission });
                let kept = self.sizes().then(|| self.counters.kept_total());
                let sealed = seal
                    .as_ref()
                    .and_then(|seal| self.seal(seal, stream, round));
                // A segment without a launch uses no TPC.
                if let Some(kept) = kept.filter(|_| seal.is_some()) {
                    let bound = self.counters.kept_total() == kept;
                    self.record_tide(bound);
                    if let Some(submission) = submission.as_mut() {
                        self.sizing.released(submission, bound, &mut self.counters);
                    }
                }
                if let Some(submission) = &mut submission {
                    self.predict_replay(submission);
                }
                (
                    sealed.unwrap_or(*entry),
                    submission.filter(|_| self.tracks_ends()),
                    true,
                )
            }
            Next::List(list) => self.release_listed(stream, list, round),
            Next::Transfers(transfers) => {
                let target = self.target();
                transfers.release(stream, target, round.memory)
            }
            Next::Atoms(atoms) => {
                if self.sizes() {
                    self.record_tide(true);
                }
                let (mask, kept) = (self.mask.as_ref(), self.counters.kept_total());
                let (entry, submission, last) =
                    atoms.release(&mut stream.room, round.memory, mask, &mut self.counters);
                if self.me.limits.strict && self.counters.kept_total() != kept {
                    self.refuse();
                }
                (entry, Some(submission).filter(|_| self.tracks_ends()), last)
            }
        }
    }
}
