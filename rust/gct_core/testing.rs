// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What the glue does, for tests: storage that starts empty and grows when it must.

use crate::check::invariants;
use crate::engine::Ticket;
use crate::error::{Error, Need, Table};
use crate::ids::FileId;
use crate::members::{self, MemberSlot, Members, MembersRoot};
use crate::rmapi;
use crate::state::{self, Root, State, Stores};
use std::vec;
use std::vec::Vec;

fn slots<T: Default>(n: usize) -> Vec<T> {
    (0..n).map(|_| T::default()).collect()
}

/// What the glue keeps.
pub(crate) struct Store {
    root: Root,
    gpus: Vec<state::GpuSlot>,
    groups: Vec<state::GroupSlot>,
    procs: Vec<state::ProcSlot>,
    nodes: Vec<state::NodeSlot>,
    files: Vec<state::FileSlot>,
    objects: Vec<state::ObjectSlot>,
    dirs: Vec<state::DirSlot>,
    members_root: MembersRoot,
    members: Vec<MemberSlot>,
}

impl Store {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            root: Root::new(seed),
            gpus: vec![],
            groups: vec![],
            procs: vec![],
            nodes: vec![],
            files: vec![],
            objects: vec![],
            dirs: vec![],
            members_root: MembersRoot::new(seed),
            members: vec![],
        }
    }

    pub(crate) fn state(&mut self) -> State<'_> {
        let stores = Stores {
            gpus: &mut self.gpus,
            groups: &mut self.groups,
            procs: &mut self.procs,
            nodes: &mut self.nodes,
            files: &mut self.files,
            objects: &mut self.objects,
            dirs: &mut self.dirs,
        };
        State::new(&mut self.root, stores)
    }

    pub(crate) fn members(&mut self) -> Members<'_> {
        Members::new(&mut self.members_root, &mut self.members)
    }

    /// One whole ioctl of the driver.
    pub(crate) fn ioctl(&mut self, file: FileId, escape: u32, bytes: &[u8], hint: Option<u64>) {
        let call = rmapi::decode(escape, bytes).unwrap().unwrap();
        let ticket = self
            .retry(|store| store.state().call_enter(file, &call))
            .unwrap();
        let ticket = Ticket::from_words(ticket.words());
        self.retry(|store| store.state().call_leave(file, &call, ticket, hint))
            .unwrap();
    }

    pub(crate) fn check(&mut self) {
        let stores = Stores {
            gpus: &mut self.gpus,
            groups: &mut self.groups,
            procs: &mut self.procs,
            nodes: &mut self.nodes,
            files: &mut self.files,
            objects: &mut self.objects,
            dirs: &mut self.dirs,
        };
        let state = State::new(&mut self.root, stores);
        let members = Members::new(&mut self.members_root, &mut self.members);
        assert_eq!(invariants(&state, &members), Ok(()));
    }

    fn grow(&mut self, need: Need) {
        macro_rules! table {
            ($field:ident, $rehash:path, $root:ident) => {{
                let mut new = slots(need.slots);
                assert!(new.len() > self.$field.len(), "{need:?}");
                $rehash(&mut self.$root, &mut self.$field, &mut new).unwrap();
                self.$field = new;
            }};
        }
        match need.table {
            Table::Gpus => table!(gpus, state::rehash_gpus, root),
            Table::Groups => table!(groups, state::rehash_groups, root),
            Table::Procs => table!(procs, state::rehash_procs, root),
            Table::Nodes => table!(nodes, state::rehash_nodes, root),
            Table::Files => table!(files, state::rehash_files, root),
            Table::Objects => table!(objects, state::rehash_objects, root),
            Table::Dirs => table!(dirs, state::rehash_dirs, root),
            Table::Members => table!(members, members::rehash, members_root),
        }
    }

    /// As the glue does it: grow and try again, and a failed try changes nothing.
    pub(crate) fn retry<T>(
        &mut self,
        mut f: impl FnMut(&mut Self) -> Result<T, Error>,
    ) -> Result<T, Error> {
        for _ in 0..20 {
            match f(self) {
                Err(Error::NeedSlots(need)) => {
                    self.check();
                    self.grow(need);
                }
                other => return other,
            }
        }
        panic!("storage never suffices");
    }
}

/// A structure of `size` bytes with some 32-bit words set.
pub(crate) fn words(size: usize, words: &[(usize, u64)]) -> Vec<u8> {
    let mut bytes = vec![0; size];
    for (offset, word) in words {
        let word = u32::try_from(*word).unwrap();
        bytes[*offset..*offset + 4].copy_from_slice(&word.to_le_bytes());
    }
    bytes
}
