// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Counters of this process, in the words of `compute.stat`.

use crate::worker;
use core::sync::atomic::{AtomicU64, Ordering};

/// Counters; all monotonic, all relaxed.
#[derive(Debug)]
pub(crate) struct Stats {
    /// Channels under management.
    pub(crate) channels: AtomicU64,
    /// Channels that were left alone because something about them was not understood.
    pub(crate) unmanaged: AtomicU64,
    /// Ring entries published.
    pub(crate) entries: AtomicU64,
    /// Segments that could not be read, because they are not in memory that this process maps.
    pub(crate) unreadable: AtomicU64,
    /// Launches that went whole because no frame of scratch was free.
    pub(crate) crowded: AtomicU64,
    /// Doorbell faults: how often a sleeping worker was woken.
    pub(crate) faults: AtomicU64,
    /// Rings that no call announced while doorbells were open: how often a look found some.
    pub(crate) missed: AtomicU64,
    /// How often the daemon was lost; the last limits stayed in force.
    pub(crate) daemons_lost: AtomicU64,
}

/// This process's counters.
pub(crate) static STATS: Stats = Stats {
    channels: AtomicU64::new(0),
    unmanaged: AtomicU64::new(0),
    entries: AtomicU64::new(0),
    unreadable: AtomicU64::new(0),
    crowded: AtomicU64::new(0),
    faults: AtomicU64::new(0),
    missed: AtomicU64::new(0),
    daemons_lost: AtomicU64::new(0),
};

impl Stats {
    /// `KEY VALUE` lines, as `compute.stat` shows them.
    pub(crate) fn text(&self) -> String {
        [
            ("channels", &self.channels),
            ("unmanaged", &self.unmanaged),
            ("entries", &self.entries),
            ("unreadable", &self.unreadable),
            ("crowded", &self.crowded),
            ("faults", &self.faults),
            ("missed", &self.missed),
            ("daemons_lost", &self.daemons_lost),
        ]
        .map(|(key, value)| format!("{key} {}\n", value.load(Ordering::Relaxed)))
        .concat()
    }
}

/// Tells the daemon the last counters at exit, and writes them to the file that `GCTGROUP_STATS` names.
pub(crate) fn write_at_exit() {
    extern "C" fn write() {
        let Some(mut shared) = worker::lock() else {
            return;
        };
        shared.report();
        let launches = shared.governors.text();
        drop(shared);
        let Some(path) = std::env::var_os("GCTGROUP_STATS") else {
            return;
        };
        // A program must not fail because its counters cannot be written.
        let _ = std::fs::write(path, STATS.text() + &launches);
    }
    // SAFETY: `write` is a plain function that may run at exit, when std still works.
    unsafe { libc::atexit(write) };
}
