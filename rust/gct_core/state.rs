// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What the core knows, in storage that its caller owns.
//!
//! The caller keeps one [`Root`] and one array of slots for each table, guards
//! all of them with one lock, and joins them to a [`State`] while it holds that
//! lock. When a call answers [`Error::NeedSlots`] nothing has changed: the caller
//! drops the lock, allocates, moves the entries with the table's `rehash_*`
//! function under the lock, and calls again.

use crate::account::Usage;
use crate::dirs::{Dir, Dirs, Queue};
use crate::error::{Error, Table};
use crate::features::FeatureSet;
use crate::gpu::GpuFacts;
use crate::ids::{FileId, GpuId, GpuIndex, GroupId, Owner, ProcKey, Sequence};
use crate::iface::{CgroupPath, Name};
use crate::launches::Launches;
use crate::limits;
use crate::mask::TpcMask;
use crate::objects::{Object, ObjectKey, Objects};
use crate::plan::Plan;
use crate::settings::Settings;
use crate::table::{self, Map, Meta, Slot};

/// A GPU.
#[derive(Debug)]
pub struct Gpu {
    pub(crate) facts: GpuFacts,
    pub(crate) features: FeatureSet,
    pub(crate) index: GpuIndex,
}

/// A named group.
#[derive(Debug)]
pub struct Group {
    pub(crate) name: Name,
    /// Empty when the group has none.
    pub(crate) cgroup: CgroupPath,
}

/// A process that has the driver open, or had when it opened a file that is
/// still open elsewhere.
#[derive(Debug)]
pub struct Proc {
    /// Its cgroup when it last opened the driver; empty when unknown.
    pub(crate) cgroup: CgroupPath,
    /// The group it belongs to by pid.
    pub(crate) by_pid: Option<GroupId>,
    /// The group it belongs to: by pid, or else by cgroup.
    pub(crate) group: Option<GroupId>,
    pub(crate) files: u32,
    /// GPUs on which it has channel groups, each of which is a directory.
    pub(crate) visible: u32,
}

/// An owner on a GPU.
#[derive(Debug, Default)]
pub struct Node {
    pub(crate) settings: Settings,
    pub(crate) usage: Usage,
    pub(crate) launches: Launches,
    /// What the last launch was given, if that is known; `None` within is all TPCs.
    pub(crate) effective: Option<Option<TpcMask>>,
    /// Allocations that were refused because of `gmem.limit`.
    pub(crate) refusals: u64,
    /// A process's node has a directory while it has channel groups.
    pub(crate) visible: bool,
}

impl Node {
    /// Has it a directory? A process's has none without channel groups.
    pub(crate) const fn is_shown(&self, owner: Owner) -> bool {
        matches!(owner, Owner::Group(_)) || self.visible
    }
}

/// An open file of the driver.
#[derive(Debug)]
pub struct File {
    pub(crate) proc: ProcKey,
}

/// Storage for one GPU.
pub type GpuSlot = Slot<GpuId, Gpu>;
/// Storage for one group.
pub type GroupSlot = Slot<GroupId, Group>;
/// Storage for one process.
pub type ProcSlot = Slot<ProcKey, Proc>;
/// Storage for one owner on a GPU.
pub type NodeSlot = Slot<(Owner, GpuId), Node>;
/// Storage for one open file.
pub type FileSlot = Slot<FileId, File>;
pub use crate::dirs::{DirPath, DirSlot, Effect};
pub use crate::engine::Ticket;
pub use crate::objects::ObjectSlot;

/// What could not be followed. Shown in the root's `events`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// A maximum of [`limits`] was reached.
    Limit,
    /// There was no memory for a table.
    Memory,
    /// An ioctl's structure was not as expected.
    Decode,
    /// Forked children that could not be added to their parent's group: the
    /// total so far, which [`Members::lost`](crate::members::Members::lost) tells.
    Members(u64),
    /// An object of a client that was never seen.
    Client,
    /// A channel group, channel or allocation on a GPU that could not be told.
    Gpu,
    /// A charge that did not fit, or was not there to be taken back.
    Charge,
    /// A control that the resource manager refused.
    Control,
}

/// Counts of [`Failure`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Failures {
    pub(crate) limit: u64,
    pub(crate) memory: u64,
    pub(crate) decode: u64,
    pub(crate) members: u64,
    pub(crate) client: u64,
    pub(crate) gpu: u64,
    pub(crate) charge: u64,
    pub(crate) control: u64,
}

/// What is remembered between two uses of the storage.
#[derive(Debug)]
pub struct Root {
    sequence: Sequence,
    failures: Failures,
    plan: Plan,
    queue: Queue,
    gpus: Meta,
    groups: Meta,
    procs: Meta,
    nodes: Meta,
    files: Meta,
    objects: Meta,
    dirs: Meta,
}

impl Root {
    /// Nothing is known. `seed` is a random number that nobody else knows.
    pub const fn new(seed: u64) -> Self {
        Self {
            sequence: Sequence::new(),
            failures: Failures {
                limit: 0,
                memory: 0,
                decode: 0,
                members: 0,
                client: 0,
                gpu: 0,
                charge: 0,
                control: 0,
            },
            plan: Plan::NONE,
            queue: Queue::new(),
            gpus: Meta::new(Table::Gpus, limits::GPUS_MAX, seed),
            groups: Meta::new(Table::Groups, limits::GROUPS_MAX, seed),
            procs: Meta::new(Table::Procs, limits::PROCS_MAX, seed),
            nodes: Meta::new(Table::Nodes, limits::NODES_MAX, seed),
            files: Meta::new(Table::Files, limits::FILES_MAX, seed),
            objects: Meta::new(Table::Objects, limits::OBJECTS_MAX, seed),
            dirs: Meta::new(Table::Dirs, limits::DIRS_MAX, seed),
        }
    }
}

/// The storage of every table. Any length will do, 0 too.
#[derive(Debug)]
pub struct Stores<'a> {
    /// For [`Table::Gpus`].
    pub gpus: &'a mut [GpuSlot],
    /// For [`Table::Groups`].
    pub groups: &'a mut [GroupSlot],
    /// For [`Table::Procs`].
    pub procs: &'a mut [ProcSlot],
    /// For [`Table::Nodes`].
    pub nodes: &'a mut [NodeSlot],
    /// For [`Table::Files`].
    pub files: &'a mut [FileSlot],
    /// For [`Table::Objects`].
    pub objects: &'a mut [ObjectSlot],
    /// For [`Table::Dirs`].
    pub dirs: &'a mut [DirSlot],
}

/// Everything the core knows, while the lock is held.
///
/// The events that change it are in [`engine`](crate::engine).
#[derive(Debug)]
pub struct State<'a> {
    pub(crate) sequence: &'a mut Sequence,
    pub(crate) failures: &'a mut Failures,
    pub(crate) plan: &'a mut Plan,
    pub(crate) gpus: Map<'a, GpuId, Gpu>,
    pub(crate) groups: Map<'a, GroupId, Group>,
    pub(crate) procs: Map<'a, ProcKey, Proc>,
    pub(crate) nodes: Map<'a, (Owner, GpuId), Node>,
    pub(crate) files: Map<'a, FileId, File>,
    pub(crate) objects: Objects<'a>,
    pub(crate) dirs: Dirs<'a>,
}

impl<'a> State<'a> {
    /// Joins what is remembered with its storage.
    pub fn new(root: &'a mut Root, stores: Stores<'a>) -> Self {
        Self {
            sequence: &mut root.sequence,
            failures: &mut root.failures,
            plan: &mut root.plan,
            gpus: Map::new(&mut root.gpus, stores.gpus),
            groups: Map::new(&mut root.groups, stores.groups),
            procs: Map::new(&mut root.procs, stores.procs),
            nodes: Map::new(&mut root.nodes, stores.nodes),
            files: Map::new(&mut root.files, stores.files),
            objects: Objects::new(Map::new(&mut root.objects, stores.objects)),
            dirs: Dirs::new(Map::new(&mut root.dirs, stores.dirs), &mut root.queue),
        }
    }
}

macro_rules! rehash {
    ($($name:ident $field:ident $key:ty, $value:ty;)*) => {
        $(
            /// Moves every entry of this table to larger, empty storage.
            ///
            /// # Errors
            ///
            /// [`Error::NoSpace`] when `new` is too small or not empty; nothing has moved.
            pub fn $name(
                root: &mut Root,
                old: &mut [Slot<$key, $value>],
                new: &mut [Slot<$key, $value>],
            ) -> Result<(), Error> {
                table::rehash(&mut root.$field, old, new)
            }
        )*
    };
}

rehash! {
    rehash_gpus gpus GpuId, Gpu;
    rehash_groups groups GroupId, Group;
    rehash_procs procs ProcKey, Proc;
    rehash_nodes nodes (Owner, GpuId), Node;
    rehash_files files FileId, File;
    rehash_objects objects ObjectKey, Object;
    rehash_dirs dirs DirPath, Dir;
}
