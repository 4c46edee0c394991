// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Publishes limits to a process on a GPU, and its counters to the daemon, through a shared page.
//!
//! The daemon writes the limits, the process the counters. Either side may write anything there.

mod limits;
#[cfg(test)]
mod tests;

use crate::seqlock::Seqlock;
use crate::shared::Shareable;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use gct_core::gpu_time::{GpuTime, Hold};
use gct_core::launches::{Count, EffectiveTpcs, Launches, COUNTS};
use gct_core::mask::TpcMask;
use gct_core::policy::clock::kernels::Sums;
use gct_core::policy::slo::histogram::{self, Histogram, BUCKETS};
use gct_core::submit::reason::Reason;
use gct_core::submit::stats::Counters;
use gct_core::units::{Ns, Us};
use gct_core::unmanaged::Reason as Unmanaged;
pub use limits::Limits;
use limits::LIMIT_WORDS;
use rustix::thread::futex;
use std::time::Duration;

/// Words of a set of TPCs.
pub const MASK_WORDS: usize = 4;

/// A set of TPCs. TPC 0 is the lowest bit of the first word.
pub type MaskWords = [u64; MASK_WORDS];

/// Most reasons that the page has room for. The core has fewer.
const REASONS_MAX: usize = 64;
const _: () = assert!(Reason::COUNT <= REASONS_MAX);

/// The counters of launches that the page has in two places, since fields are appended.
const EARLY_COUNTS: usize = 13;
const LATE_COUNTS: usize = 19;
const _: () = assert!(COUNTS.len() <= EARLY_COUNTS + LATE_COUNTS);

/// Most reasons to hold work back that the page has room for.
const HOLDS_MAX: usize = 8;
const _: () = assert!(Hold::COUNT <= HOLDS_MAX);

/// Most reasons not to manage a channel that the page has room for.
const UNMANAGED_MAX: usize = 32;
const _: () = assert!(Unmanaged::COUNT <= UNMANAGED_MAX);

/// A counter that only its process writes.
pub type Counter = AtomicU64;

/// The counters of a process. They only grow.
#[derive(Debug)]
#[repr(C)]
pub struct ProcessCounters {
    /// What became of launches: the first of [`COUNTS`].
    launches: [Counter; EARLY_COUNTS],
    /// Channels that the library has not managed, on any GPU.
    unmanaged: Counter,
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
    /// Requests that have ended, by the buckets of their durations.
    requests: [Counter; BUCKETS],
    /// What was measured of launches at clocks ([`Sums`]), in nanoseconds.
    clock_base: Counter,
    clock_sensitive: Counter,
    clock_fresh: Counter,
    /// When the request began that has work now, on the monotonic clock; 0 if none has.
    open_request: AtomicU64,
    /// The channels of `unmanaged`, by reason.
    unmanaged_by: [Counter; UNMANAGED_MAX],
    /// The rest of `launches`.
    late_launches: [Counter; LATE_COUNTS],
}

impl ProcessCounters {
    /// Returns the counters of launches, each with where the page has it.
    fn counts(&self) -> impl Iterator<Item = (&'static Count, &Counter)> {
        COUNTS
            .iter()
            .zip(self.launches.iter().chain(&self.late_launches))
    }
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
        let shown = counters.shown();
        for (count, counter) in self.counters.counts() {
            set(counter, (count.get)(&shown));
        }
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

    /// Publishes, in the process, what was measured of its launches at clocks.
    pub fn set_clock_sums(&self, sums: &Sums) {
        let set = |counter: &Counter, value: Ns| counter.store(value.get(), Ordering::Relaxed);
        set(&self.counters.clock_base, sums.base);
        set(&self.counters.clock_sensitive, sums.sensitive);
        set(&self.counters.clock_fresh, sums.fresh);
    }

    /// Returns what the process says that was measured.
    pub fn clock_sums(&self) -> Sums {
        let get = |counter: &Counter| Ns(counter.load(Ordering::Relaxed));
        Sums {
            base: get(&self.counters.clock_base),
            sensitive: get(&self.counters.clock_sensitive),
            fresh: get(&self.counters.clock_fresh),
        }
    }

    /// Counts, in the process, a request that has ended.
    pub fn count_request(&self, time: Ns) {
        let bucket = histogram::bucket(Us(time.get() / 1_000));
        if let Some(count) = self.counters.requests.get(bucket) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Publishes, in the process, when the request began that has work now.
    pub fn set_open_request(&self, since: Option<Ns>) {
        let since = since.map_or(0, Ns::get);
        self.counters.open_request.store(since, Ordering::Relaxed);
    }

    /// Returns the requests that have ended.
    pub fn requests(&self) -> Histogram {
        let requests = &self.counters.requests;
        let count = |at: usize| {
            requests
                .get(at)
                .map_or(0, |count| count.load(Ordering::Relaxed))
        };
        Histogram::of(core::array::from_fn(count))
    }

    /// Returns how long the request has lasted that has work now; 0 if none has.
    pub fn open_request(&self, now: Ns) -> Ns {
        match self.counters.open_request.load(Ordering::Relaxed) {
            0 => Ns(0),
            since => now - Ns(since),
        }
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

    /// Publishes, in the process, how many channels it has not managed, by reason.
    pub fn set_unmanaged(&self, counts: impl Iterator<Item = u64>) {
        let mut all = 0;
        for (counter, count) in self.counters.unmanaged_by.iter().zip(counts) {
            counter.store(count, Ordering::Relaxed);
            all += count;
        }
        self.counters.unmanaged.store(all, Ordering::Relaxed);
    }

    /// Returns how many channels the process says it has not managed, by reason.
    pub fn unmanaged(&self) -> impl Iterator<Item = u64> + '_ {
        let counters = self.counters.unmanaged_by.iter().take(Unmanaged::COUNT);
        counters.map(|counter| counter.load(Ordering::Relaxed))
    }

    /// Returns whether there is any. A library that gives no reasons counts them, too.
    pub fn has_unmanaged(&self) -> bool {
        self.counters.unmanaged.load(Ordering::Relaxed) > 0
    }

    /// Returns the counted launches.
    pub fn launches(&self) -> Launches {
        let get = |counter: &Counter| counter.load(Ordering::Relaxed);
        let mut launches = Launches::ZERO;
        for (count, counter) in self.counters.counts() {
            (count.set)(&mut launches, get(counter));
        }
        for (count, counter) in launches.passed.iter_mut().zip(&self.counters.kept) {
            *count = get(counter);
        }
        launches
    }
}
