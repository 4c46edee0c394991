// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Implements BAR1 and BAR2: windows on virtual memory of the GPU, each with its own page
//! directory.

use crate::bits::low_u32;
use crate::gmmu::{self, Translation, KIND_SMSKED_MESSAGE};
use crate::gpu::{Aperture, Gpu};
use crate::memory::{Location, PhysicalAddress};
use crate::mmio;

/// Where the virtual function's registers begin in BAR0. A doorbell page in BAR1 gives its
/// registers as offsets from here.
const NV_VIRTUAL_FUNCTION: u64 = 0xb8_0000;
/// Maximum number of accesses to unmapped addresses that are logged.
const LOGGED_MAX: u64 = 32;

/// The target of one piece of a window.
enum Behind {
    Memory(Translation),
    Registers(u64),
    Nothing,
}

impl Gpu {
    /// Reads `data.len()` bytes through a window. Unmapped bytes read as 0xff.
    pub(crate) fn window_read(&mut self, aperture: Aperture, offset: u64, data: &mut [u8]) {
        let mut at = offset;
        let mut rest = data;
        while !rest.is_empty() {
            let (behind, count) = self.behind(aperture, at, rest.len());
            let (now, later) = rest.split_at_mut(count);
            match behind {
                Behind::Memory(page) if self.memory.read(page.address, now).is_ok() => {}
                Behind::Registers(register) => mmio::read(self, register, now),
                Behind::Memory(_) | Behind::Nothing => now.fill(0xff),
            }
            rest = later;
            at += count as u64;
        }
    }

    /// Writes through a window. Writes to bytes that are unmapped or read-only are dropped.
    pub(crate) fn window_write(&mut self, aperture: Aperture, offset: u64, data: &[u8]) {
        let mut at = offset;
        let mut rest = data;
        while !rest.is_empty() {
            let (behind, count) = self.behind(aperture, at, rest.len());
            let (now, later) = rest.split_at(count);
            match behind {
                // A failed write is dropped.
                Behind::Memory(page) if page.writable => {
                    let _ = self.memory.write(page.address, now);
                }
                Behind::Registers(register) => self.register_write(register, now),
                Behind::Memory(_) | Behind::Nothing => {}
            }
            rest = later;
            at += count as u64;
        }
    }

    /// Returns the target of `offset`, and how many of `len` bytes have it.
    fn behind(&mut self, aperture: Aperture, offset: u64, len: usize) -> (Behind, usize) {
        let root = match aperture {
            Aperture::Framebuffer => self.chip.bar1_root(),
            _ => self.chip.bar2_root(),
        };
        match gmmu::translate(&self.memory, PhysicalAddress::video(root), offset) {
            Ok(found) => {
                let count = usize::try_from(found.bytes).map_or(len, |bytes| bytes.min(len));
                if found.kind == KIND_SMSKED_MESSAGE && found.address.location == Location::System {
                    (
                        Behind::Registers(NV_VIRTUAL_FUNCTION.saturating_add(found.address.offset)),
                        count,
                    )
                } else {
                    (Behind::Memory(found), count)
                }
            }
            Err(_) => {
                self.note_unmapped(aperture, offset);
                // No page is smaller than 4 KiB.
                let to_page_end = 0x1000 - low_u32(offset % 0x1000);
                (
                    Behind::Nothing,
                    usize::try_from(to_page_end).map_or(len, |bytes| bytes.min(len)),
                )
            }
        }
    }

    fn note_unmapped(&mut self, aperture: Aperture, offset: u64) {
        self.unmapped_accesses += 1;
        if self.unmapped_accesses <= LOGGED_MAX {
            log::info!("{aperture:?} window: nothing is mapped at {offset:#x}");
        }
    }
}
