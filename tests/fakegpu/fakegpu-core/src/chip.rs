// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Describes a chip. Every table that the device shows is derived from this description.

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
    /// Marketing name.
    pub marketing_name: &'static str,
    /// Name of the chip.
    pub short_name: &'static str,
    /// Video memory in bytes.
    pub fb_bytes: u64,
    /// Video memory at the end that GSP reserves.
    pub fb_reserved_bytes: u64,
    /// Time that a copy takes at least; 0 if it takes what the host takes.
    pub copy_ns_per_kib: u64,
    /// Width of the memory bus.
    pub fb_bus_bits: u32,
    /// Memory partitions, one bit each.
    pub fb_partitions_mask: u32,
    /// L2 cache in bytes.
    pub l2_bytes: u64,
    /// Number of L2 caches.
    pub l2_caches: u32,
    /// Slices of each L2 cache.
    pub l2_slices_per_cache: u32,
    /// One streaming multiprocessor (SM).
    pub sm: Multiprocessor,
    /// Texture processing clusters (TPCs, pairs of SMs) of each graphics processing cluster (GPC).
    pub tpcs_per_gpc: Vec<u32>,
    /// SMs per TPC.
    pub sms_per_tpc: u32,
    /// Model of a launch's duration.
    pub launch: LaunchTime,
    /// The time slice of a channel group without SET_TIMESLICE.
    pub default_timeslice_ns: u64,
    /// Size of each buffer of a graphics context.
    pub context_buffer_bytes: u64,
    /// Engines that execute channels.
    pub engines: Vec<Engine>,
    /// Interrupt vectors of all other units.
    pub vectors: Vectors,
    /// Maximum number of channels on a runlist.
    pub channels_per_runlist: u32,
    /// Maximum number of address spaces of a channel group.
    pub subcontexts: u32,
    /// Capability bytes of each copy engine on a runlist of its own.
    pub copy_capabilities: [u8; 2],
    /// Size of the buffer for the methods of a channel that faults.
    pub fault_method_buffer_bytes: u64,
    /// Size of the buffer for replayable faults.
    pub replayable_fault_buffer_bytes: u64,
    /// Size of the buffer for non-replayable faults. RM accepts at most 256 pages.
    pub non_replayable_fault_buffer_bytes: u64,
    /// Entries of the access counter buffer.
    pub access_counter_entries: u32,
}

/// The capacity of one SM.
#[derive(Clone, Copy, Debug)]
pub struct Multiprocessor {
    /// Version in hexadecimal, 0x900 for sm_90.
    pub version: u32,
    /// Resident warps.
    pub warps: u32,
    /// Threads per warp.
    pub threads_per_warp: u32,
    /// CUDA cores.
    pub lanes: u32,
}

/// Model of a launch's duration. No shader runs, so all blocks take equally long.
#[derive(Clone, Copy, Debug)]
pub struct LaunchTime {
    /// Duration of every launch, even an empty one.
    pub fixed_ns: u64,
    /// Duration of a block on an SM, which runs one block at a time.
    pub block_ns: u64,
}

/// The kind of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineKind {
    /// Graphics and compute.
    Graphics,
    /// Copies. Holds the index of the copy engine.
    Copy(u32),
}

/// An engine that executes channels.
#[derive(Clone, Copy, Debug)]
pub struct Engine {
    /// The kind of the engine.
    pub kind: EngineKind,
    /// The runlist of its channels.
    pub runlist: u32,
    /// Offset in BAR0 of the runlist's registers.
    pub runlist_registers: u32,
    /// Offset in BAR0 of the channels' registers.
    pub channel_registers: u32,
    /// The PBDMA that fetches for the engine.
    pub pbdma: u32,
    /// MMU fault id of the engine.
    pub mmu_fault_id: u32,
    /// MMU fault id of the PBDMA.
    pub pbdma_fault_id: u32,
    /// Stalling interrupt, for errors.
    pub vector_stall: u32,
    /// Non-stalling interrupt, requested by software.
    pub vector_nonstall: u32,
}

impl Engine {
    /// Returns the engine's name in the driver's tables.
    pub fn name(&self) -> String {
        match self.kind {
            EngineKind::Graphics => "GR0".into(),
            EngineKind::Copy(n) => format!("CE{n}"),
        }
    }
}

/// Interrupt vectors of units other than engines.
#[derive(Clone, Copy, Debug)]
pub struct Vectors {
    /// GSP has put a record into its queue.
    pub gsp: u32,
    /// The timer.
    pub timer: u32,
    /// Replayable faults are pending.
    pub replayable_fault: u32,
    /// Error of the replayable fault buffer.
    pub replayable_fault_error: u32,
    /// Non-replayable faults are pending.
    pub non_replayable_fault: u32,
    /// Error of the non-replayable fault buffer.
    pub non_replayable_fault_error: u32,
    /// An access counter has reached its threshold.
    pub access_counter: u32,
    /// Information on a fault is available.
    pub info_fault: u32,
    /// First and last subtree of each interrupt category of RM (NV2080_INTR_CATEGORY): default,
    /// engines, engines' notifications, runlists, runlists' notifications, UVM's own, shared with
    /// UVM.
    pub subtrees: [(u8, u8); 7],
}

/// The board's identity on the PCI bus.
#[derive(Clone, Copy, Debug)]
pub struct PciIdentity {
    /// Vendor of the chip.
    pub vendor: u16,
    /// Device id of the chip.
    pub device: u16,
    /// Vendor of the board.
    pub subsystem_vendor: u16,
    /// Device id of the board.
    pub subsystem_device: u16,
    /// Revision of the chip.
    pub revision: u8,
    /// Class, subclass and programming interface as one 24-bit number.
    pub class: u32,
    /// PCIe generation, 1 to 5.
    pub link_generation: u8,
    /// PCIe lanes.
    pub link_lanes: u8,
}

/// Fields of PMC_BOOT_0 and PMC_BOOT_42.
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
    /// Returns the value of NV_PMC_BOOT_0.
    pub fn boot_0(&self) -> NV_PMC_BOOT_0 {
        NV_PMC_BOOT_0::default()
            .with(NV_PMC_BOOT_0::MINOR_REVISION, self.minor_revision)
            .with(NV_PMC_BOOT_0::MAJOR_REVISION, self.major_revision)
            .with(NV_PMC_BOOT_0::IMPLEMENTATION, self.implementation)
            .with(NV_PMC_BOOT_0::ARCHITECTURE_0, self.architecture)
    }

    /// Returns the value of NV_PMC_BOOT_42.
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
    /// The window on video memory (BAR1).
    pub framebuffer: u64,
    /// The driver's window on instance memory (BAR2).
    pub instance: u64,
}

impl ChipDescription {
    /// Returns the offset in video memory of BAR1's page directory.
    pub fn bar1_root(&self) -> u64 {
        self.fb_bytes - 4 * MIB
    }

    /// Returns the offset in video memory of BAR2's page directory.
    pub fn bar2_root(&self) -> u64 {
        self.fb_bytes - 3 * MIB
    }

    /// Returns the number of TPCs.
    pub fn tpcs(&self) -> u32 {
        self.tpcs_per_gpc.iter().sum()
    }

    /// Returns the bits of its TPCs in a launch's mask. Each GPC has as many as the widest one has
    /// TPCs, as measured on an H100.
    pub fn tpc_bits(&self) -> u128 {
        let widest = self.tpcs_per_gpc.iter().copied().max().unwrap_or(0);
        let gpcs = (0..).zip(&self.tpcs_per_gpc);
        let bits = gpcs.flat_map(|(gpc, tpcs)| gpc * widest..gpc * widest + tpcs);
        bits.fold(0, |bits, bit| bits | 1u128.checked_shl(bit).unwrap_or(0))
    }

    /// Returns the capability bytes of copy engine `number`.
    pub fn capabilities_of_copy(&self, number: u32) -> [u8; 2] {
        let [first, second] = self.copy_capabilities;
        let runlist = |kind| {
            let engine = self.engines.iter().find(|engine| engine.kind == kind);
            engine.map(|engine| engine.runlist)
        };
        let beside_graphics = runlist(EngineKind::Copy(number)) == runlist(EngineKind::Graphics);
        [first | u8::from(beside_graphics), second]
    }

    /// Returns the chip called `name`, if it is known.
    pub fn by_name(name: &str) -> Option<Self> {
        (name == "gh100").then(Self::gh100)
    }

    /// Describes a GH100 as on an H100 SXM5 board. BAR1 is 256 MiB, as on boards without a resized
    /// BAR, so that it fits any guest.
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
            marketing_name: "NVIDIA Fake GH100",
            short_name: "GH100-A",
            // Less than on a real board: untouched memory costs nothing, but RM's own tables grow
            // with it.
            fb_bytes: 16 * GIB,
            fb_reserved_bytes: 256 * MIB,
            copy_ns_per_kib: 0,
            fb_bus_bits: 5120,
            fb_partitions_mask: 0xfff,
            l2_bytes: 50 * MIB,
            l2_caches: 12,
            l2_slices_per_cache: 4,
            sm: Multiprocessor {
                version: 0x900,
                warps: 64,
                threads_per_warp: 32,
                lanes: 128,
            },
            tpcs_per_gpc: vec![9, 9, 8, 8, 8, 8, 8, 8],
            sms_per_tpc: 2,
            launch: LaunchTime {
                fixed_ns: 2_000,
                block_ns: 10_000,
            },
            // NV_RAMRL_ENTRY_TSG_TIMESLICE: 128 << 3 us. RM does not send it to GSP.
            default_timeslice_ns: 1_024_000,
            context_buffer_bytes: 64 << 10,
            engines: gh100_engines(),
            vectors: Vectors {
                gsp: 161,
                timer: 162,
                replayable_fault: 64,
                replayable_fault_error: 160,
                non_replayable_fault: 163,
                non_replayable_fault_error: 164,
                access_counter: 65,
                info_fault: 165,
                subtrees: [(2, 2), (3, 5), (0, 0), (2, 2), (0, 0), (1, 1), (1, 1)],
            },
            channels_per_runlist: 2048,
            subcontexts: 64,
            copy_capabilities: [0xec, 0x03],
            fault_method_buffer_bytes: 0x5000,
            replayable_fault_buffer_bytes: 0x8_0000,
            non_replayable_fault_buffer_bytes: 0x2_0000,
            access_counter_entries: 0x1000,
        }
    }
}

/// Describes graphics and four copy engines, each with its own runlist, and two copy engines on the
/// runlist of graphics, by which libcuda copies in its channels for compute. The numbers agree with
/// one another; they were not read from hardware, where the last two come first.
fn gh100_engines() -> Vec<Engine> {
    let kinds = [EngineKind::Graphics]
        .into_iter()
        .chain((0..6).map(EngineKind::Copy));
    (0..)
        .zip(kinds)
        .map(|(index, kind)| (index, if index < 5 { index } else { 0 }, kind))
        .map(|(index, runlist, kind)| Engine {
            kind,
            runlist,
            runlist_registers: 0x4a_0000 + runlist * 0x1000,
            channel_registers: 0x60_0000 + runlist * 0x4000,
            pbdma: runlist,
            mmu_fault_id: match kind {
                EngineKind::Graphics => 384,
                EngineKind::Copy(n) => 43 + n,
            },
            pbdma_fault_id: 32 + runlist,
            vector_stall: 192 + index,
            vector_nonstall: index,
        })
        .collect()
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
