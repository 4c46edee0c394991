// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Counts what the daemon could not do for its clients, and says so in the log.

use super::Daemon;
use gct_core::state::DaemonEvents;
use gctd_ipc::versions::{Versions, VERSIONS};
use rustix::io::Errno;
use std::time::{Duration, Instant};

/// Least time between two messages on answers that could not be sent.
const UNANSWERED_EVERY: Duration = Duration::from_secs(60);

/// Least time between two messages on the same versions.
const VERSIONS_EVERY: Duration = Duration::from_secs(3600);

/// Most versions in the log within [`VERSIONS_EVERY`]: a client chooses what it states.
const VERSIONS_MAX: usize = 8;

/// What was counted, and when it was last logged.
#[derive(Debug, Default)]
pub(super) struct Events {
    counts: DaemonEvents,
    unanswered: Option<Instant>,
    versions: Vec<(Versions, Instant)>,
}

impl Daemon {
    /// Shows the counts in `events`.
    pub(super) fn show_events(&mut self) {
        self.tables.state().set_daemon_events(self.events.counts);
    }

    /// Records an answer with descriptors that could not be sent. The client asks again.
    pub(crate) fn could_not_answer(&mut self, error: Errno) {
        self.events.counts.unanswered += 1;
        self.show_events();
        let count = self.events.counts.unanswered;
        let logged = &mut self.events.unanswered;
        if logged.is_none_or(|at| at.elapsed() >= UNANSWERED_EVERY) {
            *logged = Some(Instant::now());
            tracing::warn!(
                %error,
                count,
                "a request for shared memory could not be answered; programs ask again"
            );
        }
    }

    /// Records the greeting of a client that speaks no version of this daemon's.
    pub(crate) fn speaks_other_versions(&mut self, theirs: Versions, pid: u32) {
        self.events.counts.version += 1;
        self.show_events();
        let logged = &mut self.events.versions;
        logged.retain(|(_, at)| at.elapsed() < VERSIONS_EVERY);
        let is_known = logged.iter().any(|(versions, _)| *versions == theirs);
        if is_known || logged.len() >= VERSIONS_MAX {
            return;
        }
        logged.push((theirs, Instant::now()));
        tracing::warn!(
            pid,
            count = self.events.counts.version,
            "a program speaks protocol {theirs}, gctd {VERSIONS}: install the same release of both"
        );
    }
}
