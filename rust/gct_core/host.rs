// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Keeps the tables in a program's heap, for one thread at a time.

use crate::error::{Error, Need};
use crate::failures::Failure;
use crate::ids::{GroupId, ProcKey};
use crate::members::{MemberTable, Members};
use crate::state::State;
use crate::tables::{Memory, Storage, Tables};
use core::convert::Infallible;
use std::vec::Vec;

/// The program's heap. A failed allocation aborts the program.
#[derive(Debug)]
pub struct Heap;

impl Memory for Heap {
    type Slots<T> = Vec<T>;
    type Error = Infallible;

    fn slots<T: Default>(count: usize) -> Result<Vec<T>, Infallible> {
        Ok(core::iter::repeat_with(T::default).take(count).collect())
    }

    fn page<T: Default>(count: usize) -> Result<Vec<T>, Infallible> {
        Self::slots(count)
    }
}

/// The state of the core and the members.
#[derive(Debug)]
pub struct Host {
    tables: Tables<Heap>,
    members: MemberTable<Heap>,
}

impl Host {
    /// Creates an empty state. `seeds` are random.
    pub fn new(seeds: [u64; 2]) -> Self {
        let [tables, _] = seeds;
        let (Ok(tables), Ok(members)) = (Tables::new(tables), MemberTable::new());
        Self { tables, members }
    }

    /// Returns the state.
    pub fn state(&mut self) -> State<'_> {
        self.tables.state()
    }

    /// Returns the members of groups by pid.
    pub fn members(&mut self) -> Members<'_> {
        self.members.members()
    }

    /// Returns the state and the members.
    pub fn parts(&mut self) -> (State<'_>, Members<'_>) {
        (self.tables.state(), self.members.members())
    }

    /// Adds the page that a table needs.
    ///
    /// # Errors
    ///
    /// [`Error::NoSpace`] if the table has that storage already.
    pub fn grow(&mut self, need: Need) -> Result<(), Error> {
        let Ok(storage) = Storage::allocate(&need);
        let larger = match storage {
            Some(storage) => self.tables.push(&need, storage).is_none(),
            None => {
                let Ok(page) = Heap::page(need.slots);
                self.members.put_page(need.piece, page).is_empty()
            }
        };
        larger.then_some(()).ok_or(Error::NoSpace)
    }

    /// Frees the spare pages.
    pub fn shrink(&mut self) {
        while self.tables.pop().is_some() {}
    }

    /// Runs an operation, and repeats it with a further page while it needs storage. Only the last
    /// run changes the state.
    ///
    /// # Errors
    ///
    /// Those of the operation.
    pub fn with<T>(
        &mut self,
        mut operation: impl FnMut(&mut Self) -> Result<T, Error>,
    ) -> Result<T, Error> {
        loop {
            match operation(self) {
                // This terminates: each iteration adds a page, and every table has a maximum.
                Err(Error::NeedSlots(need)) => self.grow(need)?,
                outcome => {
                    self.shrink();
                    return outcome;
                }
            }
        }
    }

    /// Runs an operation as [`Host::with`], for an event that has happened already. A full table is
    /// counted.
    pub fn follow<T>(&mut self, operation: impl FnMut(&mut Self) -> Result<T, Error>) -> Option<T> {
        match self.with(operation) {
            Ok(value) => Some(value),
            Err(Error::NoSpace) => {
                self.state().count(Failure::Limit);
                None
            }
            Err(_) => None,
        }
    }

    /// Returns the members of a group by pid.
    pub fn members_of(&mut self, group: GroupId) -> Vec<ProcKey> {
        let members = self.members();
        let Ok(mut keys) = Heap::slots(members.count(group));
        let (mut filled, mut from) = (0, Some(0));
        while let Some(next) = from {
            let (found, then) = members.list(group, next, &mut keys[filled..]);
            filled += found;
            from = then;
        }
        keys
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Table;
    use crate::iface::Name;

    #[test]
    fn storage_that_nobody_needs_is_refused_and_nothing_is_lost() {
        let mut host = Host::new([1, 2]);
        let name = Name::new("web").unwrap();
        let web = host.with(|host| host.state().group_create(&name)).unwrap();
        let key = ProcKey::default();
        host.with(|host| host.members().put(key, web)).unwrap();
        let need = |table, slots| Need {
            table,
            piece: 0,
            slots,
        };
        for slots in [0, 1] {
            let need = need(Table::Groups, slots);
            assert_eq!(host.grow(need), Err(Error::NoSpace), "{need:?}");
        }
        assert_eq!(host.grow(need(Table::Members, 256)), Err(Error::NoSpace));
        assert_eq!(host.members_of(web), [key]);
        let again = host.with(|host| host.state().group_create(&name));
        assert_eq!(again, Err(Error::Exists));
    }

    /// Checks a herd of operations that need the same page. Each adds at most one page to each
    /// table, and all make progress.
    #[test]
    fn a_herd_brings_one_page_each() {
        const HERD: u32 = 1000;
        let mut host = Host::new([1, 2]);
        let open = |host: &mut Host, pid| {
            let key = ProcKey {
                tgid: pid,
                start_time_ns: 1,
            };
            host.state().file_open(key, b"", None)
        };
        (0..HERD).for_each(|_| host.tables.grows());
        let mut waiting: Vec<u32> = (0..HERD).collect();
        let (mut rounds, mut brought) = (0, 0);
        while !waiting.is_empty() {
            rounds += 1;
            // All operations fail before a page is added.
            let needs: Vec<_> = waiting
                .iter()
                .map(|pid| (*pid, open(&mut host, *pid)))
                .collect();
            waiting.clear();
            for (pid, outcome) in needs {
                let Err(Error::NeedSlots(need)) = outcome else {
                    outcome.unwrap();
                    continue;
                };
                waiting.push(pid);
                brought += 1;
                let Ok(page) = Storage::allocate(&need);
                drop(host.tables.push(&need, page.unwrap()));
            }
        }
        // Five tables. A new branch or page of buckets costs one round.
        assert!(rounds < 60, "{rounds}");
        assert!(brought < HERD * 30, "{brought}");
        (0..HERD).for_each(|_| host.tables.has_grown());
        host.shrink();
        assert!(!host.state().has_spare());
    }

    /// Checks that the size of the storage follows the entries that exist. While an operation is
    /// allocating, no page is removed.
    #[test]
    fn what_a_tenant_filled_is_given_back() {
        let mut host = Host::new([1, 2]);
        let pages = |host: &mut Host| {
            let mut pages = 0;
            while host.tables.pop().is_some() {
                pages += 1;
            }
            pages
        };
        let mut files = Vec::new();
        for pid in 0..500 {
            let key = ProcKey {
                tgid: pid,
                start_time_ns: 1,
            };
            files.push(
                host.with(|host| host.state().file_open(key, b"", None))
                    .unwrap(),
            );
        }
        assert_eq!(pages(&mut host), 0);
        host.tables.grows();
        let keep = files.pop().unwrap();
        files
            .into_iter()
            .for_each(|file| host.state().file_close(file));
        assert!(host.tables.pop().is_none() && !host.state().has_spare());
        host.tables.has_grown();
        assert!(host.state().has_spare());
        let freed = pages(&mut host);
        assert!(freed > 100, "{freed}");
        assert!(!host.state().has_spare());
        host.state().file_close(keep);
    }

    #[test]
    fn a_maximum_is_counted_for_those_who_cannot_be_refused() {
        let mut host = Host::new([1, 2]);
        assert_eq!(host.follow(|_| Ok(7)), Some(7));
        assert_eq!(host.follow(|_| Err::<(), _>(Error::NoSpace)), None);
        assert_eq!(host.follow(|_| Err::<(), _>(Error::Gone)), None);
        assert_eq!(host.state().failures.limit.0, 1);
    }
}
