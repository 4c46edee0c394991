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
    /// What it is sold as.
    pub marketing_name: &'static str,
    /// What its makers call it.
    pub short_name: &'static str,
    /// Video memory in bytes.
    pub fb_bytes: u64,
    /// The end of it that GSP keeps for itself.
    pub fb_reserved_bytes: u64,
    /// Width of its bus.
    pub fb_bus_bits: u32,
    /// Its partitions, one bit each.
    pub fb_partitions_mask: u32,
    /// Second-level cache in bytes.
    pub l2_bytes: u64,
    /// Second-level caches.
    pub l2_caches: u32,
    /// Slices of each.
    pub l2_slices_per_cache: u32,
    /// A multiprocessor.
    pub sm: Multiprocessor,
    /// Texture processing clusters (pairs of multiprocessors) of each graphics
    /// processing cluster.
    pub tpcs_per_gpc: Vec<u32>,
    /// Multiprocessors of each of those.
    pub sms_per_tpc: u32,
    /// How long a launch takes.
    pub launch: LaunchTime,
    /// The time slice of a channel group that was given none.
    pub default_timeslice_ns: u64,
    /// Each buffer of a graphics context.
    pub context_buffer_bytes: u64,
    /// Engines that execute channels.
    pub engines: Vec<Engine>,
    /// Interrupts of everything else.
    pub vectors: Vectors,
    /// Channels that each runlist can have.
    pub channels_per_runlist: u32,
    /// Address spaces that a channel group can have.
    pub subcontexts: u32,
    /// Capability bytes of each copy engine.
    pub copy_capabilities: [u8; 2],
    /// Buffer for the methods of a channel that faults.
    pub fault_method_buffer_bytes: u64,
    /// Buffer for faults that can be replayed.
    pub replayable_fault_buffer_bytes: u64,
    /// Buffer for those that cannot. RM puts no more than 256 pages here.
    pub non_replayable_fault_buffer_bytes: u64,
    /// Entries of the access counters' buffer.
    pub access_counter_entries: u32,
}

/// What one multiprocessor can hold.
#[derive(Clone, Copy, Debug)]
pub struct Multiprocessor {
    /// Version in hexadecimal, 0x900 for sm_90.
    pub version: u32,
    /// Warps at a time.
    pub warps: u32,
    /// Threads of a warp.
    pub threads_per_warp: u32,
    /// Arithmetic lanes.
    pub lanes: u32,
}

/// The model of how long a launch takes: no shader runs, so that each block
/// takes as long as any other.
#[derive(Clone, Copy, Debug)]
pub struct LaunchTime {
    /// What each launch takes, even an empty one.
    pub fixed_ns: u64,
    /// How long a multiprocessor takes for a block; it has one at a time.
    pub block_ns: u64,
}

/// What an engine does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineKind {
    /// Graphics and compute.
    Graphics,
    /// Copies; the engine's number among its kind.
    Copy(u32),
}

/// An engine that executes channels.
#[derive(Clone, Copy, Debug)]
pub struct Engine {
    /// What it does.
    pub kind: EngineKind,
    /// The runlist of its channels.
    pub runlist: u32,
    /// Where that runlist's registers lie in BAR0.
    pub runlist_registers: u32,
    /// Where its channels' registers lie in BAR0.
    pub channel_registers: u32,
    /// The unit that fetches for it.
    pub pbdma: u32,
    /// How faults of the engine are told from others.
    pub mmu_fault_id: u32,
    /// How faults of the fetching unit are.
    pub pbdma_fault_id: u32,
    /// Interrupt for what stops it.
    pub vector_stall: u32,
    /// Interrupt that software asks for.
    pub vector_nonstall: u32,
}

impl Engine {
    /// Its name in the driver's tables.
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
    /// GSP has put something into its queue.
    pub gsp: u32,
    /// The timer.
    pub timer: u32,
    /// There are replayable faults.
    pub replayable_fault: u32,
    /// Their buffer is in trouble.
    pub replayable_fault_error: u32,
    /// There are faults that cannot be replayed.
    pub non_replayable_fault: u32,
    /// Their buffer is in trouble.
    pub non_replayable_fault_error: u32,
    /// An access counter has reached its limit.
    pub access_counter: u32,
    /// There is information on a fault.
    pub info_fault: u32,
    /// First and last subtree of each of RM's categories of interrupts
    /// (NV2080_INTR_CATEGORY): default, engines, engines' notifications,
    /// runlists, runlists' notifications, UVM's own, shared with UVM.
    pub subtrees: [(u8, u8); 7],
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
    /// Where in video memory the page directory of BAR1 lies.
    pub fn bar1_root(&self) -> u64 {
        self.fb_bytes - 4 * MIB
    }

    /// Where in video memory the page directory of BAR2 lies.
    pub fn bar2_root(&self) -> u64 {
        self.fb_bytes - 3 * MIB
    }

    /// Texture processing clusters.
    pub fn tpcs(&self) -> u32 {
        self.tpcs_per_gpc.iter().sum()
    }

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
            marketing_name: "NVIDIA Fake GH100",
            short_name: "GH100-A",
            // A small board: what is not touched costs nothing, but RM's own
            // tables grow with it.
            fb_bytes: 16 * GIB,
            fb_reserved_bytes: 256 * MIB,
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
            // NV_RAMRL_ENTRY_TSG_TIMESLICE: 128 << 3 us, of which RM does not tell GSP.
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

/// Graphics and four copy engines, each with a runlist of its own. The numbers
/// agree with one another; no hardware was asked for them.
fn gh100_engines() -> Vec<Engine> {
    let kinds = [EngineKind::Graphics]
        .into_iter()
        .chain((0..4).map(EngineKind::Copy));
    (0..)
        .zip(kinds)
        .map(|(index, kind)| Engine {
            kind,
            runlist: index,
            runlist_registers: 0x4a_0000 + index * 0x1000,
            channel_registers: 0x60_0000 + index * 0x4000,
            pbdma: index,
            mmu_fault_id: match kind {
                EngineKind::Graphics => 384,
                EngineKind::Copy(n) => 43 + n,
            },
            pbdma_fault_id: 32 + index,
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
