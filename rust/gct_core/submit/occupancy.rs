// SPDX-License-Identifier: GPL-2.0 OR MIT

//! How many blocks of a launch are resident at the same time.

use super::launch::Launch;
use super::qmd::Version;

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

/// Blocks of `launch` that one SM holds, by blocks, threads, registers and shared memory.
pub fn blocks_per_sm(launch: &Launch) -> u64 {
    let limits = match launch.version {
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
    };
    // Warps are given out in fours, registers of a warp in 256.
    let warps = launch
        .threads()
        .div_ceil(32)
        .div_ceil(4)
        .saturating_mul(4)
        .max(4);
    let registers = u64::from(launch.registers)
        .div_ceil(8)
        .saturating_mul(256)
        .saturating_mul(warps);
    let per = |limit: u64, each: u64| limit.checked_div(each).unwrap_or(u64::MAX);
    limits
        .blocks
        .min(per(limits.threads, warps.saturating_mul(32)))
        .min(per(limits.registers, registers))
        .min(per(
            limits.shared_memory_bytes,
            u64::from(launch.shared_memory_bytes),
        ))
}

/// Blocks of `launch` that so many TPCs hold: one wave.
pub fn wave(launch: &Launch, tpcs: u64) -> u64 {
    blocks_per_sm(launch)
        .saturating_mul(SMS_PER_TPC)
        .saturating_mul(tpcs)
}
