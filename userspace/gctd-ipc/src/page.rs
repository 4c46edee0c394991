// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Publishes limits to a process on a GPU, and its counters to the daemon, through a shared page.
//!
//! The daemon writes the limits, the process the counters. Either side may write anything there.

use crate::seqlock::Seqlock;
use crate::shared::Shareable;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use gct_core::gpu_time::{GpuTime, Hold};
use gct_core::launches::{EffectiveTpcs, Launches};
use gct_core::mask::TpcMask;
use gct_core::policy::share::{DutyCycle, Level, Share};
use gct_core::settings::Settings;
use gct_core::submit::stats::{Counters, Reason};
use gct_core::topology::Topology;
use gct_core::units::{Ns, Us, Weight};
use rustix::thread::futex;
use std::time::Duration;

/// Words of a set of TPCs.
pub const MASK_WORDS: usize = 4;

/// A set of TPCs. TPC 0 is the lowest bit of the first word.
pub type MaskWords = [u64; MASK_WORDS];

/// Most reasons that the page has room for. The core has fewer.
const REASONS_MAX: usize = 64;
const _: () = assert!(Reason::COUNT <= REASONS_MAX);

/// Most reasons to hold work back that the page has room for.
const HOLDS_MAX: usize = 8;
const _: () = assert!(Hold::COUNT <= HOLDS_MAX);

const LIMIT_WORDS: usize = 18;

/// The effective limits of a process on a GPU: its own combined with those of its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The TPCs that the process may use; `None` for all.
    pub tpcs: Option<MaskWords>,
    /// The number of TPCs that are reserved for the process; `None` without a quota.
    pub quota: Option<u16>,
    /// Whether the process may borrow idle TPCs.
    pub steal: bool,
    /// Duration of an atom in nanoseconds. Launches predicted to run longer are split; 0 for never.
    pub atom_ns: u64,
    /// Whether the process must publish no work.
    pub frozen: bool,
    /// The time slice of its channel groups in microseconds; 0 for the driver's default.
    pub timeslice_us: u32,
    /// The priority among neighbours; 0 is the highest.
    pub priority: u8,
    /// The limit of device memory in bytes; `u64::MAX` for none. The daemon enforces it. The
    /// library reports it to programs that ask how much memory there is.
    pub gmem_limit: u64,
    /// The TPCs of the GPU.
    pub topology: Topology,
    /// The limits on its time, its own beside its group's.
    pub share: Share,
}

impl Limits {
    /// No limits.
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
        share: Share::NONE,
    };

    /// Converts the core's settings for a GPU.
    pub fn new(settings: &Settings, topology: &Topology, share: &Share) -> Self {
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
            share: *share,
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
            weight_bits(self.share.owner) | weight_bits(self.share.own) << 16,
            cycle_word(self.share.owner),
            cycle_word(self.share.own),
        ]
    }

    fn from_words(words: &[u64; LIMIT_WORDS]) -> Self {
        let [flags, a, b, c, d, quota, atom_ns, slice, priority, gmem_limit, e, f, g, h, gpcs, weights, owner, own] =
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
            share: Share {
                owner: level(weights, owner),
                own: level(weights >> 16, own),
            },
        }
    }
}

/// Returns a weight in 16 bits; 0 if nobody wrote one.
fn weight_bits(level: Level) -> u64 {
    u64::from(level.weight.map_or(0, Weight::get))
}

/// Returns a duty cycle's quota and period in microseconds, 32 bits each; 0 without one.
fn cycle_word(level: Level) -> u64 {
    let us = |time: Ns| (time.get() / 1000).min(u64::from(u32::MAX));
    level
        .max
        .map_or(0, |max| us(max.quota) << 32 | us(max.period))
}

/// Returns the limits of [`weight_bits`] and [`cycle_word`].
fn level(weight: u64, cycle: u64) -> Level {
    let ns = |us: u64| Us(us).to_ns().unwrap_or(Ns::MAX);
    let max = DutyCycle {
        quota: ns(cycle >> 32),
        period: ns(cycle & u64::from(u32::MAX)),
    };
    Level {
        // CAST: 16 bits were stored.
        weight: Some(Weight(weight as u16)).filter(|weight| weight.get() > 0),
        max: Some(max).filter(|max| max.quota > Ns(0) && max.period > Ns(0)),
    }
}

/// A counter that only its process writes.
pub type Counter = AtomicU64;

/// The counters of a process. They only grow.
#[derive(Debug)]
#[repr(C)]
pub struct ProcessCounters {
    /// Launches.
    pub launches: Counter,
    /// Launches whose TPC mask was written.
    pub masked: Counter,
    /// Launches that were split.
    pub split: Counter,
    /// Atoms of split launches.
    pub atoms: Counter,
    /// Launches that the whole GPU could hold at once, and the granted TPCs cannot.
    pub narrowed: Counter,
    /// Stalls of work in flight.
    pub stalled: Counter,
    /// Channels that are not managed because the library could not interpret them.
    pub unmanaged: Counter,
    /// Segments that could not be read.
    pub unreadable: Counter,
    /// Channel groups that the GPU ended because of an error, and the Xid of the last.
    faults: Counter,
    last_xid: AtomicU32,
    _unused: AtomicU32,
    /// The generation of the limits that the process has applied.
    acknowledged: AtomicU64,
    /// The state of [`EffectiveTpcs`], then the words of its mask.
    effective: [AtomicU64; MASK_WORDS + 1],
    /// The times of [`GpuTime`] in nanoseconds, and what is pending now.
    used: Counter,
    weighted: Counter,
    waited: Counter,
    held: [Counter; HOLDS_MAX],
    pending: AtomicU64,
    /// Launches that passed unchanged, by the core's reason.
    kept: [Counter; REASONS_MAX],
}

/// The page. A new page is all zero: no limits, nothing counted.
#[derive(Debug)]
#[repr(C)]
pub struct Page {
    limits: Seqlock<LIMIT_WORDS>,
    /// A futex that the daemon increments when this or another page of the same connection has
    /// changed. The process can sleep on any of its pages.
    bell: AtomicU32,
    _unused: AtomicU32,
    /// The counters, which the process writes.
    pub counters: ProcessCounters,
}

// SAFETY: all parts consist of atomics.
unsafe impl Shareable for Page {}

impl Page {
    /// Returns the generation of the limits; 0 before the first. One load.
    pub fn generation(&self) -> u64 {
        self.limits.generation()
    }

    /// Returns the limits with their generation; `None` if they cannot be read. The reader then
    /// keeps its last limits.
    pub fn limits(&self) -> Option<(u64, Limits)> {
        let (generation, words) = self.limits.read()?;
        (generation > 0).then(|| (generation, Limits::from_words(&words)))
    }

    /// Sets the limits. The daemon passes generation 1, 2, and so on.
    pub fn set_limits(&self, generation: u64, limits: &Limits) {
        self.limits.write(generation, &limits.words());
    }

    /// Wakes the threads in [`Page::wait`]. After a change, the daemon rings all pages of a
    /// connection.
    pub fn ring(&self) {
        self.bell.fetch_add(1, Ordering::Release);
        // No thread may be waiting, which is no error.
        let _ = futex::wake(&self.bell, futex::Flags::empty(), u32::MAX);
    }

    /// Returns how often the daemon has rung.
    pub fn rings(&self) -> u32 {
        self.bell.load(Ordering::Acquire)
    }

    /// Sleeps until the daemon has rung again since [`Page::rings`] returned `rings`, for `timeout`
    /// at most.
    pub fn wait(&self, rings: u32, timeout: Duration) {
        let timeout = futex::Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(timeout.subsec_nanos()),
        };
        // A spurious wakeup is harmless: the caller checks the pages.
        let _ = futex::wait(&self.bell, futex::Flags::empty(), rings, Some(&timeout));
    }

    /// Records, in the process, that the limits of a generation hold from the next launch on.
    pub fn acknowledge(&self, generation: u64) {
        self.counters
            .acknowledged
            .store(generation, Ordering::Release);
    }

    /// Returns the generation that the process has applied.
    pub fn acknowledged(&self) -> u64 {
        self.counters.acknowledged.load(Ordering::Acquire)
    }

    /// Records, in the process, the TPCs that the last launch was granted; `None` for all.
    pub fn set_effective(&self, tpcs: Option<MaskWords>) {
        let [known, words @ ..] = &self.counters.effective;
        for (to, from) in words.iter().zip(tpcs.unwrap_or_default()) {
            to.store(from, Ordering::Relaxed);
        }
        known.store(1 + u64::from(tpcs.is_some()), Ordering::Release);
    }

    /// Returns the TPCs that the last launch was granted. The words of one launch may be mixed
    /// with those of the next.
    pub fn effective(&self) -> EffectiveTpcs {
        let [known, words @ ..] = &self.counters.effective;
        let known = known.load(Ordering::Acquire);
        let words = core::array::from_fn(|i| {
            let word: Option<&AtomicU64> = words.get(i);
            word.map_or(0, |w| w.load(Ordering::Relaxed))
        });
        match known {
            0 => EffectiveTpcs::Unknown,
            2 => EffectiveTpcs::Mask(TpcMask::from_words(words)),
            _ => EffectiveTpcs::All,
        }
    }

    /// Publishes, in the process, what its core counted.
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

    /// Publishes, in the process, its time on the GPU and what is pending.
    pub fn set_time(&self, time: &GpuTime, pending: u64) {
        let set = |counter: &Counter, value: Ns| counter.store(value.get(), Ordering::Relaxed);
        set(&self.counters.used, time.used);
        set(&self.counters.weighted, time.weighted);
        set(&self.counters.waited, time.waited);
        for (counter, held) in self.counters.held.iter().zip(time.held) {
            set(counter, held);
        }
        self.counters.pending.store(pending, Ordering::Relaxed);
    }

    /// Returns the time that the process says it had of the GPU.
    pub fn time(&self) -> GpuTime {
        let get = |counter: &Counter| Ns(counter.load(Ordering::Relaxed));
        let mut time = GpuTime {
            used: get(&self.counters.used),
            weighted: get(&self.counters.weighted),
            waited: get(&self.counters.waited),
            ..GpuTime::ZERO
        };
        for (held, counter) in time.held.iter_mut().zip(&self.counters.held) {
            *held = get(counter);
        }
        time
    }

    /// Returns how many launches, atoms and entries are in flight or held back.
    pub fn pending(&self) -> u64 {
        self.counters.pending.load(Ordering::Relaxed)
    }

    /// Counts, in the process, a channel group that the GPU has ended.
    pub fn fault(&self, xid: u32) {
        self.counters.last_xid.store(xid, Ordering::Relaxed);
        self.counters.faults.fetch_add(1, Ordering::Release);
    }

    /// Returns how many channel groups of the process the GPU has ended, and the last Xid.
    pub fn faults(&self) -> (u64, u32) {
        let count = self.counters.faults.load(Ordering::Acquire);
        (count, self.counters.last_xid.load(Ordering::Relaxed))
    }

    /// Returns the counted launches.
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
            Limits::new(&Settings::DEFAULT, &Topology::UNKNOWN, &Share::NONE),
            Limits::NONE
        );
    }

    #[test]
    fn a_ring_wakes_the_waiting_thread() {
        let (fd, page) = SharedFd::create::<Page>("page").unwrap();
        let theirs = crate::shared::Shared::<Page>::open(fd.writable()).unwrap();
        let started = std::time::Instant::now();
        let rings = theirs.rings();
        let waiting = std::thread::spawn(move || {
            theirs.wait(rings, Duration::from_secs(20));
            // The second wait returns at once: the bell has rung since.
            theirs.wait(rings, Duration::from_secs(20));
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
        assert_eq!(page.effective(), EffectiveTpcs::Unknown);
        page.set_effective(None);
        assert_eq!(page.effective(), EffectiveTpcs::All);
        page.set_effective(Some([1, 2, 3, 4]));
        assert_eq!(
            page.effective(),
            EffectiveTpcs::Mask(TpcMask::from_words([1, 2, 3, 4]))
        );
    }

    #[test]
    fn times_arrive() {
        let (_fd, page) = SharedFd::create::<Page>("page").unwrap();
        assert_eq!((page.time(), page.pending()), (GpuTime::ZERO, 0));
        let mut time = GpuTime::ZERO;
        time.use_time(Ns(10), 1, 2);
        let mut holds = gct_core::gpu_time::Holds::default();
        holds.add(Hold::Max);
        time.wait(Ns(7), holds);
        page.set_time(&time, 3);
        assert_eq!((page.time(), page.pending()), (time, 3));
    }

    proptest! {
        #[test]
        fn limits_survive_the_page(
            tpcs: Option<MaskWords>, quota: Option<u16>, steal: bool, atom_ns: u64,
            frozen: bool, timeslice_us: u32, priority: u8, gmem_limit: u64, topology: [u64; 5],
            weights: [Option<u16>; 2], cycles: [Option<(u32, u32)>; 2],
        ) {
            let level = |at: usize| Level {
                weight: weights[at].map(|weight| Weight(weight.max(1))),
                max: cycles[at].map(|(quota, period)| DutyCycle {
                    quota: Ns(u64::from(quota.max(1)) * 1000),
                    period: Ns(u64::from(period.max(1)) * 1000),
                }),
            };
            let share = Share { owner: level(0), own: level(1) };
            let topology = Topology::from_words(topology);
            let limits = Limits {
                tpcs, quota, steal, atom_ns, frozen, timeslice_us, priority, gmem_limit, topology,
                share,
            };
            prop_assert_eq!(Limits::from_words(&limits.words()), limits);
        }

        /// Checks that arbitrary words decode to limits without a panic.
        #[test]
        fn any_words_are_limits(words: [u64; LIMIT_WORDS]) {
            let limits = Limits::from_words(&words);
            prop_assert_eq!(Limits::from_words(&limits.words()), limits);
        }
    }
}
