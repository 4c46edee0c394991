// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Gives those who send messages their turns.
//!
//! Connections cost a process nothing, processes a container nothing, nor cgroups one that may
//! make them below its own. So turns go down the [cgroups](crate::cgroups): at each one those
//! directly in it have a turn one after the other, as its own processes together have, however
//! many of their connections have sent something. Users have turns where no cgroup divides them.

use crate::budget::Account;
use crate::cgroups::around;
use std::collections::{HashMap, VecDeque};

/// Most turns of a round.
const TURNS_PER_ROUND: usize = 16;

/// Whose turns these are.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Holder {
    /// Those of all.
    All,
    /// Those of a user without a cgroup; of administrators.
    User(Option<u32>),
    /// Those of a cgroup and of all below.
    Cgroup(Vec<u8>),
    /// Those of a cgroup's own processes.
    Own(Vec<u8>),
}

/// Who is next among those of a holder.
#[derive(Debug)]
enum Next {
    Holder(Holder),
    Connection(u64),
}

/// The connections that have sent something.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    /// None is empty.
    waiting: HashMap<Holder, VecDeque<Next>>,
    /// How many of `waiting` have connections.
    holders: usize,
}

/// Returns the holders of a connection's turns, from the connection up.
fn holders(account: &Account) -> Vec<Holder> {
    let mut down = vec![Holder::All];
    match account.cgroup.is_empty() {
        true => down.push(Holder::User(account.uid)),
        false => {
            let cgroups = around(&account.cgroup).map(|cgroup| Holder::Cgroup(cgroup.to_vec()));
            down.extend(cgroups);
            down.push(Holder::Own(account.cgroup.clone()));
        }
    }
    down.reverse();
    down
}

impl Turns {
    /// Puts a connection, which is not waiting, behind those of its holders.
    pub(crate) fn wait(&mut self, account: &Account, connection: u64) {
        let mut next = Next::Connection(connection);
        for holder in holders(account) {
            let waiting = self.waiting.entry(holder.clone()).or_default();
            let waits = !waiting.is_empty();
            self.holders += usize::from(!waits && matches!(next, Next::Connection(_)));
            waiting.push_back(next);
            if waits {
                return;
            }
            next = Next::Holder(holder);
        }
    }

    /// Returns how many turns a round has.
    pub(crate) fn in_round(&self) -> usize {
        self.holders.min(TURNS_PER_ROUND)
    }

    /// Takes the connection whose turn it is. It may be closed by now.
    pub(crate) fn next(&mut self) -> Option<u64> {
        let mut above = Vec::new();
        let mut holder = Holder::All;
        let connection = loop {
            match self.waiting.get_mut(&holder)?.pop_front()? {
                Next::Connection(connection) => break connection,
                Next::Holder(below) => above.push(core::mem::replace(&mut holder, below)),
            }
        };
        self.holders -= usize::from(!self.rests(&holder));
        while let Some(next) = above.pop() {
            if self.rests(&holder) {
                let waiting = self.waiting.entry(next.clone()).or_default();
                waiting.push_back(Next::Holder(holder));
            }
            holder = next;
        }
        self.rests(&holder);
        Some(connection)
    }

    /// Returns whether somebody waits with a holder, and forgets it otherwise.
    fn rests(&mut self, holder: &Holder) -> bool {
        let waits = self
            .waiting
            .get(holder)
            .is_some_and(|next| !next.is_empty());
        if !waits {
            self.waiting.remove(holder);
        }
        waits
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

    #[test]
    fn a_container_has_no_more_turns_for_cgroups_that_it_makes() {
        let mut turns = Turns::default();
        (100..103).for_each(|id| turns.wait(&account(0, "/pods/many"), id));
        (0..100).for_each(|id| turns.wait(&account(0, &format!("/pods/many/{id}/x")), id));
        (200..203).for_each(|id| turns.wait(&account(0, "/pods/one"), id));
        turns.wait(&account(0, "/service"), 300);
        assert_eq!(turns.in_round(), TURNS_PER_ROUND);
        let order = order(&mut turns);
        assert_eq!(order[..9], [100, 300, 200, 0, 201, 1, 202, 2, 3]);
        assert_eq!(order.len(), 107);
        assert_eq!((turns.in_round(), turns.waiting.len()), (0, 0));
    }

    proptest::proptest! {
        #[test]
        fn everybody_has_a_turn_once(
            waits in proptest::collection::vec(("(/[ab]){0,4}", proptest::bool::ANY), 0..40),
        ) {
            let mut turns = Turns::default();
            let (mut waiting, mut had) = (Vec::new(), Vec::new());
            for ((cgroup, takes), id) in waits.iter().zip(0..) {
                turns.wait(&account(0, cgroup), id);
                waiting.push(id);
                if *takes {
                    had.extend(turns.next());
                }
            }
            had.extend(order(&mut turns));
            had.sort_unstable();
            proptest::prop_assert_eq!(had, waiting);
            proptest::prop_assert_eq!((turns.holders, turns.waiting.len()), (0, 0));
        }
    }
}
