// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Decides when the next piece of a lane is released, and releases it.

use super::governor::{Governor, Peers};
use super::in_flight::{InFlightQueue, Submission};
use super::shares::Turn;
use super::words::{Storage, Words};
use super::work::{Next, Round, Stream};
use crate::gpu_time::Hold;
use crate::policy::pace::{self, Admission, InFlight};
use crate::policy::tpc;
use crate::submit::stats::add;
use crate::units::Ns;

impl<S: Storage, P: Peers> Governor<S, P> {
    /// Returns whether `next` may join the lane's work in flight, and decides on which TPCs.
    pub fn admits<V: Copy + 'static>(
        &mut self,
        queue: &InFlightQueue<S, V>,
        stream: &Stream<S, V>,
        next: &Next<V>,
        now: Ns,
    ) -> Admission {
        let (in_flight, over) = (queue.totals(), queue.is_over(now));
        let listed = match next {
            Next::List(list) => self.look_ahead(list, stream),
            Next::Whole { .. } | Next::Atoms(_) | Next::Transfers(_) => None,
        };
        let resident = match next {
            Next::Whole { seal, .. } => seal.as_ref().map_or(0, |seal| seal.resident),
            Next::Atoms(atoms) => atoms.resident,
            Next::List(_) => listed.map_or(0, |(_, resident)| resident),
            Next::Transfers(_) => 0,
        };
        let (admission, holds) = match next {
            Next::Whole {
                submission, seal, ..
            } => {
                let predicted = submission.as_ref().map(|submission| submission.predicted);
                let admission = self.admits_whole(in_flight, predicted, over);
                (admission, seal.as_ref().map(|seal| seal.holds))
            }
            Next::List(_) => {
                let predicted = listed.map(|(predicted, _)| predicted);
                let tracked = predicted.filter(|_| self.tracks_ends());
                let admission = self.admits_whole(in_flight, tracked, over);
                (admission, predicted.map(pace::unknown_is_long))
            }
            Next::Transfers(transfers) => {
                let predicted = transfers.predicted(stream, self.target());
                // A copy uses no TPC, so it goes wherever a short launch would.
                let admission = self.admits_whole(in_flight, predicted, over);
                (admission, Some(Ns(0)))
            }
            Next::Atoms(atoms) if atoms.is_paced() => {
                let time = pace::atom_holds(in_flight, &atoms.split, atoms.predicted);
                // Without peers the neighbours are unknown.
                let (peers, rank) = (self.peers.as_mut(), self.limits.rank);
                let alone = || {
                    peers.is_some_and(|peers| {
                        tpc::nobody_expected(rank, time, peers.look_around(now).neighbours)
                    })
                };
                let admits = pace::admits_atom(in_flight, &atoms.split, alone);
                (in_flight.admission(admits, over), Some(time))
            }
            Next::Atoms(atoms) => {
                let time = pace::unknown_is_long(atoms.predicted);
                (Admission::InTurn, Some(time))
            }
        };
        if admission == Admission::Held {
            self.shares.hold(Hold::Atoms);
            return Admission::Held;
        }
        let Some(time) = holds else {
            return admission;
        };
        if !self.may_run_for(time, resident, now) {
            return Admission::Held;
        }
        self.fit_size(next, in_flight, now);
        if self.drains(in_flight, stream, next, now) {
            self.shares.hold(Hold::Graph);
            return Admission::Held;
        }
        match self.turn(now) {
            Turn::Held => Admission::Held,
            Turn::Late => Admission::Late,
            Turn::Go => admission,
        }
    }

    /// Returns whether a piece may join the work in flight that is predicted to take so long: 0 if
    /// its time is unknown, `None` if its end is.
    fn admits_whole(&self, in_flight: &InFlight, predicted: Option<Ns>, over: bool) -> Admission {
        let target = match self.target() {
            Ns(0) => self.bounds_flight(),
            target => Some(target),
        };
        match predicted.zip(target) {
            Some((predicted, target)) => {
                let admits = pace::admits_whole(in_flight, predicted, target);
                in_flight.admission(admits, over)
            }
            None => Admission::InTurn,
        }
    }

    /// Returns whether a replay must wait for the work in flight of its lane. A replay of the same
    /// graph may be reading the masks that this one changes.
    fn drains<V>(
        &mut self,
        in_flight: &InFlight,
        stream: &Stream<S, V>,
        next: &Next<V>,
        now: Ns,
    ) -> bool {
        let Next::Whole {
            seal: Some(seal), ..
        } = next
        else {
            return false;
        };
        seal.replays
            && !pace::admits_alone(in_flight, now - seal.since)
            && self.changes(seal, stream)
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
                        self.released(submission, bound);
                    }
                }
                if let Some(submission) = submission.as_mut().filter(|it| it.kernel.is_graph()) {
                    let predicted =
                        self.predict((&submission.kernel, submission.path), submission.tpcs);
                    submission.replay = predicted.unwrap_or(Ns(0));
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
                if self.limits.strict && self.counters.kept_total() != kept {
                    self.refuse();
                }
                (entry, Some(submission).filter(|_| self.tracks_ends()), last)
            }
        }
    }
}
