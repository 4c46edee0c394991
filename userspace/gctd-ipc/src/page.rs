// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The page of one process on one GPU.
//!
//! The daemon writes the limits, the process the counters. Both are words of a file that the
//! two map; what the other side wrote may be anything.

use crate::seqlock::Seqlock;
use crate::shared::Shareable;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use gct_core::launches::Launches;
use gct_core::settings::Settings;
use gct_core::submit::stats::{Counters, Reason};
use gct_core::topology::Topology;
use rustix::thread::futex;
use std::time::Duration;

/// Words of a set of TPCs, lowest TPC in the lowest bit of the first.
pub const MASK_WORDS: usize = 4;

/// A set of TPCs as words.
pub type MaskWords = [u64; MASK_WORDS];

/// Reasons for which there is room; the core has fewer.
const REASONS_MAX: usize = 64;
const _: () = assert!(Reason::COUNT <= REASONS_MAX);

const LIMIT_WORDS: usize = 16;

/// What binds a process on a GPU: its own limits and its group's, made one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The TPCs that it may use; `None` for all.
    pub tpcs: Option<MaskWords>,
    /// How many TPCs are guaranteed to it; `None` for no quota.
    pub quota: Option<u16>,
    /// Whether it may take idle TPCs of others.
    pub steal: bool,
    /// Launches that are predicted to run longer are split into atoms of so many
    /// nanoseconds; 0 for none.
    pub atom_ns: u64,
    /// Nothing is published while set.
    pub frozen: bool,
    /// Time slice of its channel groups in microseconds; 0 for the driver's own.
    pub timeslice_us: u32,
    /// Order among neighbours, 0 first.
    pub priority: u8,
    /// Most device memory; `u64::MAX` for no limit. The daemon decides over allocations;
    /// this is for programs that ask how much there is.
    pub gmem_limit: u64,
    /// The GPU's TPCs.
    pub topology: Topology,
}

impl Limits {
    /// No limit.
    pub const NONE: Self = Self {
        tpcs: None,
        quota: None,
        steal: true,
        atom_ns: 0,
        frozen: false,
        timeslice_us: 0,
        priority: Settings::DEFAULT.priority_in_force().0,
        gmem_limit: u64::MAX,
        topology: Topology::UNKNOWN,
    };

    /// From the core's settings, on a GPU with such TPCs.
    pub fn new(settings: &Settings, topology: &Topology) -> Self {
        let ns = |us: u64| us.saturating_mul(1000);
        Self {
            tpcs: settings.tpc_mask.map(|mask| *mask.words()),
            quota: settings.tpc_quota.map(|tpcs| tpcs.get()),
            steal: settings.tpc_steal,
            atom_ns: settings.atom.map_or(0, |us| ns(us.get())),
            frozen: settings.freeze,
            timeslice_us: settings
                .timeslice
                .map_or(0, |us| u32::try_from(us.get()).unwrap_or(u32::MAX)),
            priority: settings.priority_in_force().0,
            gmem_limit: settings.gmem_limit.map_or(u64::MAX, |bytes| bytes.get()),
            topology: *topology,
        }
    }

    fn words(&self) -> [u64; LIMIT_WORDS] {
        let [a, b, c, d] = self.tpcs.unwrap_or_default();
        let flags = u64::from(self.tpcs.is_some())
            | u64::from(self.quota.is_some()) << 1
            | u64::from(self.steal) << 2
            | u64::from(self.frozen) << 3;
        let quota = u64::from(self.quota.unwrap_or(0));
        let slice = u64::from(self.timeslice_us);
        let priority = u64::from(self.priority);
        let [e, f, g, h, gpcs] = self.topology.to_words();
        [
            flags,
            a,
            b,
            c,
            d,
            quota,
            self.atom_ns,
            slice,
            priority,
            self.gmem_limit,
            e,
            f,
            g,
            h,
            gpcs,
            0,
        ]
    }

    fn from_words(words: &[u64; LIMIT_WORDS]) -> Self {
        let [flags, a, b, c, d, quota, atom_ns, slice, priority, gmem_limit, e, f, g, h, gpcs, _] =
            *words;
        let flag = |bit: u32| flags >> bit & 1 == 1;
        Self {
            tpcs: flag(0).then_some([a, b, c, d]),
            // CAST: 16 bits were stored.
            quota: flag(1).then_some(quota as u16),
            steal: flag(2),
            atom_ns,
            frozen: flag(3),
            // CAST: 32 bits were stored.
            timeslice_us: slice as u32,
            // CAST: 8 bits were stored.
            priority: priority as u8,
            gmem_limit,
            topology: Topology::from_words([e, f, g, h, gpcs]),
        }
    }
}

/// A counter that its process alone adds to.
pub type Counter = AtomicU64;

/// What the process did; every number only grows.
#[derive(Debug)]
#[repr(C)]
pub struct ProcessCounters {
    /// Launches found.
    pub launches: Counter,
    /// Launches whose mask was written.
    pub masked: Counter,
    /// Launches that were split.
    pub split: Counter,
    /// The atoms that they became.
    pub atoms: Counter,
    /// Launches that their TPCs do not hold at once, as the whole GPU would.
    pub narrowed: Counter,
    /// Times that what was in flight stalled.
    pub stalled: Counter,
    /// Channels that were left alone because something about them was not understood.
    pub unmanaged: Counter,
    /// Segments that could not be read.
    pub unreadable: Counter,
    /// Errors of the GPU that ended a channel group, and the Xid of the last.
    faults: Counter,
    last_xid: AtomicU32,
    _unused: AtomicU32,
    /// The generation of the limits that is in force.
    acknowledged: AtomicU64,
    /// What the last launch was given, as [`MaskWords`], and whether that is known.
    effective: [AtomicU64; MASK_WORDS + 1],
    /// Launches that went as they were, by the core's reason.
    kept: [Counter; REASONS_MAX],
}

/// The page. A new one is all zero: no generation, nothing counted.
#[derive(Debug)]
#[repr(C)]
pub struct Page {
    limits: Seqlock<LIMIT_WORDS>,
    /// Grows when there is something to look at, here or on another page of the same connection, so
    /// that the process can sleep on any of them.
    bell: AtomicU32,
    _unused: AtomicU32,
    /// What the process counts.
    pub counters: ProcessCounters,
}

// SAFETY: all parts consist of atomics, and `Shared` checks the size.
unsafe impl Shareable for Page {}

impl Page {
    /// Which generation of limits is there; one load. It is 0 before the first.
    pub fn generation(&self) -> u64 {
        self.limits.generation()
    }

    /// The limits with their generation; `None` if they cannot be read, which leaves the
    /// last ones in force.
    pub fn limits(&self) -> Option<(u64, Limits)> {
        let (generation, words) = self.limits.read()?;
        (generation > 0).then(|| (generation, Limits::from_words(&words)))
    }

    /// The daemon's: sets the limits; `generation` grows by one with each call, from 1.
    pub fn set_limits(&self, generation: u64, limits: &Limits) {
        self.limits.write(generation, &limits.words());
    }

    /// The daemon's: wakes whoever sleeps in [`Page::listen`]. All pages of a connection are rung
    /// together, after what has changed on any of them.
    pub fn ring(&self) {
        self.bell.fetch_add(1, Ordering::Release);
        // Nobody may be there to be woken.
        let _ = futex::wake(&self.bell, futex::Flags::empty(), u32::MAX);
    }

    /// How often was rung.
    pub fn rung(&self) -> u32 {
        self.bell.load(Ordering::Acquire)
    }

    /// The process's: sleeps until it was rung more than `rung` times, for `timeout` at most.
    pub fn listen(&self, rung: u32, timeout: Duration) {
        let timeout = futex::Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(timeout.subsec_nanos()),
        };
        // A wake too many is harmless: the caller looks again.
        let _ = futex::wait(&self.bell, futex::Flags::empty(), rung, Some(&timeout));
    }

    /// The process's: the limits of `generation` hold for every launch from now on.
    pub fn acknowledge(&self, generation: u64) {
        self.counters
            .acknowledged
            .store(generation, Ordering::Release);
    }

    /// Which limits the process says are in force.
    pub fn acknowledged(&self) -> u64 {
        self.counters.acknowledged.load(Ordering::Acquire)
    }

    /// The process's: tells which TPCs the last launch was given. `None`: all.
    pub fn set_effective(&self, tpcs: Option<MaskWords>) {
        let [known, words @ ..] = &self.counters.effective;
        for (to, from) in words.iter().zip(tpcs.unwrap_or_default()) {
            to.store(from, Ordering::Relaxed);
        }
        known.store(1 + u64::from(tpcs.is_some()), Ordering::Release);
    }

    /// Which TPCs the last launch was given: `None` when there was none, `Some(None)` for
    /// all. The words of one launch may be mixed with those of the next.
    pub fn effective(&self) -> Option<Option<MaskWords>> {
        let [known, words @ ..] = &self.counters.effective;
        let known = known.load(Ordering::Acquire);
        let words = core::array::from_fn(|i| {
            let word: Option<&AtomicU64> = words.get(i);
            word.map_or(0, |w| w.load(Ordering::Relaxed))
        });
        (known > 0).then(|| (known == 2).then_some(words))
    }

    /// The process's: publishes what the core counted.
    pub fn set_counters(&self, counters: &Counters) {
        let set = |counter: &Counter, value| counter.store(value, Ordering::Relaxed);
        let shown = Launches::of(counters);
        set(&self.counters.launches, shown.launches);
        set(&self.counters.masked, shown.rewritten);
        set(&self.counters.split, shown.split);
        set(&self.counters.atoms, shown.atoms);
        set(&self.counters.narrowed, shown.narrowed);
        set(&self.counters.stalled, shown.stalled);
        for (counter, count) in self.counters.kept.iter().zip(shown.passed) {
            set(counter, count);
        }
    }

    /// The process's: the GPU has ended one of its channel groups.
    pub fn fault(&self, xid: u32) {
        self.counters.last_xid.store(xid, Ordering::Relaxed);
        self.counters.faults.fetch_add(1, Ordering::Release);
    }

    /// How many channel groups of the process the GPU has ended, and the last Xid.
    pub fn faults(&self) -> (u64, u32) {
        let count = self.counters.faults.load(Ordering::Acquire);
        (count, self.counters.last_xid.load(Ordering::Relaxed))
    }

    /// What the process counted.
    pub fn launches(&self) -> Launches {
        let get = |counter: &Counter| counter.load(Ordering::Relaxed);
        let mut launches = Launches {
            launches: get(&self.counters.launches),
            rewritten: get(&self.counters.masked),
            split: get(&self.counters.split),
            atoms: get(&self.counters.atoms),
            narrowed: get(&self.counters.narrowed),
            stalled: get(&self.counters.stalled),
            ..Launches::ZERO
        };
        for (count, counter) in launches.passed.iter_mut().zip(&self.counters.kept) {
            *count = get(counter);
        }
        launches
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::SharedFd;
    use proptest::prelude::*;

    #[test]
    fn a_new_page_has_no_limits() {
        let (_fd, page) = SharedFd::create::<Page>("page").unwrap();
        assert_eq!((page.generation(), page.limits()), (0, None));
        page.set_limits(1, &Limits::NONE);
        assert_eq!(page.limits(), Some((1, Limits::NONE)));
        assert_eq!(
            Limits::new(&Settings::DEFAULT, &Topology::UNKNOWN),
            Limits::NONE
        );
    }

    #[test]
    fn whoever_listens_is_woken() {
        let (fd, page) = SharedFd::create::<Page>("page").unwrap();
        let theirs = crate::shared::Shared::<Page>::open(fd.writable()).unwrap();
        let started = std::time::Instant::now();
        let rung = theirs.rung();
        let waiting = std::thread::spawn(move || {
            theirs.listen(rung, Duration::from_secs(20));
            // What was rung before is not waited for.
            theirs.listen(rung, Duration::from_secs(20));
        });
        page.ring();
        waiting.join().unwrap();
        assert!(started.elapsed() < Duration::from_secs(10));
    }

    #[test]
    fn counters_and_masks_arrive() {
        let (_fd, page) = SharedFd::create::<Page>("page").unwrap();
        let mut counters = Counters::new();
        (counters.launches, counters.narrowed, counters.stalled) = (5, 2, 1);
        counters.keep(Reason::Queue);
        page.set_counters(&counters);
        let launches = page.launches();
        assert_eq!((launches.launches, launches.passed_total()), (5, 1));
        assert_eq!((launches.narrowed, launches.stalled), (2, 1));
        assert_eq!(launches.passed, counters.kept);
        assert_eq!(page.faults(), (0, 0));
        page.fault(31);
        page.fault(43);
        assert_eq!(page.faults(), (2, 43));
        assert_eq!(page.effective(), None);
        page.set_effective(None);
        assert_eq!(page.effective(), Some(None));
        page.set_effective(Some([1, 2, 3, 4]));
        assert_eq!(page.effective(), Some(Some([1, 2, 3, 4])));
    }

    proptest! {
        #[test]
        fn limits_survive_the_page(
            tpcs: Option<MaskWords>, quota: Option<u16>, steal: bool, atom_ns: u64,
            frozen: bool, timeslice_us: u32, priority: u8, gmem_limit: u64, topology: [u64; 5],
        ) {
            let topology = Topology::from_words(topology);
            let limits = Limits {
                tpcs, quota, steal, atom_ns, frozen, timeslice_us, priority, gmem_limit, topology,
            };
            prop_assert_eq!(Limits::from_words(&limits.words()), limits);
        }

        /// A page on which somebody scribbles is still only numbers.
        #[test]
        fn any_words_are_limits(words: [u64; LIMIT_WORDS]) {
            let limits = Limits::from_words(&words);
            prop_assert_eq!(Limits::from_words(&limits.words()), limits);
        }
    }
}
