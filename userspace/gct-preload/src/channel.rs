// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Moves entries from one channel's shadow ring to its real ring, when the governor admits them.

use crate::governor::{Governor, Next};
use crate::memory::{Heap, Mapped, Run};
use crate::rm::Object;
use crate::shadow::{device_write_barrier, Shadow};
use core::sync::atomic::{AtomicU32, Ordering};
use gct_core::lane::in_flight::{InFlightQueue, SUBMISSIONS_MAX};
use gct_core::lane::ring::{next_index, previous_index, RealRing};
use gct_core::lane::scratch::Scratch;
use gct_core::lane::split::{AtomRoom, ATOMS_MAX, SLOTS_WORDS};
use gct_core::policy::pace::Admission;
use gct_core::rmapi::channel::ChannelParams;
use gct_core::submit::gpfifo::Fetch;
use gct_core::submit::rewrite::Cut;
use gct_core::submit::tracker::{QmdCall, Tracker};
use gct_core::units::Ns;

/// USERD's GP_GET, in bytes (`clc86f.h`, `NVC86F_...Control.GPGet`).
pub(crate) const GP_GET: usize = 0x88;
/// USERD's GP_PUT, in bytes.
pub(crate) const GP_PUT: usize = 0x8c;
/// The doorbell register in a usermode object's page (`clc361.h`).
pub(crate) const DOORBELL: usize = 0x90;

/// The most entries of a ring: RM uses 22 bits of GP_PUT.
const ENTRIES_MAX: u32 = 1 << 22;

/// The most launches of one segment that are processed. The core counts the rest. The upload of a
/// graph has several for each of its nodes.
pub(crate) const LAUNCHES_MAX: usize = 1024;

/// The state of one channel's command stream.
pub(crate) struct Stream {
    pub(crate) fetch: Fetch,
    pub(crate) tracker: Tracker,
    pub(crate) room: AtomRoom<Heap>,
    /// The launches of the segment that was processed last.
    pub(crate) found: Vec<QmdCall>,
}

/// The session's services to the governor, for one round of publishing.
pub(crate) struct SubmitCtx<'a> {
    /// The tenant's memory.
    pub(crate) memory: &'a Mapped<&'a TranslateVa<'a>>,
    /// Memory for replacement segments.
    pub(crate) scratch: Option<&'a mut Scratch<Heap, Run>>,
    /// Monotonic time.
    pub(crate) now: Ns,
}

/// Returns the address in this process of `len` bytes of the tenant's memory at a GPU address.
pub(crate) type TranslateVa<'a> = dyn Fn(u64, usize) -> Option<usize> + 'a;

/// A managed channel.
pub(crate) struct Channel {
    pub(crate) object: Object,
    params: ChannelParams,
    userd: usize,
    token: Option<u32>,
    /// The tenant's next entry to process, as an index of its ring.
    taken: u32,
    /// GP_PUT at the last check.
    seen: u32,
    /// The processed entry that is not published completely.
    waiting: Option<Next>,
    ring: RealRing<Vec<u32>>,
    in_flight: InFlightQueue<Heap, Run>,
    stream: Stream,
}

impl core::fmt::Debug for Channel {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let mut fields = f.debug_struct("Channel");
        fields.field("object", &self.object).finish_non_exhaustive()
    }
}

impl Channel {
    /// Returns whether `covers` holds for both a channel's ring and its USERD.
    pub(crate) fn fits(
        params: &ChannelParams,
        userd: usize,
        covers: impl Fn(usize, usize) -> bool,
    ) -> bool {
        // CAST: addresses are 64 bits wide where this driver runs; an entry has 8 bytes.
        let (ring, len) = (params.ring_va as usize, params.entries as usize * 8);
        params.entries > 1
            && params.entries <= ENTRIES_MAX
            && ring % 8 == 0
            && userd % 4 == 0
            && covers(ring, len)
            && covers(userd, GP_PUT + 4)
    }

    /// Creates a channel whose ring and USERD both lie in `shadow`. Returns `None` if they do not.
    /// It starts from the driver's GP_GET and GP_PUT; an earlier channel may have left other values
    /// in the shadow.
    pub(crate) fn new(
        object: Object,
        class: u16,
        params: ChannelParams,
        userd: usize,
        shadow: &Shadow,
    ) -> Option<Self> {
        let fits = Self::fits(&params, userd, |addr, len| shadow.covers(addr, len));
        for at in [GP_GET, GP_PUT].into_iter().filter(|_| fits) {
            let word = shadow.word(userd + at)?;
            let real = word.real.load(Ordering::Relaxed);
            word.tenant.store(real, Ordering::Relaxed);
        }
        fits.then(|| Self {
            object,
            params,
            userd,
            token: None,
            taken: 0,
            seen: 0,
            waiting: None,
            ring: RealRing::new(vec![0; params.entries as usize]),
            in_flight: InFlightQueue::new(vec![None; SUBMISSIONS_MAX]),
            stream: Stream {
                fetch: Fetch::new(),
                tracker: Tracker::new(class),
                room: AtomRoom::new(
                    vec![0; SLOTS_WORDS],
                    // CAST: a small constant.
                    vec![Cut::NONE; ATOMS_MAX as usize],
                ),
                found: vec![QmdCall::default(); LAUNCHES_MAX],
            },
        })
    }

    /// Returns whether its USERD is at an address.
    pub(crate) fn is_at(&self, userd: usize) -> bool {
        self.userd == userd
    }

    /// Returns whether the ring lies in `shadow`.
    pub(crate) fn lives_in(&self, shadow: &Shadow) -> bool {
        shadow.contains(self.userd)
    }

    /// Returns whether ring or USERD reach to or beyond `addr`.
    pub(crate) fn reaches(&self, addr: usize) -> bool {
        self.entry_at(self.params.entries) > addr || self.userd + GP_PUT + 4 > addr
    }

    /// Learns the token that rings this channel's doorbell.
    pub(crate) fn set_token(&mut self, token: u32) {
        self.token = Some(token);
    }

    /// Returns the tenant's address of ring entry `index`.
    fn entry_at(&self, index: u32) -> usize {
        // CAST: `new` checked that the whole ring is addressable.
        self.params.ring_va as usize + index as usize * 8
    }

    /// Returns whether work is held back, or in flight and watched.
    pub(crate) fn pending(&self, shadow: &Shadow) -> bool {
        let put = shadow.word(self.userd + GP_PUT);
        let put = put.map_or(self.taken, |put| put.tenant.load(Ordering::Relaxed));
        self.waiting.is_some() || self.in_flight.is_watched() || put != self.taken
    }

    /// Returns whether the tenant has added entries since the last time.
    pub(crate) fn has_news(&mut self, shadow: &Shadow) -> bool {
        let put = shadow.word(self.userd + GP_PUT);
        let put = put.map_or(self.seen, |put| put.tenant.load(Ordering::Relaxed));
        core::mem::replace(&mut self.seen, put) != put
    }

    /// Removes submissions that have ended and publishes the tenant's new entries, as far as
    /// `governor` admits them. Returns how many entries it published.
    ///
    /// `doorbell` is the register of the real doorbell page.
    pub(crate) fn publish(
        &mut self,
        shadow: &Shadow,
        governor: &mut Governor,
        ctx: &mut SubmitCtx<'_>,
        doorbell: &AtomicU32,
    ) -> u32 {
        let now = ctx.now;
        self.update_in_flight(governor, ctx.memory, now);
        let Some(put) = shadow.word(self.userd + GP_PUT) else {
            return 0;
        };
        let target = put.tenant.load(Ordering::Acquire);
        let Some(token) = self.token else { return 0 };
        let nothing = self.waiting.is_none() && self.taken == target;
        if nothing || target >= self.params.entries || !governor.open(now) {
            return 0;
        }
        let mut count = 0;
        while self.process_next(shadow, governor, ctx, target) {
            let held = !self.make_room(shadow) || !self.push(shadow, governor, ctx);
            if held {
                break;
            }
            count += 1;
        }
        if count > 0 {
            governor.moved(now);
            device_write_barrier();
            put.real.store(self.ring.put(), Ordering::Relaxed);
            device_write_barrier();
            doorbell.store(token, Ordering::Relaxed);
            self.refresh_get(shadow);
        }
        count
    }

    /// Updates the queue: removes submissions that have ended, and counts a stall.
    fn update_in_flight(
        &mut self,
        governor: &mut Governor,
        memory: &Mapped<&TranslateVa<'_>>,
        now: Ns,
    ) {
        let moved = self.in_flight.moved();
        self.in_flight
            .remove_ended(memory, now, |submission, time| {
                governor.learn(submission, time)
            });
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
    fn process_next(
        &mut self,
        shadow: &Shadow,
        governor: &mut Governor,
        ctx: &mut SubmitCtx<'_>,
        target: u32,
    ) -> bool {
        if self.waiting.is_some() {
            return true;
        }
        if self.taken == target {
            return false;
        }
        let Some(entry) = shadow.entry(self.entry_at(self.taken)) else {
            return false;
        };
        let word = entry.tenant.load(Ordering::Relaxed);
        self.waiting = Some(governor.process_segment(&mut self.stream, word, ctx));
        self.taken = next_index(self.taken, self.params.entries);
        true
    }

    /// Returns whether the real ring has room for one more entry.
    fn make_room(&mut self, shadow: &Shadow) -> bool {
        if self.ring.is_full() {
            self.read_get(shadow);
        }
        !self.ring.is_full()
    }

    /// Publishes the next entry of the waiting work. Returns false if it must keep waiting.
    fn push(&mut self, shadow: &Shadow, governor: &mut Governor, ctx: &mut SubmitCtx<'_>) -> bool {
        let Some(waiting) = &mut self.waiting else {
            return false;
        };
        let late = match governor.admits(&self.in_flight, &self.stream, waiting, ctx.now) {
            Admission::Held => return false,
            Admission::InTurn => false,
            Admission::Late => true,
        };
        let (word, submission, last) = governor.release(&mut self.stream, waiting, ctx);
        // The tenant's entry counts as read once the last entry that replaces it is.
        let before = previous_index(self.taken, self.params.entries);
        let tenant_next = if last { self.taken } else { before };
        if last {
            self.waiting = None;
        }
        if let Some(entry) = shadow.entry(self.entry_at(self.ring.put())) {
            entry.real.store(word, Ordering::Relaxed);
        }
        self.ring.pushed(tenant_next);
        if let Some(submission) = submission {
            self.in_flight.published(submission, late, ctx.now);
        }
        true
    }

    /// Returns the real ring's GP_PUT.
    #[cfg(test)]
    pub(crate) fn published(&self) -> u32 {
        self.ring.put()
    }

    /// Reads GP_GET and stores the tenant's GP_GET for it.
    fn read_get(&mut self, shadow: &Shadow) {
        let Some(get) = shadow.word(self.userd + GP_GET) else {
            return;
        };
        if let Some(tenant) = self.ring.read_up_to(get.real.load(Ordering::Relaxed)) {
            get.tenant.store(tenant, Ordering::Release);
        }
    }

    /// Updates the tenant's GP_GET, but only once half its ring is in flight: GP_GET lies across
    /// the bus, and a read costs most of a microsecond.
    pub(crate) fn refresh_get(&mut self, shadow: &Shadow) {
        if self.crowded(shadow) {
            self.read_get(shadow);
        }
    }

    /// Returns whether the ring is so full that the tenant may be waiting for GP_GET to advance.
    pub(crate) fn crowded(&self, shadow: &Shadow) -> bool {
        let words = [GP_GET, GP_PUT].map(|at| {
            let word = shadow.word(self.userd + at);
            word.map_or(0, |word| word.tenant.load(Ordering::Relaxed))
        });
        let [get, put] = words;
        let entries = self.params.entries;
        let in_flight = match put.checked_sub(get) {
            Some(in_flight) => in_flight,
            None => put.wrapping_add(entries).wrapping_sub(get),
        };
        in_flight > entries / 2
    }

    /// Returns whether nothing is held back, in flight, or waiting for room.
    pub(crate) fn rests(&self, shadow: &Shadow) -> bool {
        !self.pending(shadow) && self.in_flight.totals().count == 0 && !self.crowded(shadow)
    }

    /// Removes the submissions whose fences lie in `[addr, addr + len)`, which is being unmapped.
    pub(crate) fn forget_words(&mut self, addr: usize, len: usize) {
        self.in_flight
            .forget(|fence| fence.view.is_in(fence.index, addr, len));
    }
}
