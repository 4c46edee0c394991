// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Computes how many blocks of a launch are resident at the same time.

use super::launch::{self, Kind, Launch};
use super::qmd::{with_layout, Field, Layout, Version};
use crate::mask::TpcMask;
use crate::topology::Topology;
use crate::units::{self, Blocks, Sat};

/// SMs of one TPC, on every GPU that has them.
pub const SMS_PER_TPC: u64 = 2;

/// What one SM holds at most. Source: the table of compute capabilities in the CUDA programming
/// guide. Where one QMD version serves several, the smallest value of each.
struct SmLimits {
    blocks: u64,
    threads: u64,
    registers: u64,
    shared_memory_bytes: u64,
}

/// What one block occupies of an SM.
struct Footprint {
    version: Version,
    threads: Sat<u64>,
    registers: u32,
    shared_memory_bytes: u32,
}

/// Returns the product of three fields.
#[inline]
fn volume(fields: [Field; 3], qmd: &[u32]) -> Sat<u64> {
    units::volume(launch::triple(fields, qmd))
}

/// Returns how many blocks of `launch` one SM holds, by blocks, threads, registers and shared
/// memory.
pub fn blocks_per_sm(launch: &Launch) -> u64 {
    Footprint {
        version: launch.version,
        threads: Sat(launch.threads()),
        registers: launch.registers,
        shared_memory_bytes: launch.shared_memory_bytes,
    }
    .per_sm()
}

/// The TPCs that the blocks of a launch need at the same time. On fewer it would never start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Needs {
    /// Any TPC will do.
    Any,
    /// So many TPCs of one GPC, for one cluster.
    Together(u32),
    /// So many TPCs, for all blocks of a cooperative launch.
    AtOnce(u64),
    /// All, because nothing less is known to do.
    All,
}

impl Needs {
    /// Reads what a launch needs.
    pub(crate) fn of<L: Layout>(qmd: &[u32]) -> Self {
        match launch::kind::<L>(qmd) {
            Kind::Cluster => {
                let blocks = L::CLUSTER.map_or(Sat(1), |fields| volume(fields, qmd));
                // With an SM for each block: a block that can run at all fits on one.
                let tpcs = blocks.0.div_ceil(SMS_PER_TPC);
                u32::try_from(tpcs).map_or(Self::All, Self::Together)
            }
            Kind::Cooperative => {
                let grid = volume(L::GRID, qmd);
                let blocks = grid * L::GANG.map_or(Sat(1), |fields| volume(fields, qmd));
                let each = Sat(Footprint::of::<L>(qmd).per_sm()) * Sat(SMS_PER_TPC);
                match each.0 {
                    0 => Self::All,
                    each => Self::AtOnce(blocks.0.div_ceil(each)),
                }
            }
            // How a cooperative launch of clusters is placed on GPCs was not measured.
            Kind::CooperativeCluster => Self::All,
            _ => Self::Any,
        }
    }

    /// Returns whether the TPCs `left` are enough.
    pub(crate) fn fit(self, left: &TpcMask, topology: &Topology) -> bool {
        match self {
            Self::Any => true,
            Self::Together(tpcs) => topology.has_together(left, tpcs),
            Self::AtOnce(tpcs) => tpcs <= u64::from(left.count()),
            Self::All => false,
        }
    }
}

/// Returns whether `tpcs` TPCs hold `blocks` blocks of the launch: [`per_tpc`] on each at most.
/// Reads no more of `qmd` than that needs.
pub(crate) fn holds<L: Layout>(qmd: &[u32], blocks: u64, tpcs: u16) -> bool {
    // The SM that holds most must hold the quotient, rounded up. Without an SM only no block fits.
    match u64::from(tpcs) * SMS_PER_TPC {
        0 => blocks == 0,
        sms => Footprint::of::<L>(qmd).fits(Blocks(blocks).pieces_of(Blocks(sms))),
    }
}

impl Footprint {
    /// Reads what one block of a launch occupies.
    #[inline]
    fn of<L: Layout>(qmd: &[u32]) -> Self {
        Self {
            version: L::VERSION,
            threads: volume(L::BLOCK, qmd),
            registers: L::REGISTERS.get(qmd),
            shared_memory_bytes: L::SHARED_MEMORY.get(qmd) << L::SHARED_MEMORY_SHIFT,
        }
    }

    /// Returns the limits of one SM.
    #[inline]
    fn limits(&self) -> SmLimits {
        match self.version {
            Version::V04_00 => SmLimits {
                blocks: 32,
                threads: 2048,
                registers: 65536,
                shared_memory_bytes: 228 * 1024,
            },
            _ => SmLimits {
                blocks: 16,
                threads: 1024,
                registers: 65536,
                shared_memory_bytes: 100 * 1024,
            },
        }
    }

    /// Returns the threads and registers that one block occupies. Warps are allocated in fours,
    /// registers of a warp in units of 256.
    #[inline]
    fn taken(&self) -> (Sat<u64>, Sat<u64>) {
        let warps = (Sat(self.threads.0.div_ceil(32).div_ceil(4)) * Sat(4)).max(Sat(4));
        let registers = Sat(u64::from(self.registers).div_ceil(8)) * Sat(256) * warps;
        (warps * Sat(32), registers)
    }

    /// Returns how many such blocks one SM holds.
    fn per_sm(&self) -> u64 {
        let limits = self.limits();
        let (threads, registers) = self.taken();
        let per = |limit: u64, each: u64| limit.checked_div(each).unwrap_or(u64::MAX);
        limits
            .blocks
            .min(per(limits.threads, threads.0))
            .min(per(limits.registers, registers.0))
            .min(per(
                limits.shared_memory_bytes,
                u64::from(self.shared_memory_bytes),
            ))
    }

    /// Returns whether one SM holds `blocks` such blocks, without a division.
    #[inline]
    fn fits(&self, blocks: u64) -> bool {
        let limits = self.limits();
        let (threads, registers) = self.taken();
        let all = Sat(blocks);
        blocks <= limits.blocks
            && all * threads <= Sat(limits.threads)
            && all * registers <= Sat(limits.registers)
            && all * Sat(u64::from(self.shared_memory_bytes)) <= Sat(limits.shared_memory_bytes)
    }
}

/// Returns whether all blocks of the launch that `qmd` describes are resident at once on `whole`
/// TPCs, but not on `granted`. If its blocks wait for each other without the cooperative flag, the
/// launch never ends there.
pub fn is_narrowed(qmd: &[u32], version: Version, granted: u16, whole: u16) -> bool {
    with_layout!(version, L => {
        let blocks = match launch::kind::<L>(qmd) {
            Kind::Grid => volume(L::GRID, qmd),
            Kind::Cluster => {
                let each = L::CLUSTER.map_or(Sat(1), |fields| volume(fields, qmd));
                volume(L::GRID, qmd) * each
            }
            _ => Sat(0),
        };
        !holds::<L>(qmd, blocks.0, granted) && holds::<L>(qmd, blocks.0, whole)
    })
}

/// Returns whether any TPC will do for the launch that `qmd` describes.
pub fn fits_anywhere(qmd: &[u32], version: Version) -> bool {
    with_layout!(version, L => Needs::of::<L>(qmd) == Needs::Any)
}

/// Returns how many TPCs hold all blocks of the launch that `qmd` describes at once; 0 if `most` do
/// not. The blocks of such a launch may wait for each other.
pub fn resident(qmd: &[u32], version: Version, most: u32) -> u32 {
    with_layout!(version, L => {
        let each = match launch::kind::<L>(qmd) {
            Kind::Grid => Sat(1),
            Kind::Cluster => L::CLUSTER.map_or(Sat(1), |fields| volume(fields, qmd)),
            Kind::Cooperative => L::GANG.map_or(Sat(1), |fields| volume(fields, qmd)),
            _ => return 0,
        };
        let blocks = volume(L::GRID, qmd) * each;
        let per_tpc = Sat(Footprint::of::<L>(qmd).per_sm()) * Sat(SMS_PER_TPC);
        let tpcs = Blocks(blocks.0).pieces_of(Blocks(per_tpc.0.max(1)));
        let tpcs = u32::try_from(tpcs).ok();
        tpcs.filter(|tpcs| *tpcs <= most).unwrap_or(0)
    })
}

/// Returns how many blocks of `launch` one TPC of any GPU holds at most.
pub fn most_per_tpc(launch: &Launch) -> u32 {
    // Hopper's SMs hold most of all.
    per_tpc(&Launch {
        version: Version::V04_00,
        ..*launch
    })
}

/// Returns how many blocks of `launch` one TPC holds.
pub fn per_tpc(launch: &Launch) -> u32 {
    // CAST: an SM holds 32 blocks at most.
    (Sat(blocks_per_sm(launch)) * Sat(SMS_PER_TPC)).0 as u32
}
