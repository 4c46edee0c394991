// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Publishes entries before they are read, while whatever a tenant submits goes at once and as it is.
//!
//! To read a segment takes longer than to publish it, most of all after a pause: what it needs is in
//! no cache then. A tenant that is alone on its GPU, under no limit that changes its launches, gains
//! nothing by waiting for that. So its entries go first, and are read for what they teach: how long
//! launches take, and which QMDs are nodes of graphs.
//!
//! ```text
//! | read | published, not read yet: Round::ahead at most behind a round | the tenant's new entries |
//!        ^ unread                                                       ^ taken
//! ```
//!
//! As soon as something else may be the answer, all are read before the next entry goes. What they
//! stored cannot be armed any more: the first replay that needs a mask does that
//! ([`graph`](crate::submit::graph)). The words of a segment may have been replaced before they are
//! read, by a tenant that deceives itself: the backend bounds the time with its looks, and the
//! entries with [`Round::ahead`].

use super::channel::Lane;
use super::governor::{Governor, Peers};
use super::in_flight::Submission;
use super::next::Next;
use super::words::{Rings, Storage, Words};
use super::work::{Round, Stream};
use crate::policy::poll_backoff::NEEDED;
use crate::units::{Cpus, Ns, Sat};

/// The most entries of a lane that a thread which rings leaves to another one to read.
const UNREAD_MAX: u32 = 32;

/// Returns how many entries of a lane a thread that rings may leave to another one, if the tenant
/// has so many processors: none if that one would take the only one from it.
pub fn left_unread(cpus: Cpus) -> u32 {
    match cpus >= NEEDED {
        true => UNREAD_MAX,
        false => 0,
    }
}

impl<S: Storage, P: Peers> Governor<S, P> {
    /// Returns whether whatever the tenant submits goes at once and as it is. What
    /// [`is_open`](Self::is_open) has granted counts.
    fn passes_all(&mut self) -> bool {
        let is_alone = self.peers.as_ref().is_none_or(Peers::is_alone);
        let acts = self.acts() || self.sizes() || self.measures_clock() || self.silences;
        if !is_alone || acts || self.bounds_flight().is_some() {
            return false;
        }
        // Nodes may have masks from before.
        self.marked = self.marked && self.nodes.memory().keep_masks();
        !self.marked
    }

    /// Learns from an entry that was published before it was read. Returns its submission, if its
    /// end is tracked.
    fn observe<W: Words>(
        &mut self,
        next: &Next<W::View>,
        stream: &Stream<S, W::View>,
        round: &mut Round<'_, S, W>,
    ) -> Option<Submission<W::View>> {
        let submission = match next {
            Next::Whole {
                submission, seal, ..
            } => {
                if let Some(seal) = seal {
                    let found = stream.found.get(..seal.found).unwrap_or_default();
                    if seal.replays {
                        let mut graphs = self.nodes.memory();
                        graphs.count_replays(found, &mut self.counters);
                    }
                    if seal.stores {
                        self.note_masks(round.work.of(&seal.segment), found);
                    }
                }
                *submission
            }
            Next::Transfers(transfers) => transfers.submission(),
            Next::Atoms(_) | Next::List(_) => None,
        };
        let mut submission = submission.filter(|_| self.tracks_ends())?;
        submission.tpcs = self.tpcs();
        self.predict_replay(&mut submission);
        Some(submission)
    }
}

impl<S: Storage, V: Copy + 'static> Lane<S, V> {
    /// Publishes the tenant's entries up to a GP_PUT before they are read, with the channel's token,
    /// if whatever it submits goes as it is. Returns how many; `None` if each is to be read before it
    /// goes. Then all that was published so is read: nothing passes it. A lane with copies never
    /// publishes so.
    #[inline(always)]
    pub(super) fn publish_ahead<W: Words<View = V>, P: Peers>(
        &mut self,
        rings: &impl Rings,
        governor: &mut Governor<S, P>,
        round: &mut Round<'_, S, W>,
        new: Option<(u32, u32)>,
    ) -> Option<u32> {
        let most = round.ahead.filter(|_| round.copies.is_none())?;
        let Some((target, token)) = new else {
            self.catch_up(rings, governor, round, most);
            return None;
        };
        if self.holds_back() || !governor.passes_all() {
            self.catch_up(rings, governor, round, 0);
            return None;
        }
        let count = self.pass_all(rings, target, governor.tpcs(), round.now);
        if count > 0 {
            rings.publish(self.real.put(), token);
            self.refresh_get(rings);
        }
        governor.sync(&mut self.told, self.in_flight.totals(), false);
        self.catch_up(rings, governor, round, most);
        governor.moved(round.now);
        Some(count)
    }

    /// Moves the tenant's entries up to `target` to the real ring, as far as there is room. Returns
    /// how many.
    fn pass_all(&mut self, rings: &impl Rings, target: u32, tpcs: u64, now: Ns) -> u32 {
        let mut count = Sat(0u32);
        while self.tenant.taken() != target && self.real.make_room(rings, 1) {
            let Some(entry) = self.tenant.entry(rings) else {
                break;
            };
            self.tenant.pass();
            self.in_flight.pass(tpcs, now);
            self.real.push(rings, entry, self.tenant.taken());
            count += 1;
        }
        count.0
    }

    /// Reads what was published before, but for the last `most` entries.
    fn catch_up<W: Words<View = V>, P: Peers>(
        &mut self,
        rings: &impl Rings,
        governor: &mut Governor<S, P>,
        round: &mut Round<'_, S, W>,
        most: u32,
    ) {
        // The tenant may write over an entry once the GPU has fetched it.
        let most = most.min(self.tenant.entries() / 4);
        while self.tenant.unread() > most {
            self.in_flight.read();
            let Some(entry) = self.tenant.read(rings) else {
                continue;
            };
            self.stream.published = true;
            let next = governor.process(&mut self.stream, entry, round);
            self.stream.published = false;
            self.stream.acquire = None;
            let submission = governor.observe(&next, &self.stream, round);
            self.track(submission, next.replays(), false, governor, round.now);
        }
    }
}
