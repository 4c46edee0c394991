// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A world for unit tests to put a device into.

use crate::chip::ChipDescription;
use crate::gpu::Gpu;
use crate::platform::{Clock, GuestMemory, Interrupts, Platform};
use crate::recorder::Discard;
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
