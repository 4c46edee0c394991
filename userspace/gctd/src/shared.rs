// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Shares the daemon between the thread of the sockets and those of FUSE.

use crate::daemon::Daemon;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The daemon behind its lock.
#[derive(Clone, Debug)]
pub(crate) struct SharedDaemon(Arc<Mutex<Daemon>>);

impl SharedDaemon {
    /// Puts a daemon behind a lock.
    pub(crate) fn new(daemon: Daemon) -> Self {
        Self(Arc::new(Mutex::new(daemon)))
    }

    /// Locks the daemon.
    ///
    /// A panic in another thread does not poison it: each operation of the core leaves the core
    /// consistent.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Daemon> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
