// SPDX-License-Identifier: GPL-2.0 OR MIT

//! One channel: its shadow ring, its real ring, and what was published.

use crate::rm::{ChannelParams, Object};
use crate::scratch::Scratch;
use crate::shadow::{device_write_barrier, Shadow};
use core::sync::atomic::{AtomicU32, Ordering};
use gct_core::submit::gpfifo::Fetch;
use gct_core::submit::tracker::Tracker;

/// USERD's GP_GET, in bytes (`clc86f.h`, `NVC86F_...Control.GPGet`).
const GP_GET: usize = 0x88;
/// USERD's GP_PUT, in bytes.
const GP_PUT: usize = 0x8c;
/// The doorbell register in a usermode object's page (`clc361.h`).
pub(crate) const DOORBELL: usize = 0x90;

/// The most entries that a ring may have: GP_PUT has 22 usable bits in RM.
const ENTRIES_MAX: u32 = 1 << 22;

/// What decides about an entry before it goes to the GPU.
pub(crate) trait Gate {
    /// Whether anything of this tenant may be published now.
    fn open(&self) -> bool;
    /// Looks at, and may edit or replace, the segment of one ring entry; returns the entry
    /// to publish.
    fn pass(&mut self, stream: &mut Stream, entry: u64, around: &mut Around<'_>) -> u64;
}

/// What the core remembers of one channel from entry to entry.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) fetch: Fetch,
    pub(crate) tracker: Tracker,
}

/// What a gate may use of the session.
pub(crate) struct Around<'a> {
    /// Finds the tenant's memory.
    pub(crate) find: &'a Find<'a>,
    /// Room for what replaces a segment.
    pub(crate) scratch: Option<&'a mut Scratch>,
}

/// Finds the tenant's memory at a GPU address, so many bytes long.
pub(crate) type Find<'a> = dyn Fn(u64, usize) -> Option<usize> + 'a;

/// A managed channel.
#[derive(Debug)]
pub(crate) struct Channel {
    pub(crate) object: Object,
    params: ChannelParams,
    userd: usize,
    token: Option<u32>,
    published: u32,
    stream: Stream,
}

impl Channel {
    /// A channel whose ring and USERD both lie in `shadow`; `None` when they do not.
    pub(crate) fn new(
        object: Object,
        class: u16,
        params: ChannelParams,
        userd: usize,
        shadow: &Shadow,
    ) -> Option<Self> {
        // CAST: addresses are 64 bits wide where this driver runs.
        let ring = params.ring_va as usize;
        let len = usize::try_from(params.entries).ok()?.checked_mul(8)?;
        let fits = params.entries > 0
            && params.entries <= ENTRIES_MAX
            && ring % 8 == 0
            && shadow.covers(ring, len)
            && shadow.covers(userd, GP_PUT + 4);
        fits.then_some(Self {
            object,
            params,
            userd,
            token: None,
            published: 0,
            stream: Stream {
                fetch: Fetch::new(),
                tracker: Tracker::new(class),
            },
        })
    }

    /// Whether the ring lies in `shadow`.
    pub(crate) fn lives_in(&self, shadow: &Shadow) -> bool {
        shadow.contains(self.userd)
    }

    /// Whether ring or USERD reach to or beyond `addr`.
    pub(crate) fn reaches(&self, addr: usize) -> bool {
        self.entry_at(self.params.entries) > addr || self.userd + GP_PUT + 4 > addr
    }

    /// Learns the token that rings this channel's doorbell.
    pub(crate) fn set_token(&mut self, token: u32) {
        self.token = Some(token);
    }

    /// The address of ring entry `index`, as the tenant sees it.
    fn entry_at(&self, index: u32) -> usize {
        // CAST: `new` checked that the whole ring is addressable.
        self.params.ring_va as usize + index as usize * 8
    }

    /// Publishes what the tenant has added, if `gate` lets it; returns how many entries.
    ///
    /// `doorbell` is the real doorbell page's register.
    pub(crate) fn publish(
        &mut self,
        shadow: &Shadow,
        gate: &mut dyn Gate,
        around: &mut Around<'_>,
        doorbell: &AtomicU32,
    ) -> u32 {
        let Some(put) = shadow.word(self.userd + GP_PUT) else {
            return 0;
        };
        let target = put.tenant.load(Ordering::Acquire);
        let Some(token) = self.token else { return 0 };
        if target == self.published || target >= self.params.entries || !gate.open() {
            return 0;
        }
        let mut index = self.published;
        let mut count = 0;
        while index != target {
            if let Some(entry) = shadow.entry(self.entry_at(index)) {
                let word = entry.tenant.load(Ordering::Relaxed);
                let word = gate.pass(&mut self.stream, word, around);
                entry.real.store(word, Ordering::Relaxed);
            }
            index = if index + 1 == self.params.entries {
                0
            } else {
                index + 1
            };
            count += 1;
        }
        device_write_barrier();
        put.real.store(target, Ordering::Relaxed);
        device_write_barrier();
        doorbell.store(token, Ordering::Relaxed);
        self.published = target;
        self.refresh_get(shadow, target);
        count
    }

    /// Tells the tenant how far the GPU has read, but only once half the ring is in
    /// flight: GP_GET lies across the bus, and a read costs most of a microsecond.
    pub(crate) fn refresh_get(&self, shadow: &Shadow, put: u32) {
        let Some(get) = shadow.word(self.userd + GP_GET) else {
            return;
        };
        let entries = self.params.entries;
        let seen = get.tenant.load(Ordering::Relaxed);
        let outstanding = (put + entries).wrapping_sub(seen) % entries;
        if outstanding > entries / 2 {
            get.tenant
                .store(get.real.load(Ordering::Relaxed), Ordering::Release);
        }
    }

    /// Whether the ring is so full that the tenant may be waiting for GP_GET to move.
    pub(crate) fn crowded(&self, shadow: &Shadow) -> bool {
        let Some(get) = shadow.word(self.userd + GP_GET) else {
            return false;
        };
        let entries = self.params.entries;
        let seen = get.tenant.load(Ordering::Relaxed);
        (self.published + entries).wrapping_sub(seen) % entries > entries / 2
    }

    /// GP_PUT as last published.
    pub(crate) fn published(&self) -> u32 {
        self.published
    }
}
