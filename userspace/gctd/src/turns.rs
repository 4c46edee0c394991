// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Gives those who send messages their turns.
//!
//! Connections cost a process nothing, and processes a container nothing. So each container, or
//! each user where no cgroup divides users, has one turn in a round, however many of its
//! connections have sent something. It gives its turns to these one after the other.

use crate::budget::Account;
use std::collections::{HashMap, VecDeque};

/// Whose turns these are: a user's if the cgroup is empty, else a cgroup's. Administrators are one.
type Holder = (Option<u32>, Vec<u8>);

/// The connections that have sent something.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    waiting: HashMap<Holder, VecDeque<u64>>,
    /// Those of `waiting`. The first one is next.
    order: VecDeque<Holder>,
}

fn holder(account: &Account) -> Holder {
    match account.cgroup.is_empty() {
        true => (account.uid, Vec::new()),
        false => (None, account.cgroup.clone()),
    }
}

impl Turns {
    /// Puts a connection, which is not waiting, behind those of its holder.
    pub(crate) fn wait(&mut self, account: &Account, connection: u64) {
        let holder = holder(account);
        let waiting = self.waiting.entry(holder.clone()).or_default();
        if waiting.is_empty() {
            self.order.push_back(holder);
        }
        waiting.push_back(connection);
    }

    /// Returns how many turns a round has.
    pub(crate) fn in_round(&self) -> usize {
        self.order.len()
    }

    /// Takes the connection whose turn it is. It may be closed by now.
    pub(crate) fn next(&mut self) -> Option<u64> {
        let holder = self.order.pop_front()?;
        let waiting = self.waiting.get_mut(&holder)?;
        let next = waiting.pop_front();
        match waiting.is_empty() {
            true => _ = self.waiting.remove(&holder),
            false => self.order.push_back(holder),
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gct_core::ids::ProcKey;

    fn account(uid: u32, cgroup: &str) -> Account {
        Account::tenant(uid, cgroup.as_bytes(), ProcKey::default())
    }

    fn order(turns: &mut Turns) -> Vec<u64> {
        std::iter::from_fn(|| turns.next()).collect()
    }

    #[test]
    fn a_container_has_one_turn_in_a_round_however_many_connections_it_has() {
        let mut turns = Turns::default();
        (0..4).for_each(|id| turns.wait(&account(id, "/many"), id.into()));
        turns.wait(&account(0, "/few"), 10);
        turns.wait(&account(0, "/few"), 11);
        turns.wait(&Account::ADMIN, 20);
        assert_eq!(turns.in_round(), 3);
        assert_eq!(order(&mut turns), [0, 10, 20, 1, 11, 2, 3]);
        assert_eq!((turns.in_round(), turns.waiting.len()), (0, 0));
    }

    #[test]
    fn users_have_turns_where_no_cgroup_divides_them() {
        let mut turns = Turns::default();
        for (uid, id) in [(1, 1), (1, 2), (2, 3)] {
            turns.wait(&account(uid, "/"), id);
        }
        assert_eq!(order(&mut turns), [1, 3, 2]);
    }
}
