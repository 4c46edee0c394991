// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The whole device: what the guest reads and writes arrives here.

use crate::chip::ChipDescription;
use crate::intr::InterruptTree;
use crate::mmio::{self, Mmio};
use crate::pci::{ConfigEffect, PciConfig};
use crate::platform::Platform;
use crate::registers::Registers;
use crate::regs::{NV_PMC_BOOT_0, NV_PMC_BOOT_1, NV_PMC_BOOT_42};
use crate::timer;

/// The windows of the device, by what they show. RM's own names for them are
/// BAR0, BAR1 and BAR2; on the bus they are BAR 0, 2 and 4, each 64 bits wide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aperture {
    /// BAR0: registers.
    Registers,
    /// BAR1: video memory.
    Framebuffer,
    /// BAR2: instance memory.
    Instance,
}

impl Aperture {
    /// The aperture behind the PCI BAR `index`.
    pub fn from_bar_index(index: u32) -> Option<Self> {
        match index {
            0 => Some(Self::Registers),
            2 => Some(Self::Framebuffer),
            4 => Some(Self::Instance),
            _ => None,
        }
    }

    /// Its size on `chip`, in bytes.
    pub fn bytes(self, chip: &ChipDescription) -> u64 {
        match self {
            Self::Registers => chip.bars.registers,
            Self::Framebuffer => chip.bars.framebuffer,
            Self::Instance => chip.bars.instance,
        }
    }
}

/// What all software GPUs' UUIDs have in common; the last byte tells them
/// apart.
const UUID_BASE: [u8; 16] = *b"fake-gh100-gpu-\0";

/// One software GPU.
pub struct Gpu {
    chip: ChipDescription,
    pci: PciConfig,
    registers: Registers,
    intr: InterruptTree,
    platform: Platform,
    dropped_writes: u64,
    slot_id: u8,
}

impl Gpu {
    /// A device as it comes out of power on. `slot_id` tells it from others of
    /// its kind.
    pub fn new(chip: ChipDescription, slot_id: u8, platform: Platform) -> Self {
        let reset_values = vec![
            (NV_PMC_BOOT_0::OFFSET, chip.boot.boot_0().raw()),
            (NV_PMC_BOOT_42::OFFSET, chip.boot.boot_42().raw()),
        ];
        Self {
            pci: PciConfig::new(&chip),
            registers: Registers::new(chip.bars.registers, reset_values),
            intr: InterruptTree::new(platform.interrupts.clone()),
            platform,
            chip,
            dropped_writes: 0,
            slot_id,
        }
    }

    /// What the device is.
    pub fn chip(&self) -> &ChipDescription {
        &self.chip
    }

    /// The UUID by which the driver and its clients know this GPU.
    pub fn uuid(&self) -> [u8; 16] {
        let mut uuid = UUID_BASE;
        uuid[15] = self.slot_id;
        uuid
    }

    /// The guest reads configuration space.
    pub fn config_read(&self, offset: u64, data: &mut [u8]) {
        self.pci.read(offset, data);
    }

    /// The guest writes configuration space.
    pub fn config_write(&mut self, offset: u64, data: &[u8]) {
        match self.pci.write(offset, data) {
            ConfigEffect::None => {}
            ConfigEffect::FunctionReset => self.reset(),
        }
    }

    /// The guest reads an aperture; beyond its end there are ones.
    pub fn read(&mut self, aperture: Aperture, offset: u64, data: &mut [u8]) {
        if !self.inside(aperture, offset, data.len()) {
            data.fill(0xff);
            return;
        }
        match aperture {
            Aperture::Registers => mmio::read(self, offset, data),
            Aperture::Framebuffer | Aperture::Instance => data.fill(0),
        }
    }

    /// The guest writes an aperture; beyond its end writes are lost.
    pub fn write(&mut self, aperture: Aperture, offset: u64, data: &[u8]) {
        if !self.inside(aperture, offset, data.len()) {
            return;
        }
        match aperture {
            Aperture::Registers => {
                if mmio::write(self, offset, data) > 0 {
                    self.note_dropped_write(offset, data.len());
                }
            }
            Aperture::Framebuffer | Aperture::Instance => {}
        }
    }

    /// Back to the state after power on; guest memory and the interrupt
    /// connection belong to the guest and stay.
    pub fn reset(&mut self) {
        log::info!("reset");
        self.pci.reset();
        self.registers.reset();
        self.intr.reset();
    }

    fn inside(&self, aperture: Aperture, offset: u64, len: usize) -> bool {
        offset
            .checked_add(len as u64)
            .is_some_and(|end| end <= aperture.bytes(&self.chip))
    }

    fn note_dropped_write(&mut self, offset: u64, len: usize) {
        self.dropped_writes += 1;
        if self.dropped_writes == 1 {
            log::warn!("write of {len} bytes at {offset:#x} covers part of a register: dropped");
        }
    }
}

impl Mmio for Gpu {
    fn read32(&mut self, offset: u32) -> u32 {
        if let Some(value) = self.intr.read(offset) {
            return value;
        }
        if let Some(value) = timer::read(offset, self.platform.clock.now_ns()) {
            return value;
        }
        self.registers.guest_read(offset)
    }

    fn write32(&mut self, offset: u32, value: u32) {
        if self.intr.write(offset, value) {
            return;
        }
        match offset {
            // The identity cannot be changed.
            NV_PMC_BOOT_0::OFFSET | NV_PMC_BOOT_1::OFFSET | NV_PMC_BOOT_42::OFFSET => {}
            _ => self.registers.guest_write(offset, value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use proptest::prelude::*;

    fn read_u32(gpu: &mut Gpu, offset: u64) -> u32 {
        let mut bytes = [0; 4];
        gpu.read(Aperture::Registers, offset, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    #[test]
    fn the_identity_cannot_be_written() {
        let mut gpu = testing::gpu();
        for offset in [0x0, 0x4, 0xa00] {
            let before = read_u32(&mut gpu, offset);
            gpu.write(Aperture::Registers, offset, &[0x5a; 4]);
            assert_eq!(read_u32(&mut gpu, offset), before);
        }
    }

    #[test]
    fn a_function_reset_clears_registers() {
        let mut gpu = testing::gpu();
        gpu.write(Aperture::Registers, 0x12_3400, &[1, 2, 3, 4]);
        assert_eq!(read_u32(&mut gpu, 0x12_3400), 0x0403_0201);
        gpu.config_write(0x68, &0x8000u16.to_le_bytes());
        assert_eq!(read_u32(&mut gpu, 0x12_3400), 0);
        assert_eq!(read_u32(&mut gpu, 0), 0x1800_00a1);
    }

    fn any_offset() -> impl Strategy<Value = u64> {
        prop_oneof![0u64..0x100_0100, 0xff_fff0u64..0x100_0010, any::<u64>()]
    }

    proptest! {
        /// Hostile accesses of any kind, anywhere, leave a device that still
        /// answers.
        #[test]
        fn no_access_breaks_it(ops in prop::collection::vec(
            (0u32..6, any_offset(), prop::collection::vec(any::<u8>(), 0..40), any::<bool>()), 0..60)) {
            let mut gpu = testing::gpu();
            for (bar, offset, mut data, write) in ops {
                match (Aperture::from_bar_index(bar), write) {
                    (Some(aperture), true) => gpu.write(aperture, offset, &data),
                    (Some(aperture), false) => gpu.read(aperture, offset, &mut data),
                    (None, true) => gpu.config_write(offset, &data),
                    (None, false) => gpu.config_read(offset, &mut data),
                }
            }
            prop_assert_eq!(read_u32(&mut gpu, 0), 0x1800_00a1);
        }
    }
}
