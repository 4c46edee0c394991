// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Passes GPU errors from the driver's log to the work item.
//!
//! The driver logs in any context: under its own spinlocks and in interrupts. So nothing here takes
//! a lock or allocates. A report that finds no free slot is lost and counted.

use gct_core::faults::Report;
use kernel::sync::atomic::{Acquire, Atomic, Relaxed, Release};

/// Slots for pending reports. A channel reports one error, and the work item runs within
/// milliseconds.
const REPORTS_MAX: usize = 64;

/// Reports that are pending for the work item. A free slot is 0.
pub(crate) struct Reports {
    slots: [Atomic<u64>; REPORTS_MAX],
    lost: Atomic<u64>,
}

impl Reports {
    /// Creates an empty store.
    pub(crate) const fn new() -> Self {
        Self {
            slots: [const { Atomic::new(0) }; REPORTS_MAX],
            lost: Atomic::new(0),
        }
    }

    /// Stores a report. Any context.
    pub(crate) fn put(&self, report: Report) {
        let Some(word) = report.to_word() else {
            return;
        };
        let free = |slot: &Atomic<u64>| slot.cmpxchg(0, word, Release).is_ok();
        if !self.slots.iter().any(free) {
            self.lost.fetch_add(1, Relaxed);
        }
    }

    /// Takes one pending report.
    pub(crate) fn take(&self) -> Option<Report> {
        let taken = self.slots.iter().map(|slot| slot.xchg(0, Acquire));
        taken
            .into_iter()
            .find(|word| *word != 0)
            .map(Report::from_word)
    }

    /// Returns how many reports were lost since the last call.
    pub(crate) fn take_lost(&self) -> u64 {
        self.lost.xchg(0, Relaxed)
    }
}
