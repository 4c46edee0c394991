// SPDX-License-Identifier: GPL-2.0 OR MIT

//! How many blocks of a launch are resident at the same time.

use super::launch::{self, Kind, Launch};
use super::qmd::{with_layout, Field, Layout, Version};
use crate::mask::TpcMask;
use crate::topology::Topology;

/// SMs of one TPC, on every GPU that has them.
pub const SMS_PER_TPC: u64 = 2;

/// What one SM holds at most. Source: the CUDA programming guide's table of compute capabilities; where one QMD version
/// serves several, the smallest of each.
struct SmLimits {
    blocks: u64,
    threads: u64,
    registers: u64,
    shared_memory_bytes: u64,
}

/// What one block takes of an SM.
struct Footprint {
    version: Version,
    threads: u64,
    registers: u32,
    shared_memory_bytes: u32,
}

/// The product of three fields.
#[inline]
pub(crate) fn volume(fields: [Field; 3], qmd: &[u32]) -> u64 {
    let [x, y, z] = fields;
    u64::from(x.get(qmd))
        .saturating_mul(u64::from(y.get(qmd)))
        .saturating_mul(u64::from(z.get(qmd)))
}

/// Blocks of `launch` that one SM holds, by blocks, threads, registers and shared memory.
pub fn blocks_per_sm(launch: &Launch) -> u64 {
    Footprint {
        version: launch.version,
        threads: launch.threads(),
        registers: launch.registers,
        shared_memory_bytes: launch.shared_memory_bytes,
    }
    .per_sm()
}

/// Whether the blocks that must be resident at the same time fit on the TPCs `left`: all of a cooperative launch, one
/// cluster of a cluster launch in one GPC. A launch that does not fit would never start.
pub(crate) fn is_resident<L: Layout>(qmd: &[u32], left: &TpcMask, topology: &Topology) -> bool {
    match launch::kind::<L>(qmd) {
        Kind::Cluster => {
            let blocks = L::CLUSTER.map_or(1, |fields| volume(fields, qmd));
            // With an SM for each block: a block that can run at all fits on one.
            let tpcs = blocks.div_ceil(SMS_PER_TPC);
            u32::try_from(tpcs).is_ok_and(|tpcs| topology.has_together(left, tpcs))
        }
        Kind::Cooperative => {
            let grid = volume(L::GRID, qmd);
            let blocks = grid.saturating_mul(L::GANG.map_or(1, |fields| volume(fields, qmd)));
            u16::try_from(left.count()).is_ok_and(|tpcs| holds::<L>(qmd, blocks, tpcs))
        }
        // Clusters of a cooperative launch are bound to GPCs in a way that nothing here was measured for.
        _ => false,
    }
}

/// Whether so many TPCs hold `blocks` blocks of the launch that `qmd` describes: whether that is no more than a
/// [`wave`]. Reads no more of it than that needs.
pub(crate) fn holds<L: Layout>(qmd: &[u32], blocks: u64, tpcs: u16) -> bool {
    let footprint = Footprint {
        version: L::VERSION,
        threads: volume(L::BLOCK, qmd),
        registers: L::REGISTERS.get(qmd),
        shared_memory_bytes: L::SHARED_MEMORY
            .get(qmd)
            .wrapping_shl(L::SHARED_MEMORY_SHIFT),
    };
    let sms = u64::from(tpcs).saturating_mul(SMS_PER_TPC);
    match blocks.checked_div(sms) {
        // Rounded up: the SM that holds most must hold so many.
        Some(each) if each.saturating_mul(sms) < blocks => footprint.fits(each.saturating_add(1)),
        Some(each) => footprint.fits(each),
        None => blocks == 0,
    }
}

impl Footprint {
    /// What one SM has.
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

    /// Threads and registers that one block takes of an SM: warps are given out in fours, registers of a warp in 256.
    #[inline]
    fn taken(&self) -> (u64, u64) {
        let warps = self
            .threads
            .div_ceil(32)
            .div_ceil(4)
            .saturating_mul(4)
            .max(4);
        let registers = u64::from(self.registers)
            .div_ceil(8)
            .saturating_mul(256)
            .saturating_mul(warps);
        (warps.saturating_mul(32), registers)
    }

    /// How many such blocks one SM holds.
    fn per_sm(&self) -> u64 {
        let limits = self.limits();
        let (threads, registers) = self.taken();
        let per = |limit: u64, each: u64| limit.checked_div(each).unwrap_or(u64::MAX);
        limits
            .blocks
            .min(per(limits.threads, threads))
            .min(per(limits.registers, registers))
            .min(per(
                limits.shared_memory_bytes,
                u64::from(self.shared_memory_bytes),
            ))
    }

    /// Whether one SM holds so many of them, without a division.
    #[inline]
    fn fits(&self, blocks: u64) -> bool {
        let limits = self.limits();
        let (threads, registers) = self.taken();
        blocks <= limits.blocks
            && blocks.saturating_mul(threads) <= limits.threads
            && blocks.saturating_mul(registers) <= limits.registers
            && blocks.saturating_mul(u64::from(self.shared_memory_bytes))
                <= limits.shared_memory_bytes
    }
}

/// Whether all blocks of the launch that `qmd` describes are resident at the same time on `whole` TPCs, but not on `granted` of
/// them. If its blocks wait for each other without saying so by the cooperative flag, it never ends there.
pub fn is_narrowed(qmd: &[u32], version: Version, granted: u16, whole: u16) -> bool {
    with_layout!(version, L => {
        let blocks = match launch::kind::<L>(qmd) {
            Kind::Grid => volume(L::GRID, qmd),
            Kind::Cluster => {
                let each = L::CLUSTER.map_or(1, |fields| volume(fields, qmd));
                volume(L::GRID, qmd).saturating_mul(each)
            }
            _ => 0,
        };
        !holds::<L>(qmd, blocks, granted) && holds::<L>(qmd, blocks, whole)
    })
}

/// Blocks of `launch` that so many TPCs hold: one wave.
pub fn wave(launch: &Launch, tpcs: u64) -> u64 {
    blocks_per_sm(launch)
        .saturating_mul(SMS_PER_TPC)
        .saturating_mul(tpcs)
}
