// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A world for unit tests to put a device into.

use crate::chip::{ChipDescription, Engine};
use crate::gmmu::AddressSpace;
use crate::gpu::Gpu;
use crate::host::execute::Work;
use crate::intr::InterruptTree;
use crate::memory::{PhysicalAddress, PhysicalMemory};
use crate::platform::{Clock, GuestMemory, Interrupts, Platform};
use crate::recorder::{Discard, Event, Recorder};
use crate::sparse::{OutOfRange, SparseMemory};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Bytes of guest memory in [`World`].
pub(crate) const GUEST_BYTES: u64 = 64 << 20;

/// Guest memory, interrupts and time that a test can look into.
pub(crate) struct World {
    memory: Mutex<SparseMemory>,
    interrupts: AtomicU64,
    now_ns: AtomicU64,
}

impl World {
    /// A fresh world.
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            memory: Mutex::new(SparseMemory::new(GUEST_BYTES)),
            interrupts: AtomicU64::new(0),
            now_ns: AtomicU64::new(1_000_000_000),
        })
    }

    /// The device's side of it.
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
        self.now_ns.fetch_add(32, Ordering::Relaxed)
    }
}

/// A GH100 in a world of its own.
pub(crate) fn gpu() -> Gpu {
    Gpu::new(ChipDescription::gh100(), 0, World::new().platform())
}

/// Keeps events as lines of JSON, without their times.
#[derive(Default)]
pub(crate) struct Lines(Mutex<Vec<String>>);

impl Lines {
    /// What was recorded.
    pub(crate) fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

impl Recorder for Lines {
    fn record(&self, _now_ns: u64, event: &Event<'_>) {
        self.0.lock().unwrap().push(event.to_json(0));
    }
}

/// What executing needs, with an address space that shows the first 512 MiB of
/// video memory at [`Bench::va`].
pub(crate) struct Bench {
    pub(crate) chip: ChipDescription,
    pub(crate) memory: PhysicalMemory,
    pub(crate) intr: InterruptTree,
    pub(crate) world: Arc<World>,
    pub(crate) recorder: Arc<Lines>,
    pub(crate) space: AddressSpace,
    /// A copy engine.
    pub(crate) engine: Engine,
}

/// Where the tables of the address space lie in video memory.
const TABLES: u64 = 1 << 30;
/// Where it shows video memory.
const VA_BASE: u64 = 7 << 29;

impl Bench {
    pub(crate) fn new() -> Self {
        let world = World::new();
        let chip = ChipDescription::gh100();
        let mut memory = PhysicalMemory::new(chip.fb_bytes, world.clone());
        for (level, index) in [0u64, 0, 0].into_iter().enumerate() {
            let table = TABLES + 0x1000 * level as u64;
            memory
                .write_u64(
                    PhysicalAddress::video(table + 8 * index),
                    (table + 0x1000) | 1 << 1,
                )
                .unwrap();
        }
        // Pages of 512 MiB: the one at VA_BASE shows the start of video memory,
        // all others something of it further up.
        for index in 0..512 {
            let page = if index == VA_BASE >> 29 {
                0
            } else {
                index % 24 + 8
            };
            let entry = PhysicalAddress::video(TABLES + 0x3000 + 8 * index);
            memory.write_u64(entry, page << 29 | 1).unwrap();
        }
        let engine = chip.engines[1];
        Self {
            intr: InterruptTree::new(world.clone()),
            space: AddressSpace {
                root: PhysicalAddress::video(TABLES),
            },
            recorder: Arc::default(),
            engine,
            chip,
            memory,
            world,
        }
    }

    /// The virtual address of a byte of video memory.
    pub(crate) fn va(&self, offset: u64) -> u64 {
        VA_BASE + offset
    }

    /// A turn.
    pub(crate) fn work(&mut self) -> Work<'_> {
        Work {
            chip: &self.chip,
            memory: &mut self.memory,
            intr: &mut self.intr,
            clock: &*self.world,
            recorder: &*self.recorder,
            engine: Some(self.engine),
            methods: 2048,
            bytes: 1 << 20,
        }
    }
}
