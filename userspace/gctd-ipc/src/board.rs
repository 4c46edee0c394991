// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Shows each process on a GPU the reservations and the activity of its neighbours.
//!
//! Terminology
//!   board  reservations and priorities of the processes on a GPU; the daemon writes it
//!   slot   the entry of one process on the board
//!   pulse  the activity of one process; the process writes it, and its neighbours map it
//!
//! Board and pulses hold the input of `gct_core::policy::tpc`. A neighbour sees a store to a pulse
//! after a cache miss, without the daemon.
//!
//! A process that lies in its pulse can keep its own TPCs from being lent, or lend them while it
//! works. It cannot affect the TPCs of others. Of the GPU's time it can waste its own share, and
//! its group's ([`share`](gct_core::policy::share)).

use crate::page::{MaskWords, MASK_WORDS};
use crate::seqlock::Seqlock;
use crate::shared::{ReadOnly, Shareable, Shared};
use core::sync::atomic::{AtomicU64, Ordering};
use gct_core::mask::TpcMask;
use gct_core::policy::share::{Sign, Spent, Virtual};
use gct_core::units::{Ns, Weight};

/// Most processes of one GPU that see each other: as many as MPS has clients. A further one keeps
/// to its own limits and sees those with a slot, but they do not see it.
pub const SLOTS_MAX: usize = 60;

/// The index of a slot.
pub type SlotIndex = u8;

const SLOT_WORDS: usize = 15;

/// The entry of one process on the board.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slot {
    /// A number that is different for each process that uses the slot; 0 for a free slot.
    pub user: u32,
    /// The owner of the reservation. Processes of one group have the same tenant and share its
    /// reservation. A process without a group is a tenant by itself.
    pub tenant: u32,
    /// The TPCs that are reserved for the tenant or for the process.
    pub tpcs: MaskWords,
    /// The subset that is reserved for the process alone.
    pub alone: MaskWords,
    /// The TPCs that the process may use.
    pub allowed: MaskWords,
    /// Whether others may borrow the reserved TPCs while the process is idle.
    pub lends: bool,
    /// Whether the process may not use TPCs that others lend (`tpc.steal`).
    pub confined: bool,
    /// `compute.priority`; 0 is the highest.
    pub priority: u8,
    /// Whether the process has a quota of 0 and yields to all others.
    pub best_effort: bool,
    /// `compute.weight`; `None` if nobody wrote one.
    pub weight: Option<Weight>,
}

impl Slot {
    fn words(&self) -> [u64; SLOT_WORDS] {
        let flags = u64::from(self.lends)
            | u64::from(self.best_effort) << 1
            | u64::from(self.confined) << 2
            | u64::from(self.priority) << 8
            | u64::from(self.weight.map_or(0, Weight::get)) << 16;
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
            confined: flags >> 2 & 1 == 1,
            // CAST: 8 bits of the flags.
            priority: (flags >> 8) as u8,
            // CAST: 16 bits of the flags.
            weight: Some(Weight((flags >> 16) as u16)).filter(|weight| weight.get() > 0),
        }
    }
}

/// The board of a GPU.
#[derive(Debug)]
#[repr(C)]
pub struct Board {
    generation: AtomicU64,
    slots: [Seqlock<SLOT_WORDS>; SLOTS_MAX],
}

// SAFETY: consists of 64-bit atomics.
unsafe impl Shareable for Board {}

/// The daemon's side of a board.
#[derive(Debug)]
pub struct BoardWriter {
    page: Shared<Board>,
    generation: u64,
    slots: [(u64, Slot); SLOTS_MAX],
}

impl BoardWriter {
    /// Takes a new page, in which all slots are free.
    pub fn new(page: Shared<Board>) -> Self {
        Self {
            page,
            generation: 0,
            slots: [(0, Slot::default()); SLOTS_MAX],
        }
    }

    /// Writes a slot if it has changed.
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

/// A process's side of a board.
#[derive(Debug)]
pub struct BoardReader(ReadOnly<Board>);

impl BoardReader {
    /// Takes a mapped board.
    pub fn new(page: ReadOnly<Board>) -> Self {
        Self(page)
    }

    /// Returns a number that grows whenever a slot changes. One load.
    pub fn generation(&self) -> u64 {
        self.0.get().generation.load(Ordering::Acquire)
    }

    /// Returns a slot; `None` if it is free or being written. The generation grows after a write.
    pub fn slot(&self, index: SlotIndex) -> Option<Slot> {
        let lock = self.0.get().slots.get(usize::from(index))?;
        let slot = Slot::from_words(lock.read()?.1);
        (slot.user != 0).then_some(slot)
    }

    /// Returns the slots in use, without those being written. The generation grows after a write.
    pub fn slots(&self) -> impl Iterator<Item = (SlotIndex, Slot)> + '_ {
        let indices = (0..).take(SLOTS_MAX);
        indices.filter_map(|index| Some((index, self.slot(index)?)))
    }
}

/// The activity of a process. Times are in nanoseconds of `CLOCK_MONOTONIC`.
#[derive(Debug)]
#[repr(C)]
pub struct Pulse {
    /// The time since when the process has work; 0 while it is idle.
    busy_since_ns: AtomicU64,
    /// The time when its last work ended.
    idle_since_ns: AtomicU64,
    /// Its arrival statistics: a word of `gct_core::policy::arrivals::ArrivalStats`.
    arrivals: AtomicU64,
    /// The time of its last heartbeat while its work moved (`gct_core::policy::patience`).
    beat_ns: AtomicU64,
    /// The TPCs that none of its last pieces had (`gct_core::policy::tide`): words of a `TpcMask`.
    ebb: [AtomicU64; MASK_WORDS],
    /// Its turns: words of `gct_core::policy::share::Sign`.
    at: AtomicU64,
    contends_until_ns: AtomicU64,
    runs: AtomicU64,
    spent: AtomicU64,
}

// SAFETY: consists of atomics.
unsafe impl Shareable for Pulse {}

impl Pulse {
    /// Records that the process has work from now on.
    pub fn busy(&self, now_ns: u64) {
        self.beat(now_ns);
        self.busy_since_ns.store(now_ns.max(1), Ordering::Release);
    }

    /// Records that the work of the process goes on. One store.
    pub fn beat(&self, now_ns: u64) {
        self.beat_ns.store(now_ns, Ordering::Relaxed);
    }

    /// Records that the process is idle.
    pub fn idle(&self, now_ns: u64) {
        self.idle_since_ns.store(now_ns, Ordering::Relaxed);
        self.busy_since_ns.store(0, Ordering::Release);
    }

    /// Records the arrival statistics of the process.
    pub fn set_arrivals(&self, arrivals: u64) {
        self.arrivals.store(arrivals, Ordering::Relaxed);
    }

    /// Records the TPCs that none of its last pieces had.
    pub fn set_ebb(&self, ebb: &TpcMask) {
        for (word, bits) in self.ebb.iter().zip(ebb.words()) {
            word.store(*bits, Ordering::Relaxed);
        }
    }

    /// Returns the TPCs that none of its last pieces had. The words of one round may be mixed with
    /// those of the next.
    pub fn ebb(&self) -> TpcMask {
        TpcMask::from_words(self.ebb.each_ref().map(|word| word.load(Ordering::Relaxed)))
    }

    /// Records the turns of the process. `known` is what was recorded last.
    pub fn set_sign(&self, sign: &Sign, known: &Sign) {
        let set = |word: &AtomicU64, value: u64, known: u64| {
            if value != known {
                word.store(value, Ordering::Relaxed);
            }
        };
        set(&self.at, sign.at.to_word(), known.at.to_word());
        set(&self.spent, sign.spent.to_word(), known.spent.to_word());
        set(&self.runs, u64::from(sign.runs), u64::from(known.runs));
        let (until, before) = (sign.contends_until.get(), known.contends_until.get());
        set(&self.contends_until_ns, until, before);
    }

    /// Returns the turns of the process. The words of one round may be mixed with those of the
    /// next.
    pub fn sign(&self) -> Sign {
        let get = |word: &AtomicU64| word.load(Ordering::Relaxed);
        Sign {
            at: Virtual::from_word(get(&self.at)),
            contends_until: Ns(get(&self.contends_until_ns)),
            runs: get(&self.runs) != 0,
            spent: Spent::from_word(get(&self.spent)),
        }
    }

    /// Returns its arrival statistics: a word of `gct_core::policy::arrivals::ArrivalStats`.
    pub fn arrivals(&self) -> u64 {
        self.arrivals.load(Ordering::Relaxed)
    }

    /// Returns since when the process has work; `None` while it is idle. One load.
    pub fn busy_since_ns(&self) -> Option<u64> {
        match self.busy_since_ns.load(Ordering::Acquire) {
            0 => None,
            since => Some(since),
        }
    }

    /// Returns when its last work ended, or 0.
    pub fn idle_since_ns(&self) -> u64 {
        self.idle_since_ns.load(Ordering::Relaxed)
    }

    /// Returns the time of its last heartbeat, or 0.
    pub fn beat_ns(&self) -> u64 {
        self.beat_ns.load(Ordering::Relaxed)
    }
}

/// A neighbour on the same GPU, with its pulse.
#[derive(Debug)]
pub struct Peer {
    /// Its slot on the board.
    pub slot: SlotIndex,
    /// The user of the slot at the time when the pulse was received.
    pub user: u32,
    pulse: ReadOnly<Pulse>,
}

impl Peer {
    /// Takes the mapped pulse of a neighbour.
    pub fn new(slot: SlotIndex, user: u32, pulse: ReadOnly<Pulse>) -> Self {
        Self { slot, user, pulse }
    }

    /// Returns since when the process has work; `None` while it is idle. One load.
    pub fn busy_since_ns(&self) -> Option<u64> {
        self.pulse.get().busy_since_ns()
    }

    /// Returns when its last work ended, or 0.
    pub fn idle_since_ns(&self) -> u64 {
        self.pulse.get().idle_since_ns()
    }

    /// Returns the time of its last heartbeat, or 0.
    pub fn beat_ns(&self) -> u64 {
        self.pulse.get().beat_ns()
    }

    /// Returns the TPCs that none of its last pieces had.
    pub fn ebb(&self) -> TpcMask {
        self.pulse.get().ebb()
    }

    /// Returns its turns.
    pub fn sign(&self) -> Sign {
        self.pulse.get().sign()
    }

    /// Returns its arrival statistics: a word of `gct_core::policy::arrivals::ArrivalStats`.
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
    fn readers_see_changed_slots() {
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
            confined: true,
            priority: 3,
            best_effort: true,
            weight: Some(Weight(10_000)),
        };
        writer.set(5, slot);
        writer.set(5, slot);
        assert_eq!(reader.generation(), 1);
        assert_eq!(reader.slots().collect::<Vec<_>>(), [(5, slot)]);
        writer.set(5, Slot::default());
        assert_eq!((reader.generation(), reader.slots().count()), (2, 0));
    }

    /// Checks that each field lies where it always did. New ones are appended, or have bits that
    /// were 0.
    #[test]
    fn board_and_pulse_keep_their_form() {
        use core::mem::offset_of;
        let slot = Slot {
            user: 1,
            tenant: 2,
            tpcs: [3, 4, 5, 6],
            alone: [7, 8, 9, 10],
            allowed: [11, 12, 13, 14],
            lends: true,
            confined: true,
            priority: 15,
            best_effort: true,
            weight: Some(Weight(16)),
        };
        let golden = [1, 2, 0x0010_0f07, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14];
        assert_eq!(slot.words(), golden);
        assert_eq!(size_of::<Seqlock<SLOT_WORDS>>(), 128);
        for (found, wanted) in [
            (offset_of!(Board, generation), 0),
            (offset_of!(Board, slots), 8),
            (SLOTS_MAX, 60),
            (offset_of!(Pulse, busy_since_ns), 0),
            (offset_of!(Pulse, idle_since_ns), 8),
            (offset_of!(Pulse, arrivals), 16),
            (offset_of!(Pulse, beat_ns), 24),
            (offset_of!(Pulse, ebb), 32),
            (offset_of!(Pulse, at), 64),
            (offset_of!(Pulse, contends_until_ns), 72),
            (offset_of!(Pulse, runs), 80),
            (offset_of!(Pulse, spent), 88),
        ] {
            assert_eq!(found, wanted);
        }
        let spent = Spent {
            period: 3,
            time: Ns(128),
        };
        assert_eq!(spent.to_word(), 3 << 32 | 2);
    }

    #[test]
    fn neighbours_see_a_pulse() {
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
        assert_eq!(peer.ebb(), TpcMask::EMPTY);
        for ebb in [TpcMask::first(200), TpcMask::EMPTY] {
            pulse.set_ebb(&ebb);
            assert_eq!(peer.ebb(), ebb);
        }
        pulse.set_arrivals(8);
        assert_eq!((peer.busy_since_ns(), peer.idle_since_ns()), (None, 7));
        assert_eq!(peer.arrivals(), 8);
        let sign = Sign {
            at: Virtual::from_word(9),
            contends_until: Ns::MAX,
            runs: true,
            spent: Spent {
                period: 3,
                time: Ns(128),
            },
        };
        assert_eq!(peer.sign(), Sign::default());
        pulse.set_sign(&sign, &Sign::default());
        assert_eq!(peer.sign(), sign);
        let known = Sign {
            runs: false,
            ..sign
        };
        pulse.set_sign(&Sign::default(), &known);
        assert!(peer.sign().runs, "what is known is not stored again");
    }
}
