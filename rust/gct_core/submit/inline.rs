// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Builds our own inline-to-memory uploads in a tenant's channel, and restores the tenant's
//! registers.

use super::method;
use super::methods;
use super::tracker::Registers;

/// Words of an upload before its data: destination, length, LAUNCH_DMA, the data's header.
pub(super) const HEADER_WORDS: usize = 3 + 3 + 2 + 1;
/// Words that restore the registers which an upload overwrites.
pub(super) const RESTORE_WORDS: usize = 5;
/// LAUNCH_DMA as CUDA writes it: pitch layout, no flush, no system membar.
const LAUNCH_PITCH: u32 = 0x41;

/// Returns the words before the `count` data words of an upload to `va`.
#[inline(always)]
pub(super) fn headers(on: u8, va: u64, count: u32) -> [u32; HEADER_WORDS] {
    let (upper, lower) = halves(va);
    [
        method::incr(on, methods::OFFSET_OUT_UPPER, 2),
        upper,
        lower,
        method::incr(on, methods::LINE_LENGTH_IN, 2),
        count << 2,
        1,
        method::incr(on, methods::LAUNCH_DMA, 1),
        LAUNCH_PITCH,
        method::non_incr(on, methods::LOAD_INLINE_DATA, count),
    ]
}

/// Returns the words that restore the registers after uploads.
pub(super) fn restore(on: u8, registers: &Registers) -> [u32; RESTORE_WORDS] {
    let (lines, line_length) = halves(registers.lines);
    let (upper, lower) = halves(registers.destination);
    [
        method::incr(on, methods::LINE_LENGTH_IN, 4),
        line_length,
        lines,
        upper,
        lower,
    ]
}

/// Splits an address into its upper and lower half.
#[inline(always)]
pub(super) fn halves(va: u64) -> (u32, u32) {
    // CAST: the halves.
    ((va >> 32) as u32, va as u32)
}
