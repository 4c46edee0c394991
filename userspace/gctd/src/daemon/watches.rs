// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Watches processes, so that the daemon notices when one ends.

use crate::budget::Account;
use gct_core::error::Error;
use gct_core::ids::ProcKey;
use rustix::event::epoll;
use rustix::fd::{AsFd, OwnedFd};
use std::collections::HashMap;
use std::sync::Arc;

/// The epoll data of watches are greater than this number, those of sockets smaller.
pub(crate) const FIRST_WATCH: u64 = 1 << 62;

/// A process that is watched.
#[derive(Debug)]
pub(super) struct Watch {
    pub(super) key: ProcKey,
    /// Is charged for the pidfd; `None` if an administrator made the process a member.
    pub(super) account: Option<Account>,
    _pidfd: OwnedFd,
}

/// The watched processes.
#[derive(Debug)]
pub(super) struct Watches {
    epoll: Arc<OwnedFd>,
    by_event: HashMap<u64, Watch>,
    events: HashMap<(u32, u64), u64>,
    last_event: u64,
}

/// Returns a process's key as a key of a hash table.
pub(super) fn hashed(key: ProcKey) -> (u32, u64) {
    (key.tgid, key.start_time_ns)
}

impl Watches {
    /// Creates an empty set. Ends of processes become events of `epoll`.
    pub(super) fn new(epoll: Arc<OwnedFd>) -> Self {
        Self {
            epoll,
            by_event: HashMap::new(),
            events: HashMap::new(),
            last_event: FIRST_WATCH,
        }
    }

    /// Returns whether a process is watched.
    pub(super) fn contains(&self, key: ProcKey) -> bool {
        self.events.contains_key(&hashed(key))
    }

    /// Watches a process.
    ///
    /// # Errors
    ///
    /// [`Error::NoSpace`] if epoll has no memory or no watch left.
    pub(super) fn add(
        &mut self,
        key: ProcKey,
        pidfd: OwnedFd,
        account: Option<Account>,
    ) -> Result<(), Error> {
        self.last_event += 1;
        let data = epoll::EventData::new_u64(self.last_event);
        epoll::add(&self.epoll, pidfd.as_fd(), data, epoll::EventFlags::IN)
            .map_err(|_| Error::NoSpace)?;
        let watch = Watch {
            key,
            account,
            _pidfd: pidfd,
        };
        self.by_event.insert(self.last_event, watch);
        self.events.insert(hashed(key), self.last_event);
        Ok(())
    }

    /// Removes the watch of an event. Closing its pidfd removes it from epoll.
    pub(super) fn remove(&mut self, event: u64) -> Option<Watch> {
        let watch = self.by_event.remove(&event)?;
        self.events.remove(&hashed(watch.key));
        Some(watch)
    }
}
