// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Connects the lane of a channel to its rings, its USERD and its doorbell in this process.

use crate::governor::Governor;
use crate::memory::{Heap, Run};
use crate::rm::Object;
use crate::shadow::{device_write_barrier, Pair, Shadow};
use core::sync::atomic::{AtomicU32, Ordering};
use gct_core::lane::channel::{Lane, ENTRIES_MAX};
use gct_core::lane::in_flight::{InFlightQueue, SUBMISSIONS_MAX};
use gct_core::lane::ring::RealRing;
use gct_core::lane::split::{AtomRoom, ATOMS_MAX, SLOTS_WORDS};
use gct_core::lane::words::{Control, Rings, Side, Words};
use gct_core::lane::work::{Round, Stream, LAUNCHES_MAX};
use gct_core::rmapi::channel::ChannelParams;
use gct_core::submit::rewrite::Cut;
use gct_core::submit::tracker::QmdCall;

/// USERD's GP_GET, in bytes (`clc86f.h`, `NVC86F_...Control.GPGet`).
pub(crate) const GP_GET: usize = 0x88;
/// USERD's GP_PUT, in bytes.
pub(crate) const GP_PUT: usize = 0x8c;
/// The doorbell register in a usermode object's page (`clc361.h`).
pub(crate) const DOORBELL: usize = 0x90;

/// A managed channel.
#[derive(Debug)]
pub(crate) struct Channel {
    pub(crate) object: Object,
    params: ChannelParams,
    userd: usize,
    /// Whether the last visit has left nothing to do.
    quiet: bool,
    lane: Lane<Heap, Run>,
}

/// The two sides of a channel.
struct Sides<'a> {
    shadow: &'a Shadow,
    /// The tenant's addresses of the ring and of USERD.
    ring: usize,
    userd: usize,
    /// The register of the real doorbell page, while entries are published.
    doorbell: Option<&'a AtomicU32>,
}

impl Sides<'_> {
    fn control(&self, control: Control) -> Option<Pair<'_, AtomicU32>> {
        let at = match control {
            Control::Get => GP_GET,
            Control::Put => GP_PUT,
        };
        self.shadow.word(self.userd + at)
    }

    /// Returns the tenant's address of ring entry `index`.
    fn entry_at(&self, index: u32) -> usize {
        // CAST: `Channel::fits` checked that the whole ring is addressable.
        self.ring + index as usize * 8
    }
}

impl Rings for Sides<'_> {
    #[inline]
    fn entry(&self, index: u32) -> Option<u64> {
        let entry = self.shadow.entry(self.entry_at(index))?;
        Some(entry.tenant.load(Ordering::Relaxed))
    }

    #[inline]
    fn set_entry(&self, index: u32, entry: u64) {
        if let Some(pair) = self.shadow.entry(self.entry_at(index)) {
            pair.real.store(entry, Ordering::Relaxed);
        }
    }

    #[inline]
    fn load(&self, side: Side, control: Control) -> Option<u32> {
        let pair = self.control(control)?;
        Some(match side {
            Side::Tenant => pair.tenant.load(Ordering::Acquire),
            Side::Real => pair.real.load(Ordering::Acquire),
        })
    }

    #[inline]
    fn store_get(&self, get: u32) {
        if let Some(pair) = self.control(Control::Get) {
            pair.tenant.store(get, Ordering::Release);
        }
    }

    #[inline]
    fn publish(&self, put: u32, token: u32) {
        let (Some(pair), Some(doorbell)) = (self.control(Control::Put), self.doorbell) else {
            return;
        };
        device_write_barrier();
        pair.real.store(put, Ordering::Relaxed);
        device_write_barrier();
        doorbell.store(token, Ordering::Relaxed);
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
    /// in the shadow. All room is allocated here, because a signal handler publishes.
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
        fits.then(|| {
            // CAST: a small constant.
            let cuts = vec![Cut::NONE; ATOMS_MAX as usize];
            let room = AtomRoom::new(vec![0; SLOTS_WORDS], cuts);
            let found = vec![QmdCall::default(); LAUNCHES_MAX];
            Self {
                object,
                params,
                userd,
                quiet: false,
                lane: Lane::new(
                    params.entries,
                    // CAST: `fits` has bounded the number.
                    RealRing::new(vec![0; params.entries as usize]),
                    InFlightQueue::new(vec![None; SUBMISSIONS_MAX]),
                    Stream::new(class, room, found),
                ),
            }
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
        // CAST: as in `fits`.
        let end = self.params.ring_va as usize + self.params.entries as usize * 8;
        end > addr || self.userd + GP_PUT + 4 > addr
    }

    /// Learns the token that rings this channel's doorbell.
    pub(crate) fn set_token(&mut self, token: u32) {
        self.lane.set_token(token);
    }

    fn sides<'a>(&self, shadow: &'a Shadow, doorbell: Option<&'a AtomicU32>) -> Sides<'a> {
        Sides {
            shadow,
            // CAST: as in `fits`.
            ring: self.params.ring_va as usize,
            userd: self.userd,
            doorbell,
        }
    }

    /// Returns whether work is held back, or in flight and watched.
    pub(crate) fn pending(&self, shadow: &Shadow) -> bool {
        self.lane.is_pending(&self.sides(shadow, None))
    }

    /// Returns whether work is held back, or in flight and its end is awaited.
    pub(crate) fn is_awaited(&self, shadow: &Shadow, awaits: bool) -> bool {
        self.lane.is_awaited(&self.sides(shadow, None), awaits)
    }

    /// Returns whether work is in flight and watched.
    pub(crate) fn is_watched(&self) -> bool {
        self.lane.is_watched()
    }

    /// Returns whether the tenant has added entries since the last time.
    pub(crate) fn has_news(&mut self, shadow: &Shadow) -> bool {
        let sides = self.sides(shadow, None);
        self.lane.has_news(&sides)
    }

    /// Removes submissions that have ended and publishes the tenant's new entries, as far as
    /// `governor` admits them. Returns how many entries it published.
    ///
    /// `doorbell` is the register of the real doorbell page.
    pub(crate) fn publish<W: Words<View = Run>>(
        &mut self,
        shadow: &Shadow,
        governor: &mut Governor,
        round: &mut Round<'_, Heap, W>,
        doorbell: &AtomicU32,
    ) -> u32 {
        let sides = self.sides(shadow, Some(doorbell));
        self.lane.publish(&sides, governor, round)
    }

    /// Returns the real ring's GP_PUT.
    #[cfg(test)]
    pub(crate) fn published(&self) -> u32 {
        self.lane.published()
    }

    /// Updates the tenant's GP_GET, but only once half its ring is in flight.
    pub(crate) fn refresh_get(&mut self, shadow: &Shadow) {
        let sides = self.sides(shadow, None);
        self.lane.refresh_get(&sides);
    }

    /// Returns whether the GPU may have work of the channel, or `held`: will have.
    pub(crate) fn has_work(&mut self, shadow: &Shadow, held: bool) -> bool {
        let sides = self.sides(shadow, None);
        self.lane.follow_get(&sides);
        match held {
            true => !self.lane.is_quiet(),
            false => self.lane.is_on_gpu(),
        }
    }

    /// Returns whether the ring is so full that the tenant may be waiting for GP_GET to advance.
    pub(crate) fn crowded(&self, shadow: &Shadow) -> bool {
        self.lane.is_crowded(&self.sides(shadow, None))
    }

    /// Ends a visit: remembers whether nothing is held back, in flight, or waiting for room.
    pub(crate) fn settle(&mut self, shadow: &Shadow) {
        self.quiet = self.lane.rests(&self.sides(shadow, None));
    }

    /// Returns whether the last visit has left nothing to do until the tenant adds entries. Reads
    /// nothing of the channel.
    pub(crate) fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// Removes the submissions whose fences lie in `[addr, addr + len)`, which is being unmapped.
    pub(crate) fn forget_words(&mut self, addr: usize, len: usize) {
        self.lane
            .forget(|fence| fence.view.is_in(fence.index, addr, len));
    }
}
