// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Moves entries from the tenant's ring to the real ring, when the governor admits them.

use super::governor::{Governor, Peers};
use super::in_flight::{Fence, InFlightQueue, Submission};
use super::ring::{next_index, previous_index, RealRing};
use super::split::ADDED_WORDS;
use super::whole;
use super::words::{Control, Rings, Side, Storage, Words};
use super::work::{Next, Round, Stream};
use crate::policy::pace::{Admission, InFlight};
use crate::submit::gpfifo::{self, Entry};
use crate::units::{Ns, Sat};

/// The most entries of a ring: RM uses 22 bits of GP_PUT.
pub const ENTRIES_MAX: u32 = 1 << 22;

/// The state of one channel between the tenant's ring and the real ring.
pub struct Lane<S: Storage, V: 'static> {
    /// The entries of the tenant's ring.
    entries: u32,
    token: Option<u32>,
    /// The tenant's next entry to process, as an index of its ring.
    taken: u32,
    /// GP_PUT at the last check.
    seen: u32,
    /// The entry at `taken`, if it was loaded and not processed.
    loaded: Option<u64>,
    /// The processed entry that is not published completely.
    waiting: Option<Next<V>>,
    /// The extended base of the real ring, where the lane sets it.
    base: u32,
    ring: RealRing<S::Slots<u32>>,
    in_flight: InFlightQueue<S, V>,
    /// What the governor knows of the work in flight.
    told: InFlight,
    /// The tenant's entries that the last round did not publish completely.
    held: u64,
    /// Whether an entry was refused. Nothing is published any more.
    refused: bool,
    stream: Stream<S>,
}

impl<S: Storage, V: Copy + 'static> Lane<S, V> {
    /// Creates the lane of a channel that has processed nothing: GP_GET and GP_PUT are 0 on both
    /// sides. The tenant's ring has `entries` entries, 2 to [`ENTRIES_MAX`].
    pub fn new(
        entries: u32,
        ring: RealRing<S::Slots<u32>>,
        in_flight: InFlightQueue<S, V>,
        stream: Stream<S>,
    ) -> Self {
        Self {
            entries,
            token: None,
            taken: 0,
            seen: 0,
            loaded: None,
            waiting: None,
            base: 0,
            ring,
            in_flight,
            told: InFlight::default(),
            held: 0,
            refused: false,
            stream,
        }
    }

    /// Learns the token that rings the channel's doorbell. Nothing is published before.
    pub fn set_token(&mut self, token: u32) {
        self.token = Some(token);
    }

    /// Returns the tenant's GP_PUT, or `otherwise` if it cannot be loaded.
    fn put(rings: &impl Rings, otherwise: u32) -> u32 {
        let put = rings.load(Side::Tenant, Control::Put);
        put.unwrap_or(otherwise)
    }

    /// Returns whether work is held back, or in flight and watched.
    pub fn is_pending(&self, rings: &impl Rings) -> bool {
        self.waiting.is_some() || self.is_watched() || Self::put(rings, self.taken) != self.taken
    }

    /// Returns whether work is in flight and watched.
    pub fn is_watched(&self) -> bool {
        self.in_flight.is_watched()
    }

    /// Returns whether the last round has left work that is held back, or in flight and watched.
    /// Unlike [`is_pending`](Self::is_pending) it reads nothing of the channel.
    pub fn is_unfinished(&self) -> bool {
        self.held > 0 || self.in_flight.is_watched()
    }

    /// Returns whether an entry was refused. The backend stops the channel then.
    pub fn is_refused(&self) -> bool {
        self.refused
    }

    /// Publishes nothing any more, and forgets what is in flight.
    fn refuse<P: Peers>(&mut self, governor: &mut Governor<S, P>) {
        self.refused = true;
        self.waiting = None;
        self.in_flight.forget(|_| true);
        governor.sync(&mut self.told, self.in_flight.totals(), true);
    }

    /// Returns whether atoms of a launch wait for their release.
    pub fn is_split(&self) -> bool {
        matches!(self.waiting, Some(Next::Atoms(_)))
    }

    /// Returns whether the last round has left nothing that is held back, in flight or to be
    /// fetched. Reads nothing of the channel.
    pub fn is_quiet(&self) -> bool {
        let is_fetched = self.ring.fetched_count() == self.ring.pushed_count();
        self.held == 0 && self.in_flight.totals().count == 0 && is_fetched
    }

    /// Returns whether the tenant has added entries since the last time.
    pub fn has_news(&mut self, rings: &impl Rings) -> bool {
        let put = Self::put(rings, self.seen);
        core::mem::replace(&mut self.seen, put) != put
    }

    /// Returns whether the ring is so full that the tenant may be waiting for GP_GET to advance.
    pub fn is_crowded(&self, rings: &impl Rings) -> bool {
        let get = rings.load(Side::Tenant, Control::Get).unwrap_or(0);
        let put = Self::put(rings, 0);
        let in_flight = match put.checked_sub(get) {
            Some(in_flight) => in_flight,
            None => put.wrapping_add(self.entries).wrapping_sub(get),
        };
        in_flight > self.entries / 2
    }

    /// Returns whether nothing is held back, in flight, or waiting for room.
    pub fn rests(&self, rings: &impl Rings) -> bool {
        !self.is_pending(rings) && self.in_flight.totals().count == 0 && !self.is_crowded(rings)
    }

    /// Returns the real ring's GP_PUT.
    pub fn published(&self) -> u32 {
        self.ring.put()
    }

    /// Removes the submissions whose fences are `gone`, because their memory goes.
    pub fn forget(&mut self, gone: impl Fn(&Fence<V>) -> bool) {
        self.in_flight.forget(gone);
    }

    /// Removes submissions that have ended and publishes the tenant's new entries, as far as
    /// `governor` admits them. Returns how many entries it published.
    pub fn publish<W: Words<View = V>, P: Peers>(
        &mut self,
        rings: &impl Rings,
        governor: &mut Governor<S, P>,
        round: &mut Round<'_, S, W>,
    ) -> u32 {
        let mut count = 0;
        if !self.refused {
            self.update_in_flight(governor, round.memory, round.now);
            count = self.publish_new(rings, governor, round);
        }
        self.held = match self.refused {
            true => 0,
            false => self.held(rings),
        };
        governor.leave(self.in_flight.totals(), self.held);
        count
    }

    /// Returns how many of the tenant's entries are not published completely.
    fn held(&self, rings: &impl Rings) -> u64 {
        let put = Self::put(rings, self.taken).min(self.entries);
        let behind = match put.checked_sub(self.taken) {
            Some(behind) => behind,
            None => put.wrapping_add(self.entries).wrapping_sub(self.taken),
        };
        u64::from(behind).saturating_add(u64::from(self.waiting.is_some()))
    }

    /// Publishes the tenant's new entries, as far as `governor` admits them.
    fn publish_new<W: Words<View = V>, P: Peers>(
        &mut self,
        rings: &impl Rings,
        governor: &mut Governor<S, P>,
        round: &mut Round<'_, S, W>,
    ) -> u32 {
        let now = round.now;
        round.work.rounds += 1;
        let target = rings.load(Side::Tenant, Control::Put);
        let (Some(target), Some(token)) = (target, self.token) else {
            return 0;
        };
        let nothing = self.waiting.is_none() && self.taken == target;
        if nothing || target >= self.entries || !governor.is_open(now) {
            return 0;
        }
        let mut count = Sat(0u32);
        let mut turn = round.turn;
        while turn > 0 && self.process_next(rings, governor, round, target) {
            if !self.make_room(rings, 1) || !self.push(rings, governor, round) {
                break;
            }
            count += 1;
            turn = turn.saturating_sub(u32::from(self.waiting.is_none()));
        }
        if count > Sat(0) {
            self.close(rings, round);
            governor.moved(now);
            rings.publish(self.ring.put(), token);
            self.refresh_get(rings);
        }
        count.0
    }

    /// Updates the queue: removes submissions that have ended, and counts a stall.
    fn update_in_flight<P: Peers>(
        &mut self,
        governor: &mut Governor<S, P>,
        memory: &impl Words<View = V>,
        now: Ns,
    ) {
        let moved = self.in_flight.moved();
        self.in_flight
            .remove_ended(memory, now, |submission, time, at| {
                governor.learn(submission, time, at);
            });
        governor.sync(&mut self.told, self.in_flight.totals(), true);
        if self.in_flight.moved() != moved {
            governor.moved(now);
        }
        if governor.excuses() {
            self.in_flight.excuse(now);
        } else if self.in_flight.stalls(now) {
            governor.count_stalled();
        }
    }

    /// Processes the next entry of the tenant if none waits. Returns whether one waits to be
    /// published.
    fn process_next<W: Words<View = V>, P: Peers>(
        &mut self,
        rings: &impl Rings,
        governor: &mut Governor<S, P>,
        round: &mut Round<'_, S, W>,
        target: u32,
    ) -> bool {
        if self.waiting.is_some() {
            return true;
        }
        if self.taken == target {
            return false;
        }
        let Some(entry) = self.loaded.or_else(|| rings.entry(self.taken)) else {
            return false;
        };
        // The tenant may change its ring, so what was decided on is what will be processed.
        self.loaded = Some(entry);
        if !self.can_process(rings, entry, governor.may_split(), round) {
            return false;
        }
        self.loaded = None;
        self.waiting = Some(governor.process(&mut self.stream, entry, round));
        self.taken = next_index(self.taken, self.entries);
        if governor.take_refused() {
            self.refuse(governor);
        }
        self.waiting.is_some()
    }

    /// Returns whether an entry need not wait for its words to be mapped, or for room for its copy,
    /// and for a second one if its launch may be split.
    fn can_process<W: Words<View = V>>(
        &mut self,
        rings: &impl Rings,
        entry: u64,
        may_split: bool,
        round: &mut Round<'_, S, W>,
    ) -> bool {
        /// The entry and the end of its batch, each behind a base.
        const ENTRIES: u32 = 4;
        let Some(copies) = round.copies.as_deref_mut() else {
            return true;
        };
        if !self.make_room(rings, ENTRIES) {
            return false;
        }
        let mut fetch = self.stream.fetch;
        let Entry::Segment(segment) = fetch.decode(entry) else {
            return true;
        };
        // CAST: widening.
        let count = segment.words as usize;
        if round.memory.is_coming(segment.va, count) {
            return false;
        }
        let slots = round.slots.as_deref_mut();
        let finds_slots = slots.map(|slots| slots.has_room(round.memory));
        let placed = match finds_slots {
            // The launches before have not ended.
            Some(false) => return false,
            Some(true) => count.saturating_add(whole::ADDED_WORDS),
            None => count,
        };
        let both = count.saturating_mul(2).saturating_add(ADDED_WORDS);
        let need = match may_split && both <= copies.most() {
            true => both,
            false => placed.min(copies.most()).max(count),
        };
        if !copies.has_room(need) {
            self.read_get(rings);
            copies.free(round.memory, self.ring.fetched_count());
        }
        copies.has_room(need) || count > copies.most()
    }

    /// Returns whether the real ring has room for so many more entries.
    fn make_room(&mut self, rings: &impl Rings, count: u32) -> bool {
        if self.ring.room() < count {
            self.read_get(rings);
        }
        self.ring.room() >= count
    }

    /// Ends a batch of copies, unless the tenant's words go on in the next segment.
    fn close<W: Words<View = V>>(&mut self, rings: &impl Rings, round: &mut Round<'_, S, W>) {
        let tracker = &self.stream.tracker;
        let Some(copies) = round.copies.as_deref_mut() else {
            return;
        };
        // What waits was scanned, so the registers are those behind it.
        if self.waiting.is_some() || !tracker.is_between_bursts() || self.ring.room() < 2 {
            return;
        }
        let pushed = self.ring.pushed_count();
        let registers = tracker.semaphore_registers();
        if let Some(entry) = copies.close(round.memory, pushed, registers) {
            self.set_base(rings, 0);
            rings.set_entry(self.ring.put(), entry);
            self.ring.pushed(self.taken);
        }
    }

    /// Has the next entry's addresses begin with a base.
    fn set_base(&mut self, rings: &impl Rings, base: u32) {
        if base != self.base {
            self.base = base;
            let entry = Entry::Control(gpfifo::Control::ExtendedBase(base));
            rings.set_entry(self.ring.put(), entry.encode());
            self.ring.pushed(previous_index(self.taken, self.entries));
        }
    }

    /// Publishes the next entry of the waiting work. Returns false if it must keep waiting.
    fn push<W: Words<View = V>, P: Peers>(
        &mut self,
        rings: &impl Rings,
        governor: &mut Governor<S, P>,
        round: &mut Round<'_, S, W>,
    ) -> bool {
        let Some(waiting) = &mut self.waiting else {
            return false;
        };
        if !waiting.is_ready(round.memory) {
            governor.wait_for_atoms();
            return false;
        }
        let late = match governor.admits(&self.in_flight, &self.stream, waiting, round.now) {
            Admission::Held => return false,
            Admission::InTurn => false,
            Admission::Late => true,
        };
        let base = match waiting {
            Next::Whole { base, .. } => *base,
            Next::Atoms(_) => Some(0),
        };
        let (word, submission, last) = governor.release(&mut self.stream, waiting, round);
        let ends = waiting.ends();
        if governor.take_refused() {
            self.refuse(governor);
            return false;
        }
        // The tenant's entry counts as read once the last entry that replaces it is.
        let tenant_next = match last {
            true => self.taken,
            false => previous_index(self.taken, self.entries),
        };
        if last {
            self.waiting = None;
        }
        if let Some(base) = base.filter(|_| round.copies.is_some()) {
            self.set_base(rings, base);
        }
        rings.set_entry(self.ring.put(), word);
        self.ring.pushed(tenant_next);
        if let Some(submission) = submission {
            let fences = core::iter::once(submission.fence).chain(ends.into_iter().flatten());
            for fence in fences {
                let submission = Submission {
                    fence,
                    ..submission
                };
                self.in_flight.published(submission, late, round.now);
            }
            governor.sync(&mut self.told, self.in_flight.totals(), false);
        }
        true
    }

    /// Reads GP_GET and stores the tenant's GP_GET for it.
    fn read_get(&mut self, rings: &impl Rings) {
        let get = rings.load(Side::Real, Control::Get);
        if let Some(tenant) = get.and_then(|get| self.ring.read_up_to(get)) {
            rings.store_get(tenant);
        }
    }

    /// Updates the tenant's GP_GET if entries are in flight. Returns whether the GPU has read any
    /// since the last time.
    pub fn follow_get(&mut self, rings: &impl Rings) -> bool {
        let before = self.ring.fetched_count();
        if before != self.ring.pushed_count() {
            self.read_get(rings);
        }
        before != self.ring.fetched_count()
    }

    /// Updates the tenant's GP_GET, but only once half its ring is in flight: GP_GET lies across
    /// the bus, and a read costs most of a microsecond.
    pub fn refresh_get(&mut self, rings: &impl Rings) {
        if self.is_crowded(rings) {
            self.read_get(rings);
        }
    }
}

impl<S: Storage, V: 'static> core::fmt::Debug for Lane<S, V> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let mut fields = f.debug_struct("Lane");
        fields.field("taken", &self.taken).field("seen", &self.seen);
        fields.finish_non_exhaustive()
    }
}
