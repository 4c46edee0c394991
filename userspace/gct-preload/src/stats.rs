// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Counts events of this process, under the names of `compute.stat`.

use crate::worker;
use core::sync::atomic::{AtomicU64, Ordering};

/// Monotonic counters, accessed relaxed.
#[derive(Debug)]
pub(crate) struct Stats {
    /// Managed channels.
    pub(crate) channels: AtomicU64,
    /// Channels that are left alone because something about them is not understood.
    pub(crate) unmanaged: AtomicU64,
    /// Ring entries published.
    pub(crate) entries: AtomicU64,
    /// Segments that could not be read, because this process does not map their memory.
    pub(crate) unreadable: AtomicU64,
    /// Launches that were published unsplit because no frame of scratch was free.
    pub(crate) crowded: AtomicU64,
    /// Doorbell faults.
    pub(crate) faults: AtomicU64,
    /// Checks with open doorbells that found entries which no call had announced.
    pub(crate) missed: AtomicU64,
    /// Lost connections to the daemon. The last limits stay in force.
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
    /// Returns the counters as `KEY VALUE` lines, as in `compute.stat`.
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

/// Reports the final counters to the daemon at exit, and writes them to the file `GCTGROUP_STATS`.
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
        // A failed write must not fail the program.
        let _ = std::fs::write(path, STATS.text() + &launches);
    }
    // SAFETY: `write` is a plain function that may run at exit, when std still works.
    unsafe { libc::atexit(write) };
}
