// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Facts about a GPU, from its driver.

use crate::costs::Costs;
use crate::text::Text;
use crate::topology::Topology;
use crate::units::Bytes;
use core::fmt;

/// A PCI address. Its order is the order of nvidia-smi's indices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PciAddress {
    /// Domain.
    pub domain: u32,
    /// Bus.
    pub bus: u8,
    /// Device on the bus, below 32.
    pub slot: u8,
    /// Function of the device, below 8.
    pub function: u8,
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            domain,
            bus,
            slot,
            function,
        } = self;
        write!(f, "{domain:04x}:{bus:02x}:{slot:02x}.{function:x}")
    }
}

/// PCI vendor and device numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PciIds {
    /// Vendor.
    pub vendor: u16,
    /// Device.
    pub device: u16,
    /// Vendor of the board.
    pub subsystem_vendor: u16,
    /// Board.
    pub subsystem_device: u16,
}

impl fmt::Display for PciIds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            vendor,
            device,
            subsystem_vendor,
            subsystem_device,
        } = self;
        write!(
            f,
            "{vendor:04x}:{device:04x} {subsystem_vendor:04x}:{subsystem_device:04x}"
        )
    }
}

/// The backend of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// The patched driver.
    Kernel,
    /// The daemon of the user-space mode.
    User,
    /// A simulator.
    Simulator,
}

impl Backend {
    /// Returns the word in the file `mode`.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::User => "user",
            Self::Simulator => "simulator",
        }
    }
}

/// Facts about a GPU. An unknown fact is `None` or empty.
#[derive(Clone, Copy, Debug)]
pub struct GpuFacts {
    /// The resource manager's identifier, unique while the GPU is present.
    pub rm_id: u32,
    /// The N of `/dev/nvidiaN`.
    pub minor: u32,
    /// Its PCI address.
    pub pci: PciAddress,
    /// Its PCI vendor and device numbers.
    pub ids: PciIds,
    /// Marketing name.
    pub name: Text<64>,
    /// The register `PMC_BOOT_42`; 0 if it was not read.
    pub boot_42: u32,
    /// Its UUID, known once the GPU was initialised.
    pub uuid: Option<[u8; 16]>,
    /// Its TPCs, if they are known.
    pub topology: Topology,
    /// Device memory.
    pub memory_total: Option<Bytes>,
    /// What its driver takes for objects of tenants.
    pub costs: Costs,
    /// Its backend.
    pub backend: Backend,
    /// Whether a self-test has tried launches in atoms, and found them exact.
    pub tried: bool,
}

/// No architecture has this code.
const UNKNOWN: u32 = 0;
const HOPPER: u32 = 0x18;

impl GpuFacts {
    /// Creates a GPU with its first facts; the caller fills in the others.
    pub const fn new(rm_id: u32, pci: PciAddress, backend: Backend) -> Self {
        Self {
            rm_id,
            minor: 0,
            pci,
            ids: PciIds {
                vendor: 0,
                device: 0,
                subsystem_vendor: 0,
                subsystem_device: 0,
            },
            name: Text::EMPTY,
            boot_42: 0,
            uuid: None,
            topology: Topology::UNKNOWN,
            memory_total: None,
            costs: Costs::NONE,
            backend,
            tried: false,
        }
    }

    /// Sets the architecture to the answer of `NV2080_CTRL_CMD_MC_GET_ARCH_INFO`: bits 31:20 of the
    /// register.
    pub const fn set_architecture(&mut self, architecture: u32) {
        self.boot_42 = architecture.wrapping_shl(20);
    }

    /// Returns `NV_PMC_BOOT_42_ARCHITECTURE`, bits 29:24; 0 if it is not known.
    const fn architecture_code(&self) -> u32 {
        (self.boot_42 >> 24) & 0x3f
    }

    /// Returns whether this project has measured what the GPU does with launches in atoms.
    pub const fn is_measured(&self) -> bool {
        matches!(self.architecture_code(), HOPPER)
    }

    /// Returns whether a self-test must find masks and atoms exact before they are announced.
    ///
    /// Hopper needs none, because this project measured it. Where nobody said what the GPU is, the
    /// administrator who named its TPCs is believed.
    pub const fn needs_selftest(&self) -> bool {
        !matches!(self.architecture_code(), UNKNOWN | HOPPER)
    }

    /// Returns whether nobody said what the GPU is, nor which TPCs it has.
    pub fn is_unknown(&self) -> bool {
        self.architecture_code() == UNKNOWN && !self.topology.is_known()
    }

    /// Returns the name of the architecture.
    pub const fn architecture(&self) -> Option<&'static str> {
        match self.architecture_code() {
            0x14 => Some("volta"),
            0x16 => Some("turing"),
            0x17 => Some("ampere"),
            HOPPER => Some("hopper"),
            0x19 => Some("ada"),
            0x1a | 0x1b => Some("blackwell"),
            _ => None,
        }
    }
}

/// A UUID in the form of nvidia-smi.
pub struct Uuid(pub [u8; 16]);

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GPU")?;
        for (i, byte) in self.0.iter().enumerate() {
            let dash = if matches!(i, 0 | 4 | 6 | 8 | 10) {
                "-"
            } else {
                ""
            };
            write!(f, "{dash}{byte:02x}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn addresses_print_as_lspci_does_and_sort() {
        let at = |domain, bus, slot, function| PciAddress {
            domain,
            bus,
            slot,
            function,
        };
        assert_eq!(at(0, 0x3b, 0, 0).to_string(), "0000:3b:00.0");
        assert_eq!(at(0x1_0000, 0xff, 0x1f, 7).to_string(), "10000:ff:1f.7");
        assert!(at(0, 9, 0, 0) < at(0, 0x10, 0, 0) && at(0, 0xff, 31, 7) < at(1, 0, 0, 0));
    }

    #[test]
    fn identities() {
        let ids = PciIds {
            vendor: 0x10de,
            device: 0x2330,
            subsystem_vendor: 0x10de,
            subsystem_device: 0x16c1,
        };
        assert_eq!(ids.to_string(), "10de:2330 10de:16c1");
        let uuid = Uuid(core::array::from_fn(|i| u8::try_from(i * 17).unwrap()));
        let text = "GPU-00112233-4455-6677-8899-aabbccddeeff";
        assert_eq!(uuid.to_string(), text);
    }

    #[test]
    fn architectures() {
        let mut facts = GpuFacts::new(
            0,
            PciAddress {
                domain: 0,
                bus: 0,
                slot: 0,
                function: 0,
            },
            Backend::Kernel,
        );
        assert_eq!(facts.architecture(), None);
        assert!(!facts.needs_selftest());
        facts.boot_42 = 0x180a_1000;
        assert_eq!(facts.architecture(), Some("hopper"));
        assert!(!facts.needs_selftest());
        facts.set_architecture(0x190);
        assert_eq!(facts.architecture(), Some("ada"));
        // All but Hopper, also one that is not known yet.
        for code in (1..0x40).filter(|code| *code != HOPPER) {
            facts.set_architecture(code << 4);
            assert!(facts.needs_selftest(), "{code:#x}");
        }
    }
}
