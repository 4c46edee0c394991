// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Takes entries from the tenant's ring, and publishes them when the governor admits them.

use super::governor::{Governor, Peers};
use super::in_flight::{Fence, InFlightQueue, Submission};
use super::next::Next;
use super::real::Real;
use super::ring::RealRing;
use super::split::ADDED_WORDS;
use super::tenant::TenantRing;
use super::whole;
use super::words::{Control, Rings, Side, Storage, Words};
use super::work::{Round, Stream};
use crate::gpu_time::{Held, Hold};
use crate::policy::pace::InFlight;
use crate::submit::gpfifo::{Entry, Segment};
use crate::submit::rewrite::fills;
use crate::units::{Ns, Sat};

/// The most entries of a ring: RM uses 22 bits of GP_PUT.
pub const ENTRIES_MAX: u32 = 1 << 22;

/// Entries for one of a tenant with copies: it and the end of its batch, each behind a base.
const ENTRIES: u32 = 4;

/// The state of one channel between the tenant's ring and the real ring.
pub struct Lane<S: Storage, V: 'static> {
    pub(super) token: Option<u32>,
    pub(super) tenant: TenantRing,
    /// The processed entry that is not published completely.
    waiting: Option<Next<V>>,
    pub(super) real: Real<S::Slots<u32>>,
    pub(super) in_flight: InFlightQueue<S, V>,
    /// What the governor knows of the work in flight.
    pub(super) told: InFlight,
    /// The tenant's entries that the last round did not publish completely.
    held: u64,
    /// Whether an entry was refused. Nothing is published any more.
    refused: bool,
    pub(super) stream: Stream<S, V>,
}

impl<S: Storage, V: Copy + 'static> Lane<S, V> {
    /// Creates the lane of a channel that has processed nothing: GP_GET and GP_PUT are 0 on both
    /// sides. The tenant's ring has `entries` entries, 2 to [`ENTRIES_MAX`].
    pub fn new(
        entries: u32,
        ring: RealRing<S::Slots<u32>>,
        in_flight: InFlightQueue<S, V>,
        stream: Stream<S, V>,
    ) -> Self {
        Self {
            token: None,
            tenant: TenantRing::new(entries),
            waiting: None,
            real: Real::new(ring),
            in_flight,
            told: InFlight::default(),
            held: 0,
            refused: false,
            stream,
        }
    }

    /// Goes on with a channel that its tenant has used. The real ring is as long as the tenant's:
    /// its entries before `put` are the tenant's own, and the GPU has read those before `get`.
    /// Returns false, and changes nothing, if one is no index. Nothing was processed before.
    pub fn resume(&mut self, get: u32, put: u32) -> bool {
        let is_resumed = self.real.resume(get, put);
        if is_resumed {
            self.tenant.resume(put);
        }
        is_resumed
    }

    /// Learns the token that rings the channel's doorbell. Nothing is published before.
    pub fn set_token(&mut self, token: u32) {
        self.token = Some(token);
    }

    /// Returns whether work is held back, or in flight and watched.
    pub fn is_pending(&self, rings: &impl Rings) -> bool {
        self.is_awaited(rings, true)
    }

    /// Returns whether work is in flight and watched.
    pub fn is_watched(&self) -> bool {
        self.in_flight.is_watched()
    }

    /// Returns whether the backend must look soon although nothing rings: work is held back, or in
    /// flight and its end is awaited. `awaits` is [`Governor::awaits_ends`]. A launch that was never
    /// timed is awaited, too.
    pub fn is_awaited(&self, rings: &impl Rings, awaits: bool) -> bool {
        let in_flight = self.is_watched() && (awaits || self.in_flight.has_unknown());
        self.holds_back() || in_flight || self.tenant.has_more(rings)
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
        self.stream.rest = None;
        self.in_flight.forget(|_| true);
        governor.sync(&mut self.told, self.in_flight.totals(), true);
    }

    /// Returns whether atoms of a launch, pieces of copies or launches of a list wait for their release.
    pub fn is_split(&self) -> bool {
        match &self.waiting {
            Some(Next::Atoms(_)) => true,
            Some(Next::Transfers(transfers)) => transfers.is_cut(),
            Some(Next::List(list)) => list.is_split(),
            Some(Next::Whole { .. }) | None => false,
        }
    }

    /// Returns whether the last round has left nothing that is held back, in flight or to be
    /// fetched. Reads nothing of the channel.
    pub fn is_quiet(&self) -> bool {
        self.held == 0 && !self.is_on_gpu()
    }

    /// Returns whether the last round has left work in flight or to be fetched.
    pub fn is_on_gpu(&self) -> bool {
        self.in_flight.totals().count > 0 || !self.real.is_fetched()
    }

    /// Returns whether an entry that was taken from the tenant is not published completely.
    pub(super) fn holds_back(&self) -> bool {
        self.waiting.is_some() || self.stream.rest.is_some()
    }

    /// Returns whether no work is known to be in flight, and the tenant's words end between two
    /// entries.
    pub(super) fn is_between_entries(&self) -> bool {
        let is_processing = self.holds_back() || self.refused;
        let is_idle = !is_processing && self.in_flight.totals().count == 0;
        is_idle && self.stream.tracker.is_between_bursts()
    }

    /// Returns whether the tenant has added entries since the last time.
    pub fn has_news(&mut self, rings: &impl Rings) -> bool {
        self.tenant.has_news(rings)
    }

    /// Returns whether the ring is so full that the tenant may be waiting for GP_GET to advance.
    pub fn is_crowded(&self, rings: &impl Rings) -> bool {
        self.tenant.is_crowded(rings)
    }

    /// Returns whether nothing is held back, in flight, or waiting for room.
    pub fn rests(&self, rings: &impl Rings) -> bool {
        !self.is_pending(rings) && self.in_flight.totals().count == 0 && !self.is_crowded(rings)
    }

    /// Returns the real ring's GP_PUT.
    pub fn published(&self) -> u32 {
        self.real.put()
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
        governor.me.shares.leave(self.in_flight.totals(), self.held);
        count
    }

    /// Returns how many of the tenant's entries are not published completely.
    fn held(&self, rings: &impl Rings) -> u64 {
        let behind = self.tenant.behind(rings);
        u64::from(behind).saturating_add(u64::from(self.holds_back()))
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
        let nothing = !self.holds_back() && self.tenant.taken() == target;
        let goes = !nothing && self.tenant.is_index(target) && governor.is_open(now);
        let new = goes.then_some((target, token));
        if let Some(count) = self.publish_ahead(rings, governor, round, new) {
            return count;
        }
        if !goes {
            return 0;
        }
        let (mut count, mut rung) = (Sat(0u32), Sat(0u32));
        while round.turn > 0 && round.words > 0 && self.publish_next(rings, governor, round, target)
        {
            count += 1;
            let is_last = u32::from(self.waiting.is_none());
            round.turn = round.turn.saturating_sub(is_last);
            // The GPU begins while the rest is processed: a graph's replay may have 13 entries. Where
            // copies are made, their batch ends with an entry of its own.
            if round.copies.is_none() && count.0.is_power_of_two() {
                rings.publish(self.real.put(), token);
                rung = count;
            }
        }
        if let Some(Next::Whole {
            seal: Some(seal), ..
        }) = &mut self.waiting
        {
            governor.settle(seal, round);
            if governor.take_refused() {
                self.refuse(governor);
            }
        }
        if count > Sat(0) {
            self.close(rings, round);
            governor.moved(now);
            if rung < count {
                rings.publish(self.real.put(), token);
            }
            self.refresh_get(rings);
        }
        count.0
    }

    /// Publishes the next entry. Returns false if there is none, or if it must keep waiting.
    ///
    /// It is no part of the loop around it, which most turns pass once: the compiler would do work
    /// before the loop for further entries.
    #[inline(never)]
    fn publish_next<W: Words<View = V>, P: Peers>(
        &mut self,
        rings: &impl Rings,
        governor: &mut Governor<S, P>,
        round: &mut Round<'_, S, W>,
        target: u32,
    ) -> bool {
        self.process_next(rings, governor, round, target)
            && self.real.make_room(rings, 1)
            && self.push(rings, governor, round)
    }

    /// Updates the queue: removes submissions that have ended, and counts a stall.
    pub(super) fn update_in_flight<P: Peers>(
        &mut self,
        governor: &mut Governor<S, P>,
        memory: &impl Words<View = V>,
        now: Ns,
    ) {
        let moved = self.in_flight.moved();
        let rate = &mut self.stream.rate;
        self.in_flight
            .remove_ended(memory, now, |submission, end| match submission.bytes {
                0 => governor.learn(submission, &end, now),
                bytes => {
                    if governor.may_learn(submission, &end) {
                        rate.learn(bytes, end.time, end.error);
                    }
                    governor.me.shares.record_end(end.at);
                }
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
        if self.stream.rest.is_some() {
            return self.read_on(rings, governor, round);
        }
        if self.tenant.taken() == target {
            return false;
        }
        let Some(entry) = self.tenant.entry(rings) else {
            return false;
        };
        if !self.can_process(rings, entry, governor, round) {
            return false;
        }
        let next = governor.process(&mut self.stream, entry, round);
        self.tenant.advance();
        self.take_next(next, governor)
    }

    /// Takes what was processed. Returns whether it waits to be published.
    #[inline]
    pub(super) fn take_next<P: Peers>(
        &mut self,
        next: Next<V>,
        governor: &mut Governor<S, P>,
    ) -> bool {
        self.waiting = Some(next);
        if governor.take_refused() {
            self.refuse(governor);
        }
        self.waiting.is_some()
    }

    /// Returns whether an entry need not wait for its words to be mapped, for room for its nodes, or
    /// for room for its copy, and for a second one if its launch may be split.
    fn can_process<W: Words<View = V>>(
        &mut self,
        rings: &impl Rings,
        entry: u64,
        governor: &Governor<S, impl Peers>,
        round: &mut Round<'_, S, W>,
    ) -> bool {
        if round.copies.is_none() {
            return true;
        }
        let mut fetch = self.stream.fetch;
        match fetch.decode(entry) {
            Entry::Segment(segment) => self.can_read(rings, &segment, governor, round),
            _ => self.real.make_room(rings, ENTRIES),
        }
    }

    /// Returns whether a segment need not wait as [`can_process`](Self::can_process) says.
    pub(super) fn can_read<W: Words<View = V>>(
        &mut self,
        rings: &impl Rings,
        segment: &Segment,
        governor: &Governor<S, impl Peers>,
        round: &mut Round<'_, S, W>,
    ) -> bool {
        // CAST: widening.
        let count = round.work.at_once(segment.words) as usize;
        let Some(copies) = round.copies.as_deref_mut() else {
            return true;
        };
        if !self.real.make_room(rings, ENTRIES) || governor.lacks_nodes(self.stream.found.len()) {
            return false;
        }
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
        let filled = match fills::are_looked_for(count) {
            true => placed.saturating_add(fills::ADDED_WORDS),
            false => placed,
        };
        let need = match governor.may_split() && both <= copies.most() {
            true => both.max(filled).min(copies.most()),
            false => filled.min(copies.most()).max(count),
        };
        if copies.has_room(need) {
            return true;
        }
        self.real.read_get(rings);
        copies.free(round.memory, self.real.fetched_count());
        copies.has_room(need) || count > copies.most()
    }

    /// Ends a batch of copies, unless the tenant's words go on in the next segment.
    fn close<W: Words<View = V>>(&mut self, rings: &impl Rings, round: &mut Round<'_, S, W>) {
        let tracker = &self.stream.tracker;
        let Some(copies) = round.copies.as_deref_mut() else {
            return;
        };
        let entry_next = match self.stream.rest {
            Some(_) => self.tenant.before_taken(),
            None => self.tenant.taken(),
        };
        // What waits was scanned, so the registers are those behind it.
        if self.waiting.is_some() || !tracker.is_between_bursts() || self.real.room() < 2 {
            return;
        }
        let pushed = self.real.pushed_count();
        let registers = tracker.semaphore_registers();
        if let Some(entry) = copies.close(round.memory, pushed, registers) {
            self.real.set_base(rings, 0, self.tenant.before_taken());
            self.real.push(rings, entry, entry_next);
        }
    }

    /// Prepares the next entry if it is of a list of launches. Returns false if it must keep waiting.
    #[cold]
    #[inline(never)]
    fn prepare_list<W: Words<View = V>, P: Peers>(
        &mut self,
        governor: &mut Governor<S, P>,
        round: &mut Round<'_, S, W>,
    ) -> bool {
        let Some(Next::List(list)) = &mut self.waiting else {
            return false;
        };
        let freed = governor.list_again(list, &mut self.stream, round);
        if governor.take_refused() {
            self.refuse(governor);
            return false;
        }
        if let Some(entry) = freed {
            self.waiting = Some(Next::plain(entry, Some(0)));
        }
        match &self.waiting {
            Some(Next::List(list)) => {
                list.is_ready(&self.stream, round.slots.as_deref_mut(), round.memory)
            }
            _ => true,
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
        let unfetched = match waiting {
            Next::Transfers(transfers) if round.copies.is_some() => transfers.unfetched_most(),
            _ => None,
        };
        let is_fetched = unfetched.is_none_or(|most| {
            self.real.read_get(rings);
            (self.real.pushed_count() - self.real.fetched_count()).0 <= most
        });
        let is_ready = is_fetched && waiting.is_ready(round.memory);
        if !(is_ready || self.prepare_list(governor, round)) {
            governor.hold(Held::until(Hold::Atoms, Ns::MAX));
            return false;
        }
        let Some(waiting) = &mut self.waiting else {
            return false;
        };
        if self.in_flight.totals().count == 0 && self.stream.acquires(round.memory, round.now) {
            return false;
        }
        let decision = governor.admits(&self.in_flight, &self.stream, waiting, round.now);
        let Ok(late) = decision else {
            return false;
        };
        let base = match waiting {
            Next::Whole { base, .. } => *base,
            Next::Atoms(_) | Next::List(_) => Some(0),
            Next::Transfers(transfers) => transfers.base,
        };
        // The GPU passes it with the first piece. The program may set the word back then.
        self.stream.acquire = None;
        let (word, submission, last) = governor.release(&mut self.stream, waiting, round);
        let replays = waiting.replays();
        if governor.take_refused() {
            self.refuse(governor);
            return false;
        }
        // The tenant's entry counts as read once the last entry that replaces it is.
        let tenant_next = match last && self.stream.rest.is_none() {
            true => self.tenant.taken(),
            false => self.tenant.before_taken(),
        };
        if last {
            self.waiting = None;
        }
        if let Some(base) = base.filter(|_| round.copies.is_some()) {
            self.real.set_base(rings, base, self.tenant.before_taken());
        }
        self.real.push(rings, word, tenant_next);
        self.track(submission, replays, late, governor, round.now);
        true
    }

    /// Follows what was published to its end, if there is one.
    #[inline(always)]
    pub(super) fn track<P: Peers>(
        &mut self,
        submission: Option<Submission<V>>,
        replays: bool,
        late: bool,
        governor: &mut Governor<S, P>,
        now: Ns,
    ) {
        let Some(submission) = submission else { return };
        self.in_flight.published(submission, late, now);
        let ends = self.stream.replay.ends.iter().flatten();
        for fence in ends.filter(|_| replays) {
            let submission = Submission {
                fence: *fence,
                ..submission
            };
            self.in_flight.published(submission, late, now);
        }
        governor.sync(&mut self.told, self.in_flight.totals(), false);
    }

    /// Updates the tenant's GP_GET if entries are in flight. Returns whether the GPU has read any
    /// since the last time.
    pub fn follow_get(&mut self, rings: &impl Rings) -> bool {
        self.real.follow_get(rings)
    }

    /// Updates the tenant's GP_GET, but only once half its ring is in flight: GP_GET lies across
    /// the bus, and a read costs most of a microsecond.
    pub fn refresh_get(&mut self, rings: &impl Rings) {
        if self.is_crowded(rings) {
            self.real.read_get(rings);
        }
    }
}

impl<S: Storage, V: 'static> core::fmt::Debug for Lane<S, V> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let mut fields = f.debug_struct("Lane");
        fields.field("tenant", &self.tenant).finish_non_exhaustive()
    }
}
