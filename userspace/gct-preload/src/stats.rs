// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Counts events of this process, under the names of `compute.stat`.

use crate::locks::First;
use core::fmt::Write;
use core::sync::atomic::{AtomicU64, Ordering};
use gct_core::unmanaged::Reason;
use gctd_ipc::environment::variable;

/// Monotonic counters, accessed relaxed.
#[derive(Debug)]
pub(crate) struct Stats {
    /// Managed channels.
    pub(crate) channels: AtomicU64,
    /// Channels that are left alone, for any reason.
    pub(crate) unmanaged: AtomicU64,
    /// Channels that are left alone, by reason.
    reasons: [AtomicU64; Reason::ALL.len()],
    /// Ring entries published.
    pub(crate) entries: AtomicU64,
    /// Segments that could not be read, because this process does not map their memory.
    pub(crate) unreadable: AtomicU64,
    /// Doorbell faults.
    pub(crate) faults: AtomicU64,
    /// Checks with open doorbells that found entries which no call had announced.
    pub(crate) missed: AtomicU64,
    /// Lost connections to the daemon. The last limits stay in force.
    pub(crate) daemons_lost: AtomicU64,
}

/// This process's counters.
pub(crate) static STATS: Stats = Stats::new();

impl Stats {
    /// Creates counters of zero.
    const fn new() -> Self {
        Self {
            channels: AtomicU64::new(0),
            unmanaged: AtomicU64::new(0),
            reasons: [const { AtomicU64::new(0) }; Reason::ALL.len()],
            entries: AtomicU64::new(0),
            unreadable: AtomicU64::new(0),
            faults: AtomicU64::new(0),
            missed: AtomicU64::new(0),
            daemons_lost: AtomicU64::new(0),
        }
    }

    /// Counts a channel that is left alone.
    pub(crate) fn count_unmanaged(&self, reason: Reason) {
        self.unmanaged.fetch_add(1, Ordering::Relaxed);
        for (of, count) in Reason::ALL.iter().zip(&self.reasons) {
            count.fetch_add(u64::from(*of == reason), Ordering::Relaxed);
        }
    }

    /// Returns how many channels are left alone, by reason.
    pub(crate) fn unmanaged(&self) -> impl Iterator<Item = u64> + '_ {
        self.reasons
            .iter()
            .map(|count| count.load(Ordering::Relaxed))
    }

    /// Returns the counters as `KEY VALUE` lines, as in `compute.stat`. Reasons that never occurred
    /// have no line.
    pub(crate) fn text(&self) -> String {
        let mut text = [
            ("channels", &self.channels),
            ("unmanaged", &self.unmanaged),
            ("entries", &self.entries),
            ("unreadable", &self.unreadable),
            ("faults", &self.faults),
            ("missed", &self.missed),
            ("daemons_lost", &self.daemons_lost),
        ]
        .map(|(key, value)| format!("{key} {}\n", value.load(Ordering::Relaxed)))
        .concat();
        for (reason, count) in Reason::ALL.iter().zip(&self.reasons) {
            let count = count.load(Ordering::Relaxed);
            if count > 0 {
                // Writing to a `String` cannot fail.
                let _ = writeln!(text, "unmanaged.{} {count}", reason.name());
            }
        }
        text
    }
}

/// Writes the counters to the file `GCTGROUP_STATS` at exit. `finish` reports the last ones to the
/// daemon, and returns those of launches; `None` in an inert child.
pub(crate) fn write_at_exit(finish: fn() -> Option<String>) {
    static FINISH: First<fn() -> Option<String>> = First::new();
    extern "C" fn write() {
        let Some(launches) = FINISH.get().and_then(|finish| finish()) else {
            return;
        };
        let Some(path) = variable("GCTGROUP_STATS") else {
            return;
        };
        // A failed write must not fail the program.
        let _ = std::fs::write(path, STATS.text() + &launches);
    }
    FINISH.get_or_init(|| finish);
    // SAFETY: `write` is a plain function that may run at exit, when std still works.
    unsafe { libc::atexit(write) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_a_line_of_its_own_and_unmanaged_is_their_sum() {
        let stats = Stats::new();
        assert!(!stats.text().contains("unmanaged."));
        for (times, reason) in (1..).zip(Reason::ALL) {
            (0..times).for_each(|_| stats.count_unmanaged(*reason));
        }
        let text = stats.text();
        for (times, reason) in (1..).zip(Reason::ALL) {
            let line = format!("\nunmanaged.{} {times}\n", reason.name());
            assert!(text.contains(&line), "{line}: {text}");
        }
        assert!(text.contains("\nunmanaged 78\n"), "{text}");
        assert_eq!(text.matches("unmanaged").count(), 1 + Reason::ALL.len());
    }
}
