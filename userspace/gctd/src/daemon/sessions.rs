// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Opens and closes the sessions of processes that report their ioctls.

use super::managed::Ranges;
use super::pageable::Pageable;
use super::watches::hashed;
use super::Daemon;
use crate::budget::{Account, FDS_WATCH};
use crate::peer::Identity;
use crate::process;
use crate::tenants::ConnectionId;
use gct_core::engine::Ticket;
use gct_core::error::Error;
use gct_core::failures::Failure;
use gct_core::host::Host;
use gct_core::ids::{FileId, ProcKey};
use gct_core::rmapi::Call;
use std::collections::{BTreeMap, VecDeque};

/// A process that reports its ioctls on one connection.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) connection: ConnectionId,
    pub(crate) key: ProcKey,
    pub(super) file: FileId,
    pub(super) managed: Ranges,
    pub(super) pageable: Pageable,
    pub(super) account: Account,
    /// Charges of allocations in flight, by the number that the process was given.
    pub(super) grants: BTreeMap<u32, Ticket>,
    pub(super) last_grant: u32,
    /// Frees and duplications in flight.
    pub(super) entered: VecDeque<(Call, Ticket)>,
}

impl Daemon {
    /// Opens a session for a process that connected.
    ///
    /// # Errors
    ///
    /// [`Error::NoProcess`] if it has ended, [`Error::NoSpace`] beyond a maximum, or if the daemon
    /// cannot look whose member it is.
    pub(crate) fn open_session(
        &mut self,
        connection: ConnectionId,
        identity: &Identity,
        account: &Account,
    ) -> Result<Session, Error> {
        self.find_gpus();
        let key = identity.key;
        // The key is still the process's own as long as it lives. Its parent may have changed.
        let process = process::find(key.tgid)?;
        let cgroup = process::cgroup(key.tgid)?;
        if process.key != key || !identity.lives() {
            return Err(Error::NoProcess);
        }
        let group = self.inherited_group(&process)?;
        if let Some(group) = group {
            let is_new = !self.joined.contains_key(&hashed(key));
            self.joined.entry(hashed(key)).or_insert(key.start_time_ns);
            match self.add_member(group, key) {
                Ok(()) if is_new => self.keep_member(group, key, true),
                Ok(()) => {}
                Err(_) => self.tables.state().count(Failure::Limit),
            }
        }
        let open = |tables: &mut Host| tables.state().file_open(key, &cgroup, group);
        let file = self.tables.follow(open).ok_or(Error::NoSpace)?;
        tracing::debug!(pid = key.tgid, "a program has come");
        Ok(Session {
            connection,
            key,
            file,
            managed: Ranges::default(),
            pageable: Pageable::default(),
            account: account.clone(),
            grants: BTreeMap::new(),
            last_grant: 0,
            entered: VecDeque::new(),
        })
    }

    /// Watches a process at its own expense, unless it is watched.
    ///
    /// # Errors
    ///
    /// [`Error::NoSpace`] beyond a maximum.
    pub(crate) fn watch(&mut self, identity: &Identity, account: &Account) -> Result<(), Error> {
        if self.watches.contains(identity.key) {
            return Ok(());
        }
        if !self.budget.try_charge(account, FDS_WATCH) {
            return Err(Error::NoSpace);
        }
        let pidfd = identity.pidfd.try_clone().map_err(|_| Error::NoSpace);
        let watch = |pidfd| self.watches.add(identity.key, pidfd, Some(account.clone()));
        let watched = pidfd.and_then(watch);
        if watched.is_err() {
            self.budget.uncharge(account, FDS_WATCH);
        }
        watched
    }

    /// Closes a session: removes its pages, its charges and its objects. Returns how many pages
    /// it had.
    pub(crate) fn close_session(&mut self, mut session: Session) -> u64 {
        tracing::debug!(pid = session.key.tgid, "a program has gone");
        let pages = self.tenants.gpus_of(session.connection).count();
        self.tenants
            .close(session.connection, &mut self.tables.state());
        self.drop_managed(&mut session);
        self.drop_pageable(&mut session);
        for ticket in session.grants.into_values() {
            self.tables.state().uncharge_ticket(session.file, ticket);
        }
        for (call, ticket) in session.entered {
            self.abandon(session.file, &call, ticket);
        }
        self.tables.state().file_close(session.file);
        self.apply_effects_later();
        self.try_commit();
        u64::try_from(pages).unwrap_or(0)
    }
}
