// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Decides which channels from before a limit can be shadowed.
//!
//! Terminology
//!   native     a channel with its tenant's ring and USERD
//!   shadowed   a native channel whose tenant has other pages in place of these: its mailbox. The
//!              GPU still reads the tenant's own, which only the driver writes
//!
//! The pages of a mailbox take the place of whole pages. What else lies there the GPU and the
//! tenant would no longer see of each other. So a channel can be shadowed only if its ring and its
//! USERD are alone in their pages among those of all channels of the open file. What a page holds
//! behind USERD is not known; libcuda has nothing there.

use super::kit::PAGE;
use super::Mailbox;
use crate::rmapi::Handle;
use crate::units::Sat;

/// Most entries of a ring that is shadowed. A ring is copied while nobody may fault on the GPU.
pub const SHADOW_ENTRIES_MAX: u32 = 1 << 13;

/// Most channels of an open file that are looked at. A file with more has none shadowed.
pub const CHANNELS_MAX: usize = 1024;

/// Most memory objects of an open file whose mappings can be replaced.
pub const SHEETS_MAX: usize = 1024;

/// Most bytes of such a mapping: they are mapped page by page.
pub const PANE_BYTES_MAX: u64 = 16 << 20;

/// A channel of an open file, as its tenant has allocated it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Unique among all channels, and higher than those of earlier ones.
    pub number: u64,
    /// The client.
    pub client: Handle,
    /// The channel.
    pub channel: Handle,
    /// Where its ring and its USERD lie.
    pub mailbox: Mailbox,
    /// Its address space.
    pub space: Handle,
}

/// Consecutive pages of a memory object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pages {
    /// The memory object.
    pub memory: Handle,
    /// The first page.
    pub first: u64,
    /// How many there are.
    pub count: u64,
}

impl Pages {
    fn of(memory: Handle, offset: u64, bytes: u64) -> Self {
        let end = offset.saturating_add(bytes).div_ceil(PAGE);
        Self {
            memory,
            first: offset / PAGE,
            count: (Sat(end) - Sat(offset / PAGE)).0,
        }
    }

    fn overlap(&self, other: &Self) -> bool {
        self.memory == other.memory
            && self.first < other.first.saturating_add(other.count)
            && other.first < self.first.saturating_add(self.count)
    }
}

impl Seen {
    /// Returns the pages of the ring, and that of USERD.
    pub fn pages(&self) -> [Pages; 2] {
        let Mailbox { ring, userd, .. } = self.mailbox;
        [
            Pages::of(ring.memory, ring.offset, self.mailbox.ring_bytes()),
            Pages::of(userd.memory, userd.offset, super::USERD_BYTES),
        ]
    }

    /// Returns whether a page holds a part of both channels.
    fn shares_page(&self, other: &Self) -> bool {
        let [ring, userd] = other.pages();
        let overlaps = |own: &Pages| own.overlap(&ring) || own.overlap(&userd);
        self.client == other.client && self.pages().iter().any(overlaps)
    }

    /// Returns whether the ring fills pages, not too many, and USERD lies in one other page.
    fn has_pages(&self) -> bool {
        let [ring, userd] = self.pages();
        let is_whole =
            self.mailbox.ring.offset % PAGE == 0 && self.mailbox.ring_bytes() % PAGE == 0;
        let is_short = self.mailbox.entries <= SHADOW_ENTRIES_MAX;
        is_whole && is_short && userd.count == 1 && !ring.overlap(&userd)
    }

    /// Returns whether the channel can be shadowed beside all others of its open file.
    pub fn can_be_shadowed(&self, all: &[Self]) -> bool {
        let mut others = all.iter().filter(|other| other.number != self.number);
        self.has_pages() && !others.any(|other| self.shares_page(other))
    }

    /// Returns whether a new channel would stand still: its tenant writes to pages in place of
    /// those that the GPU reads. `is_shadowed` says which channels have such pages.
    pub fn stands_still(&self, all: &[Self], is_shadowed: impl Fn(&Self) -> bool) -> bool {
        let mut all = all.iter();
        all.any(|other| is_shadowed(other) && self.shares_page(other))
    }
}

#[cfg(test)]
mod tests {
    use super::super::maps::Place;
    use super::*;

    /// Returns a channel as libcuda makes them: 12 KiB each, of which the last page has USERD.
    fn seen(number: u64, ring: u64, userd: u64) -> Seen {
        let place = |offset| Place { memory: 9, offset };
        Seen {
            number,
            client: 1,
            channel: 2,
            mailbox: Mailbox {
                ring: place(ring),
                entries: 1024,
                userd: place(userd),
            },
            space: 3,
        }
    }

    #[test]
    fn channels_with_pages_of_their_own_can_be_shadowed() {
        let all: std::vec::Vec<_> = (0..10)
            .map(|n| seen(n, n * 0x3000, n * 0x3000 + 0x2000))
            .collect();
        assert!(all.iter().all(|one| one.can_be_shadowed(&all)));
        assert_eq!(
            all[1].pages().map(|pages| (pages.first, pages.count)),
            [(3, 2), (5, 1)]
        );
    }

    #[test]
    fn channels_that_share_a_page_cannot() {
        // Two USERDs in a page.
        let pair = [seen(1, 0, 0x2000), seen(2, 0x3000, 0x2200)];
        assert!(!pair.iter().any(|one| one.can_be_shadowed(&pair)));
        // USERD at the end of another channel's ring, and of its own.
        let pair = [seen(1, 0, 0x2000), seen(2, 0x3000, 0x1e00)];
        assert!(!pair.iter().any(|one| one.can_be_shadowed(&pair)));
        let own = [seen(1, 0, 0x1e00)];
        assert!(!own[0].can_be_shadowed(&own));
        // The same offsets of another memory object, or of another client.
        let mut other = seen(2, 0x3000, 0x2200);
        other.mailbox.userd.memory = 10;
        let pair = [seen(1, 0, 0x2000), other];
        assert!(pair.iter().all(|one| one.can_be_shadowed(&pair)));
        let mut other = seen(2, 0x3000, 0x2200);
        other.client = 4;
        let pair = [seen(1, 0, 0x2000), other];
        assert!(pair.iter().all(|one| one.can_be_shadowed(&pair)));
    }

    #[test]
    fn rings_that_are_no_pages_and_long_ones_cannot() {
        let alone = |one: Seen| one.can_be_shadowed(&[one]);
        assert!(alone(seen(1, 0x1000, 0)));
        assert!(!alone(seen(1, 0x1008, 0)));
        // USERD across the end of a page.
        assert!(!alone(seen(1, 0x4000, 0xf00)));
        let with_entries = |entries| {
            let mut one = seen(1, 0x1000, 0);
            one.mailbox.entries = entries;
            alone(one)
        };
        assert!(with_entries(512) && !with_entries(500) && !with_entries(2));
        assert!(with_entries(SHADOW_ENTRIES_MAX) && !with_entries(2 * SHADOW_ENTRIES_MAX));
        // Numbers of a tenant that lies.
        for at in [u64::MAX, u64::MAX - 0x1fff] {
            assert!(!alone(seen(1, at, at)));
        }
    }

    #[test]
    fn a_new_channel_stands_still_in_pages_of_a_shadowed_one() {
        let all = [seen(1, 0, 0x2000), seen(2, 0x3000, 0x5000)];
        let late = seen(3, 0x6000, 0x2200);
        assert!(late.stands_still(&all, |one| one.number == 1));
        assert!(!late.stands_still(&all, |one| one.number == 2));
        assert!(!seen(3, 0x6000, 0x8000).stands_still(&all, |_| true));
    }
}
