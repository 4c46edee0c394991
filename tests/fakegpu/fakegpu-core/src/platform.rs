// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Defines what the device needs from its environment.

use crate::recorder::Recorder;
use crate::sparse::OutOfRange;
use std::sync::Arc;

/// The guest's memory, as the device accesses it by DMA.
///
/// The guest's processors change it at any time. Implementations copy, and callers decide on the
/// copy only.
pub trait GuestMemory: Send + Sync {
    /// Copies `data.len()` bytes from guest-physical `address`.
    ///
    /// # Errors
    /// [`OutOfRange`] if part of it is not memory that the guest has mapped for the device.
    fn read(&self, address: u64, data: &mut [u8]) -> Result<(), OutOfRange>;

    /// Stores `data` at guest-physical `address`. The guest sees a naturally aligned store of 4 or
    /// 8 bytes whole.
    ///
    /// # Errors
    /// [`OutOfRange`] if part of it is not memory that the guest has mapped for the device.
    fn write(&self, address: u64, data: &[u8]) -> Result<(), OutOfRange>;
}

/// The device's message-signalled interrupts.
pub trait Interrupts: Send + Sync {
    /// Sends message `vector`. Does nothing if the guest has not enabled it.
    fn raise(&self, vector: u32);
}

/// The clock, for the device's counters and timestamps.
pub trait Clock: Send + Sync {
    /// Returns monotonic nanoseconds.
    fn now_ns(&self) -> u64;
}

/// The device's environment.
#[derive(Clone)]
pub struct Platform {
    /// Guest memory.
    pub memory: Arc<dyn GuestMemory>,
    /// Interrupts to the guest.
    pub interrupts: Arc<dyn Interrupts>,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// Records what the driver does.
    pub recorder: Arc<dyn Recorder>,
}
