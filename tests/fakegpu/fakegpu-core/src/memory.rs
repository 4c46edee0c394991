// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Implements physical memory as the GPU addresses it: video memory and the guest's memory.

use crate::platform::GuestMemory;
use crate::sparse::{OutOfRange, SparseMemory};
use crate::tlb::Tlb;
use std::cell::{RefCell, RefMut};
use std::sync::Arc;

/// The memory that a physical address belongs to.
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
    /// The memory.
    pub location: Location,
    /// Offset in that memory.
    pub offset: u64,
}

impl PhysicalAddress {
    /// Returns an address in video memory.
    pub const fn video(offset: u64) -> Self {
        Self {
            location: Location::Video,
            offset,
        }
    }

    /// Returns an address in the guest's memory.
    pub const fn system(offset: u64) -> Self {
        Self {
            location: Location::System,
            offset,
        }
    }

    /// Returns the address `bytes` further on. The sum saturates at an address where no memory
    /// lies.
    #[must_use]
    pub const fn plus(self, bytes: u64) -> Self {
        Self {
            location: self.location,
            offset: self.offset.saturating_add(bytes),
        }
    }
}

/// Video and guest memory.
pub struct PhysicalMemory {
    video: SparseMemory,
    system: Arc<dyn GuestMemory>,
    /// Whoever translates has the memory at hand, for reading at least.
    tlb: RefCell<Tlb>,
}

impl PhysicalMemory {
    /// Creates `video_bytes` of zeroed video memory, beside the guest's memory.
    pub fn new(video_bytes: u64, system: Arc<dyn GuestMemory>) -> Self {
        Self {
            video: SparseMemory::new(video_bytes),
            system,
            tlb: RefCell::default(),
        }
    }

    /// Returns the guest's memory alone.
    pub fn without_video(&self) -> Self {
        Self::new(0, self.system.clone())
    }

    /// Clears video memory.
    pub fn reset(&mut self) {
        self.video.clear();
        self.tlb.take();
    }

    /// Returns what a TLB may hold. Nobody keeps it while somebody else asks.
    pub fn tlb(&self) -> RefMut<'_, Tlb> {
        self.tlb.borrow_mut()
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

    /// Clears `len` bytes of video memory at once, for any `len`.
    ///
    /// # Errors
    /// [`OutOfRange`] if part of it is not memory.
    pub fn zero_video(&mut self, offset: u64, len: u64) -> Result<(), OutOfRange> {
        self.video.zero(offset, len)
    }

    /// Reads a little-endian 32-bit word.
    ///
    /// # Errors
    /// [`OutOfRange`] if part of it is not memory.
    pub fn read_u32(&self, at: PhysicalAddress) -> Result<u32, OutOfRange> {
        let mut bytes = [0; 4];
        self.read(at, &mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    /// Reads a little-endian 64-bit word.
    ///
    /// # Errors
    /// [`OutOfRange`] if part of it is not memory.
    pub fn read_u64(&self, at: PhysicalAddress) -> Result<u64, OutOfRange> {
        let mut bytes = [0; 8];
        self.read(at, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Stores a little-endian 32-bit word.
    ///
    /// # Errors
    /// [`OutOfRange`] if part of it is not memory.
    pub fn write_u32(&mut self, at: PhysicalAddress, value: u32) -> Result<(), OutOfRange> {
        self.write(at, &value.to_le_bytes())
    }

    /// Stores a little-endian 64-bit word.
    ///
    /// # Errors
    /// [`OutOfRange`] if part of it is not memory.
    pub fn write_u64(&mut self, at: PhysicalAddress, value: u64) -> Result<(), OutOfRange> {
        self.write(at, &value.to_le_bytes())
    }
}
