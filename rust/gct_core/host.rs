// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The tables of a program: in its heap, for one thread at a time.

use crate::error::{Error, Need};
use crate::ids::{GroupId, ProcKey};
use crate::members::{MemberTable, Members};
use crate::state::{Failure, State};
use crate::tables::{Memory, Storage, Tables};
use core::convert::Infallible;
use std::vec::Vec;

/// The program's heap, which ends the program where there is no more.
#[derive(Debug)]
pub struct Heap;

impl Memory for Heap {
    type Slots<T> = Vec<T>;
    type Error = Infallible;

    fn slots<T: Default>(count: usize) -> Result<Vec<T>, Infallible> {
        Ok(core::iter::repeat_with(T::default).take(count).collect())
    }
}

/// Everything that the core knows.
#[derive(Debug)]
pub struct Host {
    tables: Tables<Heap>,
    members: MemberTable<Heap>,
}

impl Host {
    /// Nothing is known; `seeds` are random.
    pub fn new(seeds: [u64; 2]) -> Self {
        let [tables, _] = seeds;
        let Ok(members) = MemberTable::new();
        Self {
            tables: Tables::new(tables),
            members,
        }
    }

    /// The core over its storage.
    pub fn state(&mut self) -> State<'_> {
        self.tables.state()
    }

    /// Who belongs to a group by pid.
    pub fn members(&mut self) -> Members<'_> {
        self.members.members()
    }

    /// Both at once.
    pub fn parts(&mut self) -> (State<'_>, Members<'_>) {
        (self.tables.state(), self.members.members())
    }

    /// Moves a table into the storage that it needs.
    ///
    /// # Errors
    ///
    /// [`Error::NoSpace`] when that is no larger than what it has.
    pub fn grow(&mut self, need: Need) -> Result<(), Error> {
        let Ok(storage) = Storage::allocate(need);
        let larger = match storage {
            Some(mut storage) => self.tables.replace(&mut storage),
            None => {
                let Ok(page) = Heap::slots(need.slots);
                self.members.put_page(need.piece, page).is_empty()
            }
        };
        larger.then_some(()).ok_or(Error::NoSpace)
    }

    /// Runs an operation with as much storage as it asks for; only its last run changes
    /// anything.
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
                // Each turn enlarges a table, and every table has a maximum.
                Err(Error::NeedSlots(need)) => self.grow(need)?,
                outcome => return outcome,
            }
        }
    }

    /// As [`Host::with`] for what cannot be refused to anybody: a maximum is counted.
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

    /// The processes that belong to a group by pid.
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
    use crate::limits;

    #[test]
    fn storage_that_is_no_larger_is_refused_and_nothing_is_lost() {
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
        for slots in [0, 8, limits::TABLE_SLOTS_MIN] {
            let need = need(Table::Groups, slots);
            assert_eq!(host.grow(need), Err(Error::NoSpace), "{need:?}");
        }
        assert_eq!(host.grow(need(Table::Groups, 64)), Ok(()));
        assert_eq!(host.grow(need(Table::Members, 256)), Err(Error::NoSpace));
        assert_eq!(host.members_of(web), [key]);
        let again = host.with(|host| host.state().group_create(&name));
        assert_eq!(again, Err(Error::Exists));
    }

    #[test]
    fn a_maximum_is_counted_for_those_who_cannot_be_refused() {
        let mut host = Host::new([1, 2]);
        assert_eq!(host.follow(|_| Ok(7)), Some(7));
        assert_eq!(host.follow(|_| Err::<(), _>(Error::NoSpace)), None);
        assert_eq!(host.follow(|_| Err::<(), _>(Error::Gone)), None);
        assert_eq!(host.state().failures.limit, 1);
    }
}
