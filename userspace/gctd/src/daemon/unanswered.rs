// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Counts the answers that could not be sent, and says so in the log.

use super::Daemon;
use rustix::io::Errno;
use std::time::{Duration, Instant};

/// Least time between two messages.
const EVERY: Duration = Duration::from_secs(60);

/// The answers that could not be sent.
#[derive(Debug, Default)]
pub(super) struct Unanswered {
    count: u64,
    logged: Option<Instant>,
}

impl Daemon {
    /// Shows the count in `events` from now on.
    pub(super) fn show_unanswered(&mut self) {
        self.tables.state().set_unanswered(self.unanswered.count);
    }

    /// Records an answer with descriptors that could not be sent. The client asks again.
    pub(crate) fn could_not_answer(&mut self, error: Errno) {
        self.unanswered.count += 1;
        self.show_unanswered();
        let count = self.unanswered.count;
        let logged = &mut self.unanswered.logged;
        if logged.is_none_or(|at| at.elapsed() >= EVERY) {
            *logged = Some(Instant::now());
            tracing::warn!(
                %error,
                count,
                "a request for shared memory could not be answered; programs ask again"
            );
        }
    }
}
