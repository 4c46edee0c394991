// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Decides how much managed memory of an owner at its `gmem.limit` is evicted before others of its
//! pages need the room.
//!
//! Terminology
//!   room    what a limit leaves free
//!   ahead   evicted by the evictor, and not by the thread that needs the room
//!   credit  roots that the evictor may still evict ahead for a process
//!
//! A thread that evicts for itself copies a root out and then another one in. If the evictor has
//! made room before, the copy in does not wait, and the next copy out runs beside it.
//!
//! ```text
//! full    = min(limit / 16, 32 roots), in whole roots
//! low     = full / 2, rounded up to roots
//! credit  = 8 * full
//!
//! a reservation finds no room           the process gets credit; the evictor wakes
//! one leaves less room than low         the evictor wakes if the process has credit
//! the evictor, while room < full        evicts a root, which takes a root of credit
//! ```
//!
//! Eviction ahead makes a limit smaller by `full`. Memory that fits within the limit and not within
//! `limit - full` would leave and come back for ever. Credit ends that: such memory finds room at
//! each reservation, so it gets no more credit. At most `credit`, which is half of the limit, has
//! then moved in vain. Memory that does not fit finds no room once in `credit` roots.
//!
//! A limit below 16 roots leaves no room for this: `full` is 0, and the evictor only repays what is
//! beyond the limit.

use crate::memory::ROOT;
use crate::units::Bytes;

/// Part of a limit that the evictor keeps free, as a divisor.
const PART: u64 = 16;

/// Most roots that it keeps free: 64 MiB take a PCIe bus 2 ms, longer than the evictor needs to
/// wake.
const ROOTS_MAX: u64 = 32;

/// How many times `full` may leave ahead after a reservation that found no room.
const CREDIT: u64 = 8;

fn roots(limit: Bytes) -> u64 {
    (limit / PART)
        .get()
        .checked_div(ROOT.get())
        .unwrap_or(0)
        .min(ROOTS_MAX)
}

/// Returns the room that the evictor makes below a limit.
pub fn full(limit: Bytes) -> Bytes {
    ROOT * roots(limit)
}

/// Returns the room below which the evictor wakes.
pub fn low(limit: Bytes) -> Bytes {
    ROOT * roots(limit).div_ceil(2)
}

/// Returns the credit of a process, in roots, for which there was no room below a limit.
pub fn credit(limit: Bytes) -> u32 {
    u32::try_from(CREDIT.saturating_mul(roots(limit))).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
