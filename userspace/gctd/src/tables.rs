// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The storage of the core's tables, which grow when the core asks.

use gct_core::error::{Error, Need, Table};
use gct_core::ids::{GroupId, ProcKey};
use gct_core::members::{self, MemberSlot, Members, MembersRoot};
use gct_core::state::{self, Failure, Root, State, Stores};

fn empty<T: Default>(count: usize) -> Vec<T> {
    core::iter::repeat_with(T::default).take(count).collect()
}

macro_rules! tables {
    ($($table:ident, $field:ident: $slot:ident, $rehash:ident;)*) => {
        /// Everything that the core knows.
        #[derive(Debug)]
        pub(crate) struct Tables {
            root: Root,
            $($field: Vec<state::$slot>,)*
            members_root: MembersRoot,
            members: Vec<MemberSlot>,
        }

        impl Tables {
            /// Nothing is known; `seeds` are random.
            pub(crate) fn new(seeds: [u64; 2]) -> Self {
                Self {
                    root: Root::new(seeds[0]),
                    $($field: Vec::new(),)*
                    members_root: MembersRoot::new(seeds[1]),
                    members: Vec::new(),
                }
            }

            /// The core over its storage.
            pub(crate) fn state(&mut self) -> State<'_> {
                State::new(&mut self.root, Stores { $($field: &mut self.$field,)* })
            }

            /// Moves a table into the storage that it needs.
            fn grow(&mut self, need: Need) -> Result<(), Error> {
                match need.table {
                    $(Table::$table => {
                        let mut slots = empty(need.slots);
                        state::$rehash(&mut self.root, &mut self.$field, &mut slots)?;
                        self.$field = slots;
                    })*
                    Table::Members => {
                        let mut slots = empty(need.slots);
                        members::rehash(&mut self.members_root, &mut self.members, &mut slots)?;
                        self.members = slots;
                    }
                }
                Ok(())
            }
        }
    };
}

tables! {
    Gpus, gpus: GpuSlot, rehash_gpus;
    Groups, groups: GroupSlot, rehash_groups;
    Procs, procs: ProcSlot, rehash_procs;
    Nodes, nodes: NodeSlot, rehash_nodes;
    Files, files: FileSlot, rehash_files;
    Objects, objects: ObjectSlot, rehash_objects;
    Dirs, dirs: DirSlot, rehash_dirs;
}

impl Tables {
    /// Who belongs to a group by pid.
    pub(crate) fn members(&mut self) -> Members<'_> {
        Members::new(&mut self.members_root, &mut self.members)
    }

    /// Runs an operation with as much storage as it asks for; only its last run changes
    /// anything.
    pub(crate) fn with<T>(
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

    /// As [`Tables::with`] for what cannot be refused to anybody: a maximum is counted.
    pub(crate) fn follow<T>(
        &mut self,
        operation: impl FnMut(&mut Self) -> Result<T, Error>,
    ) -> Option<T> {
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
    pub(crate) fn members_of(&mut self, group: GroupId) -> Vec<ProcKey> {
        let members = self.members();
        let mut keys = empty(members.count(group));
        members.list(group, &mut keys);
        keys
    }
}
