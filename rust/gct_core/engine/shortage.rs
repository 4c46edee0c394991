// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Decides what becomes of a fault of the GPU that finds no device memory within its owner's
//! limits, when nobody whose memory may give way has more to give.
//!
//! One thread of the kernel serves the faults of all tenants, so it cannot wait for one of them.
//!
//! ```text
//! shortage   when                                     the fault
//! lasting    a root does not fit beside what RM has   fails; its owner's channel ends
//!            EVICTIONS_MAX evictions have failed
//! renewed    evictions have failed                    tries other roots
//! passing    roots are pinned for a moment            gets a root beyond gmem.limit
//! ```
//!
//! An eviction fails when the host has no memory for it: beyond `hmem.limit`, or beyond the limit
//! of a memory cgroup. Memory that a root beyond the limit takes leaves at the next fault.

use crate::ids::{FileId, GpuId};
use crate::memory::ROOT;
use crate::records::Pool;
use crate::state::State;

/// Number of failed evictions after which a fault fails, each renewal counted as one. The hand
/// moves on with each, so other roots are tried. A failed one costs an allocation of host memory.
const EVICTIONS_MAX: u32 = 64;

/// How long a shortage lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shortage {
    /// Until another thread unpins a root.
    Passing,
    /// Other roots may be able to leave.
    Renewed,
    /// Until a limit is raised or memory is freed.
    Lasting,
}

impl State<'_> {
    /// Returns how long a shortage of a file's process lasts, after `failed` evictions. A lasting
    /// one is counted as a refusal of each pool that has no room for a root.
    pub fn shortage(&mut self, file: FileId, gpu: GpuId, failed: u32) -> Shortage {
        let Some(proc) = self.files.get(&file).map(|file| file.proc) else {
            return Shortage::Passing;
        };
        let mut is_full = false;
        for owner in self.owners_of(proc).into_iter().flatten() {
            let pool = self.pools.get_mut(&(owner, gpu));
            if let Some(pool) = pool.filter(|pool| pool.never_has_room()) {
                pool.refusals = pool.refusals.saturating_add(1);
                is_full = true;
            }
        }
        match failed {
            _ if is_full => Shortage::Lasting,
            0 => Shortage::Passing,
            1..EVICTIONS_MAX => Shortage::Renewed,
            _ => Shortage::Lasting,
        }
    }
}

impl Pool {
    /// Returns whether a root exceeds the limit although all pages of managed memory give way.
    fn never_has_room(&self) -> bool {
        let sum = self.usage.now().fixed_memory().checked_add(ROOT);
        self.memory_limit()
            .is_some_and(|limit| sum.is_none_or(|sum| sum > limit))
    }
}
