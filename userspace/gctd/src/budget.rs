// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Limits the descriptors that each tenant uses, so that none exhausts those of others.
//!
//! | holder | descriptors |
//! |---|---|
//! | connection | [`FDS_CONNECTION`], and [`FDS_PAGE`] for each GPU where it has a page |
//! | process | [`FDS_WATCH`] |
//! | descriptor that was sent | 1, until the peer has [read it](crate::wire) |
//! | KiB of a text | 1, until the client has asked for the last part of the text |
//!
//! Each [cgroup](crate::cgroups) of a process, whichever users it has, leaves some of what the one
//! above may have to those beside it: as much as it has itself with all below it, and from the
//! third one from the root on [twice as much](others_of). However many beside it take all that they
//! get, one has a part of the rest: most containers are user 0, lie in one cgroup, and can make
//! more. Users leave as much as they have where no cgroup divides them.

use crate::cgroups::{around, counted};
use gct_core::ids::ProcKey;
use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;

/// Descriptors of a connection: its socket and its peer's pidfd.
pub(crate) const FDS_CONNECTION: u64 = 2;

/// Descriptors of a process that reports its ioctls: a pidfd, until the process ends.
pub(crate) const FDS_WATCH: u64 = 1;

/// Descriptors of a page: page and pulse until the process has mapped them, then the pulse for
/// neighbours.
pub(crate) const FDS_PAGE: u64 = 2;

/// Returns the descriptors that a text counts for: memory of the daemon is had for the same price.
pub(crate) fn fds_of_text(bytes: usize) -> u64 {
    u64::try_from(bytes.div_ceil(1024)).unwrap_or(u64::MAX)
}

/// Descriptors of the daemon: its own, the boards of 32 GPUs, pidfds of members.
const FDS_DAEMON: u64 = 128;

/// Descriptors for administrators.
const FDS_ADMIN: u64 = 64;

/// Most connections of one process. A process has one for each copy of the library.
const CONNECTIONS_OF_PROCESS_MAX: u64 = 16;

/// Returns how many times as much as it has the nth cgroup from the root on leaves to those beside
/// it. The first ones are not containers: with more, little remained for those below.
fn others_of(depth: usize) -> u64 {
    match depth {
        0..=2 => 1,
        _ => 2,
    }
}

/// The holders that a connection's descriptors are charged to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Account {
    /// The user; `None` for administrators.
    pub(crate) uid: Option<u32>,
    /// The cgroup that counts; empty without one.
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
    pub(crate) fn tenant(uid: u32, cgroup: &[u8], key: ProcKey) -> Self {
        Self {
            uid: Some(uid),
            cgroup: counted(cgroup).to_vec(),
            process: Some((key.tgid, key.start_time_ns)),
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
    cgroups: HashMap<Vec<u8>, u64>,
    processes: HashMap<(u32, u64), u64>,
}

/// Returns whether a count may grow by `more`.
fn fits(count: Option<&u64>, more: u64, max: u64) -> bool {
    count.copied().unwrap_or(0).saturating_add(more) <= max
}

/// Returns how many descriptors a holder of `count` may have if `free` more are there: `others`
/// times what it has must stay free.
fn most(count: u64, free: u64, others: u64) -> u64 {
    let most = free.saturating_add(count) / others.saturating_add(1);
    most.max(count)
}

/// Subtracts from a count, and removes it at 0.
fn subtract<K, Q>(counts: &mut HashMap<K, u64>, key: &Q, by: u64)
where
    K: Borrow<Q> + Eq + Hash,
    Q: Eq + Hash + ?Sized,
{
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

    /// Uncharges a connection.
    pub(crate) fn disconnect(&mut self, account: &Account) {
        if let Some(key) = account.process {
            subtract(&mut self.processes, &key, 1);
        }
        self.uncharge(account, FDS_CONNECTION);
    }

    /// Charges descriptors. Returns `false`, and charges nothing, beyond a maximum.
    pub(crate) fn try_charge(&mut self, account: &Account, fds: u64) -> bool {
        let Some(uid) = account.uid else {
            let fit = fits(Some(&self.admins), fds, FDS_ADMIN);
            self.admins += if fit { fds } else { 0 };
            return fit;
        };
        let fit = fds <= self.free(account, uid);
        if fit {
            self.tenants += fds;
            for cgroup in around(&account.cgroup) {
                *self.cgroups.entry(cgroup.to_vec()).or_default() += fds;
            }
            if account.cgroup.is_empty() {
                *self.users.entry(uid).or_default() += fds;
            }
        }
        fit
    }

    /// Returns how many more descriptors a tenant of a user may have.
    fn free(&self, account: &Account, uid: u32) -> u64 {
        let all = self.for_tenants.saturating_sub(self.tenants);
        if account.cgroup.is_empty() {
            let count = self.users.get(&uid).copied().unwrap_or(0);
            return most(count, all, 1) - count;
        }
        around(&account.cgroup)
            .zip(1..)
            .fold(all, |free, (cgroup, depth)| {
                let count = self.cgroups.get(cgroup).copied().unwrap_or(0);
                most(count, free, others_of(depth)) - count
            })
    }

    /// Uncharges descriptors.
    pub(crate) fn uncharge(&mut self, account: &Account, fds: u64) {
        let Some(uid) = account.uid else {
            self.admins = self.admins.saturating_sub(fds);
            return;
        };
        self.tenants = self.tenants.saturating_sub(fds);
        for cgroup in around(&account.cgroup) {
            subtract(&mut self.cgroups, cgroup, fds);
        }
        if account.cgroup.is_empty() {
            subtract(&mut self.users, &uid, fds);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The descriptors for tenants of a budget of 1024.
    const ALL: u64 = 1024 - FDS_DAEMON - FDS_ADMIN;

    fn account(uid: u32, cgroup: &[u8], pid: u32) -> Account {
        let key = ProcKey {
            tgid: pid,
            start_time_ns: 1,
        };
        Account::tenant(uid, cgroup, key)
    }

    /// Connects processes of a user and a cgroup until one is refused. Returns their descriptors.
    fn fill(budget: &mut Budget, uid: u32, cgroup: &[u8], pids: u32) -> u64 {
        let connect = |pid: &u32| budget.connect(&account(uid, cgroup, *pid));
        let connected = (pids..pids + 100_000).take_while(connect).count();
        connected as u64 * FDS_CONNECTION
    }

    #[test]
    fn users_and_cgroups_have_a_maximum() {
        let mut budget = Budget::new(1024);
        for (at, cgroup) in [(1, b"/a"), (2, b"/b"), (3, b"/c")] {
            assert_eq!(fill(&mut budget, 0, cgroup, at << 20), ALL >> at);
        }
        assert_eq!(fill(&mut budget, 7, b"", 4 << 20), ALL >> 4);
        assert!(
            budget.connect(&Account::ADMIN),
            "administrators have descriptors of their own"
        );
        budget.disconnect(&account(0, b"/a", 1 << 20));
        assert_eq!(fill(&mut budget, 7, b"/f", 5 << 20), 26);
    }

    /// A container may have many users, and a user many subordinate ones.
    #[test]
    fn a_cgroup_has_its_maximum_whichever_users_it_has() {
        for (first, second, most) in [
            ("/docker-1.scope", "/docker-1.scope", ALL / 2),
            (
                "/user.slice/user-7.slice/session-1.scope",
                "/user.slice/user-7.slice/user@7.service/app.slice/many.scope",
                ALL / 4,
            ),
        ] {
            let mut budget = Budget::new(1024);
            let filled = fill(&mut budget, 7, first.as_bytes(), 1);
            assert_eq!(filled, most);
            for uid in 100_000..100_100 {
                assert_eq!(fill(&mut budget, uid, second.as_bytes(), uid << 8), 0);
            }
            let others = b"/user.slice/user-8.slice/session-2.scope";
            assert_eq!(fill(&mut budget, 8, others, 1 << 20), ALL / 8);
        }
    }

    #[test]
    fn cgroups_below_a_container_leave_descriptors_for_others() {
        let mut budget = Budget::new(1024);
        let mut fill = |uid: u32, cgroup: &str| fill(&mut budget, uid, cgroup.as_bytes(), uid << 8);
        let made = (1..100).map(|n| fill(n, &format!("/pods/burst/pod1/main/{n}")));
        let made: u64 = made.sum();
        // A half, a half of that, and a third twice.
        assert!((ALL / 36 - 5..=ALL / 36).contains(&made), "{made}");
        let other = fill(200, "/pods/burst/pod2/main");
        assert!(other >= ALL / 50, "{other}");
        assert!(fill(300, "/service") >= ALL / 3);
    }

    /// Most containers run as user 0, and lie in one cgroup. Each of many takes all that it gets.
    #[test]
    fn hostile_containers_leave_descriptors_for_another() {
        for (above, below) in [
            ("/kubepods/burstable/pod", "/main"),
            ("/system.slice/docker-", ""),
        ] {
            let mut budget = Budget::new(1 << 19);
            let mut fill = |number: u32| {
                let cgroup = format!("{above}{number}{below}");
                fill(&mut budget, 0, cgroup.as_bytes(), number << 20)
            };
            let took: Vec<_> = (1..=10).map(&mut fill).collect();
            let other = fill(11);
            assert!(other > 100, "{took:?} {other}");
        }
    }

    #[test]
    fn users_leave_descriptors_for_another_where_nothing_divides_them() {
        for root in ["/", ""] {
            let mut budget = Budget::new(1024);
            for uid in 1..5 {
                let filled = fill(&mut budget, uid, root.as_bytes(), uid << 20);
                assert_eq!(filled, ALL >> uid);
            }
            assert!(budget.connect(&account(9, root.as_bytes(), 9 << 20)));
        }
    }

    #[test]
    fn what_is_uncharged_leaves_nothing() {
        let mut budget = Budget::new(1024);
        let one = account(1, b"/a", 1);
        assert!(budget.connect(&one));
        let mut pages = 0;
        while budget.try_charge(&one, FDS_PAGE) {
            pages += 1;
        }
        assert_eq!(pages, (ALL / 2 - FDS_CONNECTION) / FDS_PAGE);
        budget.uncharge(&one, pages * FDS_PAGE);
        budget.disconnect(&one);
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
