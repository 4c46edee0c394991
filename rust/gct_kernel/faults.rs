// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Hands errors of a GPU from where the driver logs them to the work item.
//!
//! The driver logs in any context, under its own spinlocks and in interrupts, so nothing here takes
//! a lock or allocates. When all slots are taken a report is lost, and that is counted.

use gct_core::faults::Report;
use kernel::sync::atomic::{Acquire, Atomic, Relaxed, Release};

/// Reports that wait for the work item at most. A channel has one error, and the work item runs
/// within milliseconds.
const REPORTS_MAX: usize = 64;

/// Reports that nobody has taken yet; a slot is 0 while it is free.
pub(crate) struct Reports {
    slots: [Atomic<u64>; REPORTS_MAX],
    lost: Atomic<u64>,
}

impl Reports {
    /// Returns a store without reports.
    pub(crate) const fn new() -> Self {
        Self {
            slots: [const { Atomic::new(0) }; REPORTS_MAX],
            lost: Atomic::new(0),
        }
    }

    /// Stores a report, in any context.
    pub(crate) fn put(&self, report: Report) {
        let Some(word) = report.to_word() else {
            return;
        };
        let free = |slot: &Atomic<u64>| slot.cmpxchg(0, word, Release).is_ok();
        if !self.slots.iter().any(free) {
            self.lost.fetch_add(1, Relaxed);
        }
    }

    /// Takes one report.
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
