// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Shares the daemon's descriptors out, so that no tenant uses up those of others.
//!
//! A connection costs [`FDS_CONNECTION`] descriptors, [`FDS_PAGE`] for each GPU where it has a page,
//! and its process [`FDS_WATCH`]. Of all descriptors for tenants a user has half at most, and a quarter in one cgroup:
//! containers usually are all of user 0, and each has a cgroup.

use gct_core::ids::ProcKey;
use std::collections::HashMap;

/// Descriptors of a connection: its socket, and its process.
pub(crate) const FDS_CONNECTION: u64 = 2;

/// Descriptors of a process that reports its ioctls, until it ends: its end is waited for.
pub(crate) const FDS_WATCH: u64 = 1;

/// Descriptors of a page: itself and a pulse while their process has not mapped them, and the pulse,
/// to be read by neighbours, from then on.
pub(crate) const FDS_PAGE: u64 = 2;

/// Descriptors that are nobody's: the daemon's own, the boards of 32 GPUs, the members of groups.
const FDS_DAEMON: u64 = 128;

/// Descriptors for administrators.
const FDS_ADMIN: u64 = 64;

/// Connections of one process. A program has one for each copy of the library.
const CONNECTIONS_OF_PROCESS_MAX: u64 = 16;

/// Who pays for a connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Payer {
    /// The user, or `None` for administrators.
    pub(crate) uid: Option<u32>,
    pub(crate) cgroup: Vec<u8>,
    pub(crate) process: Option<(u32, u64)>,
}

impl Payer {
    /// Whoever came to the administrators' door.
    pub(crate) const ADMIN: Self = Self {
        uid: None,
        cgroup: Vec::new(),
        process: None,
    };

    /// A process at the tenants' door.
    pub(crate) fn tenant(uid: u32, cgroup: Vec<u8>, key: Option<ProcKey>) -> Self {
        Self {
            uid: Some(uid),
            cgroup,
            process: key.map(|key| (key.tgid, key.start_time_ns)),
        }
    }
}

/// Descriptors in use.
#[derive(Debug)]
pub(crate) struct Budget {
    for_tenants: u64,
    tenants: u64,
    admins: u64,
    users: HashMap<u32, u64>,
    cgroups: HashMap<(u32, Vec<u8>), u64>,
    processes: HashMap<(u32, u64), u64>,
}

/// Adds to a count if it stays within a maximum.
fn fits(count: Option<&u64>, more: u64, max: u64) -> bool {
    count.copied().unwrap_or(0).saturating_add(more) <= max
}

/// Takes from a count, and forgets it at 0.
fn less<K: Eq + std::hash::Hash>(counts: &mut HashMap<K, u64>, key: &K, by: u64) {
    if let Some(count) = counts.get_mut(key) {
        *count = count.saturating_sub(by);
        if *count == 0 {
            counts.remove(key);
        }
    }
}

impl Budget {
    /// Shares out so many descriptors.
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

    /// Takes the descriptors of a connection; false if that is more than somebody's share.
    pub(crate) fn connect(&mut self, payer: &Payer) -> bool {
        let of_process = payer.process.and_then(|key| self.processes.get(&key));
        if !fits(of_process, 1, CONNECTIONS_OF_PROCESS_MAX) || !self.take(payer, FDS_CONNECTION) {
            return false;
        }
        if let Some(key) = payer.process {
            *self.processes.entry(key).or_default() += 1;
        }
        true
    }

    /// Gives back the descriptors of a connection and of its pages.
    pub(crate) fn disconnect(&mut self, payer: &Payer, pages: u64) {
        if let Some(key) = payer.process {
            less(&mut self.processes, &key, 1);
        }
        self.give(
            payer,
            FDS_CONNECTION.saturating_add(pages.saturating_mul(FDS_PAGE)),
        );
    }

    /// Takes descriptors; false, and none are taken, if that is more than somebody's share.
    pub(crate) fn take(&mut self, payer: &Payer, fds: u64) -> bool {
        let Some(uid) = payer.uid else {
            let fit = fits(Some(&self.admins), fds, FDS_ADMIN);
            self.admins += if fit { fds } else { 0 };
            return fit;
        };
        let cgroup = (uid, payer.cgroup.clone());
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

    /// Gives descriptors back.
    pub(crate) fn give(&mut self, payer: &Payer, fds: u64) {
        let Some(uid) = payer.uid else {
            self.admins = self.admins.saturating_sub(fds);
            return;
        };
        self.tenants = self.tenants.saturating_sub(fds);
        less(&mut self.users, &uid, fds);
        less(&mut self.cgroups, &(uid, payer.cgroup.clone()), fds);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payer(uid: u32, cgroup: &[u8], pid: u32) -> Payer {
        let key = ProcKey {
            tgid: pid,
            start_time_ns: 1,
        };
        Payer::tenant(uid, cgroup.to_vec(), Some(key))
    }

    /// Connects processes of a user and a cgroup until one is refused.
    fn fill(budget: &mut Budget, uid: u32, cgroup: &[u8], pids: u32) -> u64 {
        let connect = |pid: &u32| budget.connect(&payer(uid, cgroup, *pid));
        (pids..pids + 100_000).take_while(connect).count() as u64
    }

    #[test]
    fn nobody_has_more_than_a_share() {
        let mut budget = Budget::new(1024);
        let all = (1024 - FDS_DAEMON - FDS_ADMIN) / FDS_CONNECTION;
        assert_eq!(fill(&mut budget, 0, b"/a", 1), all / 4);
        assert_eq!(fill(&mut budget, 0, b"/b", 1 << 20), all / 4);
        assert_eq!(fill(&mut budget, 0, b"/c", 2 << 20), 0, "half is user 0's");
        assert_eq!(fill(&mut budget, 7, b"/d", 3 << 20), all / 4);
        assert!(
            budget.connect(&Payer::ADMIN),
            "administrators have their own"
        );
        budget.disconnect(&payer(0, b"/a", 1), 0);
        assert_eq!(fill(&mut budget, 0, b"/c", 2 << 20), 1);
    }

    #[test]
    fn pages_count_and_come_back_with_their_connection() {
        let mut budget = Budget::new(1024);
        let one = payer(1, b"", 1);
        assert!(budget.connect(&one));
        let mut pages = 0;
        while budget.take(&one, FDS_PAGE) {
            pages += 1;
        }
        assert_eq!(pages, (832 / 4 - FDS_CONNECTION) / FDS_PAGE);
        budget.disconnect(&one, pages);
        let empty = budget.users.is_empty() && budget.cgroups.is_empty();
        assert!(empty && budget.processes.is_empty() && budget.tenants == 0);
    }

    #[test]
    fn a_process_has_a_few_connections() {
        let mut budget = Budget::new(1 << 20);
        let mut count = 0;
        while budget.connect(&payer(1, b"", 1)) {
            count += 1;
        }
        assert_eq!(count, CONNECTIONS_OF_PROCESS_MAX);
        assert!(budget.connect(&payer(1, b"", 2)));
    }
}
