// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Limits the descriptors that each tenant uses, so that none exhausts those of others.
//!
//! | holder | descriptors |
//! |---|---|
//! | connection | [`FDS_CONNECTION`], and [`FDS_PAGE`] for each GPU where it has a page |
//! | process | [`FDS_WATCH`] |
//!
//! A user gets at most half of the descriptors for tenants, and the processes of a user in one
//! cgroup at most a quarter. The cgroup counts because most containers run as user 0.

use gct_core::ids::ProcKey;
use std::collections::HashMap;

/// Descriptors of a connection: its socket and its peer's pidfd.
pub(crate) const FDS_CONNECTION: u64 = 2;

/// Descriptors of a process that reports its ioctls: a pidfd, until the process ends.
pub(crate) const FDS_WATCH: u64 = 1;

/// Descriptors of a page: page and pulse until the process has mapped them, then the pulse for
/// neighbours.
pub(crate) const FDS_PAGE: u64 = 2;

/// Descriptors of the daemon: its own, the boards of 32 GPUs, pidfds of members.
const FDS_DAEMON: u64 = 128;

/// Descriptors for administrators.
const FDS_ADMIN: u64 = 64;

/// Most connections of one process. A process has one for each copy of the library.
const CONNECTIONS_OF_PROCESS_MAX: u64 = 16;

/// The holders that a connection's descriptors are charged to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Account {
    /// The user; `None` for administrators.
    pub(crate) uid: Option<u32>,
    pub(crate) cgroup: Vec<u8>,
    pub(crate) process: Option<(u32, u64)>,
}

impl Account {
    /// The account of all connections to the administrators' socket.
    pub(crate) const ADMIN: Self = Self {
        uid: None,
        cgroup: Vec::new(),
        process: None,
    };

    /// Returns the account of a process that connected to the tenants' socket.
    pub(crate) fn tenant(uid: u32, cgroup: Vec<u8>, key: Option<ProcKey>) -> Self {
        Self {
            uid: Some(uid),
            cgroup,
            process: key.map(|key| (key.tgid, key.start_time_ns)),
        }
    }
}

/// The descriptors in use, by holder.
#[derive(Debug)]
pub(crate) struct Budget {
    for_tenants: u64,
    tenants: u64,
    admins: u64,
    users: HashMap<u32, u64>,
    cgroups: HashMap<(u32, Vec<u8>), u64>,
    processes: HashMap<(u32, u64), u64>,
}

/// Returns whether a count may grow by `more`.
fn fits(count: Option<&u64>, more: u64, max: u64) -> bool {
    count.copied().unwrap_or(0).saturating_add(more) <= max
}

/// Subtracts from a count, and removes it at 0.
fn subtract<K: Eq + std::hash::Hash>(counts: &mut HashMap<K, u64>, key: &K, by: u64) {
    if let Some(count) = counts.get_mut(key) {
        *count = count.saturating_sub(by);
        if *count == 0 {
            counts.remove(key);
        }
    }
}

impl Budget {
    /// Creates a budget of `fds` descriptors, of which none are in use.
    pub(crate) fn new(fds: u64) -> Self {
        Self {
            for_tenants: fds.saturating_sub(FDS_DAEMON + FDS_ADMIN),
            tenants: 0,
            admins: 0,
            users: HashMap::new(),
            cgroups: HashMap::new(),
            processes: HashMap::new(),
        }
    }

    /// Charges a connection. Returns `false`, and charges nothing, beyond a maximum.
    pub(crate) fn connect(&mut self, account: &Account) -> bool {
        let of_process = account.process.and_then(|key| self.processes.get(&key));
        if !fits(of_process, 1, CONNECTIONS_OF_PROCESS_MAX)
            || !self.try_charge(account, FDS_CONNECTION)
        {
            return false;
        }
        if let Some(key) = account.process {
            *self.processes.entry(key).or_default() += 1;
        }
        true
    }

    /// Uncharges a connection with its pages.
    pub(crate) fn disconnect(&mut self, account: &Account, pages: u64) {
        if let Some(key) = account.process {
            subtract(&mut self.processes, &key, 1);
        }
        self.uncharge(
            account,
            FDS_CONNECTION.saturating_add(pages.saturating_mul(FDS_PAGE)),
        );
    }

    /// Charges descriptors. Returns `false`, and charges nothing, beyond a maximum.
    pub(crate) fn try_charge(&mut self, account: &Account, fds: u64) -> bool {
        let Some(uid) = account.uid else {
            let fit = fits(Some(&self.admins), fds, FDS_ADMIN);
            self.admins += if fit { fds } else { 0 };
            return fit;
        };
        let cgroup = (uid, account.cgroup.clone());
        let fit = fits(Some(&self.tenants), fds, self.for_tenants)
            && fits(self.users.get(&uid), fds, self.for_tenants / 2)
            && fits(self.cgroups.get(&cgroup), fds, self.for_tenants / 4);
        if fit {
            self.tenants += fds;
            *self.users.entry(uid).or_default() += fds;
            *self.cgroups.entry(cgroup).or_default() += fds;
        }
        fit
    }

    /// Uncharges descriptors.
    pub(crate) fn uncharge(&mut self, account: &Account, fds: u64) {
        let Some(uid) = account.uid else {
            self.admins = self.admins.saturating_sub(fds);
            return;
        };
        self.tenants = self.tenants.saturating_sub(fds);
        subtract(&mut self.users, &uid, fds);
        subtract(&mut self.cgroups, &(uid, account.cgroup.clone()), fds);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(uid: u32, cgroup: &[u8], pid: u32) -> Account {
        let key = ProcKey {
            tgid: pid,
            start_time_ns: 1,
        };
        Account::tenant(uid, cgroup.to_vec(), Some(key))
    }

    /// Connects processes of a user and a cgroup until one is refused.
    fn fill(budget: &mut Budget, uid: u32, cgroup: &[u8], pids: u32) -> u64 {
        let connect = |pid: &u32| budget.connect(&account(uid, cgroup, *pid));
        (pids..pids + 100_000).take_while(connect).count() as u64
    }

    #[test]
    fn users_and_cgroups_have_a_maximum() {
        let mut budget = Budget::new(1024);
        let all = (1024 - FDS_DAEMON - FDS_ADMIN) / FDS_CONNECTION;
        assert_eq!(fill(&mut budget, 0, b"/a", 1), all / 4);
        assert_eq!(fill(&mut budget, 0, b"/b", 1 << 20), all / 4);
        assert_eq!(
            fill(&mut budget, 0, b"/c", 2 << 20),
            0,
            "user 0 has half already"
        );
        assert_eq!(fill(&mut budget, 7, b"/d", 3 << 20), all / 4);
        assert!(
            budget.connect(&Account::ADMIN),
            "administrators have descriptors of their own"
        );
        budget.disconnect(&account(0, b"/a", 1), 0);
        assert_eq!(fill(&mut budget, 0, b"/c", 2 << 20), 1);
    }

    #[test]
    fn pages_are_uncharged_with_their_connection() {
        let mut budget = Budget::new(1024);
        let one = account(1, b"", 1);
        assert!(budget.connect(&one));
        let mut pages = 0;
        while budget.try_charge(&one, FDS_PAGE) {
            pages += 1;
        }
        assert_eq!(pages, (832 / 4 - FDS_CONNECTION) / FDS_PAGE);
        budget.disconnect(&one, pages);
        let empty = budget.users.is_empty() && budget.cgroups.is_empty();
        assert!(empty && budget.processes.is_empty() && budget.tenants == 0);
    }

    #[test]
    fn a_process_has_a_maximum_of_connections() {
        let mut budget = Budget::new(1 << 20);
        let mut count = 0;
        while budget.connect(&account(1, b"", 1)) {
            count += 1;
        }
        assert_eq!(count, CONNECTIONS_OF_PROCESS_MAX);
        assert!(budget.connect(&account(1, b"", 2)));
    }
}
