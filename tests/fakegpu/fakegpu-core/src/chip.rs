// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What one chip is: every table the device shows is made from this.

use crate::regs::{NV_PMC_BOOT_0, NV_PMC_BOOT_42};

/// One mebibyte.
const MIB: u64 = 1 << 20;
/// One gibibyte.
const GIB: u64 = 1 << 30;

/// A chip and the board it sits on.
#[derive(Clone, Debug)]
pub struct ChipDescription {
    /// Name on the command line.
    pub name: &'static str,
    /// PCI identity.
    pub pci: PciIdentity,
    /// Fields of the boot registers.
    pub boot: BootIdentity,
    /// Sizes of the three apertures.
    pub bars: BarSizes,
    /// Video memory in bytes.
    pub fb_bytes: u64,
}

/// How the board shows itself on the bus.
#[derive(Clone, Copy, Debug)]
pub struct PciIdentity {
    /// Vendor of the chip.
    pub vendor: u16,
    /// Device id of the chip.
    pub device: u16,
    /// Vendor of the board.
    pub subsystem_vendor: u16,
    /// Board.
    pub subsystem_device: u16,
    /// Revision of the chip.
    pub revision: u8,
    /// Class, subclass and programming interface, as in one 24-bit number.
    pub class: u32,
    /// PCIe generation, 1 to 5.
    pub link_generation: u8,
    /// PCIe lanes.
    pub link_lanes: u8,
}

/// What PMC_BOOT_0 and PMC_BOOT_42 tell.
#[derive(Clone, Copy, Debug)]
pub struct BootIdentity {
    /// Architecture; 0x18 is Hopper.
    pub architecture: u32,
    /// Implementation within the architecture.
    pub implementation: u32,
    /// Major revision, 0xa for the A steppings.
    pub major_revision: u32,
    /// Minor revision.
    pub minor_revision: u32,
}

impl BootIdentity {
    /// The value of NV_PMC_BOOT_0.
    pub fn boot_0(&self) -> NV_PMC_BOOT_0 {
        NV_PMC_BOOT_0::default()
            .with(NV_PMC_BOOT_0::MINOR_REVISION, self.minor_revision)
            .with(NV_PMC_BOOT_0::MAJOR_REVISION, self.major_revision)
            .with(NV_PMC_BOOT_0::IMPLEMENTATION, self.implementation)
            .with(NV_PMC_BOOT_0::ARCHITECTURE_0, self.architecture)
    }

    /// The value of NV_PMC_BOOT_42.
    pub fn boot_42(&self) -> NV_PMC_BOOT_42 {
        NV_PMC_BOOT_42::default()
            .with(NV_PMC_BOOT_42::MINOR_REVISION, self.minor_revision)
            .with(NV_PMC_BOOT_42::MAJOR_REVISION, self.major_revision)
            .with(NV_PMC_BOOT_42::IMPLEMENTATION, self.implementation)
            .with(NV_PMC_BOOT_42::ARCHITECTURE, self.architecture)
    }
}

/// Sizes of the apertures in bytes, each a power of two.
#[derive(Clone, Copy, Debug)]
pub struct BarSizes {
    /// Registers.
    pub registers: u64,
    /// The window on video memory.
    pub framebuffer: u64,
    /// The driver's own window for instance memory.
    pub instance: u64,
}

impl ChipDescription {
    /// The chip called `name`, if it is known.
    pub fn by_name(name: &str) -> Option<Self> {
        (name == "gh100").then(Self::gh100)
    }

    /// A GH100 as on an H100 SXM5 board. The window on video memory is 256 MiB
    /// as on boards without a resized BAR, so that it fits any guest.
    pub fn gh100() -> Self {
        Self {
            name: "gh100",
            pci: PciIdentity {
                vendor: 0x10de,
                device: 0x2330,
                subsystem_vendor: 0x10de,
                subsystem_device: 0x16c1,
                revision: 0xa1,
                class: 0x03_02_00,
                link_generation: 5,
                link_lanes: 16,
            },
            boot: BootIdentity {
                architecture: 0x18,
                implementation: 0,
                major_revision: 0xa,
                minor_revision: 1,
            },
            bars: BarSizes {
                registers: 16 * MIB,
                framebuffer: 256 * MIB,
                instance: 32 * MIB,
            },
            fb_bytes: 16 * GIB,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boot_registers_are_those_of_a_gh100() {
        let chip = ChipDescription::gh100();
        assert_eq!(chip.boot.boot_0().raw(), 0x1800_00a1);
        assert_eq!(chip.boot.boot_42().raw(), 0x180a_1000);
    }

    #[test]
    fn only_known_names_make_a_chip() {
        assert!(ChipDescription::by_name("gh100").is_some());
        assert!(ChipDescription::by_name("GH100").is_none());
        assert!(ChipDescription::by_name("").is_none());
    }
}
