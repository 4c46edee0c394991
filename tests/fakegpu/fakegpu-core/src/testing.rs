// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Provides an environment for unit tests of the device.

use crate::abi;
use crate::chip::{ChipDescription, Engine};
use crate::copies::Copies;
use crate::faults::{Faults, Place};
use crate::gmmu::AddressSpace;
use crate::gpu::Gpu;
use crate::gsp::objects::ObjectKey;
use crate::host::execute::{ChannelFault, Work};
use crate::intr::InterruptTree;
use crate::memory::{PhysicalAddress, PhysicalMemory};
use crate::platform::{Clock, GuestMemory, Interrupts, Platform};
use crate::recorder::{Discard, Event, Recorder};
use crate::sparse::{OutOfRange, SparseMemory};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Size of guest memory in [`World`].
pub(crate) const GUEST_BYTES: u64 = 64 << 20;

/// Guest memory, interrupts and a clock that a test can inspect.
pub(crate) struct World {
    memory: Mutex<SparseMemory>,
    interrupts: AtomicU64,
    now_ns: AtomicU64,
    /// Time that passes with each reading of the clock.
    look_ns: AtomicU64,
}

impl World {
    /// Creates a fresh environment.
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            memory: Mutex::new(SparseMemory::new(GUEST_BYTES)),
            interrupts: AtomicU64::new(0),
            now_ns: AtomicU64::new(1_000_000_000),
            look_ns: AtomicU64::new(32),
        })
    }

    /// Stops the clock. From now on only [`pass`](Self::pass) advances it.
    pub(crate) fn stop_clock(&self) {
        self.look_ns.store(0, Ordering::Relaxed);
    }

    /// Advances the clock.
    pub(crate) fn pass(&self, ns: u64) {
        self.now_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// Returns the device's side of it.
    pub(crate) fn platform(self: &Arc<Self>) -> Platform {
        Platform {
            memory: self.clone(),
            interrupts: self.clone(),
            clock: self.clone(),
            recorder: Arc::new(Discard),
        }
    }
}

impl GuestMemory for World {
    fn read(&self, address: u64, data: &mut [u8]) -> Result<(), OutOfRange> {
        self.memory.lock().unwrap().read(address, data)
    }

    fn write(&self, address: u64, data: &[u8]) -> Result<(), OutOfRange> {
        self.memory.lock().unwrap().write(address, data)
    }
}

impl Interrupts for World {
    fn raise(&self, _vector: u32) {
        self.interrupts.fetch_add(1, Ordering::Relaxed);
    }
}

impl Clock for World {
    fn now_ns(&self) -> u64 {
        self.now_ns
            .fetch_add(self.look_ns.load(Ordering::Relaxed), Ordering::Relaxed)
    }
}

/// Creates a GH100 in its own environment.
pub(crate) fn gpu() -> Gpu {
    Gpu::new(ChipDescription::gh100(), 0, World::new().platform())
}

/// Keeps events as lines of JSON, without their times.
#[derive(Default)]
pub(crate) struct Lines(Mutex<Vec<String>>);

impl Lines {
    /// Returns the recorded lines.
    pub(crate) fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

impl Recorder for Lines {
    fn record(&self, _now_ns: u64, event: &Event<'_>) {
        self.0.lock().unwrap().push(event.to_json(0));
    }
}

/// The parts that execution needs, with an address space that maps the first 512 MiB of video
/// memory at [`Bench::va`].
pub(crate) struct Bench {
    pub(crate) chip: ChipDescription,
    pub(crate) memory: PhysicalMemory,
    pub(crate) intr: InterruptTree,
    pub(crate) world: Arc<World>,
    pub(crate) recorder: Arc<Lines>,
    pub(crate) faults: Vec<ChannelFault>,
    pub(crate) replayable: Faults,
    pub(crate) copies: Copies,
    pub(crate) space: AddressSpace,
    /// A copy engine.
    pub(crate) engine: Engine,
}

/// Where the address space's tables lie in video memory.
const TABLES: u64 = 1 << 30;
/// Where the address space maps video memory, and where once more, read-only.
const VA_BASE: u64 = 7 << 29;
const VA_READ_ONLY: u64 = 8 << 29;

impl Bench {
    /// Returns who accesses memory: a channel in the address space.
    pub(crate) fn place(&self, replayable: bool) -> Place {
        Place {
            channel: ObjectKey {
                client: 1,
                handle: 5,
            },
            instance: PhysicalAddress::video(0x7000),
            subcontext: 0,
            space: self.space,
            replayable,
        }
    }

    pub(crate) fn new() -> Self {
        let world = World::new();
        let chip = ChipDescription::gh100();
        let mut memory = PhysicalMemory::new(chip.fb_bytes, world.clone());
        // All addresses below 2^47 have the same table of pages, so that those of captures lead
        // somewhere.
        for (level, entries) in [1u64, 1, 512].into_iter().enumerate() {
            let table = TABLES + 0x1000 * level as u64;
            for index in 0..entries {
                let entry = PhysicalAddress::video(table + 8 * index);
                memory.write_u64(entry, (table + 0x1000) | 1 << 1).unwrap();
            }
        }
        // Pages of 512 MiB. Those at VA_BASE and VA_READ_ONLY map the start of video memory; all
        // others map higher parts.
        for index in 0..512 {
            let page = match index << 29 {
                VA_BASE => 1,
                // NV_MMU_VER3_PTE_PCF_REGULAR_RO_ATOMIC_CACHED_ACE.
                VA_READ_ONLY => 4 << 3 | 1,
                _ => (index % 24 + 8) << 29 | 1,
            };
            let entry = PhysicalAddress::video(TABLES + 0x3000 + 8 * index);
            memory.write_u64(entry, page).unwrap();
        }
        let engine = chip.engines[1];
        Self {
            intr: InterruptTree::new(world.clone()),
            space: AddressSpace {
                root: PhysicalAddress::video(TABLES),
            },
            recorder: Arc::default(),
            faults: Vec::new(),
            replayable: Faults::default(),
            copies: Copies::default(),
            engine,
            chip,
            memory,
            world,
        }
    }

    /// Returns the virtual address of a byte of video memory.
    pub(crate) fn va(&self, offset: u64) -> u64 {
        VA_BASE + offset
    }

    /// Returns a virtual address at which the same byte can only be read.
    pub(crate) fn va_read_only(&self, offset: u64) -> u64 {
        VA_READ_ONLY + offset
    }

    /// Returns the budget and parts of one turn.
    pub(crate) fn work(&mut self) -> Work<'_> {
        Work {
            chip: &self.chip,
            memory: &mut self.memory,
            intr: &mut self.intr,
            clock: &*self.world,
            now_ns: 0,
            recorder: &*self.recorder,
            faults: &mut self.faults,
            replayable: &mut self.replayable,
            copies: &mut self.copies,
            engine: Some(self.engine),
            methods: 2048,
            bytes: 1 << 20,
        }
    }
}

/// A channel for unit tests.
pub(crate) struct TestChannel {
    /// NV2080_ENGINE_TYPE_*.
    pub(crate) engine: u32,
    /// Its number on the runlist, and the number of its USERD.
    pub(crate) number: u32,
    /// The handle of its address space.
    pub(crate) space: u32,
    /// Where its structures lie in video memory.
    pub(crate) ring: u64,
    pub(crate) userd: u64,
    pub(crate) notifier: u64,
    /// Number of entries of the ring.
    pub(crate) entries: u32,
}

impl TestChannel {
    /// Returns its NV_CHANNEL_ALLOC_PARAMS.
    pub(crate) fn params(&self, bench: &Bench) -> Vec<u8> {
        use abi::NV_CHANNEL_ALLOC_PARAMS as P;
        let flags = (self.number / 8) << abi::CHANNEL_USERD_INDEX_PAGE_VALUE_LOW
            | (self.number % 8) << abi::CHANNEL_USERD_INDEX_VALUE_LOW;
        let mut params = vec![0; P::SIZE];
        for (field, value) in [
            (P::gpFifoOffset, bench.va(self.ring)),
            (P::gpFifoEntries, u64::from(self.entries)),
            (P::hVASpace, u64::from(self.space)),
            (P::engineType, u64::from(self.engine)),
            (P::flags, u64::from(flags)),
            (P::userdMem_base, self.userd),
            (P::userdMem_addressSpace, u64::from(abi::ADDR_FBMEM)),
            (P::errorNotifierMem_base, self.notifier),
            (P::errorNotifierMem_size, 0x1000),
            (P::errorNotifierMem_addressSpace, u64::from(abi::ADDR_FBMEM)),
        ] {
            abi::set(&mut params, field, value).unwrap();
        }
        params
    }
}

/// Returns the segments of a submission captured on an H200.
pub(crate) fn capture(name: &str) -> Vec<Vec<u32>> {
    let path = format!(
        "{}/../../fixtures/captures/{name}.pbcap",
        env!("CARGO_MANIFEST_DIR")
    );
    let text = std::fs::read_to_string(path).unwrap();
    let words = |line: &str| {
        let (_, words) = line.split_once(" : ").unwrap();
        words
            .split_whitespace()
            .map(|word| u32::from_str_radix(word, 16).unwrap())
            .collect()
    };
    text.lines().map(words).collect()
}
