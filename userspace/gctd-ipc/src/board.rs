// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Who is on a GPU, what each may use, and who has work now.
//!
//! The [`Board`] of a GPU is written by the daemon and read by every process there. It has what
//! `gct_core::policy::tpc` asks of each neighbour but for its activity. That is in each process's
//! [`Pulse`], which it alone writes and its neighbours map to read: a store here is seen there
//! in the time of a cache miss, without the daemon.
//!
//! A process that lies in its pulse can keep its own TPCs from being lent, or lend them while
//! it works; nobody else's.

use crate::page::MaskWords;
use crate::seqlock::Seqlock;
use crate::shared::{ReadOnly, Shareable, Shared};
use core::sync::atomic::{AtomicU64, Ordering};

/// Processes of one GPU that can lend and take TPCs: as many as MPS has clients. Those
/// beyond keep to what is theirs.
pub const SLOTS_MAX: usize = 60;

/// Number of a process on a GPU's board.
pub type SlotIndex = u8;

const SLOT_WORDS: usize = 15;

/// What the daemon says of one process on the GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slot {
    /// Tells one user of a slot from the next; 0 for a free slot.
    pub user: u32,
    /// Processes of one group have the same tenant and share what is reserved for it; a
    /// process without a group is a tenant of its own.
    pub tenant: u32,
    /// The TPCs that are reserved for the tenant or for the process.
    pub tpcs: MaskWords,
    /// Those of them that are reserved for the process alone.
    pub alone: MaskWords,
    /// The TPCs that the process may use.
    pub allowed: MaskWords,
    /// Whether others may use what is reserved while the process is silent.
    pub lends: bool,
    /// `compute.priority`, 0 first.
    pub priority: u8,
    /// A quota of 0: the process yields to all others.
    pub best_effort: bool,
}

impl Slot {
    fn words(&self) -> [u64; SLOT_WORDS] {
        let flags = u64::from(self.lends)
            | u64::from(self.best_effort) << 1
            | u64::from(self.priority) << 8;
        let head = [u64::from(self.user), u64::from(self.tenant), flags];
        let mut words = [0; SLOT_WORDS];
        let masks = self.tpcs.iter().chain(&self.alone).chain(&self.allowed);
        for (to, word) in words.iter_mut().zip(head.iter().chain(masks)) {
            *to = *word;
        }
        words
    }

    fn from_words(words: [u64; SLOT_WORDS]) -> Self {
        let [user, tenant, flags, a, b, c, d, e, f, g, h, i, j, k, l] = words;
        Self {
            // CAST: 32 bits were stored.
            user: user as u32,
            // CAST: as above.
            tenant: tenant as u32,
            tpcs: [a, b, c, d],
            alone: [e, f, g, h],
            allowed: [i, j, k, l],
            lends: flags & 1 == 1,
            best_effort: flags >> 1 & 1 == 1,
            // CAST: 8 bits of the flags.
            priority: (flags >> 8) as u8,
        }
    }
}

/// The page of a GPU.
#[derive(Debug)]
#[repr(C)]
pub struct Board {
    generation: AtomicU64,
    slots: [Seqlock<SLOT_WORDS>; SLOTS_MAX],
}

// SAFETY: 64-bit atomics, and `Shared` checks the size.
unsafe impl Shareable for Board {}

/// The daemon's side of a board.
#[derive(Debug)]
pub struct BoardWriter {
    page: Shared<Board>,
    generation: u64,
    slots: [(u64, Slot); SLOTS_MAX],
}

impl BoardWriter {
    /// Writes to a new page, in which all slots are free.
    pub fn new(page: Shared<Board>) -> Self {
        Self {
            page,
            generation: 0,
            slots: [(0, Slot::default()); SLOTS_MAX],
        }
    }

    /// Says something else of a slot, if it is something else.
    pub fn set(&mut self, index: SlotIndex, slot: Slot) {
        let at = usize::from(index);
        let (Some((generation, known)), Some(lock)) =
            (self.slots.get_mut(at), self.page.slots.get(at))
        else {
            return;
        };
        if *known == slot {
            return;
        }
        *known = slot;
        *generation += 1;
        lock.write(*generation, &slot.words());
        self.generation += 1;
        self.page
            .generation
            .store(self.generation, Ordering::Release);
    }
}

/// A process's view of a board.
#[derive(Debug)]
pub struct BoardReader(ReadOnly<Board>);

impl BoardReader {
    /// A view of a mapped board.
    pub fn new(page: ReadOnly<Board>) -> Self {
        Self(page)
    }

    /// Grows whenever a slot changes; one load.
    pub fn generation(&self) -> u64 {
        self.0.get().generation.load(Ordering::Acquire)
    }

    /// A slot, if it is in use and not being written; the generation then grows once more.
    pub fn slot(&self, index: SlotIndex) -> Option<Slot> {
        let lock = self.0.get().slots.get(usize::from(index))?;
        let slot = Slot::from_words(lock.read()?.1);
        (slot.user != 0).then_some(slot)
    }

    /// The slots in use. One that is being written is left out; the generation then grows
    /// once more.
    pub fn slots(&self) -> impl Iterator<Item = (SlotIndex, Slot)> + '_ {
        let indices = (0..).take(SLOTS_MAX);
        indices.filter_map(|index| Some((index, self.slot(index)?)))
    }
}

/// Whether a process has work now. It writes, its neighbours read.
#[derive(Debug)]
#[repr(C)]
pub struct Pulse {
    /// 0 while it has no work; else since when, in nanoseconds of `CLOCK_MONOTONIC`.
    busy_since_ns: AtomicU64,
    /// When it last had work, in nanoseconds of `CLOCK_MONOTONIC`.
    idle_since_ns: AtomicU64,
    /// Its arrival statistics: a word of `gct_core::policy::tpc::ArrivalStats`.
    arrivals: AtomicU64,
    /// When it last gave a sign of life, while it had work that moved (`gct_core::policy::patience`).
    beat_ns: AtomicU64,
}

// SAFETY: four atomics.
unsafe impl Shareable for Pulse {}

impl Pulse {
    /// The process's: it has work from now on.
    pub fn busy(&self, now_ns: u64) {
        self.beat(now_ns);
        self.busy_since_ns.store(now_ns.max(1), Ordering::Release);
    }

    /// The process's: its work goes on. One store.
    pub fn beat(&self, now_ns: u64) {
        self.beat_ns.store(now_ns, Ordering::Relaxed);
    }

    /// The process's: it has no work.
    pub fn idle(&self, now_ns: u64) {
        self.idle_since_ns.store(now_ns, Ordering::Relaxed);
        self.busy_since_ns.store(0, Ordering::Release);
    }

    /// The process's: how it usually works.
    pub fn set_arrivals(&self, arrivals: u64) {
        self.arrivals.store(arrivals, Ordering::Relaxed);
    }

    /// Its arrival statistics, as a word of `gct_core::policy::tpc::ArrivalStats`.
    pub fn arrivals(&self) -> u64 {
        self.arrivals.load(Ordering::Relaxed)
    }

    /// Since when it has had work; `None` while it has none. One load.
    pub fn busy_since_ns(&self) -> Option<u64> {
        match self.busy_since_ns.load(Ordering::Acquire) {
            0 => None,
            since => Some(since),
        }
    }

    /// When its last work ended, or 0.
    pub fn idle_since_ns(&self) -> u64 {
        self.idle_since_ns.load(Ordering::Relaxed)
    }

    /// When it last gave a sign of life, or 0.
    pub fn beat_ns(&self) -> u64 {
        self.beat_ns.load(Ordering::Relaxed)
    }
}

/// A neighbour on the same GPU.
#[derive(Debug)]
pub struct Peer {
    /// Its slot on the board.
    pub slot: SlotIndex,
    /// The user of the slot whom the pulse belongs to.
    pub user: u32,
    pulse: ReadOnly<Pulse>,
}

impl Peer {
    /// The neighbour whose pulse is mapped here.
    pub fn new(slot: SlotIndex, user: u32, pulse: ReadOnly<Pulse>) -> Self {
        Self { slot, user, pulse }
    }

    /// Since when it has had work; `None` while it has none. One load.
    pub fn busy_since_ns(&self) -> Option<u64> {
        self.pulse.get().busy_since_ns()
    }

    /// When its last work ended, or 0.
    pub fn idle_since_ns(&self) -> u64 {
        self.pulse.get().idle_since_ns()
    }

    /// When it last gave a sign of life, or 0.
    pub fn beat_ns(&self) -> u64 {
        self.pulse.get().beat_ns()
    }

    /// Its arrival statistics, as a word of `gct_core::policy::tpc::ArrivalStats`.
    pub fn arrivals(&self) -> u64 {
        self.pulse.get().arrivals()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::SharedFd;
    use rustix::fd::AsFd;

    #[test]
    fn readers_see_what_changed() {
        let (fd, page) = SharedFd::create::<Board>("board").unwrap();
        let reader = BoardReader::new(Shared::open_read_only(fd.seal().unwrap().as_fd()).unwrap());
        let mut writer = BoardWriter::new(page);
        assert_eq!((reader.generation(), reader.slots().count()), (0, 0));
        let slot = Slot {
            user: 9,
            tenant: 2,
            tpcs: [1, 2, 3, 4],
            alone: [0, 2, 0, 4],
            allowed: [5, 6, 7, 8],
            lends: true,
            priority: 3,
            best_effort: true,
        };
        writer.set(5, slot);
        writer.set(5, slot);
        assert_eq!(reader.generation(), 1);
        assert_eq!(reader.slots().collect::<Vec<_>>(), [(5, slot)]);
        writer.set(5, Slot::default());
        assert_eq!((reader.generation(), reader.slots().count()), (2, 0));
    }

    #[test]
    fn a_pulse_is_seen_by_neighbours() {
        let (fd, pulse) = SharedFd::create::<Pulse>("pulse").unwrap();
        let peer = Peer::new(
            0,
            1,
            Shared::open_read_only(fd.seal().unwrap().as_fd()).unwrap(),
        );
        assert_eq!(peer.busy_since_ns(), None);
        pulse.busy(0);
        assert_eq!((peer.busy_since_ns(), peer.beat_ns()), (Some(1), 0));
        pulse.beat(5);
        assert_eq!(peer.beat_ns(), 5);
        pulse.idle(7);
        pulse.set_arrivals(8);
        assert_eq!((peer.busy_since_ns(), peer.idle_since_ns()), (None, 7));
        assert_eq!(peer.arrivals(), 8);
    }
}
