// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What the device needs from the world around it.

use crate::recorder::Recorder;
use crate::sparse::OutOfRange;
use std::sync::Arc;

/// The guest's memory, as the device sees it by DMA.
///
/// Other processors change it at any time; implementations copy, and callers
/// decide on the copy only.
pub trait GuestMemory: Send + Sync {
    /// Copies `data.len()` bytes from guest-physical `address`.
    ///
    /// # Errors
    /// [`OutOfRange`] if part of it is not memory the guest gave us.
    fn read(&self, address: u64, data: &mut [u8]) -> Result<(), OutOfRange>;

    /// Stores `data` at guest-physical `address`. A naturally aligned store of
    /// 4 or 8 bytes is seen whole by the guest.
    ///
    /// # Errors
    /// [`OutOfRange`] if part of it is not memory the guest gave us.
    fn write(&self, address: u64, data: &[u8]) -> Result<(), OutOfRange>;
}

/// The device's message-signalled interrupts.
pub trait Interrupts: Send + Sync {
    /// Sends message `vector`; nothing happens if the guest has not enabled it.
    fn raise(&self, vector: u32);
}

/// Time, for the device's counters and timestamps.
pub trait Clock: Send + Sync {
    /// Nanoseconds that never go back.
    fn now_ns(&self) -> u64;
}

/// All of it, as the device gets it.
#[derive(Clone)]
pub struct Platform {
    /// Guest memory.
    pub memory: Arc<dyn GuestMemory>,
    /// Interrupts to the guest.
    pub interrupts: Arc<dyn Interrupts>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Takes note of what the driver does.
    pub recorder: Arc<dyn Recorder>,
}
