// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Physical memory as the GPU addresses it: its own, and the guest's.

use crate::platform::GuestMemory;
use crate::sparse::{OutOfRange, SparseMemory};
use std::sync::Arc;

/// Which memory a physical address is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Location {
    /// Video memory.
    Video,
    /// The guest's memory.
    System,
}

/// A physical address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PhysicalAddress {
    /// Which memory.
    pub location: Location,
    /// Byte in it.
    pub offset: u64,
}

impl PhysicalAddress {
    /// A byte of video memory.
    pub const fn video(offset: u64) -> Self {
        Self {
            location: Location::Video,
            offset,
        }
    }

    /// A byte of the guest's memory.
    pub const fn system(offset: u64) -> Self {
        Self {
            location: Location::System,
            offset,
        }
    }

    /// The address `bytes` further on. Addresses of the last page of the
    /// address space stay there, and no memory is there.
    #[must_use]
    pub const fn plus(self, bytes: u64) -> Self {
        Self {
            location: self.location,
            offset: self.offset.saturating_add(bytes),
        }
    }
}

/// Both memories.
pub struct PhysicalMemory {
    video: SparseMemory,
    system: Arc<dyn GuestMemory>,
}

impl PhysicalMemory {
    /// `video_bytes` of video memory, all zero, beside the guest's.
    pub fn new(video_bytes: u64, system: Arc<dyn GuestMemory>) -> Self {
        Self {
            video: SparseMemory::new(video_bytes),
            system,
        }
    }

    /// The guest's memory alone.
    pub fn without_video(&self) -> Self {
        Self::new(0, self.system.clone())
    }

    /// Clears video memory.
    pub fn reset(&mut self) {
        self.video.clear();
    }

    /// Copies `data.len()` bytes from `at`.
    ///
    /// # Errors
    /// [`OutOfRange`] if part of it is not memory.
    pub fn read(&self, at: PhysicalAddress, data: &mut [u8]) -> Result<(), OutOfRange> {
        match at.location {
            Location::Video => self.video.read(at.offset, data),
            Location::System => self.system.read(at.offset, data),
        }
    }

    /// Stores `data` at `at`.
    ///
    /// # Errors
    /// [`OutOfRange`] if part of it is not memory.
    pub fn write(&mut self, at: PhysicalAddress, data: &[u8]) -> Result<(), OutOfRange> {
        match at.location {
            Location::Video => self.video.write(at.offset, data),
            Location::System => self.system.write(at.offset, data),
        }
    }

    /// Clears `len` bytes of video memory, however many, at once.
    ///
    /// # Errors
    /// [`OutOfRange`] if part of it is not memory.
    pub fn zero_video(&mut self, offset: u64, len: u64) -> Result<(), OutOfRange> {
        self.video.zero(offset, len)
    }

    /// A little-endian word at `at`.
    ///
    /// # Errors
    /// [`OutOfRange`] if part of it is not memory.
    pub fn read_u32(&self, at: PhysicalAddress) -> Result<u32, OutOfRange> {
        let mut bytes = [0; 4];
        self.read(at, &mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    /// A little-endian double word at `at`.
    ///
    /// # Errors
    /// [`OutOfRange`] if part of it is not memory.
    pub fn read_u64(&self, at: PhysicalAddress) -> Result<u64, OutOfRange> {
        let mut bytes = [0; 8];
        self.read(at, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Stores a little-endian word at `at`.
    ///
    /// # Errors
    /// [`OutOfRange`] if part of it is not memory.
    pub fn write_u32(&mut self, at: PhysicalAddress, value: u32) -> Result<(), OutOfRange> {
        self.write(at, &value.to_le_bytes())
    }

    /// Stores a little-endian double word at `at`.
    ///
    /// # Errors
    /// [`OutOfRange`] if part of it is not memory.
    pub fn write_u64(&mut self, at: PhysicalAddress, value: u64) -> Result<(), OutOfRange> {
        self.write(at, &value.to_le_bytes())
    }
}
