// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Simulates a channel and its GPU for tests. Launches captured on an H200 pass through the shadow
//! ring, the governor and the real ring into the model of the launch hardware.

use crate::channel::Channel;
use crate::governor::{self, Governor, Workspace};
use crate::limits::LaunchLimits;
use crate::memory::{Heap, Mapped, Run};
use crate::rm::Object;
use crate::session::adopt::scratch_of;
use crate::shadow::Shadow;
use crate::sys;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use gct_core::lane::scratch::Scratch;
use gct_core::lane::work::Round;
use gct_core::mask::TpcMask;
use gct_core::rmapi::channel::ChannelParams;
use gct_core::submit::gpfifo::{Entry, Fetch, Segment};
use gct_core::submit::qmd::v04_00 as v04;
use gct_core::topology::Topology;
use gct_core::units::Ns;
use gct_model::{
    Anomaly, ChannelId, Config, Coverage, Fault, GuestMemory, Machine, Order, SparseMemory,
};

const ENTRIES: u32 = 8;
const RINGS_LEN: usize = 2 << 20;
const WORDS: usize = 385;
/// Blocks of the captured launch.
const BLOCKS: u64 = 1000;
/// The captured launch's release word. Its page must exist.
const RELEASE: usize = 0x2_0463_7f04;
/// The duration of one step of the simulated GPU.
const STEP_NS: u64 = 1_000;

/// Maps memory at an address that is the same for the GPU.
pub(crate) fn low_memory(at: usize, len: usize) -> usize {
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping where nothing is, or none.
    let mapped = unsafe { sys::mmap(at as *mut _, len, prot, flags, -1, 0) };
    assert_eq!(mapped as usize, at, "this test needs its addresses");
    at
}

/// The GPU's memory: the rings behind their alias, memory mapped at its own address, and the rest.
pub(crate) struct Memory {
    rings: usize,
    real: usize,
    pub(crate) mapped: Vec<(usize, usize)>,
    rest: SparseMemory,
}

impl Memory {
    fn place(&self, address: u64) -> Option<*mut u8> {
        let at = usize::try_from(address).unwrap();
        if at.wrapping_sub(self.rings) < RINGS_LEN {
            return Some((self.real + (at - self.rings)) as *mut u8);
        }
        let inside = |&(start, len): &(usize, usize)| at.wrapping_sub(start) < len;
        self.mapped.iter().any(inside).then_some(at as *mut u8)
    }
}

impl GuestMemory for Memory {
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), Fault> {
        match self.place(address) {
            // SAFETY: inside a mapping of this test.
            Some(at) => unsafe { at.copy_to_nonoverlapping(into.as_mut_ptr(), into.len()) },
            None => self.rest.read(address, into)?,
        }
        Ok(())
    }

    fn write(&mut self, address: u64, from: &[u8]) -> Result<(), Fault> {
        match self.place(address) {
            // SAFETY: as above.
            Some(at) => unsafe { at.copy_from_nonoverlapping(from.as_ptr(), from.len()) },
            None => self.rest.write(address, from)?,
        }
        Ok(())
    }
}

/// A tenant, its channel, and the GPU.
pub(crate) struct Bench {
    rings: usize,
    pushbuffers: usize,
    pub(crate) shadow: Shadow,
    pub(crate) channel: Channel,
    scratch: Scratch<Heap, Run>,
    work: Workspace,
    pub(crate) governor: Governor,
    pub(crate) machine: Machine<Memory>,
    fetch: Fetch,
    pub(crate) get: u32,
    pub(crate) put: u32,
    pub(crate) launched: u32,
    /// The most entries that are read in a later round.
    pub(crate) ahead: u32,
    now_ns: u64,
    pub(crate) doorbell: AtomicU32,
}

fn captured() -> Vec<u32> {
    words_of(include_str!(
        "../../../tests/fixtures/captures/one_launch.pbcap"
    ))
}

/// Returns the first segment of a capture.
pub(crate) fn words_of(text: &str) -> Vec<u32> {
    let line = text.lines().find(|line| line.starts_with("gp ")).unwrap();
    let words = line.split_once(" : ").unwrap().1;
    let word = |word| u32::from_str_radix(word, 16).unwrap();
    words.split_whitespace().map(word).collect()
}

impl Bench {
    /// Creates a bench.
    pub(crate) fn new(limits: LaunchLimits, order: Order) -> Self {
        let config = Config {
            order,
            ..Config::default()
        };
        Self::with(limits, config)
    }

    /// Creates a bench with a machine of this configuration.
    pub(crate) fn with(limits: LaunchLimits, config: Config) -> Self {
        Self::of(0xc86f, limits, config)
    }

    /// Creates a bench with a channel of a class, as other chips have.
    pub(crate) fn of(class: u16, limits: LaunchLimits, config: Config) -> Self {
        /// The number of the next bench. Each has addresses of its own.
        static NEXT: AtomicUsize = AtomicUsize::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let rings = low_memory(0x10_0000_0000 + number * 0x1000_0000, RINGS_LEN);
        let pushbuffers = low_memory(rings + (64 << 20), 64 << 10);
        let release = low_memory((RELEASE & !4095) + number * 0x10_0000, 4096);
        // SAFETY: one whole mapping, used by this test only.
        let shadow = unsafe { Shadow::new(rings, RINGS_LEN, true) }.unwrap();
        let (_, real, _) = shadow.upper_half();
        let scratch = scratch_of(&shadow).unwrap();
        let object = Object {
            client: 1,
            handle: 2,
        };
        let params = ChannelParams {
            error_memory: 0,
            ring_va: rings as u64,
            entries: ENTRIES,
            userd_memory: 3,
            userd_offset: 0x2000,
        };
        let mut channel = Channel::new(object, class, params, rings + 0x2000, &shadow).unwrap();
        channel.set_token(7);
        let memory = Memory {
            rings,
            real: real - RINGS_LEN / 2,
            mapped: vec![(pushbuffers, 64 << 10), (release, 4096)],
            rest: SparseMemory::new(1 << 13),
        };
        let mut governor = governor::new(limits);
        governor.set_gpu(Topology::together(TpcMask::first(128)));
        Self {
            rings,
            pushbuffers,
            shadow,
            channel,
            scratch,
            work: governor::workspace(),
            governor,
            machine: Machine::new(memory, config),
            fetch: Fetch::new(),
            get: 0,
            put: 0,
            launched: 0,
            ahead: 0,
            // The time of a machine that has been up for some time.
            now_ns: 1 << 40,
            doorbell: AtomicU32::new(0),
        }
    }

    /// Returns the word that the launches of a stream release.
    pub(crate) fn release_word(&self, stream: usize) -> &AtomicU32 {
        // SAFETY: mapped in `new`, for as long as the test runs.
        unsafe { AtomicU32::from_ptr(self.release_at(stream) as *mut u32) }
    }

    pub(crate) fn release_at(&self, stream: usize) -> usize {
        let number = (self.rings - 0x10_0000_0000) / 0x1000_0000;
        RELEASE + number * 0x10_0000 + 16 * stream
    }

    fn userd(&self, at: usize) -> crate::shadow::Pair<'_, AtomicU32> {
        self.shadow.word(self.rings + 0x2000 + at).unwrap()
    }

    /// Launches once more as the tenant. Returns false if GP_GET leaves no room.
    pub(crate) fn launch(&mut self) -> bool {
        self.launch_on(0)
    }

    /// Returns whether GP_GET leaves the tenant room for an entry.
    pub(crate) fn has_room(&self) -> bool {
        let seen = self.userd(0x88).tenant.load(Ordering::Relaxed);
        (self.put + 1) % ENTRIES != seen
    }

    /// Launches on one of the tenant's streams. Each has a release word of its own.
    pub(crate) fn launch_on(&mut self, stream: usize) -> bool {
        if !self.has_room() {
            return false;
        }
        self.launched += 1;
        let mut words = captured();
        assert_eq!(words.len(), WORDS);
        // The last upload of 96 words is the launch's QMD.
        let at = (0..WORDS - 96)
            .rev()
            .find(|&at| words[at] == 0x6060_206d)
            .unwrap()
            + 1;
        let qmd = &mut words[at..at + 96];
        v04::RELEASE_SEMAPHORE0_PAYLOAD_LOWER
            .set(qmd, self.launched)
            .unwrap();
        let word = self.release_at(stream);
        let low = u32::try_from(word & 0xffff_ffff).unwrap();
        v04::RELEASE_SEMAPHORE0_ADDR_LOWER.set(qmd, low).unwrap();
        self.submit(&words, self.put as usize * 2048);
        true
    }

    /// Submits a segment as the tenant, at this offset of its pushbuffers.
    pub(crate) fn submit(&mut self, words: &[u32], offset: usize) {
        let at = self.pushbuffers + offset;
        for (i, word) in words.iter().enumerate() {
            assert!(offset + 4 * i < 64 << 10);
            // SAFETY: inside the mapping of 64 KiB.
            unsafe { ((at + 4 * i) as *mut u32).write_volatile(*word) };
        }
        let segment = Segment {
            va: at as u64,
            words: words.len() as u32,
            subroutine: true,
            wait: false,
            conditional: false,
        };
        let entry = self
            .shadow
            .entry(self.rings + self.put as usize * 8)
            .unwrap();
        entry
            .tenant
            .store(Entry::Segment(segment).encode(), Ordering::Relaxed);
        self.put = (self.put + 1) % ENTRIES;
        self.userd(0x8c).tenant.store(self.put, Ordering::Release);
    }

    /// Publishes once, as the worker does.
    pub(crate) fn work(&mut self) {
        let mapped = self.machine.memory().mapped.clone();
        let translate = |va: u64, len: usize| {
            let at = usize::try_from(va).unwrap();
            let inside = |&(start, size): &(usize, usize)| at >= start && at + len <= start + size;
            mapped.iter().any(inside).then_some(at)
        };
        // SAFETY: mappings of this test, which stay until it ends.
        let memory = unsafe { Mapped::new(translate) };
        let mut round = Round {
            memory: &memory,
            scratch: Some(&mut self.scratch),
            copies: None,
            slots: None,
            turn: u32::MAX,
            words: u32::MAX,
            work: &mut self.work,
            now: Ns(self.now_ns),
            ahead: Some(self.ahead),
        };
        self.governor.begin(Ns(self.now_ns));
        self.channel
            .publish(&self.shadow, &mut self.governor, &mut round, &self.doorbell);
        self.channel.refresh_get(&self.shadow);
        let pending = self.channel.pending(&self.shadow);
        // As `worker::Shared::publish` does.
        if self.governor.peers().is_some() {
            governor::end(&mut self.governor, pending, Ns(self.now_ns));
        }
    }

    /// Discards the words, as processing a segment of another channel does.
    pub(crate) fn read_elsewhere(&mut self) {
        self.work = governor::workspace();
    }

    /// Lets the GPU fetch the published entries and do one thing. Returns whether it did any.
    pub(crate) fn step(&mut self) -> bool {
        let put = self.userd(0x8c).real.load(Ordering::Relaxed);
        while self.get != put {
            let at = self.rings + self.get as usize * 8;
            let entry = self.shadow.entry(at).unwrap().real.load(Ordering::Relaxed);
            let Entry::Segment(segment) = self.fetch.decode(entry) else {
                panic!("only segments are published");
            };
            let mut bytes = vec![0; segment.words as usize * 4];
            self.machine.memory().read(segment.va, &mut bytes).unwrap();
            let words: Vec<u32> = bytes
                .chunks_exact(4)
                .map(|word| u32::from_le_bytes(word.try_into().unwrap()))
                .collect();
            self.machine.submit(ChannelId(0), &words);
            self.get = (self.get + 1) % ENTRIES;
        }
        self.userd(0x88).real.store(self.get, Ordering::Relaxed);
        let moved = self.machine.step();
        self.now_ns += STEP_NS * u64::from(moved);
        moved
    }

    /// Returns whether the worker looks soon: work is held back, or in flight and awaited.
    pub(crate) fn is_awaited(&self) -> bool {
        let awaits = self.governor.awaits_ends();
        self.channel.is_awaited(&self.shadow, awaits)
    }

    /// Returns whether work is held back, or in flight and watched.
    pub(crate) fn is_pending(&self) -> bool {
        self.channel.pending(&self.shadow)
    }

    /// Returns the simulated time.
    pub(crate) fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Sets the simulated time.
    pub(crate) fn set_now(&mut self, ns: u64) {
        self.now_ns = ns;
    }

    /// Advances the simulated time.
    pub(crate) fn pass(&mut self, ns: u64) {
        self.now_ns += ns;
    }

    /// Executes everything that takes no time. Returns the grids with blocks that run. For a timed
    /// machine.
    pub(crate) fn running(&mut self) -> Vec<usize> {
        let mut quiet = 0;
        while quiet < 3 {
            self.work();
            let mut moved = false;
            while self.step() {
                moved = true;
            }
            let empty: Vec<usize> = self
                .machine
                .running()
                .filter(|run| self.blocks(*run) == 0)
                .collect();
            quiet = if moved || !empty.is_empty() {
                0
            } else {
                quiet + 1
            };
            empty.into_iter().for_each(|run| self.machine.finish(run));
        }
        self.machine.running().collect()
    }

    fn blocks(&self, run: usize) -> u64 {
        self.machine.report().runs[run].count()
    }

    /// Runs all submitted work to its end. A whole launch takes `ns`. For a timed machine.
    pub(crate) fn drain(&mut self, ns: u64) {
        for _ in 0..1000 {
            let running = self.running();
            if running.is_empty() && !self.channel.pending(&self.shadow) {
                return;
            }
            let blocks: u64 = running.iter().map(|run| self.blocks(*run)).sum();
            self.pass(ns * blocks / BLOCKS);
            running.into_iter().for_each(|run| self.machine.finish(run));
        }
        panic!("the tenant hangs");
    }

    /// Returns how many released grids with blocks have not ended.
    pub(crate) fn outstanding(&self) -> usize {
        let runs = self.machine.report().runs.iter();
        runs.filter(|run| run.count() > 0 && run.ended.is_none())
            .count()
    }

    /// Runs all submitted work to its end. Returns the blocks and the mask of each grid that ran.
    pub(crate) fn masks(&mut self) -> Vec<(u64, [u32; 8])> {
        let before = self.machine.report().runs.len();
        for _ in 0..64 {
            self.work();
            self.step();
        }
        assert!(!self.channel.pending(&self.shadow), "it hangs");
        let runs = &self.machine.report().runs[before..];
        let grids = runs.iter().filter(|run| run.count() > 0);
        grids.map(|run| (run.count(), run.mask.0)).collect()
    }

    /// Runs `launches` launches to their end. Returns the most grids that ran at once.
    pub(crate) fn run(&mut self, launches: u32) -> usize {
        let mut most = 0;
        let mut idle = 0;
        while idle < 3 {
            let more = self.launched < launches && self.launch();
            self.work();
            let moved = self.step();
            most = most.max(self.outstanding());
            idle = if more || moved { 0 } else { idle + 1 };
        }
        assert_eq!(self.launched, launches, "the tenant hangs");
        most
    }

    pub(crate) fn check(&self, launches: u32) {
        self.check_blocks(launches);
        assert_eq!(self.release_word(0).load(Ordering::Relaxed), launches);
    }

    /// Checks that each block ran once in each launch.
    pub(crate) fn check_blocks(&self, launches: u32) {
        let mut coverage = Coverage::default();
        for run in &self.machine.report().runs {
            assert!(run.ended.is_some());
            coverage.add(&run.blocks);
        }
        assert_eq!(coverage.total(), BLOCKS * u64::from(launches));
        for (_, times) in coverage.counts() {
            assert_eq!(times, launches, "each block once a launch");
        }
        assert!(!self.channel.pending(&self.shadow));
        // A launch's companion names the QMD of the launch after it, which was not captured.
        let next = Anomaly::UnknownVersion(0x2_04e0_c000);
        let mut anomalies = self.machine.report().anomalies.iter();
        assert_eq!(anomalies.find(|a| **a != next), None);
    }
}
