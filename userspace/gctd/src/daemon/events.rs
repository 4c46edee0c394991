// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Counts what the daemon could not do for its clients, and says so in the log.

use super::strangers::{Line, Strangers};
use super::Daemon;
use crate::budget::Account;
use crate::peer::Credentials;
use gct_core::failures::DaemonEvents;
use gctd_ipc::versions::{Versions, VERSIONS};
use rustix::io::Errno;
use std::time::{Duration, Instant};

/// Least time between two messages on answers that could not be sent.
const UNANSWERED_EVERY: Duration = Duration::from_secs(60);

/// What was counted, and when it was last logged.
#[derive(Debug, Default)]
pub(super) struct Events {
    counts: DaemonEvents,
    unanswered: Option<Instant>,
    strangers: Strangers,
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
    pub(crate) fn speaks_other_versions(
        &mut self,
        theirs: Versions,
        client: Credentials,
        account: &Account,
    ) {
        self.events.counts.version += 1;
        self.show_events();
        let count = self.events.counts.version;
        let Credentials { pid, uid } = client;
        match self.events.strangers.greets(account, Instant::now()) {
            Line::Name => tracing::warn!(
                pid,
                uid,
                count,
                "a program speaks protocol {theirs}, gctd {VERSIONS}: \
                 install the same release of both"
            ),
            Line::More => tracing::warn!(
                count,
                "more programs speak other protocols than are named here within an hour"
            ),
            Line::None => {}
        }
    }
}
