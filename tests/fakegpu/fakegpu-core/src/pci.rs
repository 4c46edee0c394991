// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Implements PCI configuration space.

use crate::chip::{BarSizes, ChipDescription};

/// Size of the configuration space of a PCIe function.
pub const CONFIG_BYTES: usize = 4096;

/// Offsets in the header and the capabilities, which lie where Hopper has them.
mod at {
    pub(super) const VENDOR: usize = 0x00;
    pub(super) const DEVICE: usize = 0x02;
    pub(super) const COMMAND: usize = 0x04;
    pub(super) const STATUS: usize = 0x06;
    pub(super) const REVISION: usize = 0x08;
    pub(super) const CLASS: usize = 0x09;
    pub(super) const CACHE_LINE: usize = 0x0c;
    pub(super) const BAR0: usize = 0x10;
    pub(super) const SUBSYSTEM_VENDOR: usize = 0x2c;
    pub(super) const SUBSYSTEM_DEVICE: usize = 0x2e;
    pub(super) const CAPABILITIES: usize = 0x34;
    pub(super) const INTERRUPT_LINE: usize = 0x3c;
    pub(super) const INTERRUPT_PIN: usize = 0x3d;
    pub(super) const POWER: usize = 0x40;
    pub(super) const MSI: usize = 0x48;
    pub(super) const EXPRESS: usize = 0x60;
}

/// Offset of PCI_EXP_DEVCTL in the PCIe capability.
const DEVICE_CONTROL: usize = 0x08;
/// The bit in the upper byte of PCI_EXP_DEVCTL that starts a function-level reset. It reads as
/// zero.
const INITIATE_RESET: u8 = 0x80;

/// Capability identifiers.
const CAP_POWER: u8 = 0x01;
const CAP_MSI: u8 = 0x05;
const CAP_EXPRESS: u8 = 0x10;

/// Low bits of a 64-bit, prefetchable memory BAR.
const BAR_FLAGS: u8 = 0x0c;

/// An action that a configuration write requests from the rest of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigEffect {
    /// Nothing.
    None,
    /// A function-level reset.
    FunctionReset,
}

/// The bytes of the configuration space, and a mask of the writable bits of each.
pub struct PciConfig {
    bytes: Vec<u8>,
    writable: Vec<u8>,
    reset_bytes: Vec<u8>,
}

impl PciConfig {
    /// Creates the configuration space of `chip` after reset.
    pub fn new(chip: &ChipDescription) -> Self {
        let mut config = Self {
            bytes: vec![0; CONFIG_BYTES],
            writable: vec![0; CONFIG_BYTES],
            reset_bytes: Vec::new(),
        };
        config.put_header(chip);
        config.put_bars(&chip.bars);
        config.put_power_management();
        config.put_msi();
        config.put_express(chip);
        config.reset_bytes = config.bytes.clone();
        config
    }

    /// Restores the state after power-on.
    pub fn reset(&mut self) {
        self.bytes.clone_from(&self.reset_bytes);
    }

    /// Reads for the guest. Bytes beyond the end read as 0xff.
    pub fn read(&self, offset: u64, data: &mut [u8]) {
        for (index, byte) in data.iter_mut().enumerate() {
            let at = usize::try_from(offset)
                .ok()
                .and_then(|offset| offset.checked_add(index));
            *byte = at
                .and_then(|at| self.bytes.get(at))
                .copied()
                .unwrap_or(0xff);
        }
    }

    /// Writes for the guest. Read-only bits keep their value.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> ConfigEffect {
        let mut effect = ConfigEffect::None;
        for (index, byte) in data.iter().enumerate() {
            let Some(at) = usize::try_from(offset)
                .ok()
                .and_then(|offset| offset.checked_add(index))
            else {
                break;
            };
            let (Some(old), Some(mask)) = (self.bytes.get_mut(at), self.writable.get(at)) else {
                break;
            };
            *old = (*old & !mask) | (byte & mask);
            if at == at::EXPRESS + DEVICE_CONTROL + 1 && byte & INITIATE_RESET != 0 {
                effect = ConfigEffect::FunctionReset;
            }
        }
        effect
    }

    fn set(&mut self, offset: usize, value: &[u8]) {
        self.bytes[offset..offset + value.len()].copy_from_slice(value);
    }

    fn allow(&mut self, offset: usize, mask: &[u8]) {
        self.writable[offset..offset + mask.len()].copy_from_slice(mask);
    }

    fn put_header(&mut self, chip: &ChipDescription) {
        let pci = &chip.pci;
        self.set(at::VENDOR, &pci.vendor.to_le_bytes());
        self.set(at::DEVICE, &pci.device.to_le_bytes());
        // Memory space, bus master, parity and SERR enable, INTx disable.
        self.allow(at::COMMAND, &0x0546u16.to_le_bytes());
        // A capability list exists.
        self.set(at::STATUS, &0x0010u16.to_le_bytes());
        self.set(at::REVISION, &[pci.revision]);
        self.set(at::CLASS, &pci.class.to_le_bytes()[..3]);
        self.allow(at::CACHE_LINE, &[0xff]);
        self.set(at::SUBSYSTEM_VENDOR, &pci.subsystem_vendor.to_le_bytes());
        self.set(at::SUBSYSTEM_DEVICE, &pci.subsystem_device.to_le_bytes());
        self.set(at::CAPABILITIES, &[0x40]);
        self.allow(at::INTERRUPT_LINE, &[0xff]);
        // INTA.
        self.set(at::INTERRUPT_PIN, &[1]);
    }

    fn put_bars(&mut self, sizes: &BarSizes) {
        for (pair, size) in [sizes.registers, sizes.framebuffer, sizes.instance]
            .into_iter()
            .enumerate()
        {
            let offset = at::BAR0 + 8 * pair;
            self.set(offset, &[BAR_FLAGS]);
            // Address bits above the size are writable. The guest measures the BAR by them.
            self.allow(offset, &(!(size - 1)).to_le_bytes());
        }
    }

    fn put_power_management(&mut self) {
        // Version 3, no PME; the next capability is MSI.
        self.set(at::POWER, &[CAP_POWER, 0x48, 0x03, 0x00]);
        // The power state.
        self.allow(at::POWER + 4, &[0x03]);
        // No soft reset: a change of state keeps the registers.
        self.set(at::POWER + 4, &[0x08]);
    }

    fn put_msi(&mut self) {
        // 64-bit addresses, one message; the next capability is PCI Express.
        self.set(at::MSI, &[CAP_MSI, 0x60, 0x80, 0x00]);
        // Enable; address; data.
        self.allow(at::MSI + 2, &[0x01]);
        self.allow(
            at::MSI + 4,
            &[0xfc, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
        );
        self.allow(at::MSI + 12, &[0xff, 0xff]);
    }

    fn put_express(&mut self, chip: &ChipDescription) {
        let speed = u32::from(chip.pci.link_generation);
        let lanes = u32::from(chip.pci.link_lanes) << 4;
        // Version 2, endpoint, the last capability.
        self.set(at::EXPRESS, &[CAP_EXPRESS, 0x00, 0x02, 0x00]);
        // 256-byte payloads, extended tags, no latency limits, role-based
        // errors, function-level reset.
        self.set(at::EXPRESS + 0x04, &0x1000_8fe1u32.to_le_bytes());
        // Error reporting, payload and read sizes, tags, snoop. `write` handles the reset bit,
        // which always reads as zero.
        self.allow(at::EXPRESS + DEVICE_CONTROL, &0x7fffu16.to_le_bytes());
        self.set(at::EXPRESS + 0x0c, &(lanes | speed).to_le_bytes());
        // Link control: ASPM, common clock, extended synch.
        self.allow(at::EXPRESS + 0x10, &0x00c3u16.to_le_bytes());
        // Link status: full negotiated speed and width, slot clock.
        let status =
            u16::from(chip.pci.link_lanes) << 4 | u16::from(chip.pci.link_generation) | 0x1000;
        self.set(at::EXPRESS + 0x12, &status.to_le_bytes());
        // Completion timeouts can be disabled.
        self.set(at::EXPRESS + 0x24, &0x0000_001fu32.to_le_bytes());
        self.allow(at::EXPRESS + 0x28, &0x001fu16.to_le_bytes());
        // Every speed up to the highest, one bit each from bit 1 on.
        let speeds = ((1u32 << speed) - 1) << 1;
        self.set(at::EXPRESS + 0x2c, &speeds.to_le_bytes());
        self.set(at::EXPRESS + 0x30, &[chip.pci.link_generation]);
        self.allow(at::EXPRESS + 0x30, &[0x0f]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn config() -> PciConfig {
        PciConfig::new(&ChipDescription::gh100())
    }

    fn read_u32(config: &PciConfig, offset: u64) -> u32 {
        let mut bytes = [0; 4];
        config.read(offset, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    #[test]
    fn identity_is_that_of_an_h100() {
        let config = config();
        assert_eq!(read_u32(&config, 0x00), 0x2330_10de);
        assert_eq!(read_u32(&config, 0x08), 0x0302_00a1);
        assert_eq!(read_u32(&config, 0x2c), 0x16c1_10de);
    }

    #[test]
    fn bars_tell_their_size_when_all_ones_are_written() {
        let mut config = config();
        for (offset, size) in [(0x10, 16u64 << 20), (0x18, 256 << 20), (0x20, 32 << 20)] {
            config.write(offset, &[0xff; 8]);
            let value = u64::from(read_u32(&config, offset))
                | u64::from(read_u32(&config, offset + 4)) << 32;
            assert_eq!(value & 0xf, 0xc, "64-bit, prefetchable memory");
            assert_eq!(!(value & !0xf) + 1, size);
        }
    }

    #[test]
    fn the_capability_list_ends_after_three() {
        let config = config();
        let mut ids = Vec::new();
        let mut next = read_u32(&config, 0x34) & 0xff;
        while next != 0 && ids.len() < 48 {
            let head = read_u32(&config, u64::from(next));
            ids.push(head & 0xff);
            next = head >> 8 & 0xff;
        }
        assert_eq!(ids, [0x01, 0x05, 0x10]);
    }

    #[test]
    fn the_link_is_up_at_full_speed_and_width() {
        let config = config();
        assert_eq!(read_u32(&config, 0x6c) & 0x3ff, 0x105);
        assert_eq!(read_u32(&config, 0x70) >> 16, 0x1105);
        assert_eq!(read_u32(&config, 0x8c), 0x3e);
    }

    #[test]
    fn a_function_reset_is_asked_for_once() {
        let mut config = config();
        assert_eq!(
            config.write(0x68, &0x8000u16.to_le_bytes()),
            ConfigEffect::FunctionReset
        );
        assert_eq!(read_u32(&config, 0x68) & 0x8000, 0);
        assert_eq!(
            config.write(0x68, &0x7fffu16.to_le_bytes()),
            ConfigEffect::None
        );
    }

    #[test]
    fn reset_forgets_addresses() {
        let mut config = config();
        config.write(0x04, &[6, 0]);
        config.write(0x14, &[0xff; 4]);
        config.reset();
        assert_eq!(read_u32(&config, 0x04), 0x0010_0000);
        assert_eq!(read_u32(&config, 0x14), 0);
    }

    proptest! {
        /// Checks that no write changes a read-only bit.
        #[test]
        fn read_only_bits_stay(offset in prop_oneof![0u64..0x120, 0xff0u64..0x1010, any::<u64>()],
                               data in prop::collection::vec(any::<u8>(), 0..70)) {
            let mut config = config();
            let before = config.bytes.clone();
            config.write(offset, &data);
            for (at, old) in before.iter().enumerate() {
                prop_assert_eq!((config.bytes[at] ^ old) & !config.writable[at], 0);
            }
        }

        #[test]
        fn reads_any_size_and_offset(offset in any::<u64>(), len in 0usize..64) {
            let mut data = vec![0; len];
            config().read(offset, &mut data);
            if offset >= CONFIG_BYTES as u64 {
                prop_assert!(data.iter().all(|byte| *byte == 0xff));
            }
        }
    }
}
