// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The tables that a [`State`] is made of, in memory that the caller allocates.
//!
//! The caller says with [`Memory`] how it allocates, keeps one [`Tables`], guards it
//! with one lock, and takes a [`State`] of it while it holds that lock. When a call
//! answers [`Error::NeedSlots`] nothing has changed:
//! the caller drops the lock, allocates a [`Storage`], exchanges it for the table's
//! under the lock, drops the old one after it, and calls again.
//!
//! Generic is only what holds the memory. What moves entries is not, so that it is
//! part of the core's object, whose checks it must pass.

use crate::dirs::{Dir, DirPath, Queue};
use crate::error::{Error, Need, Table};
use crate::ids::{FileId, GpuId, GroupId, GroupSlots, Owner, ProcKey, Sequence, UserId};
use crate::limits;
use crate::objects::{Object, ObjectKey};
use crate::plan::Plan;
use crate::state::{Failures, File, Gpu, Group, Node, PathHash, Pid, Proc, State, User};
use crate::table::{self, Meta, Slot};
use core::ops::DerefMut;

/// How slots are allocated.
pub trait Memory {
    /// An array of slots; by default it has none.
    type Slots<T>: Default + DerefMut<Target = [T]>;
    /// Why there are none to be had.
    type Error;

    /// Allocates `count` empty slots.
    ///
    /// # Errors
    ///
    /// Those of the allocator.
    fn slots<T: Default>(count: usize) -> Result<Self::Slots<T>, Self::Error>;
}

/// Storage in pieces, each of which can be exchanged by itself.
pub trait Pieces<T> {
    /// A piece; empty where there is none.
    fn piece(&self, at: usize) -> &[T];

    /// A piece, to be written.
    fn piece_mut(&mut self, at: usize) -> &mut [T];
}

/// Puts `new` in the place of `old`, entries moved, if it has more slots. Says
/// whether it did; else both are as they were.
fn exchange<T, S: DerefMut<Target = [T]>>(
    old: &mut S,
    new: &mut S,
    rehash: impl FnOnce(&mut [T], &mut [T]) -> Result<(), Error>,
) -> bool {
    let larger = new.len() > old.len() && rehash(old, new).is_ok();
    if larger {
        core::mem::swap(old, new);
    }
    larger
}

/// What is remembered between two uses of the storage.
#[derive(Debug)]
pub(crate) struct Root {
    pub(crate) sequence: Sequence,
    pub(crate) failures: Failures,
    pub(crate) plan: Plan,
    pub(crate) queue: Queue,
    pub(crate) heirs: usize,
    pub(crate) promised: usize,
    pub(crate) group_slots: GroupSlots,
    pub(crate) metas: Metas,
}

macro_rules! tables {
    ($($table:ident, $field:ident: $key:ty => $value:ty, $max:ident;)*) => {
        /// What each table remembers.
        #[derive(Debug)]
        pub(crate) struct Metas {
            $(pub(crate) $field: Meta,)*
        }

        impl Metas {
            fn new(seed: u64) -> Self {
                Self { $($field: Meta::new(Table::$table, limits::$max, seed),)* }
            }
        }

        /// The slots of every table.
        pub(crate) struct Stores<'a> {
            $(pub(crate) $field: &'a mut [Slot<$key, $value>],)*
        }

        /// Moves every entry of a table to larger, empty storage.
        mod rehash {
            use super::*;

            $(
                pub(super) fn $field(
                    metas: &mut Metas,
                    old: &mut [Slot<$key, $value>],
                    new: &mut [Slot<$key, $value>],
                ) -> Result<(), Error> {
                    table::rehash(&mut metas.$field, old, new)
                }
            )*
        }

        /// Everything that the core knows but the [`members`](crate::members).
        #[derive(Debug)]
        pub struct Tables<M: Memory> {
            root: Root,
            $($field: M::Slots<Slot<$key, $value>>,)*
        }

        impl<M: Memory> Tables<M> {
            /// Nothing is known. `seed` is a random number that nobody else knows.
            pub fn new(seed: u64) -> Self {
                let root = Root {
                    sequence: Sequence::new(),
                    failures: Failures::default(),
                    plan: Plan::NONE,
                    queue: Queue::new(),
                    heirs: 0,
                    promised: 0,
                    group_slots: GroupSlots::NONE,
                    metas: Metas::new(seed),
                };
                Self { root, $($field: Default::default(),)* }
            }

            /// The core over its storage.
            pub fn state(&mut self) -> State<'_> {
                State::new(&mut self.root, Stores { $($field: &mut self.$field,)* })
            }

            /// Moves a table into larger storage, whose place the old one takes. Says
            /// whether it was larger: somebody else may have been quicker.
            pub fn replace(&mut self, storage: &mut Storage<M>) -> bool {
                match storage {
                    $(Storage::$table(slots) => exchange(&mut self.$field, slots, |old, new| {
                        rehash::$field(&mut self.root.metas, old, new)
                    }),)*
                }
            }
        }

        /// Storage for one table: new on the way in, old on the way out.
        pub enum Storage<M: Memory> {
            $(
                #[doc = concat!("For [`Table::", stringify!($table), "`].")]
                $table(M::Slots<Slot<$key, $value>>),
            )*
        }

        impl<M: Memory> Storage<M> {
            /// Allocates what a table needs; `None` for the members', which are not here.
            ///
            /// # Errors
            ///
            /// Those of [`Memory::slots`].
            pub fn allocate(need: Need) -> Result<Option<Self>, M::Error> {
                Ok(Some(match need.table {
                    $(Table::$table => Self::$table(M::slots(need.slots)?),)*
                    Table::Members => return Ok(None),
                }))
            }
        }
    };
}

tables! {
    Gpus, gpus: GpuId => Gpu, GPUS_MAX;
    Groups, groups: GroupId => Group, GROUPS_MAX;
    Paths, paths: PathHash => GroupId, GROUPS_MAX;
    Procs, procs: ProcKey => Proc, PROCS_MAX;
    Pids, pids: u32 => Pid, PROCS_MAX;
    Users, users: UserId => User, PROCS_MAX;
    Nodes, nodes: (Owner, GpuId) => Node, NODES_MAX;
    Files, files: FileId => File, FILES_MAX;
    Objects, objects: ObjectKey => Object, OBJECTS_MAX;
    Dirs, dirs: DirPath => Dir, DIRS_MAX;
}
