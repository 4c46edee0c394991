// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Reads counters of a group's files.

use anyhow::{Context, Result};
use gct_hw::daemon::Daemon;
use std::thread::sleep;
use std::time::Duration;

/// An idle process reports its counters to the daemon within this time.
const REPORT: Duration = Duration::from_millis(1_100);

/// The lines `KEY NUMBER` of one file.
#[derive(Clone, Debug)]
pub(crate) struct Counters(String);

impl Counters {
    /// Reads a file of a group, once its idle processes have reported.
    pub(crate) fn read(daemon: &Daemon, group: &str, file: &str) -> Result<Self> {
        sleep(REPORT);
        Self::now(daemon, group, file)
    }

    /// Reads a file of a group as it is.
    pub(crate) fn now(daemon: &Daemon, group: &str, file: &str) -> Result<Self> {
        Ok(Self::of(&daemon.get(group, file)?))
    }

    pub(crate) fn of(text: &str) -> Self {
        Self(text.into())
    }

    /// Returns the number behind a key.
    pub(crate) fn get(&self, key: &str) -> Result<f64> {
        let mut lines = self.0.lines();
        let number = lines.find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
        let number = number.with_context(|| format!("no counter {key}"))?;
        Ok(number.trim().parse()?)
    }

    /// Returns how much a counter has grown since `before`.
    pub(crate) fn since(&self, before: &Self, key: &str) -> Result<f64> {
        Ok(self.get(key)? - before.get(key)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_a_whole_word() {
        let before = Counters::of("launches 5\nusage_usec 99\nusage_tpc_usec 70\n");
        let after = Counters::of("launches 7\nusage_usec 199\nusage_tpc_usec 70\n");
        assert_eq!(after.since(&before, "usage_usec").unwrap(), 100.0);
        assert_eq!(after.since(&before, "launches").unwrap(), 2.0);
        assert!(after.get("usage").is_err());
        assert!(Counters::of("launches many\n").get("launches").is_err());
    }
}
